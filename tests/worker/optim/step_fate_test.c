/* What becomes of a step that is not finite, by mode and precision. */
#include "worker/optim/step_fate.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>

static struct dpt_config make_fate_config(enum dpt_divergence mode, enum dpt_precision precision)
{
    static struct dpt_config config;
    dpt_config_defaults(&config);
    config.train.precision = precision;
    config.train.on_divergence = mode;
    config.train.divergence_limit = 3;
    return config;
}

static void fate_by_mode(void **state)
{
    (void)state;
    static const struct {
        enum dpt_divergence mode;
        enum dpt_precision precision;
        double scale, loss, norm;
        enum dpt_step_fate fate;
    } cases[] = {
        {DPT_DIVERGENCE_STOP, DPT_PRECISION_FP32, 1, 3.5, 1e30, DPT_STEP_APPLIED},
        {DPT_DIVERGENCE_STOP, DPT_PRECISION_FP32, 1, NAN, 1, DPT_STEP_STOPS},
        {DPT_DIVERGENCE_STOP, DPT_PRECISION_FP32, 1, 3.5, INFINITY, DPT_STEP_STOPS},
        {DPT_DIVERGENCE_SKIP, DPT_PRECISION_FP32, 1, -INFINITY, 1, DPT_STEP_SKIPPED},
        {DPT_DIVERGENCE_SKIP, DPT_PRECISION_FP32, 1, 3.5, NAN, DPT_STEP_SKIPPED},
        {DPT_DIVERGENCE_CONTINUE, DPT_PRECISION_FP32, 1, NAN, NAN, DPT_STEP_APPLIED},
        /* fp16: an overflow that a smaller scale may repair is no divergence. */
        {DPT_DIVERGENCE_STOP, DPT_PRECISION_FP16, 8, 3.5, INFINITY, DPT_STEP_OVERFLOWED},
        {DPT_DIVERGENCE_STOP, DPT_PRECISION_FP16, 1, 3.5, NAN, DPT_STEP_OVERFLOWED},
        {DPT_DIVERGENCE_STOP, DPT_PRECISION_FP16, 0.5, 3.5, NAN, DPT_STEP_STOPS},
        {DPT_DIVERGENCE_STOP, DPT_PRECISION_FP16, 8, NAN, NAN, DPT_STEP_STOPS},
        {DPT_DIVERGENCE_SKIP, DPT_PRECISION_FP16, 8, 3.5, INFINITY, DPT_STEP_OVERFLOWED},
        {DPT_DIVERGENCE_SKIP, DPT_PRECISION_FP16, 8, NAN, 1, DPT_STEP_SKIPPED},
        {DPT_DIVERGENCE_SKIP, DPT_PRECISION_FP16, 0.5, 3.5, NAN, DPT_STEP_SKIPPED},
        {DPT_DIVERGENCE_CONTINUE, DPT_PRECISION_FP16, 8, NAN, NAN, DPT_STEP_OVERFLOWED},
        {DPT_DIVERGENCE_CONTINUE, DPT_PRECISION_FP16, 8, NAN, 1, DPT_STEP_APPLIED},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct dpt_config config = make_fate_config(cases[i].mode, cases[i].precision);
        const struct dpt_scaler scaler = {.scale = cases[i].scale};
        const enum dpt_step_fate fate =
            dpt_step_fate_of(&config, cases[i].loss, cases[i].norm, &scaler);
        if (fate != cases[i].fate)
            fail_msg("case %zu: %d instead of %d", i, (int)fate, (int)cases[i].fate);
    }
}

/* So many in a row are left out, and a step that is applied begins a new row. */
static void limit_in_a_row(void **state)
{
    (void)state;
    const struct dpt_config config = make_fate_config(DPT_DIVERGENCE_SKIP, DPT_PRECISION_FP32);
    struct dpt_scaler scaler;
    dpt_scaler_init(&config, &scaler);
    for (int row = 0; row < 2; row++) {
        for (int i = 0; i < 3; i++) {
            assert_int_equal(dpt_step_fate_of(&config, NAN, 1, &scaler), DPT_STEP_SKIPPED);
            dpt_step_fate_note(&config, DPT_STEP_SKIPPED, 1, &scaler);
            assert_int_equal(scaler.diverged_in_row, i + 1);
        }
        assert_int_equal(dpt_step_fate_of(&config, NAN, 1, &scaler), DPT_STEP_STOPS);
        assert_int_equal(dpt_step_fate_of(&config, 2, 1, &scaler), DPT_STEP_APPLIED);
        dpt_step_fate_note(&config, DPT_STEP_APPLIED, 1, &scaler);
        assert_int_equal(scaler.diverged_in_row, 0);
        assert_int_equal(scaler.skipped, 3 * (row + 1));
        assert_true(scaler.scale == 1);
    }
}

/* A step counts once, and the scale moves by its norm alone. An overflow neither adds to the row
 * nor ends it. */
static void overflow_and_divergence(void **state)
{
    (void)state;
    const struct dpt_config config = make_fate_config(DPT_DIVERGENCE_SKIP, DPT_PRECISION_FP16);
    struct dpt_scaler scaler;
    dpt_scaler_init(&config, &scaler);
    const double scale = scaler.scale;
    dpt_step_fate_note(&config, DPT_STEP_SKIPPED, NAN, &scaler);
    assert_true(scaler.scale == scale / 2 && scaler.skipped == 1 && scaler.diverged_in_row == 1);
    dpt_step_fate_note(&config, DPT_STEP_OVERFLOWED, INFINITY, &scaler);
    assert_true(scaler.scale == scale / 4 && scaler.skipped == 2 && scaler.diverged_in_row == 1);
    dpt_step_fate_note(&config, DPT_STEP_SKIPPED, 1, &scaler);
    assert_true(scaler.scale == scale / 4 && scaler.skipped == 3 && scaler.diverged_in_row == 2);
    dpt_step_fate_note(&config, DPT_STEP_APPLIED, 1, &scaler);
    assert_true(scaler.skipped == 3 && scaler.diverged_in_row == 0);
}

static void resume_refuses_an_impossible_row(void **state)
{
    (void)state;
    const struct dpt_config config = make_fate_config(DPT_DIVERGENCE_SKIP, DPT_PRECISION_FP32);
    struct dpt_scaler scaler = {.scale = 9};
    struct dpt_err err;
    struct dpt_scaler saved = {.skipped = 4, .diverged_in_row = 2};
    assert_int_equal(dpt_scaler_resume(&config, 5, &saved, &scaler, &err), DPT_OK);
    assert_true(scaler.scale == 1 && scaler.skipped == 4 && scaler.diverged_in_row == 2);
    saved.diverged_in_row = 5;
    assert_int_equal(dpt_scaler_resume(&config, 5, &saved, &scaler, &err), DPT_ECORRUPT);
    saved.diverged_in_row = -1;
    assert_int_equal(dpt_scaler_resume(&config, 5, &saved, &scaler, &err), DPT_ECORRUPT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fate_by_mode),
        cmocka_unit_test(limit_in_a_row),
        cmocka_unit_test(overflow_and_divergence),
        cmocka_unit_test(resume_refuses_an_impossible_row),
    };
    return cmocka_run_group_tests_name("divergence", tests, NULL, NULL);
}
