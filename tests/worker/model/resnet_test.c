/* What only residual networks have: running statistics, an evaluation that reads them, a head's
 * bias; and that a few steps of training learn. */
#include "tests/worker/model/model_rig.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct dpt_err err;

static const struct rig_size SIZE = {4, 3, 36, 0, 0, 5, 26, 2, 0.0, DPT_PRECISION_FP32};

/* Calls `each` for every running statistic's elements. */
static void for_averaged(const struct rig *rig,
                         void (*each)(const struct rig *rig, const struct dpt_param *param,
                                      int index))
{
    int n = 0;
    for (int p = 0; p < dpt_model_n_params(rig->model); p++)
        if (dpt_model_param(rig->model, p)->averaged) {
            each(rig, dpt_model_param(rig->model, p), p);
            n++;
        }
    assert_true(n > 0);
}

/* The gradient, which is the micro-batch's statistic, becomes the running statistic. Evaluation
 * uses a variance unchanged, so training's variance of n values is (n - 1)/n of the unbiased
 * one. */
static void take_statistic(const struct rig *rig, const struct dpt_param *param, int index)
{
    enum { MEAN_BEHIND_WEIGHT = 3 };
    const bool is_mean = strstr(param->name, "running_mean") != NULL;
    struct dpt_windows of;
    assert_true(
        dpt_model_windows(rig->model, index - MEAN_BEHIND_WEIGHT - !is_mean, rig->slot.b, &of));
    const int64_t n =
        of.b * dpt_windows_along(of.h, of.stride) * dpt_windows_along(of.w, of.stride);
    const float factor = is_mean ? 1.0f : (float)(n - 1) / (float)n;
    for (int64_t i = param->offset; i < param->offset + param->numel; i++)
        rig->flat[i] = rig->grad[i] * factor;
}

static void evaluation_reads_running_statistics(void **state)
{
    (void)state;
    for (int family = RIG_RESNET; family <= RIG_RESNET_DEEP; family++) {
        struct rig rig;
        float losses[8];
        rig_family = (enum rig_family)family;
        rig_open(&rig, &SIZE);
        rig_run(&rig);
        memcpy(losses, rig.slot.losses, (size_t)rig.losses * sizeof(float));
        for_averaged(&rig, take_statistic);
        rig.slot.mode = DPT_MODE_EVAL;
        rig_run(&rig);
        for (int64_t i = 0; i < rig.losses; i++)
            if (!(fabsf(losses[i] - rig.slot.losses[i]) < 1e-4f))
                fail_msg("image %lld: loss %.7f in training, %.7f in evaluation", (long long)i,
                         (double)losses[i], (double)rig.slot.losses[i]);
        rig_close(&rig);
    }
}

/* In evaluation an image's loss does not depend on the images beside it. */
static void images_are_evaluated_alone(void **state)
{
    (void)state;
    struct rig rig;
    rig_family = RIG_RESNET_DEEP;
    rig_open(&rig, &SIZE);
    rig.slot.mode = DPT_MODE_EVAL;
    rig_run(&rig);
    const float loss = rig.slot.losses[0], other = rig.slot.losses[1];
    float *image = rig_memory((size_t)rig.pixels * sizeof(float));
    memcpy(image, rig.images, (size_t)rig.pixels * sizeof(float));
    rig_vary(&rig, 1); /* targets move by five, which is all labels */
    memcpy(rig.images, image, (size_t)rig.pixels * sizeof(float));
    rig_run(&rig);
    assert_true(rig.slot.losses[0] == loss);
    assert_true(rig.slot.losses[1] != other);
    free(image);
    rig_close(&rig);
}

/* slot.share is a factor of the statistics, and of nothing else. */
static void statistics_are_shared_out(void **state)
{
    (void)state;
    struct rig rig;
    rig_family = RIG_RESNET;
    rig_open(&rig, &SIZE);
    rig_run(&rig);
    float *whole = rig_memory((size_t)rig.numel * sizeof(float));
    memcpy(whole, rig.grad, (size_t)rig.numel * sizeof(float));
    rig.slot.share = 0.25f;
    rig_run(&rig);
    for (int p = 0; p < dpt_model_n_params(rig.model); p++) {
        const struct dpt_param *param = dpt_model_param(rig.model, p);
        const float factor = param->averaged ? 0.25f : 1.0f;
        for (int64_t i = param->offset; i < param->offset + param->numel; i++)
            assert_true(rig.grad[i] == factor * whole[i]);
    }
    free(whole);
    rig_close(&rig);
}

static void pack_all(struct rig *rig, const void **ret_packed)
{
    for (int p = 0; p < dpt_model_n_params(rig->model); p++) {
        const struct dpt_param *param = dpt_model_param(rig->model, p);
        struct dpt_pack pack;
        ret_packed[p] = NULL;
        if (!dpt_model_packing(rig->model, p, &pack))
            continue;
        const struct dpt_unit *unit = dpt_model_unit(rig->model, param->unit);
        const size_t at = (size_t)(param->offset - unit->offset) * dpt_dtype_bytes(pack.dtype);
        pack.w = (const char *)rig->weights[param->unit] + at;
        pack.packed = rig_memory(rig->ops->packed_bytes(rig->stream, &pack));
        rig->ops->pack(rig->stream, &pack);
        ret_packed[p] = pack.packed;
    }
    assert_int_equal(dpt_stream_sync(rig->stream, &err), DPT_OK);
}

static void packed_weights_have_the_same_bits(void **state)
{
    (void)state;
    static const enum dpt_precision precisions[] = {DPT_PRECISION_FP32, DPT_PRECISION_BF16};
    static const void *packed[DPT_PARAMS_MAX];
    for (int i = 0; i < 2; i++) {
        struct rig_size size = SIZE;
        struct rig rig;
        size.precision = precisions[i];
        rig_family = RIG_RESNET_DEEP;
        rig_open(&rig, &size);
        rig_run(&rig);
        float *plain = rig_memory((size_t)rig.numel * sizeof(float));
        memcpy(plain, rig.grad, (size_t)rig.numel * sizeof(float));
        pack_all(&rig, packed);
        rig.slot.packed = packed;
        memset(rig.grad, 0xff, (size_t)rig.numel * sizeof(float));
        rig_run(&rig);
        for (int p = 0; p < dpt_model_n_params(rig.model); p++) {
            const struct dpt_param *param = dpt_model_param(rig.model, p);
            assert_memory_equal(plain + param->offset, rig.grad + param->offset,
                                (size_t)param->numel * sizeof(float));
            free((void *)(uintptr_t)packed[p]);
        }
        free(plain);
        rig_close(&rig);
    }
}

/* Images of a class are one pattern, and noise. */
static void fill_classes(struct rig *rig)
{
    for (int64_t b = 0; b < rig->slot.b; b++) {
        float *image = rig->images + b * rig->pixels,
              *pattern = rig_memory((size_t)rig->pixels * sizeof(float));
        rig->targets[b] = (int32_t)(b % rig->classes);
        rig->ops->fill_normal(
            rig->stream, rig->pixels,
            &(struct dpt_normal){dpt_rng_key(7, DPT_RNG_TEST, (uint64_t)rig->targets[b], 0, 0), 0,
                                 0.0f, 1.0f},
            pattern);
        rig->ops->add(rig->stream, rig->pixels, image, pattern, image);
        assert_int_equal(dpt_stream_sync(rig->stream, &err), DPT_OK);
        free(pattern);
    }
}

/* Plain gradient descent; running statistics follow the micro-batch's. */
static void descend(struct rig *rig)
{
    for (int p = 0; p < dpt_model_n_params(rig->model); p++) {
        const struct dpt_param *param = dpt_model_param(rig->model, p);
        for (int64_t i = param->offset; i < param->offset + param->numel; i++)
            rig->flat[i] +=
                param->averaged ? 0.1f * (rig->grad[i] - rig->flat[i]) : -0.2f * rig->grad[i];
    }
}

static void test_resnet_learns(void **state)
{
    (void)state;
    enum { STEPS = 60 };
    for (int family = RIG_RESNET; family <= RIG_RESNET_DEEP; family++) {
        struct rig rig;
        struct rig_size size = SIZE;
        size.b = 15;
        rig_family = (enum rig_family)family;
        rig_open(&rig, &size);
        dpt_model_init_range(rig.model, rig.ops, rig.stream, 3,
                             (struct dpt_span){0, dpt_model_flat_numel(rig.model)}, rig.flat);
        fill_classes(&rig);
        const double first = rig_run(&rig);
        double last = first, right = 0.0;
        for (int step = 0; step < STEPS; step++) {
            descend(&rig);
            last = rig_run(&rig);
        }
        print_message("loss %.3f -> %.3f\n", first, last);
        assert_true(last < 0.1 * first);
        rig.slot.mode = DPT_MODE_EVAL;
        rig_run(&rig);
        for (int64_t i = 0; i < rig.slot.b; i++)
            right += (double)rig.slot.right[i];
        assert_true(right == (double)rig.slot.b);
        rig_close(&rig);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(evaluation_reads_running_statistics),
        cmocka_unit_test(images_are_evaluated_alone),
        cmocka_unit_test(statistics_are_shared_out),
        cmocka_unit_test(packed_weights_have_the_same_bits),
        cmocka_unit_test(test_resnet_learns),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
