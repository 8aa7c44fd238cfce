/* AdamW, Adam and SGD over ranges: against the textbook in double, PyTorch's Adam, decay by tensor,
 * padding untouched, the same bits however the range is cut; the copy in 16 bits. */
#include "kernels/half.h"
#include "worker/optim/optim.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct dpt_err err;

struct rig {
    struct dpt_config config;
    struct dpt_model *model;
    struct dpt_device *dev;
    struct dpt_stream *stream;
    int64_t numel, skipped;
    float *param, *grad, *m, *v;
    uint16_t *copy; /* NULL: none is made */
};

static float *floats(int64_t n)
{
    float *p = aligned_alloc(64, (size_t)n * sizeof *p);
    assert_non_null(p);
    return p;
}

static void rig_open_precision(struct rig *rig, enum dpt_precision precision)
{
    memset(rig, 0, sizeof *rig);
    rig->config.train.precision = precision;
    (void)snprintf(rig->config.model.name, sizeof rig->config.model.name, "gpt2");
    (void)snprintf(rig->config.optimizer.name, sizeof rig->config.optimizer.name, "adamw");
    rig->config.model.n_layer = 2;
    rig->config.model.n_head = 3;
    rig->config.model.n_embd = 51;
    rig->config.model.context = 37;
    rig->config.model.vocab = 131;
    rig->config.train.steps = 100;
    rig->config.optimizer.lr = 1e-2;
    rig->config.optimizer.min_lr = 1e-3;
    rig->config.optimizer.schedule = DPT_SCHEDULE_COSINE;
    rig->config.optimizer.warmup_steps = 2;
    rig->config.optimizer.beta1 = 0.9;
    rig->config.optimizer.beta2 = 0.95;
    rig->config.optimizer.eps = 1e-8;
    rig->config.optimizer.weight_decay = 0.1;
    assert_int_equal(dpt_model_create(&rig->config, &rig->model, &err), DPT_OK);
    assert_int_equal(dpt_device_cpu_create(&rig->dev, &err), DPT_OK);
    assert_int_equal(dpt_stream_create(rig->dev, 2, &rig->stream, &err), DPT_OK);
    rig->numel = dpt_model_flat_numel(rig->model);
    float **all[] = {&rig->param, &rig->grad, &rig->m, &rig->v};
    for (int i = 0; i < 4; i++) {
        *all[i] = floats(rig->numel);
        dpt_device_ops(rig->dev)->fill_normal(
            rig->stream, rig->numel,
            &(struct dpt_normal){dpt_rng_key(1, DPT_RNG_TEST, (uint64_t)i, 0, 0), 0, 0.0f, 0.1f},
            *all[i]);
    }
    assert_int_equal(dpt_stream_sync(rig->stream, &err), DPT_OK);
    for (int64_t i = 0; i < rig->numel; i++)
        rig->v[i] = rig->v[i] * rig->v[i];
}

static void rig_open(struct rig *rig)
{
    rig_open_precision(rig, DPT_PRECISION_FP32);
}

static void rig_open_named(struct rig *rig, const char *optimizer)
{
    rig_open(rig);
    (void)snprintf(rig->config.optimizer.name, sizeof rig->config.optimizer.name, "%s", optimizer);
}

static void rig_open_sgd(struct rig *rig, double momentum, bool nesterov)
{
    rig_open_named(rig, "sgd");
    rig->config.optimizer.momentum = momentum;
    rig->config.optimizer.nesterov = nesterov;
}

static void rig_close(struct rig *rig)
{
    free(rig->param);
    free(rig->grad);
    free(rig->m);
    free(rig->v);
    dpt_model_destroy(&rig->model);
    dpt_stream_destroy(&rig->stream);
    dpt_device_destroy(&rig->dev);
}

static void update(struct rig *rig, int64_t step, int64_t first, int64_t end)
{
    const struct dpt_optim_step of_step = {
        .step = step, .updates = step - rig->skipped, .grad_scale = 0.5f};
    const struct dpt_optim_vectors flat = {.span = {first, end},
                                           .param = rig->param,
                                           .m = rig->m,
                                           .v = rig->v,
                                           .grad = rig->grad,
                                           .copy = rig->copy};
    dpt_optim_update(&rig->config, rig->model, dpt_device_ops(rig->dev), rig->stream, &of_step,
                     &flat);
    assert_int_equal(dpt_stream_sync(rig->stream, &err), DPT_OK);
}

/* The tensor that holds element i, or NULL for padding. */
static const struct dpt_param *holder(const struct dpt_model *model, int64_t i)
{
    for (int p = 0; p < dpt_model_n_params(model); p++) {
        const struct dpt_param *param = dpt_model_param(model, p);
        if (i >= param->offset && i < param->offset + param->numel)
            return param;
    }
    return NULL;
}

/* Steps that were skipped count for the learning rate, not for the moments' age. */
static void textbook_adam(const char *name, int64_t step, int64_t skipped)
{
    struct rig before, after;
    rig_open_named(&before, name);
    rig_open_named(&after, name);
    const bool l2 = strcmp(name, "adam") == 0;
    after.skipped = skipped;
    update(&after, step, 0, after.numel);
    const double lr = dpt_optim_lr(&before.config, step);
    const double bias1 = 1.0 - pow(0.9, (double)(step - skipped) + 1.0);
    const double bias2 = 1.0 - pow(0.95, (double)(step - skipped) + 1.0);
    for (int64_t i = 0; i < before.numel; i++) {
        const struct dpt_param *tensor = holder(before.model, i);
        if (tensor == NULL) {
            assert_true(before.param[i] == after.param[i] && before.m[i] == after.m[i] &&
                        before.v[i] == after.v[i]);
            continue;
        }
        double p = (double)before.param[i];
        const double decay = tensor->ndim == 2 ? 0.1 * p : 0.0;
        const double g = 0.5 * (double)before.grad[i] + (l2 ? decay : 0.0);
        const double m = 0.9 * (double)before.m[i] + 0.1 * g;
        const double v = 0.95 * (double)before.v[i] + 0.05 * g * g;
        p -= l2 ? 0.0 : lr * decay;
        p -= lr * (m / bias1) / (sqrt(v / bias2) + 1e-8);
        assert_true(fabs((double)after.m[i] - m) <= 1e-6 * (fabs(m) + 1e-2));
        assert_true(fabs((double)after.v[i] - v) <= 1e-6 * (v + 1e-4));
        if (!(fabs((double)after.param[i] - p) <= 1e-6 * (fabs(p) + 1e-1)))
            fail_msg("element %lld of %s: %.9g, expected %.9g", (long long)i, tensor->name,
                     (double)after.param[i], p);
    }
    rig_close(&before);
    rig_close(&after);
}

static void test_adamw_as_pytorch(void **state)
{
    (void)state;
    textbook_adam("adamw", 5, 0);
    textbook_adam("adamw", 5, 2);
    textbook_adam("adamw", 5, 5);
}

static void test_adam_as_textbook(void **state)
{
    (void)state;
    textbook_adam("adam", 5, 0);
    textbook_adam("adam", 5, 2);
}

/* Recorded by record_adam.py: the first elements of a matrix, with a new gradient each step. */
static void adam_as_pytorch(void **state)
{
    (void)state;
    enum { N = 6, STEPS = 4 };
    static const struct {
        float first[N];
        struct {
            float grad[N], param[N];
        } step[STEPS];
    } recorded = {
#include "tests/worker/optim/adam_cases.inc"
    };
    struct rig rig;
    rig_open_named(&rig, "adam");
    rig.config.optimizer.schedule = DPT_SCHEDULE_CONSTANT;
    rig.config.optimizer.warmup_steps = 0;
    const struct dpt_param *matrix = dpt_model_param(rig.model, 0);
    assert_int_equal(matrix->ndim, 2);
    const int64_t at = matrix->offset;
    memset(rig.m, 0, (size_t)rig.numel * sizeof *rig.m);
    memset(rig.v, 0, (size_t)rig.numel * sizeof *rig.v);
    memcpy(rig.param + at, recorded.first, sizeof recorded.first);
    for (int64_t step = 0; step < STEPS; step++) {
        for (int i = 0; i < N; i++)
            rig.grad[at + i] = 2.0f * recorded.step[step].grad[i]; /* update() halves it */
        update(&rig, step, at, at + N);
        for (int i = 0; i < N; i++)
            if (!(fabsf(rig.param[at + i] - recorded.step[step].param[i]) <= 1e-7f))
                fail_msg("step %d, element %d: %.9g, recorded %.9g", (int)step, i,
                         (double)rig.param[at + i], (double)recorded.step[step].param[i]);
    }
    rig_close(&rig);
}

static void textbook_sgd(double momentum, bool nesterov)
{
    struct rig before, after;
    rig_open_sgd(&before, momentum, nesterov);
    rig_open_sgd(&after, momentum, nesterov);
    const int64_t step = 5;
    update(&after, step, 0, after.numel);
    const double lr = dpt_optim_lr(&before.config, step);
    for (int64_t i = 0; i < before.numel; i++) {
        const struct dpt_param *tensor = holder(before.model, i);
        assert_true(before.v[i] == after.v[i]);
        if (tensor == NULL || !(momentum > 0.0))
            assert_true(before.m[i] == after.m[i]);
        if (tensor == NULL) {
            assert_true(before.param[i] == after.param[i]);
            continue;
        }
        double p = (double)before.param[i];
        const double g = 0.5 * (double)before.grad[i] + (tensor->ndim == 2 ? 0.1 * p : 0.0);
        const double m = momentum * (double)before.m[i] + g;
        p -= lr * (nesterov ? g + momentum * m : momentum > 0.0 ? m : g);
        if (momentum > 0.0)
            assert_true(fabs((double)after.m[i] - m) <= 1e-6 * (fabs(m) + 1e-2));
        if (!(fabs((double)after.param[i] - p) <= 1e-6 * (fabs(p) + 1e-1)))
            fail_msg("element %lld of %s: %.9g, expected %.9g", (long long)i, tensor->name,
                     (double)after.param[i], p);
    }
    rig_close(&before);
    rig_close(&after);
}

static void test_sgd_as_textbook(void **state)
{
    (void)state;
    textbook_sgd(0.9, false);
    textbook_sgd(0.9, true);
    textbook_sgd(0.0, false);
}

/* Cuts at odd places, inside tensors and padding, empty ranges among them. */
static void cut_ranges(const char *optimizer)
{
    struct rig whole, parts;
    if (strcmp(optimizer, "sgd") == 0) {
        rig_open_sgd(&whole, 0.9, true);
        rig_open_sgd(&parts, 0.9, true);
    } else {
        rig_open_named(&whole, optimizer);
        rig_open_named(&parts, optimizer);
    }
    for (int64_t step = 0; step < 3; step++) {
        update(&whole, step, 0, whole.numel);
        int64_t at = 0, width = 1;
        while (at < parts.numel) {
            const int64_t end = at + width < parts.numel ? at + width : parts.numel;
            update(&parts, step, at, at);
            update(&parts, step, at, end);
            at = end;
            width = (width * 7 + 3) % 5003;
        }
    }
    const size_t bytes = (size_t)whole.numel * sizeof(float);
    assert_memory_equal(whole.param, parts.param, bytes);
    assert_memory_equal(whole.m, parts.m, bytes);
    assert_memory_equal(whole.v, parts.v, bytes);
    rig_close(&whole);
    rig_close(&parts);
}

static void update_in_ranges_has_same_bits(void **state)
{
    (void)state;
    cut_ranges("adamw");
    cut_ranges("adam");
    cut_ranges("sgd");
}

/* bf16: the update also writes the new parameters rounded, and changes nothing else. */
static void copied_in_bf16(const char *optimizer)
{
    struct rig plain, copied;
    rig_open(&plain);
    rig_open_precision(&copied, DPT_PRECISION_BF16);
    plain.config.optimizer.momentum = copied.config.optimizer.momentum = 0.9;
    struct rig *const both[] = {&plain, &copied};
    for (int i = 0; i < 2; i++)
        (void)snprintf(both[i]->config.optimizer.name, sizeof both[i]->config.optimizer.name, "%s",
                       optimizer);
    copied.copy = calloc((size_t)copied.numel, sizeof *copied.copy);
    assert_non_null(copied.copy);
    const int64_t cut = 12345;
    update(&plain, 4, 0, plain.numel);
    update(&copied, 4, 0, cut);
    for (int64_t i = cut; i < copied.numel; i++)
        assert_int_equal(copied.copy[i], 0);
    update(&copied, 4, cut, copied.numel);
    assert_memory_equal(plain.param, copied.param, (size_t)plain.numel * sizeof(float));
    for (int64_t i = 0; i < copied.numel; i++)
        assert_int_equal(copied.copy[i],
                         holder(copied.model, i) ? dpt_bf16_of_f32(copied.param[i]) : 0);
    free(copied.copy);
    rig_close(&plain);
    rig_close(&copied);
}

static void copy_in_bf16(void **state)
{
    (void)state;
    copied_in_bf16("adamw");
    copied_in_bf16("adam");
    copied_in_bf16("sgd");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_adamw_as_pytorch),
        cmocka_unit_test(test_adam_as_textbook),
        cmocka_unit_test(adam_as_pytorch),
        cmocka_unit_test(test_sgd_as_textbook),
        cmocka_unit_test(update_in_ranges_has_same_bits),
        cmocka_unit_test(copy_in_bf16),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
