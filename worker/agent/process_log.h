/* The output of a rank process: read from its pipe and written to `log.dir/node-ID/rank-R.log`. R
 * is the local rank, which does not change with the generation. Later processes of the local rank
 * append to the file.
 *
 * Warnings, errors and lines of another form (a failed assertion, a sanitizer's report) are
 * repeated on the agent's stderr. While the node may not write, the newest DPT_RANK_LOG_HELD_BYTES
 * are held back, and written or discarded later. A node may not write when its lease has run out:
 * the server may have expelled it, and other nodes may use the folder. */
#ifndef DPT_WORKER_AGENT_PROCESS_LOG_H
#define DPT_WORKER_AGENT_PROCESS_LOG_H

#include "base/config.h"
#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>

enum {
    DPT_RANK_LOG_LINE_BYTES = 4096, /* longer lines are cut into pieces */
    DPT_RANK_LOG_ERROR_BYTES = 256,
    DPT_RANK_LOG_HELD_BYTES = 64 * 1024, /* held back while writing is not allowed */
    /* Reads of one call, because a rank may print without end. */
    DPT_RANK_LOG_READS_MAX = 64
};

struct dpt_process_log {
    char path[DPT_CONFIG_PATH_BYTES];
    int local_rank;
    int file_fd;                        /* -1: not open yet */
    int echo_fd;                        /* repeats warnings and errors here */
    bool failed;                        /* the file cannot be written; logged once */
    size_t dropped_bytes;               /* dropped since the failure; logged at the end */
    char line[DPT_RANK_LOG_LINE_BYTES]; /* the unfinished last line */
    size_t line_bytes;
    char last_error[DPT_RANK_LOG_ERROR_BYTES]; /* newest line of level error; "": none */
    char *held;
    size_t held_bytes, held_lost; /* held_lost: bytes beyond the limit, which were dropped */
};

/* Prepares the log without touching a file. `log_dir` as in the config. */
DPT_MUST_USE enum dpt_status dpt_process_log_init(struct dpt_process_log *log, const char *log_dir,
                                                  const char *node, int local_rank, int echo_fd,
                                                  struct dpt_err *err);

/* Reads the non-blocking `fd` and writes its lines. False at the end of file. */
DPT_MUST_USE bool dpt_process_log_read(struct dpt_process_log *log, int fd, bool may_write);

/* Writes the bytes that were held back. */
void dpt_process_log_release(struct dpt_process_log *log);

/* Drops the bytes that were held back, because the incarnation was expelled. */
void dpt_process_log_discard(struct dpt_process_log *log);

/* Writes an unfinished last line and closes. */
void dpt_process_log_fini(struct dpt_process_log *log, bool may_write);

#endif
