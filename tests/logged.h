/* Captures the log lines of a test's calls as text. */
#ifndef DPT_TESTS_LOGGED_H
#define DPT_TESTS_LOGGED_H

#include "base/log.h"

#include <string.h>

/* Lines since test_log_begin, without their time: "W: text". */
static char test_logged[1 << 14];

static inline void test_log_line(void *ctx, const char *line, size_t bytes)
{
    const char *behind_time = memchr(line, ' ', bytes);
    (void)ctx;
    DPT_ASSERT(behind_time != NULL);
    const size_t used = strlen(test_logged), n = bytes - (size_t)(behind_time + 1 - line);
    DPT_ASSERT(used + n < sizeof test_logged);
    memcpy(test_logged + used, behind_time + 1, n);
    test_logged[used + n] = '\0';
}

static inline void test_log_begin(void)
{
    test_logged[0] = '\0';
    dpt_log_set_sink(test_log_line, NULL);
}

static inline void test_log_end(void)
{
    dpt_log_set_sink(NULL, NULL);
}

/* How often `text` was logged. */
static inline int test_log_count(const char *text)
{
    int n = 0;
    for (const char *at = test_logged; (at = strstr(at, text)) != NULL; at++)
        n++;
    return n;
}

#endif
