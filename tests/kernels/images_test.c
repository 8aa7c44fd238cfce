/* Ops on images where the table of cases is silent: a packed weight gives the bits of the weight,
 * an image's bits do not depend on those beside it, the greatest of equal values and of NaN, a
 * variance far from zero, and an unknown dtype. */
#include "tests/kernels/harness.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { RESULTS = 3 };

/* A convolution's operands in the dtype, and its results as bytes. */
struct layer {
    struct dpt_windows of;
    int64_t in, out;
    enum dpt_dtype dtype;
    void *x, *weight, *dy;
    void *results[RESULTS]; /* y, dx, dw */
    size_t bytes[RESULTS];
};

static void *allocated(size_t bytes)
{
    void *p = aligned_alloc(64, (bytes + 63) / 64 * 64);
    assert_non_null(p);
    return p;
}

static void *upload_values(struct test_stream *t, enum dpt_dtype dtype, int64_t n, uint64_t which)
{
    float *plain = allocated((size_t)n * sizeof *plain);
    void *rounded = allocated((size_t)n * dpt_dtype_bytes(dtype));
    fill_random(plain, n, which);
    t->ops->cast(t->stream, n, plain, dtype, rounded);
    free(plain);
    return rounded;
}

static void layer_init(struct layer *l, struct test_stream *t, enum dpt_dtype dtype,
                       const struct dpt_windows *of, const int64_t channels[2])
{
    *l = (struct layer){.of = *of, .in = channels[0], .out = channels[1], .dtype = dtype};
    const int64_t windows =
        of->b * dpt_windows_along(of->h, of->stride) * dpt_windows_along(of->w, of->stride);
    const int64_t x = of->b * of->h * of->w * l->in, w = l->out * l->in * of->kernel * of->kernel;
    l->x = upload_values(t, dtype, x, 1);
    l->weight = upload_values(t, dtype, w, 2);
    l->dy = upload_values(t, dtype, windows * l->out, 3);
    l->bytes[0] = (size_t)(windows * l->out) * dpt_dtype_bytes(dtype);
    l->bytes[1] = (size_t)x * dpt_dtype_bytes(dtype);
    l->bytes[2] = (size_t)w * sizeof(float);
    for (int i = 0; i < RESULTS; i++)
        l->results[i] = allocated(l->bytes[i]);
}

static void layer_fini(struct layer *l)
{
    free(l->x);
    free(l->weight);
    free(l->dy);
    for (int i = 0; i < RESULTS; i++)
        free(l->results[i]);
}

static void layer_run(struct layer *l, struct test_stream *t, const void *packed)
{
    for (int i = 0; i < RESULTS; i++)
        memset(l->results[i], 0xff, l->bytes[i]);
    t->ops->conv_forward(t->stream, &(struct dpt_conv_forward){.of = l->of,
                                                               .in = l->in,
                                                               .out = l->out,
                                                               .dtype = l->dtype,
                                                               .x = l->x,
                                                               .weight = l->weight,
                                                               .y = l->results[0],
                                                               .packed = packed});
    t->ops->conv_backward(t->stream, &(struct dpt_conv_backward){.of = l->of,
                                                                 .in = l->in,
                                                                 .out = l->out,
                                                                 .dtype = l->dtype,
                                                                 .x = l->x,
                                                                 .weight = l->weight,
                                                                 .dy = l->dy,
                                                                 .dx = l->results[1],
                                                                 .dw = l->results[2],
                                                                 .packed = packed});
    test_stream_check(t);
}

static void keep(const struct layer *l, void *kept[RESULTS])
{
    for (int i = 0; i < RESULTS; i++) {
        kept[i] = allocated(l->bytes[i]);
        memcpy(kept[i], l->results[i], l->bytes[i]);
    }
}

static bool same_results(const struct layer *l, void *const kept[RESULTS])
{
    for (int i = 0; i < RESULTS; i++)
        if (memcmp(l->results[i], kept[i], l->bytes[i]) != 0)
            return false;
    return true;
}

static void drop(void *kept[RESULTS])
{
    for (int i = 0; i < RESULTS; i++)
        free(kept[i]);
}

static struct dpt_pack pack_of(const struct layer *l)
{
    return (struct dpt_pack){.kind = DPT_PACK_CONV,
                             .rows = l->out,
                             .cols = l->in * l->of.kernel * l->of.kernel,
                             .dtype = l->dtype,
                             .w = l->weight,
                             .kernel = l->of.kernel,
                             .stride = l->of.stride};
}

static const struct {
    struct dpt_windows of;
    int64_t channels[2];
} shapes[] = {
    {{2, 9, 8, 3, 1}, {5, 7}},     {{3, 9, 8, 3, 2}, {65, 200}}, {{2, 8, 8, 1, 1}, {64, 130}},
    {{2, 7, 7, 1, 2}, {32, 16}},   {{1, 17, 16, 7, 2}, {3, 64}}, {{2, 5, 5, 3, 3}, {8, 8}},
    {{5, 12, 12, 3, 1}, {40, 72}},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static void check_packed(struct test_stream *t, enum dpt_dtype dtype, int shape)
{
    struct layer l;
    void *plain[RESULTS];
    layer_init(&l, t, dtype, &shapes[shape].of, shapes[shape].channels);
    struct dpt_pack pack = pack_of(&l);
    const size_t bytes = t->ops->packed_bytes(t->stream, &pack);
    assert_true(bytes > 0 && bytes % 64 == 0);
    pack.packed = allocated(bytes); /* not one more: a sanitizer sees it */
    memset(pack.packed, 0xff, bytes);
    layer_run(&l, t, NULL);
    keep(&l, plain);
    t->ops->pack(t->stream, &pack);
    const int64_t weights = l.out * l.in * l.of.kernel * l.of.kernel;
    void *others = upload_values(t, dtype, weights, 5);
    memcpy(l.weight, others,
           (size_t)weights * dpt_dtype_bytes(dtype)); /* the packed form is read */
    layer_run(&l, t, pack.packed);
    if (!same_results(&l, plain))
        fail_msg("%s, shape %d: a packed weight gives other bits", dtype_name(dtype), shape);
    t->ops->pack(t->stream, &pack);
    layer_run(&l, t, pack.packed);
    assert_false(same_results(&l, plain));
    drop(plain);
    free(others);
    free(pack.packed);
    layer_fini(&l);
}

static void packed_weight_gives_same_bits(void **state)
{
    (void)state;
    for (int threads = 1; threads <= 3; threads++) {
        struct test_stream t = test_stream_open(threads);
        for (int dtype = 0; dtype < DPT_DTYPE_COUNT; dtype++)
            for (int i = 0; i < SHAPES; i++)
                check_packed(&t, dtype, i);
        test_stream_close(&t);
    }
}

/* The last image alone: its y and dx are those that it had beside the others. */
static void image_alone_has_same_bits(void **state)
{
    (void)state;
    struct test_stream t = test_stream_open(2);
    for (int dtype = 0; dtype < DPT_DTYPE_COUNT; dtype++)
        for (int i = 0; i < SHAPES; i++) {
            struct layer all, one;
            layer_init(&all, &t, dtype, &shapes[i].of, shapes[i].channels);
            layer_run(&all, &t, NULL);
            one = all;
            one.of.b = 1;
            const size_t images = (size_t)all.of.b, x = all.bytes[1] / images,
                         y = all.bytes[0] / images;
            void *results[RESULTS] = {allocated(y), allocated(x), allocated(all.bytes[2])};
            one.x = (char *)all.x + (images - 1) * x;
            one.dy = (char *)all.dy + (images - 1) * y;
            one.bytes[0] = y;
            one.bytes[1] = x;
            memcpy(one.results, results, sizeof results);
            layer_run(&one, &t, NULL);
            assert_memory_equal(results[0], (char *)all.results[0] + (images - 1) * y, y);
            assert_memory_equal(results[1], (char *)all.results[1] + (images - 1) * x, x);
            drop(results);
            layer_fini(&all);
        }
    test_stream_close(&t);
}

/* One channel of 3 x 3 pixels, one window that sees all: of equal values the first, of NaN that. */
static void greatest_of_equals_and_of_nan(void **state)
{
    (void)state;
    enum { C = 3, PIXELS = 9 };
    struct test_stream t = test_stream_open(1);
    const struct dpt_windows of = {1, 3, 3, 5, 3};
    float x[PIXELS][C], y[C], dy[C] = {1.0f, 2.0f, 3.0f}, dx[PIXELS][C];
    uint8_t taken[C];
    for (int i = 0; i < PIXELS; i++)
        for (int c = 0; c < C; c++)
            x[i][c] = -5.0f;
    x[4][1] = x[7][1] = -1.0f;
    x[2][2] = NAN;
    x[3][2] = 8.0f;
    t.ops->maxpool_forward(t.stream,
                           &(struct dpt_maxpool){.of = of, .c = C, .x = x, .y = y, .taken = taken});
    t.ops->maxpool_backward(
        t.stream, &(struct dpt_maxpool){.of = of, .c = C, .taken = taken, .dy = dy, .dx = dx});
    test_stream_check(&t);
    /* The window of 5 x 5 begins two pixels before the image. */
    assert_true(y[0] == -5.0f && y[1] == -1.0f && isnan(y[2]));
    assert_int_equal(taken[0], 12);
    assert_int_equal(taken[1], 18);
    assert_int_equal(taken[2], 14);
    for (int i = 0; i < PIXELS; i++)
        for (int c = 0; c < C; c++)
            assert_true(dx[i][c] == (i == (const int[]){0, 4, 2}[c] ? dy[c] : 0.0f));
    test_stream_close(&t);
}

/* Values around 10000: a sum of their squares in f32 would lose the variance. */
static void variance_far_from_zero(void **state)
{
    (void)state;
    enum { N = 5000, C = 2 };
    struct test_stream t = test_stream_open(2);
    float *x = allocated(N * C * sizeof *x), *y = allocated(N * C * sizeof *y);
    float ones[C] = {1.0f, 1.0f}, zeros[C] = {0.0f, 0.0f}, mean[C], rstd[C], var[C];
    for (int i = 0; i < N * C; i++)
        x[i] = 10000.0f + (i / C % 2 ? 0.5f : -0.5f);
    t.ops->batchnorm_forward(t.stream, &(struct dpt_batchnorm_forward){.n = N,
                                                                       .c = C,
                                                                       .eps = 1e-5f,
                                                                       .x = x,
                                                                       .gamma = ones,
                                                                       .beta = zeros,
                                                                       .y = y,
                                                                       .mean = mean,
                                                                       .rstd = rstd,
                                                                       .var = var});
    test_stream_check(&t);
    for (int c = 0; c < C; c++) {
        assert_float_equal(mean[c], 10000.0f, 2e-2f);
        assert_float_equal(var[c], 0.25f * N / (N - 1), 1e-3f);
    }
    free(x);
    free(y);
    test_stream_close(&t);
}

static void unknown_dtype_is_refused(void **state)
{
    (void)state;
    const enum dpt_dtype none = DPT_DTYPE_COUNT;
    struct test_stream t = test_stream_open(1);
    const struct dpt_windows of = {1, 1, 1, 1, 1};
    struct dpt_err err;
    const struct dpt_pack pack = {
        .kind = DPT_PACK_CONV, .rows = 1, .cols = 1, .dtype = none, .kernel = 1, .stride = 1};
    for (int op = 0; op < 9; op++) {
        switch (op) {
        case 0:
            t.ops->conv_forward(
                t.stream, &(struct dpt_conv_forward){.of = of, .in = 1, .out = 1, .dtype = none});
            break;
        case 1:
            t.ops->conv_backward(
                t.stream, &(struct dpt_conv_backward){.of = of, .in = 1, .out = 1, .dtype = none});
            break;
        case 2:
            t.ops->batchnorm_forward(
                t.stream, &(struct dpt_batchnorm_forward){.n = 2, .c = 1, .dtype = none});
            break;
        case 3:
            t.ops->batchnorm_backward(
                t.stream, &(struct dpt_batchnorm_backward){.n = 2, .c = 1, .dtype = none});
            break;
        case 4:
            t.ops->maxpool_forward(t.stream,
                                   &(struct dpt_maxpool){.of = of, .c = 1, .dtype = none});
            break;
        case 5:
            t.ops->maxpool_backward(t.stream,
                                    &(struct dpt_maxpool){.of = of, .c = 1, .dtype = none});
            break;
        case 6:
            t.ops->avgpool_forward(
                t.stream, &(struct dpt_avgpool){.b = 1, .pixels = 1, .c = 1, .dtype = none});
            break;
        case 7:
            t.ops->avgpool_backward(
                t.stream, &(struct dpt_avgpool){.b = 1, .pixels = 1, .c = 1, .dtype = none});
            break;
        default:
            assert_int_equal(t.ops->packed_bytes(t.stream, &pack), 0);
        }
        assert_int_equal(dpt_stream_sync(t.stream, &err), DPT_EUNSUPPORTED);
    }
    test_stream_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(packed_weight_gives_same_bits),
        cmocka_unit_test(image_alone_has_same_bits),
        cmocka_unit_test(greatest_of_equals_and_of_nan),
        cmocka_unit_test(variance_far_from_zero),
        cmocka_unit_test(unknown_dtype_is_refused),
    };
    return cmocka_run_group_tests_name("images", tests, NULL, NULL);
}
