/* The optimizers' updates. Memory limits their speed, so each makes one pass over parameters,
 * moments and gradient. */
#include "kernels/cpu/stream.h"

enum { CHUNK = 1 << 14 }; /* elements */

/* Stores the rounded copy of the new parameters while they are still in the cache. */
static void store_copy(const struct dpt_cpu_op *op, int64_t n, const float *param, void *copy,
                       enum dpt_dtype dtype)
{
    if (copy)
        op->kernels->of[dtype]->narrow(n, param, copy);
}

static void adamw_item(void *ctx, int64_t item, int thread)
{
    const struct dpt_cpu_op *op = ctx;
    const struct dpt_adamw *a = op->a;
    const int64_t at = item * CHUNK;
    const struct dpt_adamw part = dpt_adamw_part(a, at, dpt_min64(at + CHUNK, a->n));
    (void)thread;
    op->kernels->adamw(&part);
    store_copy(op, part.n, part.param, part.copy, part.copy_dtype);
}

void dpt_cpu_adamw(struct dpt_stream *stream, const struct dpt_adamw *a)
{
    struct dpt_cpu_stream *s = dpt_cpu_stream(stream);
    if (!dpt_cpu_posts(s, a->copy_dtype, "adamw"))
        return;
    if (!a->tensors)
        dpt_cpu_run_op(s, dpt_ceil_div(a->n, CHUNK), adamw_item, a);
    for (int i = 0; a->tensors && i < a->n_tensors; i++) {
        const struct dpt_adamw part = dpt_adamw_tensor(a, i);
        dpt_cpu_run_op(s, dpt_ceil_div(part.n, CHUNK), adamw_item, &part);
    }
}

static void sgd_item(void *ctx, int64_t item, int thread)
{
    const struct dpt_cpu_op *op = ctx;
    const struct dpt_sgd *a = op->a;
    const int64_t at = item * CHUNK;
    const struct dpt_sgd part = dpt_sgd_part(a, at, dpt_min64(at + CHUNK, a->n));
    (void)thread;
    op->kernels->sgd(&part);
    store_copy(op, part.n, part.param, part.copy, part.copy_dtype);
}

void dpt_cpu_sgd(struct dpt_stream *stream, const struct dpt_sgd *a)
{
    struct dpt_cpu_stream *s = dpt_cpu_stream(stream);
    if (!dpt_cpu_posts(s, a->copy_dtype, "sgd"))
        return;
    if (!a->tensors)
        dpt_cpu_run_op(s, dpt_ceil_div(a->n, CHUNK), sgd_item, a);
    for (int i = 0; a->tensors && i < a->n_tensors; i++) {
        const struct dpt_sgd part = dpt_sgd_tensor(a, i);
        dpt_cpu_run_op(s, dpt_ceil_div(part.n, CHUNK), sgd_item, &part);
    }
}
