/* Timed ops: each is counted in its class, times add up to the elapsed time, and the bits are those
 * of untimed ops; on the CPU and on a device with a queue. */
#include "kernels/op_times.h"

#include "base/clock.h"
#include "kernels/ops.h"
#include "tests/every.h"
#include "tests/kernels/discrete.h"
#include "tests/kernels/harness.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

enum { N = 1 << 18, ROOM = 64 << 20, MANY = 20000 };

/* Of sums of doubles. */
static const double ROUNDING_MS = 1e-6;

static struct test_stream open_device(bool discrete, bool timed)
{
    struct test_stream t = {.errors = 0};
    struct dpt_err err;
    assert_int_equal(discrete ? dpt_device_discrete_create(ROOM, &t.device, &err)
                              : dpt_device_cpu_create(&t.device, &err),
                     DPT_OK);
    if (timed)
        dpt_device_time_ops(t.device);
    assert_int_equal(dpt_stream_create(t.device, 1, &t.stream, &err), DPT_OK);
    t.ops = dpt_device_ops(t.device);
    return t;
}

static double sum_ms(const struct dpt_op_times *times)
{
    double ms = times->idle_ms;
    for (int i = 0; i < DPT_OP_CLASSES; i++)
        ms += times->ms[i];
    return ms;
}

static void times_add_up(void **state)
{
    (void)state;
    for (int discrete = 0; discrete < 2; discrete++) {
        struct test_stream t = open_device(discrete, true);
        struct dpt_op_times first, second, between;
        float *x = calloc(N, sizeof *x);
        float *at = test_upload(&t, x, N * sizeof *x);
        dpt_stream_op_times(t.stream, &first);
        assert_true(first.calls[DPT_OP_COPY] == 1);
        const int64_t began_ns = dpt_now_ns();
        t.ops->fill(t.stream, N, 1, at);
        for (int i = 0; i < 5; i++)
            t.ops->add(t.stream, N, at, at, at);
        t.ops->gelu_forward(t.stream,
                            &(struct dpt_gelu){.n = N, .dtype = DPT_F32, .x = at, .out = at});
        test_stream_check(&t);
        const double covered_ms = 1e-6 * (double)(dpt_now_ns() - began_ns);
        test_download(&t, at, N * sizeof *x, x);
        const double passed_ms = 1e-6 * (double)(dpt_now_ns() - began_ns);
        dpt_stream_op_times(t.stream, &second);
        dpt_op_times_since(&second, &first, &between);
        assert_int_equal(between.calls[DPT_OP_SUM], 5);
        assert_int_equal(between.calls[DPT_OP_GELU], 1);
        assert_int_equal(between.calls[DPT_OP_COPY], 2);
        assert_int_equal(between.calls[DPT_OP_LINEAR], 0);
        assert_true(between.ms[DPT_OP_SUM] > 0 && between.ms[DPT_OP_GELU] > 0);
        assert_true(between.idle_ms >= 0);
        /* Ops and the times between them cover the time from the end of the upload to the end of
         * the download without a gap, and so the whole time from one sync to the next. */
        assert_true(sum_ms(&between) - between.idle_ms <= passed_ms);
        assert_true(sum_ms(&between) >= covered_ms - ROUNDING_MS);
        assert_float_equal(x[0], 32, 1e-5);
        dpt_device_free(t.device, at, N * sizeof *x);
        free(x);
        test_stream_close(&t);
    }
}

static void preparing_does_not_count(void **state)
{
    (void)state;
    for (int discrete = 0; discrete < 2; discrete++) {
        struct test_stream t = open_device(discrete, true);
        struct dpt_op_times times;
        struct dpt_err err;
        dpt_stream_prepare_begin(t.stream);
        t.ops->fill(t.stream, N, 1, NULL);
        assert_int_equal(dpt_stream_prepare_end(t.stream, &err), DPT_OK);
        dpt_stream_op_times(t.stream, &times);
        assert_float_equal(sum_ms(&times), 0, 0);
        assert_int_equal(times.calls[DPT_OP_COPY], 0);
        test_stream_close(&t);
    }
}

/* More ops than a queue has marks for, without a wait between them. */
static void more_than_marks(void **state)
{
    (void)state;
    struct test_stream t = open_device(true, true);
    struct dpt_op_times times;
    float zero = 0, *at = test_upload(&t, &zero, sizeof zero);
    for (int i = 0; i < MANY; i++)
        t.ops->fill(t.stream, 1, (float)i, at);
    test_download(&t, at, sizeof zero, &zero);
    dpt_stream_op_times(t.stream, &times);
    assert_int_equal(times.calls[DPT_OP_COPY], MANY + 2);
    assert_float_equal(zero, MANY - 1, 0);
    dpt_device_free(t.device, at, sizeof zero);
    test_stream_close(&t);
}

/* Each entry is there, and is another one than the device's own. */
static void every_op_is_timed(void **state)
{
    (void)state;
    typedef void (*op)(void);
    enum { OPS = sizeof(struct dpt_ops) / sizeof(op) };
    struct test_stream plain = open_device(false, false), timed = open_device(false, true);
    op mine[OPS], theirs[OPS];
    memcpy(mine, timed.ops, sizeof mine);
    memcpy(theirs, plain.ops, sizeof theirs);
    for (int i = 0; i < OPS; i++) {
        assert_true(mine[i] != NULL);
        assert_true(mine[i] != theirs[i]);
        for (int k = 0; k < i; k++)
            assert_true(mine[i] != mine[k]);
    }
    test_stream_close(&plain);
    test_stream_close(&timed);
}

/* The cases of the ops' tests, through the timed table: each result is as close as it was, and
 * something was counted. */
static void cases_pass(void **state)
{
    (void)state;
    static const double tolerance[DPT_DTYPE_COUNT] = {1e-5, 4e-3, 5e-4};
    struct test_stream t = open_device(false, true);
    struct dpt_op_times times;
    int64_t before = 0;
    for (int i = 0; i < op_case_count; i += dpt_test_sanitized_every()) {
        if (case_compare(&op_cases[i], DPT_F32, &t, tolerance, false) != 0)
            fail_msg("case %d", i);
        dpt_stream_op_times(t.stream, &times);
        int64_t calls = 0;
        for (int k = 0; k < DPT_OP_CLASSES; k++)
            calls += times.calls[k];
        assert_true(calls > before);
        before = calls;
    }
    test_stream_close(&t);
}

/* ---- the sink of a trace ---- */

enum { TRACED_MAX = 8 };
static struct {
    const char *op;
    struct dpt_op_shape shape;
    int64_t begin_ns, end_ns;
} traced[TRACED_MAX];
static int n_traced;

static void note_traced(const char *op, const struct dpt_op_shape *shape, int64_t begin_ns,
                        int64_t end_ns)
{
    assert_true(n_traced < TRACED_MAX);
    traced[n_traced].shape = *shape;
    traced[n_traced].op = op;
    traced[n_traced].begin_ns = begin_ns;
    traced[n_traced++].end_ns = end_ns;
}

static bool wants_ops;

static bool are_wanted(void)
{
    return wants_ops;
}

static void sink_receives_wanted_ops(void **state)
{
    (void)state;
    struct test_stream t = {.errors = 0};
    struct dpt_err err;
    float x[16] = {0}, y[4] = {1};
    assert_int_equal(dpt_device_cpu_create(&t.device, &err), DPT_OK);
    dpt_device_trace_ops(t.device, note_traced, are_wanted);
    assert_int_equal(dpt_stream_create(t.device, 1, &t.stream, &err), DPT_OK);
    t.ops = dpt_device_ops(t.device);
    const int64_t began_ns = dpt_now_ns();
    struct dpt_op_times times;
    n_traced = 0;
    wants_ops = false;
    t.ops->copy(t.stream, sizeof x, x, x);
    assert_int_equal(n_traced, 0);
    wants_ops = true;
    t.ops->copy(t.stream, sizeof y, y, x);
    t.ops->linear_row(t.stream,
                      &(struct dpt_linear_row){.in = 4, .out = 4, .x = x, .w = x, .y = y});
    test_stream_check(&t);
    assert_int_equal(n_traced, 2);
    assert_string_equal(traced[0].op, "copy");
    assert_string_equal(traced[0].shape.name[0], "bytes");
    assert_int_equal(traced[0].shape.size[0], sizeof y);
    assert_null(traced[0].shape.name[1]);
    assert_string_equal(traced[1].op, "linear_row");
    assert_string_equal(traced[1].shape.name[0], "in");
    assert_string_equal(traced[1].shape.name[1], "out");
    assert_int_equal(traced[1].shape.size[1], 4);
    assert_true(began_ns <= traced[0].begin_ns && traced[0].begin_ns <= traced[0].end_ns);
    assert_true(traced[0].end_ns <= traced[1].begin_ns && traced[1].begin_ns <= traced[1].end_ns);
    dpt_stream_op_times(t.stream, &times); /* nobody asked for the sums */
    for (int i = 0; i < DPT_OP_CLASSES; i++)
        assert_int_equal(times.calls[i], 0);
    test_stream_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(times_add_up),    cmocka_unit_test(preparing_does_not_count),
        cmocka_unit_test(more_than_marks), cmocka_unit_test(every_op_is_timed),
        cmocka_unit_test(cases_pass),      cmocka_unit_test(sink_receives_wanted_ops),
    };
    return cmocka_run_group_tests_name("times of ops", tests, NULL, NULL);
}
