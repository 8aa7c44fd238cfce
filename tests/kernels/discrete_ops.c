/* The ops of the discrete device: each is posted with its arguments, and is the CPU's when it runs.
 */
#include "tests/kernels/discrete_ops.h"

#include "kernels/device_impl.h"

#include <stdlib.h>
#include <string.h>

#define POINTERS(...) ((const void *const[DISCRETE_POINTERS_MAX]){__VA_ARGS__})

#define OP_AS(name, op, type, ...)                                                                 \
    static void run_##name(const struct dpt_ops *ops, struct dpt_stream *cpu, const void *args)    \
    {                                                                                              \
        ops->op(cpu, args);                                                                        \
    }                                                                                              \
    static void name(struct dpt_stream *stream, const struct type *a)                              \
    {                                                                                              \
        discrete_check(stream, #op, POINTERS(__VA_ARGS__));                                        \
        discrete_post(stream, run_##name, a, sizeof *a, NULL);                                     \
    }
#define OP(name, type, ...) OP_AS(name, name, type, __VA_ARGS__)

OP(linear_forward, dpt_linear_forward, a->x, a->w, a->bias, a->y, a->gelu)
OP(linear_backward, dpt_linear_backward, a->x, a->w, a->dy, a->dx, a->gelu_x, a->dw, a->dbias)
OP(layernorm_forward, dpt_layernorm_forward, a->x, a->gamma, a->beta, a->y, a->mean, a->rstd)
OP(layernorm_backward, dpt_layernorm_backward, a->x, a->gamma, a->mean, a->rstd, a->dy, a->dx,
   a->dgamma, a->dbeta)
OP(gelu_forward, dpt_gelu, a->x, a->out)
OP(gelu_backward, dpt_gelu, a->x, a->dy, a->out)
OP(attention_forward, dpt_attention, a->qkv, a->y, a->lse)
OP(attention_backward, dpt_attention, a->qkv, a->y, a->lse, a->dy, a->dqkv)
OP(rope_table, dpt_rope_table, a->cos, a->sin)
OP(rope, dpt_rope, a->cos, a->sin, a->x)
OP(swiglu_forward, dpt_swiglu, a->x, a->out)
OP(swiglu_backward, dpt_swiglu, a->x, a->dy, a->out)
OP(residual, dpt_residual, a->a, a->b, a->y)
OP(residual_norm, dpt_residual_norm, a->a, a->b, a->sum, a->gamma, a->beta, a->y, a->mean, a->rstd)
OP(dropout_backward, dpt_dropout_backward, a->dy, a->dx)
OP(embedding_forward, dpt_embedding_forward, a->tokens, a->wte, a->wpe, a->y)
OP(embedding_backward, dpt_embedding_backward, a->tokens, a->dy, a->dwte, a->dwpe)
OP_AS(one_adamw, adamw, dpt_adamw, a->param, a->m, a->v, a->grad, a->copy)
OP_AS(one_sgd, sgd, dpt_sgd, a->param, a->m, a->grad, a->copy)
OP(ordered_sum, dpt_ordered_sum, a->parts, a->joins, a->dst)
OP(head_loss, dpt_head_loss, a->x, a->w, a->targets, a->loss, a->dx, a->dw, a->right, a->bias,
   a->dbias)
OP(last_token_forward, dpt_last_token, a->lengths, a->x, a->y)
OP(last_token_backward, dpt_last_token, a->lengths, a->x, a->y)
OP(conv_forward, dpt_conv_forward, a->x, a->weight, a->y)
OP(conv_backward, dpt_conv_backward, a->x, a->weight, a->dy, a->dx, a->dw)
OP(batchnorm_forward, dpt_batchnorm_forward, a->x, a->gamma, a->beta, a->residual, a->y,
   a->running_mean, a->running_var, a->mean, a->rstd, a->var)
OP(batchnorm_backward, dpt_batchnorm_backward, a->x, a->gamma, a->mean, a->rstd, a->var, a->y,
   a->dy, a->dx, a->dresidual, a->dgamma, a->dbeta, a->dmean, a->dvar)
OP(maxpool_forward, dpt_maxpool, a->x, a->y, a->taken)
OP(maxpool_backward, dpt_maxpool, a->taken, a->dy, a->dx)
OP(avgpool_forward, dpt_avgpool, a->in, a->out)
OP(avgpool_backward, dpt_avgpool, a->in, a->out)

/* The tensors are the caller's, and gone when the queue runs. */
static void adamw(struct dpt_stream *stream, const struct dpt_adamw *a)
{
    for (int i = 0; a->tensors && i < a->n_tensors; i++) {
        const struct dpt_adamw part = dpt_adamw_tensor(a, i);
        one_adamw(stream, &part);
    }
    if (!a->tensors)
        one_adamw(stream, a);
}

static void sgd(struct dpt_stream *stream, const struct dpt_sgd *a)
{
    for (int i = 0; a->tensors && i < a->n_tensors; i++) {
        const struct dpt_sgd part = dpt_sgd_tensor(a, i);
        one_sgd(stream, &part);
    }
    if (!a->tensors)
        one_sgd(stream, a);
}

/* ---- ops whose arguments are no struct ---- */

struct vector_args {
    int64_t n, block;
    const float *a, *b;
    float *x;
    const void *narrow;
    void *other;
    enum dpt_dtype dtype;
    float value;
    double *sums;
};

#define ARGS(...) ((struct vector_args){__VA_ARGS__})

#define VECTOR_OP(name, call, pointers, values, ...)                                               \
    static void run_##name(const struct dpt_ops *ops, struct dpt_stream *cpu, const void *args)    \
    {                                                                                              \
        const struct vector_args *v = args;                                                        \
        ops->name call;                                                                            \
    }                                                                                              \
    static void name(struct dpt_stream *stream, int64_t n, __VA_ARGS__)                            \
    {                                                                                              \
        const struct vector_args args = values;                                                    \
        discrete_check(stream, #name, pointers);                                                   \
        discrete_post(stream, run_##name, &args, sizeof args, NULL);                               \
    }

VECTOR_OP(add, (cpu, v->n, v->a, v->b, v->x), POINTERS(a, b, dst),
          ARGS(.n = n, .a = a, .b = b, .x = dst), const float *a, const float *b, float *dst)
VECTOR_OP(cast, (cpu, v->n, v->a, v->dtype, v->other), POINTERS(src, dst),
          ARGS(.n = n, .a = src, .dtype = dtype, .other = dst), const float *src,
          enum dpt_dtype dtype, void *dst)
VECTOR_OP(widen, (cpu, v->n, v->dtype, v->narrow, v->x), POINTERS(src, dst),
          ARGS(.n = n, .narrow = src, .dtype = dtype, .x = dst), enum dpt_dtype dtype,
          const void *src, float *dst)
VECTOR_OP(round_to, (cpu, v->n, v->dtype, v->x), POINTERS(x), ARGS(.n = n, .dtype = dtype, .x = x),
          enum dpt_dtype dtype, float *x)
VECTOR_OP(scale, (cpu, v->n, v->dtype, v->value, v->other), POINTERS(x),
          ARGS(.n = n, .dtype = dtype, .value = factor, .other = x), enum dpt_dtype dtype,
          float factor, void *x)
VECTOR_OP(fill, (cpu, v->n, v->value, v->x), POINTERS(dst), ARGS(.n = n, .value = value, .x = dst),
          float value, float *dst)
VECTOR_OP(sumsq_blocks, (cpu, v->n, v->block, v->a, v->sums), POINTERS(x, ret),
          ARGS(.n = n, .block = block, .a = x, .sums = ret), int64_t block, const float *x,
          double *ret)

/* From pageable memory of the host at once; else when its turn comes. */
struct copy_args {
    size_t bytes;
    const void *src;
    void *dst;
};

static void run_copy(const struct dpt_ops *ops, struct dpt_stream *cpu, const void *args)
{
    const struct copy_args *a = args;
    ops->copy(cpu, a->bytes, a->src, a->dst);
}

static void copy(struct dpt_stream *stream, size_t bytes, const void *src, void *dst)
{
    struct copy_args args = {bytes, src, dst};
    void *taken = NULL;
    if (discrete_is_pageable(stream, dst))
        discrete_note_pageable(bytes);
    if (discrete_is_pageable(stream, src)) {
        discrete_note_pageable(bytes);
        taken = malloc(bytes ? bytes : 1);
        if (!taken)
            abort();
        memcpy(taken, src, bytes);
        args.src = taken;
    }
    discrete_post(stream, run_copy, &args, sizeof args, taken);
}

/* The ops of a model and a step; an op that is missing here is a NULL that crashes its first
 * user. */
const struct dpt_ops discrete_ops = {
    .linear_forward = linear_forward,
    .linear_backward = linear_backward,
    .layernorm_forward = layernorm_forward,
    .layernorm_backward = layernorm_backward,
    .gelu_forward = gelu_forward,
    .gelu_backward = gelu_backward,
    .attention_forward = attention_forward,
    .attention_backward = attention_backward,
    .rope_table = rope_table,
    .rope = rope,
    .swiglu_forward = swiglu_forward,
    .swiglu_backward = swiglu_backward,
    .residual = residual,
    .residual_norm = residual_norm,
    .dropout_backward = dropout_backward,
    .embedding_forward = embedding_forward,
    .embedding_backward = embedding_backward,
    .head_loss = head_loss,
    .last_token_forward = last_token_forward,
    .last_token_backward = last_token_backward,
    .conv_forward = conv_forward,
    .conv_backward = conv_backward,
    .batchnorm_forward = batchnorm_forward,
    .batchnorm_backward = batchnorm_backward,
    .maxpool_forward = maxpool_forward,
    .maxpool_backward = maxpool_backward,
    .avgpool_forward = avgpool_forward,
    .avgpool_backward = avgpool_backward,
    .adamw = adamw,
    .sgd = sgd,
    .add = add,
    .ordered_sum = ordered_sum,
    .copy = copy,
    .cast = cast,
    .widen = widen,
    .round_to = round_to,
    .scale = scale,
    .sumsq_blocks = sumsq_blocks,
    .fill = fill,
};
