/* Config, folders and undisturbed runs for the stories of ranks. */
#include "tests/worker/train/rank_rig.h"

#include "base/account.h"
#include "base/fs.h"
#include "base/log.h"
#include "base/rng.h"
#include "tests/tmp.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char root[64];

static void write_words(const char *name, uint64_t seed, uint64_t n)
{
    char path[128];
    (void)snprintf(path, sizeof path, "%s/%s", root, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    struct dpt_rng_key key = dpt_rng_key(seed, DPT_RNG_TEST, 0, 0, 0);
    static const char *const words[] = {"the",     "rank",  "leaves", "and",
                                        "another", "comes", "in",     "time"};
    for (uint64_t i = 0; i < n; i++) {
        uint32_t block[4];
        dpt_philox(key, i, block);
        (void)fprintf(f, "%s ", words[block[0] % 8]);
    }
    assert_int_equal(fclose(f), 0);
}

/* Texts of all lengths, and in each the word that is its label. */
static void write_table(const char *name, uint64_t seed, uint64_t n)
{
    char path[128];
    (void)snprintf(path, sizeof path, "%s/%s", root, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    struct dpt_rng_key key = dpt_rng_key(seed, DPT_RNG_TEST, 0, 0, 0);
    static const char *const words[] = {"good", "bad", "no"}, *const ends[] = {
                                                                  "", " it is",
                                                                  " of all that I saw"};
    (void)fprintf(f, "label\ttext\n");
    for (uint64_t i = 0; i < n; i++) {
        uint32_t block[4];
        dpt_philox(key, i, block);
        (void)fprintf(f, "%u\t%s%s%s\n", (unsigned)(block[0] % 3), block[1] % 4 ? "" : "a ",
                      words[block[0] % 3], ends[block[2] % 3]);
    }
    assert_int_equal(fclose(f), 0);
}

/* Images of 32 x 32 pixels as planes of red, green and blue, each behind its label. */
static void write_images(const char *name, uint64_t seed, uint64_t n)
{
    enum { COLORS = 3, PLANE = 32 * 32, DRAWS = 4 };
    char path[128];
    (void)snprintf(path, sizeof path, "%s/%s", root, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    const struct dpt_rng_key key = dpt_rng_key(seed, DPT_RNG_TEST, 0, 0, 0);
    for (uint64_t i = 0; i < n; i++) {
        uint8_t record[1 + COLORS * PLANE];
        uint32_t draw[DRAWS];
        dpt_philox(key, i << 32, draw);
        record[0] = (uint8_t)(draw[0] % COLORS);
        for (uint64_t j = 0; j < COLORS * PLANE; j++) {
            if (j % DRAWS == 0)
                dpt_philox(key, (i << 32) + j + 1, draw);
            record[1 + j] = (uint8_t)(draw[j % DRAWS] % 128 + (j / PLANE == record[0] ? 96 : 0));
        }
        assert_int_equal(fwrite(record, sizeof record, 1, f), 1);
    }
    assert_int_equal(fclose(f), 0);
}

int rig_setup(void **state)
{
    (void)state;
    assert_true(test_make_memory_dir(root, sizeof root, "test-rank"));
    write_words("text", 1, 2000);
    write_words("val", 2, 200);
    write_table("text.tsv", 3, 90);
    write_table("val.tsv", 4, 60);
    write_images("images.bin", 5, 90);
    return 0;
}

int rig_teardown(void **state)
{
    (void)state;
    struct dpt_err err;
    return dpt_fs_remove_tree(root, &err) == DPT_OK ? 0 : -1;
}

struct dpt_config rig_make_config(int global_batch, int steps, const char *keys)
{
    enum { KEYS_MAX = 16 };
    static struct dpt_config config;
    char yaml[2048], words[512], *rest = NULL;
    const char *overrides[KEYS_MAX];
    size_t n = 0;
    assert_true(strlen(keys) < sizeof words);
    (void)snprintf(words, sizeof words, "%s", keys);
    for (char *word = strtok_r(words, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
        assert_true(n < KEYS_MAX);
        overrides[n++] = word;
    }
    (void)snprintf(
        yaml, sizeof yaml,
        "run: test\nseed: 7\n"
        "cluster: {nnodes: \"1:8\", timeout_s: 5}\n"
        "model: {name: gpt2, n_layer: 2, n_head: 2, n_embd: 32, context: 16, vocab: 256, dropout: "
        "0.1}\n"
        "data: {kind: text, train: \"%s/text\", tokenizer: bytes}\n"
        "train: {steps: %d, global_batch: %d, micro_batch: 2, seq_len: 16, precision: fp32, "
        "grad_clip: 1.0, log_every: 1}\n"
        "optimizer: {name: adamw, lr: 1.0e-2, min_lr: 1.0e-3, schedule: cosine, warmup_steps: 2}\n"
        "strategy: {name: ddp, bucket_mib: 0.02, overlap: true}\n"
        "checkpoint: {dir: x, every_steps: 4, keep: 2}\n"
        "log: {dir: x}\n",
        root, steps, global_batch);
    struct dpt_err err;
    if (dpt_config_load_text(yaml, "test", overrides, n, &config, &err) != DPT_OK)
        fail_msg("%s", err.text);
    return config;
}

const char *const rig_strategies[RIG_STRATEGIES] = {
    "ddp", "zero1", "zero2", "zero3", "no_shard", "full_shard", "shard_grad_op"};
const char *const rig_covered[RIG_COVERED] = {"hybrid_shard", "zero1+shadow", "zero2+shadow",
                                              "full_shard+shadow"};

void rig_choose(struct dpt_config *config, const char *strategy)
{
    static const struct {
        const char *name;
        enum dpt_sharding sharding;
    } shardings[] = {{"no_shard", DPT_SHARDING_NO_SHARD},
                     {"full_shard", DPT_SHARDING_FULL_SHARD},
                     {"hybrid_shard", DPT_SHARDING_HYBRID_SHARD},
                     {"shard_grad_op", DPT_SHARDING_SHARD_GRAD_OP}};
    const size_t word = strcspn(strategy, "+");
    config->strategy.redundancy =
        strategy[word] == '+' ? DPT_REDUNDANCY_SHADOW : DPT_REDUNDANCY_NONE;
    config->strategy.sharding = DPT_SHARDING_NULL;
    for (size_t i = 0; i < sizeof shardings / sizeof shardings[0]; i++)
        if (strlen(shardings[i].name) == word && strncmp(strategy, shardings[i].name, word) == 0)
            config->strategy.sharding = shardings[i].sharding;
    const bool sharding = config->strategy.sharding != DPT_SHARDING_NULL;
    (void)snprintf(config->strategy.name, sizeof config->strategy.name, "%.*s",
                   sharding ? 4 : (int)word, sharding ? "fsdp" : strategy);
}

void rig_choose_llama(struct dpt_config *config, bool tied)
{
    (void)snprintf(config->model.name, sizeof config->model.name, "llama");
    config->model.n_head = 4;
    config->model.n_kv_head = 1;
    config->model.head_size = 32;
    config->model.n_inner = 64;
    config->model.tied_head = tied;
    config->model.attention_bias = config->model.mlp_bias = !tied;
    config->model.rope_scaling = tied ? DPT_ROPE_SCALING_NONE : DPT_ROPE_SCALING_LLAMA3;
}

void rig_choose_labels(struct dpt_config *config)
{
    config->model.labels = 3;
    config->data.kind = DPT_DATA_CLASSIFICATION;
    (void)snprintf(config->data.train, sizeof config->data.train, "%s/text.tsv", root);
    (void)snprintf(config->data.text_column, sizeof config->data.text_column, "text");
    (void)snprintf(config->data.label_column, sizeof config->data.label_column, "label");
}

void rig_choose_resnet(struct dpt_config *config)
{
    static struct dpt_config usual; /* a checkpoint's config is refused with a text's keys */
    dpt_config_defaults(&usual);
    config->model = usual.model;
    config->model.vocab = DPT_AUTO;
    (void)snprintf(config->model.name, sizeof config->model.name, "resnet");
    config->model.labels = 3;
    config->model.width = 8;
    config->model.stem = DPT_STEM_CIFAR;
    config->model.block = DPT_RESIDUAL_BLOCK_BASIC;
    config->model.n_layer = 3;
    config->model.stages = (struct dpt_config_steps){3, {1, 1, 1}};
    config->train.seq_len = 1;
    config->data.kind = DPT_DATA_CIFAR10;
    config->data.image_size = 32;
    config->data.resize = 32;
    config->data.augment = DPT_AUGMENT_CROP_FLIP;
    (void)snprintf(config->data.train, sizeof config->data.train, "%s/images.bin", root);
}

void rig_choose_folder(struct dpt_config *config, const char *name)
{
    struct dpt_config first = *config;
    char hash[64];
    first.train.steps = 2;
    first.train.eval_every = 0;
    first.train.precision = DPT_PRECISION_FP32;
    first.checkpoint.every_steps = 2;
    rig_choose(&first, "ddp");
    rig_undisturbed(&first, name, 1, false, hash);
    (void)snprintf(config->model.init_from, sizeof config->model.init_from,
                   "%s/%s/checkpoints/step-00000002", root, name);
}

void rig_choose_lora(struct dpt_config *config, const char *name)
{
    rig_choose_folder(config, name);
    config->train.lora.rank = 2;
    config->train.lora.alpha = 8;
    config->train.lora.targets = DPT_LORA_ALL;
}

void rig_evaluate(struct dpt_config *config, int every, int sequences)
{
    const bool labels = config->data.kind == DPT_DATA_CLASSIFICATION;
    if (config->data.kind == DPT_DATA_CIFAR10) {
        write_images("val.bin", 6, (uint64_t)sequences);
        (void)snprintf(config->data.val, sizeof config->data.val, "%s/val.bin", root);
        config->train.eval_every = every;
        return;
    }
    (void)snprintf(config->data.val, sizeof config->data.val, "%s/val%s", root,
                   labels ? ".tsv" : "");
    config->train.eval_every = every;
    if (labels)
        config->data.val_samples = sequences;
    else
        config->train.eval_tokens = (int64_t)sequences * config->train.seq_len;
}

struct director *rig_begin(const struct dpt_config *config, const char *name, char dir[128])
{
    (void)snprintf(dir, 128, "%s/%s", root, name);
    struct dpt_err err;
    assert_int_equal(dpt_fs_mkdirs(dir, &err), DPT_OK);
    char checkpoints[160];
    (void)snprintf(checkpoints, sizeof checkpoints, "%s/checkpoints", dir);
    assert_int_equal(dpt_fs_mkdirs(checkpoints, &err), DPT_OK);
    return director_create(config, dir);
}

const char *rig_dir(const char *name)
{
    static char dir[128];
    (void)snprintf(dir, sizeof dir, "%s/%s", root, name);
    return dir;
}

static void write_log_line(void *ctx, const char *line, size_t bytes)
{
    DPT_ASSERT(write((int)(intptr_t)ctx, line, bytes) == (ssize_t)bytes);
}

int rig_log_to(const char *dir, char ret_path[160])
{
    (void)snprintf(ret_path, 160, "%s/said", dir);
    const int fd = open(ret_path, O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    dpt_log_set_sink(write_log_line, (void *)(intptr_t)fd);
    return fd;
}

void rig_log_back(int fd)
{
    dpt_log_set_sink(NULL, NULL);
    assert_int_equal(close(fd), 0);
}

int rig_said(const char *path, const char *words)
{
    char line[1024];
    int n = 0;
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f))
        n += strstr(line, words) != NULL;
    assert_int_equal(fclose(f), 0);
    return n;
}

static json_int_t tag_bytes(const json_t *device, const char *tag, const char *what)
{
    const json_t *tags = json_object_get(device, "tags");
    return json_integer_value(json_object_get(json_object_get(tags, tag), what));
}

void rig_check_device_memory(const char *name)
{
    char path[192];
    json_error_t error;
    (void)snprintf(path, sizeof path, "%s/node-/rank-0.memory.json", rig_dir(name));
    json_t *account = json_load_file(path, 0, &error), *device = json_object_get(account, "device");
    json_int_t all = 0;
    for (int i = 0; i < DPT_MEMORY_COUNT; i++) {
        const char *tag = dpt_memory_tag_name((enum dpt_memory_tag)i);
        const json_int_t bytes = tag_bytes(device, tag, "bytes"),
                         formula = tag_bytes(device, tag, "formula");
        all += bytes;
        const bool exact = i != DPT_MEMORY_COMM || bytes < formula;
        if (i == DPT_MEMORY_WORKSPACE || i == DPT_MEMORY_OTHER)
            assert_int_equal(formula, 0);
        else if (exact && bytes != formula)
            fail_msg("%s: the device has %lld bytes of %s, the formula says %lld", name,
                     (long long)bytes, tag, (long long)formula);
    }
    assert_true(all > 0);
    assert_int_equal(all, json_integer_value(json_object_get(device, "bytes")));
    assert_true(json_integer_value(json_object_get(json_object_get(device, "reserved"), "bytes")) >=
                all);
    json_decref(account);
}

json_t *rig_summary_of(const char *dir)
{
    char path[160];
    (void)snprintf(path, sizeof path, "%s/summary.json", dir);
    json_error_t error;
    json_t *summary = json_load_file(path, 0, &error);
    if (!summary)
        fail_msg("%s: %s", path, error.text);
    return summary;
}

double rig_number(const json_t *object, const char *name)
{
    const json_t *value = json_object_get(object, name);
    if (!json_is_number(value))
        fail_msg("no %s", name);
    return json_number_value(value);
}

void rig_undisturbed(const struct dpt_config *config, const char *name, int world, bool two_hosts,
                     char ret[64])
{
    char dir[128];
    struct director *d = rig_begin(config, name, dir);
    for (int i = 0; i < world; i++)
        (void)director_start(d, two_hosts ? i % 2 : 0);
    assert_true(director_form(d, false));
    (void)snprintf(ret, 64, "%s", director_finish(d));
    director_destroy(&d);
    json_t *summary = rig_summary_of(dir);
    assert_string_equal(json_string_value(json_object_get(summary, "weights_hash")), ret);
    assert_int_equal(json_integer_value(json_object_get(summary, "start_step")), 0);
    assert_int_equal(json_integer_value(json_object_get(summary, "steps")), config->train.steps);
    assert_int_equal(json_integer_value(json_object_get(summary, "steps_lost")), 0);
    json_decref(summary);
}

/* A folder that no story before had. */
static const char *fresh(char ret[32], const char *name)
{
    static int n;
    (void)snprintf(ret, 32, "%s-%d", name, n++);
    return ret;
}

void rig_deaths_and_healing(const struct dpt_config *config)
{
    char expected[64], dir[128], name[32];
    rig_undisturbed(config, fresh(name, "calm"), 1, false, expected);
    struct director *d = rig_begin(config, fresh(name, "killed"), dir);
    int a = director_start(d, 0), b = director_start(d, 0), c = director_start(d, 1);
    (void)a;
    int joiner = director_start(d, 0); /* a spare, so that it has joined before the run is over */
    director_bench(d, joiner, true);
    assert_true(director_form(d, false));
    director_await_step(d, 3);
    director_kill(d, c);
    assert_true(director_form(d, false));
    director_await_step(d, 6);
    director_bench(d, joiner, false); /* healed from a survivor */
    assert_true(director_form(d, true));
    director_await_step(d, 9);
    director_kill(d, b);
    assert_string_equal(director_finish(d), expected);
    assert_int_equal(director_steps_lost(d), 0);
    director_destroy(&d);
}

void rig_all_die(const struct dpt_config *config)
{
    char expected[64], dir[128], name[32];
    rig_undisturbed(config, fresh(name, "whole"), 1, false, expected);
    struct director *d = rig_begin(config, fresh(name, "broken"), dir);
    int a = director_start(d, 0), b = director_start(d, 0);
    assert_true(director_form(d, false));
    director_await_checkpoint(d, 4);
    director_kill(d, a);
    director_kill(d, b);
    for (int i = 0; i < 3; i++)
        (void)director_start(d, 0);
    assert_true(director_form(d, false));
    assert_string_equal(director_finish(d), expected);
    director_destroy(&d);
    json_t *summary = rig_summary_of(dir);
    assert_true(json_integer_value(json_object_get(summary, "start_step")) >= 4);
    json_decref(summary);
}
