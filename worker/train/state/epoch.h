/* The account of the steps of an epoch, for its line: their mean loss and their time. It is part of
 * the state: a checkpoint has it, and a rank receives it with the state. Pure. */
#ifndef DPT_WORKER_TRAIN_STATE_EPOCH_H
#define DPT_WORKER_TRAIN_STATE_EPOCH_H

#include <stdint.h>

/* All 0: no step is counted. Losses are added in the order of steps: the same bits in every world.
 * Times are each rank's own. */
struct dpt_epoch {
    int64_t from, to; /* completed steps: those after `from` up to `to` are counted */
    int64_t finite;   /* counted steps with a finite loss */
    double loss_sum;  /* of these losses */
    int64_t timed;    /* counted steps of known duration */
    double seconds;   /* of these durations */
};

/* Counts step `step` (0-based), which is applied now, in an epoch of epoch_steps. The account
 * begins anew at the first step of an epoch, and at a step that does not follow the counted ones.
 */
void dpt_epoch_add_step(struct dpt_epoch *epoch, int64_t epoch_steps, int64_t step, double loss);

/* Adds the duration of the step that was counted last. */
void dpt_epoch_add_time(struct dpt_epoch *epoch, double seconds);

/* Mean loss; NaN: none. Samples a second, of steps of `batch` samples; 0: unknown. */
double dpt_epoch_loss(const struct dpt_epoch *epoch);
double dpt_epoch_samples_per_s(const struct dpt_epoch *epoch, int64_t batch);

#endif
