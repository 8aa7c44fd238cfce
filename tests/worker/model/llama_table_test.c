/* The Llama family's table: names, shapes and counts as Hugging Face has them, units, the matrices
 * that are one to products. */
#include "worker/model/model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct dpt_err err;

static struct dpt_model *make_llama(const char *yaml)
{
    static struct dpt_config config;
    struct dpt_model *model = NULL;
    if (dpt_config_load_text(yaml, "test", NULL, 0, &config, &err) != DPT_OK ||
        dpt_model_create(&config, &model, &err) != DPT_OK)
        fail_msg("%s", err.text);
    return model;
}

/* As published; a tied head counts once. */
static void test_published_parameter_counts(void **state)
{
    (void)state;
    static const struct {
        const char *preset;
        int64_t parameters;
    } presets[] = {{"smollm2-135m", 134515008},
                   {"smollm2-360m", 361821120},
                   {"smollm2-1.7b", 1711376384},
                   {"llama-3.2-1b", 1235814400}};
    for (size_t i = 0; i < sizeof presets / sizeof *presets; i++) {
        char yaml[64];
        (void)snprintf(yaml, sizeof yaml, "model: {preset: %s}", presets[i].preset);
        struct dpt_model *model = make_llama(yaml);
        assert_int_equal(dpt_model_param_count(model), presets[i].parameters);
        /* Sizes are multiples of a line already: only units are padded. */
        assert_true(dpt_model_flat_numel(model) - presets[i].parameters <
                    (int64_t)DPT_BLOCK * dpt_model_n_units(model));
        dpt_model_destroy(&model);
    }
}

/* With labels the head is separate, also if the preset ties it. */
static void counts_with_labels(void **state)
{
    (void)state;
    struct dpt_model *model =
        make_llama("model: {preset: smollm2-360m, labels: 5}\ndata: {kind: classification}");
    assert_int_equal(dpt_model_param_count(model), 361825920);
    const int n = dpt_model_n_params(model), head = dpt_model_n_units(model) - 1;
    const struct dpt_param *score = dpt_model_param(model, n - 1);
    struct dpt_pack pack;
    assert_string_equal(score->name, "score.weight");
    assert_true(score->dim[0] == 5 && score->dim[1] == 960 && score->unit == head && score->decay);
    assert_int_equal(dpt_model_score(model), n - 1);
    assert_int_equal(dpt_model_labels(model), 5);
    assert_int_equal(dpt_model_unit(model, head)->borrows, -1);
    assert_false(dpt_model_packing(model, 0, &pack));
    assert_true(dpt_model_packing(model, n - 1, &pack));
    assert_true(pack.kind == DPT_PACK_HEAD && pack.rows == 5 && pack.cols == 960);
    dpt_model_destroy(&model);
    model = make_llama("model: {preset: smollm2-360m}");
    assert_int_equal(dpt_model_score(model), -1);
    assert_int_equal(dpt_model_labels(model), 0);
    dpt_model_destroy(&model);
}

static const struct dpt_param *find_param(const struct dpt_model *model, const char *name)
{
    for (int i = 0; i < dpt_model_n_params(model); i++)
        if (strcmp(dpt_model_param(model, i)->name, name) == 0)
            return dpt_model_param(model, i);
    return NULL;
}

static void expect_param(const struct dpt_model *model, const char *name, int64_t rows,
                         int64_t cols)
{
    const struct dpt_param *p = find_param(model, name);
    if (p == NULL) {
        fail_msg("no tensor '%s'", name);
        return;
    }
    assert_int_equal(p->ndim, cols > 0 ? 2 : 1);
    assert_int_equal(p->dim[0], rows);
    assert_int_equal(p->dim[1], cols);
    assert_int_equal(p->decay, cols > 0);
    assert_int_equal(p->offset % DPT_PARAM_ALIGN, 0);
    assert_int_equal(p->init == DPT_INIT_NORMAL, cols > 0);
}

static void test_llama_parameter_names(void **state)
{
    (void)state;
    struct dpt_model *model = make_llama("model: {preset: smollm2-360m}");
    expect_param(model, "model.embed_tokens.weight", 49152, 960);
    expect_param(model, "model.layers.31.input_layernorm.weight", 960, 0);
    expect_param(model, "model.layers.31.self_attn.q_proj.weight", 960, 960);
    expect_param(model, "model.layers.31.self_attn.k_proj.weight", 320, 960);
    expect_param(model, "model.layers.31.self_attn.v_proj.weight", 320, 960);
    expect_param(model, "model.layers.31.self_attn.o_proj.weight", 960, 960);
    expect_param(model, "model.layers.31.post_attention_layernorm.weight", 960, 0);
    expect_param(model, "model.layers.31.mlp.gate_proj.weight", 2560, 960);
    expect_param(model, "model.layers.31.mlp.up_proj.weight", 2560, 960);
    expect_param(model, "model.layers.31.mlp.down_proj.weight", 960, 2560);
    expect_param(model, "model.norm.weight", 960, 0);
    assert_null(find_param(model, "lm_head.weight"));
    assert_null(find_param(model, "model.layers.0.self_attn.q_proj.bias"));
    assert_int_equal(dpt_model_n_units(model), 34);
    assert_int_equal(dpt_model_unit(model, 33)->borrows, 0);
    dpt_model_destroy(&model);
}

static void untied_with_biases(void **state)
{
    (void)state;
    struct dpt_model *model = make_llama(
        "model: {name: llama, n_layer: 2, n_head: 4, n_kv_head: 2, head_size: 32, n_embd: 96, "
        "n_inner: 160, vocab: 300, tied_head: false, attention_bias: true, mlp_bias: true}");
    expect_param(model, "lm_head.weight", 300, 96);
    expect_param(model, "model.layers.1.self_attn.q_proj.bias", 128, 0);
    expect_param(model, "model.layers.1.self_attn.k_proj.bias", 64, 0);
    expect_param(model, "model.layers.1.self_attn.v_proj.bias", 64, 0);
    expect_param(model, "model.layers.1.self_attn.o_proj.weight", 96, 128);
    expect_param(model, "model.layers.1.self_attn.o_proj.bias", 96, 0);
    expect_param(model, "model.layers.1.mlp.gate_proj.bias", 160, 0);
    expect_param(model, "model.layers.1.mlp.up_proj.bias", 160, 0);
    expect_param(model, "model.layers.1.mlp.down_proj.bias", 96, 0);
    assert_int_equal(dpt_model_unit(model, 3)->borrows, -1);
    dpt_model_destroy(&model);
}

/* Forms of packed weights: one for each product, of all its matrices together. */
static void test_packed_forms(void **state)
{
    (void)state;
    struct dpt_model *model = make_llama("model: {preset: smollm2-135m}");
    static const struct {
        const char *name;
        int64_t rows, cols;
    } products[] = {{"model.layers.7.self_attn.q_proj.weight", 576 + 2 * 192, 576},
                    {"model.layers.7.self_attn.o_proj.weight", 576, 576},
                    {"model.layers.7.mlp.gate_proj.weight", 2 * 1536, 576},
                    {"model.layers.7.mlp.down_proj.weight", 576, 1536},
                    {"model.embed_tokens.weight", 49152, 576}};
    int forms = 0;
    struct dpt_pack pack;
    for (int i = 0; i < dpt_model_n_params(model); i++)
        forms += dpt_model_packing(model, i, &pack);
    assert_int_equal(forms, 30 * 4 + 1);
    for (size_t i = 0; i < sizeof products / sizeof *products; i++)
        for (int p = 0; p < dpt_model_n_params(model); p++)
            if (strcmp(dpt_model_param(model, p)->name, products[i].name) == 0) {
                assert_true(dpt_model_packing(model, p, &pack));
                assert_int_equal(pack.rows, products[i].rows);
                assert_int_equal(pack.cols, products[i].cols);
                assert_int_equal(pack.out_in, pack.kind == DPT_PACK_LINEAR);
            }
    dpt_model_destroy(&model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_published_parameter_counts),
        cmocka_unit_test(counts_with_labels),
        cmocka_unit_test(test_llama_parameter_names),
        cmocka_unit_test(untied_with_biases),
        cmocka_unit_test(test_packed_forms),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
