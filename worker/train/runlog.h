/* What a run leaves behind in log.dir: metrics.jsonl, events.jsonl, summary.json.
 * Written by the one rank per distinct folder that the plan names (a rank's account of its memory
 * by itself); a record is one write(2), so a killed writer leaves no half line that its successor
 * would continue. */
#ifndef DPT_WORKER_TRAIN_RUNLOG_H
#define DPT_WORKER_TRAIN_RUNLOG_H

#include "base/account.h"
#include "base/err.h"
#include "base/memory.h"
#include "kernels/op_times.h"

#include <stdbool.h>
#include <stdint.h>

struct dpt_metrics {
    int64_t step; /* completed steps, 1 after the first */
    double loss, lr, grad_norm, tokens_per_s, step_ms;
    double wait_ms; /* of step_ms: the writing rank's main thread waited for its communication */
    int64_t sent_bytes; /* that it sent in the step */
    int64_t tokens;     /* of the whole run up to this step */
    uint64_t generation;
    int world_size;
    bool is_scaled; /* fp16: these two are written as well */
    double scale;   /* of the step's loss */
    int64_t skipped_steps;
};

/* An evaluation: a line of metrics.jsonl, too, told from a step's by its val_loss. */
struct dpt_eval_record {
    int64_t step;    /* completed steps of the weights */
    double val_loss; /* mean over the tokens, nats */
    int64_t tokens;  /* of data.val */
    double ms;       /* NaN: made by others, not known here (null in the file) */
    uint64_t generation;
    int world_size;
};

struct dpt_event_record {
    /* start | rank_lost | node_lost | joined | left | comm_error | stalled | server_restart, or
     * redundancy: no recovery, but what was being rebuilt after one is whole. */
    const char *kind;
    const char *cause;
    uint64_t generation;
    double detect_ms, abort_ms, rendezvous_ms, rebuild_ms, restore_ms, total_ms;
    int64_t steps_lost, resume_step;
    int world_size;
    int64_t sends_bytes; /* that the writing rank sends in a step, by the strategy's plan */
    /* whole: every part of the state is held on two nodes at least; rebuilding: it will be, parts
     * are copied while training goes on; none. */
    const char *redundancy;
};

struct dpt_summary {
    const char *run;
    int64_t start_step, steps, tokens;
    double loss;     /* NaN: no step was taken, so it is not known (null in the file) */
    double val_loss; /* of these weights; NaN: not evaluated (null) */
    double tokens_per_s;
    const char *weights_hash;
    uint64_t generations;
    int64_t steps_lost;
    int world_size;
    int64_t peak_bytes_per_rank;
};

DPT_MUST_USE enum dpt_status dpt_runlog_metrics(const char *dir, const struct dpt_metrics *metrics,
                                                struct dpt_err *err);
DPT_MUST_USE enum dpt_status dpt_runlog_eval(const char *dir, const struct dpt_eval_record *eval,
                                             struct dpt_err *err);
DPT_MUST_USE enum dpt_status dpt_runlog_event(const char *dir, const struct dpt_event_record *event,
                                              struct dpt_err *err);
DPT_MUST_USE enum dpt_status dpt_runlog_summary(const char *dir, const struct dpt_summary *summary,
                                                struct dpt_err *err);

/* What a rank holds and held at most, at the run's end: node-NODE/rank-LOCAL.memory.json. Bytes. */
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

/* What the kernels of a rank took in `steps` steps: node-NODE/rank-LOCAL.op_times.json. */
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

/* evaluation.json: what a run that only evaluates leaves. `run` and `weights_hash` of the weights
 * that were evaluated. */
DPT_MUST_USE enum dpt_status dpt_runlog_evaluation(const char *dir, const char *run,
                                                   const struct dpt_eval_record *eval,
                                                   const char *weights_hash, struct dpt_err *err);

/* Step of the last whole record in metrics.jsonl, -1: none; *ret_evaluation (may be NULL): it is an
 * evaluation's. Reads the end of the file only. */
DPT_MUST_USE enum dpt_status dpt_runlog_last_step(const char *dir, int64_t *ret_step,
                                                  bool *ret_evaluation, struct dpt_err *err);

#endif
