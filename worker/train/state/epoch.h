/* The account of the steps of an epoch, for the epoch's line: their mean loss and their time. The
 * account is a part of the state: a checkpoint contains it, and a rank receives it together with
 * the state. Pure. */
#ifndef DPT_WORKER_TRAIN_STATE_EPOCH_H
#define DPT_WORKER_TRAIN_STATE_EPOCH_H

#include <stdint.h>

/* All 0: no step is counted. Losses are added in the order of steps, so they have the same bits in
 * every world. Times are those of the rank itself. */
struct dpt_epoch {
    int64_t from, to; /* counts the completed steps after `from`, up to `to` */
    int64_t finite;   /* counted steps with a finite loss */
    double loss_sum;  /* sum of these losses */
    int64_t timed;    /* counted steps of known duration */
    double seconds;   /* sum of these durations */
};

/* Counts step `step` (0-based), which is being applied, in an epoch of epoch_steps. The account
 * starts again at the first step of an epoch, and at a step that does not follow the counted
 * ones. */
void dpt_epoch_add_step(struct dpt_epoch *epoch, int64_t epoch_steps, int64_t step, double loss);

/* Adds the duration of the last counted step. */
void dpt_epoch_add_time(struct dpt_epoch *epoch, double seconds);

/* The mean loss; NaN: no loss is known. The samples a second, for steps of `batch` samples; 0:
 * unknown. */
double dpt_epoch_loss(const struct dpt_epoch *epoch);
double dpt_epoch_samples_per_s(const struct dpt_epoch *epoch, int64_t batch);

#endif
