/* The optimizer step over ranges of the flat vectors, and the learning rate. */
#ifndef DPT_WORKER_OPTIM_OPTIM_H
#define DPT_WORKER_OPTIM_OPTIM_H

#include "base/config.h"
#include "worker/model/model.h"

#include <stdint.h>

/* Learning rate of step `step` (0-based): linear warm-up from lr/warmup_steps to lr, then constant, linear or cosine down to min_lr at
 * the last step. Pure; computed in double with exact repeatability on one libm-free path (cosine by our own polynomial). */
double dpt_lr(const struct dpt_config *config, int64_t step);

/* AdamW on elements [first, end) of the flat vectors (any range; tensors decide on weight decay), step 0-based, gradient scaled by
 * grad_scale (clipping) on the fly. The bits of an element do not depend on the range. `param`, `grad`, `m`, `v` are the flat vectors'
 * starts. */
void dpt_optim_adamw(const struct dpt_config *config, const struct dpt_model *model, const struct dpt_ops *ops,
                     struct dpt_stream *stream, int64_t step, float grad_scale, int64_t first, int64_t end, float *param,
                     const float *grad, float *m, float *v);

/* Factor for clipping by global norm: 1 when max_norm is 0 or norm <= max_norm, else max_norm / (norm + 1e-6), as PyTorch's
 * clip_grad_norm_. */
float dpt_clip_scale(double norm, double max_norm);

#endif
