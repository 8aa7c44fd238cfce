/* `dpt-ckpt diff`: two checkpoints or folders of weights, tensor by tensor. */
#ifndef DPT_WORKER_CKPT_DIFF_H
#define DPT_WORKER_CKPT_DIFF_H

#include "base/err.h"

#include <stdint.h>

/* Numbers of tensors in each class. */
struct dpt_ckpt_difference {
    int64_t equal; /* the same bits */
    int64_t other; /* the same shape, different bits */
    int64_t apart; /* only on one side, or of different shapes */
};

/* Compares two sides tensor by tensor. A side is a checkpoint, named as for dpt_ckpt_open, of which
 * the masters are compared; or the weights of a Hugging Face folder or of PEFT's adapters
 * (worker/weights/published.h), widened to fp32. For each tensor that differs, prints a line to the
 * standard output: the largest difference of an element, and the 2-norm of the difference relative
 * to that of the tensor in `a`. The two names of a tensor may differ by the prefix
 * of the whole model ("transformer.", "model."). Does not compare moments. Verifies the blocks that
 * it reads from a checkpoint. Errors are those of opening and reading. */
DPT_MUST_USE enum dpt_status dpt_ckpt_diff(const char *a, const char *b,
                                           struct dpt_ckpt_difference *ret, struct dpt_err *err);

#endif
