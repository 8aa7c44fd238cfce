/* The optimizer step over ranges of the flat vectors, and the learning rate. */
#ifndef DPT_WORKER_OPTIM_OPTIM_H
#define DPT_WORKER_OPTIM_OPTIM_H

#include "base/accum.h"
#include "base/config.h"
#include "worker/model/model.h"

#include <stdbool.h>
#include <stdint.h>

/* Learning rate of step `step` (0-based). The warm-up is lr*(step+1)/warmup_steps, so its last step
 * has lr. Then the rate is constant, or decays, linear or cosine, from lr at step warmup_steps to
 * min_lr at the last step and later. If fewer than two steps follow the warm-up, the rate is lr.
 *
 * With schedule_steps the decay takes that many steps, whatever train.steps is; linear then stays
 * at min_lr. Cosine is then PyTorch's CosineAnnealingLR with this number as T_max (Loshchilov &
 * Hutter 2017): after schedule_steps steps the rate rises for another schedule_steps steps. With
 * lr_scaling: linear, lr and min_lr are first multiplied by global_batch / base_batch (Goyal et
 * al., arXiv:1706.02677); the number of warm-up steps stays.
 *
 * Pure. In double with correctly rounded operations only (the cosine is a polynomial): the same
 * bits on every machine. */
double dpt_optim_lr(const struct dpt_config *config, int64_t step);

/* The elements that a step updates, and the flat vectors that it reads and writes. Each pointer
 * points to element `origin` of its vector. */
struct dpt_optim_vectors {
    struct dpt_span span;
    int64_t origin;
    float *param, *m, *v;
    const float *grad;
    void *copy; /* param rounded to the model's compute dtype, or NULL */
};

struct dpt_optim_step {
    int64_t step; /* 0-based, for the learning rate */
    /* Number of earlier updates, the moments' age: `step` minus the skipped steps. */
    int64_t updates;
    float grad_scale; /* factor of each gradient: clipping, the loss's scale */
};

/* Whether optimizer.name keeps a second moment; if not, `v` is NULL, and a checkpoint has zeroes
 * for it. */
bool dpt_optim_has_second_moment(const struct dpt_config *config);

/* The update of optimizer.name (adamw, adam, sgd: kernels/ops.h) on elements flat->span, any range.
 * Weight decay applies to matrices only. The bits of an element do not depend on the range. sgd
 * does not touch v.
 *
 * Running statistics (dpt_param.averaged) have another rule, whatever the optimizer: r += (1 - (1 -
 * m)^G) (s - r), with m = model.batch_norm_momentum. Their gradient s is the mean of the statistic
 * over the step's G micro-batches. This equals G updates by PyTorch's rule r += m (s - r), each
 * with the mean s instead of the statistic of one micro-batch. grad_scale, learning rate and weight
 * decay do not apply. Their moments m and v stay zero. */
void dpt_optim_update(const struct dpt_config *config, const struct dpt_model *model,
                      const struct dpt_ops *ops, struct dpt_stream *stream,
                      const struct dpt_optim_step *step, const struct dpt_optim_vectors *flat);

/* The squares of a gradient's elements `span` for its global norm. `span` is whole blocks
 * (DPT_BLOCK) of the flat vector; `grad` points to its first element. The work is posted on the
 * stream; `ret` has room for dpt_optim_squares_max of this number of elements. Returns the number
 * of squares. Each is a sum over a fixed part of the flat vector, so the exact sum of all does not
 * depend on the ranks' spans. */
int64_t dpt_optim_squares(const struct dpt_model *model, const struct dpt_ops *ops,
                          struct dpt_stream *stream, struct dpt_span span, const float *grad,
                          double *ret);
int64_t dpt_optim_squares_max(const struct dpt_model *model, int64_t numel);
/* Adds the squares, in host memory, to a rank's part of the norm. Running statistics count as zero;
 * one that is not finite makes the sum NaN. Returns the number of squares. */
int64_t dpt_optim_squares_add(const struct dpt_model *model, struct dpt_span span,
                              const double *squares, struct dpt_accum *sum);

/* Factor for clipping by global norm: 1 when max_norm is 0 or norm <= max_norm, else max_norm /
 * (norm + 1e-6), as PyTorch's clip_grad_norm_. An infinite norm gives 0, NaN gives NaN: the caller
 * handles a step that overflowed. */
float dpt_optim_clip_scale(double norm, double max_norm);

#endif
