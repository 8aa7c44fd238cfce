/* The account of the steps of an epoch, for its line: their mean loss and their time. Part of the
 * state: in checkpoints, and told to a rank that is given the state. Pure. */
#ifndef DPT_WORKER_TRAIN_STATE_EPOCH_H
#define DPT_WORKER_TRAIN_STATE_EPOCH_H

#include <stdint.h>

/* All 0: nothing is counted yet. Losses are added in the order of steps: the same bits in every
 * world. Times are each rank's own. */
struct dpt_epoch {
    int64_t from, to; /* completed steps: those after `from` up to `to` are counted */
    int64_t finite;   /* of them, with a finite loss, ... */
    double loss_sum;  /* ... and these losses */
    int64_t timed;    /* of them, whose time is known, ... */
    double seconds;   /* ... and these times */
};

/* Counts step `step` (0-based), which is applied now, in an epoch of epoch_steps. The first of an
 * epoch begins anew, and so does one that does not follow what is counted: after a state that came
 * without its account. */
void dpt_epoch_add_step(struct dpt_epoch *epoch, int64_t epoch_steps, int64_t step, double loss);

/* The time of the step that was counted last. */
void dpt_epoch_add_time(struct dpt_epoch *epoch, double seconds);

/* Mean loss; NaN: none. Samples a second, of steps of `batch` samples; 0: not known. */
double dpt_epoch_loss(const struct dpt_epoch *epoch);
double dpt_epoch_samples_per_s(const struct dpt_epoch *epoch, int64_t batch);

#endif
