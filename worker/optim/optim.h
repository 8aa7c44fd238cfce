/* The optimizer step over ranges of the flat vectors, and the learning rate. */
#ifndef DPT_WORKER_OPTIM_OPTIM_H
#define DPT_WORKER_OPTIM_OPTIM_H

#include "base/accum.h"
#include "base/config.h"
#include "worker/model/model.h"

#include <stdbool.h>
#include <stdint.h>

/* Learning rate of step `step` (0-based): warm-up lr*(step+1)/warmup_steps, so that the last step
 * of it has lr; then constant, or linear or cosine from lr at step warmup_steps down to min_lr at
 * the last step (and after). Where fewer than two steps are left after the warm-up there is nothing
 * to decay over: lr. With schedule_steps the decay takes that many steps instead, whatever
 * train.steps is; linear then stays at min_lr, and cosine is PyTorch's CosineAnnealingLR of that
 * T_max (Loshchilov & Hutter 2017), which rises again for as many steps. With lr_scaling: linear,
 * both lr and min_lr are first multiplied by global_batch / base_batch (Goyal et al.,
 * arXiv:1706.02677): the warm-up takes as many steps as before and ends at the scaled rate. Pure,
 * in double by correctly rounded operations alone (the cosine by our own polynomial): the same bits
 * on every machine. */
double dpt_lr(const struct dpt_config *config, int64_t step);

/* The elements that a step updates, and the flat vectors that it reads and writes: each pointer is
 * to element `origin` of its vector. */
struct dpt_optim_vectors {
    struct dpt_span span;
    int64_t origin;
    float *param, *m, *v;
    const float *grad;
    void *copy; /* param rounded to the model's compute dtype, or NULL */
};

/* What an update knows of the run beside the vectors. */
struct dpt_optim_step {
    int64_t step;     /* 0-based: the learning rate's */
    int64_t updates;  /* made before this one: the moments' age. `step` less the steps skipped */
    float grad_scale; /* each gradient is multiplied by it on the fly: clipping, the loss's scale */
};

/* Whether optimizer.name keeps a second moment: without, there is no `v` (NULL), and a checkpoint
 * has zeroes for it. */
bool dpt_optim_has_second_moment(const struct dpt_config *config);

/* The update of optimizer.name (adamw, adam, sgd: kernels/ops.h) on elements flat->span: any range;
 * tensors decide on weight decay, which is of matrices alone. The bits of an element do not depend
 * on the range. sgd leaves v alone.
 *
 * Running statistics (dpt_param.averaged) have a rule of their own, whatever the optimizer: r += (1
 * - (1 - m)^G) (s - r), with m = model.batch_norm_momentum. Their gradient s is the mean of the
 * statistic over the step's G micro-batches. This is G times PyTorch's r += m (s - r) with the mean
 * in place of one micro-batch after the other. Neither grad_scale nor the learning rate nor weight
 * decay touches them. They have no moments: what m and v hold of them stays zero. */
void dpt_optim_update(const struct dpt_config *config, const struct dpt_model *model,
                      const struct dpt_ops *ops, struct dpt_stream *stream,
                      const struct dpt_optim_step *step, const struct dpt_optim_vectors *flat);

/* The squares of a gradient's elements `span` for its global norm: whole blocks (DPT_BLOCK) of the
 * flat vector, which `grad` begins at. Posted on the stream, into `ret`: at most
 * dpt_optim_squares_max of as many elements. Returns how many there are. Each is a sum over a
 * fixed part of the flat vector, so that the exact sum of all does not depend on how it is cut. */
int64_t dpt_optim_squares(const struct dpt_model *model, const struct dpt_ops *ops,
                          struct dpt_stream *stream, struct dpt_span span, const float *grad,
                          double *ret);
int64_t dpt_optim_squares_max(const struct dpt_model *model, int64_t numel);
/* Adds them, in memory of the host, to a rank's share of the norm. Running statistics count
 * nothing; one that is not finite makes the sum NaN. Returns how many squares there are. */
int64_t dpt_optim_squares_add(const struct dpt_model *model, struct dpt_span span,
                              const double *squares, struct dpt_accum *sum);

/* Factor for clipping by global norm: 1 when max_norm is 0 or norm <= max_norm, else max_norm /
 * (norm + 1e-6), as PyTorch's clip_grad_norm_. An infinite norm gives 0, NaN gives NaN: the caller
 * decides what a step that overflowed means. */
float dpt_clip_scale(double norm, double max_norm);

#endif
