/* Configs: the example of the design, presets, overrides, refusals with their place, round trips,
 * differences. */
#include "base/config.h"

#include "base/rng.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct dpt_err err;

/* The example of the design, in fp32. */
static const char example[] =
    "run: demo                  # rendezvous run id\n"
    "seed: 42\n"
    "cluster:   {nnodes: \"1:4\", gpus_per_node: auto, device: auto, threads: auto, timeout_s: 5, "
    "max_restarts: 100, rdzv: null}\n"
    "model:     {name: gpt2, preset: gpt2-124m}\n"
    "data:      {kind: tokens, train: \"data/train_*.bin\", val: \"data/val_*.bin\"}\n"
    "train:     {steps: 200, global_batch: 32, micro_batch: 4, seq_len: 64, precision: fp32, "
    "reduction: canonical, accumulate: auto, lanes: auto,\n"
    "            activation_checkpointing: none, grad_clip: 1.0, log_every: 1, eval_every: 50}\n"
    "optimizer: {name: adamw, lr: 3.0e-4, min_lr: 3.0e-5, schedule: cosine, warmup_steps: 10, "
    "betas: "
    "[0.9, 0.95], eps: 1.0e-8, weight_decay: 0.1, lr_scaling: none}\n"
    "strategy:  {name: ddp, bucket_mib: 25, overlap: true}\n"
    "checkpoint: {dir: runs/demo/checkpoints, every_steps: 50, keep: 3}\n"
    "log:       {dir: runs/demo}\n";

static struct dpt_config load(const char *text, const char *override)
{
    struct dpt_config config;
    if (dpt_config_load_text(text, "c.yaml", &override, override ? 1 : 0, &config, &err) != DPT_OK)
        fail_msg("%s", err.text);
    return config;
}

static void the_example_loads(void **state)
{
    (void)state;
    struct dpt_config c = load(example, NULL);
    assert_string_equal(c.run, "demo");
    assert_int_equal(c.seed, 42);
    assert_int_equal(c.cluster.nnodes_min, 1);
    assert_int_equal(c.cluster.nnodes_max, 4);
    assert_int_equal(c.cluster.gpus_per_node, DPT_AUTO);
    assert_int_equal(c.cluster.device, DPT_DEVICE_AUTO);
    assert_true(c.cluster.timeout_s == 5);
    assert_string_equal(c.cluster.rdzv, "");
    assert_string_equal(c.model.preset, "gpt2-124m");
    assert_int_equal(c.model.n_layer, 12);
    assert_int_equal(c.model.n_head, 12);
    assert_int_equal(c.model.n_embd, 768);
    assert_int_equal(c.model.context, 1024);
    assert_int_equal(c.model.vocab, 50257);
    assert_int_equal(c.data.kind, DPT_DATA_TOKENS);
    assert_string_equal(c.data.train, "data/train_*.bin");
    assert_int_equal(c.train.steps, 200);
    assert_int_equal(c.train.lanes, DPT_AUTO);
    assert_int_equal(dpt_config_slots(&c), 8);
    assert_int_equal(dpt_config_lanes(&c), 8);
    assert_int_equal(dpt_config_accumulate(&c), DPT_ACCUMULATE_LOCAL);
    assert_true(c.optimizer.lr == 3e-4 && c.optimizer.beta1 == 0.9 && c.optimizer.beta2 == 0.95);
    assert_int_equal(c.optimizer.schedule, DPT_SCHEDULE_COSINE);
    assert_string_equal(c.strategy.name, "ddp");
    assert_true(c.strategy.overlap && c.strategy.bucket_mib == 25);
    assert_string_equal(c.checkpoint.dir, "runs/demo/checkpoints");
    assert_string_equal(c.log.dir, "runs/demo");
}

static void defaults(void **state)
{
    (void)state;
    struct dpt_config empty = load("", NULL), plain;
    dpt_config_defaults(&plain);
    char keys[64];
    assert_int_equal(dpt_config_diff(&empty, &plain, DPT_CONFIG_NODE, NULL, keys, sizeof keys), 0);
    assert_int_equal(plain.model.vocab, 256); /* byte tokens */
    assert_int_equal(plain.data.kind, DPT_DATA_TEXT);
    struct dpt_config section = load("train:\n  # nothing set\nseed: 42\n", NULL);
    assert_int_equal(dpt_config_diff(&section, &plain, DPT_CONFIG_NODE, NULL, keys, sizeof keys),
                     0);
}

static void sizes_of_models(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int n_layer, n_head, n_embd, context, vocab;
    } cases[] = {
        {"model: {preset: gpt2-350m}", 24, 16, 1024, 1024, 50257},
        {"model: {preset: gpt2-774m}", 36, 20, 1280, 1024, 50257},
        {"model: {preset: gpt2-1558m}", 48, 25, 1600, 1024, 50257},
        {"model: {preset: gpt2-124m, n_layer: 2, vocab: 300}", 2, 12, 768, 1024, 300},
        {"model: {n_layer: 2, preset: gpt2-124m}", 2, 12, 768, 1024, 50257},
        {"model: {n_layer: 6, n_head: 6, n_embd: 384, context: 64}", 6, 6, 384, 64, 256},
        {"{data: {kind: tokens}, model: {n_layer: 1}}", 1, 4, 128, 256, 50257},
        {"model: {vocab: auto}", 4, 4, 128, 256, 256},
        {"model: {vocab: 512, preset: null}", 4, 4, 128, 256, 512},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct dpt_config c = load(cases[i].text, NULL);
        assert_int_equal(c.model.n_layer, cases[i].n_layer);
        assert_int_equal(c.model.n_head, cases[i].n_head);
        assert_int_equal(c.model.n_embd, cases[i].n_embd);
        assert_int_equal(c.model.context, cases[i].context);
        assert_int_equal(c.model.vocab, cases[i].vocab);
    }
    struct dpt_config c = load("model: {n_layer: 3}", "model.preset=gpt2-124m");
    assert_int_equal(c.model.n_layer, 3);
    assert_int_equal(c.model.n_embd, 768);
}

static void forms_of_values(void **state)
{
    (void)state;
    struct dpt_config c =
        load("cluster: {nnodes: 2}\nrun: 007\ndata: {train: 'a \"b\" \\ c'}", NULL);
    assert_int_equal(c.cluster.nnodes_min, 2);
    assert_int_equal(c.cluster.nnodes_max, 2);
    assert_string_equal(c.run, "007");
    assert_string_equal(c.data.train, "a \"b\" \\ c");
    c = load("cluster: {nnodes: 2:3, rdzv: ~}\nstrategy: {overlap: False, bucket_mib: 0.5}\n",
             NULL);
    assert_int_equal(c.cluster.nnodes_max, 3);
    assert_false(c.strategy.overlap);
    assert_true(c.strategy.first_bucket_mib == 0.5); /* never larger than the others */
    c = load("seed: 18446744073709551615\noptimizer: {weight_decay: -0.0, warmup_steps: 0}", NULL);
    assert_true(c.seed == UINT64_MAX);
    char keys[64];
    struct dpt_config zero = load("seed: 18446744073709551615\noptimizer: {weight_decay: 0}", NULL);
    assert_int_equal(dpt_config_diff(&c, &zero, DPT_CONFIG_NODE, NULL, keys, sizeof keys), 0);
}

static void overrides_win_in_order(void **state)
{
    (void)state;
    struct dpt_config c;
    const char *const sets[] = {"train.steps=5",
                                "train.steps=6",
                                "train={steps: 7, lanes: 2}",
                                "optimizer.betas=[0.5, 0.6]",
                                "run=other",
                                "cluster.nnodes=1:2",
                                "optimizer.warmup_steps=0",
                                "cluster.rdzv=\"[::1]:29500\""};
    assert_int_equal(dpt_config_load_text(example, "c.yaml", sets, 8, &c, &err), DPT_OK);
    assert_int_equal(c.train.steps, 7);
    assert_int_equal(c.train.lanes, 2);
    assert_true(c.optimizer.beta2 == 0.6);
    assert_string_equal(c.run, "other");
    assert_int_equal(c.cluster.nnodes_max, 2);
    assert_string_equal(c.cluster.rdzv, "[::1]:29500");
    /* What --set takes back is not held against the file. */
    c = load("train: {reduction: fast, global_batch: 6, micro_batch: 4}",
             "train={reduction: canonical, micro_batch: 3}");
    assert_int_equal(dpt_config_slots(&c), 2);
}

static void refused_from_the_file(void **state)
{
    (void)state;
    static const struct {
        const char *text, *error; /* the whole line */
    } cases[] = {
        {"trian: {steps: 5}", "c.yaml:1:1: unknown key 'trian'; did you mean 'train'?"},
        {"train:\n  stepz: 5\n",
         "c.yaml:2:3: unknown key 'train.stepz'; did you mean 'train.steps'?"},
        {"train: {lr: 5}", "c.yaml:1:9: unknown key 'train.lr'; did you mean 'optimizer.lr'?"},
        {"sede: 5", "c.yaml:1:1: unknown key 'sede'; did you mean 'seed'?"},
        {"zzzzzzzz: 5",
         "c.yaml:1:1: unknown key 'zzzzzzzz'; known are: run, seed, cluster, model, data, "
         "train, optimizer, strategy, checkpoint, log"},
        {"log: {qqqqqqqq: 5}",
         "c.yaml:1:7: unknown key 'log.qqqqqqqq'; its section has: dir, op_times, wait_s"},
        {"train: 5", "c.yaml:1:1: train is a section: its keys go inside it"},
        {"train: [1]", "c.yaml:1:1: train is a section: its keys go inside it"},
        {"train: {steps: {x: 5}}", "c.yaml:1:9: train.steps: expected one value, got a section"},
        {"train: {steps: [5]}", "c.yaml:1:17: train.steps: expected one value, got a list"},
        {"train: {steps: }", "c.yaml:1:16: train.steps: needs a value (default: 200)"},
        {"train: {steps: \"5\"}",
         "c.yaml:1:16: train.steps: expected a number, got text in quotes: '5'"},
        {"train: {steps: 0}",
         "c.yaml:1:16: train.steps: expected an integer from 1 to 1000000000000, got '0'"},
        {"train: {lanes: 0}",
         "c.yaml:1:16: train.lanes: expected an integer from 1 to 4096, got '0'"},
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
        {"optimizer: {eps: 0}",
         "c.yaml:1:18: optimizer.eps: expected a number above 0 to 1, got '0'"},
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
        {"cluster: {nnodes: 1:}",
         "c.yaml:1:20: found unexpected ':' while scanning a plain scalar"},
        {"cluster: {nnodes: \"1:\"}",
         "c.yaml:1:19: cluster.nnodes: expected an integer from 1 to 1024, got ''"},
        {"cluster: {rdzv: head}", "c.yaml:1:17: cluster.rdzv: expected HOST:PORT, got 'head'"},
        {"run: a b",
         "c.yaml:1:6: run: 'a b': only letters of a-z and A-Z, digits, '.', '_' and '-' are "
         "allowed"},
        {"run: caf\xc3\xa9", "c.yaml:1:6: run: 'caf\xc3\xa9': only letters of a-z and A-Z, digits, "
                             "'.', '_' and '-' are "
                             "allowed"},
        {"run: ..", "c.yaml:1:6: run: '..' may not begin with '.'"},
        {"run: ''", "c.yaml:1:6: run: may not be empty"},
        {"log: {dir: \"a\\nb\"}", "c.yaml:1:12: log.dir: holds a control character"},
        {"log: {dir: \"a\\u0085b\"}", "c.yaml:1:12: log.dir: holds a control character"},
        {"log: {dir: \"a\\u2028b\"}", "c.yaml:1:12: log.dir: holds a control character"},
        {"optimizer: {schedule: cosin}", "c.yaml:1:23: optimizer.schedule: unknown value 'cosin'; "
                                         "supported: constant, linear, cosine"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct dpt_config c = {.seed = 77};
        enum dpt_status status = dpt_config_load_text(cases[i].text, "c.yaml", NULL, 0, &c, &err);
        if (status != DPT_ECONFIG || strcmp(err.text, cases[i].error) != 0)
            fail_msg("'%s' gives\n%s, not\n%s", cases[i].text, err.text, cases[i].error);
        assert_int_equal(c.seed, 77); /* untouched */
    }
}

static void refused_combinations(void **state)
{
    (void)state;
    static const struct {
        const char *set, *error;
    } cases[] = {
        {"train.global_batch=30",
         "train.global_batch (30) is not a multiple of train.micro_batch (4); nearest: a "
         "global_batch of 28 or 32, or a micro_batch of 3 or 5"},
        {"train.global_batch=7",
         "train.global_batch (7) is not a multiple of train.micro_batch (4); nearest: a "
         "global_batch of 4 or 8, or a micro_batch of 1 or 7"},
        {"train.micro_batch=64",
         "train.global_batch (32) is not a multiple of train.micro_batch (64); nearest: a "
         "global_batch of 64, or a micro_batch of 32"},
        {"train.global_batch=16388",
         "train.global_batch (16388) in micro-batches of train.micro_batch (4) is 4097 slots a "
         "step, more than 4096; nearest: a global_batch of 16384, or a micro_batch of 17"},
        {"train={global_batch: 16777213, micro_batch: 1}",
         "train.global_batch (16777213) in micro-batches of train.micro_batch (1) is 16777213 "
         "slots "
         "a step, more than 4096; nearest: a global_batch of 4096"},
        {"train.global_batch=16384", NULL},
        {"train.seq_len=2000",
         "train.seq_len (2000) is longer than model.context (1024); set it to at most that"},
        {"train.lanes=9", "train.lanes (9) is more than the slots of a step (train.global_batch / "
                          "train.micro_batch = 8); set it to at most 8, or auto"},
        {"model.n_head=5",
         "model.n_embd (768) is not a multiple of model.n_head (5); nearest: an n_embd of 765 "
         "or 770, or an n_head of 4 or 6"},
        {"train.steps=9",
         "optimizer.warmup_steps (10) is more than train.steps (9); set it to at most that"},
        {"optimizer.lr=1e-5",
         "optimizer.min_lr (3e-05) is above optimizer.lr (1e-05); set it to at most that"},
        {"cluster={nnodes: 100, gpus_per_node: 16}",
         "cluster.nnodes (up to 100) times cluster.gpus_per_node (16) is more than 1024 ranks; at "
         "most 64 "
         "nodes"},
        {"strategy.sharding=no_shard", "strategy.sharding says what fsdp shards, but strategy.name "
                                       "is ddp; write fsdp there, or null here"},
        {"strategy={redundancy: shadow}",
         "strategy.redundancy shadow keeps a second copy of shards, but with ddp every rank holds "
         "the whole state already; write none"},
        {"strategy={name: fsdp, sharding: null}",
         "strategy.sharding is null with strategy.name fsdp; name what it shards, or leave the key "
         "out for full_shard"},
        {"strategy.first_bucket_mib=26", "strategy.first_bucket_mib (26) is more than "
                                         "strategy.bucket_mib (25); set it to at most that"},
        {"data.val=null",
         "train.eval_every is 50 with no data.val; name the validation data, or write 0"},
        {"train.eval_step=7", "train.eval_step (--step) is 7, but nothing is only evaluated; give "
                              "--eval too, or write auto"},
        {"train.eval_tokens=63", "train.eval_tokens (63) is less than one sequence of "
                                 "train.seq_len (64); set it to at least that"},
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
        {"data={kind: text, tokenizer: gpt2}", "data.tokenizer: gpt2 needs data.vocab_bpe; name "
                                               "OpenAI's file, or set data.tokenizer: bytes"},
        {"data={kind: text, tokenizer: gpt2, vocab_bpe: v.bpe}",
         "data.tokenizer: gpt2 needs data.encoder_json; name OpenAI's file, or set data.tokenizer: "
         "bytes"},
        {"data={kind: text, tokenizer: gpt2, vocab_bpe: v.bpe, encoder_json: e.json}", NULL},
        {"data={kind: tokens, tokenizer: gpt2}", NULL},
        {"data={kind: tokens, tokenizer: hf}", NULL},
        {"data={kind: text, tokenizer: hf}",
         "data.tokenizer: hf needs data.tokenizer_json; name the file, or set data.tokenizer: "
         "bytes"},
        {"data={kind: text, tokenizer: hf, tokenizer_json: t.json}", NULL},
        {"model={vocab: 100}", NULL}, /* tokens may be few */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct dpt_config c;
        char line[DPT_ERR_TEXT_BYTES];
        enum dpt_status status =
            dpt_config_load_text(example, "c.yaml", &cases[i].set, 1, &c, &err);
        (void)snprintf(line, sizeof line, "--set %s: %s", cases[i].set, cases[i].error);
        assert_int_equal(status, cases[i].error ? DPT_ECONFIG : DPT_OK);
        if (cases[i].error)
            assert_string_equal(err.text, line);
    }
    struct dpt_config c;
    static const struct {
        const char *text, *error;
    } evaluations[] = {
        {"train: {eval_only: true}",
         "c.yaml:1:20: there is no data.val to evaluate on (--eval is train.eval_only); name the "
         "validation data"},
        {"train: {eval_only: true}\ndata: {val: x}",
         "c.yaml:1:20: there is no checkpoint.dir to evaluate from (--eval is train.eval_only); "
         "name the folder of the checkpoints"},
        {"checkpoint: {every_steps: 5}",
         "c.yaml:1:27: checkpoint.every_steps: it is 5 and there is no checkpoint.dir; name a "
         "folder, or write checkpoint.dir: null for no checkpoints"},
        {"model: {vocab: auto}\ndata: {tokenizer: hf, tokenizer_json: t.json}",
         "c.yaml:2:19: model.vocab: auto is not known with data.tokenizer: hf; set it to the "
         "number "
         "of that tokenizer's tokens, which dpt-data encode prints, or more"},
    };
    for (size_t i = 0; i < sizeof evaluations / sizeof *evaluations; i++) {
        const char *of = evaluations[i].text;
        assert_int_equal(dpt_config_load_text(of, "c.yaml", NULL, 0, &c, &err), DPT_ECONFIG);
        assert_string_equal(err.text, evaluations[i].error);
    }
    const char *text = "model: {vocab: 255}";
    assert_int_equal(dpt_config_load_text(text, "c.yaml", NULL, 0, &c, &err), DPT_ECONFIG);
    assert_string_equal(err.text,
                        "c.yaml:1:16: model.vocab: 255 is too small for byte tokens; at least "
                        "256, or auto");
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

/* Text of `c`, loaded and printed again, is the same text. */
static void assert_round_trip(const struct dpt_config *c)
{
    static char first[DPT_CONFIG_TEXT_BYTES_MAX], second[DPT_CONFIG_TEXT_BYTES_MAX];
    struct dpt_config back;
    char keys[256];
    assert_int_equal(dpt_config_print(c, first, &err), DPT_OK);
    if (dpt_config_load_text(first, "printed", NULL, 0, &back, &err) != DPT_OK)
        fail_msg("%s\n%s", err.text, first);
    if (dpt_config_diff(c, &back, DPT_CONFIG_NODE, NULL, keys, sizeof keys) != 0)
        fail_msg("%s", keys);
    assert_int_equal(dpt_config_print(&back, second, &err), DPT_OK);
    assert_string_equal(first, second);
}

static void round_trips(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "",
        example,
        "model: {preset: gpt2-1558m, vocab: 300}",
        "strategy: {bucket_mib: 0.1}",
        "optimizer: {lr: 0.1, min_lr: 0.012345678901234567, betas: [0.3333333333333333, 1e-300]}",
        "data: {train: 'q\"uo\\te: #x', val: \"\\u00e9\\U0001F600 'y'\"}\nlog: {dir: '- [a, {b'}",
        "cluster: {nnodes: 3:5, rdzv: 'head:29500', gpus_per_node: 8, threads: 3, timeout_s: 0.2}",
        "run: 'null'",
        "run: auto",
        "data: {train: '~'}",
        "data: {kind: tokens, tokenizer: bytes}",
        "data: {tokenizer: gpt2, vocab_bpe: v.bpe, encoder_json: e.json, any_vocab: true}",
        "model: {vocab: 49152}\ndata: {tokenizer: hf, tokenizer_json: t.json}"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct dpt_config c = load(texts[i], NULL);
        assert_round_trip(&c);
    }
    /* The longest texts, each byte of which is escaped, fit. */
    struct dpt_config c = load("", NULL);
    memset(c.data.train, '"', sizeof c.data.train - 1);
    memset(c.data.val, '\\', sizeof c.data.val - 1);
    memset(c.data.tokenizer_json, '"', sizeof c.data.tokenizer_json - 1);
    memset(c.checkpoint.dir, '"', sizeof c.checkpoint.dir - 1);
    memset(c.log.dir, '\\', sizeof c.log.dir - 1);
    assert_round_trip(&c);
}

/* Damaged texts: either one clear line, or a config that survives its round trip. */
static void damaged_texts(void **state)
{
    (void)state;
    enum { TRIES = 4000 };
    static const char pieces[] = "{}[]:,\"'\\#&*!|>%@` \n\t-?0123456789.eEautonl~=\x80\xff";
    int loaded = 0;
    for (uint64_t seed = 0; seed < TRIES; seed++) {
        char text[sizeof example];
        size_t n = sizeof example - 1;
        memcpy(text, example, sizeof text);
        uint32_t r[4];
        dpt_philox(dpt_rng_key(1, DPT_RNG_TEST, seed, 0, 0), 0, r);
        for (uint32_t edit = 0; edit <= r[3] % 3; edit++) {
            uint32_t e[4];
            dpt_philox(dpt_rng_key(1, DPT_RNG_TEST, seed, 1, 0), edit, e);
            size_t at = e[0] % n;
            if (e[1] % 3 == 0) { /* cut out */
                size_t cut = 1 + e[2] % 8;
                cut = at + cut > n ? n - at : cut;
                memmove(text + at, text + at + cut, n - at - cut);
                n -= cut;
            } else {
                text[at] = pieces[e[2] % (sizeof pieces - 1)];
            }
        }
        struct dpt_config c;
        err = (struct dpt_err){.status = DPT_OK};
        if (dpt_config_load(&(struct dpt_config_input){.text = text, .bytes = n, .name = "c.yaml"},
                            &c, &err) == DPT_OK) {
            assert_round_trip(&c);
            loaded++;
        } else {
            assert_int_equal(err.status, DPT_ECONFIG);
            if (strncmp(err.text, "c.yaml:", 7) != 0)
                fail_msg("seed %llu: %s", (unsigned long long)seed, err.text);
        }
    }
    assert_true(loaded > TRIES / 20 && loaded < TRIES);
}

static int diff(const char *left, const char *right, enum dpt_config_scope scope,
                const char *allowed, char keys[512])
{
    struct dpt_config a = load(example, left), b = load(example, right);
    const char *const paths[] = {allowed, NULL};
    return dpt_config_diff(&a, &b, scope, paths, keys, 512);
}

static void differences(void **state)
{
    (void)state;
    char keys[512];
    assert_int_equal(diff(NULL, "train.lanes=4", DPT_CONFIG_TRAJECTORY, NULL, keys), 1);
    assert_string_equal(keys, "train.lanes (8, here 4)");
    assert_int_equal(diff(NULL, "train.lanes=4", DPT_CONFIG_TRAJECTORY, "train.lanes", keys), 0);
    assert_string_equal(keys, "");
    assert_int_equal(diff(NULL, "seed=1", DPT_CONFIG_TRAJECTORY, NULL, keys), 1);
    /* The same thing said otherwise. */
    assert_int_equal(diff(NULL, "train.lanes=8", DPT_CONFIG_NODE, NULL, keys), 0);
    assert_int_equal(diff(NULL, "train.accumulate=local", DPT_CONFIG_NODE, NULL, keys), 0);
    assert_int_equal(diff(NULL,
                          "model={preset: null, n_layer: 12, n_head: 12, n_embd: 768, context: "
                          "1024, vocab: 50257}",
                          DPT_CONFIG_NODE, NULL, keys),
                     0);
    /* Scopes. */
    assert_int_equal(diff(NULL, "log.dir=x", DPT_CONFIG_RUN, NULL, keys), 0);
    assert_int_equal(diff(NULL, "log.dir=x", DPT_CONFIG_NODE, NULL, keys), 1);
    assert_string_equal(keys, "log.dir (\"runs/demo\", here \"x\")");
    assert_int_equal(diff(NULL, "cluster.timeout_s=7", DPT_CONFIG_TRAJECTORY, NULL, keys), 0);
    assert_int_equal(diff(NULL, "cluster.timeout_s=7", DPT_CONFIG_RUN, NULL, keys), 1);
    assert_int_equal(diff(NULL, "data.train=elsewhere/*.bin", DPT_CONFIG_RUN, NULL, keys), 0);
    assert_int_equal(
        diff(NULL, "optimizer={lr: 0.5, betas: [0.9, 0.96]}", DPT_CONFIG_RUN, NULL, keys), 2);
    assert_string_equal(
        keys, "optimizer.lr (0.0003, here 0.5), optimizer.betas ([0.9, 0.95], here [0.9, 0.96])");
    /* A longer run is another trajectory only where the schedule looks at its end. */
    assert_int_equal(diff(NULL, "train.steps=300", DPT_CONFIG_TRAJECTORY, NULL, keys), 1);
    struct dpt_config a = load("optimizer: {schedule: constant}", "train.steps=10");
    struct dpt_config b = load("optimizer: {schedule: constant}", "train.steps=20");
    assert_int_equal(dpt_config_diff(&a, &b, DPT_CONFIG_TRAJECTORY, NULL, keys, sizeof keys), 0);
    assert_int_equal(dpt_config_diff(&a, &b, DPT_CONFIG_RUN, NULL, keys, sizeof keys), 1);
    /* What does not fit is cut, the number is not. */
    char small[20];
    a = load(example, "train={steps: 100, global_batch: 64}");
    b = load(example, NULL);
    assert_int_equal(dpt_config_diff(&a, &b, DPT_CONFIG_RUN, NULL, small, sizeof small), 3);
    assert_string_equal(small, "train.steps (100, h");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_example_loads),
                                       cmocka_unit_test(defaults),
                                       cmocka_unit_test(sizes_of_models),
                                       cmocka_unit_test(forms_of_values),
                                       cmocka_unit_test(overrides_win_in_order),
                                       cmocka_unit_test(refused_from_the_file),
                                       cmocka_unit_test(refused_combinations),
                                       cmocka_unit_test(refused_overrides),
                                       cmocka_unit_test(round_trips),
                                       cmocka_unit_test(damaged_texts),
                                       cmocka_unit_test(differences)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
