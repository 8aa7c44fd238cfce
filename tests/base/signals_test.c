/* Which signals end a program, and that one reads them. */
#include "base/signals.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

enum { DEADLINE_MS = 20 * 1000 };

/* The number of the one signal that `fd` has, 0 when it has none. */
static int read_signal(int fd)
{
    struct signalfd_siginfo info;
    return read(fd, &info, sizeof info) == (ssize_t)sizeof info ? (int)info.ssi_signo : 0;
}

static int open_ends(void)
{
    sigset_t ends;
    struct dpt_err err;
    assert_int_equal(dpt_signals_block_ends(&ends, &err), DPT_OK);
    const int fd = signalfd(-1, &ends, SFD_CLOEXEC | SFD_NONBLOCK);
    assert_true(fd >= 0);
    return fd;
}

static void ends_are_read(void **state)
{
    (void)state;
    static const int ends[] = {SIGTERM, SIGINT, SIGQUIT, SIGHUP};
    const int fd = open_ends();
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
        assert_int_equal(kill(getpid(), ends[i]), 0);
        assert_int_equal(read_signal(fd), ends[i]);
    }
    assert_int_equal(kill(getpid(), SIGPIPE), 0);
    assert_int_equal(kill(getpid(), SIGXFSZ), 0);
    assert_int_equal(close(fd), 0);
}

/* The next signal of `fd`. A signal that poll has seen may be taken by the other thread, which then
 * sends it on. */
static int await_signal(int fd)
{
    struct pollfd item = {.fd = fd, .events = POLLIN};
    int number = 0;
    while (number == 0 && poll(&item, 1, DEADLINE_MS) == 1)
        number = read_signal(fd);
    return number;
}

/* In poll, where ThreadSanitizer hands a signal on at once. */
static void *wait_for_the_end(void *gate)
{
    struct pollfd item = {.fd = *(const int *)gate, .events = POLLIN};
    while (poll(&item, 1, DEADLINE_MS) < 0 && errno == EINTR)
        continue;
    return NULL;
}

/* As a library's threads do that it has started before: the kernel may give the signal to them. */
static void a_thread_that_does_not_block_them_sends_them_on(void **state)
{
    (void)state;
    static const int ends[] = {SIGTERM, SIGINT, SIGQUIT, SIGHUP};
    int gate[2];
    pthread_t thread;
    sigset_t none;
    sigemptyset(&none);
    assert_int_equal(pthread_sigmask(SIG_SETMASK, &none, NULL), 0);
    assert_int_equal(pipe(gate), 0);
    assert_int_equal(pthread_create(&thread, NULL, wait_for_the_end, &gate[0]), 0);
    const int fd = open_ends();
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
        assert_int_equal(kill(getpid(), ends[i]), 0);
        assert_int_equal(await_signal(fd), ends[i]);
        assert_int_equal(read_signal(fd), 0);
    }
    assert_int_equal(close(gate[1]), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(close(gate[0]), 0);
    assert_int_equal(close(fd), 0);
}

/* As under nohup. */
static void ignored_hangup_stays_ignored(void **state)
{
    (void)state;
    sigset_t none;
    sigemptyset(&none);
    assert_int_equal(sigprocmask(SIG_SETMASK, &none, NULL), 0);
    assert_true(signal(SIGHUP, SIG_IGN) != SIG_ERR);
    const int fd = open_ends();
    assert_int_equal(kill(getpid(), SIGHUP), 0);
    assert_int_equal(read_signal(fd), 0);
    assert_int_equal(kill(getpid(), SIGQUIT), 0);
    assert_int_equal(read_signal(fd), SIGQUIT);
    assert_int_equal(close(fd), 0);
}

/* A separate process lets signals end it at once, and then receives `number`, which it had blocked.
 * Returns its output, and in ret_exit its end as waitpid gives it. */
static void end_a_process(int number, bool ignores, char ret_said[64], int *ret_exit)
{
    int pipes[2];
    assert_int_equal(pipe(pipes), 0);
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        sigset_t ends;
        struct dpt_err err;
        if (dup2(pipes[1], STDOUT_FILENO) < 0 ||
            signal(number, ignores ? SIG_IGN : SIG_DFL) == SIG_ERR ||
            dpt_signals_end_at_once("told to end\n", 3, &err) != DPT_OK ||
            dpt_signals_block_ends(&ends, &err) != DPT_OK || raise(number) != 0 ||
            sigprocmask(SIG_UNBLOCK, &ends, NULL) != 0)
            _exit(99);
        _exit(0); /* nothing has ended it */
    }
    close(pipes[1]);
    size_t used = 0;
    for (ssize_t n = 1; n > 0; used += (size_t)n) {
        n = read(pipes[0], ret_said + used, 63 - used);
        assert_true(n >= 0);
    }
    ret_said[used] = '\0';
    close(pipes[0]);
    assert_int_equal(waitpid(pid, ret_exit, 0), pid);
}

static void ends_at_once_with_a_line(void **state)
{
    (void)state;
    static const int ends[] = {SIGTERM, SIGINT, SIGQUIT, SIGHUP};
    char said[64];
    int code;
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
        end_a_process(ends[i], false, said, &code);
        assert_string_equal(said, "told to end\n");
        assert_true(WIFEXITED(code) && WEXITSTATUS(code) == 3);
        end_a_process(ends[i], true, said, &code);
        assert_string_equal(said, "");
        assert_true(WIFEXITED(code) && WEXITSTATUS(code) == 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ends_are_read),
        cmocka_unit_test(a_thread_that_does_not_block_them_sends_them_on),
        cmocka_unit_test(ignored_hangup_stays_ignored),
        cmocka_unit_test(ends_at_once_with_a_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
