/* train.reduction fast and ring: each world adds in its own order, so the bits depend on the world.
 * The other promises hold: ranks have the same bits, strategies with one order agree, a loss costs
 * no step. */
#include "tests/worker/train/rank_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { STEPS = 12, WORLDS = 4 };

/* 11 slots: no world of 2, 3 or 4 divides them. */
static struct dpt_config make_fast_config(int steps)
{
    struct dpt_config config = rig_make_config(2 * 11, steps, "");
    config.train.reduction = DPT_REDUCTION_FAST;
    config.train.verify_every = 1; /* the run ends at once when ranks differ */
    return config;
}

static double loss_of(const char *name)
{
    json_t *summary = rig_summary_of(rig_dir(name));
    const double loss = json_real_value(json_object_get(summary, "loss"));
    json_decref(summary);
    return loss;
}

static void near(const char *name, double expected)
{
    const double loss = loss_of(name);
    if (!(fabs(loss - expected) <= 1e-3 * expected))
        fail_msg("%s ends with a loss of %.9g, not %.9g", name, loss, expected);
}

static double canonical_loss(int steps)
{
    char hash[64], name[32];
    struct dpt_config config = make_fast_config(steps);
    config.train.reduction = DPT_REDUCTION_CANONICAL;
    (void)snprintf(name, sizeof name, "canonical-%d", steps);
    rig_undisturbed(&config, name, 1, false, hash);
    return loss_of(name);
}

static void each_world_is_near_the_canonical_curve(void **state)
{
    (void)state;
    const double expected = canonical_loss(STEPS);
    const struct dpt_config config = make_fast_config(STEPS);
    char hash[WORLDS][64], name[32];
    int others = 0;
    for (int world = 1; world <= WORLDS; world++) {
        (void)snprintf(name, sizeof name, "fast-%d", world);
        rig_undisturbed(&config, name, world, world > 2, hash[world - 1]);
        near(name, expected);
        others += strcmp(hash[world - 1], hash[0]) != 0;
    }
    assert_true(others > 0); /* else nothing above was fast */
}

static void strategies_that_add_alike_agree(void **state)
{
    (void)state;
    static const char *const names[] = {"simple_ga",    "hook",  "async",
                                        "bucket_async", "zero1", "no_shard"};
    struct dpt_config config = make_fast_config(STEPS);
    char expected[64], hash[64], name[32];
    rig_undisturbed(&config, "fast-ddp", 3, false, expected);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i += dpt_test_every()) {
        rig_choose(&config, names[i]);
        (void)snprintf(name, sizeof name, "fast-%s", names[i]);
        rig_undisturbed(&config, name, 3, false, hash);
        if (strcmp(hash, expected) != 0)
            fail_msg("%s: %s instead of %s", names[i], hash, expected);
    }
}

/* Two ranks have one order of addition, up to its direction: there a ring has the bits of the
 * direct exchange. With more ranks it has others. */
static void a_ring_has_an_order_of_its_own(void **state)
{
    (void)state;
    const double expected = canonical_loss(STEPS);
    struct dpt_config config = make_fast_config(STEPS);
    char fast[64], ring[64], name[32];
    for (int world = 1; world <= WORLDS; world++) {
        (void)snprintf(name, sizeof name, "order-%d", world);
        config.train.reduction = DPT_REDUCTION_FAST;
        rig_undisturbed(&config, name, world, false, fast);
        (void)snprintf(name, sizeof name, "ring-%d", world);
        config.train.reduction = DPT_REDUCTION_RING;
        rig_undisturbed(&config, name, world, world > 2, ring);
        near(name, expected);
        assert_int_equal(strcmp(fast, ring) == 0, world <= 2);
    }
}

/* Buckets are cut into chunks, whose order differs, so the strategies have bits of their own. Each
 * has the same bits in each of its runs. */
static void rings_of_ddp_and_its_variants(void **state)
{
    (void)state;
    static const char *const names[] = {"ddp",   "simple_ga",    "hook",
                                        "async", "bucket_async", "no_shard"};
    const double expected = canonical_loss(STEPS);
    struct dpt_config config = make_fast_config(STEPS);
    char hash[2][64], name[32];
    config.train.reduction = DPT_REDUCTION_RING;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i += dpt_test_every()) {
        rig_choose(&config, names[i]);
        for (int run = 0; run < (i == 0 ? 2 : 1); run++) {
            (void)snprintf(name, sizeof name, "ring-%s-%d", names[i], run);
            rig_undisturbed(&config, name, 3, run == 1, hash[run]);
            near(name, expected);
        }
        if (i == 0)
            assert_string_equal(hash[0], hash[1]);
    }
}

static void a_loss_costs_no_step(enum dpt_reduction reduction, const char *name)
{
    enum { LONG_STEPS = 60 };
    const double expected = canonical_loss(LONG_STEPS);
    struct dpt_config config = make_fast_config(LONG_STEPS);
    config.train.reduction = reduction;
    char dir[128];
    struct director *d = rig_begin(&config, name, dir);
    (void)director_start(d, 0);
    (void)director_start(d, 0);
    const int dies = director_start(d, 1), joiner = director_start(d, 0);
    director_bench(d, joiner, true);
    assert_true(director_form(d, false));
    director_await_step(d, 3);
    director_kill(d, dies);
    assert_true(director_form(d, false));
    director_await_step(d, 6);
    director_bench(d, joiner, false);
    assert_true(director_form(d, true));
    (void)director_finish(d);
    assert_int_equal(director_steps_lost(d), 0);
    director_destroy(&d);
    near(name, expected);
}

static void a_loss_costs_no_step_of_fast(void **state)
{
    (void)state;
    a_loss_costs_no_step(DPT_REDUCTION_FAST, "fast-killed");
}

static void a_loss_costs_no_step_of_a_ring(void **state)
{
    (void)state;
    a_loss_costs_no_step(DPT_REDUCTION_RING, "ring-killed");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_world_is_near_the_canonical_curve),
        cmocka_unit_test(strategies_that_add_alike_agree),
        cmocka_unit_test(a_ring_has_an_order_of_its_own),
        cmocka_unit_test(rings_of_ddp_and_its_variants),
        cmocka_unit_test(a_loss_costs_no_step_of_fast),
        cmocka_unit_test(a_loss_costs_no_step_of_a_ring),
    };
    return cmocka_run_group_tests_name("rank_fast", tests, rig_setup, rig_teardown);
}
