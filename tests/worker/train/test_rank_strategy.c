/* One hash for every strategy and world at equal order of addition and precision: that of the
 * textbook's loop. */
#include "tests/worker/train/plain.h"
#include "tests/worker/train/rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

struct variant {
    const char *name;
    enum dpt_sharding sharding;
    enum dpt_redundancy redundancy;
};

static const struct variant variants[] = {
    {"ddp", DPT_SHARDING_NULL, DPT_REDUNDANCY_NONE},
    {"fsdp", DPT_SHARDING_NO_SHARD, DPT_REDUNDANCY_NONE},
    {"zero1", DPT_SHARDING_NULL, DPT_REDUNDANCY_NONE},
    {"zero2", DPT_SHARDING_NULL, DPT_REDUNDANCY_NONE},
    {"zero3", DPT_SHARDING_NULL, DPT_REDUNDANCY_NONE},
    {"fsdp", DPT_SHARDING_FULL_SHARD, DPT_REDUNDANCY_NONE},
    {"fsdp", DPT_SHARDING_SHARD_GRAD_OP, DPT_REDUNDANCY_NONE},
    {"fsdp", DPT_SHARDING_HYBRID_SHARD, DPT_REDUNDANCY_NONE},
    {"zero2", DPT_SHARDING_NULL, DPT_REDUNDANCY_SHADOW},
    {"fsdp", DPT_SHARDING_FULL_SHARD, DPT_REDUNDANCY_SHADOW},
    {"simple", DPT_SHARDING_NULL, DPT_REDUNDANCY_NONE},
    {"simple_ga", DPT_SHARDING_NULL, DPT_REDUNDANCY_NONE},
    {"hook", DPT_SHARDING_NULL, DPT_REDUNDANCY_NONE},
    {"async", DPT_SHARDING_NULL, DPT_REDUNDANCY_NONE},
    {"bucket_async", DPT_SHARDING_NULL, DPT_REDUNDANCY_NONE},
};
enum {
    VARIANTS = sizeof variants / sizeof variants[0],
    COVERED = 7 /* from here on */,
    TEACHING = 10 /* likewise */
};

/* 11 slots: no world of 2, 3 or 4 divides them, and 4 lanes have several each. */
static struct dpt_config make_config(enum dpt_accumulate accumulate, enum dpt_precision precision,
                                     int steps)
{
    struct dpt_config config = rig_make_config(2 * 11, steps, "");
    config.train.accumulate = accumulate;
    config.train.precision = precision;
    config.train.lanes = 4;
    return config;
}

static void choose(struct dpt_config *config, const struct variant *v)
{
    (void)snprintf(config->strategy.name, sizeof config->strategy.name, "%s", v->name);
    config->strategy.sharding = v->sharding;
    config->strategy.redundancy = v->redundancy;
}

static void one_hash(enum dpt_accumulate accumulate, enum dpt_precision precision)
{
    struct dpt_config config = make_config(accumulate, precision, 4);
    char expected[DPT_HASH_HEX_BYTES], hash[64], name[64];
    plain_train(&config, expected);
    for (int v = 0; v < VARIANTS; v++)
        for (int world = 1; world <= 4; world += RIG_EVERY) {
            choose(&config, &variants[v]);
            (void)snprintf(name, sizeof name, "s%d-%d-%d-%d", (int)accumulate, (int)precision, v,
                           world);
            rig_undisturbed(&config, name, world, world > 2, hash);
            if (strcmp(hash, expected) != 0)
                fail_msg("%s, sharding %d, world %d: %s instead of %s", variants[v].name,
                         (int)variants[v].sharding, world, hash, expected);
        }
}

static void one_hash_local(void **state)
{
    (void)state;
    one_hash(DPT_ACCUMULATE_LOCAL, DPT_PRECISION_FP32);
}

static void one_hash_local_bf16(void **state)
{
    (void)state;
    one_hash(DPT_ACCUMULATE_LOCAL, DPT_PRECISION_BF16);
}

static void one_hash_reduce(void **state)
{
    (void)state;
    one_hash(DPT_ACCUMULATE_REDUCE, DPT_PRECISION_FP32);
}

static void one_hash_reduce_bf16(void **state)
{
    (void)state;
    one_hash(DPT_ACCUMULATE_REDUCE, DPT_PRECISION_BF16);
}

static void deaths_and_healing_cost_no_step(void **state)
{
    (void)state;
    const struct dpt_config config = make_config(DPT_ACCUMULATE_REDUCE, DPT_PRECISION_FP32, 18);
    rig_deaths_and_healing(&config);
}

/* Ranks join and leave in agreement: shards are dealt anew, from memory, and no step is lost. */
static void shards_are_dealt_anew(void **state)
{
    (void)state;
    for (int v = 2; v < VARIANTS; v++) {
        struct dpt_config config = make_config(DPT_ACCUMULATE_REDUCE, DPT_PRECISION_BF16, 16);
        char expected[64], dir[128], name[32];
        rig_undisturbed(&config, "never-dealt-anew", 1, false, expected);
        choose(&config, &variants[v]);
        (void)snprintf(name, sizeof name, "dealt-anew-%d", v);
        struct director *d = rig_begin(&config, name, dir);
        (void)director_start(d, 0);
        int b = director_start(d, 1), c = director_start(d, 0);
        director_bench(d, b, true);
        director_bench(d, c, true);
        assert_true(director_form(d, false));
        director_await_step(d, 3);
        director_bench(d, b, false);
        director_bench(d, c, false);
        assert_true(director_form(d, true));
        director_await_step(d, 7);
        assert_true(director_form(d, true));
        assert_string_equal(director_finish(d), expected);
        assert_int_equal(director_steps_lost(d), 0);
        director_destroy(&d);
    }
}

/* The run's account goes on though its state went back. */
static void expect_account(const char *dir, int64_t steps_lost)
{
    json_t *summary = rig_summary_of(dir);
    assert_int_equal(json_integer_value(json_object_get(summary, "start_step")), 0);
    assert_int_equal(json_integer_value(json_object_get(summary, "generations")), 2);
    assert_int_equal(json_integer_value(json_object_get(summary, "steps_lost")), steps_lost);
    json_decref(summary);
}

/* The only holder of a shard dies: the run goes on from the checkpoint, with the same curve. */
static void a_lost_shard_costs_back_to_the_checkpoint(void **state)
{
    (void)state;
    for (int v = 2; v < COVERED; v += 2) {
        struct dpt_config config = make_config(DPT_ACCUMULATE_REDUCE, DPT_PRECISION_FP32, 150);
        char expected[64], dir[128], name[32];
        rig_undisturbed(&config, "nothing-lost", 1, false, expected);
        choose(&config, &variants[v]);
        (void)snprintf(name, sizeof name, "shard-lost-%d", v);
        struct director *d = rig_begin(&config, name, dir);
        (void)director_start(d, 0);
        int b = director_start(d, 0), c = director_start(d, 1);
        assert_true(director_form(d, false));
        director_await_checkpoint(d, 4);
        director_kill(d, b);
        director_kill(d, c);
        assert_true(
            director_form(d, false)); /* who saves at the end notices nobody's death itself */
        assert_string_equal(director_finish(d), expected);
        expect_account(dir, director_steps_lost(d));
        director_destroy(&d);
    }
}

/* One of four ranks dies in the middle of the run. */
static void lose_one(int v, enum dpt_accumulate accumulate, const char *what)
{
    struct dpt_config config = make_config(accumulate, DPT_PRECISION_BF16, 40);
    char expected[64], dir[128], name[32];
    (void)snprintf(name, sizeof name, "%s-all-live", what);
    rig_undisturbed(&config, name, 1, false, expected);
    choose(&config, &variants[v]);
    (void)snprintf(name, sizeof name, "%s-%d", what, v);
    struct director *d = rig_begin(&config, name, dir);
    int dies = -1;
    for (int i = 0; i < 4; i++)
        dies = director_start(d, i % 2);
    assert_true(director_form(d, false));
    director_await_step(d, 3);
    director_kill(d, dies);
    assert_string_equal(director_finish(d), expected);
    assert_int_equal(director_steps_lost(d), 0);
    director_destroy(&d);
}

/* A rank dies: its shard is with a replica or a shadow. */
static void what_is_covered_costs_no_step(void **state)
{
    (void)state;
    for (int v = COVERED; v < VARIANTS; v++)
        lose_one(v, DPT_ACCUMULATE_REDUCE, "covered");
}

/* Also where the main thread waits for sums of lanes in the middle of its backward pass. */
static void a_death_in_a_hook_costs_no_step(void **state)
{
    (void)state;
    for (int v = TEACHING; v < VARIANTS; v++)
        lose_one(v, DPT_ACCUMULATE_LOCAL, "hooked");
}

/* Evaluations between the steps change nothing. */
static void an_evaluation_changes_nothing(void **state)
{
    (void)state;
    struct dpt_config config = make_config(DPT_ACCUMULATE_REDUCE, DPT_PRECISION_BF16, 6);
    char expected[64], hash[64], name[32];
    rig_undisturbed(&config, "not-evaluated", 1, false, expected);
    rig_evaluate(&config, 2, 15);
    for (int v = 0; v < VARIANTS; v++) {
        choose(&config, &variants[v]);
        (void)snprintf(name, sizeof name, "evaluated-%d", v);
        rig_undisturbed(&config, name, 3, true, hash);
        assert_string_equal(hash, expected);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_hash_local),
        cmocka_unit_test(one_hash_local_bf16),
        cmocka_unit_test(one_hash_reduce),
        cmocka_unit_test(one_hash_reduce_bf16),
        cmocka_unit_test(deaths_and_healing_cost_no_step),
        cmocka_unit_test(shards_are_dealt_anew),
        cmocka_unit_test(a_lost_shard_costs_back_to_the_checkpoint),
        cmocka_unit_test(what_is_covered_costs_no_step),
        cmocka_unit_test(a_death_in_a_hook_costs_no_step),
        cmocka_unit_test(an_evaluation_changes_nothing),
    };
    return cmocka_run_group_tests_name("rank_strategy", tests, rig_setup, rig_teardown);
}
