/* Sharded state through worlds that grow, shrink and break: parts move between ranks, and the hash
 * is that of the undisturbed run. With DPT_TEST_ON_DEVICE the state is on devices that the host
 * cannot touch, and the hash that of the host's run. */
#ifdef DPT_TEST_ON_DEVICE
#include "tests/worker/train/device_rig.h"
#endif
#include "tests/worker/train/rank_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

/* A test hears of steps some time after they are made: that the run has ended by then is kept
 * away by many short ones. With a sanitizer, and on a device, they are not as short. */
#ifdef DPT_TEST_ON_DEVICE
enum { SHORT_STEPS = 100 };
#else
enum { SHORT_STEPS = SANITIZED_EVERY > 1 ? 100 : 300 };
#endif
enum { STEPS = 16, REBUILT_STEPS = 24, RANKS = 5 };

struct variant {
    const char *name;
    enum dpt_sharding sharding;
    enum dpt_precision precision;
    enum dpt_redundancy redundancy;
};

static const struct variant variants[] = {
    {"zero1", DPT_SHARDING_NULL, DPT_PRECISION_FP32, DPT_REDUNDANCY_NONE},
    {"zero1", DPT_SHARDING_NULL, DPT_PRECISION_BF16, DPT_REDUNDANCY_NONE},
    {"zero2", DPT_SHARDING_NULL, DPT_PRECISION_BF16, DPT_REDUNDANCY_NONE},
    {"dp", DPT_SHARDING_NULL, DPT_PRECISION_FP32, DPT_REDUNDANCY_NONE},
    {"fsdp", DPT_SHARDING_FULL_SHARD, DPT_PRECISION_FP32, DPT_REDUNDANCY_NONE},
    /* What one rank holds another does, too. */
    {"zero1", DPT_SHARDING_NULL, DPT_PRECISION_FP32, DPT_REDUNDANCY_SHADOW},
    {"zero2", DPT_SHARDING_NULL, DPT_PRECISION_BF16, DPT_REDUNDANCY_SHADOW},
    {"fsdp", DPT_SHARDING_FULL_SHARD, DPT_PRECISION_BF16, DPT_REDUNDANCY_SHADOW},
    {"fsdp", DPT_SHARDING_HYBRID_SHARD, DPT_PRECISION_FP32, DPT_REDUNDANCY_NONE},
};
enum { VARIANTS = sizeof variants / sizeof variants[0], FIRST_COVERED = 5, DP = 3 };

static struct dpt_config make_shards_config(const struct variant *v)
{
    struct dpt_config config = rig_make_config(2 * 7, STEPS, "");
    config.train.accumulate = DPT_ACCUMULATE_REDUCE;
    config.train.precision = v->precision;
    config.train.lanes = RANKS;
    config.checkpoint.every_steps = 4;
    (void)snprintf(config.strategy.name, sizeof config.strategy.name, "%s", v->name);
    config.strategy.sharding = v->sharding;
    config.strategy.redundancy = v->redundancy;
    return config;
}

static void keep(struct dpt_config *config)
{
#ifdef DPT_TEST_ON_DEVICE
    keep_state_on_device(config);
#else
    (void)config;
#endif
}

/* ddp's hash is every strategy's. */
static void undisturbed_hash(const struct variant *v, char ret[64])
{
    static const struct variant ddp = {"ddp", DPT_SHARDING_NULL, DPT_PRECISION_FP32,
                                       DPT_REDUNDANCY_NONE};
    struct dpt_config config = make_shards_config(&ddp);
    char name[32];
    config.train.precision = v->precision;
    (void)snprintf(name, sizeof name, "calm-%d", (int)v->precision);
    rig_undisturbed(&config, name, 1, false, ret);
}

/* `n` ranks on two hosts train, the others are spares. */
static struct director *begin_shards_run(const struct variant *v, const char *story, int n,
                                         char dir[128])
{
    struct dpt_config config = make_shards_config(v);
    char name[64];
    keep(&config);
    (void)snprintf(name, sizeof name, "%s-%d", story, (int)(v - variants));
    struct director *d = rig_begin(&config, name, dir);
    for (int i = 0; i < RANKS; i++)
        director_bench(d, director_start(d, i % 2), i >= n);
    assert_true(director_form(d, false));
    return d;
}

static void finish_shards_story(struct director **d, const char *expected, const char *story)
{
    const char *hash = director_finish(*d);
    if (strcmp(hash, expected) != 0)
        fail_msg("%s: %s instead of %s", story, hash, expected);
    director_destroy(d);
}

/* 1, 3, 5 ranks, and as handover ranks two go again: nothing is lost and nothing is read. */
static void worlds_grow_and_shrink(void **state)
{
    (void)state;
    for (int i = 0; i < VARIANTS; i += dpt_test_every()) {
        char expected[64], dir[128];
        undisturbed_hash(&variants[i], expected);
        struct director *d = begin_shards_run(&variants[i], "grow", 1, dir);
        director_await_step(d, 2);
        director_bench(d, 1, false);
        director_bench(d, 2, false);
        assert_true(director_form(d, true));
        director_await_step(d, 5);
        director_bench(d, 3, false);
        director_bench(d, 4, false);
        assert_true(director_form(d, true));
        director_await_step(d, 8);
        director_retire(d, 0);
        director_retire(d, 3);
        assert_true(director_form(d, true));
        director_await_step(d, 11);
        director_retire(d, 1);
        assert_true(director_form(d, true));
        assert_int_equal(director_steps_lost(d), 0);
        finish_shards_story(&d, expected, dir);
    }
}

static void let_pass_us(int us)
{
    const struct timespec time = {.tv_nsec = us * 1000L};
    (void)nanosleep(&time, NULL); /* tidy: pause of a bounded poll (here: one turn) */
}

/* A joining rank dies while it receives the state: the others continue with their old state. */
static void a_joiner_lost_while_state_moves(void **state)
{
    (void)state;
    for (int i = 0; i < VARIANTS; i += dpt_test_every()) {
        char expected[64], dir[128];
        undisturbed_hash(&variants[i], expected);
        for (int us = 0; us <= 4000; us += 2000) {
            char story[32];
            (void)snprintf(story, sizeof story, "joiner-%d", us);
            struct director *d = begin_shards_run(&variants[i], story, 2, dir);
            director_await_step(d, 3);
            director_bench(d, 2, false);
            director_prepare(d, false);
            director_plan(d);
            let_pass_us(us);
            director_kill(d, 2);
            director_bench(d, 3, false);
            assert_true(director_form(d, false));
            assert_int_equal(director_steps_lost(d), 0);
            finish_shards_story(&d, expected, dir);
        }
    }
}

/* State that only the lost rank held is lost: back to the checkpoint, in another world. */
static void a_lost_part_goes_back(void **state)
{
    (void)state;
    for (int i = 0; i < FIRST_COVERED; i += dpt_test_every()) {
        char expected[64], dir[128];
        undisturbed_hash(&variants[i], expected);
        struct director *d = begin_shards_run(&variants[i], "back", 3, dir);
        director_await_checkpoint(d, 4);
        director_kill(d, 1);
        director_bench(d, 3, false);
        director_bench(d, 4, false);
        assert_true(director_form(d, false));
        finish_shards_story(&d, expected, dir);
    }
}

/* With dp the rank at position 0 holds the state. The loss of another rank costs no step, its own
 * loss goes back to the checkpoint. */
static void dp_loses_with_its_first_rank_only(void **state)
{
    (void)state;
    char expected[64], dir[128];
    struct dpt_config config = make_shards_config(&variants[DP]);
    keep(&config);
    undisturbed_hash(&variants[DP], expected);
    struct director *d = rig_begin(&config, "dp", dir);
    for (int i = 0; i < 4; i++)
        (void)director_start(d, 0);
    assert_true(director_form(d, false));
    director_await_checkpoint(d, 4);
    director_await_step(d, 5);
    director_kill(d, 2);
    assert_true(director_form(d, false));
    assert_int_equal(director_steps_lost(d), 0);
    director_await_step(d, director_best_step(d) + 1);
    director_kill(d, 0);
    assert_true(director_form(d, false));
    assert_true(director_steps_lost(d) > 0);
    finish_shards_story(&d, expected, dir);
}

/* Each of four in turn; then a joining rank, while the shadows are rebuilt; then another. */
static void a_covered_loss_costs_nothing(void **state)
{
    (void)state;
    for (int i = FIRST_COVERED; i < VARIANTS; i += dpt_test_every()) {
        char expected[64], dir[128];
        undisturbed_hash(&variants[i], expected);
        for (int victim = 0; victim < 4; victim++) {
            char story[32];
            (void)snprintf(story, sizeof story, "covered-%d", victim);
            struct director *d = begin_shards_run(&variants[i], story, 4, dir);
            director_await_step(d, 3);
            director_kill(d, victim);
            director_bench(d, 4, false);
            director_prepare(d, false);
            director_plan(d);
            let_pass_us(victim * 700);
            director_kill(d, 4);
            assert_true(director_form(d, false));
            director_await_step(d, 7);
            assert_int_equal(director_steps_lost(d), 0);
            finish_shards_story(&d, expected, dir);
        }
    }
}

/* A second loss after the recovery from the first costs nothing either; before it, the run goes
 * back. */
static void a_second_loss(void **state)
{
    (void)state;
    for (int i = FIRST_COVERED; i < FIRST_COVERED + 3; i += dpt_test_every())
        for (int mended = 0; mended < 2; mended++) {
            char expected[64], dir[128], story[32];
            undisturbed_hash(&variants[i], expected);
            (void)snprintf(story, sizeof story, "second-%d", mended);
            struct director *d = begin_shards_run(&variants[i], story, 4, dir);
            director_await_checkpoint(d, 4);
            director_kill(d, 0); /* ranks 0 and 1 are on the first host, 2 and 3 on the other */
            if (mended) {
                director_bench(d, 4, false); /* in its place: on the same host */
                assert_true(director_form(d, false));
            }
            director_kill(d, 1);
            assert_true(director_form(d, false));
            if (mended)
                assert_int_equal(director_steps_lost(d), 0);
            finish_shards_story(&d, expected, dir);
        }
}

/* Four ranks on as many nodes, of which the first dies; shadows come a unit a step from then on.
 * `layers` + 2 units. */
static struct director *begin_rebuilding(const struct variant *v, const char *story, int layers,
                                         int steps, char dir[128], char expected[64])
{
    static const struct variant ddp = {"ddp", DPT_SHARDING_NULL, DPT_PRECISION_FP32,
                                       DPT_REDUNDANCY_NONE};
    struct dpt_config config = make_shards_config(&ddp);
    char name[64];
    config.train.precision = v->precision;
    config.train.steps = steps;
    config.model.n_layer = layers;
    (void)snprintf(name, sizeof name, "calm-%s-%d", story, (int)v->precision);
    rig_undisturbed(&config, name, 1, false, expected);
    config = make_shards_config(v);
    keep(&config);
    config.train.steps = steps;
    config.model.n_layer = layers;
    config.strategy.rebuild_mib = 0;
    config.checkpoint.every_steps = 0;
    (void)snprintf(name, sizeof name, "%s-%d", story, (int)(v - variants));
    struct director *d = rig_begin(&config, name, dir);
    for (int i = 0; i < 4; i++)
        (void)director_start(d, i);
    assert_true(director_form(d, false));
    director_await_step(d, 4);
    director_kill(d, 0);
    assert_true(director_form(d, false));
    assert_int_equal(director_steps_lost(d), 0);
    return d;
}

/* What events.jsonl says of redundancy, a letter a line. */
static void redundancy_told(const char *dir, char *ret, size_t bytes)
{
    static const char *const words[] = {"\"whole\"", "\"rebuilding\"", "\"none\""};
    char path[160], line[1024];
    size_t n = 0;
    (void)snprintf(path, sizeof path, "%s/events.jsonl", dir);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f) && n + 1 < bytes)
        for (int w = 0; w < 3; w++)
            if (strstr(line, words[w]))
                ret[n++] = words[w][1];
    assert_int_equal(fclose(f), 0);
    ret[n] = '\0';
}

/* Training continues while shadows are rebuilt; after that another loss costs no step. */
static void shadows_come_back_beside_the_steps(void **state)
{
    (void)state;
    for (int i = FIRST_COVERED; i < FIRST_COVERED + 3; i += dpt_test_every()) {
        char expected[64], dir[128], told[16];
        struct director *d =
            begin_rebuilding(&variants[i], "rebuilt", 2, SHORT_STEPS, dir, expected);
        director_await_step(d, director_best_step(d) + 8);
        director_kill(d, 2);
        assert_true(director_form(d, false));
        assert_int_equal(director_steps_lost(d), 0);
        const char *hash = director_finish(d);
        assert_string_equal(hash, expected);
        director_destroy(&d);
        redundancy_told(dir, told, sizeof told);
        assert_memory_equal(told, "wrwr", 4); /* four, three, all whole again, two */
    }
}

/* Before they are there it goes back (here to the beginning), and comes out the same. */
static void a_loss_before_shadows_are_back(void **state)
{
    (void)state;
    char expected[64], dir[128];
    const struct variant *v = &variants[FIRST_COVERED + 2];
    struct director *d = begin_rebuilding(v, "early", 14, REBUILT_STEPS, dir, expected);
    director_kill(d, 2);
    assert_true(director_form(d, false));
    assert_true(director_steps_lost(d) > 0);
    const char *hash = director_finish(d);
    assert_string_equal(hash, expected);
    director_destroy(&d);
}

/* Two nodes, of two ranks and of one, cut their replicas differently: each has the whole state.
 * With one node there is one copy. */
static void replicas_of_different_nodes(void **state)
{
    (void)state;
    const struct variant *v = &variants[VARIANTS - 1];
    char expected[64], dir[128], told[16];
    assert_int_equal(v->sharding, DPT_SHARDING_HYBRID_SHARD);
    undisturbed_hash(v, expected);
    struct director *d = begin_shards_run(v, "uneven", 3, dir);
    director_await_step(d, 3);
    director_kill(d, 1);
    assert_true(director_form(d, false));
    assert_int_equal(director_steps_lost(d), 0);
    finish_shards_story(&d, expected, "uneven");
    redundancy_told(dir, told, sizeof told);
    assert_string_equal(told, "wn");
}

/* With one node there is one replica, which each generation that has but one says once. */
static void one_node_is_one_replica(void **state)
{
    (void)state;
    static const char warning[] = "there is one node, and so one replica";
    const struct variant *v = &variants[VARIANTS - 1];
    char expected[64], dir[128], path[160], told[16];
    assert_int_equal(v->sharding, DPT_SHARDING_HYBRID_SHARD);
    undisturbed_hash(v, expected);
    struct dpt_config config = make_shards_config(v);
    keep(&config);
    struct director *d = rig_begin(&config, "replica", dir);
    const int fd = rig_log_to(dir, path);
    (void)director_start(d, 0);
    (void)director_start(d, 0);
    assert_true(director_form(d, false));
    director_await_step(d, 2);
    const int alone = rig_said(path, warning);
    const int other = director_start(d, 1);
    assert_true(director_form(d, true));
    director_await_step(d, director_best_step(d) + 2); /* its event is written after its first */
    const int together = rig_said(path, warning);
    director_kill(d, other);
    assert_true(director_form(d, false));
    assert_int_equal(director_steps_lost(d), 0);
    finish_shards_story(&d, expected, "replica");
    rig_log_back(fd);
    assert_int_equal(alone, 1);
    assert_int_equal(together, 1);
    assert_int_equal(rig_said(path, warning), 2);
    redundancy_told(dir, told, sizeof told);
    assert_string_equal(told, "nwn");
}

/* Nothing is there but the beginning. */
static void without_a_checkpoint_from_the_seed(void **state)
{
    (void)state;
    char expected[64];
    const struct variant *v = &variants[FIRST_COVERED - 1];
    struct dpt_config config = make_shards_config(v);
    keep(&config);
    undisturbed_hash(v, expected);
    char dir[128];
    struct director *d = rig_begin(&config, "seed", dir); /* makes the folder */
    director_destroy(&d);
    d = director_create_without_checkpoints(&config, dir);
    for (int i = 0; i < 3; i++)
        (void)director_start(d, 0);
    assert_true(director_form(d, false));
    director_await_step(d, 3);
    director_kill(d, 2);
    assert_true(director_form(d, false));
    finish_shards_story(&d, expected, "seed");
}

#ifdef DPT_TEST_ON_DEVICE
#define T(test) cmocka_unit_test_setup_teardown(test, device_rig_setup, device_rig_teardown)
#else
#define T(test) cmocka_unit_test(test)
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(worlds_grow_and_shrink),
        T(a_joiner_lost_while_state_moves),
        T(a_lost_part_goes_back),
        T(dp_loses_with_its_first_rank_only),
        T(a_covered_loss_costs_nothing),
        T(a_second_loss),
        T(shadows_come_back_beside_the_steps),
        T(a_loss_before_shadows_are_back),
        T(replicas_of_different_nodes),
        T(one_node_is_one_replica),
        T(without_a_checkpoint_from_the_seed),
    };
    return cmocka_run_group_tests_name("rank_shards", tests, rig_setup, rig_teardown);
}
