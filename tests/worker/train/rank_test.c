/* A rank in any run: one trajectory for one config, through re-formations at any moment; its
 * reports of steps; the end of a run that all ranks leave. */
#include "checkpoint/checkpoint.h"
#include "tests/worker/train/rank_rig.h"

#include "base/rng.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void a_flipped_bit_gives_another_hash(void **state)
{
    (void)state;
    struct dpt_config config = rig_make_config(14, 4, "");
    char plain[64], flipped[64];
    rig_undisturbed(&config, "plain", 2, false, plain);
    assert_int_equal(setenv("DPT_TEST_FLIP_GRADIENT_BIT", "1:2", 1), 0);
    rig_undisturbed(&config, "flipped", 2, false, flipped);
    assert_int_equal(unsetenv("DPT_TEST_FLIP_GRADIENT_BIT"), 0);
    assert_string_not_equal(plain, flipped);
}

/* A median of 0 says that no step was made, and then nothing counts as a stall. */
static void steps_under_a_millisecond_have_a_median(void **state)
{
    (void)state;
    struct dpt_config config = rig_make_config(2, 100000, "");
    config.checkpoint.every_steps = 0;
    char dir[128];
    struct director *d = rig_begin(&config, "fast", dir);
    int a = director_start(d, 0);
    assert_true(director_form(d, false));
    assert_int_equal(director_step_ms_median(d, a), 0);
    director_await_step(d, 20);
    assert_in_range(director_step_ms_median(d, a), 1, 1000);
    director_destroy(&d);
}

/* The commit says that all nodes leave: one checkpoint, and no step after it, before any
 * PREPARE. */
static void when_all_leave_one_checkpoint_is_the_end(void **state)
{
    (void)state;
    struct dpt_config config = rig_make_config(14, 100000, "");
    config.checkpoint.every_steps = 0;
    char dir[128];
    struct director *d = rig_begin(&config, "all-leave", dir);
    int a = director_start(d, 0), b = director_start(d, 1);
    assert_true(director_form(d, false));
    director_await_step(d, 3);
    director_leave(d);
    director_await_checkpoint(d, 3);
    director_listen(d, 300); /* as long as hundreds of steps take */
    director_prepare(d, true);
    const char *checkpoints = rig_dir("all-leave/checkpoints");
    int64_t newest = -1;
    struct dpt_err err;
    assert_int_equal(dpt_checkpoint_newest(checkpoints, &newest, &err), DPT_OK);
    assert_int_equal(director_step(d, a), newest);
    assert_int_equal(director_step(d, b), newest);
    assert_int_equal(dpt_checkpoint_newest_below(checkpoints, newest, &newest, &err), DPT_OK);
    assert_int_equal(newest, -1);
    director_destroy(&d);
}

/* They had quiesced for another world when all were told to leave. */
static void a_final_save_makes_no_step(void **state)
{
    (void)state;
    struct dpt_config config = rig_make_config(14, 100000, "");
    config.checkpoint.every_steps = 0;
    char dir[128];
    struct director *d = rig_begin(&config, "final_save", dir);
    int a = director_start(d, 0), b = director_start(d, 1);
    assert_true(director_form(d, false));
    director_await_step(d, 3);
    director_prepare(d, true);
    const int64_t held = director_step(d, a);
    director_leave(d);
    assert_true(director_form(d, false));
    director_await_checkpoint(d, held);
    director_listen(d, 300);
    director_prepare(d, true);
    const char *checkpoints = rig_dir("final_save/checkpoints");
    int64_t newest = -1;
    struct dpt_err err;
    assert_int_equal(dpt_checkpoint_newest(checkpoints, &newest, &err), DPT_OK);
    assert_int_equal(newest, held);
    assert_int_equal(director_step(d, a), held);
    assert_int_equal(director_step(d, b), held);
    director_destroy(&d);
}

/* Re-formations without a reason at moments that the seed chooses: inside steps, commits and
 * formations. */
static void hash_survives_random_formations(void **state)
{
    (void)state;
    struct dpt_config config = rig_make_config(14, 40, "");
    char expected[64], dir[128], name[32];
    rig_undisturbed(&config, "restful", 1, false, expected);
    for (uint64_t seed = 0; seed < 6; seed += dpt_test_every()) {
        (void)snprintf(name, sizeof name, "restless-%d", (int)seed);
        struct director *d = rig_begin(&config, name, dir);
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

/* The only holder of a shard dies: the run resumes from the checkpoint, with the same curve. The
 * account of the run is kept, although its state went back. */
static void a_lost_shard_costs_back_to_the_checkpoint(void **state)
{
    (void)state;
    static const char *const strategies[] = {"zero1", "zero3", "shard_grad_op"};
    struct dpt_config config =
        rig_make_config(2 * 11, 150 / SANITIZED_EVERY, "train.accumulate=reduce");
    char expected[64], dir[128], name[32];
    rig_undisturbed(&config, "nothing-lost", 1, false, expected);
    for (int i = 0; i < 3; i += dpt_test_every()) {
        rig_choose(&config, strategies[i]);
        (void)snprintf(name, sizeof name, "shard-lost-%d", i);
        struct director *d = rig_begin(&config, name, dir);
        (void)director_start(d, 0);
        const int b = director_start(d, 0), c = director_start(d, 1);
        assert_true(director_form(d, false));
        director_await_checkpoint(d, 4);
        director_kill(d, b);
        director_kill(d, c);
        assert_true(director_form(d, false)); /* the rank that saves at the end sees no death */
        assert_string_equal(director_finish(d), expected);
        const int64_t steps_lost = director_steps_lost(d);
        director_destroy(&d);
        json_t *summary = rig_summary_of(dir);
        assert_int_equal(rig_number(summary, "start_step"), 0);
        assert_int_equal(rig_number(summary, "generations"), 2);
        assert_int_equal(rig_number(summary, "steps_lost"), steps_lost);
        json_decref(summary);
    }
}

static void weights_that_are_not_there(void **state)
{
    (void)state;
    char dir[128];
    struct dpt_config config = rig_make_config(14, 4, "");
    (void)snprintf(config.model.init_from, sizeof config.model.init_from, "%s/absent",
                   rig_dir("nowhere"));
    struct director *d = rig_begin(&config, "nowhere", dir);
    (void)director_start(d, 0);
    director_prepare(d, false);
    director_plan(d);
    const char *text = director_await_fatal(d);
    assert_non_null(strstr(text, "model.init_from: there is no folder '"));
    assert_non_null(strstr(text, "/absent'; give the path of one"));
    director_destroy(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_flipped_bit_gives_another_hash),
        cmocka_unit_test(steps_under_a_millisecond_have_a_median),
        cmocka_unit_test(when_all_leave_one_checkpoint_is_the_end),
        cmocka_unit_test(a_final_save_makes_no_step),
        cmocka_unit_test(hash_survives_random_formations),
        cmocka_unit_test(a_lost_shard_costs_back_to_the_checkpoint),
        cmocka_unit_test(weights_that_are_not_there),
    };
    return cmocka_run_group_tests_name("rank", tests, rig_setup, rig_teardown);
}
