/* See harness.h. */
#include "tests/kernels/harness.h"

#include "kernels/half.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool case_has(const struct op_case *c, enum dpt_dtype dtype)
{
    struct case_layout l;
    c->layout(c, &l);
    return dtype == DPT_F32 || !l.f32_only;
}

bool case_is_taken(const struct op_case *c, enum dpt_dtype dtype, int every)
{
    int before = 0, all = 0;
    for (int d = 0; d < DPT_DTYPE_COUNT; d++)
        if (case_has(c, (enum dpt_dtype)d)) {
            before += d < (int)dtype;
            all++;
        }
    return case_has(c, dtype) && (before + (c - op_cases)) % (every < all ? every : all) == 0;
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

uint64_t fill_random_seed = 11;

void fill_random(float *p, int64_t n, uint64_t which)
{
    struct dpt_rng_key key = dpt_rng_key(fill_random_seed, DPT_RNG_TEST, which, 0, 0);
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
        for (int64_t e = 0; l->squared[i] && e < l->in[i]; e++)
            ret->in[i][e] *= ret->in[i][e];
        for (int64_t e = 0; l->factor[i] != 0.0f && e < l->in[i]; e++)
            ret->in[i][e] *= l->factor[i];
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
        ret->ints[i] =
            (int32_t)(words[0] % (uint32_t)(l->ints_below - l->ints_from) + (uint32_t)l->ints_from);
    }
    if (l->ints > 1) { /* the ends of the range, too */
        ret->ints[0] = (int32_t)(l->ints_below - 1);
        ret->ints[1] = (int32_t)l->ints_from;
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
    if (t->errors > 0) {
        (void)fprintf(stderr, "%d cases ended in an error\n", t->errors);
        abort();
    }
}

void *test_upload(struct test_stream *t, const void *from, size_t bytes)
{
    void *p = NULL;
    struct dpt_err err;
    if (dpt_device_alloc(t->device, bytes, &p, &err) != DPT_OK)
        die(&err);
    t->ops->copy(t->stream, bytes, from, p);
    test_stream_check(t); /* `from` may go */
    return p;
}

void test_download(struct test_stream *t, const void *from, size_t bytes, void *to)
{
    t->ops->copy(t->stream, bytes, from, to);
    test_stream_check(t);
}

/* n values as the ops see them, in the device's memory. */
static void *upload_as(struct test_stream *t, enum dpt_dtype dtype, const float *x, int64_t n)
{
    if (dtype == DPT_F32)
        return test_upload(t, x, (size_t)n * sizeof *x);
    uint16_t *h = must_alloc((size_t)n * sizeof *h);
    for (int64_t i = 0; i < n; i++)
        h[i] = half_of(dtype, x[i]);
    void *p = test_upload(t, h, (size_t)n * sizeof *h);
    free(h);
    return p;
}

static void download_as(struct test_stream *t, enum dpt_dtype dtype, const void *from, int64_t n,
                        float *x)
{
    if (dtype == DPT_F32) {
        test_download(t, from, (size_t)n * sizeof *x, x);
        return;
    }
    uint16_t *h = must_alloc((size_t)n * sizeof *h);
    test_download(t, from, (size_t)n * sizeof *h, h);
    for (int64_t i = 0; i < n; i++)
        x[i] = float_of(dtype, h[i]);
    free(h);
}

void case_run(const struct op_case *c, struct test_stream *t, struct case_buffers *b,
              bool accumulate)
{
    const struct case_layout *l = &b->layout;
    const size_t ints_bytes = (size_t)l->ints * sizeof *b->ints;
    void *in[CASE_BUFFERS_MAX], *out[CASE_BUFFERS_MAX];
    for (int i = 0; i < l->inputs; i++)
        in[i] = l->in[i] > 0 ? upload_as(t, b->dtype, b->in[i], l->in[i]) : NULL;
    for (int i = 0; i < l->outputs; i++) {
        if (!accumulate || !l->accumulates[i])
            poison(b->out[i], l->out[i]);
        out[i] = NULL;
        if (l->out[i] > 0)
            out[i] = upload_as(t, l->f32[i] ? DPT_F32 : b->dtype, b->out[i], l->out[i]);
    }
    int32_t *ints = test_upload(t, b->ints, ints_bytes);
    struct dpt_err err;
    c->run(c, b->dtype, t->ops, t->stream, in, ints, accumulate, out);
    if (dpt_stream_sync(t->stream, &err) != DPT_OK) {
        (void)fprintf(stderr, "%s %s: %s\n", dtype_name(b->dtype), c->name, err.text);
        t->errors++;
    }
    for (int i = 0; i < l->outputs; i++) {
        const enum dpt_dtype dtype = l->f32[i] ? DPT_F32 : b->dtype;
        if (out[i])
            download_as(t, dtype, out[i], l->out[i], b->out[i]);
        dpt_device_free(t->device, out[i], (size_t)l->out[i] * dpt_dtype_bytes(dtype));
    }
    for (int i = 0; i < l->inputs; i++)
        dpt_device_free(t->device, in[i], (size_t)l->in[i] * dpt_dtype_bytes(b->dtype));
    dpt_device_free(t->device, ints, ints_bytes);
}

int case_judge(const struct op_case *c, const struct case_buffers *b,
               const double tolerance[DPT_DTYPE_COUNT], bool quiet)
{
    int bad = 0;
    double *in[CASE_BUFFERS_MAX], *out[CASE_BUFFERS_MAX];
    for (int k = 0; k < b->layout.inputs; k++) {
        in[k] = must_alloc((size_t)b->layout.in[k] * sizeof(double));
        for (int64_t e = 0; e < b->layout.in[k]; e++)
            in[k][e] = (double)b->in[k][e];
    }
    for (int k = 0; k < b->layout.outputs; k++) {
        out[k] = must_alloc((size_t)b->layout.out[k] * sizeof(double));
        memset(out[k], 0, (size_t)b->layout.out[k] * sizeof(double));
    }
    c->ref(c, in, b->ints, out);
    for (int k = 0; k < b->layout.outputs; k++) {
        const bool sharp = b->layout.f32[k] && !b->layout.rounded[k];
        const double e = relative_error(b->out[k], out[k], b->layout.out[k]);
        if (!(e <= tolerance[sharp ? DPT_F32 : b->dtype])) {
            if (!quiet)
                (void)fprintf(stderr, "%s %s: output %d is off by %.3g\n", dtype_name(b->dtype),
                              c->name, k, e);
            bad++;
        }
        free(out[k]);
    }
    for (int k = 0; k < b->layout.inputs; k++)
        free(in[k]);
    return bad;
}

int case_compare(const struct op_case *c, enum dpt_dtype dtype, struct test_stream *t,
                 const double tolerance[DPT_DTYPE_COUNT], bool quiet)
{
    struct case_buffers b;
    const int errors = t->errors;
    case_buffers_init(c, dtype, &b);
    case_run(c, t, &b, false);
    const int bad = case_judge(c, &b, tolerance, quiet) + t->errors - errors;
    case_buffers_fini(&b);
    return bad;
}

int case_adds(const struct op_case *c, struct test_stream *t, struct case_buffers *b)
{
    int bad = 0;
    float *want[CASE_BUFFERS_MAX];
    for (int k = 0; k < b->layout.outputs; k++) {
        want[k] = must_alloc((size_t)b->layout.out[k] * sizeof(float));
        memcpy(want[k], b->out[k], (size_t)b->layout.out[k] * sizeof(float));
        if (!b->layout.accumulates[k])
            continue;
        fill_random(b->out[k], b->layout.out[k], 99);
        for (int64_t e = 0; e < b->layout.out[k]; e++)
            want[k][e] = b->out[k][e] + want[k][e];
    }
    case_run(c, t, b, true);
    for (int k = 0; k < b->layout.outputs; k++) {
        int64_t e = 0;
        while (e < b->layout.out[k] && memcmp(&want[k][e], &b->out[k][e], sizeof(float)) == 0)
            e++;
        if (e < b->layout.out[k]) {
            (void)fprintf(stderr, "%s %s, accumulated: output %d [%lld] is %.9g, not %.9g\n",
                          dtype_name(b->dtype), c->name, k, (long long)e, (double)b->out[k][e],
                          (double)want[k][e]);
            bad++;
        }
        free(want[k]);
    }
    return bad;
}

int case_accumulates(const struct op_case *c, enum dpt_dtype dtype, struct test_stream *t)
{
    struct case_buffers b;
    case_buffers_init(c, dtype, &b);
    case_run(c, t, &b, false);
    const int bad = case_adds(c, t, &b);
    case_buffers_fini(&b);
    return bad;
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
