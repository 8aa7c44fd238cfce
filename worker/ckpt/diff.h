/* `dpt-ckpt diff`: two checkpoints or folders of weights, tensor by tensor. */
#ifndef DPT_WORKER_CKPT_DIFF_H
#define DPT_WORKER_CKPT_DIFF_H

#include "base/err.h"

#include <stdint.h>

/* What was found, in tensors. */
struct dpt_ckpt_difference {
    int64_t equal; /* the same bits */
    int64_t other; /* the same shape, other bits */
    int64_t apart; /* only in one of the two, or of another shape there */
};

/* Compares the masters in two checkpoints, each named as for dpt_ckpt_open, or the weights of a
 * Hugging Face folder or adapters of PEFT's (worker/weights/published.h), widened, and prints to
 * the standard output a line for each tensor that is not the same: the largest difference of an
 * element, and the difference's 2-norm beside that of the tensor in `a`. A tensor's name may have
 * the front of the whole model ("transformer.", "model.") on one side and lack it on the other.
 * Moments are not compared. Verifies what it reads of a checkpoint; errors are those of opening and
 * reading. */
DPT_MUST_USE enum dpt_status dpt_ckpt_diff(const char *a, const char *b,
                                           struct dpt_ckpt_difference *ret, struct dpt_err *err);

#endif
