/* Units as graphs (unit_graphs.h), on a device that notes ops and gives them again with the
 * arguments of the first time: the hash and losses of the host's run. What a graph forgets to
 * depend on would show in them. */
#include "kernels/ops.h"
#include "tests/worker/train/device_rig.h"
#include "tests/worker/train/plain.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

enum { UNITS = 4, STEPS = 5 };

static struct dpt_config make_graphs_config(enum dpt_accumulate accumulate,
                                            enum dpt_precision precision)
{
    struct dpt_config config = device_rig_config(accumulate, precision, STEPS);
    keep_state_on_device(&config);
    config.model.dropout = 0;
    return config;
}

static int64_t launches(void)
{
    int64_t n;
    int alive;
    dpt_device_discrete_graphs(false, &n, &alive);
    return n;
}

static int alive(void)
{
    int64_t n;
    int graphs;
    dpt_device_discrete_graphs(false, &n, &graphs);
    return graphs;
}

static void as_expected(const struct dpt_config *config, const char *name, int world,
                        const char *expected)
{
    char hash[64];
    (void)launches();
    rig_undisturbed(config, name, world, world % 2 == 0, hash);
    if (strcmp(hash, expected) != 0)
        fail_msg("%s: %s instead of %s", name, hash, expected);
    /* All slots but two a rank are made of them, or nearly. */
    const int64_t n = launches();
    if (n < (int64_t)UNITS * (config->train.steps * 11 - 4 * world))
        fail_msg("%s: %lld graphs launched", name, (long long)n);
    assert_int_equal(alive(), 0);
}

static void as_on_the_host(const struct dpt_config *config, const char *name, int world)
{
    char expected[DPT_HASH_HEX_BYTES];
    plain_train(config, expected);
    as_expected(config, name, world, expected);
}

static void every_slot_after_the_first(void **state)
{
    (void)state;
    static const char *const strategies[] = {"ddp", "zero1", "zero2", "full_shard+shadow",
                                             "hybrid_shard"};
    for (int order = 0; order < 2; order++) {
        char name[64], expected[DPT_HASH_HEX_BYTES];
        struct dpt_config config =
            make_graphs_config(order == 0 ? DPT_ACCUMULATE_LOCAL : DPT_ACCUMULATE_REDUCE,
                               order == 0 ? DPT_PRECISION_FP32 : DPT_PRECISION_BF16);
        plain_train(&config, expected);
        for (size_t i = 0; i < sizeof strategies / sizeof *strategies; i += dpt_test_every()) {
            rig_choose(&config, strategies[i]);
            (void)snprintf(name, sizeof name, "%s-%d", strategies[i], order);
            as_expected(&config, name, 2 + (int)i % 2, expected);
        }
    }
}

/* Lanes of several slots, with changing buffers; a changing loss scale; activations that are
 * computed again; the state on the host. */
static void with_everything(void **state)
{
    (void)state;
    struct dpt_config config = make_graphs_config(DPT_ACCUMULATE_LOCAL, DPT_PRECISION_FP16);
    config.train.lanes = 4;
    config.train.loss_scale = 1 << 8;
    config.train.loss_scale_interval = 2;
    as_on_the_host(&config, "scaled", 1);
    config.train.activation_checkpointing = DPT_ACTIVATION_CHECKPOINTING_FULL;
    as_on_the_host(&config, "again", 3);
    offload(&config);
    as_on_the_host(&config, "offloaded", 2);
}

/* A new scale of the loss makes new graphs of the head's backward alone: one that sets and one that
 * adds for each buffer of four lanes, of which there are one and log2(4). */
static void a_new_scale_is_the_heads_alone(void **state)
{
    (void)state;
    enum { SCALES = 3, EACH = 2 /* steps: all is met twice */, OF_THE_HEAD = 2 * 3 };
    int64_t made[2];
    struct dpt_config config = make_graphs_config(DPT_ACCUMULATE_LOCAL, DPT_PRECISION_FP16);
    config.train.steps = SCALES * EACH;
    config.train.lanes = 4;
    config.train.loss_scale = 1 << 8;
    for (int changes = 0; changes < 2; changes++) {
        config.train.loss_scale_interval = changes ? EACH : 1000;
        (void)dpt_device_discrete_captures();
        as_on_the_host(&config, changes ? "scales" : "one-scale", 1);
        made[changes] = dpt_device_discrete_captures();
    }
    assert_true(made[0] > OF_THE_HEAD);
    assert_int_equal(made[1] - made[0], (SCALES - 1) * OF_THE_HEAD);
}

/* Slots that are added as they come, and units that are gathered now here, now there. */
static void places_and_ways_that_change(void **state)
{
    (void)state;
    char op_by_op[64], hash[64];
    struct dpt_config config = make_graphs_config(DPT_ACCUMULATE_AUTO, DPT_PRECISION_FP32);
    config.train.reduction = DPT_REDUCTION_FAST;
    config.cluster.cuda_graphs = false;
    rig_undisturbed(&config, "fast", 1, false, op_by_op);
    config.cluster.cuda_graphs = true;
    (void)launches();
    rig_undisturbed(&config, "fast-graphs", 1, false, hash);
    assert_string_equal(hash, op_by_op);
    assert_true(launches() > 0);
    for (int layers = 3; layers <= 4; layers++) {
        char name[32];
        config = make_graphs_config(DPT_ACCUMULATE_REDUCE, DPT_PRECISION_BF16);
        config.model.n_layer = layers;
        config.train.steps = 3;
        rig_choose(&config, "full_shard");
        (void)snprintf(name, sizeof name, "layers-%d", layers);
        as_on_the_host(&config, name, 2);
    }
}

/* Weights and gradients have other places after a death. */
static void made_anew_in_each_generation(void **state)
{
    (void)state;
    struct dpt_config config = rig_make_config(14, 18, "");
    keep_state_on_device(&config);
    config.model.dropout = 0;
    rig_deaths_and_healing(&config);
    config.train.accumulate = DPT_ACCUMULATE_REDUCE;
    config.train.precision = DPT_PRECISION_BF16;
    rig_choose(&config, "zero2");
    rig_all_die(&config);
    assert_true(launches() > 0);
    assert_int_equal(alive(), 0);
}

static void none(const struct dpt_config *config, const char *name)
{
    char expected[DPT_HASH_HEX_BYTES], hash[64];
    plain_train(config, expected);
    (void)launches();
    rig_undisturbed(config, name, 2, false, hash);
    assert_string_equal(hash, expected);
    assert_int_equal(launches(), 0);
}

/* Cases without graphs, and their messages. */
static void test_cases_without_graphs(void **state)
{
    (void)state;
    struct dpt_config config = make_graphs_config(DPT_ACCUMULATE_LOCAL, DPT_PRECISION_FP32);
    config.model.dropout = 0.1;
    none(&config, "dropout");
    config.model.dropout = 0;
    config.cluster.cuda_graphs = false;
    none(&config, "off");
    config.cluster.cuda_graphs = true;
    config.log.op_times = true;
    none(&config, "timed");
}

/* A device that makes none after all: said once by each rank, and nothing else is lost. */
static void one_cannot_be_made(void **state)
{
    (void)state;
    char expected[DPT_HASH_HEX_BYTES], dir[128], path[160];
    int64_t n;
    int graphs;
    struct dpt_config config = make_graphs_config(DPT_ACCUMULATE_LOCAL, DPT_PRECISION_FP32);
    plain_train(&config, expected);
    struct director *d = rig_begin(&config, "cannot", dir);
    const int fd = rig_log_to(dir, path);
    dpt_device_discrete_graphs(true, &n, &graphs);
    (void)director_start(d, 0);
    (void)director_start(d, 1);
    assert_true(director_form(d, false));
    assert_string_equal(director_finish(d), expected);
    dpt_device_discrete_graphs(false, &n, &graphs);
    rig_log_back(fd);
    assert_int_equal(n, 0);
    assert_int_equal(graphs, 0);
    assert_int_equal(rig_said(path, "no graphs: this device has no graphs today"), 2);
    director_destroy(&d);
}

/* What went wrong before is not taken for a graph that could not be made. */
static void an_error_before_stays(void **state)
{
    (void)state;
    struct dpt_device *device;
    struct dpt_stream *stream;
    struct dpt_err err;
    float of_the_host[4] = {0};
    assert_int_equal(dpt_device_discrete_create(1 << 16, &device, &err), DPT_OK);
    assert_int_equal(dpt_stream_create(device, 1, &stream, &err), DPT_OK);
    dpt_device_ops(device)->fill(stream, 4, 1, of_the_host);
    assert_false(dpt_stream_capture_begin(stream));
    assert_int_equal(dpt_stream_sync(stream, &err), DPT_EINVAL);
    assert_true(dpt_stream_capture_begin(stream));
    dpt_device_ops(device)->fill(stream, 4, 1, of_the_host);
    struct dpt_graph *graph = NULL;
    assert_int_equal(dpt_stream_capture_end(stream, &graph, &err), DPT_EINVAL);
    assert_null(graph);
    assert_int_equal(dpt_stream_sync(stream, &err), DPT_OK);
    dpt_stream_destroy(&stream);
    dpt_device_destroy(&device);
}

int main(void)
{
#define T(test) cmocka_unit_test_setup_teardown(test, device_rig_setup, device_rig_teardown)
    const struct CMUnitTest tests[] = {
        T(every_slot_after_the_first),
        T(with_everything),
        T(a_new_scale_is_the_heads_alone),
        T(places_and_ways_that_change),
        T(made_anew_in_each_generation),
        T(test_cases_without_graphs),
        T(one_cannot_be_made),
        T(an_error_before_stays),
    };
    return cmocka_run_group_tests_name("units as graphs", tests, rig_setup, rig_teardown);
}
