/* The thread that writes: pipes that take nothing, pseudo terminals, environments without one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/clock.h"
#include "worker/agent/terminal.h"

#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { WAIT_MS = 20000 };

/* Text that has been read. It may be a full pipe and two full queues long: the thread empties the
 * queue before it writes, and callers fill it again while the write blocks. */
static char got[3 * DPT_TERMINAL_QUEUE_BYTES + 1];
static size_t got_bytes;

/* A pipe of one page, for tests that fill it. The default is 16 pages. Where a page has 64 KiB,
 * that is 1 MiB: more than a test writes. */
static void open_small_pipe(int fds[2])
{
    assert_int_equal(pipe(fds), 0);
    assert_true(fcntl(fds[1], F_SETPIPE_SZ, 1) > 0); /* rounded up */
}

static struct dpt_terminal *open_terminal(int out_fd, int err_fd, bool live)
{
    const struct dpt_terminal_options options = {.out_fd = out_fd, .err_fd = err_fd, .live = live};
    struct dpt_terminal *terminal = NULL;
    struct dpt_err err;
    assert_int_equal(dpt_terminal_create(&options, &terminal, &err), DPT_OK);
    return terminal;
}

/* Adds the next bytes to `got`. */
static void read_more(int fd)
{
    struct pollfd item = {.fd = fd, .events = POLLIN};
    if (poll(&item, 1, WAIT_MS) != 1)
        fail_msg("nothing to read for %d ms after %zu bytes", WAIT_MS, got_bytes);
    assert_true(got_bytes < sizeof got - 1);
    ssize_t n = read(fd, got + got_bytes, sizeof got - 1 - got_bytes);
    assert_true(n > 0);
    got_bytes += (size_t)n;
    got[got_bytes] = '\0';
}

/* Fills `got` again, until it ends with `end`. A destroyed terminal's thread may still be writing:
 * destroy waits for a limited time. */
static void read_until(int fd, const char *end)
{
    got_bytes = 0;
    do
        read_more(fd);
    while (got_bytes < strlen(end) || strcmp(got + got_bytes - strlen(end), end) != 0);
}

/* Closes both sides, of a pipe or of a pseudo terminal, where nothing may be left to read. */
static void close_at_end(int read_fd, int write_fd)
{
    char byte;
    close(write_fd);
    assert_true(read(read_fd, &byte, 1) <= 0); /* a pseudo terminal fails with EIO */
    close(read_fd);
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
    read_until(out[0], "two\n");
    assert_string_equal(got, "one\ntwo\n");
    read_until(errs[0], "wrong\n");
    assert_string_equal(got, "wrong\n");
    close_at_end(out[0], out[1]);
    close_at_end(errs[0], errs[1]);
}

/* Lines in `got` of which each has been shown or counted as left out. */
static unsigned long lines_accounted_for(void)
{
    unsigned long n = 0;
    for (const char *line = got; strchr(line, '\n') != NULL; line = strchr(line, '\n') + 1)
        n += line[0] == '(' ? strtoul(line + 1, NULL, 10) : 1;
    return n;
}

/* The agent must answer the server while its terminal takes nothing. Lines left out are counted. */
static void full_pipe_does_not_block_the_caller(void **state)
{
    (void)state;
    int out[2];
    char line[1000];
    memset(line, 'x', sizeof line - 1);
    line[sizeof line - 1] = '\0';
    open_small_pipe(out);
    struct dpt_terminal *terminal = open_terminal(out[1], out[1], false);
    /* `got` has room: a line that counts lines left out is shorter than one of them. */
    const unsigned long lines = (sizeof got - 1) / sizeof line;
    for (unsigned long i = 0; i < lines; i++)
        dpt_terminal_print(terminal, line); /* returns although nothing reads */
    got_bytes = 0;
    got[0] = '\0';
    while (lines_accounted_for() < lines)
        read_more(out[0]);
    assert_int_equal(lines_accounted_for(), lines);
    assert_non_null(strstr(got, "lines are not shown"));
    dpt_terminal_print(terminal, "last");
    dpt_terminal_destroy(&terminal);
    read_until(out[0], "last\n");
    assert_string_equal(got, "last\n");
    close_at_end(out[0], out[1]);
}

/* The newline is written for a text of any length. */
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
        read_until(out[0], "\n");
        assert_int_equal(got_bytes, lengths[i] + 1);
        assert_int_equal(memcmp(got, line, lengths[i]), 0);
    }
    close_at_end(out[0], out[1]);
}

/* Destroy returns after its stated time, however much is left to write. */
static void full_pipe_delays_destroy_by_the_drain_time(void **state)
{
    (void)state;
    int out[2];
    static char line[DPT_TERMINAL_QUEUE_BYTES / 2];
    memset(line, 'x', sizeof line - 1);
    open_small_pipe(out);
    struct dpt_terminal *terminal = open_terminal(out[1], out[1], false);
    dpt_terminal_print(terminal, line); /* more than a pipe takes */
    dpt_terminal_print(terminal, "last");
    const int64_t began_ms = dpt_now_ms();
    dpt_terminal_destroy(&terminal);
    const int64_t took_ms = dpt_now_ms() - began_ms;
    assert_null(terminal);
    assert_true(took_ms >= DPT_TERMINAL_DRAIN_MS / 2 && took_ms < 20 * DPT_TERMINAL_DRAIN_MS);
    /* The thread, which was blocked in its write, continues with the rest and frees it. */
    read_until(out[0], "last\n");
    assert_int_equal(got_bytes, sizeof line + strlen("last\n"));
    close_at_end(out[0], out[1]);
}

static void live_line_stands_below_lines(void **state)
{
    (void)state;
    int master, slave;
    struct winsize size = {.ws_row = 24, .ws_col = 60};
    char line[DPT_TEXT_LINE_BYTES], text[DPT_TEXT_LINE_BYTES + 32];
    assert_int_equal(openpty(&master, &slave, NULL, NULL, &size), 0);
    assert_true(dpt_terminal_is_live(slave, "xterm", NULL));
    assert_false(dpt_terminal_is_live(slave, "xterm", "1"));
    assert_true(dpt_terminal_is_live(slave, "xterm", ""));
    assert_false(dpt_terminal_is_live(slave, "dumb", NULL));
    assert_false(dpt_terminal_is_live(slave, NULL, NULL));
    struct dpt_terminal *terminal = open_terminal(slave, slave, true);
    const struct dpt_live_facts facts = {.step = {.step = 1, .steps = 2, .world_size = 1}};
    dpt_progress_text_live(&facts, size.ws_col, false, line);
    assert_non_null(strstr(line, "step 1/2"));
    dpt_terminal_show(terminal, &facts);
    read_until(master, line);
    assert_string_equal(got, line);
    /* Erased before the event, drawn again below it, and gone at the end. */
    dpt_terminal_print(terminal, "an event");
    (void)snprintf(text, sizeof text, "\r\033[Jan event\r\n%s", line);
    read_until(master, line);
    assert_string_equal(got, text);
    dpt_terminal_destroy(&terminal);
    read_until(master, "\033[J");
    assert_string_equal(got, "\r\033[J");
    close_at_end(master, slave);
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
        cmocka_unit_test(full_pipe_does_not_block_the_caller),
        cmocka_unit_test(long_lines_are_whole),
        cmocka_unit_test(full_pipe_delays_destroy_by_the_drain_time),
        cmocka_unit_test(live_line_stands_below_lines),
        cmocka_unit_test(pipe_is_no_terminal),
        cmocka_unit_test(locale_tells_utf8),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
