/* Traces of ranks on a CUDA device: a traced run has the bits of a run that is not traced, and its
 * file has the device's kernels and copies with the calls that launched them, within the window.
 *
 * On the emulated device a double of CUPTI has the records of the emulated kernels, and a double of
 * NCCL the collectives. One rank of a process is recorded, so worlds of one are. */
#ifdef DPT_TEST_EMULATED
#include "tests/gpu/cupti/cupti_double.h"
#include "tests/gpu/emulated/control.h"
#include "tests/worker/train/nccl_ranks.h"
#endif
#include "tests/gpu/gpu_ranks.h"
#include "tests/worker/train/rank_rig.h"

#include "base/fs.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

enum { STEPS = 6, WAIT = 1, WARMUP = 1, ACTIVE = 2, TEXT_BYTES_MAX = 1 << 26 };

/* The GPU's times are converted to the host's clock, within this error. */
static const double clock_error_us = 100;
/* The file is written this long after its last step at most. */
static const double writing_us = 10e6;

/* ---- the emulated device's work, as CUPTI records it ---- */

#ifdef DPT_TEST_EMULATED
enum { STREAM = 7 };

static uint32_t call(CUpti_CallbackId cbid)
{
    return cupti_double_call(CUPTI_CB_DOMAIN_RUNTIME_API, cbid);
}

static void note_kernel(unsigned grid, unsigned block, size_t shared_bytes)
{
    const uint32_t correlation = call(DOUBLE_LAUNCH_KERNEL);
    cupti_double_inner_call(DOUBLE_CU_LAUNCH_KERNEL, correlation);
    cupti_double_kernel(&(struct cupti_double_kernel){.name = "_Z15emulated_kernelv",
                                                      .correlation = correlation,
                                                      .stream = STREAM,
                                                      .grid = grid,
                                                      .block = block,
                                                      .shared_bytes = (unsigned)shared_bytes});
}

static void note_copy(size_t bytes)
{
    cupti_double_copy(call(DOUBLE_MEMCPY_ASYNC), CUPTI_ACTIVITY_MEMCPY_KIND_HTOD, bytes);
}

static void note_set(size_t bytes)
{
    cupti_double_set(call(DOUBLE_MEMSET_ASYNC), bytes);
}

static void note_sync(void)
{
    cupti_double_sync(call(DOUBLE_STREAM_SYNCHRONIZE),
                      CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_STREAM_SYNCHRONIZE, STREAM);
}

static const struct emulated_observer observer = {note_kernel, note_copy, note_set, note_sync};

static void use_library(void)
{
    assert_int_equal(setenv("DPT_CUPTI", DPT_TEST_CUPTI, 1), 0);
    emulated_observe(&observer);
}

static void forget_library(void)
{
    emulated_observe(NULL);
}

#else
static void use_library(void)
{
    assert_int_equal(unsetenv("DPT_CUPTI"), 0);
}

static void forget_library(void)
{
}
#endif

/* ---- runs and their files ---- */

/* Units are captured as graphs, where the device has them. */
static struct dpt_config gpu_config(const char *name)
{
    struct dpt_config config = rig_make_config(6, STEPS, "");
    rig_choose(&config, "ddp");
    config.model.dropout = 0;
    config.train.accumulate = DPT_ACCUMULATE_LOCAL;
    config.cluster.device = DPT_DEVICE_CUDA;
    config.strategy.offload = DPT_OFFLOAD_NONE;
    config.trace.wait = WAIT;
    config.trace.warmup = WARMUP;
    config.trace.active = ACTIVE;
    config.trace.repeat = 1;
    (void)snprintf(config.trace.dir, sizeof config.trace.dir, "%s/traces", rig_dir(name));
    return config;
}

static json_t *read_trace(const char *path)
{
    char *text = malloc(TEXT_BYTES_MAX);
    assert_non_null(text);
    gzFile file = gzopen(path, "rb");
    assert_non_null(file);
    const int n = gzread(file, text, TEXT_BYTES_MAX - 1);
    assert_true(n > 0);
    assert_int_equal(gzclose(file), Z_OK);
    json_error_t error;
    json_t *trace = json_loadb(text, (size_t)n, JSON_REJECT_DUPLICATES, &error);
    if (!trace)
        fail_msg("%s:%d: %s", path, error.line, error.text);
    free(text);
    return trace;
}

/* The only trace of a rank. */
static json_t *trace_of(const char *name, int rank)
{
    char folder[PATH_MAX], path[PATH_MAX], **names = NULL;
    size_t n = 0;
    struct dpt_err err;
    (void)snprintf(folder, sizeof folder, "%s/traces/profile/ddp/rank_%d", rig_dir(name), rank);
    if (dpt_fs_list(folder, &names, &n, &err) != DPT_OK)
        fail_msg("%s", err.text);
    assert_int_equal(n, 1);
    assert_int_equal(dpt_fs_join(folder, names[0], path, sizeof path, &err), DPT_OK);
    dpt_fs_list_free(&names, n);
    return read_trace(path);
}

static const char *text_of(const json_t *event, const char *key)
{
    const char *text = json_string_value(json_object_get(event, key));
    return text ? text : "";
}

static double number_of(const json_t *event, const char *key)
{
    return json_number_value(json_object_get(event, key));
}

static json_int_t argument_of(const json_t *event, const char *key)
{
    return json_integer_value(json_object_get(json_object_get(event, "args"), key));
}

static bool has_category(const json_t *event, const char *category)
{
    return strcmp(text_of(event, "cat"), category) == 0;
}

/* The number of events of this category whose name begins with `name`. */
static size_t count_events(const json_t *trace, const char *category, const char *name)
{
    const json_t *event;
    size_t i, n = 0;
    json_array_foreach(json_object_get(trace, "traceEvents"), i, event)
    {
        n += has_category(event, category) &&
             strncmp(text_of(event, "name"), name, strlen(name)) == 0;
    }
    return n;
}

/* ---- checks of a file ---- */

struct call {
    json_int_t correlation;
    double begin_us;
};

static int compare_calls(const void *left, const void *right)
{
    const struct call *a = left, *b = right;
    return a->correlation < b->correlation ? -1 : a->correlation > b->correlation;
}

/* The calls of the runtime and the driver, by correlation; each has another one. Owned by the
 * caller. */
static struct call *list_calls(const json_t *trace, size_t *ret_n)
{
    const json_t *events = json_object_get(trace, "traceEvents"), *event;
    struct call *calls = calloc(json_array_size(events) + 1, sizeof *calls);
    size_t i, n = 0;
    assert_non_null(calls);
    json_array_foreach(events, i, event)
    {
        if (has_category(event, "cuda_runtime") || has_category(event, "cuda_driver"))
            calls[n++] = (struct call){argument_of(event, "correlation"), number_of(event, "ts")};
    }
    qsort(calls, n, sizeof *calls, compare_calls);
    for (i = 1; i < n; i++)
        assert_int_not_equal(calls[i].correlation, calls[i - 1].correlation);
    *ret_n = n;
    return calls;
}

/* From the begin of the first step to the end of the last. */
static void find_steps(const json_t *trace, double *ret_begin_us, double *ret_end_us)
{
    const json_t *event;
    size_t i, n = 0;
    *ret_begin_us = INFINITY;
    *ret_end_us = 0;
    json_array_foreach(json_object_get(trace, "traceEvents"), i, event)
    {
        if (strncmp(text_of(event, "name"), "ProfilerStep#", strlen("ProfilerStep#")) != 0)
            continue;
        n++;
        *ret_begin_us = fmin(*ret_begin_us, number_of(event, "ts"));
        *ret_end_us = fmax(*ret_end_us, number_of(event, "ts") + number_of(event, "dur"));
    }
    assert_int_equal(n, ACTIVE);
}

static void check_work(const json_t *event, const struct call *calls, size_t n, double begin_us,
                       double end_us)
{
    const double at_us = number_of(event, "ts");
    const struct call key = {.correlation = argument_of(event, "correlation")};
    const struct call *call = bsearch(&key, calls, n, sizeof *calls, compare_calls);
    if (!call)
        fail_msg("no call has launched '%s' (correlation %lld)", text_of(event, "name"),
                 (long long)key.correlation);
    if (at_us < call->begin_us - clock_error_us)
        fail_msg("'%s' begins %.3f us before its launch", text_of(event, "name"),
                 call->begin_us - at_us);
    if (at_us < begin_us - clock_error_us || at_us + number_of(event, "dur") > end_us + writing_us)
        fail_msg("'%s' at %.3f us is not in the window from %.3f to %.3f us",
                 text_of(event, "name"), at_us, begin_us, end_us);
    assert_int_equal(argument_of(event, "stream"), (json_int_t)number_of(event, "tid"));
    assert_int_equal(argument_of(event, "device"), (json_int_t)number_of(event, "pid"));
}

/* Kernels and copies, with their launches and in the window. */
static void check_records(const json_t *trace)
{
    const json_t *event, *dpt = json_object_get(trace, "dpt");
    size_t i, n_calls, kernels = 0, copies = 0;
    double begin_us, end_us;
    struct call *calls = list_calls(trace, &n_calls);
    find_steps(trace, &begin_us, &end_us);
    json_array_foreach(json_object_get(trace, "traceEvents"), i, event)
    {
        const bool kernel = has_category(event, "kernel"),
                   copy = has_category(event, "gpu_memcpy") || has_category(event, "gpu_memset");
        kernels += kernel;
        copies += copy;
        if (kernel || copy)
            check_work(event, calls, n_calls, begin_us, end_us);
        if (kernel)
            assert_true(json_array_size(json_object_get(json_object_get(event, "args"), "grid")) ==
                        3);
        else if (copy)
            assert_true(argument_of(event, "bytes") > 0);
    }
    free(calls);
    assert_int_equal(json_integer_value(json_object_get(dpt, "dropped_events")), 0);
    assert_int_equal(json_integer_value(json_object_get(dpt, "dropped_device_records")), 0);
    print_message("%zu kernels, %zu copies, %zu calls\n", kernels, copies, n_calls);
    assert_true(kernels > 0);
    assert_true(copies > 0);
    assert_true(count_events(trace, "cuda_sync", "") > 0);
    /* Nothing of the host is shown as a device. */
    assert_int_equal(count_events(trace, "kernel", "head_loss"), 0);
    assert_int_equal(count_events(trace, "kernel", "nccl"), 0);
}

/* Arrows begin at a call and end at the work of the same correlation. */
static void check_flows(const json_t *trace)
{
    const json_t *event;
    size_t i, begins = 0, ends = 0;
    json_array_foreach(json_object_get(trace, "traceEvents"), i, event)
    {
        if (!has_category(event, "ac2g"))
            continue;
        begins += strcmp(text_of(event, "ph"), "s") == 0;
        ends += strcmp(text_of(event, "ph"), "f") == 0;
    }
    assert_true(begins > 0 && ends >= begins);
}

#ifndef DPT_TEST_EMULATED
/* Units are launched as graphs while they are traced, and each kernel of a graph is there. */
static void check_graphs(const json_t *trace)
{
    const json_t *event;
    size_t i, of_graphs = 0;
    json_array_foreach(json_object_get(trace, "traceEvents"), i, event)
    {
        of_graphs += has_category(event, "kernel") && argument_of(event, "graph id") > 0;
    }
    print_message("%zu kernels of %zu graph launches\n", of_graphs,
                  count_events(trace, "cuda_runtime", "cudaGraphLaunch"));
    assert_true(count_events(trace, "cuda_runtime", "cudaGraphLaunch") > 0);
    assert_true(of_graphs > count_events(trace, "cuda_runtime", "cudaGraphLaunch"));
}
#endif

/* ---- tests ---- */

/* Without CUPTI a trace has the host's threads, and the rank says so once. First, because a process
 * keeps a library that it has loaded. */
static void test_host_alone(void **state)
{
    (void)state;
    char hash[64], said[160];
    struct dpt_config config = gpu_config("host-alone");
    struct dpt_err err;
    config.trace.active = 1;
    config.trace.repeat = 0;
    config.trace.wait = 4;
    assert_int_equal(setenv("DPT_CUPTI", "off", 1), 0);
    assert_int_equal(dpt_fs_mkdirs(rig_dir("host-alone"), &err), DPT_OK);
    const int fd = rig_log_to(rig_dir("host-alone"), said);
    rig_undisturbed(&config, "host-alone", 1, false, hash);
    rig_log_back(fd);
    assert_int_equal(rig_said(said, "lack its GPU"), 1);
    assert_int_equal(rig_said(said, "DPT_CUPTI=off"), 1);
    json_t *trace = trace_of("host-alone", 0);
    assert_int_equal(count_events(trace, "user_annotation", "ProfilerStep#"), 1);
    assert_int_equal(count_events(trace, "gpu_memcpy", ""), 0);
    json_decref(trace);
}

#ifdef DPT_TEST_EMULATED
/* NCCL's operations are in the traces of all ranks, each from its launch to its end: a bucket's
 * sums go to their owners and then to all. */
static void test_collectives(void **state)
{
    (void)state;
    char plain[64], traced[64];
    struct dpt_config config = gpu_config("collectives");
    nccl_ranks_begin((struct fabric_devices){NULL, NULL});
    config.cluster.backend = DPT_BACKEND_NCCL;
    assert_int_equal(setenv("DPT_CUPTI", "off", 1), 0);
    rig_undisturbed(&config, "collectives", 2, true, traced);
    config.trace.dir[0] = '\0';
    rig_undisturbed(&config, "no-collectives", 2, true, plain);
    nccl_ranks_end();
    assert_string_equal(plain, traced);
    for (int rank = 0; rank < 2; rank++) {
        json_t *trace = trace_of("collectives", rank);
        const size_t scattered = count_events(trace, "kernel", "ncclDevKernel_ReduceScatter");
        assert_true(scattered >= ACTIVE && scattered % ACTIVE == 0);
        assert_int_equal(count_events(trace, "kernel", "ncclDevKernel_AllGather"),
                         scattered + ACTIVE); /* the commit of each step is one, too */
        json_decref(trace);
    }
}
#endif

static void test_traced_run_has_the_same_bits(void **state)
{
    (void)state;
    char plain[64], traced[64];
    use_library();
    struct dpt_config config = gpu_config("traced");
    rig_undisturbed(&config, "traced", 1, false, traced);
    json_t *trace = trace_of("traced", 0);
    config.trace.dir[0] = '\0';
    rig_undisturbed(&config, "untraced", 1, false, plain);
    forget_library();
    assert_string_equal(plain, traced);
    rig_check_device_memory("untraced");
    check_records(trace);
    check_flows(trace);
#ifndef DPT_TEST_EMULATED
    check_graphs(trace);
#endif
    json_decref(trace);
}

/* Each window has the work of its own steps. */
static void test_windows_repeat(void **state)
{
    (void)state;
    static char paths[8][PATH_MAX];
    char hash[64], folder[PATH_MAX], **names = NULL;
    struct dpt_err err;
    size_t n = 0;
    use_library();
    struct dpt_config config = gpu_config("windows");
    config.trace.wait = config.trace.warmup = 0;
    config.trace.repeat = 0;
    rig_undisturbed(&config, "windows", 1, false, hash);
    forget_library();
    (void)snprintf(folder, sizeof folder, "%s/traces/profile/ddp/rank_0", rig_dir("windows"));
    assert_int_equal(dpt_fs_list(folder, &names, &n, &err), DPT_OK);
    assert_int_equal(n, STEPS / ACTIVE);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(dpt_fs_join(folder, names[i], paths[i], PATH_MAX, &err), DPT_OK);
    dpt_fs_list_free(&names, n);
    for (size_t i = 0; i < n; i++) {
        json_t *trace = read_trace(paths[i]);
        check_records(trace);
        json_decref(trace);
    }
}

int main(void)
{
    const int without_device = gpu_ranks_open();
    if (without_device >= 0)
        return without_device;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_host_alone),
#ifdef DPT_TEST_EMULATED
        cmocka_unit_test(test_collectives),
#endif
        cmocka_unit_test(test_traced_run_has_the_same_bits),
        cmocka_unit_test(test_windows_repeat),
    };
    return cmocka_run_group_tests_name("traces of a GPU", tests, rig_setup, rig_teardown);
}
