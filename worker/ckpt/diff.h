/* `dpt-ckpt diff`: two checkpoints or folders of weights, tensor by tensor. */
#ifndef DPT_WORKER_CKPT_DIFF_H
#define DPT_WORKER_CKPT_DIFF_H

#include "base/err.h"

#include <stdint.h>

/* Numbers of tensors. */
struct dpt_ckpt_difference {
    int64_t equal; /* the same bits */
    int64_t other; /* the same shape, different bits */
    int64_t apart; /* in only one of the two, or of different shapes */
};

/* Compares the masters of two checkpoints, each named as for dpt_ckpt_open, or the weights of a
 * Hugging Face folder or adapters of PEFT's (worker/weights/published.h), widened. Prints to the
 * standard output a line for each tensor that differs: the largest difference of an element, and
 * the 2-norm of the difference relative to that of the tensor in `a`. A tensor's name may have the
 * prefix of the whole model ("transformer.", "model.") on one side only. Does not compare moments.
 * Verifies the blocks that it reads of a checkpoint. Errors are those of opening and reading. */
DPT_MUST_USE enum dpt_status dpt_ckpt_diff(const char *a, const char *b,
                                           struct dpt_ckpt_difference *ret, struct dpt_err *err);

#endif
