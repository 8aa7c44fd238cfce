/* The optimizers' updates, at the speed of memory: one pass over parameter, moments and gradient.
 */
#include "kernels/cpu/stream.h"

enum { CHUNK = 1 << 14 }; /* elements */

struct adamw_job {
    const struct dpt_cpu_kernels *kernels;
    const struct dpt_adamw *a;
};

/* The parameters are still in the cache. */
static void copy_item(const struct dpt_cpu_kernels *kernels, int64_t n, const float *param,
                      void *copy, enum dpt_dtype dtype, int64_t at)
{
    if (copy)
        kernels->of[dtype]->narrow(n, param, dpt_at_out(copy, dtype, at));
}

static void adamw_item(void *ctx, int64_t item, int thread)
{
    const struct adamw_job *j = ctx;
    int64_t at = item * CHUNK;
    struct dpt_adamw part = *j->a;
    (void)thread;
    part.n = dpt_min64(CHUNK, j->a->n - at);
    part.param += at;
    part.m += at;
    part.v += at;
    part.grad += at;
    j->kernels->adamw(&part);
    copy_item(j->kernels, part.n, part.param, part.copy, part.copy_dtype, at);
}

static void adamw_tensor(struct dpt_cpu_stream *s, const struct dpt_adamw *a)
{
    struct adamw_job job = {.kernels = s->kernels, .a = a};
    dpt_pool_run(s->pool, dpt_ceil_div(a->n, CHUNK), adamw_item, &job);
}

void dpt_cpu_adamw(struct dpt_stream *stream, const struct dpt_adamw *a)
{
    struct dpt_cpu_stream *s = dpt_cpu_stream(stream);
    if (!dpt_cpu_begin(s, a->copy_dtype, "adamw") || s->preparing)
        return;
    if (!a->tensors)
        adamw_tensor(s, a);
    for (int i = 0; a->tensors && i < a->n_tensors; i++) {
        const struct dpt_adamw part = dpt_adamw_tensor(a, i);
        adamw_tensor(s, &part);
    }
}

struct sgd_job {
    const struct dpt_cpu_kernels *kernels;
    const struct dpt_sgd *a;
};

static void sgd_item(void *ctx, int64_t item, int thread)
{
    const struct sgd_job *j = ctx;
    int64_t at = item * CHUNK;
    struct dpt_sgd part = *j->a;
    (void)thread;
    part.n = dpt_min64(CHUNK, j->a->n - at);
    part.param += at;
    part.m += part.momentum > 0.0f ? at : 0;
    part.grad += at;
    j->kernels->sgd(&part);
    copy_item(j->kernels, part.n, part.param, part.copy, part.copy_dtype, at);
}

static void sgd_tensor(struct dpt_cpu_stream *s, const struct dpt_sgd *a)
{
    struct sgd_job job = {.kernels = s->kernels, .a = a};
    dpt_pool_run(s->pool, dpt_ceil_div(a->n, CHUNK), sgd_item, &job);
}

void dpt_cpu_sgd(struct dpt_stream *stream, const struct dpt_sgd *a)
{
    struct dpt_cpu_stream *s = dpt_cpu_stream(stream);
    if (!dpt_cpu_begin(s, a->copy_dtype, "sgd") || s->preparing)
        return;
    if (!a->tensors)
        sgd_tensor(s, a);
    for (int i = 0; a->tensors && i < a->n_tensors; i++) {
        const struct dpt_sgd part = dpt_sgd_tensor(a, i);
        sgd_tensor(s, &part);
    }
}
