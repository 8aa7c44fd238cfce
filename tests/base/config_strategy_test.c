/* Configs: strategies and orders of addition, the refusals of each, the meaning of auto. */
#include "base/config.h"

#include "base/strategy_traits.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static struct dpt_err err;

/* The defaults with one thing changed. */
static enum dpt_status load_strategy(const char *set, struct dpt_config *ret)
{
    return dpt_config_load_text("", "c.yaml", &set, 1, ret, &err);
}

/* One node by default. */
static void copies_need_other_nodes(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"strategy: {name: zero2, redundancy: shadow}\n",
         "strategy.redundancy shadow keeps each shard on another node too, but cluster.nnodes is "
         "1; "
         "write none, or nnodes 2"},
        {"strategy: {name: fsdp, sharding: hybrid_shard}\n",
         "strategy.sharding hybrid_shard replicates across nodes, but cluster.nnodes is 1; write "
         "full_shard, or nnodes 2"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct dpt_config c;
        const char *nodes = "cluster.nnodes=2";
        assert_int_equal(dpt_config_load_text(cases[i][0], "c.yaml", NULL, 0, &c, &err),
                         DPT_ECONFIG);
        assert_non_null(strstr(err.text, cases[i][1]));
        assert_int_equal(dpt_config_load_text(cases[i][0], "c.yaml", &nodes, 1, &c, &err), DPT_OK);
    }
}

/* dp is of one machine, as DataParallel is of one process. */
static void dp_has_one_node(void **state)
{
    (void)state;
    struct dpt_config c;
    const char *const one[] = {"strategy.name=dp", "cluster.gpus_per_node=4"},
                      *const more[] = {"strategy.name=dp", "cluster.nnodes=1:3"};
    assert_int_equal(dpt_config_load_text("", "c.yaml", one, 2, &c, &err), DPT_OK);
    assert_int_equal(dpt_config_load_text("", "c.yaml", more, 2, &c, &err), DPT_ECONFIG);
    assert_non_null(strstr(err.text,
                           "strategy.name dp is data parallelism within one machine, as "
                           "torch.nn.DataParallel, but cluster.nnodes is up to 3; write nnodes 1 "
                           "with gpus_per_node, or strategy.name ddp"));
}

static void refused_combinations(void **state)
{
    (void)state;
    static const struct {
        const char *set, *error;
    } cases[] = {
        {"strategy={name: hook, overlap: false}",
         "strategy.overlap false reduces after the backward pass, but hook is the strategy that "
         "reduces in it; write true, or strategy.name simple_ga"},
        {"strategy={name: bucket_async, overlap: false}",
         "strategy.overlap false reduces after the backward pass, but bucket_async is the strategy "
         "that reduces in it; write true, or strategy.name ddp or simple_ga"},
        {"strategy={name: simple_ga, overlap: false}", NULL},    /* it does anyway */
        {"strategy={name: zero3, gathered_units_max: 1}", NULL}, /* no prefetch then */
        {"strategy={name: zero2, gathered_units_max: 1, prefetch: true}", NULL},
        {"strategy={name: fsdp, gathered_units_max: 1, prefetch: true}",
         "strategy.prefetch gathers a unit while the one before it is computed, but "
         "strategy.gathered_units_max is 1, room for one unit; set it to 2, or prefetch to "
         "false"},
        {"strategy={name: ddp, overlap: false, prefetch: true}", NULL},
        {"strategy={name: zero2, overlap: false, prefetch: true}",
         "strategy.prefetch gathers weights while others are computed, but strategy.overlap false "
         "waits for all that is sent; write true there, or prefetch: false"},
        {"strategy={offload: optimizer}",
         "strategy.offload optimizer keeps on the host what a GPU need not hold, and without "
         "cluster.device cuda all is on the host; write none"},
        {"train={precision: tf32}", "train.precision tf32 needs a GPU, and cluster.device is not "
                                    "cuda; write cuda there, or fp32 here"},
        {"strategy={name: async, redundancy: shadow}",
         "strategy.redundancy shadow keeps a second copy of shards, but with async every rank "
         "holds the whole state already; write none"},
        {"strategy={name: dp, redundancy: shadow}",
         "strategy.redundancy shadow keeps a second copy of shards, but with dp one rank holds the "
         "whole state; write none, or strategy.name ddp"},
        {"strategy={name: async, sharding: full_shard}",
         "strategy.sharding says what fsdp shards, but strategy.name is async; write fsdp there, "
         "or null here"},
        {"train={reduction: fast}", NULL},
        {"train={reduction: fast, accumulate: local}", NULL},
        {"train={reduction: fast, accumulate: reduce}",
         "train.accumulate reduce is an order of addition, and train.reduction fast leaves it "
         "open; write auto, or reduction canonical"},
        {"train={reduction: fast, lanes: 4}",
         "train.lanes (4) are sums of the canonical order, and train.reduction fast has one a "
         "rank; write auto, or reduction canonical"},
        {"train={reduction: ring}", NULL},
        {"train={reduction: ring, accumulate: reduce}",
         "train.accumulate reduce is an order of addition, and train.reduction ring leaves it "
         "open; write auto, or reduction canonical"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct dpt_config c;
        char line[DPT_ERR_TEXT_BYTES];
        const enum dpt_status status = load_strategy(cases[i].set, &c);
        if (!cases[i].error && status != DPT_OK)
            fail_msg("%s", err.text);
        if (!cases[i].error)
            continue;
        (void)snprintf(line, sizeof line, "--set %s: %s", cases[i].set, cases[i].error);
        assert_int_equal(status, DPT_ECONFIG);
        assert_string_equal(err.text, line);
    }
}

/* A ring reduces the whole gradient in the hosts' memory. */
static void rings_of_replicated_states(void **state)
{
    (void)state;
    static const struct {
        const char *yaml, *error;
    } cases[] = {
        {"strategy: {name: ddp}", NULL},
        {"strategy: {name: bucket_async}", NULL},
        {"strategy: {name: fsdp, sharding: no_shard}", NULL},
        {"strategy: {name: zero1}",
         "train.reduction ring gives the whole gradient to every rank, and strategy.name zero1 "
         "keeps shards of it; write ddp there, or fast here"},
        {"strategy: {name: zero2}",
         "train.reduction ring is not supported with strategy.name zero2: every slot's gradient is "
         "sent to its owners at once; write canonical"},
        {"strategy: {compression: bf16}",
         "strategy.compression rounds in a fixed order, which train.reduction ring gives up; write "
         "canonical there, or none here"},
        {"cluster: {device: cuda}",
         "train.reduction ring goes through the hosts' memory, and with cluster.device cuda NCCL "
         "chooses rings or trees itself; write fast here, or cpu there"}};
    static const char *const set[] = {"train.reduction=ring"};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct dpt_config c;
        const enum dpt_status status =
            dpt_config_load_text(cases[i].yaml, "c.yaml", set, 1, &c, &err);
        assert_int_equal(status, cases[i].error ? DPT_ECONFIG : DPT_OK);
        if (cases[i].error && !strstr(err.text, cases[i].error))
            fail_msg("%s: %s", cases[i].yaml, err.text);
    }
}

static void tf32_where_there_is_a_gpu(void **state)
{
    (void)state;
    static const char *const set[] = {"cluster.device=cuda", "train.precision=tf32"};
    struct dpt_config c;
    assert_int_equal(dpt_config_load_text("", "c.yaml", set, 2, &c, &err), DPT_OK);
    assert_int_equal(c.train.precision, DPT_PRECISION_TF32);
    assert_int_equal(dpt_config_load_text("", "c.yaml", set + 1, 1, &c, &err), DPT_ECONFIG);
}

/* Strategies whose state a GPU can keep, and strategies that need the host. */
static void state_on_a_gpu(void **state)
{
    (void)state;
    static const struct {
        const char *yaml;
        bool refused, by_host;
    } cases[] = {
        {"strategy: {name: ddp}", false, true},
        {"strategy: {name: bucket_async}", false, true},
        {"strategy: {name: ddp, compression: bf16}", false, true},
        {"strategy: {name: fsdp, sharding: no_shard}\ntrain: {accumulate: local}", false, true},
        {"strategy: {name: fsdp, sharding: full_shard, offload: optimizer}", false, true},
        {"strategy: {name: fsdp, sharding: no_shard}", false, false},
        {"strategy: {name: ddp}\ntrain: {accumulate: reduce}", false, false},
        {"strategy: {name: zero1}", false, false},
        {"strategy: {name: zero3}", false, false},
        {"strategy: {name: fsdp}", false, false},
        {"strategy: {name: fsdp, sharding: hybrid_shard}", false, false},
        {"strategy: {name: simple}", true, false},
        {"strategy: {name: simple}\ntrain: {accumulate: local}", true, false},
        {"strategy: {name: hook}\ntrain: {accumulate: reduce}", true, false},
        {"strategy: {name: ddp, compression: powersgd}", true, false}};
    static const char *const by_host[] = {"cluster={backend: host}"};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char yaml[256];
        struct dpt_config c;
        (void)snprintf(yaml, sizeof yaml, "cluster: {device: cuda, nnodes: 2}\n%s\n",
                       cases[i].yaml);
        const enum dpt_status status = dpt_config_load_text(yaml, "c.yaml", NULL, 0, &c, &err);
        if ((status != DPT_OK) != cases[i].refused)
            fail_msg("%s: %s", cases[i].yaml, status == DPT_OK ? "taken" : err.text);
        if (cases[i].refused) {
            assert_non_null(strstr(err.text, "write optimizer there, or cluster.device cpu"));
            continue;
        }
        assert_int_equal(dpt_strategy_traits(&c).on_device, c.strategy.offload == DPT_OFFLOAD_NONE);
        assert_int_equal(dpt_strategy_traits(&c).by_nccl, dpt_strategy_traits(&c).on_device);
        const enum dpt_status hosted = dpt_config_load_text(yaml, "c.yaml", by_host, 1, &c, &err);
        if ((hosted == DPT_OK) != cases[i].by_host)
            fail_msg("%s by the host: %s", cases[i].yaml, hosted == DPT_OK ? "taken" : err.text);
        if (cases[i].by_host)
            assert_false(dpt_strategy_traits(&c).by_nccl);
        else
            assert_non_null(strstr(err.text, "write nccl, or strategy.offload: optimizer"));
    }
}

static void gpus_that_ranks_share(void **state)
{
    (void)state;
    struct dpt_config c;
    dpt_config_defaults(&c);
    assert_int_equal(dpt_config_check_gpus(&c, 4, 0, &err), DPT_OK);
    c.cluster.device = DPT_DEVICE_CUDA;
    assert_int_equal(dpt_config_check_gpus(&c, 2, 2, &err), DPT_OK);
    assert_int_equal(dpt_config_check_gpus(&c, 2, 1, &err), DPT_ECONFIG);
    assert_non_null(strstr(err.text, "there is 1, and NCCL takes one rank a GPU: set "
                                     "cluster.gpus_per_node to 1, or cluster.backend to host"));
    (void)snprintf(c.strategy.name, sizeof c.strategy.name, "zero3");
    assert_int_equal(dpt_config_check_gpus(&c, 2, 1, &err), DPT_ECONFIG);
    assert_non_null(strstr(err.text, "to 1, or strategy.offload to optimizer on all nodes"));
    (void)snprintf(c.strategy.name, sizeof c.strategy.name, "ddp");
    c.cluster.backend = DPT_BACKEND_HOST;
    assert_int_equal(dpt_config_check_gpus(&c, 2, 1, &err), DPT_OK);
    c.cluster.backend = DPT_BACKEND_NCCL;
    c.strategy.offload = DPT_OFFLOAD_OPTIMIZER;
    assert_int_equal(dpt_config_check_gpus(&c, 2, 1, &err), DPT_OK);
}

static void prefetch_where_it_can_be(void **state)
{
    (void)state;
    static const struct {
        const char *set;
        bool prefetch;
    } cases[] = {{"strategy={name: zero3}", true},
                 {"strategy={name: zero3, gathered_units_max: 1}", false},
                 {"strategy={name: fsdp, gathered_units_max: 1}", false},
                 {"strategy={name: zero2, gathered_units_max: 1}", true},
                 {"strategy={name: zero2, overlap: false}", false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct dpt_config c;
        assert_int_equal(load_strategy(cases[i].set, &c), DPT_OK);
        assert_int_equal(c.strategy.prefetch, cases[i].prefetch);
    }
}

static void accumulation_by_strategy(void **state)
{
    (void)state;
    struct dpt_config c;
    dpt_config_defaults(&c);
    static const struct {
        const char *strategy;
        enum dpt_accumulate accumulate;
    } cases[] = {{"ddp", DPT_ACCUMULATE_LOCAL},       {"simple", DPT_ACCUMULATE_REDUCE},
                 {"simple_ga", DPT_ACCUMULATE_LOCAL}, {"bucket_async", DPT_ACCUMULATE_LOCAL},
                 {"dp", DPT_ACCUMULATE_LOCAL},        {"zero1", DPT_ACCUMULATE_LOCAL},
                 {"zero2", DPT_ACCUMULATE_REDUCE},    {"zero3", DPT_ACCUMULATE_REDUCE},
                 {"fsdp", DPT_ACCUMULATE_REDUCE}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        (void)snprintf(c.strategy.name, sizeof c.strategy.name, "%s", cases[i].strategy);
        assert_int_equal(dpt_strategy_traits(&c).order, cases[i].accumulate);
    }
    c.strategy.sharding = DPT_SHARDING_HYBRID_SHARD;
    assert_int_equal(dpt_strategy_traits(&c).order, DPT_ACCUMULATE_LOCAL);
    c.train.accumulate = DPT_ACCUMULATE_REDUCE;
    assert_int_equal(dpt_strategy_traits(&c).order, DPT_ACCUMULATE_REDUCE);
}

static void lanes_by_the_config_alone(void **state)
{
    (void)state;
    struct dpt_config c;
    dpt_config_defaults(&c);
    c.train.global_batch = 64 * c.train.micro_batch; /* 64 slots */
    assert_int_equal(dpt_config_lanes(&c), 16);
    assert_int_equal(dpt_config_lanes_of(&c, 3), 16);
    c.train.lanes = 32;
    assert_int_equal(dpt_config_lanes(&c), 32);
    assert_int_equal(dpt_config_lanes_of(&c, 3), 32);
}

static void worlds_end_with_what_is_added(void **state)
{
    (void)state;
    struct dpt_config c;
    dpt_config_defaults(&c);
    c.train.global_batch = 64 * c.train.micro_batch; /* 64 slots */
    assert_int_equal(dpt_config_world_max(&c), 16);
    c.train.lanes = 32;
    assert_int_equal(dpt_config_world_max(&c), 32);
    c.train.accumulate = DPT_ACCUMULATE_REDUCE; /* train.lanes has no effect */
    assert_int_equal(dpt_config_world_max(&c), 64);
    c.train.lanes = DPT_AUTO;
    assert_int_equal(dpt_config_world_max(&c), 64);

    c.train.accumulate = DPT_ACCUMULATE_AUTO; /* the strategy's */
    (void)snprintf(c.strategy.name, sizeof c.strategy.name, "zero3");
    assert_int_equal(dpt_config_world_max(&c), 64);
    (void)snprintf(c.strategy.name, sizeof c.strategy.name, "zero1");
    assert_int_equal(dpt_config_world_max(&c), 16);
    c.strategy.sharding = DPT_SHARDING_HYBRID_SHARD;
    assert_int_equal(dpt_config_world_max(&c), 16);

    c.train.global_batch = 4096 * c.train.micro_batch;
    c.train.accumulate = DPT_ACCUMULATE_REDUCE;
    assert_int_equal(dpt_config_world_max(&c), DPT_CONFIG_WORLD_MAX);
    c.train.accumulate = DPT_ACCUMULATE_LOCAL;
    c.train.lanes = 4096;
    assert_int_equal(dpt_config_world_max(&c), DPT_CONFIG_WORLD_MAX);
}

static void fast_has_lanes_of_the_world(void **state)
{
    (void)state;
    struct dpt_config c;
    assert_int_equal(load_strategy("train={reduction: fast, global_batch: 256}", &c), DPT_OK);
    assert_int_equal(dpt_config_lanes(&c), 64); /* ranks at most: one a slot */
    assert_int_equal(dpt_config_lanes_of(&c, 3), 3);
    assert_int_equal(dpt_strategy_traits(&c).order, DPT_ACCUMULATE_LOCAL);
    c.strategy.sharding = DPT_SHARDING_NO_SHARD;
    (void)snprintf(c.strategy.name, sizeof c.strategy.name, "fsdp");
    assert_int_equal(dpt_strategy_traits(&c).order, DPT_ACCUMULATE_LOCAL);
    c.train.global_batch = 4 * 4096;
    assert_int_equal(dpt_config_lanes(&c), 1024);
}

static void fast_where_it_gains_nothing(void **state)
{
    (void)state;
    static const char *const strategies[] = {"{name: simple}",
                                             "{name: zero2}",
                                             "{name: zero3}",
                                             "{name: fsdp}",
                                             "{name: fsdp, sharding: shard_grad_op}",
                                             "{name: fsdp, sharding: hybrid_shard}",
                                             "{name: zero1, redundancy: shadow}"};
    for (size_t i = 0; i < sizeof strategies / sizeof *strategies; i++) {
        struct dpt_config c;
        char text[128];
        (void)snprintf(text, sizeof text,
                       "train: {reduction: fast}\nstrategy: %s\ncluster: {nnodes: 2}\n",
                       strategies[i]);
        assert_int_equal(dpt_config_load_text(text, "c.yaml", NULL, 0, &c, &err), DPT_ECONFIG);
        assert_non_null(strstr(err.text, "train.reduction fast is not supported with "));
        assert_non_null(strstr(err.text, "; write canonical"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(copies_need_other_nodes),
                                       cmocka_unit_test(dp_has_one_node),
                                       cmocka_unit_test(refused_combinations),
                                       cmocka_unit_test(rings_of_replicated_states),
                                       cmocka_unit_test(tf32_where_there_is_a_gpu),
                                       cmocka_unit_test(state_on_a_gpu),
                                       cmocka_unit_test(prefetch_where_it_can_be),
                                       cmocka_unit_test(accumulation_by_strategy),
                                       cmocka_unit_test(gpus_that_ranks_share),
                                       cmocka_unit_test(lanes_by_the_config_alone),
                                       cmocka_unit_test(worlds_end_with_what_is_added),
                                       cmocka_unit_test(fast_has_lanes_of_the_world),
                                       cmocka_unit_test(fast_where_it_gains_nothing)};
    return cmocka_run_group_tests_name("config_strategy", tests, NULL, NULL);
}
