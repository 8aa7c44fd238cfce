/* Configs: the example of the design, presets, overrides, round trips, differences. */
#include "base/config.h"

#include "base/rng.h"
#include "base/strategy_traits.h"
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

static struct dpt_config load_config(const char *text, const char *override)
{
    struct dpt_config config;
    if (dpt_config_load_text(text, "c.yaml", &override, override ? 1 : 0, &config, &err) != DPT_OK)
        fail_msg("%s", err.text);
    return config;
}

static void example_config_loads(void **state)
{
    (void)state;
    struct dpt_config c = load_config(example, NULL);
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
    assert_int_equal(dpt_strategy_traits(&c).order, DPT_ACCUMULATE_LOCAL);
    assert_true(c.optimizer.lr == 3e-4 && c.optimizer.beta1 == 0.9 && c.optimizer.beta2 == 0.95);
    assert_int_equal(c.optimizer.schedule, DPT_SCHEDULE_COSINE);
    assert_string_equal(c.strategy.name, "ddp");
    assert_true(c.strategy.overlap && c.strategy.bucket_mib == 25);
    assert_string_equal(c.checkpoint.dir, "runs/demo/checkpoints");
    assert_string_equal(c.log.dir, "runs/demo");
}

static void test_empty_config_is_default(void **state)
{
    (void)state;
    struct dpt_config empty = load_config("", NULL), plain;
    dpt_config_defaults(&plain);
    char keys[64];
    assert_int_equal(dpt_config_diff(&empty, &plain, DPT_CONFIG_NODE, NULL, keys, sizeof keys), 0);
    assert_int_equal(plain.model.vocab, 256); /* byte tokens */
    assert_int_equal(plain.data.kind, DPT_DATA_TEXT);
    struct dpt_config section = load_config("train:\n  # nothing set\nseed: 42\n", NULL);
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
        struct dpt_config c = load_config(cases[i].text, NULL);
        assert_int_equal(c.model.n_layer, cases[i].n_layer);
        assert_int_equal(c.model.n_head, cases[i].n_head);
        assert_int_equal(c.model.n_embd, cases[i].n_embd);
        assert_int_equal(c.model.context, cases[i].context);
        assert_int_equal(c.model.vocab, cases[i].vocab);
    }
    struct dpt_config c = load_config("model: {n_layer: 3}", "model.preset=gpt2-124m");
    assert_int_equal(c.model.n_layer, 3);
    assert_int_equal(c.model.n_embd, 768);
}

static void forms_of_values(void **state)
{
    (void)state;
    struct dpt_config c =
        load_config("cluster: {nnodes: 2}\nrun: 007\ndata: {train: 'a \"b\" \\ c'}", NULL);
    assert_int_equal(c.cluster.nnodes_min, 2);
    assert_int_equal(c.cluster.nnodes_max, 2);
    assert_string_equal(c.run, "007");
    assert_string_equal(c.data.train, "a \"b\" \\ c");
    c = load_config(
        "cluster: {nnodes: 2:3, rdzv: ~}\nstrategy: {overlap: False, bucket_mib: 0.5}\n", NULL);
    assert_int_equal(c.cluster.nnodes_max, 3);
    assert_false(c.strategy.overlap);
    assert_true(c.strategy.first_bucket_mib == 0.5); /* never larger than the others */
    c = load_config("seed: 18446744073709551615\noptimizer: {weight_decay: -0.0, warmup_steps: 0}",
                    NULL);
    assert_true(c.seed == UINT64_MAX);
    char keys[64];
    struct dpt_config zero =
        load_config("seed: 18446744073709551615\noptimizer: {weight_decay: 0}", NULL);
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
    /* A value that --set overrides causes no error in the file. */
    c = load_config("train: {reduction: fast, global_batch: 6, micro_batch: 4}",
                    "train={reduction: canonical, micro_batch: 3}");
    assert_int_equal(dpt_config_slots(&c), 2);
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
        struct dpt_config c = load_config(texts[i], NULL);
        assert_round_trip(&c);
    }
    /* The longest texts, each byte of which is escaped, fit. */
    struct dpt_config c = load_config("", NULL);
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
    struct dpt_config a = load_config(example, left), b = load_config(example, right);
    const char *const paths[] = {allowed, NULL};
    return dpt_config_diff(&a, &b, scope, paths, keys, 512);
}

static void test_differing_keys_are_named(void **state)
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
    struct dpt_config a = load_config("optimizer: {schedule: constant}", "train.steps=10");
    struct dpt_config b = load_config("optimizer: {schedule: constant}", "train.steps=20");
    assert_int_equal(dpt_config_diff(&a, &b, DPT_CONFIG_TRAJECTORY, NULL, keys, sizeof keys), 0);
    assert_int_equal(dpt_config_diff(&a, &b, DPT_CONFIG_RUN, NULL, keys, sizeof keys), 1);
    /* What does not fit is cut, the number is not. */
    char small[20];
    a = load_config(example, "train={steps: 100, global_batch: 64}");
    b = load_config(example, NULL);
    assert_int_equal(dpt_config_diff(&a, &b, DPT_CONFIG_RUN, NULL, small, sizeof small), 3);
    assert_string_equal(small, "train.steps (100, h");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(example_config_loads),   cmocka_unit_test(test_empty_config_is_default),
        cmocka_unit_test(sizes_of_models),        cmocka_unit_test(forms_of_values),
        cmocka_unit_test(overrides_win_in_order), cmocka_unit_test(round_trips),
        cmocka_unit_test(damaged_texts),          cmocka_unit_test(test_differing_keys_are_named)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
