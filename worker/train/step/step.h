/* A step of a rank: its samples, the list of actions, the commit and the application. Between
 * steps: the evaluation and the comparison of replicas. Main thread.
 *
 * Errors of functions that all ranks call together: DPT_EABORTED, DPT_EPEER and DPT_ETIMEOUT end
 * only this generation; others end the run. */
#ifndef DPT_WORKER_TRAIN_STEP_STEP_H
#define DPT_WORKER_TRAIN_STEP_STEP_H

#include "worker/data/data.h"
#include "worker/train/state/rooms.h"

struct rank_stepping {
    struct dpt_data *data;     /* NULL if the run only evaluates */
    struct dpt_loader *loader; /* NULL if the run only evaluates */
    double *slot_losses;       /* [slots of the run]; set for the slots of this rank */
    void *contribution;        /* [dpt_contribution_bytes(slots of the run)] */
    /* The last sample could not be read, and the state is unchanged. */
    bool reading_failed;
    bool told_divergence; /* the run's divergence was logged */
    struct dpt_data *val; /* NULL if the run does not evaluate */
    int64_t val_samples;  /* samples of an evaluation */
    void *val_memory;     /* memory of val_batch */
    struct dpt_batch val_batch;
};

/* step.c. rank_open_samples opens data.train and makes the memory of a step. rank_open_validation
 * opens data.val. */
DPT_MUST_USE enum dpt_status rank_open_samples(struct dpt_rank *r, struct dpt_err *err);
void rank_close_samples(struct dpt_rank *r);
/* Computes and commits step r->state.step; rank_apply applies it. DPT_EDIVERGED: the committed step
 * is not finite and ends the run. */
DPT_MUST_USE enum dpt_status rank_compute_step(struct dpt_rank *r, struct dpt_err *err);
/* Whether to go on computing. DPT_EABORTED: another generation is formed; `what` and the step are
 * in the text. Otherwise the error of the communication that has failed. */
DPT_MUST_USE enum dpt_status rank_check_interruption(const struct dpt_rank *r, const char *what,
                                                     struct dpt_err *err);
/* Passes on the status of reading samples, and sets reading_failed. A disk that fails or is absent
 * is an error of this machine (DPT_EDEVICE). */
enum dpt_status rank_note_reading(struct dpt_rank *r, enum dpt_status status, struct dpt_err *err);

/* Notes the work of an action, for dpt-doctor (worker/trace/present_work.h). */
void rank_note_action(const struct dpt_action *action);

/* commit.c. Runs the all-gather of losses, norm and flags, when the gradient is complete. The step
 * is committed when the all-gather completes; the result is r->state.outcome. */
DPT_MUST_USE enum dpt_status rank_commit_step(struct dpt_rank *r, struct dpt_err *err);
/* Applies step r->state.step with r->state.outcome. */
DPT_MUST_USE enum dpt_status rank_apply(struct dpt_rank *r, struct dpt_err *err);
/* Writes r->state.step to memory that the agent reads even after the death of this process. */
void rank_keep_step(const struct dpt_rank *r);

/* judge_step.c. Returns DPT_EDIVERGED, with the cause in `err`: the committed step is not finite.
 * The step is not applied and ends the run. */
enum dpt_status rank_judge_diverged(struct dpt_rank *r, struct dpt_err *err);
/* Called after a step that is not finite was applied or left out. Logs the step; if the run
 * continues with such steps, logs the first one only. */
void rank_tell_divergence(struct dpt_rank *r);
/* Called after a step that was skipped because its scaled gradient overflowed in fp16. Logs the
 * step. */
void rank_tell_overflow(struct dpt_rank *r);
/* Logs the event "diverged" of `step`. */
void rank_log_divergence(struct dpt_rank *r, int64_t step, const char *action, int64_t in_row);

/* evaluate.c. */
DPT_MUST_USE enum dpt_status rank_open_validation(struct dpt_rank *r, struct dpt_err *err);
/* All ranks call this together. Evaluates the weights on data.val into r->state.validation.
 * *ret_stopped: the evaluation stopped after a batch because the world must change. *ret_all_leave:
 * it stopped because every node drains. */
DPT_MUST_USE enum dpt_status rank_evaluate(struct dpt_rank *r, bool *ret_stopped,
                                           bool *ret_all_leave, struct dpt_err *err);
/* Number of samples of data.val that have labels; 0: the model predicts the next token. */
int64_t rank_labelled_samples(const struct dpt_rank *r);
/* Writes r->state.validation into the report, between dpt_link_edit and dpt_link_publish. */
void rank_report_validation(const struct dpt_rank *r, struct dpt_report *report);
/* rank_evaluation_record: r->state.validation for the files of the run. rank_log_evaluation: adds
 * its line to the run's log, and logs it on rank 0. */
struct dpt_eval_record rank_evaluation_record(const struct dpt_rank *r);
void rank_log_evaluation(struct dpt_rank *r);

/* verify_replicas.c. All ranks call this together. Compares the parts of the state that several
 * ranks hold. DPT_ECORRUPT: the text names the rank that differs. */
DPT_MUST_USE enum dpt_status rank_verify(struct dpt_rank *r, struct dpt_err *err);
/* Called when the shards of all ranks are known. Warns of shards that only one rank holds. */
void rank_warn_of_unverified(const struct dpt_rank *r);

#endif
