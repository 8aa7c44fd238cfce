/* Time, price and goodput of a run, by hand, and options that do not fit together. */
#include "worker/planner/estimate.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static const struct dpt_fit_model model = {.parameters = 1e9,
                                           .layers = 10,
                                           .channels = 1000,
                                           .seq_len = 100,
                                           .slots = 8,
                                           .tokens_per_step = 1000000,
                                           .steps = 864,
                                           .checkpoint_bytes = 12000000000,
                                           .timeout_s = 5};

static void assert_near(double value, double expected)
{
    if (fabs(value / expected - 1) > 1e-6)
        fail_msg("%.9g, expected %.9g", value, expected);
}

static void test_time_by_hand(void **state)
{
    (void)state;
    const struct dpt_machines machines = {.shape = {4, 8}, .tokens_per_s = 100e3, .price = 20};
    struct dpt_estimate e;
    struct dpt_err err;
    assert_int_equal(dpt_estimate(&machines, &model, 2e12, &e, &err), DPT_OK);
    assert_near(e.days, 231.481481);
    assert_near(e.step_s, 10);
    assert_near(e.price, 231.481481 * 24 * 4 * 20);
    assert_false(e.has_failures);
    assert_int_equal(dpt_estimate(&machines, &model, 0, &e, &err), DPT_OK);
    assert_near(e.days, 0.1); /* 864 steps of 10 s */
}

static void test_time_of_flops(void **state)
{
    (void)state;
    const struct dpt_machines machines = {.shape = {1, 8}, .flops = 1e15, .mfu = 0.5};
    struct dpt_estimate e;
    struct dpt_err err;
    assert_int_equal(dpt_estimate(&machines, &model, 1e9, &e, &err), DPT_OK);
    assert_near(e.tokens_per_s, 666000.666);
    assert_int_equal(e.waves, 1);
}

/* Ranks without a slot do not compute: 8 slots on 512 ranks are 8 ranks at a time, 32 on 24 are 16.
 */
static void test_spares_and_waves(void **state)
{
    (void)state;
    struct dpt_machines machines = {.shape = {64, 8}, .flops = 1e15, .mfu = 0.5};
    struct dpt_fit_model other = model;
    struct dpt_estimate e;
    struct dpt_err err;
    assert_int_equal(dpt_estimate(&machines, &other, 1e9, &e, &err), DPT_OK);
    assert_near(e.tokens_per_s, 666000.666);
    assert_int_equal(e.waves, 1);
    other.slots = 32;
    machines.shape = (struct dpt_world_shape){3, 8};
    assert_int_equal(dpt_estimate(&machines, &other, 1e9, &e, &err), DPT_OK);
    assert_near(e.tokens_per_s, 2 * 666000.666);
    assert_int_equal(e.waves, 2);
}

/* 1e9 trained and 3e9 frozen parameters: 6e9 + 12e9 + 6e6 FLOPs a token. */
static void test_frozen_parameters_take_time(void **state)
{
    (void)state;
    const struct dpt_machines machines = {.shape = {1, 8}, .flops = 1e15, .mfu = 0.5};
    struct dpt_fit_model other = model;
    struct dpt_estimate e;
    struct dpt_err err;
    other.frozen_parameters = 3e9;
    assert_int_equal(dpt_estimate(&machines, &other, 1e9, &e, &err), DPT_OK);
    assert_near(e.flops_per_token, 18.006e9);
    assert_near(e.tokens_per_s, 4e15 / 18.006e9);
}

static void test_one_machine_has_no_copies(void **state)
{
    (void)state;
    const struct dpt_machines machines = {
        .shape = {1, 8}, .tokens_per_s = 100e3, .mtbf_h = 100, .save_s = 60};
    struct dpt_estimate e;
    struct dpt_err err;
    assert_int_equal(dpt_estimate(&machines, &model, 0, &e, &err), DPT_OK);
    assert_true(e.has_failures && !e.has_copies);
    assert_true(e.copies.goodput == 0 && e.reload.goodput > 0);
}

static void test_failures_by_hand(void **state)
{
    (void)state;
    /* 10 machines of 100 h: 36,000 s. 12 GB at 0.1 GB/s: 120 s. */
    const struct dpt_machines machines = {.shape = {10, 1},
                                          .tokens_per_s = 100e3,
                                          .mtbf_h = 100,
                                          .save_rate = 1e8,
                                          .interval_s = 3480,
                                          .restart_s = 360};
    struct dpt_estimate e;
    struct dpt_err err;
    assert_int_equal(dpt_estimate(&machines, &model, 0, &e, &err), DPT_OK);
    assert_near(e.mtbf_s, 36000);
    assert_near(e.save_s, 120);
    assert_near(e.young_s, 2939.38769);
    assert_near(e.recovery_s, 5);
    /* 3480 / (36000 e^0.01 (e^0.1 - 1)) */
    assert_near(e.restart.goodput, 3480 / (36000 * 1.0100501671 * 0.1051709181));
    assert_near(e.restart.days, 0.1 / e.restart.goodput);
    /* 10 / (36000 e^(5/36000) (e^(10/36000) - 1)) * 3480 / 3600 */
    assert_near(e.copies.goodput, 0.9997222 * 3480 / 3600);
    assert_true(e.restart.goodput < e.reload.goodput && e.reload.goodput < e.copies.goodput);
}

static void test_options_that_do_not_fit(void **state)
{
    (void)state;
    static const struct {
        struct dpt_machines machines;
        const char *word;
    } cases[] = {
        {{.flops = 1, .tokens_per_s = 1}, "one of --tokens-per-s and --flops"},
        {{.mfu = 0.5}, "--mfu"},
        {{.price = 1}, "--price needs"},
        {{.mtbf_h = 1}, "--mtbf-h needs --tokens-per-s"},
        {{.mtbf_h = 1, .tokens_per_s = 1}, "--mtbf-h needs --checkpoint-s"},
        {{.mtbf_h = 1, .tokens_per_s = 1, .save_s = 1, .save_rate = 1}, "one of --checkpoint-s"},
        {{.save_s = 1}, "need --mtbf-h"},
        {{.recovery_s = 1}, "need --mtbf-h"},
        {{.memory = 1}, "--tokens needs"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct dpt_machines machines = cases[i].machines;
        struct dpt_estimate e;
        struct dpt_err err;
        machines.shape = (struct dpt_world_shape){1, 1};
        assert_int_equal(dpt_estimate(&machines, &model, 1, &e, &err), DPT_EINVAL);
        if (!strstr(err.text, cases[i].word))
            fail_msg("case %zu: %s", i, err.text);
    }
}

static void test_what_is_missing(void **state)
{
    (void)state;
    const struct dpt_machines by_rate = {.shape = {1, 1}, .tokens_per_s = 1},
                              by_flops = {.shape = {1, 1}, .flops = 1e12};
    struct dpt_fit_model other = model;
    struct dpt_estimate e;
    struct dpt_err err;
    other.steps = 0;
    assert_int_equal(dpt_estimate(&by_rate, &other, 0, &e, &err), DPT_EINVAL);
    assert_non_null(strstr(err.text, "--tokens is missing"));
    other.layers = 0; /* of images */
    assert_int_equal(dpt_estimate(&by_flops, &other, 1, &e, &err), DPT_EINVAL);
    assert_non_null(strstr(err.text, "image"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_time_by_hand),
        cmocka_unit_test(test_time_of_flops),
        cmocka_unit_test(test_spares_and_waves),
        cmocka_unit_test(test_frozen_parameters_take_time),
        cmocka_unit_test(test_failures_by_hand),
        cmocka_unit_test(test_one_machine_has_no_copies),
        cmocka_unit_test(test_options_that_do_not_fit),
        cmocka_unit_test(test_what_is_missing),
    };
    return cmocka_run_group_tests_name("estimate", tests, NULL, NULL);
}
