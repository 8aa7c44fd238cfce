/* Learning rate: warm-up and its edges, the three schedules, the ends; PyTorch's schedulers;
 * scaling with the batch. Clipping. */
#include "worker/optim/optim.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

static struct dpt_config config_of(enum dpt_schedule schedule, int64_t warmup, int64_t steps)
{
    static struct dpt_config config;
    config.optimizer.lr = 3e-4;
    config.optimizer.min_lr = 3e-5;
    config.optimizer.schedule = schedule;
    config.optimizer.warmup_steps = warmup;
    config.train.steps = steps;
    return config;
}

static void near(double a, double b)
{
    if (!(fabs(a - b) <= 1e-15))
        fail_msg("%.17g, expected %.17g", a, b);
}

static void test_warmup(void **state)
{
    (void)state;
    static const enum dpt_schedule schedules[] = {DPT_SCHEDULE_CONSTANT, DPT_SCHEDULE_LINEAR,
                                                  DPT_SCHEDULE_COSINE};
    for (int i = 0; i < 3; i++) {
        const struct dpt_config config = config_of(schedules[i], 10, 100);
        near(dpt_optim_lr(&config, 0), 3e-5);
        near(dpt_optim_lr(&config, 4), 1.5e-4);
        assert_true(dpt_optim_lr(&config, 9) == 3e-4);
        assert_true(dpt_optim_lr(&config, 10) == 3e-4);
    }
    const struct dpt_config one = config_of(DPT_SCHEDULE_COSINE, 1, 100);
    assert_true(dpt_optim_lr(&one, 0) == 3e-4);
    const struct dpt_config none = config_of(DPT_SCHEDULE_COSINE, 0, 100);
    assert_true(dpt_optim_lr(&none, 0) == 3e-4);
    assert_true(dpt_optim_lr(&none, 1) < 3e-4);
}

static void test_constant_schedule(void **state)
{
    (void)state;
    const struct dpt_config config = config_of(DPT_SCHEDULE_CONSTANT, 0, 100);
    for (int64_t step = 0; step < 200; step++)
        assert_true(dpt_optim_lr(&config, step) == 3e-4);
}

static void test_linear_schedule(void **state)
{
    (void)state;
    const struct dpt_config config = config_of(DPT_SCHEDULE_LINEAR, 10, 111);
    near(dpt_optim_lr(&config, 60), (3e-4 + 3e-5) / 2);
    near(dpt_optim_lr(&config, 35), 3e-4 - (3e-4 - 3e-5) / 4);
    assert_true(dpt_optim_lr(&config, 110) == 3e-5);
    assert_true(dpt_optim_lr(&config, 500) == 3e-5);
}

static void test_cosine_schedule(void **state)
{
    (void)state;
    const struct dpt_config config = config_of(DPT_SCHEDULE_COSINE, 10, 1011);
    double before = 1.0;
    for (int64_t step = 10; step <= 1010; step++) {
        const double part = (double)(step - 10) / 1000.0;
        const double lr = dpt_optim_lr(&config, step);
        near(lr, 3e-5 + (3e-4 - 3e-5) * 0.5 * (1.0 + cos(3.14159265358979323846 * part)));
        assert_true(lr < before);
        before = lr;
    }
    assert_true(dpt_optim_lr(&config, 1010) == 3e-5);
    assert_true(dpt_optim_lr(&config, 1011) == 3e-5);
}

/* Runs that end during or right after the warm-up have nothing to decay over. */
static void short_runs(void **state)
{
    (void)state;
    const struct dpt_config within = config_of(DPT_SCHEDULE_COSINE, 10, 5);
    near(dpt_optim_lr(&within, 4), 1.5e-4);
    const struct dpt_config at_end = config_of(DPT_SCHEDULE_COSINE, 10, 10);
    assert_true(dpt_optim_lr(&at_end, 9) == 3e-4);
    const struct dpt_config one_left = config_of(DPT_SCHEDULE_LINEAR, 10, 11);
    assert_true(dpt_optim_lr(&one_left, 10) == 3e-4);
    const struct dpt_config two_left = config_of(DPT_SCHEDULE_LINEAR, 10, 12);
    assert_true(dpt_optim_lr(&two_left, 10) == 3e-4);
    assert_true(dpt_optim_lr(&two_left, 11) == 3e-5);
    const struct dpt_config single = config_of(DPT_SCHEDULE_COSINE, 0, 1);
    assert_true(dpt_optim_lr(&single, 0) == 3e-4);
}

/* Recorded by record_lr.py. */
static void as_pytorch(void **state)
{
    (void)state;
    static const struct {
        enum dpt_schedule schedule;
        int64_t warmup, steps, schedule_steps;
        double lr[64];
    } cases[] = {
#include "tests/worker/optim/lr_cases.inc"
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct dpt_config config = config_of(cases[i].schedule, cases[i].warmup, cases[i].steps);
        config.optimizer.schedule_steps = cases[i].schedule_steps;
        for (int64_t step = 0; step < cases[i].steps; step++)
            near(dpt_optim_lr(&config, step), cases[i].lr[step]);
    }
}

/* A separate period, for any train.steps. PyTorch logs after scheduler.step() at the end of step k
 * the rate of the next step, which the line of step k + 1 shows. */
static void cosine_of_t_max(void **state)
{
    (void)state;
    static const struct {
        int64_t steps_done;
        const char *logged;
    } cases[] = {{0, "3.00e-04"},  {1, "2.98e-04"},  {11, "1.44e-04"}, {20, "3.00e-05"},
                 {21, "3.17e-05"}, {40, "3.00e-04"}, {41, "2.98e-04"}};
    static const int64_t steps[] = {20, 1000};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int k = 0; k < 2; k++) {
            struct dpt_config config = config_of(DPT_SCHEDULE_COSINE, 0, steps[k]);
            config.optimizer.schedule_steps = 20;
            char text[32];
            (void)snprintf(text, sizeof text, "%.2e", dpt_optim_lr(&config, cases[i].steps_done));
            assert_string_equal(text, cases[i].logged);
        }
    struct dpt_config once = config_of(DPT_SCHEDULE_COSINE, 10, 1011);
    const double at_500 = dpt_optim_lr(&once, 500);
    once.optimizer.schedule_steps = 1000; /* the value of auto here: the same bits */
    assert_true(dpt_optim_lr(&once, 500) == at_500);
}

/* The whole schedule is scaled, warm-up and end included. */
static void scaled_with_the_batch(void **state)
{
    (void)state;
    static const enum dpt_schedule schedules[] = {DPT_SCHEDULE_CONSTANT, DPT_SCHEDULE_LINEAR,
                                                  DPT_SCHEDULE_COSINE};
    for (int i = 0; i < 3; i++) {
        const struct dpt_config plain = config_of(schedules[i], 10, 100);
        struct dpt_config scaled = plain;
        scaled.optimizer.lr_scaling = DPT_LR_SCALING_LINEAR;
        scaled.optimizer.base_batch = 32;
        scaled.train.global_batch = 32;
        for (int64_t step = 0; step < 110; step++)
            assert_true(dpt_optim_lr(&scaled, step) == dpt_optim_lr(&plain, step));
        scaled.train.global_batch = 128;
        for (int64_t step = 0; step < 110; step++)
            near(dpt_optim_lr(&scaled, step), 4.0 * dpt_optim_lr(&plain, step));
        scaled.train.global_batch = 24;
        for (int64_t step = 0; step < 110; step++)
            near(dpt_optim_lr(&scaled, step), 0.75 * dpt_optim_lr(&plain, step));
    }
}

static void test_clip_scale(void **state)
{
    (void)state;
    assert_true(dpt_optim_clip_scale(100.0, 0.0) == 1.0f);
    assert_true(dpt_optim_clip_scale(0.0, 1.0) == 1.0f);
    assert_true(dpt_optim_clip_scale(0.5, 1.0) == 1.0f);
    assert_true(dpt_optim_clip_scale(1.0, 1.0) == 1.0f);
    assert_true(dpt_optim_clip_scale(2.0, 1.0) == (float)(1.0 / 2.000001));
    assert_true(dpt_optim_clip_scale(1.0 + 1e-9, 1.0) < 1.0f);
    assert_true(dpt_optim_clip_scale((double)INFINITY, 1.0) == 0.0f);
    assert_true(isnan(dpt_optim_clip_scale((double)NAN, 1.0)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_warmup),
        cmocka_unit_test(test_constant_schedule),
        cmocka_unit_test(test_linear_schedule),
        cmocka_unit_test(test_cosine_schedule),
        cmocka_unit_test(short_runs),
        cmocka_unit_test(test_clip_scale),
        cmocka_unit_test(as_pytorch),
        cmocka_unit_test(cosine_of_t_max),
        cmocka_unit_test(scaled_with_the_batch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
