/* The log line: its shape, levels, cutting, and lines of many threads never mixing. */
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <regex.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { PIPE_BYTES = 65536, THREADS = 4, LINES = 50 };

static int ends[2], standard_error;
static char text[PIPE_BYTES];

static int open_pipe(void **state)
{
    (void)state;
    standard_error = dup(STDERR_FILENO);
    if (standard_error < 0 || pipe2(ends, O_NONBLOCK) != 0 || dup2(ends[1], STDERR_FILENO) < 0)
        return -1;
    dpt_log_set_level(DPT_LOG_INFO);
    dpt_log_set_who(NULL, NULL);
    dpt_log_set_where(-1, 0, -1);
    return 0;
}

static int close_pipe(void **state)
{
    (void)state;
    (void)close(ends[0]);
    (void)close(ends[1]);
    const int back = dup2(standard_error, STDERR_FILENO);
    (void)close(standard_error);
    return back < 0;
}

/* All that was logged so far, in `text`. */
static size_t drain(void)
{
    size_t used = 0;
    ssize_t n;
    while ((n = read(ends[0], text + used, sizeof text - 1 - used)) > 0)
        used += (size_t)n;
    text[used] = '\0';
    return used;
}

static void expect_log_line(const char *pattern)
{
    regex_t re;
    assert_int_equal(regcomp(&re, pattern, REG_EXTENDED | REG_NOSUB), 0);
    int miss = regexec(&re, text, 0, NULL, 0);
    regfree(&re);
    if (miss)
        fail_msg("'%s' is not like '%s'", text, pattern);
}

#define STAMP "^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\\.[0-9]{3}Z "

static void shape(void **state)
{
    (void)state;
    dpt_log(DPT_LOG_INFO, "plain %d", 1);
    (void)drain();
    expect_log_line(STAMP "I: plain 1\n$");
    dpt_log_set_who("dpt-worker", "n7");
    dpt_log_set_where(0, 3, 41);
    dpt_log(DPT_LOG_WARN, "peer %s left", "n2");
    (void)drain();
    expect_log_line(STAMP "W dpt-worker node=n7 rank=0 gen=3 step=41: peer n2 left\n$");
    dpt_log_set_where(-1, 3, -1);
    dpt_log(DPT_LOG_ERROR, "x");
    (void)drain();
    expect_log_line(STAMP "E dpt-worker node=n7 gen=3: x\n$");
}

static void levels(void **state)
{
    (void)state;
    dpt_log(DPT_LOG_DEBUG, "hidden");
    assert_int_equal(drain(), 0);
    dpt_log_set_level(DPT_LOG_DEBUG);
    dpt_log(DPT_LOG_DEBUG, "shown");
    (void)drain();
    expect_log_line("D: shown\n$");
    dpt_log_set_level(DPT_LOG_ERROR);
    dpt_log(DPT_LOG_WARN, "hidden");
    assert_int_equal(drain(), 0);
}

static void one_event_is_one_line(void **state)
{
    (void)state;
    dpt_log(DPT_LOG_INFO, "a\nb\tc\033[0m");
    (void)drain();
    expect_log_line("I: a b c \\[0m\n$");
    char lengthy[5000];
    memset(lengthy, 'z', sizeof lengthy - 1);
    lengthy[sizeof lengthy - 1] = '\0';
    dpt_log(DPT_LOG_INFO, "%s", lengthy);
    assert_int_equal(drain(), 2048);
    assert_int_equal(text[2047], '\n');
}

static void long_names_are_cut(void **state)
{
    (void)state;
    char name[200];
    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    dpt_log_set_who("p", name);
    dpt_log(DPT_LOG_INFO, "x");
    (void)drain();
    expect_log_line(" node=n{63}: x\n$");
}

static void closed_standard_error_harms_nobody(void **state)
{
    (void)state;
    assert_int_equal(close(STDERR_FILENO), 0);
    errno = EDOM;
    dpt_log(DPT_LOG_ERROR, "lost");
    assert_int_equal(errno, EDOM);
}

static void *speak(void *arg)
{
    for (int i = 0; i < LINES; i++)
        dpt_log(DPT_LOG_INFO, "thread %d says the whole of line %d at once", *(const int *)arg, i);
    return NULL;
}

static void threads_do_not_mix(void **state)
{
    (void)state;
    pthread_t threads[THREADS];
    int ids[THREADS];
    for (int i = 0; i < THREADS; i++) {
        ids[i] = i;
        assert_int_equal(pthread_create(&threads[i], NULL, speak, &ids[i]), 0);
    }
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    (void)drain();
    int lines = 0;
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"), lines++) {
        int thread, number, end = 0;
        const char *said = strstr(line, "thread ");
        assert_non_null(said);
        assert_int_equal(
            sscanf(said, "thread %d says the whole of line %d at once%n", &thread, &number, &end),
            2);
        assert_int_equal(said[end], '\0');
    }
    assert_int_equal(lines, THREADS * LINES);
}

/* Of events at one time, the first has a line; the next line counts the others. */
static void bound_lines_count_events(void **state)
{
    (void)state;
    struct dpt_log_bound bound = {0};
    assert_int_equal(dpt_log_bound(&bound, 5), 1);
    for (int i = 0; i < 9; i++)
        assert_int_equal(dpt_log_bound(&bound, 5 + DPT_LOG_BOUND_MS - 1), 0);
    assert_int_equal(dpt_log_bound(&bound, 5 + DPT_LOG_BOUND_MS), 10);
    assert_int_equal(dpt_log_bound(&bound, 6 + DPT_LOG_BOUND_MS), 0);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, open_pipe, close_pipe)

int main(void)
{
    /* The environment's settings would override the tests' settings. */
    (void)unsetenv("DPT_LOG_LEVEL");
    const struct CMUnitTest tests[] = {TEST(shape),
                                       TEST(levels),
                                       TEST(one_event_is_one_line),
                                       TEST(long_names_are_cut),
                                       TEST(closed_standard_error_harms_nobody),
                                       TEST(threads_do_not_mix),
                                       TEST(bound_lines_count_events)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
