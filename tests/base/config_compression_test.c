/* strategy.compression: the strategies and orders that support it, and the nearest setting that
 * works. */
#include "base/config.h"
#include "base/strategy_traits.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* Under `local` a slot is sent there, and a lane is rounded. */
static const char text[] = "train: {global_batch: 32, micro_batch: 4, accumulate: local}\n"
                           "strategy: {name: zero3, compression: bf16}\n";

static void test_compression_combinations(void **state)
{
    (void)state;
    static const struct {
        const char *set, *error; /* NULL: it can be */
    } cases[] = {
        {"train.lanes=8", NULL},
        {"train.lanes=auto", NULL},
        {"train={accumulate: reduce, lanes: 4}", NULL},
        {"strategy={name: zero1, compression: fp16}", NULL},
        {"strategy={name: fsdp, sharding: no_shard, compression: bf16}", NULL},
        {"strategy={name: fsdp, compression: fp16}", NULL},
        {"strategy.name=ddp", NULL},
        {"strategy.compression=none", NULL},
        {"strategy={name: simple_ga, compression: bf16}",
         "strategy.compression is for ddp, zero1 to zero3 and fsdp, not for simple_ga; write ddp "
         "there, or none here"},
        {"strategy={name: fsdp, sharding: hybrid_shard, compression: bf16}",
         "strategy.compression is not of hybrid_shard under train.accumulate local, whose nodes "
         "send fp32 sums once a step; write accumulate: reduce, or compression: none"},
        {"train.lanes=4",
         "strategy.compression rounds whole lanes under train.accumulate local, but this strategy "
         "sends slots, 8 of them for 4 lanes; write train.lanes: 8, accumulate: reduce, or "
         "compression: none"},
        {"strategy={name: ddp, compression: powersgd}", NULL},
        {"strategy.compression=powersgd",
         "strategy.compression powersgd needs the whole gradient on every rank, which zero3 does "
         "not give; write strategy.name ddp, or compression none, bf16 or fp16"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct dpt_config c;
        struct dpt_err err;
        const enum dpt_status status =
            dpt_config_load(&(struct dpt_config_input){.text = text,
                                                       .bytes = sizeof text - 1,
                                                       .name = "c.yaml",
                                                       .overrides = &cases[i].set,
                                                       .n_overrides = 1},
                            &c, &err);
        assert_int_equal(status, cases[i].error ? DPT_ECONFIG : DPT_OK);
        if (cases[i].error)
            assert_non_null(strstr(err.text, cases[i].error));
    }
}

/* Four lanes of two slots each can be where a rank adds up its own. */
static void lanes_are_sent_whole(void **state)
{
    (void)state;
    static const struct {
        const char *strategy;
        bool can;
    } cases[] = {{"strategy.name=ddp", true},
                 {"strategy.name=zero1", true},
                 {"strategy={name: fsdp, sharding: no_shard, compression: bf16}", true},
                 {"strategy.name=zero2", false},
                 {"strategy={name: fsdp, sharding: shard_grad_op, compression: bf16}", false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct dpt_config c;
        struct dpt_err err;
        const char *sets[] = {"train.lanes=4", cases[i].strategy};
        const enum dpt_status status =
            dpt_config_load(&(struct dpt_config_input){.text = text,
                                                       .bytes = sizeof text - 1,
                                                       .name = "c.yaml",
                                                       .overrides = sets,
                                                       .n_overrides = 2},
                            &c, &err);
        assert_int_equal(status, cases[i].can ? DPT_OK : DPT_ECONFIG);
        assert_true(!cases[i].can || dpt_strategy_traits(&c).route == DPT_GRADIENT_LANES);
    }
}

static void powersgd_has_its_terms(void **state)
{
    (void)state;
    static const char own[] = "strategy: {name: ddp, compression: powersgd}\n";
    static const struct {
        const char *set, *error;
    } cases[] = {
        {"train.precision=bf16", NULL},
        {"strategy.powersgd_rank=4", NULL},
        {"train.accumulate=reduce",
         "strategy.compression powersgd compresses the sum of a rank's slots once a step, and "
         "train.accumulate reduce sends each; write local there, or none, bf16 or fp16 here"},
        {"train.precision=fp16",
         "strategy.compression powersgd adds the unsent part of a gradient to the next step, whose "
         "loss may have another scale with train.precision fp16; write bf16 or fp32 there"},
        {"train.reduction=fast", "write canonical there, or none here"},
        {"strategy.powersgd_rank=0", "strategy.powersgd_rank: "},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct dpt_config c;
        struct dpt_err err;
        const enum dpt_status status =
            dpt_config_load(&(struct dpt_config_input){.text = own,
                                                       .bytes = sizeof own - 1,
                                                       .name = "c.yaml",
                                                       .overrides = &cases[i].set,
                                                       .n_overrides = 1},
                            &c, &err);
        assert_int_equal(status, cases[i].error ? DPT_ECONFIG : DPT_OK);
        if (cases[i].error)
            assert_non_null(strstr(err.text, cases[i].error));
    }
}

static enum dpt_status load_sets(const char *const *sets, size_t n_sets, struct dpt_config *config)
{
    static const char two_nodes[] = "cluster: {nnodes: 2}\n"
                                    "train: {global_batch: 32, micro_batch: 4}\n";
    struct dpt_err err;
    return dpt_config_load(&(struct dpt_config_input){.text = two_nodes,
                                                      .bytes = sizeof two_nodes - 1,
                                                      .name = "c.yaml",
                                                      .overrides = sets,
                                                      .n_overrides = n_sets},
                           config, &err);
}

/* dpt_config_may_round says of a config without compression whether it could have it. */
static void rounding_is_foreseen_as_the_config_allows(void **state)
{
    (void)state;
    static const char *const strategies[] = {"{name: ddp}",
                                             "{name: simple}",
                                             "{name: simple_ga}",
                                             "{name: hook}",
                                             "{name: async}",
                                             "{name: bucket_async}",
                                             "{name: zero1}",
                                             "{name: zero1, redundancy: shadow}",
                                             "{name: zero2}",
                                             "{name: zero3}",
                                             "{name: fsdp}",
                                             "{name: fsdp, sharding: shard_grad_op}",
                                             "{name: fsdp, sharding: hybrid_shard}",
                                             "{name: fsdp, sharding: no_shard}"};
    static const char *const trains[] = {
        "{global_batch: 32, micro_batch: 4, accumulate: auto}",
        "{global_batch: 32, micro_batch: 4, accumulate: local}",
        "{global_batch: 32, micro_batch: 4, accumulate: local, lanes: 4}",
        "{global_batch: 32, micro_batch: 4, accumulate: reduce}",
        "{global_batch: 32, micro_batch: 4, reduction: fast}",
        "{global_batch: 32, micro_batch: 4, reduction: ring}"};
    int n_may = 0, n_refused = 0;
    for (size_t s = 0; s < sizeof strategies / sizeof *strategies; s++)
        for (size_t t = 0; t < sizeof trains / sizeof *trains; t++) {
            char strategy[128], train[128];
            struct dpt_config plain, rounded;
            (void)snprintf(strategy, sizeof strategy, "strategy=%s", strategies[s]);
            (void)snprintf(train, sizeof train, "train=%s", trains[t]);
            const char *const sets[] = {strategy, train, "strategy.compression=bf16"};
            if (load_sets(sets, 2, &plain) != DPT_OK)
                continue;
            const bool may = load_sets(sets, 3, &rounded) == DPT_OK;
            if (dpt_config_may_round(&plain) != may)
                fail_msg("%s, %s: compression %s", strategies[s], trains[t],
                         may ? "is allowed" : "is refused");
            n_may += may;
            n_refused += !may;
        }
    assert_true(n_may > 20 && n_refused > 20);
}

static void fp16_scales_the_loss(void **state)
{
    (void)state;
    struct dpt_config c;
    dpt_config_defaults(&c);
    assert_false(dpt_config_scales_loss(&c));
    c.strategy.compression = DPT_COMPRESSION_BF16;
    assert_false(dpt_config_scales_loss(&c));
    c.strategy.compression = DPT_COMPRESSION_FP16;
    assert_true(dpt_config_scales_loss(&c));
    c.strategy.compression = DPT_COMPRESSION_NONE;
    c.train.precision = DPT_PRECISION_FP16;
    assert_true(dpt_config_scales_loss(&c));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_compression_combinations),
        cmocka_unit_test(lanes_are_sent_whole),
        cmocka_unit_test(powersgd_has_its_terms),
        cmocka_unit_test(rounding_is_foreseen_as_the_config_allows),
        cmocka_unit_test(fp16_scales_the_loss),
    };
    return cmocka_run_group_tests_name("config_compression", tests, NULL, NULL);
}
