/* Ops over elements, cut into chunks of a fixed size. An element does not depend on others, so a
 * range may be cut at any element. */
#include "base/draw.h"
#include "kernels/cpu/stream.h"

#include <string.h>

enum {
    CHUNK = 1 << 15,       /* elements: 128 KiB of f32 */
    ROUND_CHUNK = 1 << 11, /* elements rounded at once, in a buffer on the stack */
    SUM_CHUNK = 1 << 8     /* elements of each vector of an ordered sum, also on the stack */
};

/* The operands of an op over n elements of `dtype`; NULL where the op has no such operand. */
struct elements {
    int64_t n;
    enum dpt_dtype dtype;
    const void *a, *b;
    void *y;
    const void *op;                          /* other arguments, of the op's own type */
    const struct dpt_cpu_kernels *kernels;   /* kernels of the stream */
    const struct dpt_elem_kernels *of_dtype; /* kernels for dtype */
    void (*compute)(const struct elements *e, int64_t at, int64_t n); /* elements [at, at + n) */
};

static void chunk_item(void *ctx, int64_t item, int thread)
{
    const struct elements *e = ctx;
    (void)thread;
    e->compute(e, item * CHUNK, dpt_min64(CHUNK, e->n - item * CHUNK));
}

/* Fills in the kernels of *e and runs it as the op `name`. */
static void run_elements(struct dpt_stream *stream, const char *name, struct elements *e)
{
    struct dpt_cpu_stream *s = dpt_cpu_stream(stream);
    if (!dpt_cpu_posts(s, e->dtype, name))
        return;
    e->kernels = s->kernels;
    e->of_dtype = s->kernels->of[e->dtype];
    dpt_pool_run(s->pool, dpt_ceil_div(e->n, CHUNK), chunk_item, e);
}

static const void *a_at(const struct elements *e, int64_t at)
{
    return dpt_at(e->a, e->dtype, at);
}

static const void *b_at(const struct elements *e, int64_t at)
{
    return dpt_at(e->b, e->dtype, at);
}

static void *y_at(const struct elements *e, int64_t at)
{
    return dpt_at_out(e->y, e->dtype, at);
}

/* --- gelu --- */

static void gelu_range(const struct elements *e, int64_t at, int64_t n)
{
    e->of_dtype->gelu(n, a_at(e, at), y_at(e, at));
}

static void gelu_grad_range(const struct elements *e, int64_t at, int64_t n)
{
    e->of_dtype->gelu_grad(n, a_at(e, at), b_at(e, at), y_at(e, at));
}

void dpt_cpu_gelu_forward(struct dpt_stream *stream, const struct dpt_gelu *a)
{
    run_elements(stream, "gelu",
                 &(struct elements){
                     .n = a->n, .dtype = a->dtype, .a = a->x, .y = a->out, .compute = gelu_range});
}

void dpt_cpu_gelu_backward(struct dpt_stream *stream, const struct dpt_gelu *a)
{
    run_elements(stream, "gelu backward",
                 &(struct elements){.n = a->n,
                                    .dtype = a->dtype,
                                    .a = a->x,
                                    .b = a->dy,
                                    .y = a->out,
                                    .compute = gelu_grad_range});
}

/* --- swiglu: cut by rows --- */

/* Rows of a chunk. */
static int64_t swiglu_rows(const struct dpt_swiglu *a)
{
    return a->c < CHUNK ? CHUNK / a->c : 1;
}

static void swiglu_item(void *ctx, int64_t item, int thread)
{
    const struct dpt_cpu_op *op = ctx;
    const struct dpt_swiglu *a = op->a;
    const struct dpt_elem_kernels *k = op->kernels->of[a->dtype];
    const int64_t end = dpt_min64(a->n, (item + 1) * swiglu_rows(a));
    (void)thread;
    for (int64_t r = item * swiglu_rows(a); r < end; r++)
        k->swiglu(a->c, dpt_at(a->x, a->dtype, 2 * r * a->c),
                  dpt_at(a->x, a->dtype, (2 * r + 1) * a->c),
                  dpt_at_out(a->out, a->dtype, r * a->c));
}

static void swiglu_grad_item(void *ctx, int64_t item, int thread)
{
    const struct dpt_cpu_op *op = ctx;
    const struct dpt_swiglu *a = op->a;
    const struct dpt_elem_kernels *k = op->kernels->of[a->dtype];
    const int64_t end = dpt_min64(a->n, (item + 1) * swiglu_rows(a));
    (void)thread;
    for (int64_t r = item * swiglu_rows(a); r < end; r++) {
        const int64_t gate = 2 * r * a->c, up = gate + a->c;
        k->swiglu_grad(a->c, dpt_at(a->x, a->dtype, gate), dpt_at(a->x, a->dtype, up),
                       dpt_at(a->dy, a->dtype, r * a->c), dpt_at_out(a->out, a->dtype, gate),
                       dpt_at_out(a->out, a->dtype, up));
    }
}

void dpt_cpu_swiglu_forward(struct dpt_stream *stream, const struct dpt_swiglu *a)
{
    struct dpt_cpu_stream *s = dpt_cpu_stream(stream);
    if (dpt_cpu_posts(s, a->dtype, "swiglu"))
        dpt_cpu_run_op(s, dpt_ceil_div(a->n, swiglu_rows(a)), swiglu_item, a);
}

void dpt_cpu_swiglu_backward(struct dpt_stream *stream, const struct dpt_swiglu *a)
{
    struct dpt_cpu_stream *s = dpt_cpu_stream(stream);
    if (dpt_cpu_posts(s, a->dtype, "swiglu backward"))
        dpt_cpu_run_op(s, dpt_ceil_div(a->n, swiglu_rows(a)), swiglu_grad_item, a);
}

/* --- scale --- */

static void scale_range(const struct elements *e, int64_t at, int64_t n)
{
    e->of_dtype->scale(n, *(const float *)e->op, y_at(e, at));
}

void dpt_cpu_scale(struct dpt_stream *stream, int64_t n, enum dpt_dtype dtype, float factor,
                   void *x)
{
    run_elements(
        stream, "scale",
        &(struct elements){.n = n, .dtype = dtype, .y = x, .op = &factor, .compute = scale_range});
}

/* --- residual, dropout, add --- */

static void add_range(const struct elements *e, int64_t at, int64_t n)
{
    e->of_dtype->add(n, a_at(e, at), b_at(e, at), y_at(e, at));
}

static void drop_add_range(const struct elements *e, int64_t at, int64_t n)
{
    const struct dpt_dropout *d = e->op;
    e->of_dtype->drop_add(n, d, d->first + (uint64_t)at, a_at(e, at), b_at(e, at), y_at(e, at));
}

void dpt_cpu_residual(struct dpt_stream *stream, const struct dpt_residual *a)
{
    run_elements(stream, "residual",
                 &(struct elements){.n = a->n,
                                    .dtype = a->dtype,
                                    .a = a->a,
                                    .b = a->b,
                                    .y = a->y,
                                    .op = &a->dropout,
                                    .compute = a->dropout.p > 0.0f ? drop_add_range : add_range});
}

void dpt_cpu_dropout_backward(struct dpt_stream *stream, const struct dpt_dropout_backward *a)
{
    if (a->dropout.p > 0.0f)
        run_elements(stream, "dropout backward",
                     &(struct elements){.n = a->n,
                                        .dtype = a->dtype,
                                        .b = a->dy,
                                        .y = a->dx,
                                        .op = &a->dropout,
                                        .compute = drop_add_range});
    else if (a->dx != a->dy && dpt_stream_begin(stream, a->dtype, "dropout backward"))
        dpt_cpu_copy(stream, (size_t)a->n * dpt_dtype_bytes(a->dtype), a->dy, a->dx);
}

void dpt_cpu_add(struct dpt_stream *stream, int64_t n, const float *a, const float *b, float *dst)
{
    run_elements(stream, "add",
                 &(struct elements){.n = n, .a = a, .b = b, .y = dst, .compute = add_range});
}

/* --- ordered sums --- */

/* x (n) = x rounded to the elements' dtype; n is at most ROUND_CHUNK. */
static void round_values(const struct elements *e, int64_t n, float *x)
{
    uint16_t half[ROUND_CHUNK];
    if (e->dtype == DPT_F32)
        return;
    e->of_dtype->narrow(n, x, half);
    e->of_dtype->widen(n, half, x);
}

static void ordered_sum_range(const struct elements *e, int64_t at, int64_t count)
{
    const struct dpt_ordered_sum *a = e->op;
    float stack[DPT_SUM_DEPTH_MAX][SUM_CHUNK];
    for (const int64_t end = at + count; at < end; at += SUM_CHUNK) {
        const int64_t n = dpt_min64(SUM_CHUNK, end - at);
        int depth = 0;
        for (int p = 0; p < a->n_parts; p++) {
            DPT_ASSERT(depth < DPT_SUM_DEPTH_MAX && a->joins[p] <= depth);
            memcpy(stack[depth++], a->parts[p] + at, (size_t)n * sizeof(float));
            for (int join = a->joins[p]; join > 0; join--, depth--) {
                float *below = stack[depth - 2];
                e->kernels->of[DPT_F32]->add(n, below, stack[depth - 1], below);
                round_values(e, n, below);
            }
        }
        DPT_ASSERT(depth == 1);
        memcpy(a->dst + at, stack[0], (size_t)n * sizeof(float));
    }
}

void dpt_cpu_ordered_sum(struct dpt_stream *stream, const struct dpt_ordered_sum *a)
{
    run_elements(
        stream, "ordered_sum",
        &(struct elements){.n = a->n, .dtype = a->dtype, .op = a, .compute = ordered_sum_range});
}

/* --- copy, cast, fill --- */

struct copy_job {
    size_t bytes;
    const char *src;
    char *dst;
};

enum { COPY_CHUNK = CHUNK * 4 }; /* bytes */

static void copy_item(void *ctx, int64_t item, int thread)
{
    const struct copy_job *j = ctx;
    const int64_t at = item * COPY_CHUNK;
    (void)thread;
    memmove(j->dst + at, j->src + at, (size_t)dpt_min64(COPY_CHUNK, (int64_t)j->bytes - at));
}

void dpt_cpu_copy(struct dpt_stream *stream, size_t bytes, const void *src, void *dst)
{
    struct dpt_cpu_stream *s = dpt_cpu_stream(stream);
    struct copy_job job = {bytes, src, dst};
    if (dpt_cpu_posts(s, DPT_F32, "copy"))
        dpt_pool_run(s->pool, dpt_ceil_div((int64_t)bytes, COPY_CHUNK), copy_item, &job);
}

static void cast_range(const struct elements *e, int64_t at, int64_t n)
{
    e->of_dtype->narrow(n, (const float *)e->a + at, y_at(e, at));
}

void dpt_cpu_cast(struct dpt_stream *stream, int64_t n, const float *src, enum dpt_dtype dtype,
                  void *dst)
{
    run_elements(
        stream, "cast",
        &(struct elements){.n = n, .dtype = dtype, .a = src, .y = dst, .compute = cast_range});
}

static void widen_range(const struct elements *e, int64_t at, int64_t n)
{
    e->of_dtype->widen(n, a_at(e, at), (float *)e->y + at);
}

void dpt_cpu_widen(struct dpt_stream *stream, int64_t n, enum dpt_dtype dtype, const void *src,
                   float *dst)
{
    run_elements(
        stream, "widen",
        &(struct elements){.n = n, .dtype = dtype, .a = src, .y = dst, .compute = widen_range});
}

static void round_range(const struct elements *e, int64_t at, int64_t n)
{
    for (int64_t done = 0; done < n; done += ROUND_CHUNK)
        round_values(e, dpt_min64(ROUND_CHUNK, n - done), (float *)e->y + at + done);
}

void dpt_cpu_round_to(struct dpt_stream *stream, int64_t n, enum dpt_dtype dtype, float *x)
{
    run_elements(stream, "round",
                 &(struct elements){.n = n, .dtype = dtype, .y = x, .compute = round_range});
}

static void fill_range(const struct elements *e, int64_t at, int64_t n)
{
    e->kernels->fill(n, *(const float *)e->op, (float *)e->y + at);
}

void dpt_cpu_fill(struct dpt_stream *stream, int64_t n, float value, float *dst)
{
    run_elements(stream, "fill",
                 &(struct elements){.n = n, .y = dst, .op = &value, .compute = fill_range});
}

/* --- sums of squares --- */

struct sumsq_job {
    const struct dpt_cpu_kernels *kernels;
    int64_t n, block;
    const float *x;
    double *ret;
};

static void sumsq_item(void *ctx, int64_t item, int thread)
{
    const struct sumsq_job *j = ctx;
    int64_t at = item * j->block;
    (void)thread;
    j->ret[item] = j->kernels->sumsq(dpt_min64(j->block, j->n - at), j->x + at);
}

void dpt_cpu_sumsq_blocks(struct dpt_stream *stream, int64_t n, int64_t block, const float *x,
                          double *ret)
{
    struct dpt_cpu_stream *s = dpt_cpu_stream(stream);
    struct sumsq_job job = {.kernels = s->kernels, .n = n, .block = block, .x = x, .ret = ret};
    DPT_ASSERT(block > 0);
    if (dpt_cpu_posts(s, DPT_F32, "sumsq_blocks"))
        dpt_pool_run(s->pool, dpt_ceil_div(n, block), sumsq_item, &job);
}

/* --- random values --- */

static void normal_range(const struct elements *e, int64_t at, int64_t n)
{
    const struct dpt_normal *d = e->op;
    for (const int64_t end = at + n; at < end;) {
        uint64_t i = d->first + (uint64_t)at;
        float pair[2];
        dpt_rng_normal_pair(d->key, i & ~UINT64_C(1), pair);
        for (uint64_t which = i & 1; which < 2 && at < end; which++, at++)
            ((float *)e->y)[at] = d->mean + d->std * pair[which];
    }
}

void dpt_cpu_fill_normal(struct dpt_stream *stream, int64_t n, const struct dpt_normal *of,
                         float *dst)
{
    run_elements(stream, "fill_normal",
                 &(struct elements){.n = n, .y = dst, .op = of, .compute = normal_range});
}

static void uniform_range(const struct elements *e, int64_t at, int64_t n)
{
    const struct dpt_uniform *d = e->op;
    for (const int64_t end = at + n; at < end;) {
        const uint64_t i = d->first + (uint64_t)at;
        uint32_t words[4];
        dpt_philox(d->key, i / 4, words);
        for (uint64_t which = i % 4; which < 4 && at < end; which++, at++)
            ((float *)e->y)[at] = d->bound * dpt_draw_uniform(words[which]);
    }
}

void dpt_cpu_fill_uniform(struct dpt_stream *stream, int64_t n, const struct dpt_uniform *of,
                          float *dst)
{
    run_elements(stream, "fill_uniform",
                 &(struct elements){.n = n, .y = dst, .op = of, .compute = uniform_range});
}
