/* Philox against the published vectors; keys; the normal distribution and its fixed bits. */
#include "base/rng.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Random123, tests/kat_vectors, "philox4x32 10". */
static void philox_of_random123(void **state)
{
    (void)state;
    static const struct {
        uint32_t counter[4];
        struct dpt_rng_key key;
        uint32_t out[4];
    } cases[] = {
        {{0, 0, 0, 0}, {{0, 0}}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {{0xffffffff, 0xffffffff}},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {{0xa4093822, 0x299f31d0}},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint32_t out[4];
        dpt_philox_block(cases[i].key, cases[i].counter, out);
        assert_memory_equal(out, cases[i].out, sizeof out);
    }
}

static void counter_words(void **state)
{
    (void)state;
    struct dpt_rng_key key = dpt_rng_key(7, DPT_RNG_TEST, 1, 2, 3);
    const uint32_t counter[4] = {0x89abcdef, 0x01234567, 0, 0};
    uint32_t a[4], b[4];
    dpt_philox(key, 0x0123456789abcdef, a);
    dpt_philox_block(key, counter, b);
    assert_memory_equal(a, b, sizeof a);
}

static int compare_keys(const void *a, const void *b)
{
    return memcmp(a, b, sizeof(struct dpt_rng_key));
}

/* A change in the low or the high word of any input gives another key. */
static void keys_differ(void **state)
{
    (void)state;
    enum { N = 5 };
    static const uint64_t values[N] = {0, 1, 2, UINT64_C(1) << 32, UINT64_MAX};
    static struct dpt_rng_key keys[4 * N * N * N * N];
    size_t n = 0;
    for (int purpose = DPT_RNG_INIT; purpose <= DPT_RNG_TEST; purpose++)
        for (int s = 0; s < N; s++)
            for (int a = 0; a < N; a++)
                for (int b = 0; b < N; b++)
                    for (int c = 0; c < N; c++)
                        keys[n++] = dpt_rng_key(values[s], (enum dpt_rng_purpose)purpose, values[a],
                                                values[b], values[c]);
    qsort(keys, n, sizeof *keys, compare_keys);
    for (size_t i = 1; i < n; i++)
        assert_true(compare_keys(&keys[i - 1], &keys[i]) != 0);
}

/* Against the textbook formula with libm, and moments of the distribution. */
static void normal_values(void **state)
{
    (void)state;
    enum { N = 200000 };
    struct dpt_rng_key key = dpt_rng_key(42, DPT_RNG_TEST, 0, 0, 0);
    double sum[5] = {0};
    for (uint64_t i = 0; i < N; i += 2) {
        float pair[2];
        uint32_t block[4];
        dpt_rng_normal_pair(key, i, pair);
        dpt_philox(key, i / 4, block);
        double u = ((double)block[i % 4] + 1) * 0x1p-32;
        double angle = 6.28318530717958647693 * ((double)block[i % 4 + 1] * 0x1p-32);
        double radius = sqrt(-2 * log(u));
        assert_true(fabs((double)pair[0] - radius * cos(angle)) <= 4e-7);
        assert_true(fabs((double)pair[1] - radius * sin(angle)) <= 4e-7);
        for (int j = 0; j < 2; j++)
            for (int k = 1; k <= 4; k++)
                sum[k] += pow((double)pair[j], k);
    }
    assert_true(fabs(sum[1] / N) < 0.01);
    assert_true(fabs(sum[2] / N - 1) < 0.01);
    assert_true(fabs(sum[3] / N) < 0.03);
    assert_true(fabs(sum[4] / N - 3) < 0.1);
}

/* The bits themselves, recorded: a change here changes every run's initial weights. */
static void normal_bits(void **state)
{
    (void)state;
    uint32_t hash = 2166136261u; /* FNV-1a over the bits of a million values */
    struct dpt_rng_key key = dpt_rng_key(1, DPT_RNG_INIT, 5, 0, 0);
    for (uint64_t i = 0; i < 1000000; i += 2) {
        float pair[2];
        unsigned char raw[sizeof pair];
        dpt_rng_normal_pair(key, i, pair);
        memcpy(raw, pair, sizeof raw);
        for (size_t j = 0; j < sizeof raw; j++)
            hash = (hash ^ raw[j]) * 16777619u;
    }
    assert_int_equal(hash, 0x2a37c2acu);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(philox_of_random123), cmocka_unit_test(counter_words),
        cmocka_unit_test(keys_differ), cmocka_unit_test(normal_values),
        cmocka_unit_test(normal_bits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
