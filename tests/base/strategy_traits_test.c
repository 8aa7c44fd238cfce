/* What follows from a strategy's name, sharding and order: the table that all readers share. */
#include "base/strategy_traits.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>

static struct dpt_config config_of(const char *name, enum dpt_sharding sharding)
{
    struct dpt_config c;
    dpt_config_defaults(&c);
    (void)snprintf(c.strategy.name, sizeof c.strategy.name, "%s", name);
    c.strategy.sharding = sharding;
    return c;
}

/* Of each strategy: its state, its weights, the order of `auto`, the route in both orders. */
static void each_strategy_has_its_traits(void **state)
{
    (void)state;
    enum {
        R = DPT_STATE_REPLICATED,
        S = DPT_STATE_SHARDED,
        N = DPT_STATE_PER_NODE,
        F = DPT_STATE_FIRST
    };
    enum { HELD = DPT_WEIGHTS_HELD, ONCE = DPT_WEIGHTS_ONCE, EACH = DPT_WEIGHTS_UNITS };
    enum { LANES = DPT_GRADIENT_LANES, UNITS = DPT_GRADIENT_UNITS, BUCKETS = DPT_GRADIENT_BUCKETS };
    enum { LOCAL = DPT_ACCUMULATE_LOCAL, REDUCE = DPT_ACCUMULATE_REDUCE };
    static const struct {
        const char *name;
        enum dpt_sharding sharding;
        int state, weights, order, local, reduce;
    } cases[] = {
        {"ddp", DPT_SHARDING_NULL, R, HELD, LOCAL, LANES, UNITS},
        {"simple", DPT_SHARDING_NULL, R, HELD, REDUCE, BUCKETS, BUCKETS},
        {"simple_ga", DPT_SHARDING_NULL, R, HELD, LOCAL, LANES, BUCKETS},
        {"hook", DPT_SHARDING_NULL, R, HELD, LOCAL, LANES, BUCKETS},
        {"async", DPT_SHARDING_NULL, R, HELD, LOCAL, LANES, BUCKETS},
        {"bucket_async", DPT_SHARDING_NULL, R, HELD, LOCAL, LANES, BUCKETS},
        {"dp", DPT_SHARDING_NULL, F, ONCE, LOCAL, UNITS, UNITS},
        {"zero1", DPT_SHARDING_NULL, S, ONCE, LOCAL, LANES, UNITS},
        {"zero2", DPT_SHARDING_NULL, S, ONCE, REDUCE, UNITS, UNITS},
        {"zero3", DPT_SHARDING_NULL, S, EACH, REDUCE, UNITS, UNITS},
        {"fsdp", DPT_SHARDING_NO_SHARD, R, HELD, REDUCE, LANES, UNITS},
        {"fsdp", DPT_SHARDING_SHARD_GRAD_OP, S, ONCE, REDUCE, UNITS, UNITS},
        {"fsdp", DPT_SHARDING_FULL_SHARD, S, EACH, REDUCE, UNITS, UNITS},
        {"fsdp", DPT_SHARDING_HYBRID_SHARD, N, EACH, LOCAL, UNITS, UNITS},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct dpt_config c = config_of(cases[i].name, cases[i].sharding);
        const struct dpt_strategy_traits t = dpt_strategy_traits(&c);
        assert_true(t.known);
        assert_string_equal(t.name, cases[i].name);
        assert_int_equal(t.sharding, cases[i].sharding);
        assert_int_equal(t.state, cases[i].state);
        assert_int_equal(t.weights, cases[i].weights);
        assert_int_equal(t.order, cases[i].order);
        c.train.accumulate = DPT_ACCUMULATE_LOCAL;
        assert_int_equal(dpt_strategy_traits(&c).route, cases[i].local);
        assert_int_equal(dpt_strategy_traits(&c).by_node, cases[i].state == N);
        c.train.accumulate = DPT_ACCUMULATE_REDUCE;
        assert_int_equal(dpt_strategy_traits(&c).route, cases[i].reduce);
        assert_false(dpt_strategy_traits(&c).by_node);
    }
    const struct dpt_config bare = config_of("fsdp", DPT_SHARDING_NULL);
    assert_int_equal(dpt_strategy_traits(&bare).sharding, DPT_SHARDING_FULL_SHARD);
    assert_int_equal(dpt_strategy_traits(&bare).weights, DPT_WEIGHTS_UNITS);
    const struct dpt_config unknown = config_of("ddpp", DPT_SHARDING_NULL);
    assert_false(dpt_strategy_traits(&unknown).known);
}

/* The settings that strategies do not support, by name of strategy. */
static void strategies_refuse_settings(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        bool sharding, no_overlap, open_order, compression, powersgd;
    } cases[] = {
        {"ddp", false, true, true, true, true},
        {"simple", false, true, false, false, false},
        {"simple_ga", false, true, true, false, false},
        {"hook", false, false, true, false, false},
        {"async", false, false, true, false, false},
        {"bucket_async", false, false, true, false, false},
        {"dp", false, true, false, true, false},
        {"zero1", false, true, true, true, false},
        {"zero2", false, true, false, true, false},
        {"zero3", false, true, false, true, false},
        {"fsdp", true, true, false, true, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct dpt_config c = config_of(cases[i].name, DPT_SHARDING_NULL);
        const struct dpt_strategy_traits t = dpt_strategy_traits(&c);
        assert_int_equal(t.takes_sharding, cases[i].sharding);
        assert_int_equal(t.takes_no_overlap, cases[i].no_overlap);
        assert_int_equal(t.takes_open_order, cases[i].open_order);
        assert_int_equal(t.takes_16_bits, cases[i].compression);
        assert_int_equal(t.takes_powersgd, cases[i].powersgd);
    }
}

/* The folder of a trace has a strategy's name or a word of strategy.sharding. */
static void words_of_strategies_that_divide_the_state(void **state)
{
    (void)state;
    static const char *const divide[] = {"zero1",      "zero2",         "zero3",        "fsdp",
                                         "full_shard", "shard_grad_op", "hybrid_shard", "no_shard"};
    static const char *const others[] = {"ddp", "simple", "bucket_async", "dp", "", "null", "zero"};
    for (size_t i = 0; i < sizeof divide / sizeof *divide; i++)
        assert_true(dpt_strategy_divides_state(divide[i]));
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        assert_false(dpt_strategy_divides_state(others[i]));
}

/* A shadow's holder needs every sum as soon as it is made. */
static void a_shadow_sends_every_slot(void **state)
{
    (void)state;
    struct dpt_config c = config_of("zero1", DPT_SHARDING_NULL);
    assert_false(dpt_strategy_traits(&c).warns_slots);
    c.strategy.redundancy = DPT_REDUNDANCY_SHADOW;
    assert_int_equal(dpt_strategy_traits(&c).route, DPT_GRADIENT_UNITS);
    assert_true(dpt_strategy_traits(&c).warns_slots);
}

static void keys_change_what_follows(void **state)
{
    (void)state;
    struct dpt_config c = config_of("ddp", DPT_SHARDING_NULL);
    assert_true(dpt_strategy_traits(&c).buckets.announced);
    assert_true(dpt_strategy_traits(&c).may_pack);
    assert_int_equal(dpt_strategy_traits(&c).wire, DPT_PRECISION_FP32);
    c.strategy.overlap = false;
    c.strategy.compression = DPT_COMPRESSION_BF16;
    assert_false(dpt_strategy_traits(&c).buckets.announced);
    assert_int_equal(dpt_strategy_traits(&c).wire, DPT_PRECISION_BF16);
    c.strategy.compression = DPT_COMPRESSION_FP16;
    assert_int_equal(dpt_strategy_traits(&c).wire, DPT_PRECISION_FP16);
    assert_false(dpt_strategy_traits(&c).lane_per_rank);
    c.strategy.compression = DPT_COMPRESSION_POWERSGD;
    assert_int_equal(dpt_strategy_traits(&c).wire, DPT_PRECISION_FP32);
    assert_true(dpt_strategy_traits(&c).lane_per_rank);
    c = config_of("fsdp", DPT_SHARDING_NO_SHARD);
    c.train.reduction = DPT_REDUCTION_FAST;
    assert_int_equal(dpt_strategy_traits(&c).order, DPT_ACCUMULATE_LOCAL);
    assert_true(dpt_strategy_traits(&c).lane_per_rank);
    assert_false(dpt_strategy_traits(&c).by_ring);
    c.train.reduction = DPT_REDUCTION_RING;
    assert_int_equal(dpt_strategy_traits(&c).order, DPT_ACCUMULATE_LOCAL);
    assert_true(dpt_strategy_traits(&c).order_open);
    assert_true(dpt_strategy_traits(&c).lane_per_rank);
    assert_true(dpt_strategy_traits(&c).by_ring);
    c.train.reduction = DPT_REDUCTION_FAST;
    c.cluster.device = DPT_DEVICE_CUDA;
    assert_true(dpt_strategy_traits(&c).on_device);
    c.strategy.offload = DPT_OFFLOAD_OPTIMIZER;
    assert_false(dpt_strategy_traits(&c).on_device);
    assert_false(dpt_strategy_traits(&c).by_nccl);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_strategy_has_its_traits),
        cmocka_unit_test(strategies_refuse_settings),
        cmocka_unit_test(words_of_strategies_that_divide_the_state),
        cmocka_unit_test(a_shadow_sends_every_slot),
        cmocka_unit_test(keys_change_what_follows),
    };
    return cmocka_run_group_tests_name("strategy_traits", tests, NULL, NULL);
}
