/* Random values: normal and uniform values are those of base/rng; dropout's mask is regenerated and
 * has the right share of zeros. */
#include "tests/kernels/harness.h"

#include "tests/kernels/ref.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N = 100003 };

static void normal_values_are_those_of_the_stream(void **state)
{
    (void)state;
    enum { M = 1001 };
    struct test_stream t = test_stream_open(2);
    struct dpt_rng_key key = dpt_rng_key(3, DPT_RNG_INIT, 4, 0, 0);
    float x[M];
    t.ops->fill_normal(t.stream, M, &(struct dpt_normal){key, 5, 0.25f, 0.5f}, x);
    for (uint64_t i = 0; i < M; i++) {
        float pair[2];
        dpt_rng_normal_pair(key, (i + 5) & ~UINT64_C(1), pair);
        assert_true(x[i] == 0.25f + 0.5f * pair[(i + 5) & 1]);
    }
    test_stream_close(&t);
}

/* Uniform on [-bound, bound). */
static void uniform_values_fill_the_interval(void **state)
{
    (void)state;
    enum { M = 40001 };
    struct test_stream t = test_stream_open(2);
    struct dpt_rng_key key = dpt_rng_key(3, DPT_RNG_INIT, 4, 0, 0);
    static float x[M];
    double sum = 0.0, squares = 0.0;
    t.ops->fill_uniform(t.stream, M, &(struct dpt_uniform){key, 5, 0.75f}, x);
    for (uint64_t i = 0; i < M; i++) {
        uint32_t words[4];
        dpt_philox(key, (i + 5) / 4, words);
        const int32_t centred = (int32_t)(words[(i + 5) % 4] >> 8) - (1 << 23);
        assert_true(x[i] == 0.75f * ((float)centred / (float)(1 << 23)));
        sum += (double)x[i];
        squares += (double)x[i] * (double)x[i];
    }
    const double variance = 0.75 * 0.75 / 3.0;
    assert_true(fabs(sum / M) < 5.0 * sqrt(variance / M));
    assert_true(fabs(squares / M / variance - 1.0) < 5.0 * sqrt(0.8 / M));
    test_stream_close(&t);
}

static void dropout_regenerates_its_mask(void **state)
{
    (void)state;
    struct test_stream t = test_stream_open(2);
    const float p = 0.3f, keep = 1.0f / (1.0f - p);
    float *one = malloc(N * sizeof *one), *y = malloc(N * sizeof *y), *dx = malloc(N * sizeof *dx);
    float *zero = calloc(N, sizeof *zero);
    for (int i = 0; i < N; i++)
        one[i] = 1.0f;
    /* Around the place where the counter's low word overflows, too. */
    static const int64_t firsts[] = {0, 3, (INT64_C(4) << 32) - 50000};
    for (int f = 0; f < 3; f++) {
        struct dpt_dropout d = {
            .p = p, .key = dpt_rng_key(5, DPT_RNG_TEST, 9, 9, 9), .first = (uint64_t)firsts[f]};
        int64_t kept = 0;
        t.ops->residual(t.stream,
                        &(struct dpt_residual){.n = N, .dropout = d, .a = zero, .b = one, .y = y});
        t.ops->dropout_backward(
            t.stream, &(struct dpt_dropout_backward){.n = N, .dropout = d, .dy = one, .dx = dx});
        assert_memory_equal(y, dx, N * sizeof *y);
        for (int i = 0; i < N; i++) {
            assert_true(y[i] == (ref_drop(&d, i) > 0.0 ? keep : 0.0f));
            kept += y[i] > 0.0f;
        }
        double sigma = sqrt(N * 0.3 * 0.7);
        assert_true(fabs((double)kept - N * 0.7) < 5.0 * sigma);
    }
    free(one);
    free(y);
    free(dx);
    free(zero);
    test_stream_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(normal_values_are_those_of_the_stream),
        cmocka_unit_test(uniform_values_fill_the_interval),
        cmocka_unit_test(dropout_regenerates_its_mask),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
