/* Token embeddings, with or without position embeddings.
 *
 * Backward needs no atomics. One pass over the tokens links the positions of each token in their
 * order. An item of work has a range of channels: for each row it sums the contributions of the
 * linked positions, and then stores the sum or adds it. */
#include "kernels/cpu/stream.h"

#include <string.h>

enum {
    ROWS = 16,      /* positions per item in forward */
    CHANNELS = 128, /* channels per item in backward */
    ZERO_ROWS = 256 /* rows of wte per item */
};

static void embedding_forward_item(void *ctx, int64_t item, int thread)
{
    const struct dpt_cpu_op *op = ctx;
    const struct dpt_embedding_forward *a = op->a;
    const struct dpt_elem_kernels *k = op->kernels->of[a->dtype];
    int64_t end = dpt_min64((item + 1) * ROWS, a->b * a->t), c = a->c;
    (void)thread;
    for (int64_t i = item * ROWS; i < end; i++) {
        const void *token = dpt_at(a->wte, a->dtype, a->tokens[i] * c);
        void *y = dpt_at_out(a->y, a->dtype, i * c);
        if (a->wpe)
            k->add(c, token, dpt_at(a->wpe, a->dtype, i % a->t * c), y);
        else
            memcpy(y, token, (size_t)c * dpt_dtype_bytes(a->dtype));
        if (a->dropout.p > 0.0f)
            k->drop_add(c, &a->dropout, a->dropout.first + (uint64_t)(i * c), NULL, y, y);
    }
}

void dpt_cpu_embedding_forward(struct dpt_stream *stream, const struct dpt_embedding_forward *a)
{
    struct dpt_cpu_stream *s = dpt_cpu_stream(stream);
    if (dpt_cpu_posts(s, a->dtype, "embedding"))
        dpt_cpu_run_op(s, dpt_ceil_div(a->b * a->t, ROWS), embedding_forward_item, a);
}

struct backward_job {
    const struct dpt_cpu_kernels *kernels;
    const struct dpt_embedding_backward *a;
    int64_t n;
    int32_t *last;  /* (v) the last position seen of each token; -1: none yet */
    int32_t *next;  /* (n) the next position of the same token; -1: none */
    int32_t *first; /* (n) 1: this is the token's first position */
};

static void link_positions(const struct backward_job *j)
{
    memset(j->last, 0xff, (size_t)j->a->v * sizeof *j->last);
    for (int64_t i = 0; i < j->n; i++) {
        int32_t token = j->a->tokens[i], before = j->last[token];
        j->next[i] = -1;
        j->first[i] = before < 0;
        if (before >= 0)
            j->next[before] = (int32_t)i;
        j->last[token] = (int32_t)i;
    }
}

/* Returns channels [at, at + n) of dy at position i in f32, after the dropout mask. `buffer` has
 * room for n floats. */
static const float *gradient_at(const struct backward_job *j, int64_t i, int64_t at, int64_t n,
                                float *buffer)
{
    const struct dpt_embedding_backward *a = j->a;
    const float *dy = dpt_at(a->dy, a->dtype, i * a->c + at);
    if (a->dtype != DPT_F32) {
        j->kernels->of[a->dtype]->widen(n, dy, buffer);
        dy = buffer;
    }
    if (a->dropout.p <= 0.0f)
        return dy;
    j->kernels->of[DPT_F32]->drop_add(n, &a->dropout, a->dropout.first + (uint64_t)(i * a->c + at),
                                      NULL, dy, buffer);
    return buffer;
}

/* Sums channels [at, at + n) over some positions and stores or adds the sum to row `to`. With
 * stride > 0 the positions are i0, i0 + stride, …; with stride 0 they are i0 and all later
 * positions of the same token. */
static void sum_positions(const struct backward_job *j, int64_t i0, int64_t stride, int64_t at,
                          bool accumulate, float *to)
{
    const int64_t n = dpt_min64(CHANNELS, j->a->c - at);
    float sum[CHANNELS], dropped[CHANNELS];
    to += at;
    memcpy(sum, gradient_at(j, i0, at, n, dropped), (size_t)n * sizeof *sum);
    for (int64_t i = stride ? i0 + stride : j->next[i0]; i >= 0 && i < j->n;
         i = stride ? i + stride : j->next[i])
        j->kernels->of[DPT_F32]->add(n, sum, gradient_at(j, i, at, n, dropped), sum);
    if (accumulate)
        j->kernels->of[DPT_F32]->add(n, to, sum, to);
    else
        memcpy(to, sum, (size_t)n * sizeof *sum);
}

static void channels_item(void *ctx, int64_t item, int thread)
{
    const struct backward_job *j = ctx;
    const struct dpt_embedding_backward *a = j->a;
    const int64_t at = item * CHANNELS;
    (void)thread;
    for (int64_t i = 0; i < j->n; i++)
        if (j->first[i])
            sum_positions(j, i, 0, at, a->accumulate_wte, a->dwte + a->tokens[i] * a->c);
    for (int64_t t = 0; a->dwpe && t < a->t; t++)
        sum_positions(j, t, a->t, at, a->accumulate_wpe, a->dwpe + t * a->c);
}

static void zero_item(void *ctx, int64_t item, int thread)
{
    const struct backward_job *j = ctx;
    int64_t at = item * ZERO_ROWS, rows = dpt_min64(ZERO_ROWS, j->a->v - at);
    (void)thread;
    j->kernels->fill(rows * j->a->c, 0.0f, j->a->dwte + at * j->a->c);
}

void dpt_cpu_embedding_backward(struct dpt_stream *stream, const struct dpt_embedding_backward *a)
{
    struct dpt_cpu_stream *s = dpt_cpu_stream(stream);
    struct backward_job job = {.kernels = s->kernels, .a = a, .n = a->b * a->t};
    struct dpt_workspace w;
    DPT_ASSERT(job.n <= INT32_MAX && (!a->dwpe || a->t <= a->context));
    if (!dpt_stream_begin(&s->base, a->dtype, "embedding backward") ||
        !dpt_cpu_workspace(s, DPT_WORKSPACE_OP, (size_t)(a->v + 2 * job.n) * sizeof(int32_t), 0,
                           &w))
        return;
    job.last = (int32_t *)(void *)w.shared;
    job.next = job.last + a->v;
    job.first = job.next + job.n;
    link_positions(&job);
    if (!a->accumulate_wte)
        dpt_pool_run(s->pool, dpt_ceil_div(a->v, ZERO_ROWS), zero_item, &job);
    if (a->dwpe && !a->accumulate_wpe)
        s->kernels->fill((a->context - a->t) * a->c, 0.0f, a->dwpe + a->t * a->c);
    dpt_pool_run(s->pool, dpt_ceil_div(a->c, CHANNELS), channels_item, &job);
}
