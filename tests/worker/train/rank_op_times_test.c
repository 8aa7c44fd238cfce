/* log.op_times: the times of a rank's kernels, on the host and on a device, are written at the end
 * of a run. The run has the bits of a run without log.op_times. */
#include "tests/worker/train/device_rig.h"

#include "kernels/op_times.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { STEPS = 6 };

static json_t *read_times(const char *dir)
{
    char path[192];
    json_error_t error;
    (void)snprintf(path, sizeof path, "%s/node-/rank-0.op_times.json", dir);
    json_t *times = json_load_file(path, 0, &error);
    if (!times)
        fail_msg("%s: %s", path, error.text);
    return times;
}

static json_int_t calls_of(const json_t *stream, enum dpt_op_class class)
{
    const json_t *found =
        json_object_get(json_object_get(stream, "classes"), dpt_op_class_name(class));
    return found ? json_integer_value(json_object_get(found, "calls")) : 0;
}

static double ms_of(const json_t *stream, const char *key)
{
    assert_true(json_is_real(json_object_get(stream, key)));
    return json_real_value(json_object_get(stream, key));
}

/* Per slot: four products, attention and two norms a block, forward and backward, one norm and the
 * head at the end. */
static void check_model(const json_t *stream, json_int_t slots)
{
    enum { LAYERS = 2 };
    assert_int_equal(calls_of(stream, DPT_OP_LINEAR), slots * LAYERS * 4 * 2);
    assert_int_equal(calls_of(stream, DPT_OP_ATTENTION), slots * LAYERS * 2);
    assert_int_equal(calls_of(stream, DPT_OP_LAYERNORM), slots * (LAYERS * 2 + 1) * 2);
    assert_int_equal(calls_of(stream, DPT_OP_HEAD), slots);
    assert_int_equal(calls_of(stream, DPT_OP_EMBEDDING), slots * 2);
    assert_true(ms_of(stream, "busy_ms") > 0);
    assert_true(ms_of(stream, "idle_ms") >= 0);
}

static void of_the_host(void **state)
{
    (void)state;
    struct dpt_config config = rig_make_config(14, STEPS, "");
    char plain[64], timed[64];
    rig_undisturbed(&config, "plain", 1, false, plain);
    config.log.op_times = true;
    rig_undisturbed(&config, "timed", 1, false, timed);
    assert_string_equal(plain, timed);
    json_t *times = read_times(rig_dir("timed"));
    assert_int_equal(json_integer_value(json_object_get(times, "steps")), STEPS - 1);
    const json_t *host = json_object_get(times, "host");
    check_model(host, (json_int_t)(STEPS - 1) * 7);
    assert_true(calls_of(host, DPT_OP_OPTIMIZER) > 0);
    assert_true(json_is_null(json_object_get(times, "device")));
    json_decref(times);
    char path[192];
    (void)snprintf(path, sizeof path, "%s/node-/rank-0.op_times.json", rig_dir("plain"));
    assert_int_equal(access(path, F_OK), -1);
}

static void of_a_device(void **state)
{
    (void)state;
    struct dpt_config config = device_rig_config(DPT_ACCUMULATE_LOCAL, DPT_PRECISION_FP32, STEPS);
    char plain[64], timed[64];
    config.train.eval_every = 0;
    config.data.val[0] = '\0';
    for (int kept = 0; kept < 2; kept++) {
        if (kept)
            keep_state_on_device(&config);
        config.log.op_times = false;
        rig_undisturbed(&config, kept ? "kept" : "offloaded", 1, false, plain);
        config.log.op_times = true;
        rig_undisturbed(&config, kept ? "kept-timed" : "offloaded-timed", 1, false, timed);
        assert_string_equal(plain, timed);
        json_t *times = read_times(rig_dir(kept ? "kept-timed" : "offloaded-timed"));
        const json_t *host = json_object_get(times, "host"),
                     *device = json_object_get(times, "device");
        check_model(device, (json_int_t)(STEPS - 1) * 11);
        assert_true((calls_of(device, DPT_OP_OPTIMIZER) > 0) == (kept != 0));
        assert_true((calls_of(host, DPT_OP_OPTIMIZER) > 0) == (kept == 0));
        json_decref(times);
    }
}

int main(void)
{
#define T(test) cmocka_unit_test_setup_teardown(test, device_rig_setup, device_rig_teardown)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(of_the_host),
        T(of_a_device),
    };
    return cmocka_run_group_tests_name("times of a rank's kernels", tests, rig_setup, rig_teardown);
}
