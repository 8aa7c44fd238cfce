/* The part of a rank that writes to log.dir: the lines of the run's log (metrics.jsonl,
 * events.jsonl), which one rank writes for each folder, and the records that each rank writes about
 * itself. Every write asks the fence first. A write that fails never ends the training: the lost
 * record is logged. Main thread. */
#ifndef DPT_WORKER_TRAIN_LOG_RANK_LOG_H
#define DPT_WORKER_TRAIN_LOG_RANK_LOG_H

#include "base/config.h"
#include "worker/train/log/pending_lines.h"
#include "worker/train/log/run_files.h"
#include "worker/train/state/rooms.h"

struct rank_log {
    struct dpt_pending *lines;                /* NULL: log.dir is null */
    struct dpt_run_files files;               /* hands lines to `lines` */
    char node_dir[2 * DPT_CONFIG_PATH_BYTES]; /* folder of this node in log.dir; "": no log.dir */
    /* The server expels no node within this time after it has confirmed the node. */
    int64_t grace_ms;
    int64_t records_lost; /* number of lost records since the last record that was written */
};

DPT_MUST_USE enum dpt_status rank_open_log(struct dpt_rank *r, struct dpt_err *err);
void rank_close_log(struct dpt_rank *r);

/* A generation begins. Its log writer appends the lines that the last writer could not append. If
 * the run continues from a rescue, it also appends the lines that no server had confirmed before
 * the rescue. */
void rank_begin_log(struct dpt_rank *r);
/* The generation has ended. Lines that still wait are left to the writer of the next generation. */
void rank_end_log(struct dpt_rank *r);

/* Called after a line was handed to r->log->files, which keeps the line on every rank that trains,
 * in case the log writer dies. Logs a failure, and appends the lines that may be appended. */
void rank_add_line(struct dpt_rank *r, enum dpt_status status, const struct dpt_err *err);
/* Called after each step. Appends the lines that may be appended. */
void rank_flush_log(struct dpt_rank *r);
/* For the log writer: waits until it may write other files and has appended all lines. False: this
 * rank is not the writer, or the generation has ended. */
bool rank_settles_log(struct dpt_rank *r);
/* Called when a generation begins. rank_lacks_line: whether this rank keeps lines, and neither it
 * nor, for the log writer, the file has the line of this kind for r->state.step.
 * rank_logged_evaluation: whether this rank keeps the line of the evaluation, or the file ends with
 * it. */
bool rank_lacks_line(struct dpt_rank *r, enum dpt_line_kind kind);
bool rank_logged_evaluation(struct dpt_rank *r);

/* Called when a record was written or lost. The first lost record is logged. The next lost records
 * are counted until one is written. */
void rank_check_log(struct dpt_rank *r, enum dpt_status status, const struct dpt_err *err);

/* Asks the fence for a record of this rank. Waits at most log.wait_s; then logs that `what` ("the
 * record is") is not written, and returns false. Also returns false, without a line in the log, if
 * the generation has ended. */
bool rank_may_record(const struct dpt_rank *r, const char *what);

/* rank_ends_epoch: whether the last step ends an epoch and this rank has the epoch's account.
 * rank_log_epoch: writes the line of the epoch. */
bool rank_ends_epoch(const struct dpt_rank *r);
void rank_log_epoch(struct dpt_rank *r);

/* Called when the run continues from a checkpoint or from the seed, and no process knows the
 * generations after it. Adds the generations of events.jsonl to r->state.history. */
void rank_complete_history(struct dpt_rank *r);

/* unconfirmed_files.c. These functions read the files node-NODE/rank-R.unconfirmed.jsonl of all
 * nodes. rank_forget_unconfirmed removes their lines of steps after r->state.step: these belong to
 * a history that the run has left. */
void rank_forget_unconfirmed(struct dpt_rank *r);
/* Appends the files' lines up to r->state.step that come after `last` in metrics.jsonl. */
void rank_append_unconfirmed(struct dpt_rank *r, const struct dpt_run_file_place *last);

#endif
