/* Special tokens and names of labels in config.json and generation_config.json. */
#include "tests/worker/model/hf_rig.h"

#include "base/fs.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static enum dpt_status read_tokens(const char *text, struct dpt_hf_tokens *ret)
{
    hf_write(text);
    return dpt_hf_config_tokens(hf_path, ret, &hf_err);
}

/* Special tokens of a folder come out as they went in; a classifier's padding token is ours. */
static void special_tokens(void **state)
{
    (void)state;
    struct dpt_hf_tokens tokens;
    struct dpt_config config = hf_config_of("model: {name: llama, n_embd: 64, n_head: 2}", NULL);
    assert_int_equal(read_tokens("{\"bos_token_id\": 1, \"eos_token_id\": [128001, 128008], "
                                 "\"pad_token_id\": null}",
                                 &tokens),
                     DPT_OK);
    assert_string_equal(tokens.bos, "1");
    assert_string_equal(tokens.eos, "[128001,128008]");
    assert_string_equal(tokens.pad, "");
    json_t *json = hf_print(&config, &(struct dpt_hf_beside){.tokens = &tokens});
    const json_t *eos = json_object_get(json, "eos_token_id");
    assert_int_equal(json_integer_value(json_object_get(json, "bos_token_id")), 1);
    assert_int_equal(json_array_size(eos), 2);
    assert_int_equal(json_integer_value(json_array_get(eos, 1)), 128008);
    assert_null(json_object_get(json, "pad_token_id"));
    json_decref(json);

    assert_int_equal(read_tokens("{\"pad_token_id\": 7}", &tokens), DPT_OK);
    json = hf_print(&config, &(struct dpt_hf_beside){.tokens = &tokens});
    assert_true(json_is_null(json_object_get(json, "eos_token_id")));
    assert_int_equal(json_integer_value(json_object_get(json, "pad_token_id")), 7);
    json_decref(json);
    config = hf_config_of("model: {vocab: 300, labels: 2}\ndata: {kind: classification}", NULL);
    json = hf_print(&config, &(struct dpt_hf_beside){.tokens = &tokens});
    assert_int_equal(json_integer_value(json_object_get(json, "pad_token_id")), 299);
    json_decref(json);
    config = hf_config_of("model: {name: resnet, labels: 7}\ndata: {kind: cifar10}", NULL);
    json = hf_print(&config, &(struct dpt_hf_beside){.tokens = &tokens});
    assert_null(json_object_get(json, "pad_token_id"));
    json_decref(json);
}

/* Names of labels are written and read back; without names there are LABEL_0, … */
static void label_names(void **state)
{
    (void)state;
    static const char *const names[] = {"cat", "\xc3\xa4 \"dog\"", "2"};
    const struct dpt_config config =
        hf_config_of("model: {name: resnet, labels: 3}\ndata: {kind: cifar10}", NULL);
    char *text = NULL, **found = NULL;
    json_t *json = hf_print(&config, &(struct dpt_hf_beside){.label_names = names});
    const json_t *numbers = json_object_get(json, "label2id");
    assert_int_equal(json_object_size(numbers), 3);
    for (int i = 0; i < 3; i++)
        assert_int_equal(json_integer_value(json_object_get(numbers, names[i])), i);
    text = json_dumps(json, 0);
    hf_write(text);
    assert_int_equal(dpt_hf_config_label_names(hf_path, 3, &found, &hf_err), DPT_OK);
    for (int i = 0; i < 3; i++)
        assert_string_equal(found[i], names[i]);
    dpt_fs_list_free(&found, 3);
    assert_int_equal(dpt_hf_config_label_names(hf_path, 4, &found, &hf_err), DPT_ECONFIG);
    assert_non_null(strstr(
        hf_err.text, "/config.json': id2label has no name of label 3, and the model has 4 labels"));
    free(text);
    json_decref(json);
    hf_write("{}");
    assert_int_equal(dpt_hf_config_label_names(hf_path, 3, &found, &hf_err), DPT_OK);
    assert_null(found);
    hf_write("{\"id2label\": {\"0\": 1}}");
    assert_int_equal(dpt_hf_config_label_names(hf_path, 1, &found, &hf_err), DPT_ECONFIG);
    hf_write("{");
    assert_int_equal(dpt_hf_config_label_names(hf_path, 1, &found, &hf_err), DPT_ECONFIG);
}

static void special_tokens_refused(void **state)
{
    (void)state;
    static const char *const values[] = {"\"</s>\"", "[1, \"a\"]", "[]", "1.5", "{}", "true"};
    struct dpt_hf_tokens tokens;
    char text[1024], list[900] = "0";
    size_t used = 1;
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        (void)snprintf(text, sizeof text, "{\"eos_token_id\": %s}", values[i]);
        if (read_tokens(text, &tokens) != DPT_ECONFIG ||
            !strstr(hf_err.text, "/config.json': eos_token_id is ") ||
            !strstr(hf_err.text, ", which is neither an id nor a list of a few ids"))
            fail_msg("%s gives %s", text, hf_err.text);
    }
    while (used < DPT_HF_TOKEN_BYTES)
        used += (size_t)snprintf(list + used, sizeof list - used, ",1000");
    (void)snprintf(text, sizeof text, "{\"eos_token_id\": [%s]}", list);
    assert_int_equal(read_tokens(text, &tokens), DPT_ECONFIG);
    assert_int_equal(read_tokens("{", &tokens), DPT_ECONFIG);
    assert_non_null(strstr(hf_err.text, "no JSON"));
}

static void write_beside(const char *name, const char *text)
{
    char file[192];
    (void)snprintf(file, sizeof file, "%s/%s", hf_dir, name);
    if (dpt_fs_write_file_atomic(file, text, strlen(text), &hf_err) != DPT_OK)
        fail_msg("%s", hf_err.text);
}

static void check_ends(const char *want)
{
    struct dpt_hf_ends ends;
    char found[128] = "";
    size_t used = 0;
    if (dpt_hf_config_ends(hf_dir, &ends, &hf_err) != DPT_OK)
        fail_msg("%s", hf_err.text);
    for (int i = 0; i < ends.n; i++)
        used += (size_t)snprintf(found + used, sizeof found - used, "%lld ", (long long)ends.id[i]);
    assert_string_equal(found, want);
}

/* generation_config.json takes the place of config.json, with any content; at most as many ids as
 * there is room for. */
static void ends_of_a_text(void **state)
{
    (void)state;
    static const char name[] = "generation_config.json";
    struct dpt_hf_ends ends;
    char list[DPT_HF_TOKEN_BYTES] = "[1", text[DPT_HF_TOKEN_BYTES + 32], file[192];
    write_beside("config.json", "{\"eos_token_id\": 7}");
    check_ends("7 ");
    write_beside("config.json", "{\"eos_token_id\": [3, 200000]}");
    check_ends("3 200000 ");
    write_beside(name, "{\"eos_token_id\": 9}");
    check_ends("9 ");
    write_beside(name, "{\"eos_token_id\": null}");
    check_ends("");
    while (strlen(list) + 2 < DPT_HF_TOKEN_BYTES - 1)
        (void)snprintf(list + strlen(list), sizeof list - strlen(list), ",1");
    (void)snprintf(text, sizeof text, "{\"eos_token_id\": %s]}", list);
    write_beside(name, text);
    assert_int_equal(dpt_hf_config_ends(hf_dir, &ends, &hf_err), DPT_OK);
    assert_int_equal(ends.n, DPT_HF_ENDS_MAX - 1);
    write_beside(name, "{\"eos_token_id\": \"</s>\"}");
    assert_int_equal(dpt_hf_config_ends(hf_dir, &ends, &hf_err), DPT_ECONFIG);
    assert_non_null(strstr(hf_err.text, "generation_config.json': eos_token_id is "));
    (void)snprintf(file, sizeof file, "%s/%s", hf_dir, name);
    assert_int_equal(remove(file), 0);
    check_ends("3 200000 ");
    assert_int_equal(remove(hf_path), 0);
    check_ends("");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(label_names),
        cmocka_unit_test(special_tokens),
        cmocka_unit_test(special_tokens_refused),
        cmocka_unit_test(ends_of_a_text),
    };
    return cmocka_run_group_tests(tests, hf_set_up, hf_tear_down);
}
