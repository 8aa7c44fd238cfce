/* A residual network learns, and a step that is left out leaves its running statistics. */
#include "tests/worker/train/plain.h"
#include "tests/worker/train/rank_rig.h"

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
static struct dpt_config make_resnet_config(int steps)
{
    struct dpt_config config = rig_make_config(2 * 11, steps, "");
    rig_choose_resnet(&config);
    rig_evaluate(&config, 2, SAMPLES);
    config.train.accumulate = DPT_ACCUMULATE_LOCAL;
    config.train.lanes = 4;
    return config;
}

/* What is learnt shows in an evaluation, which normalises with the running statistics. */
static void classes_of_images_are_learned(void **state)
{
    (void)state;
    const struct dpt_config config = make_resnet_config(12);
    char hash[DPT_HASH_HEX_BYTES];
    struct plain_validation found;
    plain_train_and_evaluate(&config, SAMPLES, hash, &found);
    if (!(found.loss < log(3.0) / 2 && found.right >= SAMPLES - 1))
        fail_msg("loss %g, %lld of %d right", found.loss, (long long)found.right, SAMPLES);
}

/* A step that is left out does not change the statistics: the hash is that of the state before. */
static void a_step_left_out_moves_nothing(void **state)
{
    (void)state;
    struct dpt_config config = make_resnet_config(4);
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
        cmocka_unit_test(classes_of_images_are_learned),
        cmocka_unit_test(a_step_left_out_moves_nothing),
    };
    return cmocka_run_group_tests(tests, rig_setup, rig_teardown);
}
