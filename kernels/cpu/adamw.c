/* AdamW, at the speed of memory: one pass over parameter, moments and gradient. */
#include "kernels/cpu/stream.h"

enum { CHUNK = 1 << 14 }; /* elements */

struct job {
    const struct dpt_cpu_kernels *kernels;
    const struct dpt_adamw *a;
};

static void item_run(void *ctx, int64_t item, int thread)
{
    const struct job *j = ctx;
    int64_t at = item * CHUNK;
    struct dpt_adamw part = *j->a;
    (void)thread;
    part.n = dpt_min64(CHUNK, j->a->n - at);
    part.param += at;
    part.m += at;
    part.v += at;
    part.grad += at;
    j->kernels->adamw(&part);
    if (part.copy) /* the parameters are still in the cache */
        j->kernels->of[part.copy_dtype]->narrow(part.n, part.param,
                                                dpt_at_out(part.copy, part.copy_dtype, at));
}

void dpt_cpu_adamw(struct dpt_stream *stream, const struct dpt_adamw *a)
{
    struct dpt_cpu_stream *s = dpt_cpu_stream(stream);
    struct job job = {.kernels = s->kernels, .a = a};
    if (dpt_cpu_begin(s, a->copy_dtype, "adamw") && !s->preparing)
        dpt_pool_run(s->pool, dpt_ceil_div(a->n, CHUNK), item_run, &job);
}
