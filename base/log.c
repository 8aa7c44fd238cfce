/* The log: a line is formatted on the stack and written with one call (log.h). */
#include "base/log.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { LINE_BYTES_MAX = 2048, NAME_BYTES = 64, WRITES_MAX = 64 };

/* The context in each line; `lock` guards it. */
struct log_context {
    char program[NAME_BYTES];
    char node[NAME_BYTES];
    int rank;
    uint64_t generation;
    int64_t step;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct log_context context = {.rank = -1, .step = -1};
static pthread_mutex_t sink_lock = PTHREAD_MUTEX_INITIALIZER; /* guards sink and sink_ctx */
static void (*sink)(void *ctx, const char *line, size_t bytes);
static void *sink_ctx;
static atomic_int least_level = DPT_LOG_INFO;
static pthread_once_t environment_once = PTHREAD_ONCE_INIT;
static bool level_is_fixed; /* DPT_LOG_LEVEL is set and legal; set once */

static const char *const level_names[DPT_LOG_LEVEL_COUNT] = {"debug", "info", "warn", "error"};
static const char level_letters[DPT_LOG_LEVEL_COUNT] = {'D', 'I', 'W', 'E'};

static void read_environment(void)
{
    const char *name = getenv("DPT_LOG_LEVEL");
    if (!name)
        return;
    for (int i = 0; i < DPT_LOG_LEVEL_COUNT; i++) {
        if (strcmp(name, level_names[i]) == 0) {
            atomic_store(&least_level, i);
            level_is_fixed = true;
        }
    }
}

void dpt_log_set_level(enum dpt_log_level level)
{
    (void)pthread_once(&environment_once, read_environment);
    if (!level_is_fixed)
        atomic_store(&least_level, (int)level);
}

void dpt_log_set_who(const char *program, const char *node)
{
    (void)pthread_mutex_lock(&lock);
    (void)snprintf(context.program, sizeof context.program, "%s", program ? program : "");
    (void)snprintf(context.node, sizeof context.node, "%s", node ? node : "");
    (void)pthread_mutex_unlock(&lock);
}

void dpt_log_set_where(int rank, uint64_t generation, int64_t step)
{
    (void)pthread_mutex_lock(&lock);
    context.rank = rank;
    context.generation = generation;
    context.step = step;
    (void)pthread_mutex_unlock(&lock);
}

/* A line that is being built. The rest that does not fit is cut. */
struct line {
    char text[LINE_BYTES_MAX];
    size_t used;
};

static void line_vadd(struct line *line, const char *fmt, va_list ap)
{
    size_t room = sizeof line->text - line->used;
    int n = vsnprintf(line->text + line->used, room, fmt, ap);
    if (n < 0)
        return;
    line->used += (size_t)n < room ? (size_t)n : room - 1;
}

static void DPT_PRINTF(2, 3) line_add(struct line *line, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    line_vadd(line, fmt, ap);
    va_end(ap);
}

static void add_prefix(struct line *line, enum dpt_log_level level)
{
    struct timespec now;
    struct tm utc;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    (void)gmtime_r(&now.tv_sec, &utc);
    (void)pthread_mutex_lock(&lock);
    const struct log_context me = context;
    (void)pthread_mutex_unlock(&lock);

    line_add(line, "%04d-%02d-%02dT%02d:%02d:%02d.%03ldZ %c", utc.tm_year + 1900, utc.tm_mon + 1,
             utc.tm_mday, utc.tm_hour, utc.tm_min, utc.tm_sec, now.tv_nsec / 1000000,
             level_letters[level]);
    if (me.program[0])
        line_add(line, " %s", me.program);
    if (me.node[0])
        line_add(line, " node=%s", me.node);
    if (me.rank >= 0)
        line_add(line, " rank=%d", me.rank);
    if (me.generation > 0)
        line_add(line, " gen=%llu", (unsigned long long)me.generation);
    if (me.step >= 0)
        line_add(line, " step=%lld", (long long)me.step);
    line_add(line, ": ");
}

/* Errors are ignored, because they cannot be logged. Makes one write(2), or more if the file takes
 * fewer bytes. */
static void write_line(int fd, const char *text, size_t bytes)
{
    for (int tries = 0; bytes > 0 && tries < WRITES_MAX; tries++) {
        ssize_t n = write(fd, text, bytes);
        if (n < 0 && errno != EINTR)
            return;
        if (n > 0) {
            text += n;
            bytes -= (size_t)n;
        }
    }
}

void dpt_log_set_sink(void (*new_sink)(void *ctx, const char *line, size_t bytes), void *ctx)
{
    (void)pthread_mutex_lock(&sink_lock);
    sink = new_sink;
    sink_ctx = ctx;
    (void)pthread_mutex_unlock(&sink_lock);
}

void dpt_log_repeat(int fd, const char *line, size_t bytes)
{
    (void)pthread_mutex_lock(&sink_lock);
    bool taken = sink != NULL;
    if (taken)
        sink(sink_ctx, line, bytes);
    (void)pthread_mutex_unlock(&sink_lock);
    if (!taken)
        write_line(fd, line, bytes);
}

void dpt_log(enum dpt_log_level level, const char *fmt, ...)
{
    (void)pthread_once(&environment_once, read_environment);
    DPT_ASSERT((unsigned)level < DPT_LOG_LEVEL_COUNT);
    if ((int)level < atomic_load(&least_level))
        return;
    int saved_errno = errno;
    struct line line = {.used = 0};
    add_prefix(&line, level);
    size_t prefix = line.used;
    va_list ap;
    va_start(ap, fmt);
    line_vadd(&line, fmt, ap);
    va_end(ap);
    dpt_one_line(line.text + prefix);
    line.text[line.used++] = '\n'; /* the newline replaces the NUL */
    dpt_log_repeat(STDERR_FILENO, line.text, line.used);
    errno = saved_errno;
}

uint64_t dpt_log_bound(struct dpt_log_bound *bound, int64_t now_ms)
{
    return dpt_log_bound_each(bound, now_ms, DPT_LOG_BOUND_MS);
}

uint64_t dpt_log_bound_each(struct dpt_log_bound *bound, int64_t now_ms, int64_t pause_ms)
{
    const uint64_t n = ++bound->n;
    if (bound->line_ms != 0 && now_ms - bound->line_ms < pause_ms)
        return 0;
    *bound = (struct dpt_log_bound){.line_ms = now_ms};
    return n;
}
