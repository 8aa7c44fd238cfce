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
};

static const struct variant variants[] = {
    {"ddp", DPT_SHARDING_NULL},
    {"fsdp", DPT_SHARDING_NO_SHARD},
};
enum { VARIANTS = sizeof variants / sizeof variants[0] };

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
}

static void one_hash(enum dpt_accumulate accumulate, enum dpt_precision precision)
{
    struct dpt_config config = make_config(accumulate, precision, 4);
    char expected[DPT_HASH_HEX_BYTES], hash[64], name[64];
    plain_train(&config, expected);
    for (int v = 0; v < VARIANTS; v++)
        for (int world = 1; world <= 4; world++) {
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
        cmocka_unit_test(an_evaluation_changes_nothing),
    };
    return cmocka_run_group_tests_name("rank_strategy", tests, rig_setup, rig_teardown);
}
