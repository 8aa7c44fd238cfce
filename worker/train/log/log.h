/* The room of log.dir: the lines of the run's log (metrics.jsonl, events.jsonl), which one rank for
 * each folder writes, and the records that each rank writes about itself. A write is fenced. A
 * write that fails never ends the training: the lost record is logged. Main thread. */
#ifndef DPT_WORKER_TRAIN_LOG_LOG_H
#define DPT_WORKER_TRAIN_LOG_LOG_H

#include "base/config.h"
#include "worker/train/log/pending_lines.h"
#include "worker/train/log/run_files.h"
#include "worker/train/state/rooms.h"

struct rank_log {
    struct dpt_logbook *lines;                /* NULL: log.dir is null */
    struct dpt_runlog files;                  /* hands lines to `lines` */
    char node_dir[2 * DPT_CONFIG_PATH_BYTES]; /* folder of this node in log.dir; "": no log.dir */
    int64_t grace_ms; /* the server expels no node within this time after it confirmed the node */
    int64_t records_lost; /* since the last that was written */
};

DPT_MUST_USE enum dpt_status rank_open_log(struct dpt_rank *r, struct dpt_err *err);
void rank_close_log(struct dpt_rank *r);

/* A generation begins. Its log writer appends the lines that the writer before could not append
 * and, when the run continues from a rescue, the lines that no server had confirmed before the
 * rescue. */
void rank_begin_log(struct dpt_rank *r);
/* The generation has ended: lines that still wait are for the next generation's writer. */
void rank_end_log(struct dpt_rank *r);

/* After a line was handed to r->log->files, which keeps the line on every rank that trains, in case
 * the log writer dies: logs a failure, and appends the lines that may be appended. */
void rank_add_line(struct dpt_rank *r, enum dpt_status status, const struct dpt_err *err);
/* Appends the lines that may be appended; after each step. */
void rank_flush_log(struct dpt_rank *r);
/* For the log writer: waits until it may write other files and has appended all lines. False: this
 * rank is not the writer, or the generation has ended. */
bool rank_settles_log(struct dpt_rank *r);
/* As a generation begins. rank_lacks_line: this rank keeps lines, and the line of this kind of
 * r->state.step is neither kept nor, for the log writer, in the file. rank_logged_evaluation: this
 * rank keeps the line of the evaluation, or the file ends with it. */
bool rank_lacks_line(struct dpt_rank *r, enum dpt_line_kind kind);
bool rank_logged_evaluation(struct dpt_rank *r);

/* A record was written or lost. The first lost record is logged, the next ones are counted until
 * one is written. */
void rank_check_log(struct dpt_rank *r, enum dpt_status status, const struct dpt_err *err);

/* The fence for a record of this rank alone. Waits at most log.wait_s; then logs that `what` ("the
 * record is") is not written. Also false, and nothing is logged: the generation has ended. */
bool rank_may_record(const struct dpt_rank *r, const char *what);

/* Whether the last step ends an epoch whose account is here; and the line of the epoch. */
bool rank_ends_epoch(const struct dpt_rank *r);
void rank_log_epoch(struct dpt_rank *r);

/* When the run continues from a checkpoint or the seed, and no process knows its generations since:
 * adds those of events.jsonl to r->state.history. */
void rank_complete_history(struct dpt_rank *r);

/* unconfirmed_files.c: the files node-NODE/rank-R.unconfirmed.jsonl of all nodes. Removes their
 * lines of steps after r->state.step, which belong to a history that the run has left. */
void rank_forget_unconfirmed(struct dpt_rank *r);
/* Appends their lines up to r->state.step that come after `last` in metrics.jsonl. */
void rank_append_unconfirmed(struct dpt_rank *r, const struct dpt_runlog_place *last);

#endif
