/* Sizes of models: presets, values that follow from other keys, and impossible combinations. */
#include "base/config.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static struct dpt_err err;

static struct dpt_config load_model(const char *text)
{
    static struct dpt_config c;
    if (dpt_config_load_text(text, "c.yaml", NULL, 0, &c, &err) != DPT_OK)
        fail_msg("'%s': %s", text, err.text);
    return c;
}

/* A preset names the architecture; a key beside it has priority. */
static void test_key_beside_preset_wins(void **state)
{
    (void)state;
    struct dpt_config c = load_model("model: {preset: smollm2-360m}");
    assert_string_equal(c.model.name, "llama");
    assert_int_equal(c.model.n_layer, 32);
    assert_int_equal(c.model.n_head, 15);
    assert_int_equal(c.model.n_kv_head, 5);
    assert_int_equal(c.model.n_embd, 960);
    assert_int_equal(c.model.head_size, 64);
    assert_int_equal(c.model.n_inner, 2560);
    assert_int_equal(c.model.context, 8192);
    assert_int_equal(c.model.vocab, 49152);
    assert_true(c.model.rope_theta == 1e5 && c.model.norm_eps == 1e-5 && c.model.tied_head);
    assert_int_equal(c.model.rope_scaling, DPT_ROPE_SCALING_NONE);
    c = load_model("model: {preset: llama-3.2-1b, n_layer: 2, rope_factor: 8}");
    assert_int_equal(c.model.n_layer, 2);
    assert_int_equal(c.model.rope_scaling, DPT_ROPE_SCALING_LLAMA3);
    assert_true(c.model.rope_factor == 8.0 && c.model.rope_theta == 5e5);
    c = load_model("model: {preset: llama-3.2-1b, rope_scaling: none}");
    assert_int_equal(c.model.rope_scaling, DPT_ROPE_SCALING_NONE);
    c = load_model("model: {preset: gpt2-124m}");
    assert_string_equal(c.model.name, "gpt2");
}

static void llama_sizes_follow_from_others(void **state)
{
    (void)state;
    struct dpt_config c = load_model("model: {name: llama, n_head: 4, n_embd: 256}");
    assert_int_equal(c.model.n_kv_head, 4);
    assert_int_equal(c.model.head_size, 64);
    assert_int_equal(c.model.n_inner, 704); /* 8/3 of 256 is 682 2/3 */
    assert_int_equal(c.model.vocab, 256);
    c = load_model("model: {name: llama, n_head: 4, n_embd: 256, head_size: 32}");
    assert_int_equal(c.model.head_size, 32);
    c = load_model("model: {name: gpt2}");
    assert_int_equal(c.model.n_inner, DPT_AUTO);
}

static const struct {
    const char *set, *error; /* NULL: it can be */
} combination_cases[] = {
    {"model={name: gpt2, preset: smollm2-360m}",
     "model.preset: smollm2-360m is a llama; set model.name: llama, or leave it out (here: gpt2)"},
    {"model={n_kv_head: 2}", "model.n_kv_head is for model.name: llama; leave it out (here: gpt2)"},
    {"model={tied_head: false}",
     "model.tied_head is for model.name: llama; leave it out (here: gpt2)"},
    {"model={rope_theta: 1e4}", NULL},
    {"model={name: llama, n_head: 3, n_embd: 128}",
     "model.n_embd (128) is not a multiple of model.n_head (3); nearest: an n_embd of 126 or 129, "
     "or an n_head of 2 or 4"},
    {"model={name: llama, n_head: 6, n_kv_head: 4, n_embd: 96}",
     "model.n_kv_head (4) does not divide model.n_head (6); nearest: 3 or 6"},
    {"model={name: llama, n_head: 2, n_embd: 1024}",
     "model.head_size (512 = model.n_embd / model.n_head) is more than 256; set model.n_head to at "
     "least 4, or model.head_size"},
    {"model={name: llama, n_head: 4, n_embd: 100}",
     "model.head_size (25 = model.n_embd / model.n_head) is not a multiple of 8, as tensors that "
     "lie together need; nearest: 24 or 32"},
    {"model={name: llama, n_head: 4, n_embd: 100, head_size: 24}", NULL},
    {"model={name: llama, n_head: 4, n_embd: 96, head_size: 7}",
     "model.head_size (7) is not a multiple of 2, as tensors that lie together need; nearest: 6 or "
     "8"},
    {"model={name: llama, n_head: 4, n_embd: 72, head_size: 16, n_inner: 5}",
     "model.n_inner (5) is not a multiple of 4, as tensors that lie together need; nearest: 4 or "
     "8"},
    {"model={name: llama, n_head: 4, n_embd: 72, head_size: 16, n_inner: 4}", NULL},
    {"model={name: llama, mlp_bias: true, n_inner: 100}",
     "model.n_inner (100) is not a multiple of 32, as biases need; nearest: 96 or 128"},
    {"model={name: llama, n_embd: 64, attention_bias: true}",
     "model.head_size (16 = model.n_embd / model.n_head) is not a multiple of 32, as biases need; "
     "nearest: 32"},
    {"model={preset: smollm2-135m, n_head: 8}",
     "model.n_kv_head (3, the preset's) does not divide model.n_head (8); nearest: 2 or 4"},
    {"model={name: llama, rope_scaling: llama3, rope_high_freq_factor: 1}",
     "model.rope_low_freq_factor (1) is not below model.rope_high_freq_factor (1)"},
    {"model={name: llama, rope_low_freq_factor: 4}", NULL},
};

static void test_model_combinations(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof combination_cases / sizeof *combination_cases; i++) {
        struct dpt_config c;
        const enum dpt_status status =
            dpt_config_load_text("", "c.yaml", &combination_cases[i].set, 1, &c, &err);
        if (combination_cases[i].error == NULL) {
            assert_int_equal(status, DPT_OK);
            continue;
        }
        assert_int_equal(status, DPT_ECONFIG);
        /* A long --set is shortened. */
        const char *told = strstr(err.text, ": model.");
        assert_non_null(told);
        assert_string_equal(told + 2, combination_cases[i].error);
    }
}

/* Text for weights of others is refused without a tokenizer's name, unless its tokens can be no
 * other than bytes. */
static void published_weights_need_a_tokenizer(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        bool good;
    } cases[] = {
        {"model: {init_from: hf, vocab: 400}", false},
        {"model: {init_from: hf, vocab: 257}\ntrain: {lora: {rank: 2}}", false},
        {"model: {init_from: hf, vocab: 400, labels: 2}\ndata: {kind: classification}", false},
        {"model: {init_from: hf, vocab: 256}", true},
        {"model: {init_from: hf, vocab: 400}\ndata: {tokenizer: bytes}", true},
        {"model: {init_from: hf, vocab: 400}\ndata: {tokenizer: hf, tokenizer_json: t.json}", true},
        {"model: {init_from: hf, vocab: 400}\ndata: {kind: tokens}", true},
        {"model: {vocab: 400}", true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct dpt_config c;
        const char *text = cases[i].text;
        const enum dpt_status status = dpt_config_load_text(text, "c.yaml", NULL, 0, &c, &err);
        if (status != (cases[i].good ? DPT_OK : DPT_ECONFIG))
            fail_msg("%s: %s", text, status == DPT_OK ? "is taken" : err.text);
        if (!cases[i].good)
            assert_non_null(
                strstr(err.text, "data.tokenizer: the weights of model.init_from ('hf')"));
    }
    assert_non_null(strstr(err.text,
                           "have a vocabulary of 400 tokens, and no key names their tokenizer; set "
                           "data.tokenizer: hf and data.tokenizer_json: hf/tokenizer.json"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_key_beside_preset_wins),
        cmocka_unit_test(llama_sizes_follow_from_others),
        cmocka_unit_test(test_model_combinations),
        cmocka_unit_test(published_weights_need_a_tokenizer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
