/* bf16: one hash in every world, the one of the textbook's loop, through deaths, healing and
 * resume. */
#include "tests/worker/train/plain.h"
#include "tests/worker/train/rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

static struct dpt_config make_config(int slots, int steps)
{
    struct dpt_config config = rig_make_config(2 * slots, steps, "");
    config.train.precision = DPT_PRECISION_BF16;
    return config;
}

/* The plain loop rounds all weights anew in each step, and adds up whole slots; ranks round weights
 * as they are updated, and add into lanes tensor by tensor: of one slot each, and of two. */
static void one_hash_in_every_world(void **state)
{
    (void)state;
    for (int slots = 7; slots <= 8; slots++) {
        struct dpt_config config = make_config(slots, 6);
        config.train.lanes = slots == 8 ? 4 : DPT_AUTO;
        char expected[DPT_HASH_HEX_BYTES], hash[64], name[48];
        plain_train(&config, expected);
        for (int world = 1; world <= 4; world++) {
            (void)snprintf(name, sizeof name, "w%d-%d", slots, world);
            rig_undisturbed(&config, name, world, world > 2, hash);
            assert_string_equal(expected, hash);
        }
    }
}

static void threads_change_nothing(void **state)
{
    (void)state;
    struct dpt_config config = make_config(7, 4);
    char hash[64], dir[128];
    rig_undisturbed(&config, "one-thread", 1, false, hash);
    struct director *d = rig_begin(&config, "threads", dir);
    for (int rank = 0; rank < 3; rank++)
        (void)director_start_threads(d, rank % 2, rank + 1);
    assert_true(director_form(d, false));
    assert_string_equal(director_finish(d), hash);
    director_destroy(&d);
}

/* Precision matters, so it does not silently fall back. */
static void another_hash_than_fp32(void **state)
{
    (void)state;
    struct dpt_config config = make_config(7, 4);
    char half[64], full[64];
    rig_undisturbed(&config, "half", 1, false, half);
    config.train.precision = DPT_PRECISION_FP32;
    rig_undisturbed(&config, "full", 1, false, full);
    assert_string_not_equal(half, full);
}

static void deaths_and_healing_cost_no_step(void **state)
{
    (void)state;
    const struct dpt_config config = make_config(7, 18);
    rig_deaths_and_healing(&config);
}

static void resume_is_as_undisturbed(void **state)
{
    (void)state;
    const struct dpt_config config = make_config(7, 10);
    rig_all_die(&config);
}

static void resume_refuses_another_precision(void **state)
{
    (void)state;
    struct dpt_config config = make_config(7, 4);
    char hash[64], dir[128];
    rig_undisturbed(&config, "kept", 1, false, hash);
    config.train.precision = DPT_PRECISION_FP32;
    struct director *d = rig_begin(&config, "kept", dir);
    const char *text = NULL;
    assert_true(director_fatal(d, director_start(d, 0), &text));
    assert_non_null(strstr(text, "train.precision"));
    director_destroy(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_hash_in_every_world),
        cmocka_unit_test(threads_change_nothing),
        cmocka_unit_test(another_hash_than_fp32),
        cmocka_unit_test(deaths_and_healing_cost_no_step),
        cmocka_unit_test(resume_is_as_undisturbed),
        cmocka_unit_test(resume_refuses_another_precision),
    };
    return cmocka_run_group_tests_name("rank_precision", tests, rig_setup, rig_teardown);
}
