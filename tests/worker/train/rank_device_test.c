/* Ranks with a device that computes the model (strategy.offload: optimizer) or also keeps the state
 * (none): damage there is found, NCCL sends the expected bytes, and memory is on the expected
 * device. */
#include "tests/worker/train/device_rig.h"
#include "tests/worker/train/plain.h"

#include "base/fs.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static double summary_number(const char *dir, const char *name)
{
    json_t *summary = rig_summary_of(dir);
    const double value = json_number_value(json_object_get(summary, name));
    json_decref(summary);
    return value;
}

/* Texts of different lengths are padded to one here: another shape than the host's, and so other
 * bits; but one hash and one accuracy of all strategies and worlds, with the host's loss. */
static void samples_with_labels(void **state)
{
    (void)state;
    struct dpt_config config = device_rig_config(DPT_ACCUMULATE_LOCAL, DPT_PRECISION_FP32, 6);
    char on_host[DPT_HASH_HEX_BYTES], first[64], hash[64], name[64];
    struct plain_validation found;
    rig_choose_labels(&config);
    rig_evaluate(&config, 2, DEVICE_RIG_SEQUENCES);
    config.model.dropout = 0; /* its random numbers depend on the shape */
    plain_train_and_evaluate(&config, DEVICE_RIG_SEQUENCES, on_host, &found);
    rig_undisturbed(&config, "labels", 1, false, first);
    for (int s = 0; s < RIG_STRATEGIES; s += dpt_test_every()) {
        (void)snprintf(name, sizeof name, "labels-%s", rig_strategies[s]);
        rig_choose(&config, rig_strategies[s]);
        rig_undisturbed(&config, name, 2 + s % 2, true, hash);
        assert_string_equal(hash, first);
        assert_true(summary_number(rig_dir(name), "val_loss") ==
                    summary_number(rig_dir("labels"), "val_loss"));
        assert_true(summary_number(rig_dir(name), "val_accuracy") ==
                    (double)found.right / DEVICE_RIG_SEQUENCES);
    }
    assert_true(fabs(summary_number(rig_dir("labels"), "val_loss") - found.loss) <
                1e-5 * found.loss);
    rig_choose(&config, "ddp");
    keep_state_on_device(&config);
    rig_undisturbed(&config, "labels-on-device", 2, false, hash);
    assert_string_equal(hash, first);
}

/* ---- the state is on the device ---- */

/* Rank 1's device damages the third step; the next comparison is after the fourth. */
static void damage_of_what_is_kept_there_is_found(void **state)
{
    (void)state;
    char dir[128];
    struct dpt_config config = rig_make_config(14, 9, "");
    keep_state_on_device(&config);
    config.train.verify_every = 4;
    assert_int_equal(setenv("DPT_TEST_FLIP_WEIGHT_BIT", "1:2", 1), 0);
    struct director *d = rig_begin(&config, "damaged", dir);
    for (int rank = 0; rank < 3; rank++)
        (void)director_start(d, rank % 2);
    assert_int_equal(unsetenv("DPT_TEST_FLIP_WEIGHT_BIT"), 0);
    assert_true(director_form(d, false));
    const char *text = director_await_fatal(d);
    if (!strstr(text, "rank 1 holds other weights or moments after step 4 than rank 0"))
        fail_msg("%s", text);
    director_destroy(&d);
}

/* One rank has fetched its state from the device, for its checkpoints, and the others have not: the
 * compared weights are still those of the step. */
static void compared_weights_are_read_from_device_again(void **state)
{
    (void)state;
    char plain[64], dir[128];
    struct dpt_config config = rig_make_config(14, 9, "");
    keep_state_on_device(&config);
    rig_undisturbed(&config, "unverified", 1, false, plain);
    config.train.verify_every = 3;
    config.checkpoint.every_steps = 2;
    struct director *d = rig_begin(&config, "one-writes", dir);
    director_one_writes(d);
    for (int rank = 0; rank < 3; rank++)
        (void)director_start(d, rank % 2);
    assert_true(director_form(d, false));
    assert_string_equal(director_finish(d), plain);
    director_destroy(&d);
}

/* One bit of a gradient there makes another trajectory. */
static void a_bit_on_the_device_counts(void **state)
{
    (void)state;
    char sound[64], flipped[64];
    struct dpt_config config = rig_make_config(14, 3, "");
    keep_state_on_device(&config);
    rig_undisturbed(&config, "sound", 2, false, sound);
    assert_int_equal(setenv("DPT_TEST_FLIP_GRADIENT_BIT", "1:1", 1), 0);
    rig_undisturbed(&config, "flipped", 2, false, flipped);
    assert_int_equal(unsetenv("DPT_TEST_FLIP_GRADIENT_BIT"), 0);
    assert_string_not_equal(sound, flipped);
}

static void state_kept_there_survives(void **state)
{
    (void)state;
    struct dpt_config config = rig_make_config(14, 18, "");
    keep_state_on_device(&config);
    rig_deaths_and_healing(&config);
    assert_true(nccl_views[0].shrinks > 0); /* of the groups of dead ranks */
    config.train.precision = DPT_PRECISION_BF16;
    rig_deaths_and_healing(&config);
    rig_all_die(&config);
    const uint64_t bytes = nccl_fabric.bytes;
    config.cluster.backend = DPT_BACKEND_HOST;
    rig_deaths_and_healing(&config);
    assert_true(nccl_fabric.bytes == bytes);
}

/* ---- NCCL ---- */

static json_int_t elements_of(const char *name)
{
    char path[192];
    json_error_t error;
    (void)snprintf(path, sizeof path, "%s/node-/rank-0.memory.json", rig_dir(name));
    json_t *account = json_load_file(path, 0, &error);
    assert_non_null(account);
    const json_int_t elements = json_integer_value(json_object_get(account, "elements"));
    json_decref(account);
    return elements;
}

/* If each rank's lanes make one sum: the least that an all-reduce sends, 2 (N - 1) D. */
static void nccl_sends_what_it_must(void **state)
{
    (void)state;
    enum { STEPS = 3, WORLD = 4 };
    char hash[64];
    struct dpt_config config = rig_make_config(16, STEPS, "");
    keep_state_on_device(&config);
    rig_undisturbed(&config, "sent", WORLD, true, hash);
    const json_int_t d = elements_of("sent") * (json_int_t)sizeof(float);
    assert_int_equal(nccl_fabric.bytes, STEPS * 2 * (WORLD - 1) * d);
}

/* By the library's own sum: near the canonical curve, the same on all ranks, through a death. */
static void nccl_adds_as_it_likes(void **state)
{
    (void)state;
    char canonical[64], hash[64], dir[128];
    struct dpt_config config = rig_make_config(2 * 11, 12, "");
    keep_state_on_device(&config);
    config.train.verify_every = 1;
    rig_undisturbed(&config, "in-order", 3, false, canonical);
    const double loss = summary_number(rig_dir("in-order"), "loss");
    config.train.reduction = DPT_REDUCTION_FAST;
    rig_undisturbed(&config, "as-it-likes", 3, false, hash);
    assert_string_not_equal(hash, canonical);
    struct director *d = rig_begin(&config, "likes-and-dies", dir);
    (void)director_start(d, 0);
    const int dies = director_start(d, 1);
    (void)director_start(d, 0);
    assert_true(director_form(d, false));
    director_await_step(d, 4);
    director_kill(d, dies);
    (void)director_form(d, false);
    (void)director_finish(d);
    assert_int_equal(director_steps_lost(d), 0);
    director_destroy(&d);
    for (int i = 0; i < 2; i++) {
        const char *name = i == 0 ? "as-it-likes" : "likes-and-dies";
        const double off = fabs(summary_number(rig_dir(name), "loss") / loss - 1);
        if (!(off <= 1e-3))
            fail_msg("%s is off by %g", name, off);
    }
    /* The host's ranks add each bucket in the lanes' order, the library from the last rank on. */
    config.cluster.backend = DPT_BACKEND_HOST;
    rig_undisturbed(&config, "by-the-host", 3, false, canonical);
    assert_string_not_equal(hash, canonical);
}

/* Activations, and the weights that are computed with, are the device's, with the state that is
 * kept there; the rest is the host's. */
static void memory_is_where_it_should_be(void **state)
{
    (void)state;
    struct dpt_config config = device_rig_config(DPT_ACCUMULATE_LOCAL, DPT_PRECISION_FP32, 3);
    json_int_t elements;
    assert_true(device_rig_bytes(&config, "memory", 2, &elements) > 2 * 4 * elements);
    config.train.precision = DPT_PRECISION_BF16;
    keep_state_on_device(&config);
    assert_true(device_rig_bytes(&config, "memory-kept", 1, &elements) > (2 + 12 + 4) * elements);
    assert_true(device_rig_bytes(&config, "memory-kept-2", 2, &elements) > (2 + 12 + 4) * elements);
    config.cluster.backend = DPT_BACKEND_HOST;
    assert_true(device_rig_bytes(&config, "memory-by-host", 2, &elements) >
                (2 + 12 + 4) * elements);
}

/* While the run goes on a line of each rank has the device's memory, in which the state lies; at
 * the end come the table of the device and that of the host. */
static void lines_have_the_memory_of_the_device(void **state)
{
    (void)state;
    enum { STEPS = 4 };
    struct dpt_config config = device_rig_config(DPT_ACCUMULATE_LOCAL, DPT_PRECISION_FP32, STEPS);
    char hash[64], said[160], line[96];
    struct dpt_err err;
    keep_state_on_device(&config);
    config.log.memory_every = 2;
    assert_int_equal(dpt_fs_mkdirs(rig_dir("lines"), &err), DPT_OK);
    const int fd = rig_log_to(rig_dir("lines"), said);
    rig_undisturbed(&config, "lines", 2, true, hash);
    rig_log_back(fd);
    char path[192];
    json_error_t error;
    (void)snprintf(path, sizeof path, "%s/node-/rank-0.memory.json", rig_dir("lines"));
    json_t *account = json_load_file(path, 0, &error), *device = json_object_get(account, "device"),
           *tags = json_object_get(device, "tags");
    assert_non_null(account);
    const json_int_t moments = json_integer_value(
                         json_object_get(json_object_get(tags, "moments"), "bytes")),
                     bytes = json_integer_value(json_object_get(device, "bytes"));
    assert_true(moments > 0 && bytes > moments);
    (void)snprintf(line, sizeof line, "optim=%.1f alloc=%.1f ", (double)moments / 0x1p20,
                   (double)bytes / 0x1p20);
    json_decref(account);
    for (int rank = 0; rank < 2; rank++) {
        char begin[32];
        (void)snprintf(begin, sizeof begin, "[Rank %d] model=", rank);
        assert_int_equal(rig_said(said, begin), 1 + STEPS / 2); /* the first step has one, too */
    }
    assert_true(rig_said(said, line) >= 1 + STEPS / 2);
    assert_int_equal(rig_said(said, "Allocated vs Estimated, GPU, MB"), 2);
    assert_int_equal(rig_said(said, "Allocated vs Estimated, host, MB"), 2);
    assert_int_equal(rig_said(said, "workspace "), 2);
}

/* What a step's lists and marks have of other memory is some numbers long. */
static void bulk_copies_are_page_locked(void **state)
{
    (void)state;
    static const char *const strategies[] = {"ddp", "full_shard+shadow"};
    enum { OF_NUMBERS = 256 };
    char hash[64], name[64];
    for (int i = 0; i < 2; i++)
        for (int kept = 0; kept < 2; kept++) {
            struct dpt_config config =
                device_rig_config(DPT_ACCUMULATE_LOCAL, DPT_PRECISION_BF16, 3);
            if (kept)
                keep_state_on_device(&config);
            config.train.verify_every = 1;
            rig_choose(&config, strategies[i]);
            (void)snprintf(name, sizeof name, "locked-%s-%d", strategies[i], kept);
            (void)dpt_device_discrete_pageable();
            rig_undisturbed(&config, name, 2, true, hash);
            const size_t bytes = dpt_device_discrete_pageable();
            if (bytes > OF_NUMBERS)
                fail_msg("%s: a copy of %zu bytes", name, bytes);
        }
}

int main(void)
{
#define T(test) cmocka_unit_test_setup_teardown(test, device_rig_setup, device_rig_teardown)
    const struct CMUnitTest tests[] = {
        T(samples_with_labels),
        T(damage_of_what_is_kept_there_is_found),
        T(compared_weights_are_read_from_device_again),
        T(a_bit_on_the_device_counts),
        T(state_kept_there_survives),
        T(nccl_sends_what_it_must),
        T(nccl_adds_as_it_likes),
        T(memory_is_where_it_should_be),
        T(lines_have_the_memory_of_the_device),
        T(bulk_copies_are_page_locked),
    };
    return cmocka_run_group_tests_name("ranks with a device", tests, rig_setup, rig_teardown);
}
