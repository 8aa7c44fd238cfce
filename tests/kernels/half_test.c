/* Sixteen-bit floats: half.h against the nearest value found by search, and every instruction set's
 * conversions against half.h, bit for bit. */
#include "kernels/cpu/kernels.h"
#include "kernels/half.h"
#include "tests/kernels/harness.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { VALUES = 1 << 16, DRAWN = 1 << 18 };

static const enum dpt_dtype halves[] = {DPT_BF16, DPT_F16};

/* Value `size` (of 0 … infinity's bits) of a format with the given bits of fraction, from its
 * definition. */
static double value_of_bits(uint32_t size, int fraction_bits, int exponent_bias)
{
    uint32_t exponent = size >> fraction_bits, fraction = size & ((1u << fraction_bits) - 1);
    if (exponent == 0)
        return ldexp(fraction, 1 - exponent_bias - fraction_bits);
    return ldexp((1u << fraction_bits) + fraction, (int)exponent - exponent_bias - fraction_bits);
}

/* Each finite value widens to itself. A value just below the middle between two neighbours goes to
 * the lower one, one at the middle to the even one, one just above to the upper one. */
static void check_format(enum dpt_dtype dtype, int fraction_bits, int exponent_bias)
{
    const uint32_t infinity = dtype == DPT_BF16 ? 0x7f80 : 0x7c00;
    for (uint32_t h = 0; h < infinity; h++) {
        double value = value_of_bits(h, fraction_bits, exponent_bias);
        double next = value_of_bits(h + 1, fraction_bits, exponent_bias);
        assert_true((double)float_of(dtype, (uint16_t)h) == value);
        assert_true((double)float_of(dtype, (uint16_t)(h | 0x8000)) == -value);
        assert_int_equal(half_of(dtype, (float)value), h);
        float middle = (float)((value + next) / 2);
        if ((double)middle != (value + next) / 2)
            continue; /* bf16's smallest subnormals: no f32 between them but the ends */
        for (uint32_t sign = 0; sign < 2; sign++) {
            float s = sign ? -1.0f : 1.0f;
            uint32_t bit = sign << 15;
            assert_int_equal(half_of(dtype, s * nextafterf(middle, 0.0f)), h | bit);
            assert_int_equal(half_of(dtype, s * middle), (h + (h & 1)) | bit);
            assert_int_equal(half_of(dtype, s * nextafterf(middle, INFINITY)), (h + 1) | bit);
        }
    }
    assert_int_equal(half_of(dtype, INFINITY), infinity);
    assert_int_equal(half_of(dtype, -INFINITY), infinity | 0x8000);
    assert_true(isinf(float_of(dtype, (uint16_t)infinity)));
    assert_true(isnan(float_of(dtype, half_of(dtype, NAN))));
    assert_true(isnan(float_of(dtype, half_of(dtype, dpt_f32_of_bits(0x7f800001)))));
}

static void test_formats_as_defined(void **state)
{
    (void)state;
    check_format(DPT_BF16, 7, 127);
    check_format(DPT_F16, 10, 15);
}

static void test_every_value_widens_alike(void **state)
{
    (void)state;
    uint16_t *all = malloc(VALUES * sizeof *all);
    float *got = malloc(VALUES * sizeof *got);
    for (int i = 0; i < VALUES; i++)
        all[i] = (uint16_t)i;
    for (int d = 0; d < 2; d++)
        for (int isa = 0; dpt_cpu_kernels_at(isa); isa++) {
            dpt_cpu_kernels_at(isa)->of[halves[d]]->widen(VALUES - 3, all + 3, got);
            for (int i = 3; i < VALUES; i++)
                if (dpt_f32_bits(got[i - 3]) != dpt_f32_bits(float_of(halves[d], all[i])))
                    fail_msg("%s %s: %04x widens to %08x", dpt_cpu_kernels_at(isa)->name,
                             dtype_name(halves[d]), (unsigned)i, dpt_f32_bits(got[i - 3]));
        }
    free(all);
    free(got);
}

/* Bits at random, and those around each place where rounding turns. */
static void test_values_narrow_alike(void **state)
{
    (void)state;
    enum { N = DRAWN + 3 * VALUES };
    float *x = malloc(N * sizeof *x);
    uint16_t *got = malloc(N * sizeof *got);
    const struct dpt_rng_key key = dpt_rng_key(3, DPT_RNG_TEST, 0, 0, 0);
    for (int d = 0; d < 2; d++) {
        for (int i = 0; i < DRAWN; i += 4) {
            uint32_t words[4];
            dpt_philox(key, (uint64_t)i, words);
            for (int k = 0; k < 4; k++)
                x[i + k] = dpt_f32_of_bits(k == 3 ? words[3] % (1u << 28) + 0x30000000u : words[k]);
        }
        for (int i = 0; i < VALUES; i++) {
            uint32_t value = dpt_f32_bits(float_of(halves[d], (uint16_t)i));
            uint32_t half = halves[d] == DPT_BF16 ? 1u << 15 : 1u << 12;
            for (uint32_t k = 0; k < 3; k++)
                x[DRAWN + 3 * i + (int)k] = dpt_f32_of_bits(value + half + k - 1);
        }
        for (int isa = 0; dpt_cpu_kernels_at(isa); isa++) {
            dpt_cpu_kernels_at(isa)->of[halves[d]]->narrow(N, x, got);
            for (int i = 0; i < N; i++)
                if (got[i] != half_of(halves[d], x[i]))
                    fail_msg("%s %s: %08x is rounded to %04x, not %04x",
                             dpt_cpu_kernels_at(isa)->name, dtype_name(halves[d]),
                             dpt_f32_bits(x[i]), got[i], half_of(halves[d], x[i]));
        }
    }
    free(x);
    free(got);
}

static void test_transpose16_at_each_isa(void **state)
{
    (void)state;
    enum { ROWS = 43, COLS = 61, LD = 70, LD_DST = 50 };
    static uint16_t from[ROWS * LD], to[COLS * LD_DST];
    for (int i = 0; i < ROWS * LD; i++)
        from[i] = (uint16_t)(i * 7);
    for (int isa = 0; dpt_cpu_kernels_at(isa); isa++) {
        memset(to, 0xff, sizeof to);
        dpt_cpu_kernels_at(isa)->transpose16(ROWS, COLS, from, LD, to, LD_DST);
        for (int j = 0; j < COLS; j++)
            for (int i = 0; i < LD_DST; i++)
                assert_int_equal(to[j * LD_DST + i], i < ROWS ? from[i * LD + j] : 0xffff);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formats_as_defined),
        cmocka_unit_test(test_every_value_widens_alike),
        cmocka_unit_test(test_values_narrow_alike),
        cmocka_unit_test(test_transpose16_at_each_isa),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
