/* A llama trains as a GPT-2 does: one hash for every strategy and world, that of the textbook's
 * loop, with deaths and healing, and from a checkpoint. */
#include "tests/worker/train/one_hash.h"
#include "tests/worker/train/rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

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

static void one_hash(void **state)
{
    (void)state;
    const struct dpt_config config = make_config(true, 3);
    expect_one_hash("tied", &config, WORLD_MAX);
}

static void one_hash_untied(void **state)
{
    (void)state;
    const struct dpt_config config = make_config(false, 3);
    expect_one_hash("untied", &config, WORLD_MAX);
}

/* A lane's slots are added as whole gradients, an embedding's rows included, also where each slot
 * is made where the sum lies. */
static void one_hash_of_many_lanes(void **state)
{
    (void)state;
    struct dpt_config config = make_config(false, 3);
    config.train.lanes = 11;
    expect_one_hash("lanes", &config, WORLD_MAX);
}

static void one_hash_reduce_bf16(void **state)
{
    (void)state;
    struct dpt_config config = make_config(true, 3);
    config.train.accumulate = DPT_ACCUMULATE_REDUCE;
    config.train.precision = DPT_PRECISION_BF16;
    expect_one_hash("bf16", &config, WORLD_MAX);
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
