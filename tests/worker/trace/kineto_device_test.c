/* The records of a GPU as events: launches, graphs, collectives, the file. */
#include "worker/trace/kineto.h"
#include "worker/trace/kineto_device.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum { PROCESS = 99, THREAD = 100, TEXT_BYTES_MAX = 1 << 16 };

static struct dpt_device_record make_kernel(const char *name, uint32_t correlation,
                                            int64_t begin_ns, int64_t end_ns)
{
    return (struct dpt_device_record){.kind = DPT_DEVICE_KERNEL,
                                      .name = name,
                                      .correlation = correlation,
                                      .begin_ns = begin_ns,
                                      .end_ns = end_ns,
                                      .context = 1,
                                      .stream = 13,
                                      .grid = {4, 2, 1},
                                      .block = {128, 1, 1},
                                      .registers = 40,
                                      .shared_bytes = 1024};
}

static struct dpt_device_record make_call(enum dpt_device_work kind, const char *name,
                                          uint32_t correlation, int64_t begin_ns)
{
    return (struct dpt_device_record){.kind = kind,
                                      .name = name,
                                      .correlation = correlation,
                                      .begin_ns = begin_ns,
                                      .end_ns = begin_ns + 5,
                                      .thread = THREAD,
                                      .call = 211};
}

/* Collectives of two groups: the second begins while the first is under way; the third is the
 * host's. */
static const struct dpt_trace_event collectives[] = {
    {{.kind = DPT_TRACE_DEVICE_COLLECTIVE,
      .collective = DPT_TRACE_ALL_GATHER,
      .dtype = "Float",
      .key = {DPT_TRACE_COLLECTIVE_KEYS, "unit"},
      .value = {64, 128, 2, 1}},
     4000,
     7000},
    {{.kind = DPT_TRACE_DEVICE_COLLECTIVE,
      .collective = DPT_TRACE_REDUCE_SCATTER,
      .dtype = "BFloat16",
      .key = {DPT_TRACE_COLLECTIVE_KEYS},
      .value = {128, 64, 2}},
     2000,
     5000},
    {{.kind = DPT_TRACE_COLLECTIVE,
      .collective = DPT_TRACE_ALL_REDUCE,
      .dtype = "Float",
      .key = {DPT_TRACE_COLLECTIVE_KEYS},
      .value = {8, 8, 2}},
     1000,
     9000},
};
static const struct dpt_trace_events comm_events = {collectives, 3, 0, THREAD + 1};

static struct dpt_kineto_device *make_device(const struct dpt_device_records *records)
{
    struct dpt_kineto_device *device = NULL;
    struct dpt_err err;
    if (dpt_kineto_device_create(records, &comm_events, PROCESS, &device, &err) != DPT_OK)
        fail_msg("%s", err.text);
    return device;
}

static void test_launches_and_graphs(void **state)
{
    (void)state;
    struct dpt_device_record r[] = {
        make_kernel("of_a_graph", 5, 1500, 1600),
        make_kernel("of_a_graph", 5, 1600, 1700),
        make_kernel("of_the_driver", 6, 1700, 1800),
        make_kernel("of_nobody", 9, 1800, 1900),
        make_kernel("without_correlation", 0, 1900, 1950),
        make_call(DPT_DEVICE_DRIVER_CALL, "cuGraphLaunch", 5, 1401), /* within the runtime's call */
        make_call(DPT_DEVICE_CALL, "cudaGraphLaunch", 5, 1400),
        make_call(DPT_DEVICE_DRIVER_CALL, "cuLaunchKernel", 6, 1450),
        make_call(DPT_DEVICE_CALL, "cudaStreamSynchronize", 7, 1460),
        {.kind = DPT_DEVICE_SYNC,
         .name = "Context Sync",
         .correlation = 7,
         .begin_ns = 1461,
         .end_ns = 1464,
         .context = 1,
         .stream = DPT_DEVICE_NO_STREAM},
        {.kind = DPT_DEVICE_SYNC,
         .name = "Stream Sync",
         .begin_ns = 1500,
         .end_ns = 1900,
         .context = 1,
         .stream = 15},
        {.kind = DPT_DEVICE_COPY,
         .name = "Memcpy HtoD (Pinned -> Device)",
         .begin_ns = 1000,
         .end_ns = 2000,
         .bytes = 4000,
         .stream = 14},
    };
    static const enum dpt_kineto_flow flows[] = {
        DPT_KINETO_FLOW_END, DPT_KINETO_FLOW_END, DPT_KINETO_FLOW_END,   DPT_KINETO_NO_FLOW,
        DPT_KINETO_NO_FLOW,  DPT_KINETO_NO_FLOW,  DPT_KINETO_FLOW_BEGIN, DPT_KINETO_FLOW_BEGIN,
        DPT_KINETO_NO_FLOW,  DPT_KINETO_NO_FLOW,  DPT_KINETO_NO_FLOW,    DPT_KINETO_NO_FLOW};
    r[0].graph = 3;
    const struct dpt_device_records records = {r, sizeof r / sizeof r[0], 0};
    struct dpt_kineto_device *device = make_device(&records);
    struct dpt_kineto_event event;
    for (size_t i = 0; i < records.n; i++) {
        assert_int_equal(dpt_kineto_device_event(device, i, &event), i != 5);
        if (i == 5)
            continue;
        assert_int_equal(event.flow, flows[i]);
        assert_null(event.collective);
        assert_string_equal(event.name, r[i].name);
        assert_int_equal(event.begin_ns, r[i].begin_ns);
    }
    assert_true(dpt_kineto_device_event(device, 0, &event));
    assert_string_equal(event.category, "kernel");
    assert_int_equal(event.process, 0);
    assert_int_equal(event.thread, 13);
    assert_string_equal(event.args,
                        "\"device\": 0, \"context\": 1, \"stream\": 13, \"correlation\": 5, "
                        "\"registers per thread\": 40, \"shared memory\": 1024, "
                        "\"grid\": [4, 2, 1], \"block\": [128, 1, 1], \"graph id\": 3");
    assert_true(dpt_kineto_device_event(device, 6, &event));
    assert_string_equal(event.category, "cuda_runtime");
    assert_int_equal(event.process, PROCESS);
    assert_int_equal(event.thread, THREAD);
    assert_string_equal(event.args, "\"cbid\": 211, \"correlation\": 5");
    assert_true(dpt_kineto_device_event(device, 7, &event));
    assert_string_equal(event.category, "cuda_driver");
    assert_true(dpt_kineto_device_event(device, 9, &event));
    assert_string_equal(event.category, "cuda_sync");
    assert_int_equal(event.thread, -1);
    /* The host waits: tools count what is on a stream as the GPU's work. */
    assert_true(dpt_kineto_device_event(device, 10, &event));
    assert_string_equal(event.category, "cuda_sync");
    assert_int_equal(event.thread, -1);
    assert_string_equal(event.args,
                        "\"device\": 0, \"context\": 1, \"stream\": -1, \"correlation\": 0, "
                        "\"cuda_sync_kind\": \"Stream Sync\", \"awaited stream\": 15");
    assert_true(dpt_kineto_device_event(device, 11, &event));
    assert_string_equal(event.category, "gpu_memcpy");
    assert_non_null(strstr(event.args, "\"bytes\": 4000, \"memory bandwidth (GB/s)\": 4.000"));
    size_t n;
    (void)dpt_kineto_device_streams(device, &n);
    assert_int_equal(n, 2);
    dpt_kineto_device_destroy(&device);
    assert_null(device);
    dpt_kineto_device_destroy(&device);
}

/* An NCCL kernel belongs to the collective that was launched last before the kernel's launch, and
 * is still under way. */
static void test_collectives_of_nccl_kernels(void **state)
{
    (void)state;
    static const char name[] = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)";
    const struct dpt_device_record r[] = {
        make_call(DPT_DEVICE_DRIVER_CALL, "cuLaunchKernelEx", 1, 2500),
        make_call(DPT_DEVICE_DRIVER_CALL, "cuLaunchKernelEx", 2, 4500),
        make_kernel(name, 1, 4800, 4900),   /* launched in the second */
        make_kernel(name, 2, 4900, 6000),   /* in the first */
        make_kernel(name, 3, 3000, 4000),   /* its launch is not recorded */
        make_kernel(name, 4, 6500, 6600),   /* when only the first is under way */
        make_kernel(name, 5, 8000, 8100),   /* when only the host's is */
        make_kernel(name, 6, 500, 600),     /* before all */
        make_kernel("gemm", 2, 4900, 6000), /* no NCCL */
    };
    static const enum dpt_trace_collective expected[] = {
        DPT_TRACE_REDUCE_SCATTER, DPT_TRACE_ALL_GATHER, DPT_TRACE_REDUCE_SCATTER,
        DPT_TRACE_ALL_GATHER};
    const struct dpt_device_records records = {r, sizeof r / sizeof r[0], 0};
    struct dpt_kineto_device *device = make_device(&records);
    struct dpt_kineto_event event;
    for (size_t i = 2; i < records.n; i++) {
        assert_true(dpt_kineto_device_event(device, i, &event));
        if (i < 6) {
            assert_non_null(event.collective);
            assert_int_equal(event.collective->collective, expected[i - 2]);
        } else {
            assert_null(event.collective);
        }
    }
    dpt_kineto_device_destroy(&device);
}

/* ---- the file ---- */

struct text {
    size_t bytes;
    char text[TEXT_BYTES_MAX];
};

static enum dpt_status keep_text(void *ctx, const char *text, size_t bytes, struct dpt_err *err)
{
    struct text *kept = ctx;
    if (bytes >= TEXT_BYTES_MAX - kept->bytes)
        return dpt_fail(err, DPT_EOVERFLOW, "the text is too long");
    memcpy(kept->text + kept->bytes, text, bytes);
    kept->bytes += bytes;
    kept->text[kept->bytes] = '\0';
    return DPT_OK;
}

static json_t *print_and_parse(const struct dpt_device_records *records)
{
    static const struct dpt_trace_event main_events[] = {
        {{.name = "linear_forward", .kind = DPT_TRACE_OP}, 1400, 1500}};
    const struct dpt_kineto_track tracks[DPT_TRACE_TRACKS] = {
        [DPT_TRACE_MAIN] = {"main", {main_events, 1, 0, THREAD}},
        [DPT_TRACE_COMM] = {"communication", comm_events},
        [DPT_TRACE_DATA] = {.name = "data"},
        [DPT_TRACE_SAVE] = {.name = "checkpoint"},
    };
    const struct dpt_kineto_trace trace = {.strategy = "ddp",
                                           .rank = 1,
                                           .world_size = 2,
                                           .setup = {.compression = "none",
                                                     .activation_checkpointing = "none",
                                                     .precision = "fp32",
                                                     .device = "cuda",
                                                     .data = "text"},
                                           .process = PROCESS,
                                           .tracks = tracks,
                                           .device = records};
    static struct text kept;
    struct dpt_err err = {.status = DPT_OK};
    json_error_t error;
    kept.bytes = 0;
    if (dpt_kineto_print(&trace, &(struct dpt_kineto_sink){keep_text, &kept}, &err) != DPT_OK)
        fail_msg("%s", err.text);
    json_t *object = json_loads(kept.text, JSON_REJECT_DUPLICATES, &error);
    if (!object)
        fail_msg("line %d: %s", error.line, error.text);
    return object;
}

static const json_t *find_event(const json_t *trace, const char *category, const char *name)
{
    json_t *event;
    size_t i;
    json_array_foreach(json_object_get(trace, "traceEvents"), i, event)
    {
        const char *has = json_string_value(json_object_get(event, "cat"));
        if (has && strcmp(has, category) == 0 &&
            strcmp(json_string_value(json_object_get(event, "name")), name) == 0)
            return event;
    }
    return NULL;
}

static const json_t *argument(const json_t *event, const char *key)
{
    return json_object_get(json_object_get(event, "args"), key);
}

/* With a GPU nothing of the host is shown as a device. */
static void test_file_with_a_gpu(void **state)
{
    (void)state;
    static const char nccl[] = "ncclDevKernel_SendRecv";
    char longest[DPT_ACTIVITY_NAME_BYTES];
    memset(longest, 'k', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    const struct dpt_device_record r[] = {
        make_call(DPT_DEVICE_CALL, "cudaLaunchKernel", 5, 1400),
        make_kernel(longest, 5, 1500, 1600),
        make_kernel(nccl, 8, 4500, 6000),
    };
    const struct dpt_device_records records = {r, sizeof r / sizeof r[0], 17};
    json_t *trace = print_and_parse(&records);
    const json_t *dpt = json_object_get(trace, "dpt");
    assert_int_equal(json_integer_value(json_object_get(dpt, "dropped_device_records")), 17);
    assert_int_equal(json_integer_value(json_object_get(dpt, "device_records")), 3);
    assert_non_null(find_event(trace, "kernel", longest));
    assert_non_null(find_event(trace, "cpu_op", "linear_forward"));
    assert_null(find_event(trace, "kernel", "linear_forward"));
    assert_null(find_event(trace, "kernel", "ncclDevKernel_AllReduce_Sum_host"));
    assert_non_null(find_event(trace, "user_annotation", "host:allreduce"));
    assert_non_null(find_event(trace, "user_annotation", "nccl:_allgather_base"));
    assert_non_null(find_event(trace, "ac2g", "ac2g"));
    const json_t *kernel = find_event(trace, "kernel", nccl);
    assert_string_equal(json_string_value(argument(kernel, "Collective name")), "_allgather_base");
    assert_string_equal(json_string_value(argument(kernel, "dtype")), "Float");
    assert_int_equal(json_integer_value(argument(kernel, "In msg nelems")), 64);
    assert_int_equal(json_integer_value(argument(kernel, "Group size")), 2);
    assert_int_equal(json_integer_value(argument(kernel, "stream")), 13);
    json_decref(trace);
}

static void test_file_of_an_idle_gpu(void **state)
{
    (void)state;
    const struct dpt_device_records records = {.n = 0};
    json_t *trace = print_and_parse(&records);
    assert_null(find_event(trace, "kernel", "linear_forward"));
    assert_non_null(find_event(trace, "cpu_op", "linear_forward"));
    json_decref(trace);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_launches_and_graphs),
        cmocka_unit_test(test_collectives_of_nccl_kernels),
        cmocka_unit_test(test_file_with_a_gpu),
        cmocka_unit_test(test_file_of_an_idle_gpu),
    };
    return cmocka_run_group_tests_name("events of a GPU", tests, NULL, NULL);
}
