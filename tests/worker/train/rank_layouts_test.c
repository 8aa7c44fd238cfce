/* A checkpoint does not depend on its writers: every strategy and world writes the same bytes, and
 * any other strategy and world continues from them. */
#include "base/fs.h"
#include "checkpoint/checkpoint.h"
#include "tests/worker/train/plain.h"
#include "tests/worker/train/rank_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 4, LONG_STEPS = 40, FILE_BYTES_MAX = 64 << 20 };

struct layout {
    const char *name;
    enum dpt_sharding sharding;
    int world;
    enum dpt_redundancy redundancy;
};

/* 11 slots in 5 lanes. */
static struct dpt_config make_layout_config(const struct layout *layout, int steps)
{
    struct dpt_config config = rig_make_config(2 * 11, steps, "");
    config.train.accumulate = DPT_ACCUMULATE_REDUCE;
    config.train.lanes = 5;
    (void)snprintf(config.strategy.name, sizeof config.strategy.name, "%s", layout->name);
    config.strategy.sharding = layout->sharding;
    config.strategy.redundancy = layout->redundancy;
    if (strcmp(layout->name, "dp") == 0) /* a checkpoint's config is checked */
        config.cluster.nnodes_min = config.cluster.nnodes_max = 1;
    return config;
}

static void same_file(const char *a, const char *b, const char *name)
{
    char path[256], *text_a, *text_b;
    size_t bytes_a, bytes_b;
    struct dpt_err err;
    (void)snprintf(path, sizeof path, "%s/checkpoints/step-%08d/%s", rig_dir(a), STEPS, name);
    assert_int_equal(dpt_fs_read_file(path, FILE_BYTES_MAX, &text_a, &bytes_a, &err), DPT_OK);
    (void)snprintf(path, sizeof path, "%s/checkpoints/step-%08d/%s", rig_dir(b), STEPS, name);
    assert_int_equal(dpt_fs_read_file(path, FILE_BYTES_MAX, &text_b, &bytes_b, &err), DPT_OK);
    if (bytes_a != bytes_b || memcmp(text_a, text_b, bytes_a) != 0)
        fail_msg("%s and %s wrote another %s", a, b, name);
    free(text_a);
    free(text_b);
}

/* Every byte of it against its checksum, and the weights against the hash of the run. */
static void verify(const char *dir, const char *hash)
{
    char path[256];
    struct dpt_checkpoint *checkpoint;
    struct dpt_err err;
    (void)snprintf(path, sizeof path, "%s/checkpoints", rig_dir(dir));
    if (dpt_checkpoint_open(path, STEPS, &checkpoint, &err) != DPT_OK ||
        dpt_checkpoint_verify(checkpoint, &err) != DPT_OK)
        fail_msg("%s: %s", dir, err.text);
    assert_string_equal(dpt_checkpoint_get_state(checkpoint)->weights_hash, hash);
    dpt_checkpoint_close(&checkpoint);
}

static void same_files_of_all(void **state)
{
    (void)state;
    /* Nodes of 2 and 1, and of 3 and 2 ranks cut the state in their own ways. */
    static const struct layout layouts[] = {
        {"ddp", DPT_SHARDING_NULL, 3, DPT_REDUNDANCY_NONE},
        {"fsdp", DPT_SHARDING_NO_SHARD, 2, DPT_REDUNDANCY_NONE},
        {"zero1", DPT_SHARDING_NULL, 2, DPT_REDUNDANCY_NONE},
        {"zero1", DPT_SHARDING_NULL, 5, DPT_REDUNDANCY_NONE},
        {"zero2", DPT_SHARDING_NULL, 3, DPT_REDUNDANCY_NONE},
        {"zero3", DPT_SHARDING_NULL, 4, DPT_REDUNDANCY_SHADOW},
        {"dp", DPT_SHARDING_NULL, 3, DPT_REDUNDANCY_NONE},
        {"fsdp", DPT_SHARDING_SHARD_GRAD_OP, 5, DPT_REDUNDANCY_NONE},
        {"fsdp", DPT_SHARDING_HYBRID_SHARD, 3, DPT_REDUNDANCY_NONE},
        {"fsdp", DPT_SHARDING_FULL_SHARD, 1, DPT_REDUNDANCY_NONE},
        {"fsdp", DPT_SHARDING_HYBRID_SHARD, 5, DPT_REDUNDANCY_NONE},
        {"fsdp", DPT_SHARDING_FULL_SHARD, 3, DPT_REDUNDANCY_NONE},
        {"fsdp", DPT_SHARDING_HYBRID_SHARD, 4, DPT_REDUNDANCY_NONE},
        /* More ranks than lanes: this order has none, and takes a rank a slot. */
        {"ddp", DPT_SHARDING_NULL, 6, DPT_REDUNDANCY_NONE},
        {"zero1", DPT_SHARDING_NULL, 7, DPT_REDUNDANCY_NONE},
        {"zero3", DPT_SHARDING_NULL, 8, DPT_REDUNDANCY_SHADOW},
        {"fsdp", DPT_SHARDING_HYBRID_SHARD, 8, DPT_REDUNDANCY_NONE}};
    static const char *const files[] = {
        "model-00001-of-00001.safetensors", "optimizer/m-00001-of-00001.safetensors",
        "optimizer/v-00001-of-00001.safetensors", "model.safetensors.index.json", "config.json"};
    const struct layout alone = {"ddp", DPT_SHARDING_NULL, 1, DPT_REDUNDANCY_NONE};
    struct dpt_config config = make_layout_config(&alone, STEPS);
    char expected[64], hash[64], name[32];
    rig_undisturbed(&config, "alone", 1, false, expected);
    verify("alone", expected);
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i += dpt_test_every()) {
        config = make_layout_config(&layouts[i], STEPS);
        (void)snprintf(name, sizeof name, "together-%d", (int)i);
        rig_undisturbed(&config, name, layouts[i].world, i % 2 == 1, hash);
        assert_string_equal(hash, expected);
        verify(name, expected);
        for (size_t f = 0; f < sizeof files / sizeof *files; f++)
            same_file("alone", name, files[f]);
    }
}

/* All die after a checkpoint, and other ranks continue from it. */
static void go_on(const struct layout *first, const struct layout *then, const char *name,
                  const char *expected)
{
    struct dpt_config config = make_layout_config(first, LONG_STEPS);
    char dir[128];
    int handles[8];
    struct director *d = rig_begin(&config, name, dir);
    for (int i = 0; i < first->world; i++)
        handles[i] = director_start(d, i % 2);
    assert_true(director_form(d, false));
    director_await_checkpoint(d, 4);
    for (int i = 0; i < first->world; i++)
        director_kill(d, handles[i]);
    director_destroy(&d);
    config = make_layout_config(then, LONG_STEPS);
    d = rig_begin(&config, name, dir);
    for (int i = 0; i < then->world; i++)
        (void)director_start(d, i / 2);
    assert_true(director_form(d, false));
    if (strcmp(director_finish(d), expected) != 0)
        fail_msg("%s of %d, then %s of %d: another hash", first->name, first->world, then->name,
                 then->world);
    director_destroy(&d);
    json_t *summary = rig_summary_of(dir);
    assert_true(json_integer_value(json_object_get(summary, "start_step")) >= 4);
    json_decref(summary);
}

static void every_layout_resumes_from_every_other(void **state)
{
    (void)state;
    static const struct layout pairs[][2] = {
        {{"ddp", DPT_SHARDING_NULL, 1, DPT_REDUNDANCY_NONE},
         {"fsdp", DPT_SHARDING_FULL_SHARD, 3, DPT_REDUNDANCY_NONE}},
        {{"ddp", DPT_SHARDING_NULL, 3, DPT_REDUNDANCY_NONE},
         {"zero1", DPT_SHARDING_NULL, 2, DPT_REDUNDANCY_NONE}},
        {{"dp", DPT_SHARDING_NULL, 3, DPT_REDUNDANCY_NONE},
         {"zero2", DPT_SHARDING_NULL, 4, DPT_REDUNDANCY_NONE}},
        {{"zero1", DPT_SHARDING_NULL, 4, DPT_REDUNDANCY_NONE},
         {"zero3", DPT_SHARDING_NULL, 5, DPT_REDUNDANCY_SHADOW}},
        {{"zero2", DPT_SHARDING_NULL, 2, DPT_REDUNDANCY_SHADOW},
         {"ddp", DPT_SHARDING_NULL, 2, DPT_REDUNDANCY_NONE}},
        {{"zero3", DPT_SHARDING_NULL, 5, DPT_REDUNDANCY_NONE},
         {"fsdp", DPT_SHARDING_SHARD_GRAD_OP, 1, DPT_REDUNDANCY_NONE}},
        {{"fsdp", DPT_SHARDING_FULL_SHARD, 3, DPT_REDUNDANCY_SHADOW},
         {"fsdp", DPT_SHARDING_HYBRID_SHARD, 4, DPT_REDUNDANCY_NONE}},
        {{"fsdp", DPT_SHARDING_HYBRID_SHARD, 5, DPT_REDUNDANCY_NONE},
         {"ddp", DPT_SHARDING_NULL, 1, DPT_REDUNDANCY_NONE}},
        {{"fsdp", DPT_SHARDING_SHARD_GRAD_OP, 5, DPT_REDUNDANCY_NONE},
         {"zero2", DPT_SHARDING_NULL, 3, DPT_REDUNDANCY_SHADOW}},
        {{"fsdp", DPT_SHARDING_FULL_SHARD, 8, DPT_REDUNDANCY_NONE},
         {"zero2", DPT_SHARDING_NULL, 7, DPT_REDUNDANCY_SHADOW}}};
    const struct layout alone = {"ddp", DPT_SHARDING_NULL, 1, DPT_REDUNDANCY_NONE};
    const struct dpt_config config = make_layout_config(&alone, LONG_STEPS);
    char expected[64], name[32];
    rig_undisturbed(&config, "undisturbed", 1, false, expected);
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i += dpt_test_every()) {
        (void)snprintf(name, sizeof name, "pair-%d", (int)i);
        go_on(&pairs[i][0], &pairs[i][1], name, expected);
    }
}

/* A world of fewer ranks than lanes grows to more, and shrinks. */
static void past_the_lanes_and_back(void **state)
{
    (void)state;
    const struct layout alone = {"ddp", DPT_SHARDING_NULL, 1, DPT_REDUNDANCY_NONE},
                        layout = {"zero2", DPT_SHARDING_NULL, 4, DPT_REDUNDANCY_SHADOW};
    struct dpt_config config = make_layout_config(&alone, LONG_STEPS);
    char expected[64], dir[128];
    rig_undisturbed(&config, "small", 1, false, expected);
    config = make_layout_config(&layout, LONG_STEPS);
    struct director *d = rig_begin(&config, "grown", dir);
    for (int i = 0; i < 8; i++)
        director_bench(d, director_start(d, i % 2), i >= layout.world);
    assert_true(director_form(d, false));
    director_await_step(d, 2);
    for (int i = layout.world; i < 8; i++)
        director_bench(d, i, false);
    assert_true(director_form(d, true));
    director_await_step(d, director_best_step(d) + 2);
    director_retire(d, 1);
    director_retire(d, 6);
    assert_true(director_form(d, true));
    assert_string_equal(director_finish(d), expected);
    assert_int_equal(director_steps_lost(d), 0);
    director_destroy(&d);
}

/* With accumulate: auto another strategy may mean another order of addition, which is another
 * trajectory. */
static void another_order_is_refused(void **state)
{
    (void)state;
    const struct layout ddp = {"ddp", DPT_SHARDING_NULL, 1, DPT_REDUNDANCY_NONE},
                        fsdp = {"fsdp", DPT_SHARDING_FULL_SHARD, 1, DPT_REDUNDANCY_NONE};
    char dir[128], hash[64];
    struct dpt_config config = make_layout_config(&ddp, STEPS);
    config.train.accumulate = DPT_ACCUMULATE_AUTO;
    rig_undisturbed(&config, "order", 1, false, hash);
    config = make_layout_config(&fsdp, STEPS);
    config.train.accumulate = DPT_ACCUMULATE_AUTO;
    struct director *d = rig_begin(&config, "order", dir);
    (void)director_start(d, 0);
    const char *text = director_await_fatal(d);
    if (!strstr(text, "train.accumulate (local, here reduce)"))
        fail_msg("%s", text);
    director_destroy(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(same_files_of_all),
                                       cmocka_unit_test(every_layout_resumes_from_every_other),
                                       cmocka_unit_test(past_the_lanes_and_back),
                                       cmocka_unit_test(another_order_is_refused)};
    return cmocka_run_group_tests(tests, rig_setup, rig_teardown);
}
