/* Keys in which the ranks of one world may differ: threads, packed weights and changing shares of
 * the cores change no bit. A rank that receives new weights packs them again. */
#include "tests/worker/train/plain.h"
#include "tests/worker/train/rank_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

enum { STEPS = 4 };

static void threads_change_nothing(void **state)
{
    (void)state;
    for (int precision = DPT_PRECISION_FP32; precision <= DPT_PRECISION_BF16; precision++) {
        struct dpt_config config = rig_make_config(14, STEPS, "");
        char hash[64], dir[128], name[32];
        config.train.precision = (enum dpt_precision)precision;
        (void)snprintf(name, sizeof name, "one-thread-%d", precision);
        rig_undisturbed(&config, name, 1, false, hash);
        (void)snprintf(name, sizeof name, "threads-%d", precision);
        struct director *d = rig_begin(&config, name, dir);
        for (int rank = 0; rank < 3; rank++)
            (void)director_start_threads(d, rank % 2, rank + 1);
        assert_true(director_form(d, false));
        assert_string_equal(director_finish(d), hash);
        director_destroy(&d);
    }
}

/* `auto`: alone all the cores, then a share, with one that was asked for three, then more again. */
static void shares_change_nothing(void **state)
{
    (void)state;
    struct dpt_config config = rig_make_config(14, 4 * STEPS, "");
    char hash[64], dir[128];
    rig_undisturbed(&config, "whole", 1, false, hash);
    struct director *d = rig_begin(&config, "shares", dir);
    (void)director_start_threads(d, 0, 0);
    assert_true(director_form(d, false));
    director_await_step(d, 1);
    const int third = director_start_threads(d, 0, 3);
    (void)director_start_threads(d, 0, 0);
    assert_true(director_form(d, true));
    director_await_step(d, STEPS);
    director_kill(d, third);
    (void)director_form(d, false);
    assert_string_equal(director_finish(d), hash);
    assert_int_equal(director_steps_lost(d), 0);
    director_destroy(&d);
}

/* Evaluations read the packed weights, too, and leave them to the next step. */
static struct dpt_config packing_config(int steps)
{
    struct dpt_config config = rig_make_config(14, steps, "");
    rig_evaluate(&config, 1, 5);
    return config;
}

/* The key is each node's own. */
static void ranks_may_pack_differently(void **state)
{
    (void)state;
    struct dpt_config config = packing_config(5);
    char expected[DPT_HASH_HEX_BYTES], dir[128];
    plain_train(&config, expected);
    struct director *d = rig_begin(&config, "differ", dir);
    for (int mode = DPT_PACK_WEIGHTS_AUTO; mode <= DPT_PACK_WEIGHTS_OFF; mode++) {
        director_pack_weights(d, (enum dpt_pack_weights)mode);
        (void)director_start(d, mode % 2);
    }
    assert_true(director_form(d, false));
    assert_string_equal(director_finish(d), expected);
    director_destroy(&d);
}

/* Ranks that sat a few steps out still hold the forms of the weights that they left with. They left
 * right after a step's evaluation, which made them. */
static void a_rank_that_was_away_packs_anew(void **state)
{
    (void)state;
    struct dpt_config config = packing_config(24);
    config.cluster.pack_weights = DPT_PACK_WEIGHTS_ON;
    char expected[64], dir[128];
    rig_undisturbed(&config, "stayed", 1, false, expected);
    struct director *d = rig_begin(&config, "away", dir);
    for (int i = 0; i < 3; i++)
        (void)director_start(d, 0);
    assert_true(director_form(d, false));
    for (int64_t step = 3; step < 18; step += 3) {
        const int away = 1 + (int)(step / 3) % 2;
        director_await_step(d, step);
        director_bench(d, away, true);
        assert_true(director_form(d, step % 2 == 0));
        director_await_step(d, step + 2);
        director_bench(d, away, false);
        assert_true(director_form(d, true));
    }
    assert_string_equal(director_finish(d), expected);
    director_destroy(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads_change_nothing),
        cmocka_unit_test(shares_change_nothing),
        cmocka_unit_test(ranks_may_pack_differently),
        cmocka_unit_test(a_rank_that_was_away_packs_anew),
    };
    return cmocka_run_group_tests_name("keys of a node", tests, rig_setup, rig_teardown);
}
