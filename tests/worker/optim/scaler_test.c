/* The loss's scale: growth, backoff and their limits; its values in other precisions; values that a
 * checkpoint may have. */
#include "worker/optim/scaler.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static struct dpt_err err;

static struct dpt_config config_of(enum dpt_precision precision, int64_t interval)
{
    static struct dpt_config config;
    config.train.precision = precision;
    config.train.loss_scale = 65536.0;
    config.train.loss_scale_growth = 2.0;
    config.train.loss_scale_backoff = 0.5;
    config.train.loss_scale_interval = interval;
    return config;
}

/* As PyTorch's _amp_update_scale_ counts: the interval-th good step in a row grows, an overflow
 * backs off and restarts the count. */
static void grows_and_backs_off(void **state)
{
    (void)state;
    const struct dpt_config config = config_of(DPT_PRECISION_FP16, 3);
    static const struct {
        double norm, scale;
        int64_t good, skipped;
    } steps[] = {
        {1.0, 65536.0, 1, 0},      {2.0, 65536.0, 2, 0},
        {3.0, 131072.0, 0, 0},     {1.0, 131072.0, 1, 0},
        {INFINITY, 65536.0, 0, 1}, {(double)NAN, 32768.0, 0, 2},
        {1e308, 32768.0, 1, 2},    {0.0, 32768.0, 2, 2},
        {1.0, 65536.0, 0, 2},      {(double)INFINITY, 32768.0, 0, 3},
    };
    struct dpt_scaler scaler;
    dpt_scaler_init(&config, &scaler);
    assert_true(scaler.scale == 65536.0 && scaler.good_steps == 0 && scaler.skipped == 0);
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        const bool skips = dpt_scaler_skips(&config, steps[i].norm);
        assert_true(skips == !isfinite(steps[i].norm));
        dpt_scaler_advance(&config, skips, &scaler);
        assert_true(scaler.scale == steps[i].scale);
        assert_int_equal(scaler.good_steps, steps[i].good);
        assert_int_equal(scaler.skipped, steps[i].skipped);
    }
}

static void stays_within_limits(void **state)
{
    (void)state;
    const struct dpt_config config = config_of(DPT_PRECISION_FP16, 1);
    struct dpt_scaler scaler;
    dpt_scaler_init(&config, &scaler);
    for (int i = 0; i < 500; i++)
        dpt_scaler_advance(&config, false, &scaler);
    assert_true(scaler.scale == DPT_SCALE_MAX);
    for (int i = 0; i < 500; i++)
        dpt_scaler_advance(&config, true, &scaler);
    assert_true(scaler.scale == DPT_SCALE_MIN);
    assert_int_equal(scaler.skipped, 500);
}

static void other_precisions_have_none(void **state)
{
    (void)state;
    for (int precision = DPT_PRECISION_FP32; precision <= DPT_PRECISION_BF16; precision++) {
        const struct dpt_config config = config_of(precision, 1);
        struct dpt_scaler scaler;
        dpt_scaler_init(&config, &scaler);
        assert_true(scaler.scale == 1.0);
        assert_false(dpt_scaler_skips(&config, (double)NAN));
        dpt_scaler_advance(&config, false, &scaler);
        assert_true(scaler.scale == 1.0 && scaler.good_steps == 0 && scaler.skipped == 0);
    }
}

static void goes_on_from_a_checkpoint(void **state)
{
    (void)state;
    const struct dpt_config half = config_of(DPT_PRECISION_FP16, 3);
    const struct dpt_scaler saved = {.scale = 1024.0, .good_steps = 2, .skipped = 7};
    struct dpt_scaler scaler = {0};
    assert_int_equal(dpt_scaler_resume(&half, 9, &saved, &scaler, &err), DPT_OK);
    assert_true(dpt_scaler_equal(&scaler, &saved));
    const struct dpt_scaler none = {.skipped = 7}; /* of another precision */
    assert_int_equal(dpt_scaler_resume(&half, 9, &none, &scaler, &err), DPT_OK);
    assert_true(scaler.scale == 65536.0 && scaler.skipped == 7);
    const struct dpt_config full = config_of(DPT_PRECISION_FP32, 3);
    assert_int_equal(dpt_scaler_resume(&full, 9, &saved, &scaler, &err), DPT_OK);
    assert_true(scaler.scale == 1.0 && scaler.good_steps == 0 && scaler.skipped == 7);
}

static void refuses_what_no_scaler_came_to(void **state)
{
    (void)state;
    const struct dpt_config config = config_of(DPT_PRECISION_FP16, 3);
    static const struct dpt_scaler bad[] = {
        {-1024.0, 0, 0, 0}, {1000.0, 0, 0, 0},  {(double)INFINITY, 0, 0, 0}, {(double)NAN, 0, 0, 0},
        {0x1p65, 0, 0, 0},  {0x1p-65, 0, 0, 0}, {1024.0, -1, 0, 0},          {1024.0, 0, -1, 0},
        {1024.0, 0, 10, 0}, {1024.0, 0, 1, 2},  {1024.0, 0, 1, -1},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct dpt_scaler scaler = {.scale = 3.0};
        assert_int_equal(dpt_scaler_resume(&config, 9, &bad[i], &scaler, &err), DPT_ECORRUPT);
        assert_true(scaler.scale == 3.0);
    }
}

static void test_scaler_equality(void **state)
{
    (void)state;
    const struct dpt_scaler a = {1024.0, 2, 7, 3};
    static const struct dpt_scaler others[] = {
        {512.0, 2, 7, 3}, {1024.0, 3, 7, 3}, {1024.0, 2, 8, 3}, {1024.0, 2, 7, 2}};
    assert_true(dpt_scaler_equal(&a, &a));
    for (size_t i = 0; i < 4; i++)
        assert_false(dpt_scaler_equal(&a, &others[i]));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(grows_and_backs_off),
        cmocka_unit_test(stays_within_limits),
        cmocka_unit_test(other_precisions_have_none),
        cmocka_unit_test(goes_on_from_a_checkpoint),
        cmocka_unit_test(refuses_what_no_scaler_came_to),
        cmocka_unit_test(test_scaler_equality),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
