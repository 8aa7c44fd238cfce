/* See harness.h. */
#include "tests/kernels/harness.h"

#include "kernels/half.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

bool case_has(const struct op_case *c, enum dpt_dtype dtype)
{
    struct case_layout l;
    c->layout(c, &l);
    return dtype == DPT_F32 || !l.f32_only;
}

const char *dtype_name(enum dpt_dtype dtype)
{
    static const char *const names[DPT_DTYPE_COUNT] = {"f32", "bf16", "f16"};
    return names[dtype];
}

uint16_t half_of(enum dpt_dtype dtype, float x)
{
    return dtype == DPT_BF16 ? dpt_bf16_of_f32(x) : dpt_f16_of_f32(x);
}

float float_of(enum dpt_dtype dtype, uint16_t half)
{
    return dtype == DPT_BF16 ? dpt_f32_of_bf16(half) : dpt_f32_of_f16(half);
}

void poison(float *p, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        p[i] = NAN;
}

void fill_random(float *p, int64_t n, uint64_t which)
{
    struct dpt_rng_key key = dpt_rng_key(11, DPT_RNG_TEST, which, 0, 0);
    for (int64_t i = 0; i < n; i += 2) {
        float pair[2];
        dpt_rng_normal_pair(key, (uint64_t)i, pair);
        p[i] = pair[0];
        if (i + 1 < n)
            p[i + 1] = pair[1];
    }
}

static void *must_alloc(size_t bytes)
{
    void *p = aligned_alloc(64, (bytes + 64) / 64 * 64);
    DPT_ASSERT(p);
    return p;
}

void case_buffers_init(const struct op_case *c, enum dpt_dtype dtype, struct case_buffers *ret)
{
    ret->dtype = dtype;
    c->layout(c, &ret->layout);
    const struct case_layout *l = &ret->layout;
    for (int i = 0; i < l->inputs; i++) {
        ret->in[i] = must_alloc((size_t)l->in[i] * sizeof(float));
        fill_random(ret->in[i], l->in[i], (uint64_t)i);
        for (int64_t e = 0; dtype != DPT_F32 && e < l->in[i]; e++)
            ret->in[i][e] = float_of(dtype, half_of(dtype, ret->in[i][e]));
    }
    for (int i = 0; i < l->outputs; i++) {
        ret->out[i] = must_alloc((size_t)l->out[i] * sizeof(float));
        poison(ret->out[i], l->out[i]);
    }
    ret->ints = must_alloc((size_t)l->ints * sizeof(int32_t));
    struct dpt_rng_key key = dpt_rng_key(13, DPT_RNG_TEST, 0, 0, 0);
    for (int64_t i = 0; i < l->ints; i++) {
        uint32_t words[4];
        dpt_philox(key, (uint64_t)i, words);
        ret->ints[i] = (int32_t)(words[0] % (uint32_t)l->ints_below);
    }
    if (l->ints > 1) { /* the ends of the range, too */
        ret->ints[0] = (int32_t)(l->ints_below - 1);
        ret->ints[1] = 0;
    }
}

void case_buffers_fini(struct case_buffers *b)
{
    for (int i = 0; i < b->layout.inputs; i++)
        free(b->in[i]);
    for (int i = 0; i < b->layout.outputs; i++)
        free(b->out[i]);
    free(b->ints);
}

static void die(const struct dpt_err *err)
{
    fprintf(stderr, "%s\n", err->text);
    abort();
}

struct test_stream test_stream_open(int threads)
{
    struct test_stream t;
    struct dpt_err err;
    if (dpt_device_cpu_create(&t.device, &err) != DPT_OK ||
        dpt_stream_create(t.device, threads, &t.stream, &err) != DPT_OK)
        die(&err);
    t.ops = dpt_device_ops(t.device);
    return t;
}

void test_stream_check(struct test_stream *t)
{
    struct dpt_err err;
    if (dpt_stream_sync(t->stream, &err) != DPT_OK)
        die(&err);
}

void test_stream_close(struct test_stream *t)
{
    test_stream_check(t);
    dpt_stream_destroy(&t->stream);
    dpt_device_destroy(&t->device);
}

/* n values as the ops see them: a copy in 16 bits, to be freed. */
static void *halves_of(enum dpt_dtype dtype, const float *x, int64_t n)
{
    uint16_t *h = must_alloc((size_t)n * sizeof *h);
    for (int64_t i = 0; i < n; i++)
        h[i] = half_of(dtype, x[i]);
    return h;
}

static void run_halves(const struct op_case *c, struct test_stream *t, struct case_buffers *b,
                       bool accumulate)
{
    const struct case_layout *l = &b->layout;
    void *in[CASE_BUFFERS_MAX], *out[CASE_BUFFERS_MAX];
    for (int i = 0; i < l->inputs; i++)
        in[i] = halves_of(b->dtype, b->in[i], l->in[i]);
    for (int i = 0; i < l->outputs; i++)
        out[i] = l->f32[i] ? b->out[i] : halves_of(b->dtype, b->out[i], l->out[i]);
    c->run(c, b->dtype, t->ops, t->stream, in, b->ints, accumulate, out);
    for (int i = 0; i < l->outputs; i++) {
        if (l->f32[i])
            continue;
        for (int64_t e = 0; e < l->out[i]; e++)
            b->out[i][e] = float_of(b->dtype, ((const uint16_t *)out[i])[e]);
        free(out[i]);
    }
    for (int i = 0; i < l->inputs; i++)
        free(in[i]);
}

void case_run(const struct op_case *c, struct test_stream *t, struct case_buffers *b,
              bool accumulate)
{
    void *in[CASE_BUFFERS_MAX], *out[CASE_BUFFERS_MAX];
    for (int i = 0; i < b->layout.inputs; i++)
        in[i] = b->in[i];
    for (int i = 0; i < b->layout.outputs; i++) {
        out[i] = b->out[i];
        if (!accumulate || !b->layout.accumulates[i])
            poison(b->out[i], b->layout.out[i]);
    }
    if (b->dtype == DPT_F32)
        c->run(c, DPT_F32, t->ops, t->stream, in, b->ints, accumulate, out);
    else
        run_halves(c, t, b, accumulate);
    test_stream_check(t);
}

double relative_error(const float *a, const double *b, int64_t n)
{
    double diff = 0.0, size = 0.0;
    for (int64_t i = 0; i < n; i++) {
        diff += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        size += b[i] * b[i];
    }
    return sqrt(diff) / fmax(sqrt(size), 1e-30);
}
