/* Configs that are refused: the whole line of each error. */
#include "base/config.h"

#include "tests/base/config_example.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct dpt_err err;

static const struct {
    const char *text, *error; /* the whole line */
} file_cases[] = {
    {"trian: {steps: 5}", "c.yaml:1:1: unknown key 'trian'; did you mean 'train'?"},
    {"train:\n  stepz: 5\n", "c.yaml:2:3: unknown key 'train.stepz'; did you mean 'train.steps'?"},
    {"train: {lr: 5}", "c.yaml:1:9: unknown key 'train.lr'; did you mean 'optimizer.lr'?"},
    {"sede: 5", "c.yaml:1:1: unknown key 'sede'; did you mean 'seed'?"},
    {"zzzzzzzz: 5", "c.yaml:1:1: unknown key 'zzzzzzzz'; known are: run, seed, cluster, model, "
                    "data, train, optimizer, strategy, checkpoint, log, trace"},
    {"log: {qqqqqqqq: 5}",
     "c.yaml:1:7: unknown key 'log.qqqqqqqq'; its section has: dir, tensorboard, op_times, "
     "memory_every, memory_snapshot, price_per_hour, wait_s"},
    {"train: 5", "c.yaml:1:1: train is a section: its keys go inside it"},
    {"train: [1]", "c.yaml:1:1: train is a section: its keys go inside it"},
    {"train: {steps: {x: 5}}", "c.yaml:1:9: train.steps: expected one value, got a section"},
    {"train: {steps: [5]}", "c.yaml:1:17: train.steps: expected one value, got a list"},
    {"train: {steps: }", "c.yaml:1:16: train.steps: needs a value (default: 200)"},
    {"train: {steps: \"5\"}",
     "c.yaml:1:16: train.steps: expected a number, got text in quotes: '5'"},
    {"train: {steps: 0}",
     "c.yaml:1:16: train.steps: expected an integer from 1 to 1000000000000, got '0'"},
    {"train: {lanes: 0}", "c.yaml:1:16: train.lanes: expected an integer from 1 to 4096, got '0'"},
    {"train: {micro_batch: 99999999999}",
     "c.yaml:1:22: train.micro_batch: expected an integer from 1 to 65536, got '99999999999'"},
    {"train: {seq_len: auto}",
     "c.yaml:1:18: train.seq_len: expected an integer from 1 to 1048576, got 'auto'"},
    {"train: {grad_clip: .nan}", "c.yaml:1:20: train.grad_clip: expected a number, got '.nan'"},
    {"train: {grad_clip: 1e400}",
     "c.yaml:1:20: train.grad_clip: '1e400' is beyond the range of double precision"},
    {"train: {grad_clip: -1}",
     "c.yaml:1:20: train.grad_clip: expected a number from 0 to 1e+30, got '-1'"},
    {"model: {dropout: 1}",
     "c.yaml:1:18: model.dropout: expected a number from 0 to below 1, got '1'"},
    {"optimizer: {eps: 0}", "c.yaml:1:18: optimizer.eps: expected a number above 0 to 1, got '0'"},
    {"optimizer: {betas: 0.9}",
     "c.yaml:1:20: optimizer.betas: expected two numbers such as [0.9, 0.95]"},
    {"optimizer: {betas: [0.9]}",
     "c.yaml:1:21: optimizer.betas: expected two numbers such as [0.9, 0.95]"},
    {"optimizer: {betas: [0.9, 1.5]}",
     "c.yaml:1:21: optimizer.betas: expected a number from 0 to below 1, got '1.5'"},
    {"strategy: {overlap: yes}",
     "c.yaml:1:21: strategy.overlap: expected true or false, got 'yes'"},
    {"cluster: {timeout_s: 0.1}",
     "c.yaml:1:22: cluster.timeout_s: expected a number from 0.2 to 600, got '0.1'"},
    {"cluster: {timeout_s: 601}",
     "c.yaml:1:22: cluster.timeout_s: expected a number from 0.2 to 600, got '601'"},
    {"cluster: {nnodes: 4:2}",
     "c.yaml:1:19: cluster.nnodes: MIN:MAX is '4:2': the first is larger, write '2:4'"},
    {"cluster: {nnodes: 0:2}",
     "c.yaml:1:19: cluster.nnodes: expected an integer from 1 to 1024, got '0'"},
    {"cluster: {nnodes: 1:}", "c.yaml:1:20: found unexpected ':' while scanning a plain scalar"},
    {"cluster: {nnodes: \"1:\"}",
     "c.yaml:1:19: cluster.nnodes: expected an integer from 1 to 1024, got ''"},
    {"cluster: {rdzv: head}", "c.yaml:1:17: cluster.rdzv: expected HOST:PORT, got 'head'"},
    {"run: a b",
     "c.yaml:1:6: run: 'a b': only letters of a-z and A-Z, digits, '.', '_' and '-' are allowed"},
    {"run: caf\xc3\xa9", "c.yaml:1:6: run: 'caf\xc3\xa9': only letters of a-z and A-Z, digits, "
                         "'.', '_' and '-' are allowed"},
    {"run: ..", "c.yaml:1:6: run: '..' may not begin with '.'"},
    {"run: ''", "c.yaml:1:6: run: may not be empty"},
    {"log: {dir: \"a\\nb\"}", "c.yaml:1:12: log.dir: holds a control character"},
    {"log: {dir: \"a\\u0085b\"}", "c.yaml:1:12: log.dir: holds a control character"},
    {"log: {dir: \"a\\u2028b\"}", "c.yaml:1:12: log.dir: holds a control character"},
    {"optimizer: {schedule: cosin}",
     "c.yaml:1:23: optimizer.schedule: unknown value 'cosin'; supported: constant, linear, cosine"},
};

static void refused_from_the_file(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof file_cases / sizeof *file_cases; i++) {
        struct dpt_config c = {.seed = 77};
        enum dpt_status status =
            dpt_config_load_text(file_cases[i].text, "c.yaml", NULL, 0, &c, &err);
        if (status != DPT_ECONFIG || strcmp(err.text, file_cases[i].error) != 0)
            fail_msg("'%s' gives\n%s, not\n%s", file_cases[i].text, err.text, file_cases[i].error);
        assert_int_equal(c.seed, 77); /* untouched */
    }
}

static const struct {
    const char *set, *error;
} combination_cases[] = {
    {"train.global_batch=30", "train.global_batch (30) is not a multiple of train.micro_batch (4); "
                              "nearest: a global_batch of 28 or 32, or a micro_batch of 3 or 5"},
    {"train.global_batch=7", "train.global_batch (7) is not a multiple of train.micro_batch (4); "
                             "nearest: a global_batch of 4 or 8, or a micro_batch of 1 or 7"},
    {"train.micro_batch=64", "train.global_batch (32) is not a multiple of train.micro_batch (64); "
                             "nearest: a global_batch of 64, or a micro_batch of 32"},
    {"train.global_batch=16388",
     "train.global_batch (16388) in micro-batches of train.micro_batch (4) is 4097 slots a step, "
     "more than 4096; nearest: a global_batch of 16384, or a micro_batch of 17"},
    {"train={global_batch: 16777213, micro_batch: 1}",
     "train.global_batch (16777213) in micro-batches of train.micro_batch (1) is 16777213 slots a "
     "step, more than 4096; nearest: a global_batch of 4096"},
    {"train.global_batch=16384", NULL},
    {"train.seq_len=2000",
     "train.seq_len (2000) is longer than model.context (1024); set it to at most that"},
    {"train.lanes=9", "train.lanes (9) is more than the slots of a step (train.global_batch / "
                      "train.micro_batch = 8); set it to at most 8, or auto"},
    {"model.n_head=5", "model.n_embd (768) is not a multiple of model.n_head (5); nearest: an "
                       "n_embd of 765 or 770, or an n_head of 4 or 6"},
    {"train.steps=9",
     "optimizer.warmup_steps (10) is more than train.steps (9); set it to at most that"},
    {"optimizer.lr=1e-5",
     "optimizer.min_lr (3e-05) is above optimizer.lr (1e-05); set it to at most that"},
    {"cluster={nnodes: 100, gpus_per_node: 16}",
     "cluster.nnodes (up to 100) times cluster.gpus_per_node (16) is more than 1024 ranks; at most "
     "64 nodes"},
    {"strategy.sharding=no_shard", "strategy.sharding says what fsdp shards, but strategy.name is "
                                   "ddp; write fsdp there, or null here"},
    {"strategy={redundancy: shadow}",
     "strategy.redundancy shadow keeps a second copy of shards, but with ddp every rank holds the "
     "whole state already; write none"},
    {"strategy={name: fsdp, sharding: null}",
     "strategy.sharding is null with strategy.name fsdp; name what it shards, or leave the key out "
     "for full_shard"},
    {"strategy.first_bucket_mib=26", "strategy.first_bucket_mib (26) is more than "
                                     "strategy.bucket_mib (25); set it to at most that"},
    {"data.val=null",
     "train.eval_every is 50 with no data.val; name the validation data, or write 0"},
    {"train.eval_step=7", "train.eval_step (--step) is 7, but nothing is only evaluated; give "
                          "--eval too, or write auto"},
    {"train.eval_tokens=63", "train.eval_tokens (63) is less than one sequence of train.seq_len "
                             "(64); set it to at least that"},
    {"train={eval_every: 0, eval_tokens: 63}", NULL}, /* nothing is evaluated */
    {"checkpoint.dir=null", NULL},                    /* every_steps is of no account then */
    {"checkpoint.keep_steps=[50, 200]", NULL},
    {"checkpoint.keep_steps=[]", NULL},
    {"checkpoint.keep_steps=[60]", NULL}, /* saved under another every_steps */
    {"checkpoint={keep_steps: [60], every_steps: 0}", NULL},
    {"checkpoint.keep_steps=50",
     "checkpoint.keep_steps: expected a list such as [100, 200], of at most 16"},
    {"checkpoint.keep_steps=[100, 50]",
     "checkpoint.keep_steps: expected ascending numbers, got 50 after 100"},
    {"checkpoint.keep_best=2", NULL},
    {"train={eval_every: 0}", NULL},
    {"train={on_divergence: skip}", NULL},
    {"data={kind: text, tokenizer: gpt2}",
     "data.tokenizer: gpt2 needs data.vocab_bpe; name OpenAI's file, or set data.tokenizer: bytes"},
    {"data={kind: text, tokenizer: gpt2, vocab_bpe: v.bpe}",
     "data.tokenizer: gpt2 needs data.encoder_json; name OpenAI's file, or set data.tokenizer: "
     "bytes"},
    {"data={kind: text, tokenizer: gpt2, vocab_bpe: v.bpe, encoder_json: e.json}", NULL},
    {"data={kind: tokens, tokenizer: gpt2}", NULL},
    {"data={kind: tokens, tokenizer: hf}", NULL},
    {"data={kind: text, tokenizer: hf}",
     "data.tokenizer: hf needs data.tokenizer_json; name the file, or set data.tokenizer: bytes"},
    {"data={kind: text, tokenizer: hf, tokenizer_json: t.json}", NULL},
    {"model={vocab: 100}", NULL}, /* tokens may be few */
};

static const struct {
    const char *text, *error;
} evaluation_cases[] = {
    {"train: {eval_only: true}", "c.yaml:1:20: there is no data.val to evaluate on (--eval is "
                                 "train.eval_only); name the validation data"},
    {"train: {eval_only: true}\ndata: {val: x}",
     "c.yaml:1:20: there is no checkpoint.dir to evaluate from (--eval is train.eval_only); name "
     "the folder of the checkpoints"},
    {"checkpoint: {every_steps: 5}",
     "c.yaml:1:27: checkpoint.every_steps: it is 5 and there is no checkpoint.dir; name a folder, "
     "or write checkpoint.dir: null for no checkpoints"},
    {"model: {vocab: auto}\ndata: {tokenizer: hf, tokenizer_json: t.json}",
     "c.yaml:2:19: model.vocab: auto is not known with data.tokenizer: hf; set it to the number of "
     "that tokenizer's tokens, which dpt-data encode prints, or more"},
};

/* A name one edit away, before the same name in another section, before names that are farther; of
 * equally near names the first of the table. */
static const struct {
    const char *path, *suggested;
} near_cases[] = {
    {"lg.dir", "'log.dir'"},
    {"nowhere.dir", "'checkpoint.dir'"},
    {"nowhere.kind", "'data.kind'"},
    {"lr", "'optimizer.lr'"},
    {"checkpont.dir", "'checkpoint.dir'"},
    {"trace.wait_s", "'cluster.wait_s'"},
};

static void nearest_name_is_suggested(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof near_cases / sizeof *near_cases; i++) {
        char line[DPT_ERR_TEXT_BYTES];
        (void)snprintf(line, sizeof line, "unknown key '%s'; did you mean %s?", near_cases[i].path,
                       near_cases[i].suggested);
        assert_int_equal(dpt_config_check_path(near_cases[i].path, &err), DPT_ECONFIG);
        assert_string_equal(err.text, line);
    }
}

static void refused_combinations(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof combination_cases / sizeof *combination_cases; i++) {
        struct dpt_config c;
        char line[DPT_ERR_TEXT_BYTES];
        enum dpt_status status =
            dpt_config_load_text(example, "c.yaml", &combination_cases[i].set, 1, &c, &err);
        (void)snprintf(line, sizeof line, "--set %s: %s", combination_cases[i].set,
                       combination_cases[i].error);
        assert_int_equal(status, combination_cases[i].error ? DPT_ECONFIG : DPT_OK);
        if (combination_cases[i].error)
            assert_string_equal(err.text, line);
    }
    struct dpt_config c;
    for (size_t i = 0; i < sizeof evaluation_cases / sizeof *evaluation_cases; i++) {
        const char *of = evaluation_cases[i].text;
        assert_int_equal(dpt_config_load_text(of, "c.yaml", NULL, 0, &c, &err), DPT_ECONFIG);
        assert_string_equal(err.text, evaluation_cases[i].error);
    }
    const char *text = "model: {vocab: 255}";
    assert_int_equal(dpt_config_load_text(text, "c.yaml", NULL, 0, &c, &err), DPT_ECONFIG);
    assert_string_equal(
        err.text,
        "c.yaml:1:16: model.vocab: 255 is too small for byte tokens; at least 256, or auto");
}

static void refused_overrides(void **state)
{
    (void)state;
    static const char *const bad[] = {"train.steps",
                                      "=5",
                                      "",
                                      "train.steps=",
                                      "train.steps=[",
                                      "x=5",
                                      "train.steps=5: 6",
                                      "train.steps=*a",
                                      "train.steps.x=5",
                                      "optimizer.lr=1 2",
                                      "train.stepz=5",
                                      "a.b.c.d.e.f.g=1"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct dpt_config c;
        char begin[64];
        (void)snprintf(begin, sizeof begin, "--set %s: ", bad[i]);
        assert_int_equal(dpt_config_load_text("", "c.yaml", &bad[i], 1, &c, &err), DPT_ECONFIG);
        assert_ptr_equal(strstr(err.text, begin), err.text);
    }
    const char *many[DPT_CONFIG_OVERRIDES_MAX + 1];
    for (size_t i = 0; i <= DPT_CONFIG_OVERRIDES_MAX; i++)
        many[i] = "seed=1";
    struct dpt_config c;
    assert_int_equal(dpt_config_load_text("", "c", many, DPT_CONFIG_OVERRIDES_MAX, &c, &err),
                     DPT_OK);
    assert_int_equal(dpt_config_load_text("", "c", many, DPT_CONFIG_OVERRIDES_MAX + 1, &c, &err),
                     DPT_ECONFIG);
    static char lengthy[300];
    memset(lengthy, 'k', sizeof lengthy - 1);
    lengthy[200] = '=';
    const char *one = lengthy;
    assert_int_equal(dpt_config_load_text("", "c", &one, 1, &c, &err), DPT_ECONFIG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refused_from_the_file), cmocka_unit_test(nearest_name_is_suggested),
        cmocka_unit_test(refused_combinations), cmocka_unit_test(refused_overrides)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
