/* A model with labels: tokens behind a sample's last token have no effect, the length of the
 * longest sample changes only rounding, and the count of correct predictions. */
#include "tests/worker/model/model_rig.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { B = 4, T = 23, SHORT = 9, VOCAB = 131, PRECISIONS = 3 };
static const struct rig_size size = {2, 3, 51, 37, VOCAB, B, T, 2, 0.0, DPT_PRECISION_FP32};
static const enum dpt_precision precisions[PRECISIONS] = {DPT_PRECISION_FP32, DPT_PRECISION_BF16,
                                                          DPT_PRECISION_FP16};

static float *copy_of(const float *x, int64_t n)
{
    float *copy = rig_memory((size_t)n * sizeof *copy);
    memcpy(copy, x, (size_t)n * sizeof *copy);
    return copy;
}

static void expect_same(const struct rig *rig, const float *losses, const float *grad)
{
    for (int64_t i = 0; i < rig->losses; i++)
        assert_true(rig->slot.losses[i] == losses[i]);
    for (int p = 0; p < dpt_model_n_params(rig->model); p++) {
        const struct dpt_param *param = dpt_model_param(rig->model, p);
        for (int64_t i = param->offset; i < param->offset + param->numel; i++)
            if (rig->grad[i] != grad[i])
                fail_msg("%s[%lld]: %.9g, was %.9g", param->name, (long long)(i - param->offset),
                         (double)rig->grad[i], (double)grad[i]);
    }
}

/* Other tokens there, and not a value changes. */
static void padding_reaches_nothing(void **state)
{
    (void)state;
    for (int i = 0; i < PRECISIONS; i++) {
        struct rig_size here = size;
        here.precision = precisions[i];
        struct rig rig;
        rig_open(&rig, &here);
        (void)rig_run(&rig);
        float *losses = copy_of(rig.slot.losses, rig.losses), *grad = copy_of(rig.grad, rig.numel);
        int64_t padded = 0;
        for (int64_t row = 0; row < B; row++)
            for (int64_t t = rig.lengths[row]; t < T; t++, padded++)
                rig.tokens[row * T + t] = (rig.tokens[row * T + t] + 7) % VOCAB;
        assert_true(padded > 0);
        (void)rig_run(&rig);
        expect_same(&rig, losses, grad);
        /* The last tokens do count. */
        rig.tokens[rig.lengths[1] + T - 1] = (rig.tokens[rig.lengths[1] + T - 1] + 7) % VOCAB;
        (void)rig_run(&rig);
        assert_true(rig.slot.losses[1] != losses[1] && rig.slot.losses[0] == losses[0]);
        free(losses);
        free(grad);
        rig_close(&rig);
    }
}

/* Lays samples of at most SHORT tokens out in rows of `t`. */
static void lay_out_labelled(struct rig *rig, const int32_t *tokens, int64_t t)
{
    rig->slot.t = rig->slot.batch.positions = t;
    for (int64_t row = 0; row < B; row++) {
        rig->lengths[row] = (int32_t)(SHORT - row);
        for (int64_t i = 0; i < t; i++)
            rig->tokens[row * t + i] = i < SHORT ? tokens[row * SHORT + i] : 0;
    }
}

/* A micro-batch beside a longer one: the same losses and gradients, but for the rounding of
 * products of other sizes. */
static void longer_padding_is_rounding(void **state)
{
    (void)state;
    int32_t tokens[B * SHORT];
    for (int i = 0; i < B * SHORT; i++)
        tokens[i] = i * 37 % VOCAB;
    struct rig rig;
    rig_open(&rig, &size);
    lay_out_labelled(&rig, tokens, SHORT);
    (void)rig_run(&rig);
    float *losses = copy_of(rig.slot.losses, rig.losses), *grad = copy_of(rig.grad, rig.numel);
    lay_out_labelled(&rig, tokens, T);
    (void)rig_run(&rig);
    for (int64_t i = 0; i < rig.losses; i++)
        assert_true(fabsf(rig.slot.losses[i] - losses[i]) <= 1e-5f);
    for (int p = 0; p < dpt_model_n_params(rig.model); p++) {
        const struct dpt_param *param = dpt_model_param(rig.model, p);
        double off = 0.0, whole = 0.0;
        for (int64_t i = param->offset; i < param->offset + param->numel; i++) {
            off += pow((double)rig.grad[i] - (double)grad[i], 2.0);
            whole += pow((double)grad[i], 2.0);
        }
        if (!(sqrt(off) <= 1e-5 * sqrt(whole)))
            fail_msg("%s: %g of %g", param->name, sqrt(off), sqrt(whole));
    }
    free(losses);
    free(grad);
    rig_close(&rig);
}

/* Forward alone writes it, in EVAL mode, where it is wanted: of a sample the one label that is
 * predicted is right, with the least loss of all labels. */
static void one_label_is_right(void **state)
{
    (void)state;
    struct rig rig;
    rig_open(&rig, &size);
    rig.slot.mode = DPT_MODE_EVAL;
    float least[B], at_right[B] = {0};
    int right[B] = {0};
    for (int64_t row = 0; row < B; row++)
        least[row] = INFINITY;
    for (int label = 0; label < rig.classes; label++) {
        for (int64_t row = 0; row < B; row++)
            rig.targets[row] = label;
        (void)rig_run(&rig);
        for (int64_t row = 0; row < B; row++) {
            assert_true(rig.right[row] == 0.0f || rig.right[row] == 1.0f);
            least[row] = fminf(least[row], rig.slot.losses[row]);
            if (rig.right[row] == 1.0f) {
                right[row]++;
                at_right[row] = rig.slot.losses[row];
            }
        }
    }
    for (int64_t row = 0; row < B; row++) {
        assert_int_equal(right[row], 1);
        assert_true(at_right[row] == least[row]);
    }
    float *losses = copy_of(rig.slot.losses, rig.losses);
    rig.slot.right = NULL; /* not requested */
    (void)rig_run(&rig);
    assert_memory_equal(losses, rig.slot.losses, sizeof(float) * B);
    free(losses);
    rig_close(&rig);
}

int main(int argc, char **argv)
{
    rig_choose(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(padding_reaches_nothing),
        cmocka_unit_test(longer_padding_is_rounding),
        cmocka_unit_test(one_label_is_right),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
