/* Traces of whole runs: a traced run has the bits of a run that is not traced, and its files have
 * the steps and the work of every rank. */
#include "tests/worker/train/trace_view.h"

#include "base/fs.h"
#include "worker/trace/recorder.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <string.h>

enum { STEPS = 8, SLOTS = 7 };

static struct dpt_config traced_config(const char *strategy, const char *name)
{
    struct dpt_config config = rig_make_config(2 * SLOTS, STEPS, "");
    rig_choose(&config, strategy);
    (void)snprintf(config.trace.dir, sizeof config.trace.dir, "%s/traces", rig_dir(name));
    return config;
}

/* The trace of a rank that has one file, without a lost event. */
static json_t *only_trace(const char *name, const char *strategy, int rank)
{
    json_t *trace = trace_view_only(name, strategy, rank);
    assert_int_equal(
        json_integer_value(json_object_get(json_object_get(trace, "dpt"), "dropped_events")), 0);
    return trace;
}

static void expect_events(const json_t *trace, const char *category, const char *name, size_t n)
{
    const size_t found = trace_view_count(trace, category, name);
    if (found != n)
        fail_msg("%zu events %s '%s', expected %zu", found, category, name, n);
}

/* The number of slots that a rank of two computes in a step. */
static size_t slots_of(const json_t *trace, size_t steps)
{
    return trace_view_count(trace, "cpu_op", "head_loss") / steps;
}

/* The number of ops `name` that have this size. */
static size_t count_sized(const json_t *trace, const char *name, const char *size, json_int_t value)
{
    const json_t *event;
    size_t i, n = 0;
    json_array_foreach(json_object_get(trace, "traceEvents"), i, event)
    {
        const char *category = json_string_value(json_object_get(event, "cat"));
        const json_t *has = json_object_get(json_object_get(event, "args"), size);
        n += category && strcmp(category, "cpu_op") == 0 && has &&
             strcmp(json_string_value(json_object_get(event, "name")), name) == 0 &&
             json_integer_value(has) == value;
    }
    return n;
}

static void check_ops(const json_t *trace, size_t slots)
{
    enum { LAYERS = 2, WIDTH = 32 };
    assert_int_equal(count_sized(trace, "linear_forward", "out", 3 * (json_int_t)WIDTH),
                     slots * LAYERS);
    assert_int_equal(count_sized(trace, "linear_forward", "in", 4 * (json_int_t)WIDTH),
                     slots * LAYERS);
    expect_events(trace, "cpu_op", "attention_forward", slots * LAYERS);
    expect_events(trace, "kernel", "attention_forward", slots * LAYERS);
    expect_events(trace, "cpu_op", "linear_backward", slots * LAYERS * 4);
    assert_true(trace_view_count(trace, "kernel", "adamw") > 0);
    assert_int_equal(trace_view_count(trace, "kernel", "*"),
                     trace_view_count(trace, "cuda_runtime", "cudaLaunchKernel"));
}

static void check_steps(const json_t *trace, int first, int n)
{
    char name[32];
    for (int i = 0; i < n; i++) {
        (void)snprintf(name, sizeof name, "ProfilerStep#%d", first + i);
        expect_events(trace, "user_annotation", name, 1);
    }
    expect_events(trace, "user_annotation", "ProfilerStep#*", (size_t)n);
}

/* The passes of each slot, its units (embedding, two blocks, head), and the ends of each step. */
static void check_passes(const json_t *trace, size_t slots, size_t steps)
{
    enum { UNITS = 4 };
    static const char *const of_step[] = {"grad_sync", "commit", "optimizer_step"};
    const json_t *event;
    size_t i, units = 0;
    expect_events(trace, "user_annotation", "forward", slots);
    expect_events(trace, "user_annotation", "backward", slots);
    expect_events(trace, "user_annotation", "wait for data", slots);
    for (i = 0; i < sizeof of_step / sizeof of_step[0]; i++)
        expect_events(trace, "user_annotation", of_step[i], steps);
    json_array_foreach(json_object_get(trace, "traceEvents"), i, event)
    {
        const json_t *args = json_object_get(event, "args");
        units += json_object_get(args, "positions") != NULL &&
                 json_integer_value(json_object_get(args, "positions")) == 16 &&
                 json_integer_value(json_object_get(args, "batch")) == 2;
    }
    assert_int_equal(units, slots * 2 * UNITS);
    assert_true(trace_view_count(trace, "user_annotation", "read micro-batch") > 0);
}

/* Sums the elements of the collectives that have this name. */
static json_int_t elements_of(const json_t *trace, const char *kernel, const char *key)
{
    const json_t *event;
    json_int_t sum = 0;
    size_t i;
    json_array_foreach(json_object_get(trace, "traceEvents"), i, event)
    {
        const json_t *args = json_object_get(event, "args");
        if (strncmp(json_string_value(json_object_get(event, "name")), kernel, strlen(kernel)) != 0)
            continue;
        assert_int_equal(json_integer_value(json_object_get(args, "Group size")), 2);
        sum += json_integer_value(json_object_get(args, key));
    }
    return sum;
}

/* ddp reduces the whole gradient once a step, in buckets. full_shard gathers every unit twice in a
 * slot and scatters it once; ranks have the same collectives. The commit of each step is one small
 * all-gather. */
static void check_collectives(const json_t *trace, const char *strategy, size_t steps)
{
    static const char all_reduce[] = "ncclDevKernel_AllReduce",
                      scatter[] = "ncclDevKernel_ReduceScatter";
    const json_int_t reduced = elements_of(trace, all_reduce, "In msg nelems"),
                     scattered = elements_of(trace, scatter, "In msg nelems");
    assert_true(trace_view_count(trace, "kernel", "ncclDevKernel_AllGather*") >= steps);
    if (strcmp(strategy, "ddp") == 0) {
        assert_true(reduced > 0 && reduced % (json_int_t)steps == 0);
        assert_int_equal(reduced, elements_of(trace, all_reduce, "Out msg nelems"));
        assert_int_equal(scattered, 0);
    } else {
        assert_int_equal(reduced, 0);
        assert_true(scattered > elements_of(trace, scatter, "Out msg nelems"));
        assert_true(trace_view_count(trace, "kernel", "ncclDevKernel_AllGather*") > 4 * steps);
    }
}

/* A number of an event, in us. */
static const char *word_in(const json_t *object, const char *key)
{
    return json_string_value(json_object_get(object, key));
}

static double time_of(const json_t *event, const char *key)
{
    return json_number_value(json_object_get(event, key));
}

/* Checks that each wait for the peer is inside of a collective or outside of it, and that no two
 * waits overlap. Returns the number of waits inside of collectives. */
static size_t check_waits(const json_t *trace, int rank)
{
    const json_t *events = json_object_get(trace, "traceEvents"), *wait, *other;
    size_t i, j, inside = 0;
    json_array_foreach(events, i, wait)
    {
        bool within = false;
        if (strcmp(json_string_value(json_object_get(wait, "name")), "wait for peers") != 0)
            continue;
        const double begin = time_of(wait, "ts"), end = begin + time_of(wait, "dur");
        assert_int_equal(json_integer_value(json_object_get(json_object_get(wait, "args"), "peer")),
                         1 - rank);
        json_array_foreach(events, j, other)
        {
            const char *name = json_string_value(json_object_get(other, "name"));
            const double from = time_of(other, "ts"), to = from + time_of(other, "dur");
            const bool collective = strncmp(name, "ncclDevKernel", 13) == 0,
                       apart = end <= from + 0.002 || to <= begin + 0.002;
            if (collective) {
                assert_true(apart || (from <= begin + 0.002 && end <= to + 0.002));
                within = within || !apart;
            } else if (i != j && strcmp(name, "wait for peers") == 0) {
                assert_true(apart);
            }
        }
        inside += within;
    }
    return inside;
}

/* Each step begins with a sample of the account: its sum, and each kind of memory. */
static void check_memory(const json_t *trace, size_t steps)
{
    static const char *const kinds[] = {"memory: weights", "memory: moments", "memory: trace"};
    const json_t *event;
    size_t i, samples = 0;
    for (i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        assert_int_equal(trace_view_count(trace, "", kinds[i]), steps);
    json_array_foreach(json_object_get(trace, "traceEvents"), i, event)
    {
        const json_t *args = json_object_get(event, "args");
        const char *name = json_string_value(json_object_get(event, "name"));
        const json_int_t bytes = json_integer_value(json_object_get(args, "bytes"));
        if (strcmp(name, "memory: trace") == 0)
            assert_int_equal(bytes, dpt_trace_recorder_bytes(DPT_TRACE_EVENTS_MAX));
        if (strcmp(name, "[memory]") != 0)
            continue;
        const json_int_t all = json_integer_value(json_object_get(args, "Total Allocated"));
        assert_int_equal(json_integer_value(json_object_get(args, "Device Type")), 0);
        assert_true(all > (json_int_t)dpt_trace_recorder_bytes(DPT_TRACE_EVENTS_MAX));
        assert_true(json_integer_value(json_object_get(args, "Total Reserved")) >= all);
        samples += json_integer_value(json_object_get(args, "Bytes")) == 0;
    }
    assert_int_equal(samples, steps);
}

static bool fact_of(const json_t *facts, const char *key)
{
    const json_t *value = json_object_get(facts, key);
    assert_true(json_is_boolean(value));
    return json_is_true(value);
}

/* The facts on the config that the remedies of dpt-trace depend on. */
static void check_setup(const json_t *trace, const char *strategy, enum dpt_reduction reduction)
{
    const bool shards = strcmp(strategy, "full_shard") == 0;
    const json_t *facts = json_object_get(trace, "dpt");
    static const char *const words[][2] = {{"compression", "none"},
                                           {"activation_checkpointing", "none"},
                                           {"precision", "fp32"},
                                           {"device", "cpu"},
                                           {"data", "text"}};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        assert_string_equal(word_in(facts, words[i][0]), words[i][1]);
    assert_true(fact_of(facts, "overlap"));
    assert_int_equal(fact_of(facts, "may_compress"), reduction == DPT_REDUCTION_CANONICAL);
    assert_int_equal(fact_of(facts, "sends_slots"), shards);
    assert_int_equal(fact_of(facts, "gathers_units"), shards);
    assert_int_equal(json_integer_value(json_object_get(facts, "global_batch")), 2 * SLOTS);
    assert_int_equal(json_integer_value(json_object_get(facts, "micro_batch")), 2);
    assert_true(json_integer_value(json_object_get(facts, "memory_free")) > 0);
}

static void check_trace(const char *name, const char *strategy, enum dpt_reduction reduction)
{
    enum { TRACED = 3 };
    size_t slots = 0, waits = 0;
    for (int rank = 0; rank < 2; rank++) {
        json_t *trace = only_trace(name, strategy, rank);
        const size_t of_rank = slots_of(trace, TRACED);
        check_steps(trace, 3, TRACED);
        check_ops(trace, TRACED * of_rank);
        check_passes(trace, TRACED * of_rank, TRACED);
        check_collectives(trace, strategy, TRACED);
        /* A sum is one op, not one for each addition of each chunk. A ring has no ordered sums. */
        if (reduction == DPT_REDUCTION_CANONICAL)
            assert_true(trace_view_count(trace, "cpu_op", "ordered_sum") >= TRACED);
        check_memory(trace, TRACED);
        check_setup(trace, strategy, reduction);
        waits += check_waits(trace, rank);
        slots += of_rank;
        json_decref(trace);
    }
    assert_int_equal(slots, SLOTS);
    assert_true(waits > 0); /* one of two ranks comes later */
}

/* ---- runs ---- */

static void test_traced_run_has_the_same_bits(void **state)
{
    (void)state;
    static const struct {
        const char *strategy;
        enum dpt_reduction reduction;
    } runs[] = {{"ddp", DPT_REDUCTION_CANONICAL},
                {"ddp", DPT_REDUCTION_RING},
                {"full_shard", DPT_REDUCTION_CANONICAL}};
    for (size_t i = 0; i < sizeof runs / sizeof runs[0]; i++) {
        char plain[64], traced[64], name[32], untraced[32];
        (void)snprintf(name, sizeof name, "traced-%zu", i);
        (void)snprintf(untraced, sizeof untraced, "untraced-%zu", i);
        struct dpt_config config = traced_config(runs[i].strategy, name);
        config.train.reduction = runs[i].reduction;
        rig_undisturbed(&config, name, 2, false, traced);
        config.trace.dir[0] = '\0';
        rig_undisturbed(&config, untraced, 2, false, plain);
        assert_string_equal(plain, traced);
        check_trace(name, runs[i].strategy, runs[i].reduction);
    }
}

/* A formation releases and allocates; registered memory has an address. */
static void check_allocations(const json_t *trace)
{
    const json_t *event;
    size_t i, allocated = 0, released = 0;
    json_array_foreach(json_object_get(trace, "traceEvents"), i, event)
    {
        const json_t *args = json_object_get(event, "args");
        const json_int_t bytes = json_integer_value(json_object_get(args, "Bytes"));
        const bool placed = json_integer_value(json_object_get(args, "Addr")) != 0;
        if (strcmp(json_string_value(json_object_get(event, "name")), "[memory]") != 0)
            continue;
        allocated += bytes > 0 && placed;
        released += bytes < 0;
    }
    assert_true(allocated > 0);
    assert_true(released > 0);
}

/* A rank dies in a window: the trace of a survivor has each step once, and the formation between
 * them. A step that only the lost generation's outcome decides has no event. */
static void test_failure_is_in_the_trace(void **state)
{
    (void)state;
    enum { LONG = 18 };
    static const char *const formation[] = {"leave generation", "form generation",
                                            "open communicator", "fill state"};
    char plain[64], dir[128], name[32];
    struct dpt_config config = traced_config("ddp", "failure"), untraced;
    config.train.steps = config.trace.active = LONG;
    config.trace.wait = config.trace.warmup = 0;
    untraced = config;
    untraced.trace.dir[0] = '\0';
    rig_undisturbed(&untraced, "no-failure", 1, false, plain);
    struct director *d = rig_begin(&config, "failure", dir);
    for (int i = 0; i < 2; i++)
        (void)director_start(d, 0);
    const int dies = director_start(d, 0);
    assert_true(director_form(d, false));
    director_await_step(d, 3);
    director_kill(d, dies);
    assert_true(director_form(d, false));
    assert_string_equal(director_finish(d), plain);
    director_destroy(&d);
    json_t *trace = only_trace("failure", "ddp", 0);
    size_t missing = 0;
    for (int step = 1; step <= LONG; step++) {
        (void)snprintf(name, sizeof name, "ProfilerStep#%d", step);
        const size_t n = trace_view_count(trace, NULL, name);
        assert_true(n <= 1);
        missing += n == 0;
    }
    assert_true(missing <= 1);
    for (size_t i = 0; i < sizeof formation / sizeof formation[0]; i++)
        assert_true(trace_view_count(trace, "user_annotation", formation[i]) > 0);
    check_allocations(trace);
    json_decref(trace);
}

/* Windows of two steps until the end of the run, which is within the last window. */
static void test_windows_repeat(void **state)
{
    (void)state;
    static char paths[TRACE_FILES_MAX][PATH_MAX];
    static const struct {
        int first, n;
    } windows[] = {{2, 2}, {5, 2}, {8, 1}};
    char hash[64];
    struct dpt_config config = traced_config("ddp", "windows");
    config.trace.wait = 0;
    config.trace.active = 2;
    config.trace.repeat = 0;
    config.trace.ranks = (struct dpt_config_steps){1, {1}};
    rig_undisturbed(&config, "windows", 2, false, hash);
    assert_int_equal(trace_view_list("windows", "ddp", 0, paths), 0);
    assert_int_equal(trace_view_list("windows", "ddp", 1, paths), 3);
    for (size_t i = 0; i < 3; i++) { /* names are in the order of time */
        json_t *trace = trace_view_read(paths[i]);
        check_steps(trace, windows[i].first, windows[i].n);
        json_decref(trace);
    }
}

/* All nodes leave within a window: its file is written before they report that they have stopped.
 */
static void test_leaving_ends_the_window(void **state)
{
    (void)state;
    enum { LONG = 100000 };
    char dir[128];
    struct dpt_config config = traced_config("ddp", "leaving");
    config.train.steps = LONG;
    config.trace.active = LONG;
    config.trace.wait = config.trace.warmup = 0;
    config.checkpoint.every_steps = 0;
    struct director *d = rig_begin(&config, "leaving", dir);
    const int handle = director_start(d, 0);
    (void)director_start(d, 1);
    assert_true(director_form(d, false));
    director_await_step(d, 3);
    director_leave(d);
    director_prepare(d, true);
    const int64_t steps = director_step(d, handle);
    for (int rank = 0; rank < 2; rank++) {
        json_t *trace = trace_view_only("leaving", "ddp", rank);
        check_steps(trace, 1, (int)steps);
        json_decref(trace);
    }
    director_destroy(&d);
}

/* A disk that takes no file: training goes on, and each rank says so once. */
static void test_lost_trace_is_said_once(void **state)
{
    (void)state;
    char plain[64], hash[64], said[160];
    struct dpt_config config = traced_config("ddp", "lost");
    (void)snprintf(config.trace.dir, sizeof config.trace.dir, "/dev/null/traces");
    config.trace.repeat = 0;
    config.trace.wait = 0;
    config.trace.active = 1;
    struct dpt_err err;
    assert_int_equal(dpt_fs_mkdirs(rig_dir("lost"), &err), DPT_OK);
    const int fd = rig_log_to(rig_dir("lost"), said);
    rig_undisturbed(&config, "lost", 2, false, hash);
    rig_log_back(fd);
    assert_int_equal(rig_said(said, "is lost"), 2);
    config.trace.dir[0] = '\0';
    rig_undisturbed(&config, "not-lost", 2, false, plain);
    assert_string_equal(plain, hash);
}

/* Keys of traces are no part of a run: nodes may differ, and a run resumes with others. */
static void test_keys_are_no_part_of_the_run(void **state)
{
    (void)state;
    char keys[256];
    const struct dpt_config plain = rig_make_config(2 * SLOTS, STEPS, "");
    struct dpt_config config = traced_config("ddp", "keys");
    config.trace.active = 7;
    config.trace.ranks = (struct dpt_config_steps){1, {1}};
    assert_int_equal(dpt_config_diff(&plain, &config, DPT_CONFIG_RUN, NULL, keys, sizeof keys), 0);
    assert_true(dpt_config_diff(&plain, &config, DPT_CONFIG_NODE, NULL, keys, sizeof keys) > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_traced_run_has_the_same_bits),
        cmocka_unit_test(test_failure_is_in_the_trace),
        cmocka_unit_test(test_windows_repeat),
        cmocka_unit_test(test_leaving_ends_the_window),
        cmocka_unit_test(test_lost_trace_is_said_once),
        cmocka_unit_test(test_keys_are_no_part_of_the_run),
    };
    return cmocka_run_group_tests_name("traces of a run", tests, rig_setup, rig_teardown);
}
