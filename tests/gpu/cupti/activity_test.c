/* The records of a GPU (kernels/device_activity.h) from a double of CUPTI. The first tests have no
 * usable library; once one is loaded the process keeps it. */
#include "tests/gpu/cupti/cupti_double.h"

#include "base/clock.h"
#include "kernels/device_activity.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ROOM = 1000, MANY = 30000, THREADS = 4 };

static struct dpt_activity *open_activity(size_t room)
{
    struct dpt_activity *activity = NULL;
    struct dpt_err err;
    if (dpt_activity_open(room, &activity, &err) != DPT_OK)
        fail_msg("%s", err.text);
    return activity;
}

static struct dpt_activity *start_activity(size_t room)
{
    struct dpt_activity *activity = open_activity(room);
    struct dpt_err err;
    if (dpt_activity_start(activity, &err) != DPT_OK)
        fail_msg("%s", err.text);
    return activity;
}

static struct dpt_device_records stop_and_read(struct dpt_activity *activity)
{
    struct dpt_device_records records;
    dpt_activity_stop(activity);
    dpt_activity_read(activity, &records);
    return records;
}

static uint32_t call(CUpti_CallbackId cbid)
{
    return cupti_double_call(CUPTI_CB_DOMAIN_RUNTIME_API, cbid);
}

static uint32_t launch_kernel(const char *name)
{
    const uint32_t correlation = call(DOUBLE_LAUNCH_KERNEL);
    cupti_double_kernel(&(struct cupti_double_kernel){
        .name = name, .correlation = correlation, .stream = 13, .grid = 5, .block = 64});
    return correlation;
}

/* ---- without the library ---- */

static void expect_refused(const char *library, const char *words)
{
    struct dpt_activity *activity = NULL;
    struct dpt_err err;
    assert_int_equal(setenv("DPT_CUPTI", library, 1), 0);
    assert_int_equal(dpt_activity_open(ROOM, &activity, &err), DPT_EUNSUPPORTED);
    assert_null(activity);
    if (!strstr(err.text, words))
        fail_msg("'%s' does not say '%s'", err.text, words);
}

static void test_library_is_absent(void **state)
{
    (void)state;
    expect_refused("/dev/null/libcupti.so", "/dev/null/libcupti.so");
    expect_refused("/dev/null/libcupti.so", "nvidia-cuda-cupti of PyPI");
    expect_refused("off", "DPT_CUPTI=off");
    expect_refused("libm.so.6", "has no cupti");
}

static void test_library_is_of_another_cuda(void **state)
{
    (void)state;
    cupti_double_set_version(120001);
    expect_refused(DPT_TEST_CUPTI, "of CUDA 12, this program of CUDA 13");
    cupti_double_set_version(28);
    expect_refused(DPT_TEST_CUPTI, "of CUDA 12, this program of CUDA 13");
    cupti_double_set_version(130200);
}

static void test_library_refuses(void **state)
{
    (void)state;
    static const struct {
        CUptiResult code;
        const char *words;
    } cases[] = {{CUPTI_ERROR_INSUFFICIENT_PRIVILEGES, "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES (35)"},
                 {CUPTI_ERROR_INSUFFICIENT_PRIVILEGES, "NVreg_RestrictProfilingToAdminUsers=0"},
                 {CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED, "another profiler"},
                 {CUPTI_ERROR_NOT_INITIALIZED, "driver is missing or older"},
                 {CUPTI_ERROR_UNKNOWN, "an unknown error (999)"},
                 {CUPTI_ERROR_UNKNOWN, "DPT_CUPTI=off"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cupti_double_refuse(cases[i].code);
        expect_refused(DPT_TEST_CUPTI, cases[i].words);
        assert_false(cupti_double_is_on());
    }
    cupti_double_refuse(CUPTI_SUCCESS);
}

/* A library that has served may refuse later. */
static void test_library_refuses_a_window(void **state)
{
    (void)state;
    struct dpt_err err;
    struct dpt_activity *activity = open_activity(ROOM);
    cupti_double_refuse(CUPTI_ERROR_INSUFFICIENT_PRIVILEGES);
    assert_int_equal(dpt_activity_start(activity, &err), DPT_EUNSUPPORTED);
    assert_false(cupti_double_is_on());
    cupti_double_refuse(CUPTI_SUCCESS);
    assert_int_equal(stop_and_read(activity).n, 0);
    dpt_activity_close(&activity);
    assert_null(activity);
}

/* ---- records ---- */

static const struct dpt_device_record *find_record(const struct dpt_device_records *records,
                                                   enum dpt_device_work kind, int nth)
{
    for (size_t i = 0; i < records->n; i++)
        if (records->record[i].kind == kind && nth-- == 0)
            return &records->record[i];
    fail_msg("there is no record %d of kind %d", nth, (int)kind);
    return NULL;
}

static void test_work_and_its_calls(void **state)
{
    (void)state;
    const int64_t began_ns = dpt_now_ns();
    struct dpt_activity *activity = start_activity(ROOM);
    const uint32_t launched = launch_kernel("_Z4workPfi"), copied = call(DOUBLE_MEMCPY_ASYNC);
    cupti_double_copy(copied, CUPTI_ACTIVITY_MEMCPY_KIND_HTOD, 4096);
    cupti_double_set(call(DOUBLE_MEMSET_ASYNC), 512);
    cupti_double_sync(call(DOUBLE_STREAM_SYNCHRONIZE),
                      CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_STREAM_SYNCHRONIZE, 13);
    cupti_double_sync(0, CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_CONTEXT_SYNCHRONIZE,
                      CUPTI_SYNCHRONIZATION_INVALID_VALUE);
    (void)call(DOUBLE_GET_LAST_ERROR); /* not recorded */
    cupti_double_device();             /* a kind that is not converted */
    (void)cupti_double_call(CUPTI_CB_DOMAIN_DRIVER_API, DOUBLE_CU_LAUNCH_KERNEL);
    const struct dpt_device_records records = stop_and_read(activity);
    assert_int_equal(records.n, 10);
    assert_int_equal(records.dropped, 0);
    const struct dpt_device_record *kernel = find_record(&records, DPT_DEVICE_KERNEL, 0),
                                   *launch = find_record(&records, DPT_DEVICE_CALL, 0);
    assert_string_equal(kernel->name, "work(float*, int)");
    assert_int_equal(kernel->correlation, launched);
    assert_int_equal(kernel->stream, 13);
    assert_int_equal(kernel->grid[0], 5);
    assert_int_equal(kernel->block[0], 64);
    assert_int_equal(kernel->registers, 32);
    assert_int_equal(kernel->shared_bytes, 16);
    assert_true(kernel->begin_ns >= began_ns && kernel->end_ns >= kernel->begin_ns);
    assert_true(kernel->end_ns <= dpt_now_ns());
    assert_string_equal(launch->name, "cudaLaunchKernel");
    assert_int_equal(launch->correlation, launched);
    assert_int_equal(launch->thread, gettid());
    assert_int_equal(launch->call, DOUBLE_LAUNCH_KERNEL);
    const struct dpt_device_record *copy = find_record(&records, DPT_DEVICE_COPY, 0);
    assert_string_equal(copy->name, "Memcpy HtoD (Pinned -> Device)");
    assert_int_equal(copy->bytes, 4096);
    assert_int_equal(copy->correlation, copied);
    assert_string_equal(find_record(&records, DPT_DEVICE_SET, 0)->name, "Memset (Device)");
    assert_int_equal(find_record(&records, DPT_DEVICE_SET, 0)->bytes, 512);
    assert_string_equal(find_record(&records, DPT_DEVICE_SYNC, 0)->name, "Stream Sync");
    assert_int_equal(find_record(&records, DPT_DEVICE_SYNC, 0)->stream, 13);
    assert_string_equal(find_record(&records, DPT_DEVICE_SYNC, 1)->name, "Context Sync");
    assert_int_equal(find_record(&records, DPT_DEVICE_SYNC, 1)->stream, DPT_DEVICE_NO_STREAM);
    assert_string_equal(find_record(&records, DPT_DEVICE_DRIVER_CALL, 0)->name, "cuLaunchKernel");
    dpt_activity_close(&activity);
}

/* All kernels of a graph have the correlation of its launch. */
static void test_kernels_of_a_graph(void **state)
{
    (void)state;
    struct dpt_activity *activity = start_activity(ROOM);
    const uint32_t correlation = call(DOUBLE_GRAPH_LAUNCH);
    for (int i = 0; i < 3; i++)
        cupti_double_kernel(&(struct cupti_double_kernel){
            .name = "node", .correlation = correlation, .graph = 9, .grid = 1, .block = 32});
    const struct dpt_device_records records = stop_and_read(activity);
    assert_int_equal(records.n, 4);
    for (int i = 0; i < 3; i++) {
        const struct dpt_device_record *kernel = find_record(&records, DPT_DEVICE_KERNEL, i);
        assert_int_equal(kernel->correlation, correlation);
        assert_int_equal(kernel->graph, 9);
        assert_ptr_equal(kernel->name, find_record(&records, DPT_DEVICE_KERNEL, 0)->name);
    }
    assert_string_equal(find_record(&records, DPT_DEVICE_CALL, 0)->name, "cudaGraphLaunch");
    dpt_activity_close(&activity);
}

/* More records than a buffer has room for. */
static void test_many_buffers(void **state)
{
    (void)state;
    struct dpt_activity *activity = start_activity((size_t)2 * MANY);
    for (int i = 0; i < MANY; i++)
        (void)launch_kernel("a");
    const struct dpt_device_records records = stop_and_read(activity);
    assert_int_equal(records.n, 2 * MANY);
    assert_int_equal(records.dropped, 0);
    dpt_activity_close(&activity);
}

static void test_dropped_records_are_counted(void **state)
{
    (void)state;
    enum { FEW = 4, LAUNCHES = 5, BY_CUPTI = 7, UNFINISHED = 1 };
    struct dpt_activity *activity = start_activity(FEW);
    cupti_double_unfinished_kernel(0);
    for (int i = 0; i < LAUNCHES; i++)
        (void)launch_kernel("a");
    cupti_double_drop(BY_CUPTI);
    const struct dpt_device_records records = stop_and_read(activity);
    assert_int_equal(records.n, FEW);
    assert_int_equal(records.dropped, UNFINISHED + 2 * LAUNCHES - FEW + BY_CUPTI);
    dpt_activity_close(&activity);
}

/* Only what begins in a window is recorded. */
static void test_windows(void **state)
{
    (void)state;
    struct dpt_err err;
    struct dpt_activity *activity = open_activity(ROOM);
    assert_false(cupti_double_is_on());
    (void)launch_kernel("before");
    assert_int_equal(dpt_activity_start(activity, &err), DPT_OK);
    assert_true(cupti_double_is_on());
    assert_true(cupti_double_leaves_out(DOUBLE_GET_LAST_ERROR));
    assert_false(cupti_double_leaves_out(DOUBLE_LAUNCH_KERNEL));
    (void)launch_kernel("warmup");
    cupti_double_drop(3);
    dpt_activity_restart(activity);
    (void)launch_kernel("window");
    struct dpt_device_records records = stop_and_read(activity);
    assert_int_equal(records.n, 2);
    assert_int_equal(records.dropped, 0);
    assert_string_equal(find_record(&records, DPT_DEVICE_KERNEL, 0)->name, "window");
    assert_false(cupti_double_is_on());
    (void)launch_kernel("after");
    assert_int_equal(dpt_activity_start(activity, &err), DPT_OK);
    records = stop_and_read(activity);
    assert_int_equal(records.n, 0);
    dpt_activity_stop(activity); /* no effect */
    assert_int_equal(dpt_activity_start(activity, &err), DPT_OK);
    dpt_activity_close(&activity); /* ends the window */
    assert_false(cupti_double_is_on());
    dpt_activity_close(&activity);
}

static void test_one_activity_a_process(void **state)
{
    (void)state;
    struct dpt_activity *first = start_activity(ROOM), *second = NULL;
    struct dpt_err err;
    assert_int_equal(dpt_activity_open(ROOM, &second, &err), DPT_EEXIST);
    assert_non_null(strstr(err.text, "another rank of this process"));
    (void)launch_kernel("a");
    assert_int_equal(stop_and_read(first).n, 2);
    dpt_activity_close(&first);
    second = open_activity(ROOM);
    dpt_activity_close(&second);
}

/* ---- names ---- */

static void test_names_fit_into_json(void **state)
{
    (void)state;
    char longest[2 * DPT_ACTIVITY_NAME_BYTES];
    memset(longest, 'x', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    struct dpt_activity *activity = start_activity(ROOM);
    (void)launch_kernel("a \"b\" \\c\n");
    (void)launch_kernel(longest);
    (void)launch_kernel("_Z this is no mangled name");
    const struct dpt_device_records records = stop_and_read(activity);
    assert_string_equal(find_record(&records, DPT_DEVICE_KERNEL, 0)->name, "a _b_ _c_");
    assert_int_equal(strlen(find_record(&records, DPT_DEVICE_KERNEL, 1)->name),
                     DPT_ACTIVITY_NAME_BYTES - 1);
    assert_string_equal(find_record(&records, DPT_DEVICE_KERNEL, 2)->name,
                        "_Z this is no mangled name");
    dpt_activity_close(&activity);
}

/* More names than are kept: records stay, and say that their name has no room. */
static void test_names_without_room(void **state)
{
    (void)state;
    enum { NAMES = 5000 };
    static char names[NAMES][16];
    struct dpt_activity *activity = start_activity((size_t)2 * NAMES);
    for (int i = 0; i < NAMES; i++) {
        (void)snprintf(names[i], sizeof names[i], "kernel_%d", i);
        (void)launch_kernel(names[i]);
    }
    const struct dpt_device_records records = stop_and_read(activity);
    assert_int_equal(records.n, 2 * NAMES);
    assert_string_equal(find_record(&records, DPT_DEVICE_KERNEL, 0)->name, "kernel_0");
    assert_string_equal(find_record(&records, DPT_DEVICE_KERNEL, NAMES - 1)->name,
                        "a name without room");
    dpt_activity_close(&activity);
}

/* ---- threads ---- */

static void *launch_many(void *arg)
{
    (void)arg;
    for (int i = 0; i < ROOM; i++)
        (void)launch_kernel("a");
    return NULL;
}

/* Threads launch while the library gives buffers back, and while a window begins and ends. */
static void test_threads(void **state)
{
    (void)state;
    pthread_t threads[THREADS];
    struct dpt_activity *activity = start_activity((size_t)2 * THREADS * ROOM);
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, launch_many, NULL), 0);
    for (int i = 0; i < THREADS; i++) {
        assert_int_equal(cuptiActivityFlushAll(0), CUPTI_SUCCESS);
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    }
    assert_int_equal(stop_and_read(activity).n, 2 * THREADS * ROOM);
    assert_int_equal(pthread_create(&threads[0], NULL, launch_many, NULL), 0);
    for (int i = 0; i < 10; i++) {
        struct dpt_err err;
        assert_int_equal(dpt_activity_start(activity, &err), DPT_OK);
        dpt_activity_restart(activity);
        assert_true(stop_and_read(activity).n <= (size_t)2 * ROOM);
    }
    dpt_activity_close(&activity);
    assert_int_equal(pthread_join(threads[0], NULL), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_library_is_absent),
        cmocka_unit_test(test_library_is_of_another_cuda),
        cmocka_unit_test(test_library_refuses),
        cmocka_unit_test(test_library_refuses_a_window),
        cmocka_unit_test(test_work_and_its_calls),
        cmocka_unit_test(test_kernels_of_a_graph),
        cmocka_unit_test(test_many_buffers),
        cmocka_unit_test(test_dropped_records_are_counted),
        cmocka_unit_test(test_windows),
        cmocka_unit_test(test_one_activity_a_process),
        cmocka_unit_test(test_names_fit_into_json),
        cmocka_unit_test(test_names_without_room),
        cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests_name("records of a GPU", tests, NULL, NULL);
}
