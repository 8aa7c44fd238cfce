/* What a rank process prints: read from its pipe, written to `log.dir/node-ID/rank-R.log`, where R
 * is the local rank (a rank's number in the world may change with every generation; its place on
 * the node does not). Successors of a local rank append to the same file.
 *
 * Warnings, errors and lines that are not log lines at all (a failed assertion, a sanitizer's
 * report) are repeated on the agent's stderr. A node that may not write now (its lease has run out:
 * it may be expelled and others may use the folder) keeps the newest DPT_RANK_LOG_HELD_BYTES back
 * until it may again, or they are discarded. */
#ifndef DPT_WORKER_AGENT_RANKLOG_H
#define DPT_WORKER_AGENT_RANKLOG_H

#include "base/config.h"
#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>

enum {
    DPT_RANK_LOG_LINE_BYTES = 4096, /* longer lines are cut into pieces */
    DPT_RANK_LOG_ERROR_BYTES = 256,
    DPT_RANK_LOG_HELD_BYTES = 64 * 1024, /* held back while writing is not allowed */
    DPT_RANK_LOG_READS_MAX =
        64 /* reads of one call, so that a rank that never stops printing does not hold the agent */
};

struct dpt_rank_log {
    char path[DPT_CONFIG_PATH_BYTES];
    int local_rank;
    int file_fd;                        /* -1: not open yet */
    int echo_fd;                        /* where warnings and worse are repeated */
    bool failed;                        /* the file cannot be written; said once */
    size_t dropped_bytes;               /* since then; said at the end */
    char line[DPT_RANK_LOG_LINE_BYTES]; /* the unfinished last line */
    size_t line_bytes;
    char last_error[DPT_RANK_LOG_ERROR_BYTES]; /* newest line of level error, "" if none */
    char *held;
    size_t held_bytes, held_lost; /* lost: bytes that did not fit any more */
};

/* Prepares; touches no file. `log_dir` as in the config. */
DPT_MUST_USE enum dpt_status dpt_rank_log_init(struct dpt_rank_log *log, const char *log_dir,
                                               const char *node, int local_rank, int echo_fd,
                                               struct dpt_err *err);

/* Reads what is there from the non-blocking `fd` and files it. False at its end, when nobody holds
 * the other end. */
DPT_MUST_USE bool dpt_rank_log_read(struct dpt_rank_log *log, int fd, bool may_write);

/* Writes what was held back, if writing is allowed again. */
void dpt_rank_log_release(struct dpt_rank_log *log);

/* Forgets what was held back: this incarnation is out. */
void dpt_rank_log_discard(struct dpt_rank_log *log);

/* Files an unfinished last line and closes. */
void dpt_rank_log_fini(struct dpt_rank_log *log, bool may_write);

#endif
