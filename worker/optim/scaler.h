/* The dynamic scale of the loss with train.precision or strategy.compression fp16 (Micikevicius et
 * al., "Mixed Precision Training", arXiv:1710.03740, section 3.2; rules as PyTorch's GradScaler).
 *
 * A step's loss is multiplied by the scale, so that the gradients of activations stay clear of
 * fp16's underflow, and every gradient comes out multiplied. Scales are powers of two: undoing them
 * is exact. A step whose reduced gradient is not finite is skipped: it uses up its samples and
 * leaves weights and moments as they were. Its norm says so, which is the same on all ranks.
 *
 * The scaler is part of the trajectory: it goes on from the state that weights and moments go on
 * from. Without fp16 the scale is 1, nothing is skipped and nothing changes. Pure. */
#ifndef DPT_WORKER_OPTIM_SCALER_H
#define DPT_WORKER_OPTIM_SCALER_H

#include "base/config.h"

#include <stdbool.h>
#include <stdint.h>

/* Beyond these a scale is not moved: room enough on both sides of what fp16 and f32 can hold. */
#define DPT_SCALE_MIN 0x1p-64
#define DPT_SCALE_MAX 0x1p64

struct dpt_scaler {
    double scale;            /* of the next step's loss */
    int64_t good_steps;      /* in a row, since the scale changed */
    int64_t skipped;         /* steps of the whole run, those of divergence.h included */
    int64_t diverged_in_row; /* of these, left out since a step was applied (divergence.h) */
};

/* Of a run that begins. */
void dpt_scaler_init(const struct dpt_config *config, struct dpt_scaler *ret);

/* Of a run that goes on after `step` steps from what a checkpoint or a peer says. A scale of 0 (a
 * checkpoint of another precision) begins anew, but for the steps that were skipped: they tell the
 * moments' age. DPT_ECORRUPT: no scaler can have come to this. */
DPT_MUST_USE enum dpt_status dpt_scaler_resume(const struct dpt_config *config, int64_t step,
                                               const struct dpt_scaler *saved,
                                               struct dpt_scaler *ret, struct dpt_err *err);

/* Whether a step with this norm of its gradient is skipped. */
bool dpt_scaler_skips(const struct dpt_config *config, double norm);

/* After a step: an overflow makes the scale train.loss_scale_backoff times itself, and
 * train.loss_scale_interval good steps in a row make it train.loss_scale_growth times itself. */
void dpt_scaler_advance(const struct dpt_config *config, bool skipped, struct dpt_scaler *scaler);

bool dpt_scaler_equal(const struct dpt_scaler *a, const struct dpt_scaler *b);

#endif
