/* Ops over elements, cut into chunks of a fixed size. Elements do not meet, so a range may be split
 * anywhere. */
#include "base/draw.h"
#include "kernels/cpu/stream.h"

#include <string.h>

enum {
    CHUNK = 1 << 15,       /* elements: 128 KiB of f32 */
    ROUND_CHUNK = 1 << 11, /* rounded at once, on the stack */
    SUM_CHUNK = 1 << 8     /* of each vector of an ordered sum, likewise */
};

/* A range [at, at + n) of a chunk. */
static int64_t chunk_count(int64_t n)
{
    return dpt_ceil_div(n, CHUNK);
}

static int64_t chunk_size(int64_t n, int64_t at)
{
    return dpt_min64(CHUNK, n - at);
}

/* --- gelu --- */

struct gelu_job {
    const struct dpt_elem_kernels *kernels;
    enum dpt_dtype dtype;
    int64_t n;
    const void *x, *dy;
    void *out;
};

static void gelu_item(void *ctx, int64_t item, int thread)
{
    const struct gelu_job *j = ctx;
    int64_t at = item * CHUNK, n = chunk_size(j->n, at);
    (void)thread;
    const void *x = dpt_at(j->x, j->dtype, at);
    void *out = dpt_at_out(j->out, j->dtype, at);
    if (j->dy)
        j->kernels->gelu_grad(n, x, dpt_at(j->dy, j->dtype, at), out);
    else
        j->kernels->gelu(n, x, out);
}

static void run_gelu(struct dpt_cpu_stream *s, const struct dpt_gelu *a, const char *name,
                     const void *dy)
{
    if (!dpt_cpu_begin(s, a->dtype, name) || s->preparing)
        return;
    struct gelu_job job = {.kernels = s->kernels->of[a->dtype],
                           .dtype = a->dtype,
                           .n = a->n,
                           .x = a->x,
                           .dy = dy,
                           .out = a->out};
    dpt_pool_run(s->pool, chunk_count(a->n), gelu_item, &job);
}

void dpt_cpu_gelu_forward(struct dpt_stream *stream, const struct dpt_gelu *a)
{
    run_gelu(dpt_cpu_stream(stream), a, "gelu", NULL);
}

void dpt_cpu_gelu_backward(struct dpt_stream *stream, const struct dpt_gelu *a)
{
    run_gelu(dpt_cpu_stream(stream), a, "gelu backward", a->dy);
}

/* --- swiglu: cut by rows --- */

struct swiglu_job {
    const struct dpt_elem_kernels *kernels;
    const struct dpt_swiglu *a;
    int64_t rows; /* of a chunk */
    bool backward;
};

static void swiglu_item(void *ctx, int64_t item, int thread)
{
    const struct swiglu_job *j = ctx;
    const struct dpt_swiglu *a = j->a;
    const int64_t end = dpt_min64(a->n, (item + 1) * j->rows);
    (void)thread;
    for (int64_t r = item * j->rows; r < end; r++) {
        const int64_t gate = 2 * r * a->c, up = gate + a->c, y = r * a->c;
        const void *x = dpt_at(a->x, a->dtype, gate), *x_up = dpt_at(a->x, a->dtype, up);
        if (j->backward)
            j->kernels->swiglu_grad(a->c, x, x_up, dpt_at(a->dy, a->dtype, y),
                                    dpt_at_out(a->out, a->dtype, gate),
                                    dpt_at_out(a->out, a->dtype, up));
        else
            j->kernels->swiglu(a->c, x, x_up, dpt_at_out(a->out, a->dtype, y));
    }
}

static void run_swiglu(struct dpt_cpu_stream *s, const struct dpt_swiglu *a, const char *name,
                       bool backward)
{
    if (!dpt_cpu_begin(s, a->dtype, name) || s->preparing)
        return;
    struct swiglu_job job = {.kernels = s->kernels->of[a->dtype],
                             .a = a,
                             .rows = a->c < CHUNK ? CHUNK / a->c : 1,
                             .backward = backward};
    dpt_pool_run(s->pool, dpt_ceil_div(a->n, job.rows), swiglu_item, &job);
}

void dpt_cpu_swiglu_forward(struct dpt_stream *stream, const struct dpt_swiglu *a)
{
    run_swiglu(dpt_cpu_stream(stream), a, "swiglu", false);
}

void dpt_cpu_swiglu_backward(struct dpt_stream *stream, const struct dpt_swiglu *a)
{
    run_swiglu(dpt_cpu_stream(stream), a, "swiglu backward", true);
}

/* --- scale --- */

struct scale_job {
    const struct dpt_elem_kernels *kernels;
    enum dpt_dtype dtype;
    int64_t n;
    float factor;
    void *x;
};

static void scale_item(void *ctx, int64_t item, int thread)
{
    const struct scale_job *j = ctx;
    const int64_t at = item * CHUNK;
    (void)thread;
    j->kernels->scale(chunk_size(j->n, at), j->factor, dpt_at_out(j->x, j->dtype, at));
}

void dpt_cpu_scale(struct dpt_stream *stream, int64_t n, enum dpt_dtype dtype, float factor,
                   void *x)
{
    struct dpt_cpu_stream *s = dpt_cpu_stream(stream);
    if (!dpt_cpu_begin(s, dtype, "scale") || s->preparing)
        return;
    struct scale_job job = {
        .kernels = s->kernels->of[dtype], .dtype = dtype, .n = n, .factor = factor, .x = x};
    dpt_pool_run(s->pool, chunk_count(n), scale_item, &job);
}

/* --- residual, dropout, add --- */

struct add_job {
    const struct dpt_elem_kernels *kernels;
    enum dpt_dtype dtype;
    int64_t n;
    const struct dpt_dropout *dropout; /* NULL: none */
    const void *a, *b;                 /* a NULL: only b */
    void *y;
};

static void add_item(void *ctx, int64_t item, int thread)
{
    const struct add_job *j = ctx;
    int64_t at = item * CHUNK, n = chunk_size(j->n, at);
    const void *a = dpt_at(j->a, j->dtype, at), *b = dpt_at(j->b, j->dtype, at);
    void *y = dpt_at_out(j->y, j->dtype, at);
    (void)thread;
    if (j->dropout)
        j->kernels->drop_add(n, j->dropout, j->dropout->first + (uint64_t)at, a, b, y);
    else
        j->kernels->add(n, a, b, y);
}

/* Runs *job, but for its kernels, as the op `name`. */
static void run_add(struct dpt_cpu_stream *s, struct add_job *job, const char *name)
{
    if (!dpt_cpu_begin(s, job->dtype, name) || s->preparing)
        return;
    job->kernels = s->kernels->of[job->dtype];
    dpt_pool_run(s->pool, chunk_count(job->n), add_item, job);
}

void dpt_cpu_residual(struct dpt_stream *stream, const struct dpt_residual *a)
{
    struct add_job job = {.dtype = a->dtype,
                          .n = a->n,
                          .dropout = a->dropout.p > 0.0f ? &a->dropout : NULL,
                          .a = a->a,
                          .b = a->b,
                          .y = a->y};
    run_add(dpt_cpu_stream(stream), &job, "residual");
}

void dpt_cpu_dropout_backward(struct dpt_stream *stream, const struct dpt_dropout_backward *a)
{
    struct add_job job = {
        .dtype = a->dtype, .n = a->n, .dropout = &a->dropout, .b = a->dy, .y = a->dx};
    if (a->dropout.p > 0.0f)
        run_add(dpt_cpu_stream(stream), &job, "dropout backward");
    else if (a->dx != a->dy && dpt_cpu_begin(dpt_cpu_stream(stream), a->dtype, "dropout backward"))
        dpt_cpu_copy(stream, (size_t)a->n * dpt_dtype_bytes(a->dtype), a->dy, a->dx);
}

void dpt_cpu_add(struct dpt_stream *stream, int64_t n, const float *a, const float *b, float *dst)
{
    struct add_job job = {.dtype = DPT_F32, .n = n, .a = a, .b = b, .y = dst};
    run_add(dpt_cpu_stream(stream), &job, "add");
}

/* --- ordered sums --- */

struct sum_job {
    const struct dpt_cpu_kernels *kernels;
    const struct dpt_ordered_sum *a;
};

static void round_values(const struct sum_job *j, int64_t n, float *x)
{
    const struct dpt_elem_kernels *k = j->kernels->of[j->a->dtype];
    uint16_t half[SUM_CHUNK];
    if (j->a->dtype == DPT_F32)
        return;
    k->narrow(n, x, half);
    k->widen(n, half, x);
}

static void sum_item(void *ctx, int64_t item, int thread)
{
    const struct sum_job *j = ctx;
    const struct dpt_ordered_sum *a = j->a;
    int64_t at = item * CHUNK, end = at + chunk_size(a->n, at);
    float stack[DPT_SUM_DEPTH_MAX][SUM_CHUNK];
    (void)thread;
    for (; at < end; at += SUM_CHUNK) {
        const int64_t n = dpt_min64(SUM_CHUNK, end - at);
        int depth = 0;
        for (int p = 0; p < a->n_parts; p++) {
            DPT_ASSERT(depth < DPT_SUM_DEPTH_MAX && a->joins[p] <= depth);
            memcpy(stack[depth++], a->parts[p] + at, (size_t)n * sizeof(float));
            for (int join = a->joins[p]; join > 0; join--, depth--) {
                float *below = stack[depth - 2];
                j->kernels->of[DPT_F32]->add(n, below, stack[depth - 1], below);
                round_values(j, n, below);
            }
        }
        DPT_ASSERT(depth == 1);
        memcpy(a->dst + at, stack[0], (size_t)n * sizeof(float));
    }
}

void dpt_cpu_ordered_sum(struct dpt_stream *stream, const struct dpt_ordered_sum *a)
{
    struct dpt_cpu_stream *s = dpt_cpu_stream(stream);
    struct sum_job job = {.kernels = s->kernels, .a = a};
    if (dpt_cpu_begin(s, a->dtype, "ordered_sum") && !s->preparing)
        dpt_pool_run(s->pool, chunk_count(a->n), sum_item, &job);
}

/* --- copy, cast, fill --- */

struct copy_job {
    const struct dpt_cpu_kernels *kernels;
    int64_t n; /* elements, or bytes of a copy */
    const void *src;
    enum dpt_dtype dtype;
    void *dst;
    float value; /* fill */
};

static void copy_item(void *ctx, int64_t item, int thread)
{
    const struct copy_job *j = ctx;
    int64_t bytes_at = item * CHUNK * (int64_t)sizeof(float);
    int64_t bytes = dpt_min64(CHUNK * (int64_t)sizeof(float), j->n - bytes_at);
    (void)thread;
    memmove((char *)j->dst + bytes_at, (const char *)j->src + bytes_at, (size_t)bytes);
}

static void cast_item(void *ctx, int64_t item, int thread)
{
    const struct copy_job *j = ctx;
    int64_t at = item * CHUNK;
    (void)thread;
    j->kernels->of[j->dtype]->narrow(chunk_size(j->n, at), dpt_at(j->src, DPT_F32, at),
                                     dpt_at_out(j->dst, j->dtype, at));
}

static void widen_item(void *ctx, int64_t item, int thread)
{
    const struct copy_job *j = ctx;
    int64_t at = item * CHUNK;
    (void)thread;
    j->kernels->of[j->dtype]->widen(chunk_size(j->n, at), dpt_at(j->src, j->dtype, at),
                                    dpt_at_out(j->dst, DPT_F32, at));
}

static void round_item(void *ctx, int64_t item, int thread)
{
    const struct copy_job *j = ctx;
    const struct dpt_elem_kernels *k = j->kernels->of[j->dtype];
    int64_t at = item * CHUNK, end = at + chunk_size(j->n, at);
    uint16_t half[ROUND_CHUNK];
    (void)thread;
    for (; at < end; at += ROUND_CHUNK) {
        int64_t n = dpt_min64(ROUND_CHUNK, end - at);
        float *x = (float *)j->dst + at;
        k->narrow(n, x, half);
        k->widen(n, half, x);
    }
}

static void fill_item(void *ctx, int64_t item, int thread)
{
    const struct copy_job *j = ctx;
    int64_t at = item * CHUNK;
    (void)thread;
    j->kernels->fill(chunk_size(j->n, at), j->value, (float *)j->dst + at);
}

void dpt_cpu_copy(struct dpt_stream *stream, size_t bytes, const void *src, void *dst)
{
    struct dpt_cpu_stream *s = dpt_cpu_stream(stream);
    struct copy_job job = {.n = (int64_t)bytes, .src = src, .dst = dst};
    int64_t items = dpt_ceil_div((int64_t)bytes, CHUNK * (int64_t)sizeof(float));
    if (dpt_cpu_begin(s, DPT_F32, "copy") && !s->preparing)
        dpt_pool_run(s->pool, items, copy_item, &job);
}

void dpt_cpu_cast(struct dpt_stream *stream, int64_t n, const float *src, enum dpt_dtype dtype,
                  void *dst)
{
    struct dpt_cpu_stream *s = dpt_cpu_stream(stream);
    struct copy_job job = {.kernels = s->kernels, .n = n, .src = src, .dtype = dtype, .dst = dst};
    if (dpt_cpu_begin(s, dtype, "cast") && !s->preparing)
        dpt_pool_run(s->pool, chunk_count(n), cast_item, &job);
}

void dpt_cpu_widen(struct dpt_stream *stream, int64_t n, enum dpt_dtype dtype, const void *src,
                   float *dst)
{
    struct dpt_cpu_stream *s = dpt_cpu_stream(stream);
    struct copy_job job = {.kernels = s->kernels, .n = n, .src = src, .dtype = dtype, .dst = dst};
    if (dpt_cpu_begin(s, dtype, "widen") && !s->preparing)
        dpt_pool_run(s->pool, chunk_count(n), widen_item, &job);
}

void dpt_cpu_round_to(struct dpt_stream *stream, int64_t n, enum dpt_dtype dtype, float *x)
{
    struct dpt_cpu_stream *s = dpt_cpu_stream(stream);
    struct copy_job job = {.kernels = s->kernels, .n = n, .dtype = dtype, .dst = x};
    if (dpt_cpu_begin(s, dtype, "round") && !s->preparing && dtype != DPT_F32)
        dpt_pool_run(s->pool, chunk_count(n), round_item, &job);
}

void dpt_cpu_fill(struct dpt_stream *stream, int64_t n, float value, float *dst)
{
    struct dpt_cpu_stream *s = dpt_cpu_stream(stream);
    struct copy_job job = {.kernels = s->kernels, .n = n, .dst = dst, .value = value};
    if (dpt_cpu_begin(s, DPT_F32, "fill") && !s->preparing)
        dpt_pool_run(s->pool, chunk_count(n), fill_item, &job);
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
    if (dpt_cpu_begin(s, DPT_F32, "sumsq_blocks") && !s->preparing)
        dpt_pool_run(s->pool, dpt_ceil_div(n, block), sumsq_item, &job);
}

/* --- normal values --- */

struct normal_job {
    int64_t n;
    struct dpt_rng_key key;
    uint64_t first;
    float mean, std;
    float *dst;
};

static void normal_item(void *ctx, int64_t item, int thread)
{
    const struct normal_job *j = ctx;
    int64_t at = item * CHUNK, end = at + chunk_size(j->n, at);
    (void)thread;
    while (at < end) {
        uint64_t i = j->first + (uint64_t)at;
        float pair[2];
        dpt_rng_normal_pair(j->key, i & ~UINT64_C(1), pair);
        for (uint64_t which = i & 1; which < 2 && at < end; which++, at++)
            j->dst[at] = j->mean + j->std * pair[which];
    }
}

void dpt_cpu_fill_normal(struct dpt_stream *stream, int64_t n, struct dpt_rng_key key,
                         uint64_t first, float mean, float std, float *dst)
{
    struct dpt_cpu_stream *s = dpt_cpu_stream(stream);
    struct normal_job job = {
        .n = n, .key = key, .first = first, .mean = mean, .std = std, .dst = dst};
    if (dpt_cpu_begin(s, DPT_F32, "fill_normal") && !s->preparing)
        dpt_pool_run(s->pool, chunk_count(n), normal_item, &job);
}

/* --- uniform values --- */

struct uniform_job {
    int64_t n;
    struct dpt_rng_key key;
    uint64_t first;
    float bound, *dst;
};

static void uniform_item(void *ctx, int64_t item, int thread)
{
    const struct uniform_job *j = ctx;
    int64_t at = item * CHUNK, end = at + chunk_size(j->n, at);
    (void)thread;
    while (at < end) {
        const uint64_t i = j->first + (uint64_t)at;
        uint32_t words[4];
        dpt_philox(j->key, i / 4, words);
        for (uint64_t which = i % 4; which < 4 && at < end; which++, at++)
            j->dst[at] = j->bound * dpt_draw_uniform(words[which]);
    }
}

void dpt_cpu_fill_uniform(struct dpt_stream *stream, int64_t n, struct dpt_rng_key key,
                          uint64_t first, float bound, float *dst)
{
    struct dpt_cpu_stream *s = dpt_cpu_stream(stream);
    struct uniform_job job = {.n = n, .key = key, .first = first, .bound = bound, .dst = dst};
    if (dpt_cpu_begin(s, DPT_F32, "fill_uniform") && !s->preparing)
        dpt_pool_run(s->pool, chunk_count(n), uniform_item, &job);
}
