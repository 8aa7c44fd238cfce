/* strategy.compression bf16 and fp16: one hash in every world, order and strategy, that of the
 * textbook's loop, through deaths and healing; an overflow on the way skips the step. */
#include "tests/worker/train/plain.h"
#include "tests/worker/train/rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

enum { SLOTS = 7 };

static struct dpt_config make_config(enum dpt_compression compression, int steps)
{
    struct dpt_config config = rig_make_config(2 * SLOTS, steps, "");
    config.strategy.compression = compression;
    config.train.loss_scale = 1024;
    return config;
}

static void expect(const struct dpt_config *config, const char *name, int world, bool two_hosts,
                   const char *expected)
{
    char hash[64];
    rig_undisturbed(config, name, world, two_hosts, hash);
    if (strcmp(hash, expected) != 0)
        fail_msg("%s: %s instead of %s", name, hash, expected);
}

/* Lanes of one slot and of several; ranks with one lane and with several, on one host and two. */
static void one_hash_in_every_world(void **state)
{
    (void)state;
    char expected[DPT_HASH_HEX_BYTES], name[48];
    for (int compression = DPT_COMPRESSION_BF16; compression <= DPT_COMPRESSION_FP16; compression++)
        for (int order = DPT_ACCUMULATE_LOCAL; order <= DPT_ACCUMULATE_REDUCE; order++)
            for (int lanes = 4; lanes <= SLOTS; lanes += SLOTS - 4) {
                struct dpt_config config = make_config((enum dpt_compression)compression, 3);
                config.train.accumulate = (enum dpt_accumulate)order;
                config.train.lanes = lanes;
                plain_train(&config, expected);
                for (int world = 1; world <= 4; world += RIG_EVERY) {
                    (void)snprintf(name, sizeof name, "w%d-%d-%d-%d", compression, order, lanes,
                                   world);
                    expect(&config, name, world, world % 2 == 1, expected);
                }
            }
}

static void one_hash_of_every_strategy(void **state)
{
    (void)state;
    char expected[DPT_HASH_HEX_BYTES], name[48];
    for (int order = DPT_ACCUMULATE_LOCAL; order <= DPT_ACCUMULATE_REDUCE; order++) {
        struct dpt_config config = make_config(DPT_COMPRESSION_BF16, 3);
        config.train.precision = DPT_PRECISION_BF16;
        config.train.accumulate = (enum dpt_accumulate)order;
        config.train.lanes = SLOTS; /* a slot each, since some send slots */
        plain_train(&config, expected);
        for (int i = 0; i < RIG_STRATEGIES; i += RIG_EVERY) {
            rig_choose(&config, rig_strategies[i]);
            (void)snprintf(name, sizeof name, "s%d-%s", order, rig_strategies[i]);
            expect(&config, name, 3, true, expected);
        }
    }
}

/* Else the comparisons above would show nothing. */
static void what_is_sent_is_rounded(void **state)
{
    (void)state;
    char hash[3][64], name[32];
    for (int compression = DPT_COMPRESSION_NONE; compression <= DPT_COMPRESSION_FP16;
         compression++) {
        struct dpt_config config = make_config((enum dpt_compression)compression, 3);
        (void)snprintf(name, sizeof name, "rounded-%d", compression);
        rig_undisturbed(&config, name, 1, false, hash[compression]);
    }
    assert_string_not_equal(hash[0], hash[1]);
    assert_string_not_equal(hash[0], hash[2]);
    assert_string_not_equal(hash[1], hash[2]);
}

static void deaths_and_healing_cost_no_step(void **state)
{
    (void)state;
    struct dpt_config config = make_config(DPT_COMPRESSION_BF16, 18);
    rig_deaths_and_healing(&config);
}

static void resume_is_as_undisturbed(void **state)
{
    (void)state;
    struct dpt_config config = make_config(DPT_COMPRESSION_FP16, 10);
    config.train.accumulate = DPT_ACCUMULATE_REDUCE;
    rig_all_die(&config);
}

/* Computed in fp32: it is on the way that gradients, so scaled, end in infinity; the steps are
 * skipped in every world until the scale fits. */
static void an_overflow_on_the_way_skips_the_step(void **state)
{
    (void)state;
    char expected[DPT_HASH_HEX_BYTES], name[32];
    for (int order = DPT_ACCUMULATE_LOCAL; order <= DPT_ACCUMULATE_REDUCE; order++) {
        struct dpt_config config = make_config(DPT_COMPRESSION_FP16, 8);
        config.train.accumulate = (enum dpt_accumulate)order;
        config.train.loss_scale = 0x1p18;
        config.train.loss_scale_interval = 2;
        plain_train(&config, expected);
        for (int world = 1; world <= 3; world++) {
            (void)snprintf(name, sizeof name, "overflow-%d-%d", order, world);
            expect(&config, name, world, true, expected);
            char path[192];
            (void)snprintf(path, sizeof path, "%s/checkpoints/step-00000008/state.json",
                           rig_dir(name));
            json_t *saved = json_load_file(path, 0, NULL);
            assert_non_null(saved);
            const json_t *scaler = json_object_get(saved, "scaler");
            const json_int_t skipped = json_integer_value(json_object_get(scaler, "skipped_steps"));
            assert_in_range(skipped, 1, 7);
            json_decref(saved);
        }
    }
}

static void resume_refuses_another_compression(void **state)
{
    (void)state;
    struct dpt_config config = make_config(DPT_COMPRESSION_BF16, 4);
    char hash[64], dir[128];
    rig_undisturbed(&config, "own", 1, false, hash);
    config.strategy.compression = DPT_COMPRESSION_NONE;
    struct director *d = rig_begin(&config, "own", dir);
    const char *text = NULL;
    assert_true(director_fatal(d, director_start(d, 0), &text));
    assert_non_null(strstr(text, "strategy.compression"));
    director_destroy(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_hash_in_every_world),
        cmocka_unit_test(one_hash_of_every_strategy),
        cmocka_unit_test(what_is_sent_is_rounded),
        cmocka_unit_test(deaths_and_healing_cost_no_step),
        cmocka_unit_test(resume_is_as_undisturbed),
        cmocka_unit_test(an_overflow_on_the_way_skips_the_step),
        cmocka_unit_test(resume_refuses_another_compression),
    };
    return cmocka_run_group_tests_name("rank_compression", tests, rig_setup, rig_teardown);
}
