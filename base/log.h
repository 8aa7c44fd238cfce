/* Logging: one line per event, with the context of the process.
 *
 * Libraries log at debug; programs log once, with node, rank, generation, step, and what happens
 * next ("…, retrying in 200 ms"). A line is written with one write(2), so lines of several
 * processes never mix. Thread safe. */
#ifndef DPT_BASE_LOG_H
#define DPT_BASE_LOG_H

#include "base/err.h"

#include <stdint.h>

enum dpt_log_level {
    DPT_LOG_DEBUG,
    DPT_LOG_INFO,
    DPT_LOG_WARN,
    DPT_LOG_ERROR,
    DPT_LOG_LEVEL_COUNT
};

/* Sets the least level that is written (default info). DPT_LOG_LEVEL=debug|info|warn|error in the
 * environment takes precedence. */
void dpt_log_set_level(enum dpt_log_level level);

/* Sends later lines to `sink`, each with its newline; NULL: to standard error again. On return no
 * call of the former sink is in progress. One thread at a time calls the sink. The sink must not
 * log. */
void dpt_log_set_sink(void (*sink)(void *ctx, const char *line, size_t bytes), void *ctx);

/* Writes a line of another program, with its newline: to the sink if there is one, else to `fd`. */
void dpt_log_repeat(int fd, const char *line, size_t bytes);

/* Sets the context of later lines: program and node id, copied (cut at 63 bytes); rank, generation
 * and step. rank < 0, generation 0 and step < 0 are not written. */
void dpt_log_set_who(const char *program, const char *node);
void dpt_log_set_where(int rank, uint64_t generation, int64_t step);

/* `2026-01-02T03:04:05.678Z I dpt-worker node=… rank=0 gen=3 step=41: text`, cut at 2,048 bytes. */
void dpt_log(enum dpt_log_level level, const char *fmt, ...) DPT_PRINTF(2, 3);

/* Bounds the number of lines about an event that strangers can cause at any rate. Initially zeroed.
 * One thread. */
struct dpt_log_bound {
    uint64_t n;      /* events since the last line */
    int64_t line_ms; /* time of the last line; 0: there was none */
};
enum { DPT_LOG_BOUND_MS = 1000 };

/* Counts an event. Returns 0, or, at most once each DPT_LOG_BOUND_MS, the number of events since
 * the last line, this one included: the caller then writes a line. now_ms: monotonic, above 0. */
uint64_t dpt_log_bound(struct dpt_log_bound *bound, int64_t now_ms);
/* The same with another pause. */
uint64_t dpt_log_bound_each(struct dpt_log_bound *bound, int64_t now_ms, int64_t pause_ms);

#endif
