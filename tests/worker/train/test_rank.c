/* The oracle in one process: the same config gives one weights hash on any world, through kills,
 * joins and re-formations. */
#include "tests/worker/train/director.h"

#include "base/fs.h"
#include "base/rng.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char root[64];

static int setup(void **state)
{
    (void)state;
    (void)snprintf(root, sizeof root, "/tmp/dpt-test-rank-XXXXXX");
    assert_non_null(mkdtemp(root));
    char path[128];
    (void)snprintf(path, sizeof path, "%s/text", root);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    struct dpt_rng_key key = dpt_rng_key(1, DPT_RNG_TEST, 0, 0, 0);
    static const char *const words[] = {"the",     "rank",  "leaves", "and",
                                        "another", "comes", "in",     "time"};
    for (uint64_t i = 0; i < 2000; i++) {
        uint32_t block[4];
        dpt_philox(key, i, block);
        (void)fprintf(f, "%s ", words[block[0] % 8]);
    }
    assert_int_equal(fclose(f), 0);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    struct dpt_err err;
    return dpt_fs_remove_tree(root, &err) == DPT_OK ? 0 : -1;
}

static struct dpt_config make_config(int global_batch, int steps, const char *extra)
{
    static struct dpt_config config;
    char yaml[2048];
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
        "log: {dir: x}\n%s",
        root, steps, global_batch, extra);
    struct dpt_err err;
    if (dpt_config_load(yaml, strlen(yaml), "test", NULL, 0, &config, &err) != DPT_OK)
        fail_msg("%s", err.text);
    return config;
}

static struct director *begin(const struct dpt_config *config, const char *name, char dir[128])
{
    (void)snprintf(dir, 128, "%s/%s", root, name);
    struct dpt_err err;
    assert_int_equal(dpt_fs_mkdirs(dir, &err), DPT_OK);
    char checkpoints[160];
    (void)snprintf(checkpoints, sizeof checkpoints, "%s/checkpoints", dir);
    assert_int_equal(dpt_fs_mkdirs(checkpoints, &err), DPT_OK);
    return director_create(config, dir);
}

static json_t *summary_of(const char *dir)
{
    char path[160];
    (void)snprintf(path, sizeof path, "%s/summary.json", dir);
    json_error_t error;
    json_t *summary = json_load_file(path, 0, &error);
    if (!summary)
        fail_msg("%s: %s", path, error.text);
    return summary;
}

/* Runs undisturbed in a world of `world` ranks; the ranks of an odd handle live on another host
 * when asked. */
static void undisturbed(const struct dpt_config *config, const char *name, int world,
                        bool two_hosts, char ret[64])
{
    char dir[128];
    struct director *d = begin(config, name, dir);
    for (int i = 0; i < world; i++)
        (void)director_start(d, two_hosts ? i % 2 : 0);
    assert_true(director_form(d, false));
    (void)snprintf(ret, 64, "%s", director_finish(d));
    director_destroy(&d);
    json_t *summary = summary_of(dir);
    assert_string_equal(json_string_value(json_object_get(summary, "weights_hash")), ret);
    assert_int_equal(json_integer_value(json_object_get(summary, "start_step")), 0);
    assert_int_equal(json_integer_value(json_object_get(summary, "steps")), config->train.steps);
    assert_int_equal(json_integer_value(json_object_get(summary, "steps_lost")), 0);
    json_decref(summary);
}

static void one_hash_in_every_world(void **state)
{
    (void)state;
    for (int slots = 7; slots <= 8; slots++) {
        struct dpt_config config = make_config(2 * slots, 6, "");
        char first[64] = "", hash[64], name[32];
        for (int world = 1; world <= 4; world++)
            for (int two_hosts = 0; two_hosts <= (world > 1); two_hosts++) {
                (void)snprintf(name, sizeof name, "w%d-%d-%d", slots, world, two_hosts);
                undisturbed(&config, name, world, two_hosts != 0, hash);
                if (!first[0])
                    memcpy(first, hash, sizeof first);
                assert_string_equal(first, hash);
            }
    }
}

static void a_flipped_bit_gives_another_hash(void **state)
{
    (void)state;
    struct dpt_config config = make_config(14, 4, "");
    char plain[64], flipped[64];
    undisturbed(&config, "plain", 2, false, plain);
    assert_int_equal(setenv("DPT_TEST_FLIP_GRADIENT_BIT", "1:2", 1), 0);
    undisturbed(&config, "flipped", 2, false, flipped);
    assert_int_equal(unsetenv("DPT_TEST_FLIP_GRADIENT_BIT"), 0);
    assert_string_not_equal(plain, flipped);
}

static void a_killed_rank_costs_no_step(void **state)
{
    (void)state;
    struct dpt_config config = make_config(14, 12, "");
    char expected[64], dir[128];
    undisturbed(&config, "calm", 1, false, expected);
    struct director *d = begin(&config, "killed", dir);
    int a = director_start(d, 0), b = director_start(d, 0), c = director_start(d, 1);
    (void)a;
    assert_true(director_form(d, false));
    director_await_step(d, 3);
    director_kill(d, c);
    assert_true(director_form(d, false));
    director_await_step(d, 6);
    (void)director_start(d, 0); /* a joiner, healed from a survivor */
    assert_true(director_form(d, true));
    director_await_step(d, 9);
    director_kill(d, b);
    assert_string_equal(director_finish(d), expected);
    assert_int_equal(director_steps_lost(d), 0);
    director_destroy(&d);
}

static void all_die_and_a_checkpoint_remains(void **state)
{
    (void)state;
    struct dpt_config config = make_config(14, 10, "");
    char expected[64], dir[128];
    undisturbed(&config, "whole", 1, false, expected);
    struct director *d = begin(&config, "broken", dir);
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
    json_t *summary = summary_of(dir);
    assert_true(json_integer_value(json_object_get(summary, "start_step")) >= 4);
    json_decref(summary);
}

/* Re-formations without a reason at moments that the seed chooses: inside steps, commits and
 * formations. */
static void restless_worlds(void **state)
{
    (void)state;
    struct dpt_config config = make_config(14, 40, "");
    char expected[64], dir[128], name[32];
    undisturbed(&config, "restful", 1, false, expected);
    for (uint64_t seed = 0; seed < 6; seed++) {
        (void)snprintf(name, sizeof name, "restless-%d", (int)seed);
        struct director *d = begin(&config, name, dir);
        for (int i = 0; i < 3; i++)
            (void)director_start(d, (int)(seed % 2) * (i % 2));
        assert_true(director_form(d, false));
        struct dpt_rng_key key = dpt_rng_key(seed, DPT_RNG_TEST, 1, 0, 0);
        for (int i = 0; i < 12; i++) {
            uint32_t block[4];
            dpt_philox(key, (uint64_t)i, block);
            director_await_step(d, 1 + 3 * i);
            bool given_up =
                block[0] % 3 == 0; /* while it is being formed, which only a hard PREPARE does */
            if (given_up) {
                director_prepare(d, block[1] % 2 == 0);
                director_plan(d);
            }
            assert_true(director_form(d, !given_up && block[2] % 2 == 0));
        }
        const char *hash = director_finish(d);
        if (strcmp(hash, expected) != 0)
            fail_msg("seed %d: %s instead of %s", (int)seed, hash, expected);
        assert_int_equal(director_steps_lost(d), 0);
        director_destroy(&d);
    }
}

static void resume_refuses_another_trajectory(void **state)
{
    (void)state;
    struct dpt_config config = make_config(14, 4, "");
    char hash[64], dir[128];
    undisturbed(&config, "kept", 1, false, hash);
    config.optimizer.lr = 2e-2;
    struct director *d = begin(&config, "kept", dir);
    const char *text = NULL;
    assert_true(director_fatal(d, director_start(d, 0), &text));
    assert_non_null(strstr(text, "optimizer.lr"));
    director_destroy(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_hash_in_every_world),
        cmocka_unit_test(a_flipped_bit_gives_another_hash),
        cmocka_unit_test(a_killed_rank_costs_no_step),
        cmocka_unit_test(all_die_and_a_checkpoint_remains),
        cmocka_unit_test(restless_worlds),
        cmocka_unit_test(resume_refuses_another_trajectory),
    };
    return cmocka_run_group_tests_name("rank", tests, setup, teardown);
}
