/* The watch over calls that do not return, in a child process, which it ends. The environment
 * variables that are refused. */
#include "worker/comm/nccl_guard.h"

#include "base/clock.h"
#include "worker/comm/nccl_calls.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { SHORT_MS = 160, LONG_MS = 60000 };

/* The call never returns: it reads a pipe without a writer. */
static void be_stuck(int to_parent, int never)
{
    struct dpt_nccl_guard guard;
    struct dpt_nccl_watch *watch;
    char c;
    const struct rlimit no_core = {0, 0};
    (void)setrlimit(RLIMIT_CORE, &no_core);
    (void)alarm(30);
    if (dup2(to_parent, STDERR_FILENO) < 0)
        _exit(1);
    dpt_nccl_guard_init(&guard, SHORT_MS);
    if (dpt_nccl_watch_create(&guard, &watch, NULL) != DPT_OK)
        _exit(2);
    dpt_nccl_guard_enter(&guard, "ncclCommAbort", dpt_now_ms() + SHORT_MS);
    while (read(never, &c, 1) < 0)
        continue;
    _exit(3);
}

static void a_stuck_owner_ends_the_process(void **state)
{
    (void)state;
    int said[2], never[2], status = 0;
    char text[2048] = "";
    size_t at = 0;
    assert_int_equal(pipe(said), 0);
    assert_int_equal(pipe(never), 0);
    const int64_t start = dpt_now_ms();
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        (void)close(said[0]);
        be_stuck(said[1], never[0]);
    }
    (void)close(said[1]);
    for (ssize_t n; (n = read(said[0], text + at, sizeof text - 1 - at)) > 0;)
        at += (size_t)n;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    const int64_t took = dpt_now_ms() - start;
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGABRT);
    assert_true(took >= SHORT_MS);
    assert_true(took < 20000); /* of a busy machine; the bound itself is the machine's test */
    assert_non_null(strstr(text, "ncclCommAbort has not returned within its limit"));
    assert_non_null(strstr(text, "this process ends and counts as lost"));
    (void)close(said[0]);
    (void)close(never[0]);
    (void)close(never[1]);
}

static void call_that_returns_in_time_is_not_reported(void **state)
{
    (void)state;
    struct dpt_nccl_guard guard;
    struct dpt_nccl_watch *watch, *none = NULL;
    const char *what = NULL;
    dpt_nccl_guard_init(&guard, LONG_MS);
    assert_int_equal(dpt_nccl_watch_create(&guard, &watch, NULL), DPT_OK);
    for (int i = 0; i < 1000; i++) {
        dpt_nccl_guard_enter(&guard, "a call", dpt_now_ms() + LONG_MS);
        assert_false(dpt_nccl_guard_expired(&guard, dpt_now_ms(), &what));
        dpt_nccl_guard_leave(&guard);
        assert_false(dpt_nccl_guard_expired(&guard, INT64_MAX, &what));
    }
    dpt_nccl_watch_destroy(&watch);
    assert_null(watch);
    dpt_nccl_watch_destroy(&none);
    dpt_nccl_guard_enter(&guard, "a call", 100);
    assert_false(dpt_nccl_guard_expired(&guard, 100, &what));
    assert_true(dpt_nccl_guard_expired(&guard, 101, &what));
    assert_string_equal(what, "a call");
}

static void settings_that_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *name, *value;
        bool refused;
    } cases[] = {{"NCCL_COMM_BLOCKING", "1", true},
                 {"NCCL_COMM_BLOCKING", " 0x1", true},
                 {"NCCL_COMM_BLOCKING", "-1", true},
                 {"NCCL_COMM_BLOCKING", "0", false},
                 {"NCCL_COMM_BLOCKING", "", false},
                 {"NCCL_LAUNCH_ORDER_IMPLICIT", "1", true},
                 {"NCCL_COMM_SPLIT_SHARE_RESOURCES", "1", true},
                 {"NCCL_COMM_SHRINK_SHARE_RESOURCES", "1", true},
                 {"NCCL_COMM_ID", "10.0.0.1:5000", true},
                 {"NCCL_DEBUG", "1", false}};
    const char *why = NULL;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_null(dpt_nccl_refused_setting(&why));
        assert_int_equal(setenv(cases[i].name, cases[i].value, 1), 0);
        const char *found = dpt_nccl_refused_setting(&why);
        assert_int_equal(found != NULL, cases[i].refused);
        if (found != NULL)
            assert_string_equal(found, cases[i].name);
        assert_int_equal(unsetenv(cases[i].name), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_stuck_owner_ends_the_process),
                                       cmocka_unit_test(call_that_returns_in_time_is_not_reported),
                                       cmocka_unit_test(settings_that_are_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
