/* The files of a run in log.dir: metrics.jsonl, events.jsonl, summary.json.
 * Written by the one rank per distinct folder that the plan names (a rank's account of its memory
 * by itself); a record is one write(2), so a killed writer leaves no half line that its successor
 * would continue. */
#ifndef DPT_WORKER_TRAIN_LOG_RUN_FILES_H
#define DPT_WORKER_TRAIN_LOG_RUN_FILES_H

#include "base/account.h"
#include "base/err.h"
#include "base/hash.h"
#include "base/memory.h"
#include "kernels/op_times.h"
#include "rendezvous/proto/message.h"

#include <stdbool.h>
#include <stdint.h>

/* The place of a line in metrics.jsonl. A world that goes back to an earlier step makes the steps
 * after it again, in a higher generation. */
struct dpt_runlog_place {
    int64_t step;                 /* -1: there is none */
    bool is_epoch, is_evaluation; /* of both at one step the evaluation comes last */
    uint64_t generation;
    double made_s;      /* by the clock of its machine, of a line that was read; 0: not known */
    int64_t file_bytes; /* with dpt_runlog_last: how long the file is */
};

#define DPT_RUNLOG_METRICS "metrics.jsonl"
enum { DPT_RUNLOG_LINE_BYTES_MAX = 4096 };

/* A line of a file of the log: "\n", the record, "\n". */
struct dpt_runlog_line {
    const char *file; /* metrics.jsonl, events.jsonl */
    struct dpt_runlog_place place;
    const char *text;
    size_t bytes;
};

/* Where lines go: into dir, or to `hold` (not NULL), which keeps them until they may; and what
 * every line says. */
struct dpt_runlog {
    const char *dir;
    const char *run; /* its name: letters, digits, '.', '_', '-' */
    uint64_t generation;
    int world_size;
    void (*hold)(void *ctx, const struct dpt_runlog_line *line);
    void *ctx;
};

struct dpt_metrics {
    int64_t step; /* completed steps, 1 after the first */
    double loss, lr, grad_norm, tokens_per_s, step_ms;
    double wait_ms; /* of step_ms: the writing rank's main thread waited for its communication */
    int64_t sent_bytes; /* that it sent in the step */
    int64_t tokens;     /* of the whole run up to this step */
    bool is_scaled;     /* fp16: these two are written as well */
    double scale;       /* of the step's loss */
    bool may_skip;      /* this one is written, which fp16 does too: */
    int64_t skipped_steps;
};

/* An evaluation: a line of metrics.jsonl, too, told from a step's by its val_loss. */
struct dpt_eval_record {
    int64_t step;           /* completed steps of the weights */
    double val_loss;        /* mean over the tokens, with labels over the samples, nats */
    int64_t tokens;         /* of data.val */
    int64_t right, samples; /* with labels, in place of tokens: predicted ones, of so many samples,
                               which make val_accuracy; 0: without labels */
    double ms;              /* NaN: made by others, not known here (null in the file) */
};

/* The end of an epoch: a line of metrics.jsonl, too, told from a step's by its epoch. */
struct dpt_epoch_record {
    int64_t epoch, epochs;    /* from 1 on; of the run */
    int64_t step, first_step; /* completed steps, and the first of those that count here */
    double avg_loss;          /* mean of the losses of these steps; NaN: none was finite */
    double seconds;           /* that the steps took on the writing rank; */
    double samples_per_s;     /* 0: not known */
};

struct dpt_event_record {
    /* start | rank_lost | node_lost | joined | left | comm_error | stalled | server_restart, or
     * redundancy: no recovery, but what was being rebuilt after one is whole. */
    const char *kind;
    const char *cause;
    double detect_ms, abort_ms, rendezvous_ms, rebuild_ms, restore_ms, total_ms;
    int64_t steps_lost, resume_step;
    int64_t sends_bytes; /* that the writing rank sends in a step, by the strategy's plan */
    /* whole: every part of the state is held on two nodes at least; rebuilding: it will be, parts
     * are copied while training goes on; none. */
    const char *redundancy;
};

/* A step that is not finite: a line of events.jsonl of kind diverged. */
struct dpt_divergence_record {
    int64_t step; /* completed steps, this one included */
    double loss, grad_norm;
    const char *action; /* stop | skip | continue */
    int64_t in_row;     /* that skip has left out, this one included; 0: of another action */
};

/* summary.json. */
struct dpt_summary {
    /* The part that the agent is told, too. Not finite: null in the file. val_samples 0: there is
     * no val_accuracy. */
    Dpt__RunSummary told;
    const char *run; /* of the config; outlives the summary */
    int64_t tokens;
    double total_s; /* since training first began, pauses included */
    uint64_t generations;
    int64_t skipped_steps; /* of the whole run, for fp16's overflow or divergence */
    int world_size;
};

DPT_MUST_USE enum dpt_status dpt_runlog_metrics(const struct dpt_runlog *log,
                                                const struct dpt_metrics *metrics,
                                                struct dpt_err *err);
DPT_MUST_USE enum dpt_status dpt_runlog_eval(const struct dpt_runlog *log,
                                             const struct dpt_eval_record *eval,
                                             struct dpt_err *err);
DPT_MUST_USE enum dpt_status dpt_runlog_epoch(const struct dpt_runlog *log,
                                              const struct dpt_epoch_record *epoch,
                                              struct dpt_err *err);
DPT_MUST_USE enum dpt_status dpt_runlog_event(const struct dpt_runlog *log,
                                              const struct dpt_event_record *event,
                                              struct dpt_err *err);
DPT_MUST_USE enum dpt_status dpt_runlog_divergence(const struct dpt_runlog *log,
                                                   const struct dpt_divergence_record *record,
                                                   struct dpt_err *err);
/* Appends a line to its file in dir, or to the file `path`. The first newline ends what the file
 * ends with, if that is no whole line; else it is left out. */
DPT_MUST_USE enum dpt_status dpt_runlog_append(const char *dir, const struct dpt_runlog_line *line,
                                               struct dpt_err *err);
DPT_MUST_USE enum dpt_status
dpt_runlog_append_to(const char *path, const struct dpt_runlog_line *line, struct dpt_err *err);
DPT_MUST_USE enum dpt_status dpt_runlog_summary(const char *dir, const struct dpt_summary *summary,
                                                struct dpt_err *err);

/* The memory of a rank at the run's end, with its peaks: node-NODE/rank-LOCAL.memory.json. Bytes.
 */
struct dpt_memory_record {
    const char *node;
    int local_rank, rank, world_size;
    const char *strategy;
    int64_t parameters, elements;      /* tied ones once; with the padding of units */
    struct dpt_memory_use use;         /* by the account */
    struct dpt_memory_use device;      /* of the accelerator, by its account; 0: there is none */
    int64_t after_first_step;          /* what the account had then in all */
    int64_t formula[DPT_MEMORY_COUNT]; /* dpt_memory_formula */
    int64_t bound;                     /* dpt_memory_bound */
    struct dpt_process_memory process;
    int64_t process_at_start; /* resident before the first large allocation */
    int64_t shared_own;       /* shared memory that this process made: all of its pages are there */
};

/* Makes the folder if need be. */
DPT_MUST_USE enum dpt_status
dpt_runlog_memory(const char *dir, const struct dpt_memory_record *memory, struct dpt_err *err);

/* The times of a rank's kernels in `steps` steps: node-NODE/rank-LOCAL.op_times.json. */
struct dpt_op_times_record {
    const char *node;
    int local_rank, rank, world_size;
    int64_t steps; /* after the first of the process, with what lay between them */
    bool has_device;
    struct dpt_op_times host, device; /* of the streams that compute */
};

/* Makes the folder if need be. */
DPT_MUST_USE enum dpt_status
dpt_runlog_op_times(const char *dir, const struct dpt_op_times_record *record, struct dpt_err *err);

/* evaluation.json, of a run that only evaluates. */
DPT_MUST_USE enum dpt_status dpt_runlog_evaluation(const struct dpt_runlog *log,
                                                   const struct dpt_eval_record *eval,
                                                   const char *weights_hash, struct dpt_err *err);

/* The place of one line of metrics.jsonl, without its newline; step -1: it is no whole record of a
 * step or an evaluation, or an event's. */
struct dpt_runlog_place dpt_runlog_place_of(const char *line, size_t bytes);

/* A line of `a` comes after one of `b` in the file: of a later step, or of the same: first the
 * step's, then that of the epoch which it ends, then the evaluation's. */
bool dpt_runlog_is_after(const struct dpt_runlog_place *a, const struct dpt_runlog_place *b);

/* The last whole record in metrics.jsonl. Reads the end of the file only. */
DPT_MUST_USE enum dpt_status dpt_runlog_last(const char *dir, struct dpt_runlog_place *ret,
                                             struct dpt_err *err);

#endif
