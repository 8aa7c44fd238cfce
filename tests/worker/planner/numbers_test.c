/* Numbers with units, sizes of a model for a number of parameters, FLOPs, days and dollars. */
#include "worker/planner/duration.h"
#include "worker/planner/scaled.h"
#include "worker/planner/shape.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void test_units(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        enum dpt_scaled_kind kind;
        double value;
    } cases[] = {
        {"70e9", DPT_SCALED_COUNT, 70e9},   {"70B", DPT_SCALED_COUNT, 70e9},
        {"2T", DPT_SCALED_COUNT, 2e12},     {"1.5K", DPT_SCALED_COUNT, 1500},
        {"80GB", DPT_SCALED_BYTES, 80e9},   {"80GiB", DPT_SCALED_BYTES, 85899345920.0},
        {"0.5TB", DPT_SCALED_BYTES, 5e11},  {"400Gbit", DPT_SCALED_BYTES, 50e9},
        {"989T", DPT_SCALED_FLOPS, 989e12}, {"3P", DPT_SCALED_FLOPS, 3e15},
        {"2.48", DPT_SCALED_PLAIN, 2.48},   {"1000", DPT_SCALED_BYTES, 1000},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct dpt_err err;
        double value = 0;
        assert_int_equal(dpt_scaled_parse(cases[i].text, cases[i].kind, &value, &err), DPT_OK);
        assert_true(fabs(value / cases[i].value - 1) < 1e-12);
    }
}

static void test_refused_numbers(void **state)
{
    (void)state;
    static const char *const texts[] = {"",      "B",   "70 B", "70GB", "-1",  "0",
                                        "1e400", "nan", "1e",   "7b",   "1e31"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct dpt_err err;
        double value = 3;
        assert_int_equal(dpt_scaled_parse(texts[i], DPT_SCALED_COUNT, &value, &err), DPT_EINVAL);
        assert_non_null(strstr(err.text, "K, M, B or T"));
        assert_true(value == 3);
    }
}

static void test_llama_3_70b_is_counted(void **state)
{
    (void)state;
    const struct dpt_shape_of_llama shape = {80, 8192, 64, 8, 28672, 128256};
    assert_true(dpt_shape_count(&shape) == 70553706496.0); /* of its config.json */
}

static void test_shape_meets_the_number(void **state)
{
    (void)state;
    const double numbers[] = {10e6, 124e6, 1e9, 8e9, 70e9, 175e9, 1e12};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        struct dpt_shape_of_llama shape;
        struct dpt_err err;
        assert_int_equal(dpt_shape_fit(numbers[i], 0, 0, &shape, &err), DPT_OK);
        assert_true(fabs(dpt_shape_count(&shape) / numbers[i] - 1) < 1e-3);
        assert_int_equal(shape.n_embd % shape.n_head, 0);
        assert_int_equal(shape.n_head % shape.n_kv_head, 0);
    }
}

static void test_given_layers_and_width(void **state)
{
    (void)state;
    struct dpt_shape_of_llama shape;
    struct dpt_err err;
    assert_int_equal(dpt_shape_fit(70e9, 80, 8192, &shape, &err), DPT_OK);
    assert_int_equal(shape.n_layer, 80);
    assert_int_equal(shape.n_embd, 8192);
    assert_int_equal(dpt_shape_given(2, 192, &shape, &err), DPT_OK);
    assert_int_equal(shape.n_head, 3);
    assert_int_equal(shape.n_inner, 672);
    assert_int_equal(dpt_shape_given(2, 100, &shape, &err), DPT_EINVAL);
    assert_non_null(strstr(err.text, "--width"));
    assert_int_equal(dpt_shape_fit(1e9, 80, 8192, &shape, &err), DPT_EINVAL);
    assert_non_null(strstr(err.text, "--params"));
    assert_int_equal(dpt_shape_fit(1e15, 0, 0, &shape, &err), DPT_EINVAL);
}

static void test_days_and_dollars(void **state)
{
    (void)state;
    assert_true(fabs(dpt_duration_days(2e12, 100e3) - 231.4814814815) < 1e-9);
    assert_true(dpt_duration_price(10, 4, 2.5) == 2400);
    /* 6 * 1e9 + 6 * 10 * 1000 * 100 = 6.006e9; 8 devices of 1e15 at one half. */
    struct dpt_duration_model model = {
        .trained = 1e9, .layers = 10, .channels = 1000, .seq_len = 100};
    assert_true(dpt_duration_flops(&model) == 6.006e9);
    assert_true(fabs(dpt_duration_rate(1e15, 0.5, 8, 6.006e9) - 666000.666) < 1e-3);
    model.frozen = 1e9; /* no gradients of weights: 4e9 more */
    assert_true(dpt_duration_flops(&model) == 10.006e9);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_units),
        cmocka_unit_test(test_refused_numbers),
        cmocka_unit_test(test_llama_3_70b_is_counted),
        cmocka_unit_test(test_shape_meets_the_number),
        cmocka_unit_test(test_given_layers_and_width),
        cmocka_unit_test(test_days_and_dollars),
    };
    return cmocka_run_group_tests_name("numbers", tests, NULL, NULL);
}
