/* Adapters against the model with merged weights (dpt_model_merge): the same losses, and gradients
 * that follow from those of its weights, dB = s dW A^T and dA = s B^T dW. */
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

static const struct rig_size ODD = {2, 3, 51, 37, 131, 3, 29, 2, 0.0, DPT_PRECISION_FP32};

/* The base with the adapters in its weights, and its head. */
static void open_merged(const struct rig *adapters, struct rig *ret)
{
    const struct dpt_model *model = adapters->model, *base = dpt_model_base(model);
    struct dpt_config config = adapters->config;
    config.train.lora.rank = 0;
    rig_open_config(ret, &config, (int)adapters->slot.b, (int)adapters->slot.t, 2);
    assert_int_equal(ret->numel, dpt_model_flat_numel(base));
    memcpy(ret->flat, adapters->base, (size_t)ret->numel * sizeof(float));
    for (int i = 0; i < dpt_model_n_params(base); i++) {
        const struct dpt_param *p = dpt_model_param(base, i);
        const int a = dpt_model_adapter(model, i);
        float *w = ret->flat + p->offset;
        if (i == dpt_model_score(base))
            memcpy(w, adapters->flat + dpt_model_param(model, dpt_model_score(model))->offset,
                   (size_t)p->numel * sizeof *w);
        if (a < 0)
            continue;
        const float *of_a = adapters->flat + dpt_model_param(model, a)->offset,
                    *of_b = adapters->flat + dpt_model_param(model, a + 1)->offset;
        const int64_t half = p->numel / 2; /* in two parts, as it is read */
        dpt_model_merge(model, i, (struct dpt_span){0, half}, of_a, of_b, w);
        dpt_model_merge(model, i, (struct dpt_span){half, p->numel}, of_a, of_b, w + half);
    }
}

static void expect_near(const char *name, const float *found, const double *expected, int64_t n)
{
    double difference = 0.0, whole = 0.0;
    for (int64_t i = 0; i < n; i++) {
        difference += ((double)found[i] - expected[i]) * ((double)found[i] - expected[i]);
        whole += expected[i] * expected[i];
    }
    if (!(whole > 0.0) || !(sqrt(difference / whole) < 1e-4))
        fail_msg("%s: relative L2 %g", name, sqrt(difference / whole));
}

/* From dw, the merged model's gradient of parameter `param` of the base. */
static void check_adapter(const struct rig *rig, int param, const float *dw)
{
    const struct dpt_model *model = rig->model;
    const int first = dpt_model_adapter(model, param);
    const struct dpt_param *of_a = dpt_model_param(model, first),
                           *of_b = dpt_model_param(model, first + 1);
    const int64_t rank = of_a->dim[0], in = of_a->dim[1], out = of_b->dim[0];
    const float *a = rig->flat + of_a->offset, *b = rig->flat + of_b->offset;
    const double scale = rig->config.train.lora.alpha / (double)rank;
    double *da = calloc((size_t)of_a->numel, sizeof *da),
           *db = calloc((size_t)of_b->numel, sizeof *db);
    assert_true(da != NULL && db != NULL);
    assert_int_equal(of_b->dim[1], rank);
    for (int64_t o = 0; o < out; o++)
        for (int64_t i = 0; i < in; i++) {
            const double d = scale * (double)dw[rig_is_gpt2() ? i * out + o : o * in + i];
            for (int64_t r = 0; r < rank; r++) {
                db[o * rank + r] += d * (double)a[r * in + i];
                da[r * in + i] += d * (double)b[o * rank + r];
            }
        }
    expect_near(of_a->name, rig->grad + of_a->offset, da, of_a->numel);
    expect_near(of_b->name, rig->grad + of_b->offset, db, of_b->numel);
    free(da);
    free(db);
}

static void as_the_merged_model(void **state)
{
    (void)state;
    struct rig rig, merged;
    rig_open(&rig, &ODD);
    open_merged(&rig, &merged);
    const double loss = rig_run(&rig), expected = rig_run(&merged);
    assert_true(fabs(loss - expected) < 1e-5 * expected);
    const struct dpt_model *base = dpt_model_base(rig.model);
    int adapted = 0;
    for (int i = 0; i < dpt_model_n_params(base); i++) {
        const struct dpt_param *p = dpt_model_param(base, i);
        if (dpt_model_adapter(rig.model, i) >= 0) {
            check_adapter(&rig, i, merged.grad + p->offset);
            adapted++;
        }
    }
    assert_int_equal(2 * adapted + (dpt_model_labels(base) > 0), dpt_model_n_params(rig.model));
    rig_close(&merged);
    rig_close(&rig);
}

/* B of zero adds nothing: the losses are the base's, bit for bit. */
static void begins_as_the_base(void **state)
{
    (void)state;
    struct rig rig, base;
    rig_open(&rig, &ODD);
    const int score = dpt_model_score(rig.model);
    for (int i = 0; i < dpt_model_n_params(rig.model); i++) {
        const struct dpt_param *p = dpt_model_param(rig.model, i);
        if (i != score && p->init == DPT_INIT_ZERO)
            memset(rig.flat + p->offset, 0, (size_t)p->numel * sizeof(float));
    }
    open_merged(&rig, &base);
    rig_run(&rig);
    rig_run(&base);
    assert_memory_equal(rig.slot.losses, base.slot.losses, (size_t)rig.losses * sizeof(float));
    rig_close(&base);
    rig_close(&rig);
}

static struct {
    const struct dpt_ops *ops; /* that do the work */
    int products;              /* that make the input's gradient of a frozen weight */
    int norms;                 /* backward */
} counted;

static void count_product(struct dpt_stream *stream, const struct dpt_linear_backward *a)
{
    counted.products += a->dx != NULL && a->dw == NULL;
    counted.ops->linear_backward(stream, a);
}

static void count_norm(struct dpt_stream *stream, const struct dpt_layernorm_backward *a)
{
    counted.norms++;
    counted.ops->layernorm_backward(stream, a);
}

/* Nothing before the first block is trained: it makes no gradient of its input. */
static void no_gradient_of_the_first_input(void **state)
{
    (void)state;
    enum { PRODUCTS = 4, NORMS = 2 /* of a block */ };
    struct rig rig;
    rig_open(&rig, &ODD);
    struct dpt_ops counting = *rig.ops;
    counting.linear_backward = count_product;
    counting.layernorm_backward = count_norm;
    counted.ops = rig.ops;
    rig.ops = &counting;
    rig_run(&rig);
    rig.ops = counted.ops;
    assert_int_equal(counted.products, ODD.n_layer * PRODUCTS - 1);
    assert_int_equal(counted.norms, ODD.n_layer * NORMS - 1 + 1); /* the head's */
    rig_close(&rig);
}

/* PEFT's names, shapes and order: those of the base's layers, A and then B. */
static void test_adapter_names(void **state)
{
    (void)state;
    struct rig rig;
    rig_open(&rig, &ODD);
    const struct dpt_param *a = dpt_model_param(rig.model, 0), *b = dpt_model_param(rig.model, 1);
    assert_string_equal(
        a->name, rig_is_gpt2() ? "base_model.model.transformer.h.0.attn.c_attn.lora_A.weight"
                               : "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight");
    assert_int_equal(a->dim[0], 3);
    assert_int_equal(a->dim[1], ODD.n_embd);
    assert_non_null(strstr(b->name, ".lora_B.weight"));
    assert_int_equal(b->dim[1], 3);
    assert_true(a->decay && b->decay);
    if (dpt_model_labels(rig.model) > 0)
        assert_string_equal(dpt_model_param(rig.model, dpt_model_score(rig.model))->name,
                            "base_model.model.score.weight");
    assert_null(dpt_model_base(dpt_model_base(rig.model)));
    assert_int_equal(dpt_model_adapter(rig.model, 0), -1); /* of the embedding */
    rig_close(&rig);
}

int main(int argc, char **argv)
{
    rig_choose(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_the_merged_model),
        cmocka_unit_test(begins_as_the_base),
        cmocka_unit_test(no_gradient_of_the_first_input),
        cmocka_unit_test(test_adapter_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
