/* The thread that writes: pipes that take nothing, pseudo terminals, environments without one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/clock.h"
#include "worker/agent/terminal.h"

#include <fcntl.h>
#include <pty.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

static char got[2 * DPT_TERMINAL_QUEUE_BYTES];

static struct dpt_terminal *open_terminal(int out_fd, int err_fd, bool live)
{
    const struct dpt_terminal_options options = {.out_fd = out_fd, .err_fd = err_fd, .live = live};
    struct dpt_terminal *terminal = NULL;
    struct dpt_err err;
    assert_int_equal(dpt_terminal_create(&options, &terminal, &err), DPT_OK);
    return terminal;
}

/* Everything up to the end. */
static void read_all(int fd)
{
    size_t used = 0;
    for (;;) {
        ssize_t n = read(fd, got + used, sizeof got - 1 - used);
        if (n <= 0) /* EIO: the other side of a pseudo terminal is closed */
            break;
        used += (size_t)n;
    }
    got[used] = '\0';
}

static void lines_go_out_in_order(void **state)
{
    (void)state;
    int out[2], errs[2];
    assert_int_equal(pipe(out), 0);
    assert_int_equal(pipe(errs), 0);
    struct dpt_terminal *terminal = open_terminal(out[1], errs[1], false);
    const struct dpt_live_facts facts = {.step = {.step = 1}};
    dpt_terminal_print(terminal, "one");
    dpt_terminal_show(terminal, &facts); /* there is no terminal */
    dpt_terminal_print_error(terminal, "wrong\n", strlen("wrong\n"));
    dpt_terminal_print(terminal, "two");
    dpt_terminal_destroy(&terminal);
    assert_null(terminal);
    dpt_terminal_destroy(&terminal);
    close(out[1]);
    close(errs[1]);
    read_all(out[0]);
    assert_string_equal(got, "one\ntwo\n");
    read_all(errs[0]);
    assert_string_equal(got, "wrong\n");
    close(out[0]);
    close(errs[0]);
}

/* Lines in `got` of which each has been shown or counted as left out. */
static unsigned long lines_accounted_for(void)
{
    unsigned long n = 0;
    for (const char *line = got; strchr(line, '\n') != NULL; line = strchr(line, '\n') + 1)
        n += line[0] == '(' ? strtoul(line + 1, NULL, 10) : 1;
    return n;
}

/* The caller, who must answer the server, is never held up; what did not fit is counted. */
static void full_pipe_holds_nobody_up(void **state)
{
    (void)state;
    int out[2];
    char line[1000];
    memset(line, 'x', sizeof line - 1);
    line[sizeof line - 1] = '\0';
    assert_int_equal(pipe(out), 0);
    struct dpt_terminal *terminal = open_terminal(out[1], out[1], false);
    const unsigned long lines = 3 * DPT_TERMINAL_QUEUE_BYTES / sizeof line;
    for (unsigned long i = 0; i < lines; i++)
        dpt_terminal_print(terminal, line); /* nobody reads: returns all the same */
    size_t used = 0;
    got[0] = '\0';
    while (lines_accounted_for() < lines) {
        ssize_t n = read(out[0], got + used, sizeof got - 1 - used);
        assert_true(n > 0);
        used += (size_t)n;
        got[used] = '\0';
    }
    assert_int_equal(lines_accounted_for(), lines);
    assert_non_null(strstr(got, "lines are not shown"));
    dpt_terminal_print(terminal, "last");
    dpt_terminal_destroy(&terminal);
    close(out[1]);
    read_all(out[0]);
    assert_string_equal(got, "last\n");
    close(out[0]);
}

/* The newline is there whatever the length. */
static void long_lines_are_whole(void **state)
{
    (void)state;
    static const size_t lengths[] = {0, 2046, 2047, 2048, 20000};
    static char line[20001];
    int out[2];
    assert_int_equal(pipe(out), 0);
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        struct dpt_terminal *terminal = open_terminal(out[1], out[1], false);
        memset(line, 'x', lengths[i]);
        line[lengths[i]] = '\0';
        dpt_terminal_print(terminal, line);
        dpt_terminal_destroy(&terminal);
        ssize_t n = read(out[0], got, sizeof got - 1);
        assert_int_equal(n, lengths[i] + 1);
        assert_int_equal(got[n - 1], '\n');
        assert_int_equal(memcmp(got, line, lengths[i]), 0);
    }
    close(out[0]);
    close(out[1]);
}

/* Whoever ends does not wait for a reader for longer than it says, whatever waits to be taken. */
static void full_pipe_does_not_hold_the_end_up(void **state)
{
    (void)state;
    int out[2];
    static char line[DPT_TERMINAL_QUEUE_BYTES / 2];
    memset(line, 'x', sizeof line - 1);
    assert_int_equal(pipe(out), 0);
    struct dpt_terminal *terminal = open_terminal(out[1], out[1], false);
    dpt_terminal_print(terminal, line); /* more than a pipe takes */
    dpt_terminal_print(terminal, "last");
    const int64_t began_ms = dpt_now_ms();
    dpt_terminal_destroy(&terminal);
    const int64_t took_ms = dpt_now_ms() - began_ms;
    assert_null(terminal);
    assert_true(took_ms >= DPT_TERMINAL_DRAIN_MS / 2 && took_ms < 20 * DPT_TERMINAL_DRAIN_MS);
    /* The thread, which hung in its write, goes on with what was left and frees it. */
    size_t used = 0;
    while (used < strlen("last\n") || memcmp(got + used - 5, "last\n", 5) != 0) {
        ssize_t n = read(out[0], got + used, sizeof got - used);
        assert_true(n > 0);
        used += (size_t)n;
    }
    assert_int_equal(used, sizeof line + strlen("last\n"));
    close(out[0]);
    close(out[1]);
}

static void live_line_stands_below_lines(void **state)
{
    (void)state;
    int master, slave;
    struct winsize size = {.ws_row = 24, .ws_col = 60};
    assert_int_equal(openpty(&master, &slave, NULL, NULL, &size), 0);
    assert_true(dpt_terminal_is_live(slave, "xterm", NULL));
    assert_false(dpt_terminal_is_live(slave, "xterm", "1"));
    assert_true(dpt_terminal_is_live(slave, "xterm", ""));
    assert_false(dpt_terminal_is_live(slave, "dumb", NULL));
    assert_false(dpt_terminal_is_live(slave, NULL, NULL));
    struct dpt_terminal *terminal = open_terminal(slave, slave, true);
    const struct dpt_live_facts facts = {.step = {.step = 1, .steps = 2, .world_size = 1}};
    dpt_terminal_show(terminal, &facts);
    size_t used = 0;
    while (strstr(got, "step 1/2") == NULL || used == 0) {
        ssize_t n = read(master, got + used, sizeof got - 1 - used);
        assert_true(n > 0);
        used += (size_t)n;
        got[used] = '\0';
    }
    dpt_terminal_print(terminal, "an event");
    dpt_terminal_destroy(&terminal);
    close(slave);
    read_all(master);
    /* Erased before the event, drawn again below it or not any more, and gone at the end. */
    assert_true(strncmp(got, "\r\033[Jan event\r\n", strlen("\r\033[Jan event\r\n")) == 0);
    const char *drawn = strstr(got, "step 1/2");
    if (drawn != NULL)
        assert_non_null(strstr(drawn, "\r\033[J"));
    close(master);
}

static void pipe_is_no_terminal(void **state)
{
    (void)state;
    int out[2];
    assert_int_equal(pipe(out), 0);
    assert_false(dpt_terminal_is_live(out[1], "xterm", NULL));
    close(out[0]);
    close(out[1]);
}

static void locale_tells_utf8(void **state)
{
    (void)state;
    assert_int_equal(setenv("LC_ALL", "C", 1), 0);
    assert_false(dpt_terminal_is_utf8());
    assert_int_equal(setenv("LC_ALL", "C.UTF-8", 1), 0);
    assert_true(dpt_terminal_is_utf8());
    assert_int_equal(setenv("LC_ALL", "no_SUCH.locale", 1), 0);
    assert_false(dpt_terminal_is_utf8());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_go_out_in_order),
        cmocka_unit_test(full_pipe_holds_nobody_up),
        cmocka_unit_test(long_lines_are_whole),
        cmocka_unit_test(full_pipe_does_not_hold_the_end_up),
        cmocka_unit_test(live_line_stands_below_lines),
        cmocka_unit_test(pipe_is_no_terminal),
        cmocka_unit_test(locale_tells_utf8),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
