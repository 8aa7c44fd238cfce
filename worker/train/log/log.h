/* The room of log.dir: the lines of the run's log (metrics.jsonl, events.jsonl), which one rank for
 * each folder writes, and the records that each rank keeps of itself. A write is fenced, and a
 * failed one never ends the training: the record is lost, and told. Main thread. */
#ifndef DPT_WORKER_TRAIN_LOG_LOG_H
#define DPT_WORKER_TRAIN_LOG_LOG_H

#include "worker/train/log/pending_lines.h"
#include "worker/train/log/run_files.h"
#include "worker/train/state/rooms.h"

struct rank_log {
    struct dpt_logbook *lines; /* NULL: log.dir is null */
    struct dpt_runlog files;   /* hands lines to `lines` */
    int64_t grace_ms;          /* after the server's word this node is not expelled for so long */
    int64_t records_lost;      /* since the last that was written */
};

DPT_MUST_USE enum dpt_status rank_open_log(struct dpt_rank *r, struct dpt_err *err);
void rank_close_log(struct dpt_rank *r);

/* A generation begins. Its log writer appends the lines that the writer before could not append
 * and, when the run goes on from a rescue, the lines that no server had confirmed before the
 * rescue. */
void rank_begin_log(struct dpt_rank *r);
/* The generation has ended: lines that still wait are for the next one's writer. */
void rank_end_log(struct dpt_rank *r);

/* Whether this rank keeps lines of the log, as its writer or in case the writer dies. */
bool rank_keeps_log(const struct dpt_rank *r);
/* After a line was handed to r->log->files: tells a failure, and appends the lines that may be. */
void rank_add_line(struct dpt_rank *r, enum dpt_status status, const struct dpt_err *err);
/* Appends the lines that may be appended; after each step. */
void rank_flush_log(struct dpt_rank *r);
/* For the log writer: waits until it may write other files and has appended all lines. False: this
 * rank is not the writer, or the generation has ended. */
bool rank_settles_log(struct dpt_rank *r);
/* The last record in the file; step -1: none, or this rank is not the log writer. */
struct dpt_runlog_place rank_last_logged(struct dpt_rank *r);

/* A record was written or lost. The first lost one is told, the next ones are counted until one is
 * written. */
void rank_check_log(struct dpt_rank *r, enum dpt_status status, const struct dpt_err *err);

/* The fence for a record of this rank alone. Waits at most log.wait_s; then logs that `what` ("the
 * record is") is not written. Also false, without a word: the generation has ended. */
bool rank_may_record(const struct dpt_rank *r, const char *what);

/* Whether the step made last ends an epoch whose account is here; the line of the epoch; and, as a
 * generation begins, the line if the file lacks it. */
bool rank_ends_epoch(const struct dpt_rank *r);
void rank_log_epoch(struct dpt_rank *r);
void rank_log_missed_epoch(struct dpt_rank *r);

/* When no process is left that knows the run after the checkpoint or the seed that it goes on from:
 * adds the generations of events.jsonl to r->state.history. */
void rank_complete_history(struct dpt_rank *r);

/* unconfirmed_files.c: the files node-NODE/rank-R.unconfirmed.jsonl of all nodes. Removes their
 * lines of steps after r->state.step, which are of a history that the run has left. */
void rank_forget_unconfirmed(struct dpt_rank *r);
/* Appends those lines up to that step that come after `last` in metrics.jsonl. */
void rank_append_unconfirmed(struct dpt_rank *r, const struct dpt_runlog_place *last);

#endif
