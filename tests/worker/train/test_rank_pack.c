/* Packed weights change no bit: of any world, thread count, precision, nor where ranks of one world
 * differ in it; and a rank whose weights are healed packs them anew. */
#include "tests/worker/train/plain.h"
#include "tests/worker/train/rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

static struct dpt_config make_config(enum dpt_precision precision, int steps)
{
    struct dpt_config config = rig_make_config(14, steps, "");
    config.train.precision = precision;
    rig_evaluate(&config, 1,
                 5); /* evaluations read the forms, too, and leave them to the next step */
    return config;
}

static double val_loss(const char *dir)
{
    json_t *summary = rig_summary_of(dir);
    double loss = json_number_value(json_object_get(summary, "val_loss"));
    json_decref(summary);
    assert_true(loss > 0);
    return loss;
}

static void with_and_without(void **state)
{
    (void)state;
    for (int precision = DPT_PRECISION_FP32; precision <= DPT_PRECISION_BF16; precision++) {
        struct dpt_config config = make_config((enum dpt_precision)precision, 5);
        char expected[DPT_HASH_HEX_BYTES], dir[128];
        double loss = 0;
        plain_train(&config, expected); /* knows nothing of packing */
        for (int mode = DPT_PACK_WEIGHTS_AUTO; mode <= DPT_PACK_WEIGHTS_OFF; mode++)
            for (int threads = 1; threads <= 2; threads++) {
                char name[48];
                (void)snprintf(name, sizeof name, "same-%d-%d-%d", precision, mode, threads);
                struct director *d = rig_begin(&config, name, dir);
                director_pack_weights(d, (enum dpt_pack_weights)mode);
                (void)director_start_threads(d, 0, threads);
                (void)director_start_threads(d, 0, threads);
                assert_true(director_form(d, false));
                assert_string_equal(director_finish(d), expected);
                director_destroy(&d);
                assert_true(loss == 0 || loss == val_loss(dir));
                loss = val_loss(dir);
            }
    }
}

/* The key is each node's own. */
static void ranks_may_differ(void **state)
{
    (void)state;
    struct dpt_config config = make_config(DPT_PRECISION_FP32, 5);
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

static void deaths_and_healing(void **state)
{
    (void)state;
    struct dpt_config config = make_config(DPT_PRECISION_BF16, 18);
    config.cluster.pack_weights = DPT_PACK_WEIGHTS_ON;
    rig_deaths_and_healing(&config);
}

/* Ranks that sat a few steps out still hold the forms of the weights that they left with. They left
 * right after a step's evaluation, which made them. */
static void who_was_away_packs_anew(void **state)
{
    (void)state;
    struct dpt_config config = make_config(DPT_PRECISION_FP32, 24);
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
        cmocka_unit_test(with_and_without),
        cmocka_unit_test(ranks_may_differ),
        cmocka_unit_test(deaths_and_healing),
        cmocka_unit_test(who_was_away_packs_anew),
    };
    return cmocka_run_group_tests_name("rank_pack", tests, rig_setup, rig_teardown);
}
