/* Strategies that shard the state, and `accumulate: reduce`, with all of it on a device that the
 * host cannot touch: the hash and losses of the host, by transfers from device to device, through
 * deaths, joins and shadows that are copied anew. */
#include "tests/worker/train/accelerator_rig.h"
#include "tests/worker/train/plain.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

enum { STEPS = 4, WORLDS = 4 };

static double val_loss(const char *dir)
{
    json_t *summary = rig_summary_of(dir);
    const double loss = json_number_value(json_object_get(summary, "val_loss"));
    json_decref(summary);
    return loss;
}

static struct dpt_config make_config(enum dpt_accumulate accumulate, enum dpt_precision precision)
{
    struct dpt_config config = accelerator_config(accumulate, precision, STEPS);
    keep_on_device(&config);
    return config;
}

struct outcome {
    char hash[DPT_HASH_HEX_BYTES];
    double loss;
};

static struct outcome of_the_host(const struct dpt_config *config)
{
    struct outcome ret;
    plain_train_and_validate(config, ACCELERATOR_SEQUENCES, ret.hash, &ret.loss);
    return ret;
}

/* In each world from `first` ranks on. */
static void as_on_the_host(struct dpt_config *config, const char *strategy, const char *story,
                           int first, const struct outcome *expected)
{
    char hash[64], name[96];
    rig_choose(config, strategy);
    for (int world = first; world <= WORLDS; world += RIG_EVERY) {
        (void)snprintf(name, sizeof name, "%s-%s-%d", strategy, story, world);
        rig_undisturbed(config, name, world, world % 2 == 0 || first > 1, hash);
        if (strcmp(hash, expected->hash) != 0)
            fail_msg("%s: %s instead of %s", name, hash, expected->hash);
        assert_true(val_loss(rig_dir(name)) == expected->loss);
    }
}

static void in_every_order(enum dpt_accumulate accumulate, enum dpt_precision precision,
                           const char *story)
{
    struct dpt_config config = make_config(accumulate, precision);
    const struct outcome expected = of_the_host(&config); /* whatever the strategy */
    for (int s = 0; s < RIG_STRATEGIES; s++)
        as_on_the_host(&config, rig_strategies[s], story, 1, &expected);
    for (int s = 0; s < RIG_COVERED; s++)
        as_on_the_host(&config, rig_covered[s], story, 2, &expected);
}

static void slots_in_waves(void **state)
{
    (void)state;
    in_every_order(DPT_ACCUMULATE_REDUCE, DPT_PRECISION_FP32, "reduce");
}

static void slots_in_waves_bf16(void **state)
{
    (void)state;
    in_every_order(DPT_ACCUMULATE_REDUCE, DPT_PRECISION_BF16, "reduce-bf16");
}

static void lanes(void **state)
{
    (void)state;
    in_every_order(DPT_ACCUMULATE_LOCAL, DPT_PRECISION_FP32, "local");
}

static void lanes_bf16(void **state)
{
    (void)state;
    in_every_order(DPT_ACCUMULATE_LOCAL, DPT_PRECISION_BF16, "local-bf16");
}

/* Of a model whose embedding is not borrowed, too. */
static void a_llama(void **state)
{
    (void)state;
    static const char *const strategies[] = {"ddp", "zero1", "zero2", "full_shard"};
    for (int tied = 0; tied < 2; tied++) {
        struct dpt_config config = make_config(DPT_ACCUMULATE_LOCAL, DPT_PRECISION_FP32);
        rig_choose_llama(&config, tied != 0);
        const struct outcome expected = of_the_host(&config);
        for (size_t i = 0; i < sizeof strategies / sizeof *strategies; i += RIG_EVERY)
            as_on_the_host(&config, strategies[i], tied ? "tied" : "untied", 1, &expected);
    }
}

/* The device has the running statistics, and the sums of squares that leave them out. */
static void a_resnet(void **state)
{
    (void)state;
    static const char *const strategies[] = {"ddp", "zero1", "full_shard", "full_shard+shadow"};
    struct dpt_config config = make_config(DPT_ACCUMULATE_LOCAL, DPT_PRECISION_FP32);
    char expected[DPT_HASH_HEX_BYTES], hash[64], name[64];
    rig_choose_resnet(&config);
    rig_evaluate(&config, 2, ACCELERATOR_SEQUENCES);
    plain_train(&config, expected);
    for (size_t i = 0; i < sizeof strategies / sizeof *strategies; i += RIG_EVERY) {
        rig_choose(&config, strategies[i]);
        (void)snprintf(name, sizeof name, "resnet-%s", strategies[i]);
        rig_undisturbed(&config, name, 3, true, hash);
        if (strcmp(hash, expected) != 0)
            fail_msg("%s: %s instead of %s", name, hash, expected);
    }
}

/* Adapters of a base on the device; their state is there or on the host. */
static void adapters(void **state)
{
    (void)state;
    static const char *const strategies[] = {"ddp", "zero1", "zero2", "full_shard"};
    for (int i = 0; i < 4; i++) {
        const bool bf16 = i % 2 != 0, offloaded = i > 1;
        struct dpt_config config =
            make_config(DPT_ACCUMULATE_LOCAL, bf16 ? DPT_PRECISION_BF16 : DPT_PRECISION_FP32);
        char story[32];
        if (bf16)
            rig_choose_llama(&config, false);
        (void)snprintf(story, sizeof story, "lora-base-%d", i);
        rig_choose_lora(&config, story);
        if (offloaded)
            offload(&config);
        const struct outcome expected = of_the_host(&config);
        (void)snprintf(story, sizeof story, "lora-%d", i);
        for (size_t s = 0; s < sizeof strategies / sizeof *strategies; s += RIG_EVERY)
            as_on_the_host(&config, strategies[s], story, 1, &expected);
    }
}

/* Between hosts in 16 bits; fewer places for weights than units; SGD; weights compared each step.
 */
static void with_everything(void **state)
{
    (void)state;
    static const char *const strategies[] = {"full_shard+shadow", "zero2", "zero1+shadow", "ddp",
                                             "hybrid_shard"};
    for (size_t i = 0; i < sizeof strategies / sizeof *strategies; i += RIG_EVERY) {
        struct dpt_config config = make_config(DPT_ACCUMULATE_REDUCE, DPT_PRECISION_BF16);
        config.strategy.compression = i % 2 == 0 ? DPT_COMPRESSION_BF16 : DPT_COMPRESSION_FP16;
        config.strategy.gathered_units_max = 1;
        config.strategy.prefetch = false;
        config.train.verify_every = 1;
        config.train.activation_checkpointing = DPT_ACTIVATION_CHECKPOINTING_FULL;
        (void)snprintf(config.optimizer.name, sizeof config.optimizer.name, "sgd");
        const struct outcome expected = of_the_host(&config);
        as_on_the_host(&config, strategies[i], "everything", 2, &expected);
    }
}

/* Two nodes of two ranks that fold their own lanes: one of a replica dies, another comes in its
 * place, and its node's group of NCCL's with it; then all of the other node. */
static void replicas_that_break(void **state)
{
    (void)state;
    char expected[DPT_HASH_HEX_BYTES], dir[128];
    struct dpt_config config = rig_make_config(2 * 11, 24, "");
    config.train.accumulate = DPT_ACCUMULATE_LOCAL;
    plain_train(&config, expected);
    keep_on_device(&config);
    rig_choose(&config, "hybrid_shard");
    struct director *d = rig_begin(&config, "replicas", dir);
    for (int i = 0; i < 4; i++)
        (void)director_start(d, i % 2);
    director_bench(d, director_start(d, 1), true);
    assert_true(director_form(d, false));
    director_await_step(d, 4);
    director_kill(d, 1);
    assert_true(director_form(d, false));
    director_await_step(d, 8);
    director_bench(d, 4, false);
    assert_true(director_form(d, true));
    director_await_step(d, 12);
    director_kill(d, 0);
    director_kill(d, 2);
    assert_true(director_form(d, false));
    assert_string_equal(director_finish(d), expected);
    assert_int_equal(director_steps_lost(d), 0);
    assert_true(nccl_views[3].shrinks > 0);
    assert_true(nccl_fabric.split_bytes > 0 && nccl_fabric.split_bytes < nccl_fabric.bytes);
    director_destroy(&d);
}

/* The host has a copy of the state and nothing else; the device less with every rank. */
static void memory_is_where_it_should_be(void **state)
{
    (void)state;
    static const char *const sharded[] = {"zero1", "zero2", "zero3", "full_shard+shadow",
                                          "hybrid_shard"};
    for (int precision = 0; precision < 2; precision++)
        for (size_t i = 0; i < sizeof sharded / sizeof *sharded; i += RIG_EVERY) {
            struct dpt_config config =
                make_config(i % 2 == 0 ? DPT_ACCUMULATE_REDUCE : DPT_ACCUMULATE_LOCAL,
                            precision == 0 ? DPT_PRECISION_FP32 : DPT_PRECISION_BF16);
            char name[64];
            json_int_t elements, bytes[2];
            rig_choose(&config, sharded[i]);
            for (int w = 0; w < 2; w++) {
                (void)snprintf(name, sizeof name, "memory-%s-%d-%d", sharded[i], precision, w);
                bytes[w] = accelerator_bytes(&config, name, 2 + 2 * w, &elements);
            }
            if (bytes[1] >= bytes[0])
                fail_msg("%s: %lld bytes with four ranks, %lld with two", sharded[i],
                         (long long)bytes[1], (long long)bytes[0]);
        }
}

/* A world after another, of ranks that come and go: the device has what it had. */
static void devices_fill_no_further(void **state)
{
    (void)state;
    enum { ROUNDS = 6 };
    char dir[128];
    struct dpt_config config = rig_make_config(14, 400, "");
    keep_on_device(&config);
    rig_choose(&config, "full_shard+shadow");
    struct director *d = rig_begin(&config, "rounds", dir);
    for (int i = 0; i < 4; i++)
        (void)director_start(d, i);
    director_bench(d, 3, true);
    assert_true(director_form(d, false));
    size_t before[2] = {0, 0};
    for (int round = 0; round < ROUNDS; round++)
        for (int with = 0; with < 2; with++) {
            director_bench(d, 3, with == 0);
            assert_true(director_form(d, true));
            director_await_step(d, director_best_step(d) + 2);
            const size_t now = accelerator_in_use(0);
            if (round > 0)
                assert_int_equal(now, before[with]);
            before[with] = now;
        }
    director_destroy(&d);
}

int main(void)
{
#define T(test) cmocka_unit_test_setup_teardown(test, accelerator_setup, accelerator_teardown)
    const struct CMUnitTest tests[] = {
        T(slots_in_waves),
        T(slots_in_waves_bf16),
        T(lanes),
        T(lanes_bf16),
        T(a_llama),
        T(a_resnet),
        T(adapters),
        T(with_everything),
        T(replicas_that_break),
        T(memory_is_where_it_should_be),
        T(devices_fill_no_further),
    };
    return cmocka_run_group_tests_name("sharded state on a device", tests, rig_setup, rig_teardown);
}
