/* Ranks with a device that fails, stays absent, is too small or differs from the others; and a
 * communication library that fails. The message is clear, and the healthy ranks continue. */
#include "tests/worker/train/device_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

enum { BREAKS_RANK = 1 };

static int breaks_at = 700; /* ops of the device */

static enum dpt_status open_small(const struct dpt_rank_start *start, struct dpt_device **ret,
                                  struct dpt_err *err)
{
    (void)start;
    return dpt_device_discrete_create(1 << 16, ret, err);
}

static enum dpt_status open_one_that_breaks(const struct dpt_rank_start *start,
                                            struct dpt_device **ret, struct dpt_err *err)
{
    DPT_TRY(dpt_device_discrete_create(DEVICE_RIG_ROOM, ret, err));
    if (start->local_rank == BREAKS_RANK)
        dpt_device_discrete_fail(*ret, breaks_at);
    return DPT_OK;
}

/* The library fails on one rank, and no rank is dead: no rank and no step is lost. */
static void nccl_fails_on_one_rank(void **state)
{
    (void)state;
    char expected[64], dir[128], name[32];
    struct dpt_config config = rig_make_config(14, 12, "");
    keep_state_on_device(&config);
    rig_undisturbed(&config, "well", 1, false, expected);
    for (int i = 0; i < 6; i += dpt_test_every()) {
        (void)snprintf(name, sizeof name, "fails-%d", i);
        struct director *d = rig_begin(&config, name, dir);
        for (int rank = 0; rank < 3; rank++)
            (void)director_start(d, 0);
        nccl_views[i % 3].fault = FABRIC_FAILS_LATE;
        nccl_views[i % 3].fails_at = nccl_views[i % 3].ops + 20 + (uint64_t)i;
        assert_true(director_form(d, false));
        assert_string_equal(director_finish(d), expected);
        assert_true(nccl_views[i % 3].ops > nccl_views[i % 3].fails_at);
        assert_int_equal(director_steps_lost(d), 0);
        director_destroy(&d);
    }
}

/* One rank's library never comes back from the creation: that generation comes to nothing, and the
 * next one is formed. */
static void nccl_is_silent_at_first(void **state)
{
    (void)state;
    char expected[64], dir[128];
    struct dpt_config config = rig_make_config(14, 6, "");
    keep_state_on_device(&config);
    rig_undisturbed(&config, "not-silent", 1, false, expected);
    config.cluster.timeout_s = 0.5;
    struct director *d = rig_begin(&config, "silent", dir);
    for (int rank = 0; rank < 3; rank++)
        (void)director_start(d, 0);
    nccl_views[1].fault = FABRIC_SILENT_IN_INIT;
    assert_false(director_form(d, false));
    nccl_views[1].fault = FABRIC_WELL;
    assert_true(director_form(d, false));
    assert_string_equal(director_finish(d), expected);
    director_destroy(&d);
}

/* One rank's library fails in the creation: that rank alone ends, with its message. */
static void nccl_fails_at_first(void **state)
{
    (void)state;
    char expected[64], dir[128];
    struct dpt_config config = rig_make_config(14, 6, "");
    keep_state_on_device(&config);
    rig_undisturbed(&config, "not-failing", 1, false, expected);
    struct director *d = rig_begin(&config, "fails-at-first", dir);
    for (int rank = 0; rank < 3; rank++)
        (void)director_start(d, 0);
    nccl_views[1].fault = FABRIC_FAILS_IN_INIT;
    assert_false(director_form(d, false));
    assert_non_null(strstr(director_await_broken(d), "a fault of the test"));
    assert_true(director_form(d, false));
    assert_string_equal(director_finish(d), expected);
    assert_int_equal(director_steps_lost(d), 0);
    director_destroy(&d);
}

static void assert_refused(struct director *d, const char *words)
{
    director_prepare(d, false);
    director_plan(d);
    const char *text = director_await_fatal(d);
    if (!strstr(text, words))
        fail_msg("%s", text);
    director_destroy(&d);
}

static void ranks_differ_in_the_backend(void **state)
{
    (void)state;
    char dir[128];
    struct dpt_config config = rig_make_config(14, 6, "");
    keep_state_on_device(&config);
    struct director *d = rig_begin(&config, "differ", dir);
    (void)director_start(d, 0);
    director_offload(d);
    (void)director_start(d, 0);
    assert_refused(d, "give all nodes the same cluster.device and strategy.offload, or, where");
}

/* Without the promise of bits, a rank with a GPU and one without train together. */
static void a_gpu_beside_none(void **state)
{
    (void)state;
    char dir[128];
    struct dpt_config config = rig_make_config(14, 6, "");
    keep_state_on_device(&config);
    config.train.reduction = DPT_REDUCTION_FAST;
    struct director *d = rig_begin(&config, "nccl-and-none", dir);
    (void)director_start(d, 0);
    director_on_cpu(d);
    (void)director_start(d, 0);
    assert_refused(d, "write cluster.backend host");
    config.cluster.backend = DPT_BACKEND_HOST;
    d = rig_begin(&config, "host-and-none", dir);
    (void)director_start(d, 0);
    director_on_cpu(d);
    (void)director_start(d, 0);
    assert_true(director_form(d, false));
    (void)director_finish(d);
    assert_int_equal(director_best_step(d), 6);
    director_destroy(&d);
}

/* The library itself, of this build: it needs a GPU, at the least. One rank goes without it. */
static void there_is_no_nccl(void **state)
{
    (void)state;
    char dir[128], hash[64];
    struct dpt_config config = rig_make_config(14, 6, "");
    keep_state_on_device(&config);
    director_use_nccl(NULL);
    rig_undisturbed(&config, "alone", 1, false, hash);
    struct director *d = rig_begin(&config, "without", dir);
    (void)director_start(d, 0);
    (void)director_start(d, 1);
    assert_refused(d, "set cluster.backend to host");
}

/* Its rank reports the cause and ends; the others continue. */
static void breaks(const struct dpt_config *config, const char *name, const char *expected)
{
    char folder[64], dir[128];
    director_open_device_with(open_one_that_breaks);
    (void)snprintf(folder, sizeof folder, "breaks-%s", name);
    struct director *d = rig_begin(config, folder, dir);
    (void)director_start(d, 0);
    const int broken = director_start(d, 0);
    assert_int_equal(broken, BREAKS_RANK);
    assert_true(director_form(d, false));
    assert_non_null(strstr(director_await_broken(d), "the discrete device was told to break"));
    assert_true(director_form(d, false));
    assert_string_equal(director_finish(d), expected);
    assert_int_equal(director_steps_lost(d), 0);
    director_destroy(&d);
}

static void a_device_breaks(void **state)
{
    (void)state;
    char expected[64];
    struct dpt_config config = device_rig_config(DPT_ACCUMULATE_LOCAL, DPT_PRECISION_FP32, 12);
    rig_undisturbed(&config, "sound", 1, false, expected);
    breaks(&config, "offloaded", expected);
    keep_state_on_device(&config);
    breaks(&config, "kept", expected);
    config.cluster.backend = DPT_BACKEND_HOST;
    breaks(&config, "kept-by-host", expected);
}

/* In a step, between steps, in an evaluation: the other ranks continue from any point. */
static void a_device_breaks_anywhere(void **state)
{
    (void)state;
    char expected[64], name[32];
    const int usual = breaks_at;
    struct dpt_config config = device_rig_config(DPT_ACCUMULATE_LOCAL, DPT_PRECISION_FP32, 4);
    rig_evaluate(&config, 1, 5);
    keep_state_on_device(&config);
    rig_undisturbed(&config, "sound-evaluating", 1, false, expected);
    for (breaks_at = 500; breaks_at < 1200; breaks_at += 41 * dpt_test_every()) {
        (void)snprintf(name, sizeof name, "at-%d", breaks_at);
        breaks(&config, name, expected);
    }
    breaks_at = usual;
}

static enum dpt_status open_none(const struct dpt_rank_start *start, struct dpt_device **ret,
                                 struct dpt_err *err)
{
    (void)ret;
    return dpt_fail(err, DPT_EDEVICE, "device %d has fallen off the bus", start->local_rank);
}

/* A device that cannot be opened at the start of a run ends the run. If it cannot be opened after
 * the process has ended once, its place stays empty, and the others continue. */
static void a_device_stays_away(void **state)
{
    (void)state;
    struct dpt_config config = device_rig_config(DPT_ACCUMULATE_LOCAL, DPT_PRECISION_FP32, 6);
    char expected[64], dir[128];
    const char *text = NULL;
    director_open_device_with(open_none);
    struct director *d = rig_begin(&config, "never-there", dir);
    assert_true(director_fatal(d, director_start(d, 0), &text));
    assert_non_null(strstr(text, "device 0 has fallen off the bus"));
    director_destroy(&d);
    director_open_device_with(device_rig_open);
    rig_undisturbed(&config, "there", 1, false, expected);
    d = rig_begin(&config, "gone", dir);
    (void)director_start(d, 0);
    assert_true(director_form(d, false));
    director_open_device_with(open_none);
    director_respawn(d);
    (void)director_start(d, 0);
    assert_non_null(strstr(director_await_broken(d), "device 1 has fallen off the bus"));
    assert_string_equal(director_finish(d), expected);
    assert_int_equal(director_steps_lost(d), 0);
    director_destroy(&d);
}

static void a_device_is_too_small(void **state)
{
    (void)state;
    struct dpt_config config = device_rig_config(DPT_ACCUMULATE_LOCAL, DPT_PRECISION_FP32, 3);
    char dir[128];
    director_open_device_with(open_small);
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
    offload(&config);
    rig_undisturbed(&config, "began", 1, false, hash);
    config.cluster.device = DPT_DEVICE_CPU;
    config.strategy.offload = DPT_OFFLOAD_NONE;
    struct director *d = rig_begin(&config, "goes-on", dir);
    director_read_checkpoints(d, rig_dir("began"));
    const int handle = director_start(d, 0);
    const char *text = NULL;
    assert_true(director_fatal(d, handle, &text));
    assert_non_null(strstr(text, "another kind of machine: discrete"));
    director_destroy(&d);
}

int main(void)
{
#define T(test) cmocka_unit_test_setup_teardown(test, device_rig_setup, device_rig_teardown)
    const struct CMUnitTest tests[] = {
        T(nccl_fails_on_one_rank), T(nccl_is_silent_at_first),
        T(nccl_fails_at_first),    T(ranks_differ_in_the_backend),
        T(a_gpu_beside_none),      T(there_is_no_nccl),
        T(a_device_breaks),        T(a_device_breaks_anywhere),
        T(a_device_stays_away),    T(a_device_is_too_small),
        T(a_host_does_not_go_on),
    };
    return cmocka_run_group_tests_name("devices that are lost", tests, rig_setup, rig_teardown);
}
