/* Rotary embeddings and SwiGLU where a norm over many values would hide a few: angles of every
 * size, gates of every size; and rows in parts, which give the bits of the whole. */
#include "tests/kernels/harness.h"

#include "tests/kernels/ref.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { HALF = 64, T = 301, PARTS = 5 };

/* Ends of parts: one row, a few, nothing. */
static const int64_t parts[PARTS] = {1, 1, 9, 200, T};

static void *allocated(size_t n, size_t bytes)
{
    void *p = calloc(n, bytes);
    assert_non_null(p);
    return p;
}

static struct dpt_rope_table table_from(int64_t first, int64_t t, float *cosines, float *sines)
{
    struct dpt_rope_table table = {
        .t = t, .first = first, .half = HALF, .cos = cosines, .sin = sines};
    for (int i = 0; i < HALF; i++)
        table.inv_freq[i] = (float)pow(i % 2 ? 10000.0 : 500000.0, -(double)i / HALF);
    return table;
}

static void expect_nearest(const char *what, float got, double want, float angle)
{
    const float nearest = (float)want;
    if (got != nearest && got != nextafterf(nearest, INFINITY) &&
        got != nextafterf(nearest, -INFINITY))
        fail_msg("%s of %.9g is %.9g, should be %.9g", what, (double)angle, (double)got, want);
}

/* Positions up to the last that an f32 counts, among them those that are nearest to multiples of
 * pi/2: numerators of the continued fraction of pi. */
static void angles_of_every_size(void **state)
{
    (void)state;
    static const int64_t firsts[] = {0,       355,     710,     1000,    51819,   103993,
                                     104348,  131071,  208341,  312689,  573204,  833719,
                                     1146408, 4272943, 5419351, 1048576, 16776915};
    struct test_stream t = test_stream_open(2);
    float *cosines = allocated(T * HALF, sizeof *cosines);
    float *sines = allocated(T * HALF, sizeof *sines);
    for (size_t f = 0; f < sizeof firsts / sizeof firsts[0]; f++) {
        struct dpt_rope_table table = table_from(firsts[f], T, cosines, sines);
        t.ops->rope_table(t.stream, &table);
        test_stream_check(&t);
        for (int64_t i = 0; i < T * HALF; i++) {
            const float angle = (float)(firsts[f] + i / HALF) * table.inv_freq[i % HALF];
            expect_nearest("cosine", cosines[i], cos((double)angle), angle);
            expect_nearest("sine", sines[i], sin((double)angle), angle);
        }
    }
    free(cosines);
    free(sines);
    test_stream_close(&t);
}

/* A table's rows do not depend on where it begins; turning the other way is another sign. */
static void tables_in_parts(void **state)
{
    (void)state;
    struct test_stream t = test_stream_open(3);
    float *whole[2], *cut[2];
    for (int i = 0; i < 2; i++) {
        whole[i] = allocated(T * HALF, sizeof(float));
        cut[i] = allocated(T * HALF, sizeof(float));
    }
    struct dpt_rope_table table = table_from(40, T, whole[0], whole[1]);
    t.ops->rope_table(t.stream, &table);
    int64_t at = 0;
    for (int p = 0; p < PARTS; at = parts[p++]) {
        table = table_from(40 + at, parts[p] - at, cut[0] + at * HALF, cut[1] + at * HALF);
        t.ops->rope_table(t.stream, &table);
    }
    test_stream_check(&t);
    for (int i = 0; i < 2; i++)
        assert_memory_equal(whole[i], cut[i], T * HALF * sizeof(float));
    table = table_from(40, T, cut[0], cut[1]);
    for (int i = 0; i < HALF; i++)
        table.inv_freq[i] = -table.inv_freq[i];
    t.ops->rope_table(t.stream, &table);
    test_stream_check(&t);
    assert_memory_equal(whole[0], cut[0], T * HALF * sizeof(float));
    for (int i = 0; i < T * HALF; i++)
        assert_true(cut[1][i] == -whole[1][i]);
    for (int i = 0; i < 2; i++) {
        free(whole[i]);
        free(cut[i]);
    }
    test_stream_close(&t);
}

enum { HEADS = 3, STRIDE = HEADS * 2 * HALF + 7 };

/* Rotates and gates rows [at, at + n): rows of b[0] in place, of the gates b[1] into b[2], and
 * their gradient from b[2] into b[3]. */
static void run_rows(struct test_stream *t, enum dpt_dtype dtype, int64_t at, int64_t n,
                     const float *const table[2], char *const b[4])
{
    const int64_t width = STRIDE;
    const size_t bytes = dpt_dtype_bytes(dtype), row = (size_t)(at * width) * bytes;
    t->ops->rope(t->stream, &(struct dpt_rope){.n = n,
                                               .t = T - at,
                                               .heads = HEADS,
                                               .head_size = 2 * HALF,
                                               .stride = STRIDE,
                                               .dtype = dtype,
                                               .cos = table[0] + at * HALF,
                                               .sin = table[1] + at * HALF,
                                               .x = b[0] + row});
    struct dpt_swiglu gates = {
        .n = n, .c = width, .dtype = dtype, .x = b[1] + 2 * row, .out = b[2] + row};
    t->ops->swiglu_forward(t->stream, &gates);
    gates.dy = gates.out;
    gates.out = b[3] + 2 * row;
    t->ops->swiglu_backward(t->stream, &gates);
}

static void rows_in_parts(void **state)
{
    (void)state;
    enum { BUFFERS = 4, FLOATS = 2 * T * STRIDE };
    struct test_stream t = test_stream_open(3);
    float *cosines = allocated(T * HALF, sizeof(float)),
          *sines = allocated(T * HALF, sizeof(float));
    const float *const table[2] = {cosines, sines};
    const struct dpt_rope_table angles = table_from(3, T, cosines, sines);
    t.ops->rope_table(t.stream, &angles);
    for (int dtype = 0; dtype < DPT_DTYPE_COUNT; dtype++) {
        float *values = allocated(FLOATS, sizeof *values);
        char *whole[BUFFERS], *cut[BUFFERS];
        fill_random(values, FLOATS, 3);
        for (int i = 0; i < BUFFERS; i++) {
            whole[i] = allocated(FLOATS, sizeof(float));
            cut[i] = allocated(FLOATS, sizeof(float));
            t.ops->cast(t.stream, FLOATS, values, (enum dpt_dtype)dtype, whole[i]);
            t.ops->cast(t.stream, FLOATS, values, (enum dpt_dtype)dtype, cut[i]);
        }
        run_rows(&t, (enum dpt_dtype)dtype, 0, T, table, whole);
        int64_t at = 0;
        for (int p = 0; p < PARTS; at = parts[p++])
            run_rows(&t, (enum dpt_dtype)dtype, at, parts[p] - at, table, cut);
        test_stream_check(&t);
        for (int i = 0; i < BUFFERS; i++) {
            assert_memory_equal(whole[i], cut[i], FLOATS * sizeof(float));
            free(whole[i]);
            free(cut[i]);
        }
        free(values);
    }
    free(cosines);
    free(sines);
    test_stream_close(&t);
}

/* From where the exponential ends on either side. */
static void gates_of_every_size(void **state)
{
    (void)state;
    enum { N = 24001 };
    struct test_stream t = test_stream_open(1);
    float *x = allocated(2 * N, sizeof *x), *y = allocated(N, sizeof *y);
    float *ones = allocated(N, sizeof *ones), *dx = allocated(2 * N, sizeof *dx);
    for (int i = 0; i < N; i++) {
        x[i] = (float)(i - N / 2) * 1e-2f;
        x[N + i] = ones[i] = 1.0f;
    }
    t.ops->swiglu_forward(t.stream, &(struct dpt_swiglu){.n = 1, .c = N, .x = x, .out = y});
    t.ops->swiglu_backward(t.stream,
                           &(struct dpt_swiglu){.n = 1, .c = N, .x = x, .dy = ones, .out = dx});
    test_stream_check(&t);
    for (int i = 0; i < N; i++) {
        const double g = (double)x[i], s = 1.0 / (1.0 + exp(-g)), silu = ref_silu(g);
        const double near = g < -87.0 ? 1e-36 : 4e-7 * fabs(silu);
        assert_true(fabs((double)y[i] - silu) <= near);
        assert_true(fabs((double)dx[N + i] - silu) <= near);
        assert_true(fabs((double)dx[i] - ref_silu_slope(g)) <=
                    4e-7 * (s + fabs(g) * s * (1.0 - s)) + (g < -87.0 ? 1e-36 : 0.0));
    }
    free(x);
    free(y);
    free(ones);
    free(dx);
    test_stream_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(angles_of_every_size),
        cmocka_unit_test(tables_in_parts),
        cmocka_unit_test(rows_in_parts),
        cmocka_unit_test(gates_of_every_size),
    };
    return cmocka_run_group_tests_name("rows", tests, NULL, NULL);
}
