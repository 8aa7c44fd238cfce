/* Output that is lost is noticed. Each case is a process of its own, because the standard output of
 * this one is the test's. */
#include "base/stdout.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

static void point_stdout_to(const char *path)
{
    const int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0 || dup2(fd, STDOUT_FILENO) < 0)
        _exit(99);
}

/* Whether the case holds in a process of its own. */
static bool holds(bool (*is_good)(void))
{
    int status = 0;
    (void)fflush(NULL);
    const pid_t child = fork();
    if (child == 0)
        _exit(is_good() ? 0 : 1);
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static bool all_is_written(void)
{
    struct dpt_err err;
    point_stdout_to("/dev/null");
    (void)puts("text");
    return dpt_stdout_flush(&err) == DPT_OK && dpt_stdout_flush(&err) == DPT_OK;
}

static bool last_part_is_lost(void)
{
    struct dpt_err err;
    point_stdout_to("/dev/full");
    (void)puts("text");
    return dpt_stdout_flush(&err) == DPT_ENOSPC &&
           strcmp(err.text, "write to the standard output: No space left on device") == 0;
}

/* Room is there again before the last part. */
static bool earlier_part_is_lost(void)
{
    struct dpt_err err;
    point_stdout_to("/dev/full");
    (void)puts("text");
    (void)fflush(stdout);
    point_stdout_to("/dev/null");
    (void)puts("text");
    return dpt_stdout_flush(&err) == DPT_EIO && strstr(err.text, "standard output") != NULL;
}

static bool failure_is_reported_once(void)
{
    struct dpt_err err;
    point_stdout_to("/dev/full");
    (void)puts("text");
    return dpt_stdout_flush(&err) != DPT_OK && dpt_stdout_flush(&err) == DPT_OK;
}

static void written_output_is_no_failure(void **state)
{
    (void)state;
    assert_true(holds(all_is_written));
}

static void lost_output_is_a_failure(void **state)
{
    (void)state;
    if (access("/dev/full", W_OK) != 0)
        skip();
    assert_true(holds(last_part_is_lost));
    assert_true(holds(earlier_part_is_lost));
    assert_true(holds(failure_is_reported_once));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(written_output_is_no_failure),
        cmocka_unit_test(lost_output_is_a_failure),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
