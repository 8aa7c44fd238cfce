/* Packing in place: values that are packed, carried from the first half of one place to the second
 * half of another and unpacked there are the rounded values; neighbouring memory does not
 * change. */
#include "worker/strategy/reduce/packed_values.h"

#include "base/rng.h"
#include "kernels/device.h"
#include "kernels/half.h"
#include "kernels/op_times.h"
#include "worker/model/model.h"
#include "worker/trace/recorder.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <string.h>

enum { NUMEL_MAX = 3 * 2048 + 5, GUARD = 7 };

static float round_to_dtype(enum dpt_dtype dtype, float x)
{
    return dtype == DPT_BF16 ? dpt_f32_of_bf16(dpt_bf16_of_f32(x))
                             : dpt_f32_of_f16(dpt_f16_of_f32(x));
}

static void there_and_back(void **state)
{
    (void)state;
    static const int64_t numels[] = {0, 1, 2, 15, 2047, 2048, 2049, 4096, NUMEL_MAX};
    static float from[NUMEL_MAX + GUARD], to[NUMEL_MAX + GUARD], expected[NUMEL_MAX + GUARD];
    struct dpt_err err;
    struct dpt_device *device;
    struct dpt_stream *stream;
    assert_int_equal(dpt_device_cpu_create(&device, &err), DPT_OK);
    assert_int_equal(dpt_stream_create(device, 1, &stream, &err), DPT_OK);
    const struct dpt_ops *ops = dpt_device_ops(device);
    for (enum dpt_dtype dtype = DPT_BF16; dtype <= DPT_F16; dtype++)
        for (size_t k = 0; k < sizeof numels / sizeof numels[0]; k++) {
            const int64_t n = numels[k];
            for (int64_t i = 0; i < NUMEL_MAX + GUARD; i++) {
                uint32_t block[4];
                dpt_philox(dpt_rng_key(k, DPT_RNG_TEST, 4, 0, 0), (uint64_t)i, block);
                from[i] = (float)(int32_t)block[0] * 0x1p-20f;
                to[i] = -1.0f;
                expected[i] = i < n ? round_to_dtype(dtype, from[i]) : -1.0f;
            }
            const float guard = from[n];
            dpt_wire_pack(ops, stream, dtype, n, from);
            assert_true(from[n] == guard);
            memcpy(dpt_wire_inbox(n, to), from, (size_t)n * 2);
            dpt_wire_unpack(ops, stream, dtype, n, to);
            assert_int_equal(dpt_stream_sync(stream, &err), DPT_OK);
            assert_memory_equal(to, expected, sizeof to);
        }
    dpt_stream_destroy(&stream);
    dpt_device_destroy(&device);
}

static void precision_has_its_dtype(void **state)
{
    (void)state;
    assert_int_equal(dpt_dtype_of(DPT_PRECISION_FP32), DPT_F32);
    assert_int_equal(dpt_dtype_of(DPT_PRECISION_TF32), DPT_F32);
    assert_int_equal(dpt_dtype_of(DPT_PRECISION_BF16), DPT_BF16);
    assert_int_equal(dpt_dtype_of(DPT_PRECISION_FP16), DPT_F16);
}

static int n_passed;

static void count_op(const char *op, const struct dpt_op_shape *shape, int64_t begin_ns,
                     int64_t end_ns)
{
    (void)op;
    (void)shape;
    (void)begin_ns;
    (void)end_ns;
    n_passed++;
}

static bool is_traced_now(void)
{
    return dpt_trace_begin() != 0;
}

/* In a trace each call is one op, and the ops of its chunks are none. */
static void traced_calls_are_one_op(void **state)
{
    (void)state;
    static float values[NUMEL_MAX];
    struct dpt_err err;
    struct dpt_device *device;
    struct dpt_stream *stream;
    struct dpt_trace_recorder *recorder;
    struct dpt_trace_events events;
    assert_int_equal(dpt_device_cpu_create(&device, &err), DPT_OK);
    dpt_device_trace_ops(device, count_op, is_traced_now);
    assert_int_equal(dpt_stream_create(device, 1, &stream, &err), DPT_OK);
    assert_int_equal(dpt_trace_recorder_create(64, &recorder, &err), DPT_OK);
    dpt_trace_attach(recorder, DPT_TRACE_COMM);
    dpt_trace_recorder_begin(recorder);
    dpt_wire_pack(dpt_device_ops(device), stream, DPT_BF16, NUMEL_MAX, values);
    dpt_wire_unpack(dpt_device_ops(device), stream, DPT_BF16, NUMEL_MAX, values);
    dpt_trace_recorder_end(recorder);
    dpt_trace_recorder_read(recorder, DPT_TRACE_COMM, &events);
    assert_int_equal(n_passed, 0);
    assert_int_equal(events.n, 2);
    assert_string_equal(events.event[0].span.name, "wire_pack");
    assert_string_equal(events.event[1].span.name, "wire_unpack");
    assert_int_equal(events.event[1].span.value[0], NUMEL_MAX);
    dpt_trace_attach(NULL, DPT_TRACE_COMM);
    dpt_trace_recorder_destroy(&recorder);
    dpt_stream_destroy(&stream);
    dpt_device_destroy(&device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(there_and_back),
                                       cmocka_unit_test(traced_calls_are_one_op),
                                       cmocka_unit_test(precision_has_its_dtype)};
    return cmocka_run_group_tests_name("packed values", tests, NULL, NULL);
}
