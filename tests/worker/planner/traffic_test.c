/* Bytes sent in a step: the table of docs/strategies.md, of 4 ranks and 8 slots, so that each rank
 * has 2 slots. tests/worker/strategy/bytes_sent_test.c holds the same table against ranks. */
#include "worker/planner/traffic.h"

#include "worker/planner/planned_world.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

enum { ELEMENTS = 1200, D = 4 * ELEMENTS, W = 2 * ELEMENTS /* weights in 16 bits */ };

static void load(const char *strategy, struct dpt_config *ret)
{
    struct dpt_err err;
    const char *const sets[] = {
        strategy,        "cluster.nnodes=2",    "train.global_batch=8", "train.micro_batch=1",
        "train.lanes=4", "train.precision=bf16"};
    if (dpt_config_load_text("", "test", sets, sizeof sets / sizeof *sets, ret, &err) != DPT_OK)
        fail_msg("%s: %s", strategy, err.text);
}

/* The traffic of `machines` machines with `each` ranks. */
static struct dpt_traffic traffic_of(const struct dpt_config *config, int machines, int each)
{
    struct dpt_planned_world planned;
    dpt_planned_world_init(&planned, config, (struct dpt_world_shape){machines, each});
    return dpt_traffic_of(config, &planned.world, ELEMENTS, 2);
}

static void assert_traffic(const char *what, struct dpt_traffic traffic, double sent,
                           double crossing)
{
    if (fabs(traffic.sent - sent) > 1e-6 || fabs(traffic.crossing - crossing) > 1e-6)
        fail_msg("%s: sent %.1f (%.1f), between machines %.1f (%.1f)", what, traffic.sent, sent,
                 traffic.crossing, crossing);
}

static void test_table(void **state)
{
    (void)state;
    const double way = 3.0 / 4; /* (N-1)/N */
    const struct {
        const char *strategy;
        double sent;     /* by a rank */
        double crossing; /* by one of two machines of 2 ranks: 2/3 of what goes to all others */
    } cases[] = {
        /* A machine's sum of its lanes is sent once, and its 2 pieces of the sum to 2 ranks. */
        {"strategy={name: ddp}", 2 * way * D, D / 2.0 + D},
        {"strategy={name: simple}", (2 + 2) * way * D, 2 * 4 * way * D * 2 / 3},
        {"strategy={name: zero1}", way * (D + W), D / 2.0 + 2 * way * W * 2 / 3},
        {"strategy={name: zero2}", way * (2 * D + W), 2 * way * (2 * D + W) * 2 / 3},
        {"strategy={name: fsdp, sharding: no_shard}", 3 * way * D, 2 * 3 * way * D * 2 / 3},
        {"strategy={name: fsdp, sharding: full_shard}", way * (2 * D + 4 * W),
         2 * way * (2 * D + 4 * W) * 2 / 3},
        /* In a machine all bytes, to the 2 ranks of the other machine half. */
        {"strategy={name: zero2, compression: bf16}", 2 * (D / 4.0 + D / 4.0) + way * W,
         2 * (2 * D / 4.0 + way * W * 2 / 3)},
        {"strategy={name: zero2, redundancy: shadow}", way * (2 * D + W) + D / 4.0,
         2 * (way * (2 * D + W) * 2 / 3 + D / 4.0)},
        {"strategy={name: fsdp, sharding: hybrid_shard}", D + D / 2.0 + 2 * W, 2 * D / 2.0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        static struct dpt_config config;
        load(cases[i].strategy, &config);
        assert_traffic(cases[i].strategy, traffic_of(&config, 2, 2), cases[i].sent,
                       cases[i].crossing);
        assert_true(traffic_of(&config, 1, 1).crossing == 0);
        assert_true(traffic_of(&config, 1, 4).crossing == 0);
    }
}

/* hybrid_shard under `reduce`: slots to all ranks, then pieces of the sum to the other replica. */
static void test_hybrid_reduce(void **state)
{
    (void)state;
    static struct dpt_config config;
    load("strategy={name: fsdp, sharding: hybrid_shard}", &config);
    config.train.accumulate = DPT_ACCUMULATE_REDUCE;
    assert_traffic("hybrid_shard reduce", traffic_of(&config, 2, 2), 2 * 0.75 * D + D / 4.0 + 2 * W,
                   2 * (2 * 0.5 * D + D / 4.0));
}

/* 8 slots on 4 ranks of one machine: position 0 receives the gradients of six slots. */
static void test_dp_through_one_rank(void **state)
{
    (void)state;
    static struct dpt_config config;
    load("strategy={name: ddp}", &config);
    (void)snprintf(config.strategy.name, sizeof config.strategy.name, "dp");
    assert_traffic("dp", traffic_of(&config, 1, 4), 6 * D, 0);
    assert_traffic("dp alone", traffic_of(&config, 1, 1), 0, 0);
    config.train.global_batch = 4;
    assert_traffic("dp, a slot a rank", traffic_of(&config, 1, 4), 3 * D, 0);
}

/* 4 lanes on 3 machines of 1 rank: the first rank has lanes 0 and 1, one sum. With 8 lanes it has
 * lanes 0 to 2, two sums. */
static void test_several_sums_of_lanes(void **state)
{
    (void)state;
    static struct dpt_config config;
    load("strategy={name: ddp}", &config);
    assert_traffic("4 lanes", traffic_of(&config, 3, 1), 2 * 2.0 / 3 * D, 2 * 2.0 / 3 * D);
    config.train.lanes = 8;
    assert_traffic("8 lanes", traffic_of(&config, 3, 1), 3 * 2.0 / 3 * D, 3 * 2.0 / 3 * D);
    /* hybrid_shard: the sums of a machine's lanes. */
    load("strategy={name: fsdp, sharding: hybrid_shard}", &config);
    config.train.lanes = 8;
    assert_true(traffic_of(&config, 3, 1).crossing == 3 * 2.0 / 3 * D);
}

/* Memory of one machine is read in place: compression saves nothing. */
static void test_compression_inside_a_machine(void **state)
{
    (void)state;
    static struct dpt_config config;
    load("strategy={name: ddp, compression: bf16}", &config);
    assert_traffic("1x4", traffic_of(&config, 1, 4), 2 * 0.75 * D, 0);
    assert_traffic("4x1", traffic_of(&config, 4, 1), 0.75 * D, 0.75 * D);
}

/* 2 machines of 3 ranks for 4 slots: 3 and 1 ranks train. */
static void test_uneven_machines(void **state)
{
    (void)state;
    static struct dpt_config config;
    load("strategy={name: zero2}", &config);
    config.train.global_batch = 4;
    assert_traffic("3+1", traffic_of(&config, 2, 3), 0.75 * (D + W), 3 * (D + W) / 4.0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_dp_through_one_rank),
        cmocka_unit_test(test_hybrid_reduce),
        cmocka_unit_test(test_several_sums_of_lanes),
        cmocka_unit_test(test_compression_inside_a_machine),
        cmocka_unit_test(test_uneven_machines),
    };
    return cmocka_run_group_tests_name("traffic", tests, NULL, NULL);
}
