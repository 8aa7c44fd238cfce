/* The dynamic scale of the loss with train.precision or strategy.compression fp16 (Micikevicius et
 * al., "Mixed Precision Training", arXiv:1710.03740, section 3.2; rules as PyTorch's GradScaler).
 *
 * A step's loss is multiplied by the scale, so that gradients of activations do not underflow in
 * fp16. This multiplies every gradient by the scale. Scales are powers of two, so the division by
 * the scale is exact. A step whose reduced gradient is not finite is skipped: its samples are used
 * up, and weights and moments stay unchanged. Ranks decide it from the norm, which is the same on
 * all ranks.
 *
 * The scaler is part of the trajectory: a resumed run restores it with weights and moments. Without
 * fp16 the scale is 1, and no step is skipped. Pure. */
#ifndef DPT_WORKER_OPTIM_SCALER_H
#define DPT_WORKER_OPTIM_SCALER_H

#include "base/config.h"

#include <stdbool.h>
#include <stdint.h>

/* The least and the largest scale. */
#define DPT_SCALE_MIN 0x1p-64
#define DPT_SCALE_MAX 0x1p64

struct dpt_scaler {
    double scale;       /* of the next step's loss */
    int64_t good_steps; /* good steps in a row since the scale changed */
    /* Skipped steps of the whole run, including those that step_fate.h skips. */
    int64_t skipped;
    int64_t diverged_in_row; /* steps that step_fate.h skipped since the last applied step */
};

/* The scaler of a new run. */
void dpt_scaler_init(const struct dpt_config *config, struct dpt_scaler *ret);

/* The scaler of a run that resumes after `step` steps from the state `saved` of a checkpoint or a
 * peer. If the saved scale is 0 (a checkpoint of another precision), the scaler is a new run's with
 * the saved counts of skipped steps: the age of the moments depends on them. DPT_ECORRUPT: an
 * impossible state. */
DPT_MUST_USE enum dpt_status dpt_scaler_resume(const struct dpt_config *config, int64_t step,
                                               const struct dpt_scaler *saved,
                                               struct dpt_scaler *ret, struct dpt_err *err);

/* Whether a step whose gradient has this norm is skipped. */
bool dpt_scaler_skips(const struct dpt_config *config, double norm);

/* Call it after a step. An overflow multiplies the scale by train.loss_scale_backoff, and
 * train.loss_scale_interval good steps in a row multiply it by train.loss_scale_growth. */
void dpt_scaler_advance(const struct dpt_config *config, bool skipped, struct dpt_scaler *scaler);

bool dpt_scaler_equal(const struct dpt_scaler *a, const struct dpt_scaler *b);

#endif
