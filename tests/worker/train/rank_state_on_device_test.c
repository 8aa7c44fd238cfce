/* State in shards on a device that the host cannot access: NCCL groups that break and are made
 * again, and the memory of host and device. */
#include "tests/worker/train/device_rig.h"
#include "tests/worker/train/plain.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

enum { STEPS = 4 };

static struct dpt_config make_device_config(enum dpt_accumulate accumulate,
                                            enum dpt_precision precision)
{
    struct dpt_config config = device_rig_config(accumulate, precision, STEPS);
    keep_state_on_device(&config);
    return config;
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
    keep_state_on_device(&config);
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
        for (size_t i = 0; i < sizeof sharded / sizeof *sharded; i += dpt_test_every()) {
            struct dpt_config config =
                make_device_config(i % 2 == 0 ? DPT_ACCUMULATE_REDUCE : DPT_ACCUMULATE_LOCAL,
                                   precision == 0 ? DPT_PRECISION_FP32 : DPT_PRECISION_BF16);
            char name[64];
            json_int_t elements, bytes[2];
            rig_choose(&config, sharded[i]);
            for (int w = 0; w < 2; w++) {
                (void)snprintf(name, sizeof name, "memory-%s-%d-%d", sharded[i], precision, w);
                bytes[w] = device_rig_bytes(&config, name, 2 + 2 * w, &elements);
            }
            if (bytes[1] >= bytes[0])
                fail_msg("%s: %lld bytes with four ranks, %lld with two", sharded[i],
                         (long long)bytes[1], (long long)bytes[0]);
        }
}

/* Ranks join and leave: the memory of the device stays the same. */
static void devices_fill_no_further(void **state)
{
    (void)state;
    enum { ROUNDS = 6 };
    char dir[128];
    struct dpt_config config = rig_make_config(14, 400, "");
    keep_state_on_device(&config);
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
            const size_t now = device_rig_in_use(0);
            if (round > 0)
                assert_int_equal(now, before[with]);
            before[with] = now;
        }
    director_destroy(&d);
}

int main(void)
{
#define T(test) cmocka_unit_test_setup_teardown(test, device_rig_setup, device_rig_teardown)
    const struct CMUnitTest tests[] = {
        T(replicas_that_break),
        T(memory_is_where_it_should_be),
        T(devices_fill_no_further),
    };
    return cmocka_run_group_tests_name("sharded state on a device", tests, rig_setup, rig_teardown);
}
