/* A run that begins from published weights: one hash for every strategy and world, and after a
 * death before the first checkpoint the same beginning once more. The folder is a checkpoint, which
 * has Hugging Face's form. */
#include "tests/worker/train/rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

enum { WORLD_MAX = 4, STEPS = 3 };

/* 11 slots in 4 lanes. */
static struct dpt_config make_config(bool llama, int steps)
{
    struct dpt_config config = rig_make_config(2 * 11, steps, "");
    if (llama)
        rig_choose_llama(&config, false);
    config.train.accumulate = DPT_ACCUMULATE_LOCAL;
    config.train.lanes = 4;
    return config;
}

/* A run of two steps leaves a folder to begin from. */
static void make_folder(const char *name, bool llama, char ret[DPT_CONFIG_PATH_BYTES])
{
    char hash[64], dir[128];
    struct dpt_config config = make_config(llama, 2);
    config.seed = 7;
    struct director *d = rig_begin(&config, name, dir);
    (void)director_start(d, 0);
    assert_true(director_form(d, false));
    (void)snprintf(hash, sizeof hash, "%s", director_finish(d));
    director_destroy(&d);
    (void)snprintf(ret, DPT_CONFIG_PATH_BYTES, "%s/checkpoints/step-00000002", dir);
}

static void one_hash_of(const char *model, bool llama)
{
    char expected[64], hash[64], name[64];
    struct dpt_config config = make_config(llama, STEPS);
    (void)snprintf(name, sizeof name, "%s-seed", model);
    rig_undisturbed(&config, name, 1, false, hash);
    (void)snprintf(name, sizeof name, "%s-folder", model);
    make_folder(name, llama, config.model.init_from);
    (void)snprintf(name, sizeof name, "%s-first", model);
    rig_undisturbed(&config, name, 1, false, expected);
    assert_string_not_equal(expected, hash);
    for (int v = 0; v < RIG_STRATEGIES + RIG_COVERED; v++)
        for (int world = 1; world <= WORLD_MAX; world += RIG_EVERY) {
            const bool covered = v >= RIG_STRATEGIES;
            rig_choose(&config, covered ? rig_covered[v - RIG_STRATEGIES] : rig_strategies[v]);
            (void)snprintf(name, sizeof name, "%s-%d-%d", model, v, world);
            rig_undisturbed(&config, name, world, world > 1, hash);
            if (strcmp(hash, expected) != 0)
                fail_msg("%s, strategy %d, world %d: %s instead of %s", model, v, world, hash,
                         expected);
        }
}

static void one_hash_gpt2(void **state)
{
    (void)state;
    one_hash_of("gpt2", false);
}

static void one_hash_llama(void **state)
{
    (void)state;
    one_hash_of("llama", true);
}

static void weights_that_are_not_there(void **state)
{
    (void)state;
    char dir[128];
    struct dpt_config config = make_config(true, STEPS);
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
        cmocka_unit_test(one_hash_gpt2),
        cmocka_unit_test(one_hash_llama),
        cmocka_unit_test(weights_that_are_not_there),
    };
    return cmocka_run_group_tests(tests, rig_setup, rig_teardown);
}
