/* Layer norm and RMS norm. Rows are independent, except in the gradients of gamma and beta: these
 * are summed in chunks of CHUNK rows, and the chunks' sums are added in order. */
#include "kernels/cpu/stream.h"

enum { CHUNK = 32, COLUMNS = 128 };

static void layernorm_forward_item(void *ctx, int64_t item, int thread)
{
    const struct dpt_cpu_op *op = ctx;
    const struct dpt_layernorm_forward *a = op->a;
    (void)thread;
    op->kernels->of[a->dtype]->norm(a, item * CHUNK, dpt_min64(a->n, (item + 1) * CHUNK));
}

void dpt_cpu_layernorm_forward(struct dpt_stream *stream, const struct dpt_layernorm_forward *a)
{
    struct dpt_cpu_stream *s = dpt_cpu_stream(stream);
    DPT_ASSERT(s->base.preparing || !a->beta == !a->mean);
    if (dpt_cpu_posts(s, a->dtype, "layernorm"))
        dpt_cpu_run_op(s, dpt_ceil_div(a->n, CHUNK), layernorm_forward_item, a);
}

struct backward_job {
    const struct dpt_cpu_kernels *kernels;
    const struct dpt_layernorm_backward *a;
    int64_t chunks;
    /* (chunks, 2, c): each chunk's sums for gamma and for beta; RMS norm has none for beta. The
     * sums are computed even if neither gradient is wanted, and then they are not read. */
    float *sums;
};

static void layernorm_backward_item(void *ctx, int64_t item, int thread)
{
    const struct backward_job *j = ctx;
    const struct dpt_layernorm_backward *a = j->a;
    float *dgamma = j->sums + item * 2 * a->c;
    (void)thread;
    j->kernels->of[a->dtype]->norm_grad(a, item * CHUNK, dpt_min64(a->n, (item + 1) * CHUNK),
                                        dgamma, dgamma + a->c);
}

/* Items: column ranges of dgamma, then of dbeta. */
static void join_item(void *ctx, int64_t item, int thread)
{
    const struct backward_job *j = ctx;
    int64_t c = j->a->c, ranges = dpt_ceil_div(c, COLUMNS);
    int64_t which = item / ranges, at = item % ranges * COLUMNS;
    (void)thread;
    j->kernels->of[DPT_F32]->column_sums(j->chunks, dpt_min64(COLUMNS, c - at),
                                         j->sums + which * c + at, 2 * c, j->a->accumulate,
                                         (which ? j->a->dbeta : j->a->dgamma) + at);
}

void dpt_cpu_layernorm_backward(struct dpt_stream *stream, const struct dpt_layernorm_backward *a)
{
    struct dpt_cpu_stream *s = dpt_cpu_stream(stream);
    struct backward_job job = {.kernels = s->kernels, .a = a, .chunks = dpt_ceil_div(a->n, CHUNK)};
    struct dpt_workspace w;
    DPT_ASSERT(s->base.preparing || (a->dgamma ? !a->dbeta == !a->mean : !a->dbeta));
    if (!dpt_stream_begin(&s->base, a->dtype, "layernorm backward") ||
        !dpt_cpu_workspace(s, DPT_WORKSPACE_OP, (size_t)(job.chunks * 2 * a->c) * sizeof(float), 0,
                           &w))
        return;
    job.sums = (float *)(void *)w.shared;
    dpt_pool_run(s->pool, job.chunks, layernorm_backward_item, &job);
    if (a->dgamma)
        dpt_pool_run(s->pool, (a->dbeta ? 2 : 1) * dpt_ceil_div(a->c, COLUMNS), join_item, &job);
}

void dpt_cpu_residual_norm(struct dpt_stream *stream, const struct dpt_residual_norm *a)
{
    dpt_residual_norm_by_two(stream, dpt_cpu_residual, dpt_cpu_layernorm_forward, a);
}
