/* A residual network trains as all models do, its running statistics included: one hash and one
 * accuracy for every strategy and world, those of the textbook's loop, through deaths, healing, and
 * from a checkpoint. */
#include "tests/worker/train/one_hash.h"
#include "tests/worker/train/plain.h"
#include "tests/worker/train/rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WORLD_MAX = 4, SAMPLES = 13 };

/* 11 slots in 4 lanes; of the evaluation's batches the last is short. */
static struct dpt_config make_config(int steps)
{
    struct dpt_config config = rig_make_config(2 * 11, steps, "");
    rig_choose_resnet(&config);
    rig_evaluate(&config, 2, SAMPLES);
    config.train.accumulate = DPT_ACCUMULATE_LOCAL;
    config.train.lanes = 4;
    return config;
}

static void one_hash_and_accuracy(void **state)
{
    (void)state;
    const struct dpt_config config = make_config(4);
    expect_one_hash_and_accuracy("calm", &config, WORLD_MAX, SAMPLES);
}

/* The hash of the textbook's loop, in worlds of three. */
static void one_hash_of_some(const char *name, struct dpt_config config)
{
    static const char *const strategies[] = {"ddp", "zero1", "zero3", "hybrid_shard",
                                             "full_shard+shadow"};
    char expected[DPT_HASH_HEX_BYTES], hash[64], dir[64];
    plain_train(&config, expected);
    for (size_t i = 0; i < sizeof strategies / sizeof *strategies; i += RIG_EVERY) {
        rig_choose(&config, strategies[i]);
        (void)snprintf(dir, sizeof dir, "%s-%zu", name, i);
        rig_undisturbed(&config, dir, 3, true, hash);
        if (strcmp(hash, expected) != 0)
            fail_msg("%s, %s: %s instead of %s", name, strategies[i], hash, expected);
    }
}

/* fp16's scale of the loss is not that of the statistics. */
static void one_hash_in_fp16(void **state)
{
    (void)state;
    struct dpt_config config = make_config(4);
    config.train.precision = DPT_PRECISION_FP16;
    one_hash_of_some("fp16", config);
}

static void one_hash_of_gradients_in_bf16(void **state)
{
    (void)state;
    struct dpt_config config = make_config(4);
    config.train.accumulate = DPT_ACCUMULATE_REDUCE;
    config.strategy.compression = DPT_COMPRESSION_BF16;
    one_hash_of_some("compressed", config);
}

/* What is learnt shows in an evaluation, which normalises with the running statistics. */
static void it_learns(void **state)
{
    (void)state;
    const struct dpt_config config = make_config(12);
    char hash[DPT_HASH_HEX_BYTES];
    struct plain_validation found;
    plain_train_and_evaluate(&config, SAMPLES, hash, &found);
    if (!(found.loss < log(3.0) / 2 && found.right >= SAMPLES - 1))
        fail_msg("loss %g, %lld of %d right", found.loss, (long long)found.right, SAMPLES);
}

static void deaths_and_healing_cost_no_step(void **state)
{
    (void)state;
    const struct dpt_config config = make_config(18);
    rig_deaths_and_healing(&config);
}

/* The other node holds copies of a dead rank's shards, running statistics included; a rank that
 * joins receives some of them. */
static void covered_shards_survive(void **state)
{
    (void)state;
    struct dpt_config config = make_config(14);
    char expected[64], dir[128], name[32];
    rig_undisturbed(&config, "calm", 1, false, expected);
    for (int i = 0; i < RIG_COVERED; i += RIG_EVERY) {
        rig_choose(&config, rig_covered[i]);
        (void)snprintf(name, sizeof name, "covered-%d", i);
        struct director *d = rig_begin(&config, name, dir);
        for (int handle = 0; handle < 5; handle++)
            director_bench(d, director_start(d, handle % 2), handle == 4);
        assert_true(director_form(d, false));
        director_await_step(d, 3);
        director_kill(d, 1);
        assert_true(director_form(d, false));
        director_await_step(d, 7);
        director_bench(d, 4, false);
        assert_true(director_form(d, true));
        assert_string_equal(director_finish(d), expected);
        assert_int_equal(director_steps_lost(d), 0);
        director_destroy(&d);
    }
}

static void all_die_and_the_checkpoint_holds(void **state)
{
    (void)state;
    struct dpt_config config = make_config(9);
    rig_choose(&config, "zero2");
    rig_all_die(&config);
}

/* A step that is left out leaves the statistics as they were: the hash is that of the state before.
 */
static void a_step_left_out_moves_nothing(void **state)
{
    (void)state;
    struct dpt_config config = make_config(4);
    char expected[64], hash[64];
    config.optimizer.schedule = DPT_SCHEDULE_CONSTANT;
    config.train.on_divergence = DPT_DIVERGENCE_SKIP;
    rig_undisturbed(&config, "before", 1, false, expected);
    config.train.steps = 6;
    assert_int_equal(setenv("DPT_TEST_SPOIL_STEPS", "2:4", 1), 0);
    for (int world = 1; world <= WORLD_MAX; world += WORLD_MAX - 1) {
        char name[32];
        (void)snprintf(name, sizeof name, "spoilt-%d", world);
        rig_undisturbed(&config, name, world, world > 1, hash);
        assert_string_equal(hash, expected);
    }
    assert_int_equal(unsetenv("DPT_TEST_SPOIL_STEPS"), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_hash_and_accuracy),
        cmocka_unit_test(one_hash_in_fp16),
        cmocka_unit_test(one_hash_of_gradients_in_bf16),
        cmocka_unit_test(it_learns),
        cmocka_unit_test(deaths_and_healing_cost_no_step),
        cmocka_unit_test(covered_shards_survive),
        cmocka_unit_test(all_die_and_the_checkpoint_holds),
        cmocka_unit_test(a_step_left_out_moves_nothing),
    };
    return cmocka_run_group_tests(tests, rig_setup, rig_teardown);
}
