/* The model on a device beside the host (strategy.offload: optimizer): the same hash and losses as
 * on the host for every strategy, order of addition and precision, through deaths, and clear words
 * when the device breaks. The device is a CPU's whose memory the host cannot touch (discrete.h). */
#include "base/account.h"
#include "tests/kernels/discrete.h"
#include "tests/worker/train/plain.h"
#include "tests/worker/train/rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

enum { ROOM = 64 << 20, SEQUENCES = 5, BREAKS_RANK = 1, BREAKS_AT = 700 };

static enum dpt_status open_device(const struct dpt_rank_start *start, struct dpt_device **ret,
                                   struct dpt_err *err)
{
    (void)start;
    return dpt_device_discrete_create(ROOM, ret, err);
}

static enum dpt_status open_small(const struct dpt_rank_start *start, struct dpt_device **ret,
                                  struct dpt_err *err)
{
    (void)start;
    return dpt_device_discrete_create(1 << 16, ret, err);
}

static enum dpt_status open_one_that_breaks(const struct dpt_rank_start *start,
                                            struct dpt_device **ret, struct dpt_err *err)
{
    DPT_TRY(dpt_device_discrete_create(ROOM, ret, err));
    if (start->local_rank == BREAKS_RANK)
        dpt_device_discrete_fail(*ret, BREAKS_AT);
    return DPT_OK;
}

static int setup(void **state)
{
    (void)state;
    director_accelerate(open_device);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    director_accelerate(NULL);
    return 0;
}

static double summary_number(const char *dir, const char *name)
{
    json_t *summary = rig_summary_of(dir);
    const double value = json_number_value(json_object_get(summary, name));
    json_decref(summary);
    return value;
}

/* 11 slots, evaluated after every second step. */
static struct dpt_config make_config(enum dpt_accumulate accumulate, enum dpt_precision precision,
                                     int steps)
{
    struct dpt_config config = rig_make_config(2 * 11, steps, "");
    config.train.accumulate = accumulate;
    config.train.precision = precision;
    config.checkpoint.every_steps = 0;
    rig_evaluate(&config, 2, SEQUENCES);
    return config;
}

static void as_on_the_host(const char *const *strategies, int n, enum dpt_accumulate accumulate,
                           enum dpt_precision precision)
{
    struct dpt_config config = make_config(accumulate, precision, 4);
    char expected[DPT_HASH_HEX_BYTES], hash[64], name[64];
    double loss;
    plain_train_and_validate(&config, SEQUENCES, expected, &loss);
    for (int s = 0; s < n; s += RIG_EVERY) {
        const int world = 2 + s % 2;
        rig_choose(&config, strategies[s]);
        (void)snprintf(name, sizeof name, "%s-%d-%d", strategies[s], (int)accumulate,
                       (int)precision);
        rig_undisturbed(&config, name, world, true, hash);
        assert_string_equal(hash, expected);
        assert_true(summary_number(rig_dir(name), "val_loss") == loss);
    }
}

static void every_strategy(void **state)
{
    (void)state;
    as_on_the_host(rig_strategies, RIG_STRATEGIES, DPT_ACCUMULATE_LOCAL, DPT_PRECISION_FP32);
    as_on_the_host(rig_strategies, RIG_STRATEGIES, DPT_ACCUMULATE_REDUCE, DPT_PRECISION_BF16);
    as_on_the_host(rig_covered, RIG_COVERED, DPT_ACCUMULATE_REDUCE, DPT_PRECISION_FP32);
    as_on_the_host(rig_covered, RIG_COVERED, DPT_ACCUMULATE_LOCAL, DPT_PRECISION_BF16);
}

static void activations_are_kept_as_asked(void **state)
{
    (void)state;
    struct dpt_config config = make_config(DPT_ACCUMULATE_LOCAL, DPT_PRECISION_FP32, 3);
    char expected[DPT_HASH_HEX_BYTES], hash[64];
    plain_train(&config, expected);
    config.train.activation_checkpointing = DPT_ACTIVATION_CHECKPOINTING_FULL;
    rig_undisturbed(&config, "full", 2, false, hash);
    assert_string_equal(hash, expected);
}

static void deaths_and_healing(void **state)
{
    (void)state;
    struct dpt_config config = rig_make_config(14, 18, "");
    rig_deaths_and_healing(&config);
    rig_choose(&config, "full_shard+shadow");
    config.train.precision = DPT_PRECISION_BF16;
    rig_all_die(&config);
}

/* Its rank says why and is gone; the others go on. */
static void a_device_breaks(void **state)
{
    (void)state;
    struct dpt_config config = make_config(DPT_ACCUMULATE_LOCAL, DPT_PRECISION_FP32, 12);
    char expected[64], dir[128];
    rig_undisturbed(&config, "sound", 1, false, expected);
    director_accelerate(open_one_that_breaks);
    struct director *d = rig_begin(&config, "breaks", dir);
    (void)director_start(d, 0);
    const int broken = director_start(d, 0);
    assert_int_equal(broken, BREAKS_RANK);
    assert_true(director_form(d, false));
    const char *text = director_await_fatal(d);
    assert_non_null(strstr(text, "the discrete device was told to break"));
    assert_true(director_fatal(d, broken, &text));
    director_kill(d, broken);
    assert_true(director_form(d, false));
    assert_string_equal(director_finish(d), expected);
    assert_int_equal(director_steps_lost(d), 0);
    director_destroy(&d);
}

static void a_device_is_too_small(void **state)
{
    (void)state;
    struct dpt_config config = make_config(DPT_ACCUMULATE_LOCAL, DPT_PRECISION_FP32, 3);
    char dir[128];
    director_accelerate(open_small);
    struct director *d = rig_begin(&config, "small", dir);
    const int handle = director_start(d, 0);
    const char *text = NULL;
    assert_true(director_fatal(d, handle, &text));
    assert_non_null(strstr(text, "of a discrete device"));
    director_destroy(&d);
}

/* Another kind of machine: its bits are not the host's. */
static void a_host_does_not_go_on(void **state)
{
    (void)state;
    struct dpt_config config = rig_make_config(14, 8, "");
    char hash[64], dir[128];
    rig_undisturbed(&config, "began", 1, false, hash);
    director_accelerate(NULL);
    struct director *d = rig_begin(&config, "goes-on", dir);
    director_read_checkpoints(d, rig_dir("began"));
    const int handle = director_start(d, 0);
    const char *text = NULL;
    assert_true(director_fatal(d, handle, &text));
    assert_non_null(strstr(text, "another kind of machine: discrete"));
    director_destroy(&d);
}

static json_int_t tag_bytes(const json_t *account, enum dpt_memory_tag tag, const char *what)
{
    const json_t *tags = json_object_get(account, "tags");
    return json_integer_value(
        json_object_get(json_object_get(tags, dpt_memory_tag_name(tag)), what));
}

/* Activations, and the weights that are computed with, are the device's; the rest is the host's. */
static void memory_is_where_it_should_be(void **state)
{
    (void)state;
    struct dpt_config config = make_config(DPT_ACCUMULATE_LOCAL, DPT_PRECISION_FP32, 3);
    char hash[64], path[192];
    json_error_t error;
    rig_undisturbed(&config, "memory", 2, false, hash);
    (void)snprintf(path, sizeof path, "%s/node-/rank-0.memory.json", rig_dir("memory"));
    json_t *account = json_load_file(path, 0, &error);
    assert_non_null(account);
    for (int tag = 0; tag < DPT_MEMORY_COUNT; tag++)
        assert_int_equal(tag_bytes(account, (enum dpt_memory_tag)tag, "bytes"),
                         tag_bytes(account, (enum dpt_memory_tag)tag, "formula"));
    assert_int_equal(tag_bytes(account, DPT_MEMORY_ACTIVATIONS, "bytes"), 0);
    assert_int_equal(tag_bytes(account, DPT_MEMORY_PACKED, "bytes"), 0);
    const json_int_t elements = json_integer_value(json_object_get(account, "elements"));
    const json_t *device = json_object_get(account, "device");
    assert_true(json_integer_value(json_object_get(device, "bytes")) > 2 * 4 * elements);
    json_decref(account);
}

int main(void)
{
#define T(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(every_strategy),
        T(activations_are_kept_as_asked),
        T(deaths_and_healing),
        T(a_device_breaks),
        T(a_device_is_too_small),
        T(a_host_does_not_go_on),
        T(memory_is_where_it_should_be),
    };
    return cmocka_run_group_tests_name("ranks with an accelerator", tests, rig_setup, rig_teardown);
}
