/* A model on the CPU device: bits at every thread count, accumulation, announcements, slots side by
 * side, preparing mode. */
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

/* Odd in every size: tails everywhere. */
static const struct rig_size ODD = {2, 3, 51, 37, 131, 3, 29, 2, 0.0, DPT_PRECISION_FP32};

enum { PRECISIONS = 3 };
static const enum dpt_precision precisions[PRECISIONS] = {DPT_PRECISION_FP32, DPT_PRECISION_BF16,
                                                          DPT_PRECISION_FP16};

static void copy_grad(const struct rig *rig, float **ret)
{
    *ret = rig_memory((size_t)rig->numel * sizeof(float));
    memcpy(*ret, rig->grad, (size_t)rig->numel * sizeof(float));
}

/* Loss and gradient have the same bits at 1, 2, 3, 4 and 8 threads. */
static void same_bits_in(enum dpt_precision precision, const struct rig_size *size)
{
    static const int threads[] = {1, 2, 3, 4, 8};
    float *grad = NULL, *losses = NULL;
    for (size_t i = 0; i < sizeof threads / sizeof threads[0]; i++) {
        struct rig_size here = *size;
        here.threads = threads[i];
        here.precision = precision;
        struct rig rig;
        rig_open(&rig, &here);
        rig_run(&rig);
        const size_t losses_bytes = (size_t)rig.n * sizeof(float);
        if (i == 0) {
            copy_grad(&rig, &grad);
            losses = rig_memory(losses_bytes);
            memcpy(losses, rig.slot.losses, losses_bytes);
        } else {
            assert_memory_equal(losses, rig.slot.losses, losses_bytes);
            for (int p = 0; p < dpt_model_n_params(rig.model); p++) {
                const struct dpt_param *param = dpt_model_param(rig.model, p);
                if (memcmp(grad + param->offset, rig.grad + param->offset,
                           (size_t)param->numel * sizeof(float)) != 0)
                    fail_msg("%s differs at %d threads", param->name, threads[i]);
            }
        }
        rig_close(&rig);
    }
    free(grad);
    free(losses);
}

static void expect_same_bits_of_threads(const struct rig_size *size)
{
    for (int i = 0; i < PRECISIONS; i++)
        same_bits_in(precisions[i], size);
}

static void threads_odd(void **state)
{
    (void)state;
    expect_same_bits_of_threads(&ODD);
}

static void threads_round(void **state)
{
    (void)state;
    expect_same_bits_of_threads(
        &(struct rig_size){2, 4, 128, 64, 384, 4, 64, 0, 0.1, DPT_PRECISION_FP32});
}

/* Every tensor's gradient is overwritten (the rig starts it as NaN) and finite; padding is not
 * touched. */
static void test_gradients_are_overwritten(void **state)
{
    (void)state;
    struct rig rig;
    rig_open(&rig, &ODD);
    assert_true(isfinite(rig_run(&rig)));
    int64_t at = 0;
    for (int p = 0; p < dpt_model_n_params(rig.model); p++) {
        const struct dpt_param *param = dpt_model_param(rig.model, p);
        for (; at < param->offset; at++)
            assert_true(isnan(rig.grad[at]));
        double sum = 0.0;
        for (; at < param->offset + param->numel; at++)
            sum += (double)rig.grad[at] * (double)rig.grad[at];
        if (!isfinite(sum) || sum == 0.0)
            fail_msg("gradient of %s: sum of squares %g", param->name, sum);
    }
    for (; at < rig.numel; at++)
        assert_true(isnan(rig.grad[at]));
    rig_close(&rig);
}

/* wpe's rows past T have no gradient, and say so. */
static void unused_positions(void **state)
{
    (void)state;
    if (!rig_is_gpt2() || rig_is_lora())
        skip();
    struct rig rig;
    rig_open(&rig, &ODD);
    rig_run(&rig);
    const struct dpt_param *wpe = dpt_model_param(rig.model, 1);
    for (int64_t i = (int64_t)ODD.t * ODD.n_embd; i < wpe->numel; i++)
        assert_true(rig.grad[wpe->offset + i] == 0.0f);
    rig_close(&rig);
}

/* Whether wte[row] gets contributions from the tokens, beside the head's. */
static bool is_token(const struct rig *rig, int64_t row)
{
    for (int64_t i = 0; i < rig->n; i++)
        if (rig->tokens[i] == row)
            return true;
    return false;
}

/* With parts apart a unit in parts, the embedding, holds the second slot's own gradient, others the
 * sum. */
static void check_parts_apart(struct rig *rig, const float *first, const float *second)
{
    memcpy(rig->grad, first, (size_t)rig->numel * sizeof(float));
    rig->slot.parts_apart = true;
    rig_run(rig);
    rig->slot.parts_apart = false;
    for (int p = 0; p < dpt_model_n_params(rig->model); p++) {
        const struct dpt_param *param = dpt_model_param(rig->model, p);
        const bool in_parts = dpt_model_unit(rig->model, param->unit)->in_parts;
        assert_int_equal(in_parts, !rig_reads_images() && !rig_is_lora() && param->unit == 0);
        for (int64_t i = param->offset; i < param->offset + param->numel; i++) {
            const float expected = in_parts ? second[i] : first[i] + second[i];
            if (rig->grad[i] != expected)
                fail_msg("%s[%lld]: %.9g, expected %.9g", param->name,
                         (long long)(i - param->offset), (double)rig->grad[i], (double)expected);
        }
    }
}

/* Two slots accumulated: old + contribution, bit for bit where an element has one contribution; the
 * rows of wte that are tokens have several, and are held to rounding. */
static void test_gradients_accumulate(void **state)
{
    (void)state;
    struct rig rig;
    rig_open(&rig, &ODD);
    float *first, *second;
    rig_run(&rig);
    copy_grad(&rig, &first);
    rig_vary(&rig, 1);
    rig_run(&rig);
    copy_grad(&rig, &second);
    memcpy(rig.grad, first, (size_t)rig.numel * sizeof(float));
    rig.slot.accumulate = true;
    rig_run(&rig);
    int64_t many = 0;
    for (int p = 0; p < dpt_model_n_params(rig.model); p++) {
        const struct dpt_param *param = dpt_model_param(rig.model, p);
        for (int64_t i = param->offset; i < param->offset + param->numel; i++) {
            const float sum = first[i] + second[i];
            const bool several = p == 0 && dpt_model_unit(rig.model, 0)->in_parts &&
                                 is_token(&rig, (i - param->offset) / ODD.n_embd);
            many += several;
            if (several ? !(fabsf(rig.grad[i] - sum) <= 1e-6f) : rig.grad[i] != sum)
                fail_msg("%s[%lld]: %.9g, expected %.9g", param->name,
                         (long long)(i - param->offset), (double)rig.grad[i], (double)sum);
        }
    }
    assert_true(dpt_model_unit(rig.model, 0)->in_parts == (many > 0));
    assert_true(many < dpt_model_param(rig.model, 0)->numel);
    check_parts_apart(&rig, first, second);
    free(first);
    free(second);
    rig_close(&rig);
}

struct heard {
    const struct rig *rig;
    int order[DPT_PARAMS_MAX];
    int n;
};

static void hear(void *ctx, int param)
{
    struct heard *heard = ctx;
    assert_true(heard->n < DPT_PARAMS_MAX);
    heard->order[heard->n++] = param;
    /* What is announced is complete: no NaN of the rig's is left in it. */
    const struct dpt_param *p = dpt_model_param(heard->rig->model, param);
    for (int64_t i = 0; i < p->numel; i++)
        assert_true(!isnan(heard->rig->grad[p->offset + i]));
}

/* Each parameter once, from the end of the flat vector to its beginning. */
static void test_parameters_are_announced_once(void **state)
{
    (void)state;
    struct rig rig;
    rig_open(&rig, &ODD);
    static struct heard heard;
    heard = (struct heard){.rig = &rig};
    rig.slot.announce = hear;
    rig.slot.announce_ctx = &heard;
    rig_run(&rig);
    const int n = dpt_model_n_params(rig.model);
    assert_int_equal(heard.n, n);
    for (int i = 0; i < n; i++)
        assert_int_equal(heard.order[i], n - 1 - i);
    rig_close(&rig);
}

/* An announced gradient does not change any more in this slot. */
struct frozen {
    struct rig *rig;
    float *copy;
};

static void freeze(void *ctx, int param)
{
    struct frozen *frozen = ctx;
    const struct dpt_param *p = dpt_model_param(frozen->rig->model, param);
    memcpy(frozen->copy + p->offset, frozen->rig->grad + p->offset,
           (size_t)p->numel * sizeof(float));
}

static void announced_is_final(void **state)
{
    (void)state;
    struct rig rig;
    rig_open(&rig, &ODD);
    struct frozen frozen = {.rig = &rig};
    copy_grad(&rig, &frozen.copy);
    rig.slot.announce = freeze;
    rig.slot.announce_ctx = &frozen;
    rig_run(&rig);
    assert_memory_equal(frozen.copy, rig.grad, (size_t)rig.numel * sizeof(float));
    free(frozen.copy);
    rig_close(&rig);
}

/* EVAL gives the losses of TRAIN (no dropout, no batch norm), writes no gradient and announces
 * nothing. */
static void never(void *ctx, int param)
{
    (void)ctx;
    fail_msg("parameter %d announced in EVAL mode", param);
}

static void eval_is_train(void **state)
{
    (void)state;
    if (rig_reads_images())
        skip();
    struct rig rig;
    rig_open(&rig, &ODD);
    const double train = rig_run(&rig);
    float *losses = rig_memory((size_t)rig.n * sizeof(float));
    memcpy(losses, rig.slot.losses, (size_t)rig.n * sizeof(float));
    memset(rig.slot.losses, 0xff, (size_t)rig.n * sizeof(float));
    rig.slot.mode = DPT_MODE_EVAL;
    rig.slot.grads = NULL;
    rig.slot.announce = never;
    const double eval = rig_run(&rig);
    assert_true(fabs(train - eval) < 1e-6);
    for (int64_t i = 0; i < rig.losses; i++)
        assert_true(fabsf(losses[i] - rig.slot.losses[i]) < 1e-5f);
    free(losses);
    rig_close(&rig);
}

/* The smallest and the longest. */
static void test_shortest_and_longest_samples(void **state)
{
    (void)state;
    static const struct rig_size sizes[] = {
        {1, 1, 8, 4, 5, 1, 1, 2, 0.0, DPT_PRECISION_FP32},
        {1, 1, 1, 1, 2, 1, 1, 1, 0.0, DPT_PRECISION_FP32},
        {2, 3, 51, 37, 131, 1, 1, 3, 0.0, DPT_PRECISION_FP32},
        {2, 3, 51, 37, 131, 2, 37, 2, 0.0, DPT_PRECISION_FP32},
        {1, 2, 32, 257, 19, 1, 257, 2, 0.0, DPT_PRECISION_FP32},
    };
    const size_t count = sizeof sizes / sizeof sizes[0];
    for (size_t i = 0; i < PRECISIONS * count; i++) {
        struct rig rig;
        struct rig_size here = sizes[i % count];
        here.precision = precisions[i / count];
        rig_open(&rig, &here);
        assert_true(isfinite(rig_run(&rig)));
        for (int p = 0; p < dpt_model_n_params(rig.model); p++) {
            const struct dpt_param *param = dpt_model_param(rig.model, p);
            for (int64_t k = 0; k < param->numel; k++)
                assert_true(isfinite(rig.grad[param->offset + k]));
        }
        rig_close(&rig);
    }
}

/* The model holds no state: two slots in flight at once, unit by unit, give the results of each
 * alone. */
static void slots_interleave(void **state)
{
    (void)state;
    struct rig a, b;
    rig_open(&a, &ODD);
    rig_open(&b, &ODD);
    a.slot.slot = 0;
    b.slot.slot = 1;
    rig_vary(&b, 7);
    float *grad_a, *grad_b;
    rig_run(&a);
    rig_run(&b);
    copy_grad(&a, &grad_a);
    copy_grad(&b, &grad_b);
    void *own = b.slot.scratch;
    b.slot.scratch = a.slot.scratch; /* its content means nothing between calls */
    const int units = dpt_model_n_units(a.model);
    for (int u = 0; u < units; u++) {
        dpt_model_forward(a.model, a.ops, a.stream, u, &a.slot);
        dpt_model_forward(a.model, a.ops, a.stream, u, &b.slot);
    }
    for (int u = units - 1; u >= 0; u--) {
        dpt_model_backward(a.model, a.ops, a.stream, u, &b.slot);
        dpt_model_backward(a.model, a.ops, a.stream, u, &a.slot);
    }
    assert_int_equal(dpt_stream_sync(a.stream, &err), DPT_OK);
    for (int p = 0; p < dpt_model_n_params(a.model); p++) {
        const struct dpt_param *param = dpt_model_param(a.model, p);
        const size_t bytes = (size_t)param->numel * sizeof(float);
        assert_memory_equal(grad_a + param->offset, a.grad + param->offset, bytes);
        assert_memory_equal(grad_b + param->offset, b.grad + param->offset, bytes);
    }
    b.slot.scratch = own;
    free(grad_a);
    free(grad_b);
    rig_close(&a);
    rig_close(&b);
}

/* Preparing mode: all units of both modes with no memory at all; then the same bits as without it.
 */
static void prepares_in(enum dpt_precision precision)
{
    struct rig rig;
    struct rig_size size = ODD;
    size.precision = precision;
    rig_open(&rig, &size);
    float *grad;
    rig_run(&rig);
    copy_grad(&rig, &grad);
    struct dpt_stream *prepared = NULL;
    assert_int_equal(dpt_stream_create(rig.dev, 2, &prepared, &err), DPT_OK);
    const struct dpt_slot real = rig.slot;
    rig.slot = (struct dpt_slot){
        .mode = DPT_MODE_TRAIN, .b = real.b, .t = real.t, .dloss = 1.0f, .share = 1.0f};
    const int units = dpt_model_n_units(rig.model);
    dpt_stream_prepare_begin(prepared);
    for (int u = 0; u < units; u++)
        dpt_model_forward(rig.model, rig.ops, prepared, u, &rig.slot);
    for (int accumulate = 0; accumulate < 2; accumulate++) {
        rig.slot.accumulate = accumulate != 0;
        for (int u = units - 1; u >= 0; u--)
            dpt_model_backward(rig.model, rig.ops, prepared, u, &rig.slot);
    }
    rig.slot.mode = DPT_MODE_EVAL;
    for (int u = 0; u < units; u++)
        dpt_model_forward(rig.model, rig.ops, prepared, u, &rig.slot);
    assert_int_equal(dpt_stream_prepare_end(prepared, &err), DPT_OK);
    rig.slot = real;
    struct dpt_stream *plain = rig.stream;
    rig.stream = prepared;
    memset(rig.grad, 0xff, (size_t)rig.numel * sizeof(float));
    rig_run(&rig);
    for (int p = 0; p < dpt_model_n_params(rig.model); p++) {
        const struct dpt_param *param = dpt_model_param(rig.model, p);
        assert_memory_equal(grad + param->offset, rig.grad + param->offset,
                            (size_t)param->numel * sizeof(float));
    }
    rig.stream = plain;
    dpt_stream_destroy(&prepared);
    free(grad);
    rig_close(&rig);
}

static void test_prepare_reserves_memory(void **state)
{
    (void)state;
    for (int i = 0; i < PRECISIONS; i++)
        prepares_in(precisions[i]);
}

static float initial_value(const struct dpt_param *p, struct dpt_rng_key key, uint64_t i)
{
    float pair[2];
    uint32_t words[4];
    switch (p->init) {
    case DPT_INIT_NORMAL:
        dpt_rng_normal_pair(key, i / 2 * 2, pair);
        return p->init_std * pair[i % 2];
    case DPT_INIT_UNIFORM:
        dpt_philox(key, i / 4, words);
        return p->init_std * ((float)(words[i % 4] >> 8) / (float)(1 << 23) - 1.0f);
    case DPT_INIT_ONE:
        return 1.0f;
    case DPT_INIT_ZERO:
        break;
    }
    return 0.0f;
}

/* Initial weights: a function of seed and table; normal or uniform where said, ones, zeros, zero
 * padding. */
static void initial_weights(void **state)
{
    (void)state;
    struct rig rig;
    rig_open(&rig, &(struct rig_size){4, 3, 51, 37, 131, 1, 2, 3, 0.0, DPT_PRECISION_FP32});
    memset(rig.flat, 0xff, (size_t)rig.numel * sizeof(float));
    dpt_model_init_range(rig.model, rig.ops, rig.stream, 42,
                         (struct dpt_span){0, dpt_model_flat_numel(rig.model)}, rig.flat);
    assert_int_equal(dpt_stream_sync(rig.stream, &err), DPT_OK);
    int64_t at = 0;
    for (int i = 0; i < dpt_model_n_params(rig.model); i++) {
        const struct dpt_param *p = dpt_model_param(rig.model, i);
        for (; at < p->offset; at++)
            assert_true(rig.flat[at] == 0.0f);
        const struct dpt_rng_key key = dpt_rng_key(42, DPT_RNG_INIT, (uint64_t)i, 0, 0);
        double sum = 0.0, squares = 0.0;
        for (int64_t k = 0; k < p->numel; k++, at++) {
            const double x = (double)rig.flat[at];
            assert_true(rig.flat[at] == initial_value(p, key, (uint64_t)k));
            sum += x;
            squares += x * x;
        }
        if (p->init == DPT_INIT_NORMAL) {
            const double n = (double)p->numel, std = (double)p->init_std;
            assert_true(fabs(sum / n) < 5.0 * std / sqrt(n));
            assert_true(fabs(sqrt(squares / n) / std - 1.0) < 5.0 / sqrt(2.0 * n));
        }
        if (p->init == DPT_INIT_UNIFORM) {
            const double n = (double)p->numel, std = (double)p->init_std / sqrt(3.0);
            if (p->ndim == 2) /* A of adapters (rank, in), or the head of images (labels, in) */
                assert_true(p->init_std == (float)(1.0 / sqrt((double)p->dim[1])));
            assert_true(fabs(sum / n) < 5.0 * std / sqrt(n));
            assert_true(fabs(sqrt(squares / n) / std - 1.0) < 5.0 / sqrt(2.0 * n));
        }
    }
    float *again = rig_memory((size_t)rig.numel * sizeof(float));
    dpt_model_init_range(rig.model, rig.ops, rig.stream, 43,
                         (struct dpt_span){0, dpt_model_flat_numel(rig.model)}, again);
    assert_int_equal(dpt_stream_sync(rig.stream, &err), DPT_OK);
    assert_memory_not_equal(again, rig.flat, 64);
    /* A range has the same bits as in the whole, for any begin and end. */
    static const int64_t cuts[] = {0, 1, 7, 1024, 2049, 4095, 6787, 6788, 9000};
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts && cuts[i] <= rig.numel; i++)
        for (size_t k = i; k <= sizeof cuts / sizeof *cuts; k++) {
            const bool inside = k < sizeof cuts / sizeof *cuts && cuts[k] <= rig.numel;
            const int64_t end = inside ? cuts[k] : rig.numel;
            memset(again, 0xff, (size_t)rig.numel * sizeof(float));
            dpt_model_init_range(rig.model, rig.ops, rig.stream, 42,
                                 (struct dpt_span){cuts[i], end}, again);
            assert_int_equal(dpt_stream_sync(rig.stream, &err), DPT_OK);
            assert_memory_equal(again, rig.flat + cuts[i], (size_t)(end - cuts[i]) * sizeof(float));
        }
    free(again);
    rig_close(&rig);
}

int main(int argc, char **argv)
{
    rig_choose(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads_odd),
        cmocka_unit_test(threads_round),
        cmocka_unit_test(test_gradients_are_overwritten),
        cmocka_unit_test(unused_positions),
        cmocka_unit_test(test_gradients_accumulate),
        cmocka_unit_test(test_parameters_are_announced_once),
        cmocka_unit_test(announced_is_final),
        cmocka_unit_test(eval_is_train),
        cmocka_unit_test(test_shortest_and_longest_samples),
        cmocka_unit_test(slots_interleave),
        cmocka_unit_test(test_prepare_reserves_memory),
        cmocka_unit_test(initial_weights),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
