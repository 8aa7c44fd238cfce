/* Trace files: their text beside a golden file, times, streams, and disks that take no file. */
#include "worker/trace/trace_file.h"

#include "base/fs.h"
#include "tests/tmp.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <jansson.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <zlib.h>

enum { TEXT_BYTES_MAX = 1 << 20, MANY = 4000 };

static char dir[64];

static const struct dpt_trace_event main_events[] = {
    {{.kind = DPT_TRACE_MEMORY, .value = {0, 3000, 4096}}, 1999500, 1999500},
    {{.name = "weights", .kind = DPT_TRACE_MEMORY_TAG, .key = {"bytes", "peak"}, .value = {9, 12}},
     1999600,
     1999600},
    {{.kind = DPT_TRACE_MEMORY, .value = {-1024, 1976, 3072, 65536, 1}}, 1999700, 1999700},
    {{.name = "linear_forward", .kind = DPT_TRACE_OP}, 2000500, 2003000},
    {{.name = "forward", .key = {"slot"}, .value = {4}}, 2000000, 2004000},
    {{.kind = DPT_TRACE_STEP, .value = {7}}, 1999000, 2010000},
};

static const struct dpt_trace_event comm_events[] = {
    {{.kind = DPT_TRACE_COLLECTIVE,
      .collective = DPT_TRACE_ALL_GATHER,
      .dtype = "Float",
      .key = {DPT_TRACE_COLLECTIVE_KEYS, "unit"},
      .value = {64, 128, 2, 1}},
     2001000,
     2003000},
    {{.name = "add", .kind = DPT_TRACE_OP}, 2005000, 2005600},
    {{.kind = DPT_TRACE_COLLECTIVE,
      .collective = DPT_TRACE_REDUCE_SCATTER,
      .group = {DPT_TRACE_NODE, 3},
      .dtype = "BFloat16",
      .key = {DPT_TRACE_COLLECTIVE_KEYS},
      .value = {128, 64, 2}},
     2002000,
     2006000},
    {{.kind = DPT_TRACE_COLLECTIVE,
      .collective = DPT_TRACE_ALL_REDUCE,
      .dtype = "Float",
      .key = {DPT_TRACE_COLLECTIVE_KEYS},
      .value = {8, 8, 2}},
     2004000,
     2007000},
};

static const struct dpt_kineto_track tracks[DPT_TRACE_TRACKS] = {
    [DPT_TRACE_MAIN] = {"main", {main_events, 6, 5, 100}},
    [DPT_TRACE_COMM] = {"communication", {comm_events, 4, 0, 101}},
    [DPT_TRACE_DATA] = {.name = "data"},
    [DPT_TRACE_SAVE] = {.name = "checkpoint"},
};

static const struct dpt_kineto_trace small = {.strategy = "full_shard",
                                              .rank = 1,
                                              .world_size = 2,
                                              .setup = {.hosts = 2,
                                                        .overlap = true,
                                                        .compression = "bf16",
                                                        .may_compress = true,
                                                        .sends_slots = true,
                                                        .activation_checkpointing = "full",
                                                        .precision = "fp32",
                                                        .device = "cpu",
                                                        .data = "tokens",
                                                        .global_batch = 32,
                                                        .micro_batch = 4,
                                                        .memory_free = 1 << 30},
                                              .process = 99,
                                              .generation = 3,
                                              .generation_id = 0xab12,
                                              .clock = {12345, 3200, 7, 1500000000},
                                              .base_ns = 1700000000000000000,
                                              .base_event_ns = 1000000,
                                              .tracks = tracks};

static int setup(void **state)
{
    (void)state;
    return test_make_dir(dir, sizeof dir, "test-trace") ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    struct dpt_err err;
    return dpt_fs_remove_tree(dir, &err) == DPT_OK ? 0 : -1;
}

/* ---- the text ---- */

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

static const char *print_trace(const struct dpt_kineto_trace *trace)
{
    static struct text kept;
    struct dpt_err err = {.status = DPT_OK};
    kept.bytes = 0;
    if (dpt_kineto_print(trace, &(struct dpt_kineto_sink){keep_text, &kept}, &err) != DPT_OK)
        fail_msg("%s", err.text);
    return kept.text;
}

static void test_text_is_golden(void **state)
{
    (void)state;
    char *golden = NULL;
    size_t bytes;
    struct dpt_err err;
    assert_int_equal(
        dpt_fs_read_file(DPT_TEST_GOLDEN "/small.json", TEXT_BYTES_MAX, &golden, &bytes, &err),
        DPT_OK);
    assert_string_equal(print_trace(&small), golden);
    free(golden);
}

static json_t *parse_trace(const char *text)
{
    json_error_t error;
    json_t *object = json_loads(text, JSON_REJECT_DUPLICATES, &error);
    if (!object)
        fail_msg("line %d: %s", error.line, error.text);
    return object;
}

static json_int_t number_of(const json_t *event, const char *key)
{
    return json_integer_value(json_object_get(json_object_get(event, "args"), key));
}

static const char *text_of(const json_t *event, const char *key)
{
    return json_string_value(json_object_get(event, key));
}

/* Collectives that overlap are on different streams, and each kernel has its launch. */
static void test_streams_and_correlations(void **state)
{
    (void)state;
    static const json_int_t expected[] = {DPT_KINETO_COMPUTE_STREAM, DPT_KINETO_COMM_STREAM,
                                          DPT_KINETO_COMM_STREAM + 1, DPT_KINETO_COMM_STREAM};
    json_t *object = parse_trace(print_trace(&small)), *event;
    size_t i, kernels = 0, launches = 0;
    json_array_foreach(json_object_get(object, "traceEvents"), i, event)
    {
        const char *category = text_of(event, "cat");
        if (!category)
            continue; /* a name */
        if (strcmp(category, "cuda_runtime") == 0)
            assert_int_equal(number_of(event, "correlation"), ++launches);
        if (strcmp(category, "kernel") != 0)
            continue;
        assert_int_equal(number_of(event, "stream"), expected[kernels]);
        assert_int_equal(number_of(event, "correlation"), ++kernels);
        assert_int_equal(kernels, launches);
    }
    assert_int_equal(kernels, 4);
    assert_int_equal(
        json_integer_value(json_object_get(json_object_get(object, "dpt"), "dropped_events")), 5);
    json_decref(object);
}

static void test_base_is_common(void **state)
{
    (void)state;
    const int64_t epoch_ns = 1766000000123451789;
    struct dpt_kineto_trace a = small, b = small;
    a.clock = b.clock = (struct dpt_kineto_clock){.epoch_ns = epoch_ns};
    assert_int_equal(dpt_kineto_set_base(&a, 5000), epoch_ns + 5000);
    assert_int_equal(dpt_kineto_set_base(&b, 12000), epoch_ns + 12000);
    assert_int_equal(a.base_ns, b.base_ns);
    assert_int_equal(a.base_event_ns, b.base_event_ns);
    assert_true(a.base_ns <= epoch_ns);
    assert_int_equal(a.base_ns + (5000 - a.base_event_ns), epoch_ns + 5000);
}

/* The same moment on two clocks has the same `ts`. */
static void test_clocks_are_aligned(void **state)
{
    (void)state;
    const int64_t epoch_ns = 1766000000123451789, behind_ns = 123456789;
    struct dpt_kineto_trace a = small, b = small;
    a.clock = (struct dpt_kineto_clock){.epoch_ns = epoch_ns};
    b.clock = (struct dpt_kineto_clock){behind_ns, 700, epoch_ns, 0};
    const int64_t moment_ns = dpt_kineto_set_base(&a, 900000000);
    assert_int_equal(dpt_kineto_set_base(&b, 900000000 - behind_ns), moment_ns);
    assert_int_equal(a.base_ns, b.base_ns);
    assert_int_equal(900000000 - a.base_event_ns, 900000000 - behind_ns - b.base_event_ns);
}

/* ---- files ---- */

static void read_packed(const char *path, char *ret, size_t bytes)
{
    gzFile file = gzopen(path, "rb");
    assert_non_null(file);
    const int n = gzread(file, ret, (unsigned)bytes - 1);
    assert_true(n > 0);
    ret[n] = '\0';
    assert_int_equal(gzclose(file), Z_OK);
}

static size_t count_files(const char *folder)
{
    char path[PATH_MAX], **names = NULL;
    size_t n = 0;
    struct dpt_err err;
    assert_int_equal(dpt_fs_join(dir, folder, path, sizeof path, &err), DPT_OK);
    assert_int_equal(dpt_fs_list(path, &names, &n, &err), DPT_OK);
    dpt_fs_list_free(&names, n);
    return n;
}

static void test_file_is_packed_text(void **state)
{
    (void)state;
    static char text[TEXT_BYTES_MAX];
    char path[PATH_MAX], expected[128];
    struct dpt_err err;
    assert_int_equal(dpt_trace_file_write(dir, &small, 123, path, &err), DPT_OK);
    (void)snprintf(expected, sizeof expected,
                   "%s/profile/full_shard/rank_1/worker_1.123.pt.trace.json.gz", dir);
    assert_string_equal(path, expected);
    read_packed(path, text, sizeof text);
    assert_string_equal(text, print_trace(&small));
    assert_int_equal(count_files("profile/full_shard/rank_1"), 1);
}

/* A trace of many events, whose times do not repeat. */
static void fill_many(struct dpt_trace_event *events)
{
    for (int64_t i = 0; i < MANY; i++)
        events[i] = (struct dpt_trace_event){
            {.name = "op", .kind = DPT_TRACE_OP}, 2000000 + i * i * 7919, 2000001 + i * i * 7919};
}

static void test_full_disk_leaves_no_file(void **state)
{
    (void)state;
    static struct dpt_trace_event events[MANY];
    struct dpt_kineto_track many[DPT_TRACE_TRACKS];
    struct dpt_kineto_trace trace = small;
    char path[PATH_MAX];
    struct rlimit old, little;
    struct dpt_err err;
    fill_many(events);
    memcpy(many, tracks, sizeof many);
    many[DPT_TRACE_MAIN].events = (struct dpt_trace_events){events, MANY, 0, 100};
    trace.tracks = many;
    trace.rank = 2;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    little = old;
    little.rlim_cur = 4096;
    (void)signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &little), 0);
    const enum dpt_status status = dpt_trace_file_write(dir, &trace, 5, path, &err);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    assert_int_equal(status, DPT_ENOSPC);
    assert_non_null(strstr(err.text, "worker_2.5"));
    assert_int_equal(count_files("profile/full_shard/rank_2"), 0);
    assert_int_equal(dpt_trace_file_write(dir, &trace, 6, path, &err), DPT_OK);
    assert_int_equal(count_files("profile/full_shard/rank_2"), 1);
}

static void test_folder_that_cannot_be_made(void **state)
{
    (void)state;
    char path[PATH_MAX];
    struct dpt_err err;
    assert_int_not_equal(dpt_trace_file_write("/dev/null/traces", &small, 1, path, &err), DPT_OK);
    assert_non_null(strstr(err.text, "/dev/null"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text_is_golden),
        cmocka_unit_test(test_streams_and_correlations),
        cmocka_unit_test(test_base_is_common),
        cmocka_unit_test(test_clocks_are_aligned),
        cmocka_unit_test(test_file_is_packed_text),
        cmocka_unit_test(test_full_disk_leaves_no_file),
        cmocka_unit_test(test_folder_that_cannot_be_made),
    };
    return cmocka_run_group_tests_name("trace files", tests, setup, teardown);
}
