/* Running statistics among the parameters: their rule against a rule in double under every
 * optimizer, for any scale, rate and decay; they do not count in the norm; their neighbours keep
 * their bits. */
#include "kernels/half.h"
#include "worker/model/kind.h"
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

enum { SLOTS = 6, STEP = 5 };

static const char *const optimizers[] = {"adamw", "adam", "sgd"};
enum { OPTIMIZERS = sizeof optimizers / sizeof *optimizers };

static struct dpt_err err;

struct rig {
    struct dpt_config config;
    struct dpt_model *model;
    struct dpt_device *device;
    struct dpt_stream *stream;
    const struct dpt_ops *ops;
    int64_t numel;
    float *param, *grad, *m, *v;
    uint16_t *copy; /* NULL: none is made */
};

/* Statistics in the middle of a block, several in one, over whole blocks and parts of them, as all
 * of a unit, as its first and its last. */
static struct dpt_model *make_averaged_model(bool averaged, enum dpt_dtype dtype)
{
    const struct dpt_param_rule weight = {true, DPT_INIT_NORMAL, 0.02f, false};
    const struct dpt_param_rule bias = {false, DPT_INIT_ZERO, 0.0f, false};
    const struct dpt_param_rule statistic = {false, DPT_INIT_ONE, 0.0f, averaged};
    const struct entry {
        const char *unit, *name; /* unit: one begins here */
        struct dpt_shape shape;
        const struct dpt_param_rule *rule;
    } entries[] = {
        {"mixed", "weight", {{40, 33}}, &weight},
        {NULL, "mean", {{7}}, &statistic},
        {NULL, "var", {{7}}, &statistic},
        {NULL, "bias", {{5}}, &bias},
        {NULL, "last", {{700}}, &statistic},
        {"wide", "mean", {{3000}}, &statistic},
        {NULL, "weight", {{7, 300}}, &weight},
        {NULL, "var", {{3000}}, &statistic},
        {NULL, "bias", {{3}}, &bias},
        {"statistics", "var", {{2048}}, &statistic},
        {"plain", "weight", {{64, 48}}, &weight},
        {"behind", "mean", {{1}}, &statistic},
        {NULL, "weight", {{3, 3, 3, 64}}, &weight},
    };
    enum { N = sizeof entries / sizeof *entries };
    static const struct dpt_model_kind bare; /* a table is all that the optimizer looks at */
    struct dpt_model *model = calloc(1, sizeof *model);
    assert_non_null(model);
    model->kind = &bare;
    assert_int_equal(dpt_table_init(model, 5, N, &err), DPT_OK);
    for (int i = 0; i < N; i++) {
        if (entries[i].unit && i > 0)
            dpt_table_end_unit(model);
        if (entries[i].unit)
            dpt_table_begin_unit(model, entries[i].unit);
        dpt_table_add(model, "", entries[i].name, entries[i].shape, *entries[i].rule);
    }
    dpt_table_end_unit(model);
    model->dtype = dtype;
    return model;
}

static float *download_values(const struct rig *rig, int what)
{
    float *p = aligned_alloc(64, (size_t)rig->numel * sizeof *p);
    assert_non_null(p);
    rig->ops->fill_normal(
        rig->stream, rig->numel,
        &(struct dpt_normal){dpt_rng_key(1, DPT_RNG_TEST, (uint64_t)what, 0, 0), 0, 0.0f, 0.1f}, p);
    assert_int_equal(dpt_stream_sync(rig->stream, &err), DPT_OK);
    return p;
}

static void open_rig(struct rig *rig, const char *optimizer, bool averaged, enum dpt_dtype dtype)
{
    *rig = (struct rig){.model = make_averaged_model(averaged, dtype)};
    struct dpt_config *c = &rig->config;
    dpt_config_defaults(c);
    (void)snprintf(c->optimizer.name, sizeof c->optimizer.name, "%s", optimizer);
    c->train.micro_batch = 2;
    c->train.global_batch = 2 * SLOTS;
    c->train.steps = 100;
    c->optimizer.momentum = 0.9;
    assert_true(c->optimizer.weight_decay > 0);
    assert_int_equal(dpt_device_cpu_create(&rig->device, &err), DPT_OK);
    assert_int_equal(dpt_stream_create(rig->device, 2, &rig->stream, &err), DPT_OK);
    rig->ops = dpt_device_ops(rig->device);
    rig->numel = dpt_model_flat_numel(rig->model);
    rig->param = download_values(rig, 0);
    rig->grad = download_values(rig, 1);
    rig->m = download_values(rig, 2);
    rig->v = download_values(rig, 3);
    for (int64_t i = 0; i < rig->numel; i++)
        rig->v[i] *= rig->v[i];
    for (int unit = 0; unit < dpt_model_n_units(rig->model); unit++) /* as strategies have them */
        dpt_model_clear_gaps(rig->model, rig->ops, rig->stream, unit,
                             rig->grad + dpt_model_unit(rig->model, unit)->offset);
    assert_int_equal(dpt_stream_sync(rig->stream, &err), DPT_OK);
}

static void close_rig(struct rig *rig)
{
    free(rig->param);
    free(rig->grad);
    free(rig->m);
    free(rig->v);
    free(rig->copy);
    dpt_model_destroy(&rig->model);
    dpt_stream_destroy(&rig->stream);
    dpt_device_destroy(&rig->device);
}

static void update(struct rig *rig, float grad_scale, int64_t first, int64_t end)
{
    const struct dpt_optim_step step = {.step = STEP, .updates = STEP, .grad_scale = grad_scale};
    const struct dpt_optim_vectors flat = {.span = {first, end},
                                           .param = rig->param,
                                           .m = rig->m,
                                           .v = rig->v,
                                           .grad = rig->grad,
                                           .copy = rig->copy};
    dpt_optim_update(&rig->config, rig->model, rig->ops, rig->stream, &step, &flat);
    assert_int_equal(dpt_stream_sync(rig->stream, &err), DPT_OK);
}

static bool is_statistic(const struct rig *rig, int64_t element)
{
    for (int i = 0; i < dpt_model_n_params(rig->model); i++) {
        const struct dpt_param *p = dpt_model_param(rig->model, i);
        if (element >= p->offset && element < p->offset + p->numel)
            return p->averaged;
    }
    return false;
}

/* After one step with this scale of the gradient; `plain` has no statistics in its table. */
static void moved_by_their_rule(const char *optimizer, float grad_scale)
{
    struct rig before, after, plain;
    open_rig(&before, optimizer, true, DPT_F32);
    open_rig(&after, optimizer, true, DPT_F32);
    open_rig(&plain, optimizer, false, DPT_F32);
    assert_int_equal(plain.numel, after.numel);
    update(&after, grad_scale, 0, after.numel);
    update(&plain, grad_scale, 0, plain.numel);
    const double factor = 1.0 - pow(0.9, SLOTS);
    for (int64_t i = 0; i < after.numel; i++) {
        if (!is_statistic(&after, i)) {
            assert_memory_equal(&after.param[i], &plain.param[i], sizeof(float));
            assert_memory_equal(&after.m[i], &plain.m[i], sizeof(float));
            assert_memory_equal(&after.v[i], &plain.v[i], sizeof(float));
            continue;
        }
        const double r = (double)before.param[i];
        const double mean = (double)before.grad[i], want = r + factor * (mean - r);
        if (!(fabs((double)after.param[i] - want) <= 1.5e-7 * (fabs(r) + fabs(mean))))
            fail_msg("%s, scale %g, element %lld: %.9g, expected %.9g", optimizer,
                     (double)grad_scale, (long long)i, (double)after.param[i], want);
        assert_true(after.m[i] == before.m[i] && after.v[i] == before.v[i]);
    }
    close_rig(&before);
    close_rig(&after);
    close_rig(&plain);
}

static void statistics_have_a_rule_of_their_own(void **state)
{
    (void)state;
    for (int i = 0; i < OPTIMIZERS; i++) {
        moved_by_their_rule(optimizers[i], 1.0f);
        moved_by_their_rule(optimizers[i], 0x1p-16f * 0.3f); /* fp16's scale, and clipping */
        moved_by_their_rule(optimizers[i], NAN);
    }
}

/* With the same statistic in every micro-batch the rule is PyTorch's, G times. */
static void as_many_updates_as_micro_batches(void **state)
{
    (void)state;
    struct rig rig;
    open_rig(&rig, "adamw", true, DPT_F32);
    const struct dpt_param *p = dpt_model_param(rig.model, 1);
    assert_true(p->averaged);
    double want = (double)rig.param[p->offset];
    for (int slot = 0; slot < SLOTS; slot++)
        want += 0.1 * ((double)rig.grad[p->offset] - want);
    update(&rig, 1.0f, 0, rig.numel);
    assert_true(fabs((double)rig.param[p->offset] - want) <= 1e-7);
    close_rig(&rig);
}

static void averaged_update_in_ranges_has_same_bits(void **state)
{
    (void)state;
    for (int i = 0; i < OPTIMIZERS; i++) {
        struct rig whole, parts;
        open_rig(&whole, optimizers[i], true, DPT_F32);
        open_rig(&parts, optimizers[i], true, DPT_F32);
        update(&whole, 0.5f, 0, whole.numel);
        for (int64_t at = 0, width = 1; at < parts.numel; width = (width * 7 + 3) % 1013) {
            const int64_t end = at + width < parts.numel ? at + width : parts.numel;
            update(&parts, 0.5f, at, end);
            at = end;
        }
        const size_t bytes = (size_t)whole.numel * sizeof(float);
        assert_memory_equal(whole.param, parts.param, bytes);
        assert_memory_equal(whole.m, parts.m, bytes);
        assert_memory_equal(whole.v, parts.v, bytes);
        close_rig(&whole);
        close_rig(&parts);
    }
}

static void copied_in_bf16(void **state)
{
    (void)state;
    struct rig rig;
    open_rig(&rig, "adamw", true, DPT_BF16);
    rig.copy = calloc((size_t)rig.numel, sizeof *rig.copy);
    assert_non_null(rig.copy);
    update(&rig, 1.0f, 0, rig.numel);
    for (int64_t i = 0; i < rig.numel; i++)
        if (is_statistic(&rig, i))
            assert_int_equal(rig.copy[i], dpt_bf16_of_f32(rig.param[i]));
    close_rig(&rig);
}

/* The sum of squares of the flat vector, made in `n_parts` parts of whole blocks. */
static struct dpt_accum sum_of(const struct rig *rig, int64_t n_parts)
{
    const int64_t blocks = rig->numel / DPT_BLOCK;
    const int64_t max = dpt_optim_squares_max(rig->model, rig->numel);
    double *squares = calloc((size_t)max, sizeof *squares);
    assert_non_null(squares);
    struct dpt_accum sum;
    dpt_accum_init(&sum);
    int64_t all = 0;
    for (int64_t i = 0; i < n_parts; i++) {
        const struct dpt_span span = {blocks * i / n_parts * DPT_BLOCK,
                                      blocks * (i + 1) / n_parts * DPT_BLOCK};
        const int64_t n = dpt_optim_squares(rig->model, rig->ops, rig->stream, span,
                                            rig->grad + span.first, squares);
        assert_int_equal(dpt_stream_sync(rig->stream, &err), DPT_OK);
        assert_int_equal(dpt_optim_squares_add(rig->model, span, squares, &sum), n);
        all += n;
    }
    assert_true(all <= max);
    free(squares);
    dpt_accum_normalise(&sum);
    return sum;
}

static void norm_leaves_statistics_out(void **state)
{
    (void)state;
    struct rig rig;
    open_rig(&rig, "adamw", true, DPT_F32);
    double want = 0;
    for (int64_t i = 0; i < rig.numel; i++)
        want += is_statistic(&rig, i) ? 0.0 : (double)rig.grad[i] * (double)rig.grad[i];
    const struct dpt_accum whole = sum_of(&rig, 1);
    assert_true(fabs(dpt_accum_value(&whole) - want) <= 1e-12 * want);
    for (int64_t i = 0; i < rig.numel; i++)
        rig.grad[i] = is_statistic(&rig, i) ? 1e30f : rig.grad[i];
    for (int64_t parts = 1; parts <= rig.numel / DPT_BLOCK; parts++) {
        const struct dpt_accum sum = sum_of(&rig, parts);
        assert_memory_equal(&sum, &whole, sizeof sum);
    }
    close_rig(&rig);
}

/* What the optimizer did before there were statistics. */
static void norm_of_a_table_without_any(void **state)
{
    (void)state;
    struct rig rig;
    open_rig(&rig, "adamw", false, DPT_F32);
    const int64_t blocks = rig.numel / DPT_BLOCK;
    assert_int_equal(dpt_optim_squares_max(rig.model, rig.numel), blocks);
    double *sums = calloc((size_t)blocks, sizeof *sums);
    assert_non_null(sums);
    rig.ops->sumsq_blocks(rig.stream, rig.numel, DPT_BLOCK, rig.grad, sums);
    assert_int_equal(dpt_stream_sync(rig.stream, &err), DPT_OK);
    struct dpt_accum want;
    dpt_accum_init(&want);
    for (int64_t i = 0; i < blocks; i++)
        dpt_accum_add(&want, sums[i]);
    dpt_accum_normalise(&want);
    const struct dpt_accum sum = sum_of(&rig, 3);
    assert_memory_equal(&sum, &want, sizeof sum);
    free(sums);
    close_rig(&rig);
}

/* Any single one, the first and the last of each tensor. */
static void not_finite_shows_in_the_norm(void **state)
{
    (void)state;
    struct rig rig;
    open_rig(&rig, "adamw", true, DPT_F32);
    for (int i = 0; i < dpt_model_n_params(rig.model); i++) {
        const struct dpt_param *p = dpt_model_param(rig.model, i);
        const int64_t at[] = {p->offset, p->offset + p->numel - 1};
        const float bad[] = {INFINITY, NAN};
        for (int k = 0; k < 2; k++) {
            const float was = rig.grad[at[k]];
            rig.grad[at[k]] = bad[k];
            const struct dpt_accum sum = sum_of(&rig, 4);
            const double value = dpt_accum_value(&sum);
            assert_true(isnan(value) || isinf(value));
            rig.grad[at[k]] = was;
        }
    }
    close_rig(&rig);
}

static void no_parameters_as_the_field_counts(void **state)
{
    (void)state;
    struct rig rig, plain;
    open_rig(&rig, "adamw", true, DPT_F32);
    open_rig(&plain, "adamw", false, DPT_F32);
    int64_t statistics = 0;
    for (int64_t i = 0; i < rig.numel; i++)
        statistics += is_statistic(&rig, i);
    assert_true(statistics > 0);
    assert_int_equal(dpt_model_param_count(rig.model) + statistics,
                     dpt_model_param_count(plain.model));
    close_rig(&rig);
    close_rig(&plain);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(statistics_have_a_rule_of_their_own),
        cmocka_unit_test(as_many_updates_as_micro_batches),
        cmocka_unit_test(averaged_update_in_ranges_has_same_bits),
        cmocka_unit_test(copied_in_bf16),
        cmocka_unit_test(norm_leaves_statistics_out),
        cmocka_unit_test(norm_of_a_table_without_any),
        cmocka_unit_test(not_finite_shows_in_the_norm),
        cmocka_unit_test(no_parameters_as_the_field_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
