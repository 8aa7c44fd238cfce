/* config.json: a written file is read back to the same sizes, and files of other programs. */
#include "tests/worker/model/hf_rig.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static enum dpt_status read_text(const char *text, struct dpt_config_sizes *said)
{
    hf_write(text);
    return dpt_hf_config_read(hf_path, said, &hf_err);
}

static const char *said_value(const struct dpt_config_sizes *said, const char *key)
{
    for (int i = 0; i < said->n; i++)
        if (strcmp(said->key[i].key, key) == 0)
            return said->key[i].value;
    return NULL;
}

static json_t *print(const struct dpt_config *config)
{
    return hf_print(config, &(struct dpt_hf_beside){.tokens = NULL});
}

static void check_integers(const json_t *json, const char *const names[], const int *values, int n)
{
    for (int i = 0; i < n; i++) {
        const json_t *item = json_object_get(json, names[i]);
        assert_true(json_is_integer(item));
        assert_int_equal(json_integer_value(item), values[i]);
    }
}

static void test_gpt2_config_json(void **state)
{
    (void)state;
    static const char *const names[] = {"n_layer", "n_head",      "n_embd",
                                        "n_ctx",   "n_positions", "vocab_size"};
    static const int values[] = {2, 3, 48, 32, 32, 67};
    struct dpt_config config =
        hf_config_of("model: {n_layer: 2, n_head: 3, n_embd: 48, context: 32, vocab: 300, "
                     "dropout: 0.1}\ntrain: {seq_len: 32}",
                     NULL);
    config.model.vocab = 67;
    json_t *json = print(&config);
    check_integers(json, names, values, 6);
    assert_string_equal(json_string_value(json_object_get(json, "model_type")), "gpt2");
    assert_string_equal(json_string_value(json_object_get(json, "activation_function")),
                        "gelu_new");
    assert_string_equal(
        json_string_value(json_array_get(json_object_get(json, "architectures"), 0)),
        "GPT2LMHeadModel");
    assert_true(json_is_true(json_object_get(json, "tie_word_embeddings")));
    assert_true(json_real_value(json_object_get(json, "layer_norm_epsilon")) == 1e-5);
    assert_true(json_real_value(json_object_get(json, "resid_pdrop")) == 0.1);
    assert_true(json_is_null(json_object_get(json, "eos_token_id")));
    json_decref(json);

    config.model.vocab = 50257;
    json = print(&config);
    assert_int_equal(json_integer_value(json_object_get(json, "eos_token_id")), 50256);
    json_decref(json);
}

static void test_llama_config_json(void **state)
{
    (void)state;
    static const char *const names[] = {
        "hidden_size", "intermediate_size",      "num_hidden_layers",
        "vocab_size",  "num_key_value_heads",    "num_attention_heads",
        "head_dim",    "max_position_embeddings"};
    static const int values[] = {2048, 8192, 16, 128256, 8, 32, 64, 131072};
    const struct dpt_config config = hf_config_of("model: {preset: llama-3.2-1b}", NULL);
    json_t *json = print(&config);
    assert_string_equal(json_string_value(json_object_get(json, "model_type")), "llama");
    check_integers(json, names, values, 8);
    const json_t *scaling = json_object_get(json, "rope_scaling");
    assert_string_equal(json_string_value(json_object_get(scaling, "rope_type")), "llama3");
    assert_true(json_real_value(json_object_get(scaling, "factor")) == 32.0);
    assert_true(json_real_value(json_object_get(json, "rope_theta")) == 500000.0);
    assert_true(json_is_true(json_object_get(json, "tie_word_embeddings")));
    json_decref(json);
}

/* Ours, for torchvision has none. */
static void test_resnet_config_json(void **state)
{
    (void)state;
    static const char *const names[] = {"width", "num_classes", "image_size"};
    static const int values[] = {64, 10, 64};
    static const int layers[] = {3, 4, 6, 3};
    const struct dpt_config config = hf_config_of(
        "model: {preset: resnet50, labels: 10}\ndata: {kind: images, image_size: 64}", NULL);
    json_t *json = print(&config);
    check_integers(json, names, values, 3);
    assert_string_equal(json_string_value(json_object_get(json, "model_type")),
                        "torchvision_resnet");
    assert_string_equal(
        json_string_value(json_array_get(json_object_get(json, "architectures"), 0)), "ResNet");
    assert_string_equal(json_string_value(json_object_get(json, "block")), "bottleneck");
    assert_string_equal(json_string_value(json_object_get(json, "stem")), "imagenet");
    assert_int_equal(json_array_size(json_object_get(json, "layers")), 4);
    for (size_t i = 0; i < 4; i++)
        assert_int_equal(json_integer_value(json_array_get(json_object_get(json, "layers"), i)),
                         layers[i]);
    assert_int_equal(json_object_size(json_object_get(json, "id2label")), 10);
    assert_null(json_object_get(json, "pad_token_id"));
    assert_null(json_object_get(json, "eos_token_id"));
    json_decref(json);
}

#define OF_GPT2 ", tokenizer: gpt2, vocab_bpe: vocab.bpe, encoder_json: encoder.json"
#define OF_HF   ", tokenizer: hf, tokenizer_json: tokenizer.json"

/* What transformers counts labels and finds a text's end by: of every tokenizer, in a vocabulary of
 * its size and in a larger one. */
static void test_label_count_and_pad(void **state)
{
    (void)state;
    static const struct {
        const char *model, *data, *architecture;
        int labels, pad_token;
    } models[] = {
        {"{vocab: 256, labels: 3}", "", "GPT2ForSequenceClassification", 3, 0},
        {"{vocab: 300, labels: 2}", "", "GPT2ForSequenceClassification", 2, 299},
        {"{name: llama, vocab: 257, labels: 2}", "", "LlamaForSequenceClassification", 2, 256},
        {"{preset: gpt2-124m, labels: 2}", OF_GPT2, "GPT2ForSequenceClassification", 2, 50256},
        {"{vocab: 50304, labels: 3}", OF_GPT2, "GPT2ForSequenceClassification", 3, 50256},
        {"{vocab: 50304, labels: 3}", OF_GPT2 ", any_vocab: true", "GPT2ForSequenceClassification",
         3, 50303},
        {"{vocab: 50257, labels: 2}", OF_HF, "GPT2ForSequenceClassification", 2, 50256},
        {"{vocab: 50304, labels: 2}", OF_HF, "GPT2ForSequenceClassification", 2, 50303},
        {"{preset: smollm2-360m, labels: 5}", OF_HF, "LlamaForSequenceClassification", 5, 0},
        {"{preset: llama-3.2-1b, labels: 4}", OF_HF, "LlamaForSequenceClassification", 4, 128001},
    };
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        char yaml[256], last[16];
        (void)snprintf(yaml, sizeof yaml, "model: %s\ndata: {kind: classification%s}\n",
                       models[i].model, models[i].data);
        const struct dpt_config config = hf_config_of(yaml, NULL);
        json_t *json = print(&config);
        const json_t *names = json_object_get(json, "id2label");
        const json_t *numbers = json_object_get(json, "label2id");
        assert_string_equal(
            json_string_value(json_array_get(json_object_get(json, "architectures"), 0)),
            models[i].architecture);
        assert_int_equal(json_object_size(names), models[i].labels);
        assert_int_equal(json_object_size(numbers), models[i].labels);
        (void)snprintf(last, sizeof last, "%d", models[i].labels - 1);
        const char *name = json_string_value(json_object_get(names, last));
        assert_int_equal(json_integer_value(json_object_get(numbers, name)), models[i].labels - 1);
        const json_t *pad_token = json_object_get(json, "pad_token_id");
        if (!json_is_integer(pad_token) || json_integer_value(pad_token) != models[i].pad_token)
            fail_msg("%s: pad_token_id is %lld", yaml, (long long)json_integer_value(pad_token));
        json_decref(json);
    }
}

/* A model of every kind comes back, from a config without its keys. */
static void written_hf_config_is_read_back(void **state)
{
    (void)state;
    static const char *const models[] = {
        "model: {n_layer: 3, n_head: 2, n_embd: 64, context: 96, vocab: 301}",
        "model: {name: llama, n_layer: 3, n_head: 4, n_kv_head: 2, n_embd: 64, head_size: 32, "
        "n_inner: 96, context: 512, vocab: 777, norm_eps: 1e-5, tied_head: false, "
        "attention_bias: true, mlp_bias: true, rope_theta: 123456, rope_scaling: llama3, "
        "rope_factor: 4, rope_low_freq_factor: 2, rope_high_freq_factor: 5, "
        "rope_original_context: 64}",
        "model: {name: llama, n_layer: 1, n_head: 4, n_embd: 128, context: 128}",
        "model: {name: resnet, width: 48, stem: imagenet, block: bottleneck, stages: [4, 1, 2], "
        "labels: 7}\ndata: {kind: cifar10}",
    };
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        char *text = NULL, keys[512];
        struct dpt_config_sizes said;
        const struct dpt_hf_beside beside = {.tokens = NULL};
        struct dpt_config was = hf_config_of(models[i], NULL);
        const char *rest = was.model.labels > 0 ? "model: {labels: 7}\ndata: {kind: cifar10}"
                                                : "train: {seq_len: 64}";
        was.train.seq_len = was.model.labels > 0 ? 1 : 64;
        assert_int_equal(dpt_hf_config_print(&was, &beside, "float32", &text, &hf_err), DPT_OK);
        if (read_text(text, &said) != DPT_OK)
            fail_msg("%s", hf_err.text);
        const struct dpt_config is = hf_config_of(rest, &said);
        if (dpt_config_diff(&was, &is, DPT_CONFIG_NODE, NULL, keys, sizeof keys) != 0)
            fail_msg("%s: %s", models[i], keys);
        dpt_hf_config_said(&was, "there", &said);
        const struct dpt_config again = hf_config_of(rest, &said);
        assert_int_equal(dpt_config_diff(&was, &again, DPT_CONFIG_NODE, NULL, keys, sizeof keys),
                         0);
        free(text);
    }
}

#define LLAMA                                                                                      \
    "\"model_type\": \"llama\", \"hidden_size\": 64, \"intermediate_size\": 96, "                  \
    "\"num_hidden_layers\": 2, \"num_attention_heads\": 2, \"max_position_embeddings\": 256, "     \
    "\"vocab_size\": 300"
#define GPT2                                                                                       \
    "\"model_type\": \"gpt2\", \"n_positions\": 64, \"n_embd\": 64, \"n_layer\": 2, "              \
    "\"n_head\": 2, \"vocab_size\": 300"

#define RESNET "\"model_type\": \"torchvision_resnet\", \"block\": \"basic\", \"stem\": \"cifar\""

/* What a file leaves out is as transformers takes it. */
static void defaults_are_theirs(void **state)
{
    (void)state;
    struct dpt_config_sizes said;
    assert_int_equal(read_text("{" LLAMA ", \"rope_scaling\": null, \"head_dim\": null}", &said),
                     DPT_OK);
    struct dpt_config config = hf_config_of("train: {seq_len: 64}", &said);
    assert_int_equal(config.model.n_kv_head, 2);
    assert_int_equal(config.model.head_size, 32);
    assert_true(config.model.norm_eps == 1e-6 && config.model.rope_theta == 10000);
    assert_false(config.model.tied_head);
    assert_int_equal(read_text("{" GPT2 ", \"n_inner\": 256}", &said), DPT_OK);
    assert_string_equal(said_value(&said, "model.n_embd"), "64");
    assert_null(said_value(&said, "model.dropout"));
}

/* transformers 5 writes the settings of the rotary embeddings as one object. */
static void rope_parameters(void **state)
{
    (void)state;
    struct dpt_config_sizes said;
    assert_int_equal(read_text("{" LLAMA ", \"rope_parameters\": {\"rope_type\": \"default\", "
                               "\"rope_theta\": 500000}}",
                               &said),
                     DPT_OK);
    assert_string_equal(said_value(&said, "model.rope_theta"), "500000");
    assert_string_equal(said_value(&said, "model.rope_scaling"), "none");
    assert_int_equal(read_text("{" LLAMA ", \"rope_parameters\": {\"rope_type\": \"llama3\", "
                               "\"rope_theta\": 1e4, \"factor\": 8, \"low_freq_factor\": 1.0, "
                               "\"high_freq_factor\": 4.0, "
                               "\"original_max_position_embeddings\": 128}}",
                               &said),
                     DPT_OK);
    assert_string_equal(said_value(&said, "model.rope_scaling"), "llama3");
    assert_string_equal(said_value(&said, "model.rope_original_context"), "128");
}

static void test_hf_config_refused(void **state)
{
    (void)state;
    static const struct {
        const char *text, *why;
    } cases[] = {
        {"[", "no JSON"},
        {"[]", "model_type is not there"},
        {"{}", "model_type is not there"},
        {"{\"model_type\": \"mistral\"}", "model_type is \"mistral\"; weights of gpt2 and llama"},
        {"{\"model_type\": \"gpt2\"}", "it has no n_positions"},
        {"{" GPT2 ", \"activation_function\": \"relu\"}",
         "activation_function is \"relu\", only \"gelu_new\" is supported"},
        {"{" GPT2 ", \"layer_norm_epsilon\": 1e-6}", "layer_norm_epsilon is"},
        {"{" GPT2 ", \"tie_word_embeddings\": false}", "tie_word_embeddings is false"},
        {"{" GPT2 ", \"scale_attn_by_inverse_layer_idx\": true}", "scale_attn_by_inverse_layer"},
        {"{" GPT2 ", \"n_inner\": 257}", "n_inner is 257"},
        {"{" LLAMA ", \"hidden_act\": \"gelu\"}", "hidden_act is \"gelu\""},
        {"{" LLAMA ", \"rms_norm_eps\": \"small\"}", "rms_norm_eps is \"small\""},
        {"{" LLAMA ", \"rope_scaling\": {\"type\": \"linear\", \"factor\": 2}}",
         "rope_scaling is {\"type\":\"linear\""},
        {"{" LLAMA ", \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 2}}",
         "it has no low_freq_factor"},
        {"{" LLAMA ", \"vocab_size\": 300}", "no JSON: duplicate"},
        {"{\"model_type\": \"resnet\"}", "model_type is \"resnet\"; weights of"},
        {"{" RESNET "}", "it has no layers"},
        {"{" RESNET ", \"layers\": 18}", "layers is 18, which is no list of a few integers"},
        {"{" RESNET ", \"layers\": [2, \"2\"]}", "which is no list of a few integers"},
        {"{" RESNET ", \"layers\": [11111111, 22222222, 33333333, 44444444, 55555555, 66666666, "
         "77777777]}",
         "which is no list of a few integers"},
        {"{" RESNET ", \"layers\": [2, 2], \"batch_norm_eps\": 1e-3}", "batch_norm_eps is 0.001"},
        {"{\"model_type\": \"torchvision_resnet\", \"block\": 3}", "block is 3, which is no word"},
        {"{\"model_type\": \"torchvision_resnet\", \"block\": \"a: b\"}", "which is no word"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct dpt_config_sizes said;
        if (read_text(cases[i].text, &said) != DPT_ECONFIG || !strstr(hf_err.text, cases[i].why) ||
            !strstr(hf_err.text, hf_path))
            fail_msg("%s gives %s", cases[i].text, hf_err.text);
    }
}

/* Values that the config contradicts, and values that its keys refuse. */
static void test_contradicting_keys(void **state)
{
    (void)state;
    static const struct {
        const char *yaml, *why;
    } cases[] = {
        {"model:\n  n_layer: 3\n", "test:2:12: model.n_layer: 3 contradicts '"},
        {"model: {n_layer: 3}", "/config.json', whose num_hidden_layers is 2; leave the key out"},
        {"model: {name: gpt2}", "model.name: gpt2 contradicts"},
        {"model: {preset: smollm2-135m}", "test:1:17: model.preset: smollm2-135m: the sizes are"},
        {"model: {rope_scaling: llama3}", "model.rope_scaling: llama3 contradicts"},
        {"train: {seq_len: 512}", "train.seq_len (512) is longer than model.context (256)"},
    };
    struct dpt_config_sizes said;
    struct dpt_config config;
    assert_int_equal(read_text("{" LLAMA "}", &said), DPT_OK);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (dpt_config_load(&(struct dpt_config_input){.text = cases[i].yaml,
                                                       .bytes = strlen(cases[i].yaml),
                                                       .name = "test",
                                                       .sizes = &said},
                            &config, &hf_err) != DPT_ECONFIG ||
            !strstr(hf_err.text, cases[i].why))
            fail_msg("%s gives %s", cases[i].yaml, hf_err.text);
    /* The same value, and a word that leaves it open. */
    config = hf_config_of("model: {n_layer: 2, n_head: 2, n_kv_head: 2, vocab: auto}\n"
                          "train: {seq_len: 64}",
                          &said);
    assert_int_equal(config.model.vocab, 300);
    assert_int_equal(read_text("{" GPT2 ", \"n_ctx\": 1}", &said), DPT_OK);
    (void)snprintf(said.key[1].value, sizeof said.key[1].value, "%s", "-1");
    assert_int_equal(
        dpt_config_load(
            &(struct dpt_config_input){.text = "", .bytes = 0, .name = "test", .sizes = &said},
            &config, &hf_err),
        DPT_ECONFIG);
    assert_non_null(strstr(hf_err.text, "/config.json': n_positions: "));
    assert_int_equal(read_text("{" RESNET ", \"layers\": [2, 2]}", &said), DPT_OK);
    (void)snprintf(said.key[1].value, sizeof said.key[1].value, "%s", "deep");
    assert_int_equal(
        dpt_config_load(
            &(struct dpt_config_input){.text = "", .bytes = 0, .name = "test", .sizes = &said},
            &config, &hf_err),
        DPT_ECONFIG);
    assert_non_null(strstr(hf_err.text, "/config.json': block: unknown value 'deep'; supported: "
                                        "basic, bottleneck"));
}

/* The model of a text that gives way leaves nothing behind; --set still may not contradict. */
static void over_the_text(void **state)
{
    (void)state;
    static const char yaml[] = "model: {name: gpt2, n_layer: 9, n_embd: 92, dropout: 0.3}\n"
                               "train: {seq_len: 32, steps: 7}";
    const char *context = "model.context=200", *layers = "model.n_layer=3";
    struct dpt_config_sizes said;
    struct dpt_config config;
    assert_int_equal(read_text("{" LLAMA "}", &said), DPT_OK);
    said.over_text = true;
    config = hf_config_of(yaml, &said);
    assert_string_equal(config.model.name, "llama");
    assert_int_equal(config.model.n_layer, 2);
    assert_int_equal(config.train.steps, 7);
    assert_true(config.model.dropout == hf_config_of("model: {name: llama}", NULL).model.dropout);
    assert_int_equal(dpt_config_load(&(struct dpt_config_input){.text = yaml,
                                                                .bytes = strlen(yaml),
                                                                .name = "test",
                                                                .overrides = &layers,
                                                                .n_overrides = 1,
                                                                .sizes = &said},
                                     &config, &hf_err),
                     DPT_ECONFIG);
    assert_non_null(strstr(hf_err.text, "--set model.n_layer=3: model.n_layer: 3 contradicts '"));
    said.binding = false; /* of a checkpoint: --set is taken */
    assert_int_equal(dpt_config_load(&(struct dpt_config_input){.text = yaml,
                                                                .bytes = strlen(yaml),
                                                                .name = "test",
                                                                .overrides = &context,
                                                                .n_overrides = 1,
                                                                .sizes = &said},
                                     &config, &hf_err),
                     DPT_OK);
    assert_int_equal(config.model.context, 200);
    said.n = 0; /* no weights: the text's own */
    assert_int_equal(hf_config_of(yaml, &said).model.n_layer, 9);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gpt2_config_json),
        cmocka_unit_test(test_llama_config_json),
        cmocka_unit_test(test_resnet_config_json),
        cmocka_unit_test(test_label_count_and_pad),
        cmocka_unit_test(written_hf_config_is_read_back),
        cmocka_unit_test(defaults_are_theirs),
        cmocka_unit_test(rope_parameters),
        cmocka_unit_test(test_hf_config_refused),
        cmocka_unit_test(test_contradicting_keys),
        cmocka_unit_test(over_the_text),
    };
    return cmocka_run_group_tests(tests, hf_set_up, hf_tear_down);
}
