/* Bytes sent in a step: the table of docs/strategies.md, of 4 ranks and 8 slots, so that each rank
 * has 2 slots. tests/worker/strategy/bytes_sent_test.c holds the same table against ranks. */
#include "worker/planner/traffic.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

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

static void test_table(void **state)
{
    (void)state;
    const double way = 3.0 / 4; /* (N-1)/N */
    const struct {
        const char *strategy;
        double sent;     /* by a rank */
        double crossing; /* by one of two machines of 2 ranks: 2/3 of what goes to all others */
    } cases[] = {
        {"strategy={name: ddp}", 2 * way * D, 2 * 2 * way * D * 2 / 3},
        {"strategy={name: simple}", (2 + 2) * way * D, 2 * 4 * way * D * 2 / 3},
        {"strategy={name: zero1}", way * (D + W), 2 * way * (D + W) * 2 / 3},
        {"strategy={name: zero2}", way * (2 * D + W), 2 * way * (2 * D + W) * 2 / 3},
        {"strategy={name: fsdp, sharding: no_shard}", 3 * way * D, 2 * 3 * way * D * 2 / 3},
        {"strategy={name: fsdp, sharding: full_shard}", way * (2 * D + 4 * W),
         2 * way * (2 * D + 4 * W) * 2 / 3},
        {"strategy={name: zero2, compression: bf16}", way * (2 * D / 2 + W),
         2 * way * (2 * D / 2 + W) * 2 / 3},
        {"strategy={name: zero2, redundancy: shadow}", way * (2 * D + W) + D / 4.0,
         2 * (way * (2 * D + W) * 2 / 3 + D / 4.0)},
        {"strategy={name: fsdp, sharding: hybrid_shard}", D + D / 2.0 + 2 * W, 2 * D / 2.0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        static struct dpt_config config;
        const struct dpt_traffic_world world = {2, 4, ELEMENTS, 2}, alone = {1, 1, ELEMENTS, 2};
        load(cases[i].strategy, &config);
        const double sent = dpt_traffic_sent(&config, &world),
                     crossing = dpt_traffic_crossing(&config, &world);
        if (fabs(sent - cases[i].sent) > 1e-6 || fabs(crossing - cases[i].crossing) > 1e-6)
            fail_msg("%s: sent %.1f (%.1f), between machines %.1f (%.1f)", cases[i].strategy, sent,
                     cases[i].sent, crossing, cases[i].crossing);
        assert_true(dpt_traffic_crossing(&config, &alone) == 0);
    }
}

/* hybrid_shard under `reduce`: slots to all ranks, then pieces of the sum to the other replica. */
static void test_hybrid_reduce(void **state)
{
    (void)state;
    static struct dpt_config config;
    const struct dpt_traffic_world world = {2, 4, ELEMENTS, 2};
    load("strategy={name: fsdp, sharding: hybrid_shard}", &config);
    config.train.accumulate = DPT_ACCUMULATE_REDUCE;
    assert_true(fabs(dpt_traffic_sent(&config, &world) - (2 * 0.75 * D + D / 4.0 + 2 * W)) < 1e-6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_hybrid_reduce),
    };
    return cmocka_run_group_tests_name("traffic", tests, NULL, NULL);
}
