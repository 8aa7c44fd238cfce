/* The process of a rank: the agent's commands, the loop over the steps of a generation, and the end
 * of the run and of the process. Main thread. */
#ifndef DPT_WORKER_TRAIN_PROCESS_H
#define DPT_WORKER_TRAIN_PROCESS_H

#include "worker/train/state/rooms.h"

enum {
    STEP_TIMES_COUNT = 16,
    STEP_RECORDS_COUNT = 1024 /* newest steps in the record of a rank's steps */
};

struct rank_step_times {
    int64_t step; /* completed steps */
    double step_ms, wait_ms;
};

/* Times and tokens of the steps of this process. */
struct rank_loop {
    /* Time at which the last step ended, with its save, evaluation and comparison. */
    int64_t last_step_ns;
    struct dpt_comm_account last_account; /* at last_step_ns */
    int64_t step_ms[STEP_TIMES_COUNT];
    int n_step_ms;
    int64_t tokens_trained;
    double train_seconds;
    /* tokens_trained and train_seconds at the last step with a line (train.log_every), or at the
     * start of the generation. */
    int64_t line_tokens;
    double line_seconds;
    int64_t steps_made;
    struct rank_step_times times[STEP_RECORDS_COUNT]; /* the step of number i at i % COUNT */
    bool rescued;                                     /* a RESCUE was carried out */
};

static inline int64_t rank_tokens_per_step(const struct dpt_rank *r)
{
    return r->config->train.global_batch * r->form.positions;
}

/* commands.c: follows the agent's commands until EXIT, an error, or the end of the agent
 * (DPT_EPEER). */
DPT_MUST_USE enum dpt_status rank_follow(struct dpt_rank *r, struct dpt_err *err);
/* Called after the last report of a rank with a complete state. Writes a rescue if the agent
 * commands it, and returns at EXIT. */
void rank_await_rescue(struct dpt_rank *r);

enum train_end {
    TRAIN_FINISHED, /* all steps applied, final checkpoint and summary written */
    TRAIN_REFORM,   /* all ranks agreed to stop after this step */
    TRAIN_BROKEN    /* the communicator broke, or a hard PREPARE came */
};

/* train_loop.c: trains, or evaluates, until the generation ends. */
DPT_MUST_USE enum dpt_status rank_train(struct dpt_rank *r, enum train_end *ret,
                                        struct dpt_err *err);

/* step_times.c. rank_note_times is called after each step of this process, and counts it.
 * rank_write_times writes node-NODE/rank-LOCAL.steps.json at the end of the run; an error is
 * logged. */
void rank_note_times(struct dpt_rank *r, double step_ms, double wait_ms);
void rank_write_times(struct dpt_rank *r);

/* run_end.c. All ranks call these together. rank_finish writes the last checkpoint, the summary,
 * and the hash in the report. rank_finish_evaluation writes evaluation.json of a run that only
 * evaluates. */
DPT_MUST_USE enum dpt_status rank_finish(struct dpt_rank *r, struct dpt_err *err);
DPT_MUST_USE enum dpt_status rank_finish_evaluation(struct dpt_rank *r, struct dpt_err *err);

/* diverged_end.c. All ranks call these together. They end the run with DPT_EDIVERGED, whose text
 * has the cause, the newest checkpoint and the settings to change; other errors are those of
 * rank_compute_step. rank_end_diverged: after DPT_EDIVERGED of a step; saves the held state.
 * rank_end_not_finite: after a step whose checkpoint a rank dropped because the state is not
 * finite. rank_check_last_state: DPT_OK if the state of the last checkpoint is finite on all
 * ranks. */
DPT_MUST_USE enum dpt_status rank_end_diverged(struct dpt_rank *r, struct dpt_err *err);
DPT_MUST_USE enum dpt_status rank_end_not_finite(struct dpt_rank *r, struct dpt_err *err);
DPT_MUST_USE enum dpt_status rank_check_last_state(struct dpt_rank *r, struct dpt_err *err);

/* end_report.c. Reports the error that ends this process to the agent; returns the exit code.
 * `at_work`: the setup had succeeded. */
int rank_report_end(struct dpt_rank *r, enum dpt_status status, bool at_work, struct dpt_err *err);

#endif
