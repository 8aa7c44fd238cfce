/* The keyed permutation: a bijection for every size, another one each epoch, without visible bias.
 */
#include "worker/plan/sampler.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void check_bijection(uint64_t seed, int64_t n, int64_t epoch)
{
    bool *seen = calloc((size_t)n, sizeof *seen);
    assert_non_null(seen);
    for (int64_t i = 0; i < n; i++) {
        const int64_t x = dpt_sampler_index(seed, n, epoch * n + i);
        assert_true(x >= 0 && x < n);
        assert_false(seen[x]);
        seen[x] = true;
    }
    free(seen);
}

static void bijection_for_every_size(void **state)
{
    (void)state;
    for (int64_t n = 1; n <= 300; n++)
        for (int64_t epoch = 0; epoch < 2; epoch++)
            check_bijection(42, n, epoch);
    static const int64_t large[] = {1023, 1024, 1025, 4097, 65536, 65537, 100003};
    for (size_t i = 0; i < sizeof large / sizeof large[0]; i++)
        check_bijection(7, large[i], 5);
}

static void epochs_and_seeds_differ(void **state)
{
    (void)state;
    const int64_t n = 1000;
    int same_epoch = 0, same_seed = 0, fixed = 0;
    for (int64_t i = 0; i < n; i++) {
        same_epoch += dpt_sampler_index(1, n, i) == dpt_sampler_index(1, n, n + i);
        same_seed += dpt_sampler_index(1, n, i) == dpt_sampler_index(2, n, i);
        fixed += dpt_sampler_index(1, n, i) == i;
    }
    /* One each is expected; ten is beyond anything random. */
    assert_in_range(same_epoch, 0, 9);
    assert_in_range(same_seed, 0, 9);
    assert_in_range(fixed, 0, 9);
}

/* Over many epochs element `i` lands everywhere equally often: chi-square with n-1 degrees of
 * freedom, far above its 99.99 % point. */
static void check_uniform(int64_t n, int64_t i, double chi2_max)
{
    enum { EPOCHS = 4000, N_MAX = 64 };
    int count[N_MAX] = {0};
    for (int64_t epoch = 0; epoch < EPOCHS; epoch++)
        count[dpt_sampler_index(3, n, epoch * n + i)]++;
    double chi2 = 0;
    for (int64_t x = 0; x < n; x++) {
        const double expected = (double)EPOCHS / (double)n;
        chi2 += (count[x] - expected) * (count[x] - expected) / expected;
    }
    assert_true(chi2 < chi2_max);
}

static void places_are_uniform(void **state)
{
    (void)state;
    check_uniform(2, 0, 18);
    check_uniform(3, 1, 22);
    check_uniform(5, 0, 28);
    check_uniform(16, 0, 50);
    check_uniform(17, 16, 52);
    check_uniform(50, 25, 105);
    check_uniform(64, 63, 125);
}

/* Neighbours do not stay neighbours. */
static void neighbours_part(void **state)
{
    (void)state;
    const int64_t n = 10000;
    int near = 0;
    for (int64_t i = 0; i + 1 < n; i++)
        near += llabs(dpt_sampler_index(9, n, i) - dpt_sampler_index(9, n, i + 1)) <= 10;
    assert_in_range(near, 5, 60); /* 20 expected */
}

static void huge_sizes(void **state)
{
    (void)state;
    static const int64_t sizes[] = {INT64_C(1) << 40, (INT64_C(1) << 40) + 1, INT64_C(1) << 61};
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++)
        for (int64_t i = 0; i < 1000; i++) {
            const int64_t x = dpt_sampler_index(11, sizes[s], sizes[s] - 1 - i);
            assert_true(x >= 0 && x < sizes[s]);
        }
}

/* The data order of every run hangs on these: they never change. */
static void test_recorded_sample_order(void **state)
{
    (void)state;
    static const int64_t expected[] = {7, 2, 8, 1, 0, 6, 9, 5, 3, 4, 3, 5, 0, 4, 7, 9};
    for (int64_t i = 0; i < 16; i++)
        assert_int_equal(dpt_sampler_index(42, 10, i), expected[i]);
}

/* With epochs each sample comes at most once in an epoch, and each epoch is the beginning of its
 * own permutation. Without epochs, and if batches fill the samples, steps follow each other. */
static void epochs_begin_permutations(void **state)
{
    (void)state;
    enum { N = 61, BATCH = 21, STEPS = N / BATCH, EPOCHS = 5 };
    for (int64_t epoch = 0; epoch < EPOCHS; epoch++) {
        int seen[N] = {0}, others = 0;
        for (int64_t step = epoch * STEPS; step < (epoch + 1) * STEPS; step++)
            for (int64_t at = 0; at < BATCH; at++) {
                const int64_t number = dpt_sampler_number(N, STEPS, BATCH, step, at);
                assert_int_equal(number, epoch * N + (step - epoch * STEPS) * BATCH + at);
                const int64_t x = dpt_sampler_index(1, N, number);
                assert_int_equal(seen[x]++, 0);
                others += x != dpt_sampler_index(1, N, (number + N) % (EPOCHS * N));
            }
        assert_true(others > STEPS * BATCH / 2);
    }
    for (int64_t step = 0; step < 50; step++)
        for (int64_t at = 0; at < BATCH; at++) {
            assert_int_equal(dpt_sampler_number(N, 0, BATCH, step, at), step * BATCH + at);
            assert_int_equal(dpt_sampler_number(4 * BATCH, 4, BATCH, step, at), step * BATCH + at);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bijection_for_every_size),
        cmocka_unit_test(epochs_and_seeds_differ),
        cmocka_unit_test(places_are_uniform),
        cmocka_unit_test(neighbours_part),
        cmocka_unit_test(huge_sizes),
        cmocka_unit_test(test_recorded_sample_order),
        cmocka_unit_test(epochs_begin_permutations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
