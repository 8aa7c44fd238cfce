/* GPT-2's dropout: forward and backward draw one mask (central differences of the loss along each
 * tensor's gradient), masks depend on (seed, step, slot) alone, EVAL draws none. */
#include "tests/worker/model/model_rig.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const struct rig_size SIZE = {2, 3, 48, 24, 67, 4, 24, 2, 0.3, DPT_PRECISION_FP32};

/* (loss(w + e d) - loss(w - e d)) / 2e with d the unit vector along the tensor's gradient is that
 * gradient's length. In float the losses are good to 1e-6; a mask that differed anywhere would show
 * as tens of percent. */
static void check_gradients(const struct rig_size *size)
{
    struct rig rig;
    rig_open(&rig, size);
    rig_run(&rig);
    float *grad = rig_memory((size_t)rig.numel * sizeof(float));
    float *flat = rig_memory((size_t)rig.numel * sizeof(float));
    memcpy(grad, rig.grad, (size_t)rig.numel * sizeof(float));
    memcpy(flat, rig.flat, (size_t)rig.numel * sizeof(float));
    for (int p = 0; p < dpt_model_n_params(rig.model); p++) {
        const struct dpt_param *param = dpt_model_param(rig.model, p);
        double squares = 0.0;
        for (int64_t i = 0; i < param->numel; i++)
            squares += pow((double)grad[param->offset + i], 2.0);
        const double length = sqrt(squares), e = 2e-2;
        double loss[2];
        for (int side = 0; side < 2; side++) {
            for (int64_t i = param->offset; i < param->offset + param->numel; i++)
                rig.flat[i] =
                    (float)((double)flat[i] + (side == 0 ? -e : e) / length * (double)grad[i]);
            loss[side] = rig_run(&rig);
        }
        memcpy(rig.flat, flat, (size_t)rig.numel * sizeof(float));
        const double slope = (loss[1] - loss[0]) / (2.0 * e);
        if (fabs(slope - length) > 0.01 * length + 2e-4)
            fail_msg("%s: slope %g, gradient %g", param->name, slope, length);
    }
    free(grad);
    free(flat);
    rig_close(&rig);
}

static void one_mask(void **state)
{
    (void)state;
    check_gradients(&SIZE);
}

/* The same test is sharp without dropout too, on odd sizes. */
static void no_dropout(void **state)
{
    (void)state;
    check_gradients(&(struct rig_size){3, 3, 33, 21, 45, 3, 19, 2, 0.0, DPT_PRECISION_FP32});
}

static void test_dropout_depends_on_step_and_slot(void **state)
{
    (void)state;
    struct rig rig;
    rig_open(&rig, &SIZE);
    const double loss = rig_run(&rig);
    assert_true(rig_run(&rig) == loss);
    rig.slot.step = 1;
    assert_true(rig_run(&rig) != loss);
    rig.slot.step = 0;
    rig.slot.slot = 1;
    assert_true(rig_run(&rig) != loss);
    rig.slot.slot = 0;
    rig.slot.seed++;
    assert_true(rig_run(&rig) != loss);
    rig.slot.seed--;
    assert_true(rig_run(&rig) == loss);
    rig_close(&rig);
}

static void none_in_eval(void **state)
{
    (void)state;
    struct rig_size plain = SIZE;
    plain.dropout = 0.0;
    struct rig with, without;
    rig_open(&with, &SIZE);
    rig_open(&without, &plain);
    with.slot.mode = without.slot.mode = DPT_MODE_EVAL;
    assert_true(rig_run(&with) == rig_run(&without));
    without.slot.mode = DPT_MODE_TRAIN;
    assert_true(fabs(rig_run(&with) - rig_run(&without)) < 1e-6);
    rig_close(&with);
    rig_close(&without);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_mask),
        cmocka_unit_test(no_dropout),
        cmocka_unit_test(test_dropout_depends_on_step_and_slot),
        cmocka_unit_test(none_in_eval),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
