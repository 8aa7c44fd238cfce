/* Which signals end a program, and that one reads them. */
#include "base/signals.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <sys/signalfd.h>
#include <unistd.h>

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ends_are_read),
        cmocka_unit_test(ignored_hangup_stays_ignored),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
