/* A llama trains as a GPT-2 does: one hash for every strategy and world, that of the textbook's
 * loop, with deaths and healing, and from a checkpoint. */
#include "tests/worker/train/plain.h"
#include "tests/worker/train/rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

enum { WORLD_MAX = 3 };

/* 11 slots in 4 lanes. */
static struct dpt_config make_config(bool tied, int steps)
{
    struct dpt_config config = rig_make_config(2 * 11, steps, "");
    rig_choose_llama(&config, tied);
    config.train.accumulate = DPT_ACCUMULATE_LOCAL;
    config.train.lanes = 4;
    return config;
}

static void one_hash_of(const char *model, struct dpt_config config)
{
    char expected[DPT_HASH_HEX_BYTES], hash[64], name[64];
    plain_train(&config, expected);
    for (int v = 0; v < RIG_STRATEGIES + RIG_COVERED; v++)
        for (int world = 1; world <= WORLD_MAX; world += RIG_EVERY) {
            const bool covered = v >= RIG_STRATEGIES;
            const char *strategy = covered ? rig_covered[v - RIG_STRATEGIES] : rig_strategies[v];
            rig_choose(&config, strategy);
            (void)snprintf(name, sizeof name, "%s-%d-%d", model, v, world);
            rig_undisturbed(&config, name, world, world > 1, hash);
            if (strcmp(hash, expected) != 0)
                fail_msg("%s, %s, world %d: %s instead of %s", model, strategy, world, hash,
                         expected);
        }
}

static void one_hash(void **state)
{
    (void)state;
    one_hash_of("tied", make_config(true, 3));
}

static void one_hash_untied(void **state)
{
    (void)state;
    one_hash_of("untied", make_config(false, 3));
}

/* A lane's slots are added as whole gradients, an embedding's rows included, also where each slot
 * is made where the sum lies. */
static void one_hash_of_many_lanes(void **state)
{
    (void)state;
    struct dpt_config config = make_config(false, 3);
    config.train.lanes = 11;
    one_hash_of("lanes", config);
}

static void one_hash_reduce_bf16(void **state)
{
    (void)state;
    struct dpt_config config = make_config(true, 3);
    config.train.accumulate = DPT_ACCUMULATE_REDUCE;
    config.train.precision = DPT_PRECISION_BF16;
    one_hash_of("bf16", config);
}

static void deaths_and_healing_cost_no_step(void **state)
{
    (void)state;
    const struct dpt_config config = make_config(false, 18);
    rig_deaths_and_healing(&config);
}

static void all_die_and_the_checkpoint_holds(void **state)
{
    (void)state;
    const struct dpt_config config = make_config(true, 9);
    rig_all_die(&config);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_hash),
        cmocka_unit_test(one_hash_untied),
        cmocka_unit_test(one_hash_of_many_lanes),
        cmocka_unit_test(one_hash_reduce_bf16),
        cmocka_unit_test(deaths_and_healing_cost_no_step),
        cmocka_unit_test(all_die_and_the_checkpoint_holds),
    };
    return cmocka_run_group_tests(tests, rig_setup, rig_teardown);
}
