/* The room of a step: its samples, the list of actions, the commit and the application; between
 * steps the evaluation and the comparison of replicas. Main thread.
 *
 * Errors of whatever all ranks of the generation do together, as the steps are: DPT_EABORTED,
 * DPT_EPEER, DPT_ETIMEOUT end this generation only; others end the run. */
#ifndef DPT_WORKER_TRAIN_STEP_STEP_H
#define DPT_WORKER_TRAIN_STEP_STEP_H

#include "worker/data/data.h"
#include "worker/train/state/rooms.h"

struct rank_stepping {
    struct dpt_data *data;     /* NULL when the run only evaluates */
    struct dpt_loader *loader; /* likewise */
    double *slot_losses;       /* [G]; of this rank's slots */
    void *contribution;        /* [dpt_contribution_bytes(G)] */
    bool reading_failed;       /* the newest sample was not read; the state is what it was */
    bool told_divergence;
    struct dpt_data *val; /* NULL when the run does not evaluate */
    int64_t val_samples;  /* of an evaluation */
    void *val_memory;     /* of val_batch */
    struct dpt_batch val_batch;
};

/* step.c. Opens data.train and makes the memory of a step; rank_open_validation opens data.val. */
DPT_MUST_USE enum dpt_status rank_open_samples(struct dpt_rank *r, struct dpt_err *err);
void rank_close_samples(struct dpt_rank *r);
/* Computes and commits step r->state.step; rank_apply applies it. DPT_EDIVERGED: it is committed,
 * is not finite and ends the run. */
DPT_MUST_USE enum dpt_status rank_compute_step(struct dpt_rank *r, struct dpt_err *err);
/* The generation ends: what is being computed is of no use. */
bool rank_in_vain(const struct dpt_rank *r);
/* Status of reading samples: a disk that fails, or is gone, is a fault of this machine
 * (DPT_EDEVICE). */
enum dpt_status rank_own_disk(struct dpt_rank *r, enum dpt_status status, struct dpt_err *err);

/* commit.c. The all-gather of losses, norm and flags; its completion is the commit of the step, and
 * its result r->state.outcome. After the gradient is whole. */
DPT_MUST_USE enum dpt_status rank_commit_step(struct dpt_rank *r, struct dpt_err *err);
/* Applies step r->state.step with r->state.outcome. */
DPT_MUST_USE enum dpt_status rank_apply(struct dpt_rank *r, struct dpt_err *err);
/* Writes r->state.step where the agent reads it when this process is dead. */
void rank_keep_step(const struct dpt_rank *r);

/* divergence.c. DPT_EDIVERGED, and `err` says why: the committed step is not finite, is not applied
 * and ends the run. */
enum dpt_status rank_judge_diverged(struct dpt_rank *r, struct dpt_err *err);
/* After a step that is not finite was applied or left out: tells it, or once for all that follow.
 */
void rank_tell_divergence(struct dpt_rank *r);
/* The same of a step that the rules of fp16 have left out. */
void rank_tell_overflow(struct dpt_rank *r);
/* An event "diverged" of `step`. */
void rank_log_divergence(struct dpt_rank *r, int64_t step, const char *action, int64_t in_row);

/* evaluate.c. */
DPT_MUST_USE enum dpt_status rank_open_validation(struct dpt_rank *r, struct dpt_err *err);
/* With all ranks: evaluates the weights on data.val into r->state.validation. *ret_stopped: ended
 * after a batch because the world shall change, with *ret_all_leave when every node drains. */
DPT_MUST_USE enum dpt_status rank_evaluate(struct dpt_rank *r, bool *ret_stopped,
                                           bool *ret_all_leave, struct dpt_err *err);
/* Samples of data.val that have labels; 0: the model predicts the next token. */
int64_t rank_labelled_samples(const struct dpt_rank *r);
/* Writes r->state.validation into the report. In an edit of it. */
void rank_report_validation(const struct dpt_rank *r, struct dpt_report *report);
/* r->state.validation for the files of the run; and its lines in the run's log and rank 0's log. */
struct dpt_eval_record rank_evaluation_record(const struct dpt_rank *r);
void rank_log_evaluation(struct dpt_rank *r);

/* verify_replicas.c. With all ranks: compares the state that several of them hold; DPT_ECORRUPT
 * names the rank that differs. */
DPT_MUST_USE enum dpt_status rank_verify(struct dpt_rank *r, struct dpt_err *err);
/* When the shards of all ranks are known: warns of those that no second rank holds. */
void rank_warn_of_unverified(const struct dpt_rank *r);

#endif
