/* Keys of adapters (train.lora): their effect, their printed form, and impossible combinations. */
#include "base/config.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct dpt_err err;
static struct dpt_config c;

static void load_lora(const char *text)
{
    if (dpt_config_load_text(text, "c.yaml", NULL, 0, &c, &err) != DPT_OK)
        fail_msg("%s", err.text);
}

static void lora_keys_are_read(void **state)
{
    (void)state;
    load_lora("model: {name: llama, n_embd: 64, n_head: 2, init_from: base}\n"
              "train: {lora: {rank: 8, alpha: 32, targets: [v_proj, q_proj]}, steps: 7}\n");
    assert_int_equal(c.train.lora.rank, 8);
    assert_true(c.train.lora.alpha == 32);
    assert_int_equal(c.train.lora.targets, DPT_LORA_Q_PROJ | DPT_LORA_V_PROJ);
    assert_string_equal(c.train.lora.base_hash, "");
    assert_int_equal(c.train.steps, 7);
    assert_true(dpt_config_adapts(&c, "q_proj") && dpt_config_adapts(&c, "v_proj"));
    assert_false(dpt_config_adapts(&c, "k_proj"));
    assert_false(dpt_config_adapts(&c, "proj"));
    assert_false(dpt_config_adapts(&c, "all"));
    load_lora("model: {init_from: base}\ntrain: {lora: {rank: 2, targets: c_fc}}\n");
    assert_int_equal(c.train.lora.targets, DPT_LORA_C_FC);
    load_lora("model: {init_from: base}\ntrain: {lora: {rank: 2, targets: all}}\n");
    assert_true(dpt_config_adapts(&c, "c_fc") && dpt_config_adapts(&c, "c_attn"));
}

static void lora_defaults(void **state)
{
    (void)state;
    dpt_config_defaults(&c);
    assert_int_equal(c.train.lora.rank, 0);
    assert_int_equal(c.train.lora.targets, DPT_LORA_ALL);
    assert_false(dpt_config_adapts(&c, "c_fc")); /* there are no adapters */
    load_lora("train: {lora: {rank: 0}}\n");
    load_lora("train: {lora: }\n");
    load_lora("train: {lora: {}}\n");
}

/* The section inside a section is read back from the printed config, and so are the keys after
 * it. */
static void test_lora_section_is_read_back(void **state)
{
    (void)state;
    static char first[DPT_CONFIG_TEXT_BYTES_MAX], second[DPT_CONFIG_TEXT_BYTES_MAX];
    load_lora("model: {init_from: base}\n"
              "train: {lora: {rank: 2, alpha: 3, targets: [c_fc, c_attn]}}\n"
              "optimizer: {lr: 0.5}\n");
    assert_int_equal(dpt_config_note_base(&c, "00ff", &err), DPT_OK);
    assert_int_equal(dpt_config_print(&c, first, &err), DPT_OK);
    assert_non_null(strstr(first, "\n  lora:\n    rank: 2\n    alpha: 3\n"
                                  "    targets: [c_attn, c_fc]\n    base_hash: \"00ff\"\n"
                                  "optimizer:\n  name: "));
    load_lora(first);
    assert_string_equal(c.train.lora.base_hash, "00ff");
    assert_true(c.optimizer.lr == 0.5);
    assert_int_equal(dpt_config_print(&c, second, &err), DPT_OK);
    assert_string_equal(first, second);
}

static void ends_with(const char *told)
{
    const size_t n = strlen(err.text), m = strlen(told);
    if (n < m || strcmp(err.text + n - m, told) != 0)
        fail_msg("'%s' does not end with '%s'", err.text, told);
}

static void test_lora_combinations(void **state)
{
    (void)state;
    static const struct {
        const char *text, *error;
    } cases[] = {
        {"train: {lora: {rank: 4}}",
         "train.lora trains adapters of published weights; name their folder with model.init_from, "
         "or set train.lora.rank to 0"},
        {"model: {name: resnet, init_from: base}\ndata: {kind: cifar10}\ntrain: {lora: {rank: 4}}",
         "train.lora has no adapters for model.name: resnet, only for gpt2 and llama; set "
         "train.lora.rank to 0"},
        {"train: {lora: {rank: -1}}",
         "train.lora.rank: expected an integer from 0 to 1024, got '-1'"},
        {"model: {init_from: base}\ntrain: {lora: {rank: 0, alpha: 8}}",
         "train.lora.alpha is a setting of adapters, and train.lora.rank is 0; set the rank to at "
         "least 1, or leave train.lora.alpha out"},
        {"model: {init_from: base}\ntrain: {lora: {targets: [c_fc]}}",
         "train.lora.targets is a setting of adapters, and train.lora.rank is 0; set the rank to "
         "at least 1, or leave train.lora.targets out"},
        {"model: {init_from: base}\ntrain: {lora: {rank: 4, targets: [c_fc, q_proj, v_proj]}}",
         "train.lora.targets: a gpt2 has no layers [q_proj, v_proj]; its blocks have [c_attn, "
         "c_proj, c_fc]"},
        {"model: {name: llama, n_embd: 64, n_head: 2, init_from: base}\n"
         "train: {lora: {rank: 4, targets: c_attn}}",
         "train.lora.targets: a llama has no layers [c_attn]; its blocks have [q_proj, k_proj, "
         "v_proj, o_proj, gate_proj, up_proj, down_proj]"},
        {"model: {init_from: base}\ntrain: {lora: {rank: 4, targets: [lm_head]}}",
         "train.lora.targets: unknown value 'lm_head'; supported: all, q_proj, k_proj, v_proj, "
         "o_proj, gate_proj, up_proj, down_proj, c_attn, c_proj, c_fc"},
        {"model: {init_from: base}\ntrain: {lora: {rank: 4, targets: [all, c_fc]}}",
         "train.lora.targets: 'all' cannot be part of a list with others"},
        {"model: {init_from: base}\ntrain: {lora: {rank: 4, targets: []}}",
         "train.lora.targets: expected one word or more, got an empty list; supported: "
         "all, q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj, c_attn, c_proj, "
         "c_fc"},
        {"train: {lora: 4}", "train.lora is a section: its keys go inside it"},
        {"train: {lora: {ranks: 4}}", "unknown key 'train.lora.ranks'; did you mean "
                                      "'train.lora.rank'?"},
        {"train: {zzzzzzzzzzzzzzzzzzzz: 4}", ", eval_tokens, eval_only, eval_step, lora"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(dpt_config_load_text(cases[i].text, "c.yaml", NULL, 0, &c, &err),
                         DPT_ECONFIG);
        ends_with(cases[i].error);
    }
}

/* The base's hash is noted once; another is refused, as is a worker that has it. */
static void another_base(void **state)
{
    (void)state;
    static struct dpt_config other;
    char keys[512];
    load_lora("model: {init_from: base}\ntrain: {lora: {rank: 4}}\n");
    other = c;
    assert_int_equal(dpt_config_note_base(&c, "aa", &err), DPT_OK);
    assert_int_equal(dpt_config_note_base(&c, "aa", &err), DPT_OK);
    assert_int_equal(dpt_config_note_base(&c, "bb", &err), DPT_ECONFIG);
    assert_string_equal(
        err.text,
        "model.init_from: 'base' has weights of the hash bb, and the run's adapters belong "
        "to weights of the hash aa (train.lora.base_hash); name the folder of those "
        "weights");
    assert_int_equal(dpt_config_check_base(&c, "elsewhere", "aa", &err), DPT_OK);
    assert_int_equal(dpt_config_check_base(&c, "elsewhere", "bb", &err), DPT_ECONFIG);
    assert_non_null(strstr(err.text, "'elsewhere' has weights of the hash bb"));
    assert_string_equal(c.train.lora.base_hash, "aa");
    assert_int_equal(dpt_config_note_base(&other, "bb", &err), DPT_OK);
    assert_int_equal(dpt_config_diff(&c, &other, DPT_CONFIG_TRAJECTORY, NULL, keys, sizeof keys),
                     1);
    assert_non_null(strstr(keys, "train.lora.base_hash"));
    load_lora("train: {steps: 3}\n");
    assert_int_equal(dpt_config_note_base(&c, "aa", &err), DPT_OK); /* of no adapters */
    assert_string_equal(c.train.lora.base_hash, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lora_keys_are_read),
        cmocka_unit_test(lora_defaults),
        cmocka_unit_test(test_lora_section_is_read_back),
        cmocka_unit_test(test_lora_combinations),
        cmocka_unit_test(another_base),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
