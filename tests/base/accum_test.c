/* The exact accumulator against sums computed in rationals, and its freedom from order and
 * grouping. */
#include "base/accum.h"
#include "base/rng.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { TERMS_MAX = 16 };

static const struct recorded {
    int n;
    uint64_t sum;
    uint64_t term[TERMS_MAX];
} recorded[] = {
#include "accum_cases.inc"
};

static double double_of_bits(uint64_t bits)
{
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static void assert_bits(double value, uint64_t bits, size_t where)
{
    uint64_t got;
    memcpy(&got, &value, sizeof got);
    if (got != bits)
        fail_msg("case %zu: %.17g, expected %.17g", where, value, double_of_bits(bits));
}

static void known_sums(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof recorded / sizeof *recorded; i++) {
        struct dpt_accum up, down, negative;
        dpt_accum_init(&up);
        dpt_accum_init(&down);
        dpt_accum_init(&negative);
        for (int j = 0; j < recorded[i].n; j++) {
            dpt_accum_add(&up, double_of_bits(recorded[i].term[j]));
            dpt_accum_add(&down, double_of_bits(recorded[i].term[recorded[i].n - 1 - j]));
            dpt_accum_add(&negative, -double_of_bits(recorded[i].term[j]));
        }
        assert_bits(dpt_accum_value(&up), recorded[i].sum, i);
        assert_bits(dpt_accum_value(&down), recorded[i].sum, i);
        assert_bits(0.0 - dpt_accum_value(&negative), recorded[i].sum, i);
        dpt_accum_merge(&negative, &up); /* exactly nothing is left */
        dpt_accum_normalise(&negative);
        for (int j = 0; j < DPT_ACCUM_LIMBS; j++)
            assert_int_equal(negative.limb[j], 0);
    }
}

static void every_power_of_two(void **state)
{
    (void)state;
    for (int e = -1074; e <= 1023; e++) {
        struct dpt_accum accum;
        dpt_accum_init(&accum);
        dpt_accum_add(&accum, ldexp(1.0, e));
        assert_true(dpt_accum_value(&accum) == ldexp(1.0, e));
        dpt_accum_add(&accum, -ldexp(1.5, e));
        if (e > -1074)
            assert_true(dpt_accum_value(&accum) == -ldexp(0.5, e));
    }
}

/* Doubles over the whole range, or floats' squares: terms as a norm has them. */
static double term_of(uint64_t seed, uint64_t i)
{
    uint32_t block[4];
    dpt_philox(dpt_rng_key(seed, DPT_RNG_TEST, 0, 0, 0), i, block);
    uint64_t bits = (uint64_t)block[0] << 32 | block[1];
    double value = double_of_bits(bits);
    return isfinite(value) && seed % 2
               ? value
               : ldexp((double)(int32_t)block[2], (int)(block[3] % 90) - 60);
}

/* Values added in any order, divided among any number of partial accumulators and joined in any
 * order, give one value and one set of bytes. */
static void order_and_grouping_do_not_matter(void **state)
{
    (void)state;
    enum { N = 2000, GROUPS_MAX = 7 };
    for (uint64_t seed = 1; seed <= 20; seed++) {
        struct dpt_accum straight;
        dpt_accum_init(&straight);
        for (uint64_t i = 0; i < N; i++)
            dpt_accum_add(&straight, term_of(seed, i));
        dpt_accum_normalise(&straight);

        static int order[N];
        for (int i = 0; i < N; i++)
            order[i] = i;
        struct dpt_accum group[GROUPS_MAX];
        int groups = 1 + (int)(seed % GROUPS_MAX);
        for (int g = 0; g < groups; g++)
            dpt_accum_init(&group[g]);
        for (int i = N - 1; i >= 0; i--) { /* a random permutation, divided at random */
            uint32_t block[4];
            dpt_philox(dpt_rng_key(seed, DPT_RNG_TEST, 1, 0, 0), (uint64_t)i, block);
            int j = (int)(block[0] % (uint32_t)(i + 1));
            int pick = order[j];
            order[j] = order[i];
            struct dpt_accum *to = &group[block[1] % (uint32_t)groups];
            dpt_accum_add(to, term_of(seed, (uint64_t)pick));
            if (block[2] % 100 == 0)
                dpt_accum_normalise(to);
        }
        struct dpt_accum left = group[0], right = group[groups - 1];
        for (int g = 1; g < groups; g++)
            dpt_accum_merge(&left, &group[g]);
        for (int g = groups - 2; g >= 0; g--)
            dpt_accum_merge(&right, &group[g]);
        dpt_accum_normalise(&left);
        dpt_accum_normalise(&right);
        if (memcmp(&left, &straight, sizeof left) != 0 ||
            memcmp(&right, &straight, sizeof right) != 0)
            fail_msg("seed %llu: sums differ", (unsigned long long)seed);
    }
}

/* Against 128-bit integers: many terms of one sign, so that carries pile up. */
static void many_terms(void **state)
{
    (void)state;
    struct dpt_accum accum;
    __extension__ __int128 exact = 0;
    dpt_accum_init(&accum);
    for (uint64_t i = 0; i < 300000; i++) {
        uint32_t block[4];
        dpt_philox(dpt_rng_key(3, DPT_RNG_TEST, 0, 0, 0), i, block);
        int64_t value = (int64_t)((uint64_t)block[0] << 20 | block[1] >> 12);
        exact += value;
        dpt_accum_add(&accum, (double)value);
    }
    struct dpt_accum twice = accum;
    for (int doubling = 0; doubling < 31;
         doubling++) { /* self-merge passes the bound of pending carries */
        dpt_accum_merge(&twice, &twice);
        exact *= 2;
    }
    assert_true(dpt_accum_value(&twice) == (double)exact);
}

static void test_floats_add_in_any_order(void **state)
{
    (void)state;
    const float values[] = {1e30f, 1.0f, -1e30f, 0x1p-149f};
    struct dpt_accum accum;
    dpt_accum_init(&accum);
    for (int i = 0; i < 4; i++)
        dpt_accum_add(&accum, (double)values[i]);
    dpt_accum_add(&accum, -1.0);
    assert_true(dpt_accum_value(&accum) == 0x1p-149);
}

static void special_values_stick(void **state)
{
    (void)state;
    const double inf = (double)INFINITY;
    struct dpt_accum plus, minus, nothing;
    dpt_accum_init(&plus);
    dpt_accum_init(&minus);
    dpt_accum_init(&nothing);
    dpt_accum_add(&plus, inf);
    dpt_accum_add(&plus, -1e308);
    assert_true(dpt_accum_value(&plus) == inf);
    dpt_accum_add(&minus, -inf);
    assert_true(dpt_accum_value(&minus) == -inf);
    dpt_accum_normalise(&minus);
    assert_true(dpt_accum_value(&minus) == -inf);
    dpt_accum_merge(&nothing, &minus);
    assert_true(dpt_accum_value(&nothing) == -inf);
    dpt_accum_merge(&minus, &plus);
    assert_true(isnan(dpt_accum_value(&minus)));
    dpt_accum_init(&nothing);
    dpt_accum_add(&nothing, (double)NAN);
    dpt_accum_merge(&plus, &nothing);
    assert_true(isnan(dpt_accum_value(&plus)));
}

/* What another process sent as an accumulator may be anything. */
static void test_unsound_accumulator_is_refused(void **state)
{
    (void)state;
    struct dpt_accum accum;
    dpt_accum_init(&accum);
    assert_true(dpt_accum_is_sound(&accum));
    for (int i = 0; i < 1000; i++)
        dpt_accum_add(&accum, i % 2 ? 1e308 : -0x1p-1074);
    assert_true(dpt_accum_is_sound(&accum));
    dpt_accum_merge(&accum, &accum);
    assert_true(dpt_accum_is_sound(&accum));
    dpt_accum_normalise(&accum);
    assert_true(dpt_accum_is_sound(&accum));
    struct dpt_accum bad = accum;
    bad.limb[3] = (INT64_C(1) << 32) + 1; /* too much for no term since the last carry */
    assert_false(dpt_accum_is_sound(&bad));
    bad.limb[3] = INT64_MIN;
    assert_false(dpt_accum_is_sound(&bad));
    bad = accum;
    bad.pending = UINT32_MAX;
    assert_false(dpt_accum_is_sound(&bad));
    bad = accum;
    bad.flags = 8;
    assert_false(dpt_accum_is_sound(&bad));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(known_sums),
                                       cmocka_unit_test(every_power_of_two),
                                       cmocka_unit_test(order_and_grouping_do_not_matter),
                                       cmocka_unit_test(many_terms),
                                       cmocka_unit_test(test_floats_add_in_any_order),
                                       cmocka_unit_test(special_values_stick),
                                       cmocka_unit_test(test_unsound_accumulator_is_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
