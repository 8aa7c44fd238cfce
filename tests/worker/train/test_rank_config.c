/* What must not change the hash (threads, overlap, buckets, hosts, activation checkpointing), and
 * what must (lanes, seed, optimizer). */
#include "tests/worker/train/plain.h"
#include "tests/worker/train/rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

enum { STEPS = 4 };

static void expect_hash(const char *expected, const struct dpt_config *config, const char *name,
                        int world, bool two_hosts)
{
    char hash[64];
    rig_undisturbed(config, name, world, two_hosts, hash);
    if (strcmp(hash, expected) != 0)
        fail_msg("%s: %s instead of %s", name, hash, expected);
}

/* What all worlds agree on is what the textbook's loop gives. */
static void as_the_plain_loop(void **state)
{
    (void)state;
    for (int lanes = 3; lanes <= 7; lanes += 4) {
        struct dpt_config config = rig_make_config(14, STEPS, "");
        char hash[DPT_HASH_HEX_BYTES], name[32];
        config.train.lanes = lanes;
        plain_train(&config, hash);
        for (int world = 1; world <= 3; world += 2) {
            (void)snprintf(name, sizeof name, "plain-%d-%d", lanes, world);
            expect_hash(hash, &config, name, world, true);
        }
    }
}

static void sgd_as_the_plain_loop(void **state)
{
    (void)state;
    char hash[3][DPT_HASH_HEX_BYTES];
    for (int i = 0; i < 3; i++) {
        struct dpt_config config = rig_make_config(14, STEPS, "");
        (void)snprintf(config.optimizer.name, sizeof config.optimizer.name, "sgd");
        config.optimizer.momentum = i == 0 ? 0.0 : 0.9;
        config.optimizer.nesterov = i == 2;
        plain_train(&config, hash[i]);
        for (int world = 1; world <= 3; world += 2) {
            char name[32];
            (void)snprintf(name, sizeof name, "sgd-%d-%d", i, world);
            expect_hash(hash[i], &config, name, world, true);
        }
    }
    assert_string_not_equal(hash[0], hash[1]);
    assert_string_not_equal(hash[1], hash[2]);
}

/* Adam, whose decay goes through the moments, and steps that begin permutations of epochs. */
static void adam_and_epochs_as_the_plain_loop(void **state)
{
    (void)state;
    static const char *const optimizers[] = {"adamw", "adam"};
    char hash[4][DPT_HASH_HEX_BYTES];
    for (int i = 0; i < 4; i++) {
        struct dpt_config config = rig_make_config(14, STEPS, "");
        (void)snprintf(config.optimizer.name, sizeof config.optimizer.name, "%s",
                       optimizers[i % 2]);
        config.train.epochs = i < 2 ? 0 : 2;
        config.train.epoch_steps = i < 2 ? DPT_AUTO : STEPS / 2;
        plain_train(&config, hash[i]);
        for (int world = 1; world <= 3; world += 2) {
            char name[32];
            (void)snprintf(name, sizeof name, "adam-%d-%d", i, world);
            expect_hash(hash[i], &config, name, world, true);
        }
        for (int k = 0; k < i; k++)
            assert_string_not_equal(hash[k], hash[i]);
    }
}

/* Several slots a lane: 8 slots on 3 lanes. */
static void lanes_of_several_slots(void **state)
{
    (void)state;
    struct dpt_config config = rig_make_config(16, STEPS, "");
    char each[64], three[64];
    rig_undisturbed(&config, "lane-each", 1, false, each);
    config.train.lanes = 3;
    rig_undisturbed(&config, "lanes-1", 1, false, three);
    assert_string_not_equal(each, three);
    expect_hash(three, &config, "lanes-2", 2, false);
    expect_hash(three, &config, "lanes-2h", 2, true);
    expect_hash(three, &config, "lanes-3", 3, false);
    expect_hash(three, &config, "lanes-3h", 3, true);
}

static void overlap_changes_nothing(void **state)
{
    (void)state;
    struct dpt_config config = rig_make_config(14, STEPS, "");
    char hash[64];
    rig_undisturbed(&config, "overlap", 1, false, hash);
    config.strategy.overlap = false;
    for (int world = 1; world <= 3; world++) {
        char name[32];
        (void)snprintf(name, sizeof name, "no-overlap-%d", world);
        expect_hash(hash, &config, name, world, world == 3);
    }
}

/* Slots that go to the owners of their pieces, too: units whose gradients are waited for where they
 * are let go, and weights where they are needed. */
static void overlap_of_units_changes_nothing(void **state)
{
    (void)state;
    static const char *const by_order[][8] = {
        [DPT_ACCUMULATE_LOCAL] = {"zero1", "zero1+shadow", "zero2", "zero3", "hybrid_shard",
                                  "full_shard+shadow"},
        [DPT_ACCUMULATE_REDUCE] = {"ddp", "no_shard", "simple_ga", "zero1", "zero2+shadow",
                                   "full_shard", "shard_grad_op", "hybrid_shard"}};
    for (int order = DPT_ACCUMULATE_LOCAL; order <= DPT_ACCUMULATE_REDUCE; order++) {
        struct dpt_config config = rig_make_config(14, STEPS, "");
        char hash[64], name[64];
        config.train.accumulate = order;
        (void)snprintf(name, sizeof name, "overlap-units-%d", order);
        rig_undisturbed(&config, name, 1, false, hash);
        rig_evaluate(&config, 2, 8);
        config.strategy.overlap = config.strategy.prefetch = false;
        for (int i = 0; i < 8 && by_order[order][i]; i += RIG_EVERY) {
            rig_choose(&config, by_order[order][i]);
            const int world = 2 + i % 3; /* of 7 slots, two or three waves */
            (void)snprintf(name, sizeof name, "no-overlap-%d-%s", order, by_order[order][i]);
            expect_hash(hash, &config, name, world, true);
        }
    }
}

static void buckets_change_nothing(void **state)
{
    (void)state;
    static const double mib[] = {0.0001, 0.003, 25};
    struct dpt_config config = rig_make_config(14, STEPS, "");
    char hash[64];
    rig_undisturbed(&config, "buckets", 1, false, hash);
    for (int i = 0; i < 3; i++) {
        config.strategy.bucket_mib = mib[i];
        config.strategy.first_bucket_mib = i == 1 ? 0.05 : mib[i];
        for (int world = 2; world <= 3; world++) {
            char name[32];
            (void)snprintf(name, sizeof name, "buckets-%d-%d", i, world);
            expect_hash(hash, &config, name, world, world == 2);
        }
    }
}

/* With dropout, whose masks are drawn again. */
static void activation_checkpointing_changes_nothing(void **state)
{
    (void)state;
    for (int precision = DPT_PRECISION_FP32; precision <= DPT_PRECISION_BF16; precision++) {
        struct dpt_config config = rig_make_config(14, STEPS, "");
        assert_true(config.model.dropout > 0.0);
        config.train.precision = precision;
        char hash[64], name[32];
        (void)snprintf(name, sizeof name, "kept-%d", precision);
        rig_undisturbed(&config, name, 1, false, hash);
        for (int mode = DPT_ACTIVATION_CHECKPOINTING_FULL;
             mode <= DPT_ACTIVATION_CHECKPOINTING_SELECTIVE; mode++)
            for (int world = 1; world <= 3; world += 2) {
                config.train.activation_checkpointing = mode;
                (void)snprintf(name, sizeof name, "dropped-%d-%d-%d", precision, mode, world);
                expect_hash(hash, &config, name, world, true);
            }
        /* Also where backward has to gather the weights again. */
        config.train.accumulate = DPT_ACCUMULATE_LOCAL;
        for (int i = 1; i < RIG_STRATEGIES; i += RIG_EVERY) {
            rig_choose(&config, rig_strategies[i]);
            config.train.activation_checkpointing =
                i % 2 ? DPT_ACTIVATION_CHECKPOINTING_FULL : DPT_ACTIVATION_CHECKPOINTING_SELECTIVE;
            (void)snprintf(name, sizeof name, "dropped-%d-%s", precision, rig_strategies[i]);
            expect_hash(hash, &config, name, 2, false);
        }
    }
}

static void threads_change_nothing(void **state)
{
    (void)state;
    struct dpt_config config = rig_make_config(14, STEPS, "");
    char hash[64], dir[128];
    rig_undisturbed(&config, "one-thread", 1, false, hash);
    struct director *d = rig_begin(&config, "threads", dir);
    for (int rank = 0; rank < 3; rank++)
        (void)director_start_threads(d, rank % 2, rank + 1);
    assert_true(director_form(d, false));
    assert_string_equal(director_finish(d), hash);
    director_destroy(&d);
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

static void the_seed_changes_everything(void **state)
{
    (void)state;
    struct dpt_config config = rig_make_config(14, STEPS, "");
    char one[64], other[64];
    rig_undisturbed(&config, "seed-1", 2, false, one);
    config.seed++;
    rig_undisturbed(&config, "seed-2", 2, false, other);
    assert_string_not_equal(one, other);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sgd_as_the_plain_loop),
        cmocka_unit_test(adam_and_epochs_as_the_plain_loop),
        cmocka_unit_test(activation_checkpointing_changes_nothing),
        cmocka_unit_test(as_the_plain_loop),
        cmocka_unit_test(lanes_of_several_slots),
        cmocka_unit_test(overlap_changes_nothing),
        cmocka_unit_test(overlap_of_units_changes_nothing),
        cmocka_unit_test(buckets_change_nothing),
        cmocka_unit_test(threads_change_nothing),
        cmocka_unit_test(shares_change_nothing),
        cmocka_unit_test(the_seed_changes_everything),
    };
    return cmocka_run_group_tests_name("rank_config", tests, rig_setup, rig_teardown);
}
