/* GPT-2's table: sizes, names, layout; refusals. No device. */
#include "worker/model/model.h"

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

static struct dpt_config sized(int layer, int head, int embd, int context, int vocab)
{
    static struct dpt_config config;
    memset(&config, 0, sizeof config);
    (void)snprintf(config.model.name, sizeof config.model.name, "%s", "gpt2");
    config.model.n_layer = layer;
    config.model.n_head = head;
    config.model.n_embd = embd;
    config.model.context = context;
    config.model.vocab = vocab;
    return config;
}

static struct dpt_model *make_gpt2(int layer, int head, int embd, int context, int vocab)
{
    struct dpt_config config = sized(layer, head, embd, context, vocab);
    struct dpt_model *model = NULL;
    assert_int_equal(dpt_model_create(&config, &model, &err), DPT_OK);
    return model;
}

/* With labels the head has a separate weight and borrows none. */
static void with_labels(void **state)
{
    (void)state;
    struct dpt_config config = sized(2, 3, 48, 32, 67);
    struct dpt_model *model = NULL, *plain = make_gpt2(2, 3, 48, 32, 67);
    struct dpt_pack pack;
    config.model.labels = 4;
    assert_int_equal(dpt_model_create(&config, &model, &err), DPT_OK);
    const int n = dpt_model_n_params(model), head = dpt_model_n_units(model) - 1;
    const struct dpt_param *score = dpt_model_param(model, n - 1);
    assert_int_equal(dpt_model_param_count(model), dpt_model_param_count(plain) + 4 * 48);
    assert_int_equal(n, dpt_model_n_params(plain) + 1);
    assert_string_equal(score->name, "score.weight");
    assert_true(score->ndim == 2 && score->dim[0] == 4 && score->dim[1] == 48 && score->decay);
    assert_true(dpt_model_score(model) == n - 1 && dpt_model_score(plain) == -1);
    assert_true(dpt_model_labels(model) == 4 && dpt_model_labels(plain) == 0);
    assert_true(dpt_model_unit(model, head)->borrows == -1 && dpt_model_unit(model, 0)->in_parts);
    assert_int_equal(dpt_model_unit(plain, head)->borrows, 0);
    for (int i = 0; i < 2; i++)
        assert_false(dpt_model_packing(model, i, &pack)); /* wte and wpe: read, not multiplied */
    assert_true(dpt_model_packing(model, n - 1, &pack));
    assert_true(pack.kind == DPT_PACK_HEAD && pack.rows == 4 && pack.cols == 48);
    assert_int_equal(dpt_model_saved_bytes(model, 2, 9), dpt_model_saved_bytes(plain, 2, 9));
    dpt_model_destroy(&model);
    dpt_model_destroy(&plain);
}

static void known_sizes(void **state)
{
    (void)state;
    static const struct {
        int layer, head, embd;
        int64_t count;
    } cases[] = {
        {12, 12, 768, 124439808},
        {24, 16, 1024, 354823168},
        {36, 20, 1280, 774030080},
        {48, 25, 1600, 1557611200},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct dpt_model *model =
            make_gpt2(cases[i].layer, cases[i].head, cases[i].embd, 1024, 50257);
        assert_int_equal(dpt_model_param_count(model), cases[i].count);
        assert_int_equal(dpt_model_n_units(model), cases[i].layer + 2);
        assert_int_equal(dpt_model_n_params(model), 4 + 12 * cases[i].layer);
        assert_int_equal(dpt_model_vocab(model), 50257);
        dpt_model_destroy(&model);
        assert_null(model);
        dpt_model_destroy(&model);
    }
}

/* Units tile the flat vector in blocks; tensors follow each other in their unit, each from the next
 * aligned place on. */
static void test_units_tile_vector(void **state)
{
    (void)state;
    struct dpt_model *model = make_gpt2(3, 5, 35, 19, 101);
    int64_t at = 0, count = 0;
    int param = 0;
    for (int u = 0; u < dpt_model_n_units(model); u++) {
        const struct dpt_unit *unit = dpt_model_unit(model, u);
        assert_int_equal(unit->offset, at);
        assert_int_equal(unit->numel % DPT_BLOCK, 0);
        assert_int_equal(unit->first_param, param);
        int64_t inside = unit->offset;
        for (int k = 0; k < unit->n_params; k++, param++) {
            const struct dpt_param *p = dpt_model_param(model, param);
            assert_int_equal(p->unit, u);
            inside = (inside + DPT_PARAM_ALIGN - 1) / DPT_PARAM_ALIGN * DPT_PARAM_ALIGN;
            assert_int_equal(p->offset, inside);
            assert_int_equal(p->numel, p->ndim == 2 ? p->dim[0] * p->dim[1] : p->dim[0]);
            assert_int_equal(p->decay, p->ndim == 2);
            inside += p->numel;
            count += p->numel;
        }
        assert_true(unit->offset + unit->numel - inside < DPT_BLOCK);
        at += unit->numel;
    }
    assert_int_equal(param, dpt_model_n_params(model));
    assert_int_equal(at, dpt_model_flat_numel(model));
    assert_int_equal(count, dpt_model_param_count(model));
    dpt_model_destroy(&model);
}

static const struct dpt_param *find_param(const struct dpt_model *model, const char *name)
{
    for (int i = 0; i < dpt_model_n_params(model); i++)
        if (strcmp(dpt_model_param(model, i)->name, name) == 0)
            return dpt_model_param(model, i);
    fail_msg("no tensor '%s'", name);
    return NULL;
}

static void check_param(const struct dpt_model *model, const char *name, int64_t rows, int64_t cols,
                        enum dpt_init init, double std)
{
    const struct dpt_param *p = find_param(model, name);
    assert_int_equal(p->ndim, cols > 0 ? 2 : 1);
    assert_int_equal(p->dim[0], rows);
    assert_int_equal(p->dim[1], cols);
    assert_int_equal(p->init, init);
    assert_true(fabs((double)p->init_std - std) < 1e-9);
}

/* Names, orientation and initial values as Hugging Face's GPT2LMHeadModel has them. */
static void test_gpt2_parameter_names(void **state)
{
    (void)state;
    struct dpt_model *model = make_gpt2(12, 12, 768, 1024, 50257);
    const double residual = 0.02 / sqrt(24.0);
    check_param(model, "transformer.wte.weight", 50257, 768, DPT_INIT_NORMAL, (double)0.02f);
    check_param(model, "transformer.wpe.weight", 1024, 768, DPT_INIT_NORMAL, (double)0.02f);
    check_param(model, "transformer.h.0.ln_1.weight", 768, 0, DPT_INIT_ONE, 0.0);
    check_param(model, "transformer.h.0.ln_1.bias", 768, 0, DPT_INIT_ZERO, 0.0);
    check_param(model, "transformer.h.3.attn.c_attn.weight", 768, 2304, DPT_INIT_NORMAL,
                (double)0.02f);
    check_param(model, "transformer.h.3.attn.c_attn.bias", 2304, 0, DPT_INIT_ZERO, 0.0);
    check_param(model, "transformer.h.11.attn.c_proj.weight", 768, 768, DPT_INIT_NORMAL, residual);
    check_param(model, "transformer.h.11.attn.c_proj.bias", 768, 0, DPT_INIT_ZERO, 0.0);
    check_param(model, "transformer.h.5.ln_2.weight", 768, 0, DPT_INIT_ONE, 0.0);
    check_param(model, "transformer.h.5.mlp.c_fc.weight", 768, 3072, DPT_INIT_NORMAL,
                (double)0.02f);
    check_param(model, "transformer.h.5.mlp.c_fc.bias", 3072, 0, DPT_INIT_ZERO, 0.0);
    check_param(model, "transformer.h.5.mlp.c_proj.weight", 3072, 768, DPT_INIT_NORMAL, residual);
    check_param(model, "transformer.h.5.mlp.c_proj.bias", 768, 0, DPT_INIT_ZERO, 0.0);
    check_param(model, "transformer.ln_f.weight", 768, 0, DPT_INIT_ONE, 0.0);
    check_param(model, "transformer.ln_f.bias", 768, 0, DPT_INIT_ZERO, 0.0);
    dpt_model_destroy(&model);
}

/* 16 C + H + 4 floats a token and layer, and two more of C; nothing but alignment on top. */
static void test_saved_bytes_formula(void **state)
{
    (void)state;
    struct dpt_model *model = make_gpt2(12, 12, 768, 1024, 50257);
    const size_t n = 256, c = 768; /* 4 x 64 tokens */
    assert_int_equal(dpt_model_saved_bytes(model, 4, 64), 4 * n * (12 * (16 * c + 12 + 4) + 2 * c));
    assert_int_equal(dpt_model_scratch_bytes(model, 4, 64), 4 * n * (6 * c + 2));
    dpt_model_destroy(&model);
    model = make_gpt2(1, 1, 1, 1, 1);
    assert_int_equal(dpt_model_saved_bytes(model, 1, 1) % 64, 0);
    assert_int_equal(dpt_model_scratch_bytes(model, 1, 1) % 64, 0);
    dpt_model_destroy(&model);
    struct dpt_config config = sized(12, 12, 768, 1024, 50257);
    config.train.precision = DPT_PRECISION_BF16; /* statistics stay f32 */
    assert_int_equal(dpt_model_create(&config, &model, &err), DPT_OK);
    assert_int_equal(dpt_model_dtype(model), DPT_BF16);
    assert_int_equal(dpt_model_saved_bytes(model, 4, 64),
                     n * (12 * (2 * 16 * c + 4 * (12 + 4)) + 2 * 2 * c));
    dpt_model_destroy(&model);
}

static void refuse(struct dpt_config config, const char *named)
{
    struct dpt_model *model = NULL;
    assert_int_equal(dpt_model_create(&config, &model, &err), DPT_ECONFIG);
    assert_null(model);
    assert_non_null(strstr(err.text, named));
}

static void test_gpt2_sizes_refused(void **state)
{
    (void)state;
    refuse(sized(DPT_UNITS_MAX - 1, 3, 48, 32, 67), "choose fewer layers");
    struct dpt_config config = sized(2, 3, 48, 32, 67);
    (void)snprintf(config.model.name, sizeof config.model.name, "%s", "gpt3");
    refuse(config, "gpt3");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_sizes),
        cmocka_unit_test(with_labels),
        cmocka_unit_test(test_units_tile_vector),
        cmocka_unit_test(test_gpt2_parameter_names),
        cmocka_unit_test(test_saved_bytes_formula),
        cmocka_unit_test(test_gpt2_sizes_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
