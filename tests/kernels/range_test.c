/* Ops over ranges: a range that is split at odd places gives the bits of the whole; the result of
 * each op is checked against a plain loop. */
#include "tests/kernels/harness.h"

#include "tests/kernels/ref.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N = 100003, CUTS = 6, BUFFERS = 4 };

/* Ends of the parts: odd, unaligned, a single element, nothing. */
static const int64_t cuts[CUTS] = {1, 1, 18, 32771, 77777, N};

/* Runs one op over elements [first, first + n) of the buffers b[i] (already moved to `first`). */
typedef void range_fn(struct test_stream *t, int64_t first, int64_t n, float *const b[BUFFERS]);

static struct dpt_dropout mask(int64_t first)
{
    return (struct dpt_dropout){
        .p = 0.3f, .key = dpt_rng_key(5, DPT_RNG_TEST, 9, 9, 9), .first = (uint64_t)first};
}

static void run_add(struct test_stream *t, int64_t first, int64_t n, float *const b[BUFFERS])
{
    (void)first;
    t->ops->add(t->stream, n, b[0], b[1], b[0]); /* in place */
}

static void run_fill(struct test_stream *t, int64_t first, int64_t n, float *const b[BUFFERS])
{
    (void)first;
    t->ops->fill(t->stream, n, 1.25f, b[0]);
}

static void run_copy(struct test_stream *t, int64_t first, int64_t n, float *const b[BUFFERS])
{
    (void)first;
    t->ops->copy(t->stream, (size_t)n * sizeof(float), b[1], b[0]);
}

static void run_normal(struct test_stream *t, int64_t first, int64_t n, float *const b[BUFFERS])
{
    t->ops->fill_normal(t->stream, n,
                        &(struct dpt_normal){dpt_rng_key(1, DPT_RNG_INIT, 2, 0, 0),
                                             (uint64_t)first + 7, 0.5f, 0.02f},
                        b[0]);
}

static void run_uniform(struct test_stream *t, int64_t first, int64_t n, float *const b[BUFFERS])
{
    t->ops->fill_uniform(
        t->stream, n,
        &(struct dpt_uniform){dpt_rng_key(1, DPT_RNG_INIT, 2, 0, 0), (uint64_t)first + 7, 0.25f},
        b[0]);
}

static void run_gelu(struct test_stream *t, int64_t first, int64_t n, float *const b[BUFFERS])
{
    (void)first;
    t->ops->gelu_forward(t->stream, &(struct dpt_gelu){.n = n, .x = b[1], .out = b[0]});
    t->ops->gelu_backward(t->stream,
                          &(struct dpt_gelu){.n = n, .x = b[1], .dy = b[2], .out = b[2]});
}

static void run_residual(struct test_stream *t, int64_t first, int64_t n, float *const b[BUFFERS])
{
    t->ops->residual(
        t->stream,
        &(struct dpt_residual){.n = n, .dropout = mask(first), .a = b[0], .b = b[1], .y = b[0]});
    t->ops->dropout_backward(
        t->stream,
        &(struct dpt_dropout_backward){.n = n, .dropout = mask(first), .dy = b[2], .dx = b[2]});
}

static void update_adam(struct test_stream *t, bool l2, int64_t n, float *const b[BUFFERS])
{
    t->ops->adamw(t->stream, &(struct dpt_adamw){.n = n,
                                                 .l2 = l2,
                                                 .lr = 1e-3f,
                                                 .beta1 = 0.9f,
                                                 .beta2 = 0.95f,
                                                 .eps = 1e-8f,
                                                 .weight_decay = 0.1f,
                                                 .bias1 = 0.1f,
                                                 .bias2 = 0.05f,
                                                 .grad_scale = 0.7f,
                                                 .param = b[0],
                                                 .m = b[1],
                                                 .v = b[2],
                                                 .grad = b[3]});
}

static void run_adamw(struct test_stream *t, int64_t first, int64_t n, float *const b[BUFFERS])
{
    (void)first;
    update_adam(t, false, n, b);
    update_adam(t, true, n, b);
}

static void run_sgd(struct test_stream *t, int64_t first, int64_t n, float *const b[BUFFERS])
{
    (void)first;
    struct dpt_sgd sgd = {.n = n,
                          .lr = 1e-3f,
                          .momentum = 0.9f,
                          .weight_decay = 0.1f,
                          .grad_scale = 0.7f,
                          .nesterov = true,
                          .param = b[0],
                          .m = b[1],
                          .grad = b[3]};
    t->ops->sgd(t->stream, &sgd);
    sgd.momentum = 0.0f;
    sgd.m = NULL;
    sgd.param = b[2];
    t->ops->sgd(t->stream, &sgd);
}

/* The ops that have a dtype, over the same buffers viewed as halves: `b`, which was moved by
 * `first` floats, is moved back to half number `first`. */
static void run_in(struct test_stream *t, enum dpt_dtype dtype, int64_t first, int64_t n,
                   float *const b[BUFFERS])
{
    uint16_t *h[BUFFERS];
    for (int i = 0; i < BUFFERS; i++)
        h[i] = (uint16_t *)(void *)(b[i] - first) + first;
    t->ops->cast(t->stream, n, b[3], dtype, h[0]);
    t->ops->gelu_forward(t->stream,
                         &(struct dpt_gelu){.n = n, .dtype = dtype, .x = h[1], .out = h[0]});
    t->ops->gelu_backward(
        t->stream, &(struct dpt_gelu){.n = n, .dtype = dtype, .x = h[1], .dy = h[2], .out = h[2]});
    t->ops->residual(
        t->stream,
        &(struct dpt_residual){
            .n = n, .dtype = dtype, .dropout = mask(first), .a = h[0], .b = h[1], .y = h[0]});
    t->ops->dropout_backward(
        t->stream, &(struct dpt_dropout_backward){
                       .n = n, .dtype = dtype, .dropout = mask(first), .dy = h[2], .dx = h[2]});
}

static void run_bf16(struct test_stream *t, int64_t first, int64_t n, float *const b[BUFFERS])
{
    run_in(t, DPT_BF16, first, n, b);
}

static void run_f16(struct test_stream *t, int64_t first, int64_t n, float *const b[BUFFERS])
{
    run_in(t, DPT_F16, first, n, b);
}

static void buffers_init(float *ret[BUFFERS])
{
    for (int i = 0; i < BUFFERS; i++) {
        ret[i] = malloc(N * sizeof(float));
        fill_random(ret[i], N, (uint64_t)i);
    }
    for (int i = 0; i < N; i++)
        ret[2][i] = fabsf(ret[2][i]); /* AdamW's second moment */
}

static void test_split_ranges(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        range_fn *run;
    } ranges[] = {{"add", run_add},
                  {"fill", run_fill},
                  {"copy", run_copy},
                  {"fill_normal", run_normal},
                  {"fill_uniform", run_uniform},
                  {"gelu", run_gelu},
                  {"residual", run_residual},
                  {"adamw", run_adamw},
                  {"sgd", run_sgd},
                  {"bf16", run_bf16},
                  {"f16", run_f16}};
    struct test_stream t = test_stream_open(3);
    for (size_t r = 0; r < sizeof ranges / sizeof *ranges; r++) {
        float *whole[BUFFERS], *parts[BUFFERS];
        buffers_init(whole);
        buffers_init(parts);
        ranges[r].run(&t, 0, N, whole);
        int64_t at = 0;
        for (int c = 0; c < CUTS; at = cuts[c++]) {
            float *const moved[BUFFERS] = {parts[0] + at, parts[1] + at, parts[2] + at,
                                           parts[3] + at};
            ranges[r].run(&t, at, cuts[c] - at, moved);
        }
        test_stream_check(&t);
        for (int i = 0; i < BUFFERS; i++) {
            if (memcmp(whole[i], parts[i], N * sizeof(float)) != 0)
                fail_msg("%s: buffer %d changes when the range is split", ranges[r].name, i);
            free(whole[i]);
            free(parts[i]);
        }
    }
    test_stream_close(&t);
}

static void test_plain_results(void **state)
{
    (void)state;
    struct test_stream t = test_stream_open(2);
    float *b[BUFFERS];
    buffers_init(b);
    float *sum = malloc(N * sizeof *sum);
    t.ops->add(t.stream, N, b[0], b[1], sum);
    for (int i = 0; i < N; i++)
        assert_true(sum[i] == b[0][i] + b[1][i]);
    t.ops->fill(t.stream, N, -2.5f, sum);
    for (int i = 0; i < N; i++)
        assert_true(sum[i] == -2.5f);
    t.ops->copy(t.stream, N * sizeof(float) - 1, b[3], sum); /* odd bytes: the last one stays */
    assert_memory_equal(sum, b[3], N * sizeof(float) - 1);
    test_stream_check(&t);
    free(sum);
    for (int i = 0; i < BUFFERS; i++)
        free(b[i]);
    test_stream_close(&t);
}

/* A layer's outputs, and the gradient of its inputs, of rows [at, at + n) alone. */
static void run_rows(struct test_stream *t, const int64_t shape[3], int64_t at, int64_t n,
                     float *const b[5])
{
    const int64_t in = shape[0], out = shape[1];
    const bool out_in = shape[2] != 0;
    const float *x = b[0] + at * in, *w = b[1];
    float *y = b[2] + at * out, *dx = b[3] + at * in;
    t->ops->linear_forward(
        t->stream, &(struct dpt_linear_forward){
                       .n = n, .in = in, .out = out, .x = x, .w = w, .y = y, .out_in = out_in});
    t->ops->linear_backward(t->stream, &(struct dpt_linear_backward){.n = n,
                                                                     .in = in,
                                                                     .out = out,
                                                                     .x = x,
                                                                     .w = w,
                                                                     .dy = y,
                                                                     .dx = dx,
                                                                     .dw = b[4],
                                                                     .out_in = out_in});
}

/* A row's bits are the same in calls of any number of rows. Shapes: in, out, out_in. */
static void test_rows_of_products(void **state)
{
    (void)state;
    enum { ROWS = 300, PARTS = 6 };
    static const int64_t parts[PARTS] = {1, 8, 13, 130, 258, ROWS};
    static const int64_t shapes[][3] = {{32, 96},      {300, 200},    {768, 130},
                                        {1000, 17},    {96, 1030},    {32, 96, 1},
                                        {300, 200, 1}, {1000, 17, 1}, {512, 130, 1}};
    struct test_stream t = test_stream_open(2);
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++) {
        const int64_t in = shapes[s][0], out = shapes[s][1];
        const int64_t floats[] = {ROWS * in, in * out, ROWS * out, ROWS * in, in * out};
        float *whole[5], *cut[5];
        for (int i = 0; i < 5; i++) {
            whole[i] = calloc((size_t)floats[i], sizeof(float));
            cut[i] = calloc((size_t)floats[i], sizeof(float));
            fill_random(whole[i], floats[i], (uint64_t)i);
            memcpy(cut[i], whole[i], (size_t)floats[i] * sizeof(float));
        }
        run_rows(&t, shapes[s], 0, ROWS, whole);
        int64_t at = 0;
        for (int p = 0; p < PARTS; at = parts[p++])
            run_rows(&t, shapes[s], at, parts[p] - at, cut);
        test_stream_check(&t);
        for (int i = 2; i < 4; i++)
            if (memcmp(whole[i], cut[i], (size_t)floats[i] * sizeof(float)) != 0)
                fail_msg("%d x %d%s: %s change with the number of rows", (int)in, (int)out,
                         shapes[s][2] ? " out_in" : "", i == 2 ? "outputs" : "gradients of inputs");
        for (int i = 0; i < 5; i++) {
            free(whole[i]);
            free(cut[i]);
        }
    }
    test_stream_close(&t);
}

/* cast, round_to, widen, and AdamW's copy: each element rounded as half.h says. */
static void test_rounding_ops(void **state)
{
    (void)state;
    struct test_stream t = test_stream_open(2);
    float *b[BUFFERS];
    buffers_init(b);
    uint16_t *half = malloc(N * sizeof *half);
    for (int dtype = DPT_BF16; dtype <= DPT_F16; dtype++) {
        t.ops->cast(t.stream, N, b[0], dtype, half);
        for (int i = 0; i < N; i++)
            assert_int_equal(half[i], half_of(dtype, b[0][i]));
        t.ops->widen(t.stream, N, dtype, half, b[1]);
        memcpy(b[2], b[0], N * sizeof(float));
        t.ops->round_to(t.stream, N, dtype, b[2]);
        for (int i = 0; i < N; i++) {
            const float wide = float_of(dtype, half[i]);
            assert_memory_equal(&b[1][i], &wide, sizeof wide);
        }
        assert_memory_equal(b[2], b[1], N * sizeof(float));
        memset(b[1], 0, N * sizeof(float));
        memset(b[2], 0, N * sizeof(float));
        t.ops->adamw(t.stream, &(struct dpt_adamw){.n = N,
                                                   .lr = 1e-3f,
                                                   .bias1 = 1.0f,
                                                   .bias2 = 1.0f,
                                                   .eps = 1e-8f,
                                                   .grad_scale = 1.0f,
                                                   .param = b[0],
                                                   .m = b[1],
                                                   .v = b[2],
                                                   .grad = b[3],
                                                   .copy = half,
                                                   .copy_dtype = dtype});
        for (int i = 0; i < N; i++)
            assert_int_equal(half[i], half_of(dtype, b[0][i]));
    }
    float same[3] = {0};
    t.ops->cast(t.stream, 3, b[0], DPT_F32, same);
    t.ops->round_to(t.stream, 3, DPT_F32, same);
    assert_memory_equal(same, b[0], sizeof same);
    test_stream_check(&t);
    free(half);
    for (int i = 0; i < BUFFERS; i++)
        free(b[i]);
    test_stream_close(&t);
}

/* Each order has the bits of a plain loop; the result may lie where a part does. */
static void test_ordered_sums(void **state)
{
    (void)state;
    struct test_stream t = test_stream_open(2);
    float *parts[REF_SUM_PARTS], *want = malloc(N * sizeof *want);
    for (int p = 0; p < REF_SUM_PARTS; p++)
        parts[p] = malloc(N * sizeof(float));
    for (int sum = 0; sum < REF_SUMS; sum++)
        for (int dtype = 0; dtype < DPT_DTYPE_COUNT; dtype++) {
            for (int p = 0; p < REF_SUM_PARTS; p++)
                fill_random(parts[p], N, (uint64_t)p);
            ref_ordered_sum(N, (const float *const *)parts, sum, (enum dpt_dtype)dtype, want);
            t.ops->ordered_sum(t.stream,
                               &(struct dpt_ordered_sum){.n = N,
                                                         .n_parts = REF_SUM_PARTS,
                                                         .parts = (const float *const *)parts,
                                                         .joins = ref_sum_joins[sum],
                                                         .dtype = (enum dpt_dtype)dtype,
                                                         .dst = parts[sum * 4]});
            test_stream_check(&t);
            assert_memory_equal(parts[sum * 4], want, N * sizeof(float));
        }
    for (int p = 0; p < REF_SUM_PARTS; p++)
        free(parts[p]);
    free(want);
    test_stream_close(&t);
}

/* Columns become orthonormal and keep their span; a column in the span of earlier ones becomes
 * zero; NaN spreads; the number of threads does not matter. */
static void test_orthonormal_columns(void **state)
{
    (void)state;
    enum { ROWS = 5003, COLUMNS = 3 };
    float *x = malloc((size_t)ROWS * COLUMNS * sizeof *x), *first = malloc(ROWS * sizeof *first);
    for (int threads = 1; threads <= 2; threads++) {
        struct test_stream t = test_stream_open(threads);
        t.ops->fill_normal(
            t.stream, (int64_t)ROWS * COLUMNS,
            &(struct dpt_normal){dpt_rng_key(8, DPT_RNG_TEST, 1, 0, 0), 0, 0.5f, 2.0f}, x);
        for (int i = 0; i < ROWS; i++) {
            first[i] = x[i * COLUMNS];
            x[i * COLUMNS + 2] = 3.0f * x[i * COLUMNS] - 0.5f * x[i * COLUMNS + 1];
        }
        t.ops->orthonormalise(t.stream, ROWS, COLUMNS, x);
        double dots[COLUMNS][COLUMNS] = {{0}}, along = 0, length = 0;
        for (int i = 0; i < ROWS; i++) {
            for (int a = 0; a < COLUMNS; a++)
                for (int b = 0; b < COLUMNS; b++)
                    dots[a][b] += (double)x[i * COLUMNS + a] * (double)x[i * COLUMNS + b];
            along += (double)x[i * COLUMNS] * (double)first[i];
            length += (double)first[i] * (double)first[i];
        }
        assert_true(fabs(dots[0][0] - 1) < 1e-6 && fabs(dots[1][1] - 1) < 1e-6);
        assert_true(fabs(dots[0][1]) < 1e-6 && fabs(along - sqrt(length)) < 1e-5 * along);
        assert_true(dots[2][2] == 0);
        x[COLUMNS] = NAN;
        t.ops->orthonormalise(t.stream, ROWS, COLUMNS, x);
        assert_true(isnan(x[0]) && isnan(x[1]));
        test_stream_check(&t);
        test_stream_close(&t);
    }
    free(x);
    free(first);
}

static void test_scale_from_any_offset(void **state)
{
    (void)state;
    struct test_stream t = test_stream_open(2);
    float *x = malloc(N * sizeof *x), *from = malloc(N * sizeof *from);
    uint16_t *half = malloc(N * sizeof *half);
    fill_random(from, N, 1);
    memcpy(x, from, N * sizeof *x);
    t.ops->scale(t.stream, N, DPT_F32, 1.7f, x);
    for (int i = 0; i < N; i++)
        assert_true(x[i] == from[i] * 1.7f);
    for (int dtype = DPT_BF16; dtype <= DPT_F16; dtype++) {
        for (int i = 0; i < N; i++)
            half[i] = half_of(dtype, from[i]);
        t.ops->scale(t.stream, N, dtype, 1.7f, half);
        for (int i = 0; i < N; i++) {
            const float wide = float_of(dtype, half_of(dtype, from[i]));
            assert_int_equal(half[i], half_of(dtype, wide * 1.7f));
        }
    }
    free(x);
    free(from);
    free(half);
    test_stream_close(&t);
}

static void test_sums_of_squares(void **state)
{
    (void)state;
    struct test_stream t = test_stream_open(3);
    static const int64_t blocks[] = {1, 7, 16, 33, 1000, 65536, N, N + 5};
    float *x = malloc(N * sizeof *x);
    double *got = malloc((N + 1) * sizeof *got), *moved = malloc((N + 1) * sizeof *moved);
    fill_random(x, N, 1);
    for (size_t b = 0; b < sizeof blocks / sizeof *blocks; b++) {
        int64_t block = blocks[b], count = (N + block - 1) / block;
        got[count] = -1.0;
        t.ops->sumsq_blocks(t.stream, N, block, x, got);
        for (int64_t i = 0; i < count; i++) {
            int64_t end = (i + 1) * block < N ? (i + 1) * block : N;
            long double want = 0.0L;
            for (int64_t e = i * block; e < end; e++)
                want += (long double)x[e] * (long double)x[e];
            assert_true(fabsl(want - (long double)got[i]) <= 1e-14L * want);
            /* A block's bits are its own: starting the op there gives them again. */
            t.ops->sumsq_blocks(t.stream, end - i * block, block, x + i * block, moved);
            assert_memory_equal(moved, got + i, sizeof *got);
            i += count > 1000 ? count / 100 : 0;
        }
        assert_true(got[count] == -1.0);
    }
    x[70] = INFINITY;
    x[2000] = NAN;
    t.ops->sumsq_blocks(t.stream, N, 1000, x, got);
    assert_true(isinf(got[0]) && isfinite(got[1]) && isnan(got[2]));
    free(x);
    free(got);
    free(moved);
    test_stream_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows_of_products),      cmocka_unit_test(test_split_ranges),
        cmocka_unit_test(test_plain_results),         cmocka_unit_test(test_orthonormal_columns),
        cmocka_unit_test(test_scale_from_any_offset), cmocka_unit_test(test_sums_of_squares),
        cmocka_unit_test(test_rounding_ops),          cmocka_unit_test(test_ordered_sums),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
