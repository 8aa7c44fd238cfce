/* Strategies over real communicators, ranks as threads on simulated hosts, without trainer and
 * agent: with equal order of addition every strategy ends every world with the bits of ddp alone,
 * and continues from the state of another world. */
#include "tests/worker/strategy/sharded_scene.h"

#include "base/cores.h"
#include "base/strategy_traits.h"
#include "tests/every.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

static const struct variant ddp = {"ddp", DPT_SHARDING_NULL, 2, true, DPT_REDUNDANCY_NONE};
static const struct variant variants[] = {
    {"fsdp", DPT_SHARDING_NO_SHARD, 2, true, DPT_REDUNDANCY_NONE},
    {"zero1", DPT_SHARDING_NULL, 2, true, DPT_REDUNDANCY_NONE},
    {"zero2", DPT_SHARDING_NULL, 2, true, DPT_REDUNDANCY_NONE},
    {"zero3", DPT_SHARDING_NULL, 2, true, DPT_REDUNDANCY_NONE},
    {"fsdp", DPT_SHARDING_FULL_SHARD, 1, true, DPT_REDUNDANCY_NONE},
    {"fsdp", DPT_SHARDING_FULL_SHARD, 3, true, DPT_REDUNDANCY_NONE},
    {"fsdp", DPT_SHARDING_FULL_SHARD, 2, false, DPT_REDUNDANCY_NONE},
    {"fsdp", DPT_SHARDING_SHARD_GRAD_OP, 2, true, DPT_REDUNDANCY_NONE},
    {"fsdp", DPT_SHARDING_HYBRID_SHARD, 2, true, DPT_REDUNDANCY_NONE},
    {"zero1", DPT_SHARDING_NULL, 2, true, DPT_REDUNDANCY_SHADOW},
    {"zero2", DPT_SHARDING_NULL, 2, true, DPT_REDUNDANCY_SHADOW},
    {"fsdp", DPT_SHARDING_FULL_SHARD, 2, true, DPT_REDUNDANCY_SHADOW},
    {"simple", DPT_SHARDING_NULL, 2, true, DPT_REDUNDANCY_NONE},
    {"simple_ga", DPT_SHARDING_NULL, 2, true, DPT_REDUNDANCY_NONE},
    {"hook", DPT_SHARDING_NULL, 2, true, DPT_REDUNDANCY_NONE},
    {"async", DPT_SHARDING_NULL, 2, true, DPT_REDUNDANCY_NONE},
    {"bucket_async", DPT_SHARDING_NULL, 2, true, DPT_REDUNDANCY_NONE},
    {"dp", DPT_SHARDING_NULL, 2, true, DPT_REDUNDANCY_NONE},
};
enum { VARIANTS = sizeof variants / sizeof variants[0] };

static const struct layout one_node = {{0}, {0}};
static const struct layout layouts[] = {
    {{0}, {0}},
    {{0, 1, 0, 1, 0, 1}, {0, 1, 0, 1, 0, 1}},
    {{0, 1, 2, 0, 1, 2}, {0, 1, 2, 0, 1, 2}},
    {{0, 1, 0, 1, 0, 1}, {0}}, /* nodes of one host */
    {{0, 0, 0, 1, 0, 1}, {0}}, /* one node has more than half */
    {{0, 0, 1, 0, 2, 2}, {0}}, /* and it has just half */
    {{0, 1, 2, 2, 2, 1}, {0, 0, 1, 1, 1, 0}},
};
enum { LAYOUTS = sizeof layouts / sizeof layouts[0] };

static bool takes_16_bits(const struct variant *v)
{
    struct dpt_config config;
    dpt_config_defaults(&config);
    (void)snprintf(config.strategy.name, sizeof config.strategy.name, "%s", v->name);
    config.strategy.sharding = v->sharding;
    return dpt_strategy_traits(&config).takes_16_bits;
}

static void one_trajectory(enum dpt_accumulate accumulate, enum dpt_precision precision)
{
    static const int alone[] = {1}, changing[] = {1, 3, 2, 4}, ones[] = {1, 1, 1, 1};
    struct scene expected, lasting;
    begin_scene(&expected, &ddp, accumulate, precision, alone, 1);
    run_scene(&expected, &one_node);
    begin_scene(&lasting, &ddp, accumulate, precision, ones, 4);
    run_scene(&lasting, &one_node);
    for (int v = 0; v < VARIANTS; v++) {
        struct scene s;
        /* Each variant in both orders and in both precisions, one of each with the other. */
        if (dpt_test_every() > 1 && (v + (int)accumulate + (int)precision) % 2 != 0)
            continue;
        for (int size = 1 + v % dpt_test_every(); size <= 4; size += dpt_test_every()) {
            begin_scene(&s, &variants[v], accumulate, precision, &size, 1);
            run_scene(&s, &layouts[(size + v) % LAYOUTS]);
            check_equal(&expected, &s, "one world");
            if (size > 1)
                for (int r = 0; r < size; r++)
                    assert_int_equal(s.sent[r], s.told[r]);
            end_scene(&s);
        }
        begin_scene(&s, &variants[v], accumulate, precision, changing, 4);
        run_scene(&s, &layouts[1 + v % (LAYOUTS - 1)]);
        check_equal(&lasting, &s, "worlds of 1, 3, 2, 4");
        end_scene(&s);
    }
    end_scene(&expected);
    end_scene(&lasting);
}

static void reduce_fp32(void **state)
{
    (void)state;
    one_trajectory(DPT_ACCUMULATE_REDUCE, DPT_PRECISION_FP32);
}

static void reduce_bf16(void **state)
{
    (void)state;
    one_trajectory(DPT_ACCUMULATE_REDUCE, DPT_PRECISION_BF16);
}

static void local_fp32(void **state)
{
    (void)state;
    one_trajectory(DPT_ACCUMULATE_LOCAL, DPT_PRECISION_FP32);
}

static void local_bf16(void **state)
{
    (void)state;
    one_trajectory(DPT_ACCUMULATE_LOCAL, DPT_PRECISION_BF16);
}

/* 6 ranks on nodes and hosts of all kinds; `rebuilds`: shadows come beside the steps. */
static void on_nodes_and_hosts(enum dpt_accumulate accumulate, bool rebuilds)
{
    static const int alone[] = {1};
    struct scene expected, s;
    begin_scene(&expected, &ddp, accumulate, DPT_PRECISION_FP32, alone, 1);
    expected.config.train.lanes = 7;
    expected.steps = rebuilds ? REBUILT_STEPS : STEPS;
    run_scene(&expected, &one_node);
    for (int v = 0; v < VARIANTS; v++)
        for (int l = (rebuilds ? 2 : 0) + v % dpt_test_every(); l < LAYOUTS;
             l += rebuilds ? 2 : dpt_test_every()) {
            if (variants[v].redundancy == DPT_REDUNDANCY_NONE &&
                (rebuilds || variants[v].sharding != DPT_SHARDING_HYBRID_SHARD))
                continue;
            begin_scene(&s, &variants[v], accumulate, DPT_PRECISION_FP32, (int[]){6}, 1);
            s.config.train.lanes = 7;
            s.config.strategy.rebuild_mib = 0;
            s.steps = expected.steps;
            s.rebuilds = rebuilds;
            run_scene(&s, &layouts[l]);
            check_equal(&expected, &s, "six ranks");
            for (int r = 0; r < 6 && !rebuilds; r++)
                assert_int_equal(s.sent[r], s.told[r]);
            end_scene(&s);
        }
    end_scene(&expected);
}

/* Where replicas and shadows are is the nodes' business; and a shadow that comes unit by unit
 * beside the steps ends as its owner has it, also where some ranks have none. */
static void nodes_and_hosts(void **state)
{
    (void)state;
    on_nodes_and_hosts(DPT_ACCUMULATE_LOCAL, false);
    on_nodes_and_hosts(DPT_ACCUMULATE_REDUCE, false);
    on_nodes_and_hosts(DPT_ACCUMULATE_REDUCE, true);
}

/* Where ranks relay, every strategy has the bits and counts the bytes of a mesh. Of six ranks
 * on hosts of their own each has no connection to one. */
static void ranks_that_relay(void **state)
{
    (void)state;
    static const struct layout apart = {{0, 1, 2, 3, 4, 5}, {0, 1, 2, 3, 4, 5}},
                               mixed = {{0, 1, 2, 2, 3, 3}, {0, 1, 2, 2, 3, 3}};
    struct scene expected, s;
    for (int order = DPT_ACCUMULATE_LOCAL; order <= DPT_ACCUMULATE_REDUCE; order++) {
        begin_scene(&expected, &ddp, (enum dpt_accumulate)order, DPT_PRECISION_FP32, (int[]){1}, 1);
        expected.config.train.lanes = 7;
        run_scene(&expected, &one_node);
        for (int v = -1; v < VARIANTS; v += dpt_test_every()) {
            begin_scene(&s, v < 0 ? &ddp : &variants[v], (enum dpt_accumulate)order,
                        DPT_PRECISION_FP32, (int[]){6}, 1);
            s.config.train.lanes = 7;
            s.mesh_max = 2;
            run_scene(&s, (v + order) % 2 == 0 ? &apart : &mixed);
            check_equal(&expected, &s, "six ranks that relay");
            for (int r = 0; r < 6; r++)
                assert_int_equal(s.sent[r], s.told[r]);
            end_scene(&s);
        }
        end_scene(&expected);
    }
}

/* Lanes of one slot, which lane sums add as they come, and waves sum when they are whole. */
static void lanes_of_one_slot(void **state)
{
    (void)state;
    static const int alone[] = {1};
    static const struct variant waves = {"zero2", DPT_SHARDING_NULL, 2, true, DPT_REDUNDANCY_NONE};
    static const struct variant by_lanes[] = {
        {"ddp", DPT_SHARDING_NULL, 2, true, DPT_REDUNDANCY_NONE},
        {"zero1", DPT_SHARDING_NULL, 2, true, DPT_REDUNDANCY_NONE}};
    struct scene expected, s;
    begin_scene(&expected, &waves, DPT_ACCUMULATE_LOCAL, DPT_PRECISION_FP32, alone, 1);
    expected.config.train.lanes = SLOTS;
    run_scene(&expected, &one_node);
    for (size_t v = 0; v < sizeof by_lanes / sizeof by_lanes[0]; v++)
        for (int size = 1; size <= 4; size++) {
            begin_scene(&s, &by_lanes[v], DPT_ACCUMULATE_LOCAL, DPT_PRECISION_FP32, &size, 1);
            s.config.train.lanes = SLOTS;
            run_scene(&s, &layouts[size % LAYOUTS]);
            check_equal(&expected, &s, "a lane a slot");
            end_scene(&s);
        }
    end_scene(&expected);
}

/* Where each unit has a place, sharded weights are gathered once a step, as zero2 does it. */
static void a_place_for_each_unit(void **state)
{
    (void)state;
    static const int size = 3;
    static const struct variant once = {"zero2", DPT_SHARDING_NULL, 2, true, DPT_REDUNDANCY_NONE};
    static const struct variant places[] = {
        {"fsdp", DPT_SHARDING_FULL_SHARD, 256, true, DPT_REDUNDANCY_NONE},
        {"fsdp", DPT_SHARDING_FULL_SHARD, 256, false, DPT_REDUNDANCY_NONE},
        {"fsdp", DPT_SHARDING_FULL_SHARD, 2, true, DPT_REDUNDANCY_NONE}};
    struct scene expected, s;
    begin_scene(&expected, &once, DPT_ACCUMULATE_REDUCE, DPT_PRECISION_FP32, &size, 1);
    run_scene(&expected, &one_node);
    for (int v = 0; v < 3; v++) {
        begin_scene(&s, &places[v], DPT_ACCUMULATE_REDUCE, DPT_PRECISION_FP32, &size, 1);
        run_scene(&s, &one_node);
        check_equal(&expected, &s, "a place for each unit");
        for (int r = 0; r < size; r++) {
            assert_int_equal(s.sent[r], s.told[r]);
            if (places[v].gathered_max == 2)
                assert_true(s.sent[r] > expected.sent[r]);
            else
                assert_int_equal(s.sent[r], expected.sent[r]);
        }
        end_scene(&s);
    }
    end_scene(&expected);
}

/* A lane for each slot, since some strategies send slots. Returns the bytes that rank 1 sends. */
static uint64_t run_compressed(struct scene *s, const struct variant *v,
                               enum dpt_accumulate accumulate, enum dpt_compression compression,
                               int size, const struct layout *layout)
{
    begin_scene(s, v, accumulate, DPT_PRECISION_FP32, &size, 1);
    s->config.train.lanes = SLOTS;
    s->config.strategy.compression = compression;
    run_scene(s, layout);
    for (int r = 0; size > 1 && r < size; r++)
        assert_int_equal(s->sent[r], s->told[r]);
    return s->sent[1];
}

/* Gradients in 16 bits: all strategies that support them have one trajectory, which differs from
 * the trajectory of fp32 gradients, and ddp sends half the bytes between hosts. */
static void test_compressed_gradients(void **state)
{
    (void)state;
    for (int order = DPT_ACCUMULATE_LOCAL; order <= DPT_ACCUMULATE_REDUCE; order++)
        for (int c = DPT_COMPRESSION_BF16; c <= DPT_COMPRESSION_FP16; c++) {
            const enum dpt_accumulate accumulate = (enum dpt_accumulate)order;
            const enum dpt_compression how = (enum dpt_compression)c;
            struct scene expected, whole, s;
            (void)run_compressed(&expected, &ddp, accumulate, how, 1, &one_node);
            for (int v = 0; v < VARIANTS; v++) {
                const bool hybrid = variants[v].sharding == DPT_SHARDING_HYBRID_SHARD;
                if (!takes_16_bits(&variants[v]) || (hybrid && accumulate == DPT_ACCUMULATE_LOCAL))
                    continue; /* refused */
                for (int size = 1 + (v + c) % 2; size <= 4; size += 2) {
                    (void)run_compressed(&s, &variants[v], accumulate, how, size,
                                         &layouts[(size + v) % LAYOUTS]);
                    check_equal(&expected, &s, "in 16 bits");
                    end_scene(&s);
                }
            }
            const uint64_t narrow = run_compressed(&s, &ddp, accumulate, how, 3, &layouts[2]);
            assert_int_equal(
                run_compressed(&whole, &ddp, accumulate, DPT_COMPRESSION_NONE, 3, &layouts[2]),
                2 * narrow);
            assert_memory_not_equal(s.vector[0], whole.vector[0], (size_t)s.numel * sizeof(float));
            end_scene(&s);
            end_scene(&whole);
            end_scene(&expected);
        }
}

static void run_with_statistics(struct scene *s, const struct variant *v,
                                enum dpt_accumulate accumulate, enum dpt_compression compression,
                                int size, const struct layout *layout)
{
    begin_scene(s, v, accumulate, DPT_PRECISION_BF16, &size, 1);
    s->averages = true;
    s->config.train.lanes = compression == DPT_COMPRESSION_NONE ? 5 : SLOTS;
    s->config.strategy.compression = compression;
    run_scene(s, layout);
}

/* Running statistics are reduced, sharded, gathered and shadowed as all parameters are, and come to
 * one trajectory. */
static void running_statistics(void **state)
{
    (void)state;
    static const struct {
        enum dpt_accumulate accumulate;
        enum dpt_compression compression;
    } cases[] = {{DPT_ACCUMULATE_LOCAL, DPT_COMPRESSION_NONE},
                 {DPT_ACCUMULATE_REDUCE, DPT_COMPRESSION_NONE},
                 {DPT_ACCUMULATE_REDUCE, DPT_COMPRESSION_BF16}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const enum dpt_accumulate accumulate = cases[i].accumulate;
        const enum dpt_compression how = cases[i].compression;
        struct scene expected, s;
        run_with_statistics(&expected, &ddp, accumulate, how, 1, &one_node);
        begin_scene(&s, &ddp, accumulate, DPT_PRECISION_BF16, (int[]){1}, 1);
        s.config.strategy.compression = how;
        run_scene(&s, &one_node);
        assert_memory_not_equal(s.vector[0], expected.vector[0], (size_t)s.numel * sizeof(float));
        end_scene(&s);
        for (int v = 0; v < VARIANTS; v++)
            for (int size = 1 + (v + (int)i) % 2; size <= 4; size += 2) {
                if (how != DPT_COMPRESSION_NONE && !takes_16_bits(&variants[v]))
                    continue; /* refused */
                run_with_statistics(&s, &variants[v], accumulate, how, size,
                                    &layouts[(size + v) % LAYOUTS]);
                check_equal(&expected, &s, "with running statistics");
                end_scene(&s);
            }
        end_scene(&expected);
    }
}

/* Two narrow matrices for each: the bytes sent are the plan's, and few. */
static void test_powersgd_sends_as_planned(void **state)
{
    (void)state;
    for (int l = 0; l < 3; l++) {
        struct scene s, whole;
        begin_scene(&s, &ddp, DPT_ACCUMULATE_LOCAL, DPT_PRECISION_FP32, (int[]){3}, 1);
        s.config.strategy.compression = DPT_COMPRESSION_POWERSGD;
        s.config.strategy.powersgd_start_step = 0;
        s.config.train.lanes = 3;
        run_scene(&s, &layouts[l]);
        (void)run_compressed(&whole, &ddp, DPT_ACCUMULATE_LOCAL, DPT_COMPRESSION_NONE, 3,
                             &layouts[2]);
        for (int r = 0; r < 3; r++) {
            assert_int_equal(s.sent[r], s.told[r]);
            assert_in_range(s.sent[r], 1, whole.sent[r] / 6);
        }
        end_scene(&s);
        end_scene(&whole);
    }
}

/* The two orders are two trajectories, or the comparison above would show nothing. */
static void orders_differ(void **state)
{
    (void)state;
    static const int alone[] = {1};
    struct scene a, b;
    begin_scene(&a, &ddp, DPT_ACCUMULATE_LOCAL, DPT_PRECISION_FP32, alone, 1);
    begin_scene(&b, &ddp, DPT_ACCUMULATE_REDUCE, DPT_PRECISION_FP32, alone, 1);
    run_scene(&a, &one_node);
    run_scene(&b, &one_node);
    assert_memory_not_equal(a.vector[0], b.vector[0], (size_t)a.numel * sizeof(float));
    end_scene(&a);
    end_scene(&b);
}

/* In three parts, so that they run side by side. */
int main(int argc, char **argv)
{
    const struct CMUnitTest reduce[] = {cmocka_unit_test(reduce_fp32),
                                        cmocka_unit_test(reduce_bf16)};
    const struct CMUnitTest local[] = {cmocka_unit_test(local_fp32), cmocka_unit_test(local_bf16)};
    const struct CMUnitTest worlds[] = {cmocka_unit_test(nodes_and_hosts),
                                        cmocka_unit_test(lanes_of_one_slot),
                                        cmocka_unit_test(orders_differ),
                                        cmocka_unit_test(test_compressed_gradients),
                                        cmocka_unit_test(test_powersgd_sends_as_planned),
                                        cmocka_unit_test(running_statistics),
                                        cmocka_unit_test(a_place_for_each_unit)};
    const struct CMUnitTest relays[] = {cmocka_unit_test(ranks_that_relay)};
    const char *part = argc == 2 ? argv[1] : "";
    dpt_cores_set_demand(1);
    if (strcmp(part, "reduce") == 0)
        return cmocka_run_group_tests_name("sharded, reduce", reduce, NULL, NULL);
    if (strcmp(part, "local") == 0)
        return cmocka_run_group_tests_name("sharded, local", local, NULL, NULL);
    if (strcmp(part, "relays") == 0)
        return cmocka_run_group_tests(relays, NULL, NULL);
    if (strcmp(part, "worlds") == 0)
        return cmocka_run_group_tests_name("sharded, worlds", worlds, NULL, NULL);
    (void)fprintf(stderr, "usage: %s reduce | local | worlds | relays\n", argv[0]);
    return 2;
}
