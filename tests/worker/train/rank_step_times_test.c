/* The record of a rank's steps (node-NODE/rank-R.steps.json): every rank of a run has one, with the
 * times of the log writer's lines, and it keeps the newest steps of a long run. */
#include "tests/worker/train/rank_rig.h"

#include "worker/train/process.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { STEPS = 5, RANKS = 3, OLD_STEPS = 3 };

/* Reads the record of a rank, which has `n` steps up to step `last`. */
static json_t *read_record(const char *dir, int handle, int n, int last)
{
    char path[192];
    json_error_t error;
    (void)snprintf(path, sizeof path, "%s/node-/rank-%d.steps.json", dir, handle);
    json_t *record = json_load_file(path, 0, &error);
    if (!record)
        fail_msg("%s: %s", path, error.text);
    static const char *const lists[] = {"step", "step_ms", "wait_ms"};
    for (int i = 0; i < 3; i++)
        assert_int_equal(json_array_size(json_object_get(record, lists[i])), n);
    for (int i = 0; i < n; i++)
        assert_int_equal(
            json_integer_value(json_array_get(json_object_get(record, "step"), (size_t)i)),
            last - n + 1 + i);
    return record;
}

static double time_of(const json_t *record, const char *list, int i)
{
    const json_t *value = json_array_get(json_object_get(record, list), (size_t)i);
    assert_true(json_is_real(value));
    return json_real_value(value);
}

/* Whether the rank has the times of all lines of metrics.jsonl, which have three digits. */
static bool has_times_of_lines(const char *dir, const json_t *record)
{
    char path[192], line[1024];
    int n = 0, same = 0;
    (void)snprintf(path, sizeof path, "%s/metrics.jsonl", dir);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) {
        json_t *object = json_loads(line, 0, NULL);
        assert_true(object && n < STEPS);
        same += fabs(rig_number(object, "step_ms") - time_of(record, "step_ms", n)) < 0.001 &&
                fabs(rig_number(object, "wait_ms") - time_of(record, "wait_ms", n)) < 0.001;
        n++;
        json_decref(object);
    }
    assert_int_equal(fclose(f), 0);
    assert_int_equal(n, STEPS);
    return same == STEPS;
}

static void test_every_rank_has_a_record(void **state)
{
    (void)state;
    struct dpt_config config = rig_make_config(2 * RANKS, STEPS, "");
    char hash[64];
    int writers = 0;
    rig_undisturbed(&config, "all", RANKS, false, hash);
    const char *dir = rig_dir("all");
    for (int handle = 0; handle < RANKS; handle++) {
        json_t *record = read_record(dir, handle, STEPS, STEPS);
        assert_true(rig_number(record, "local_rank") == handle);
        assert_true(rig_number(record, "world_size") == RANKS);
        for (int i = 0; i < STEPS; i++) {
            assert_true(time_of(record, "wait_ms", i) > 0);
            assert_true(time_of(record, "wait_ms", i) < time_of(record, "step_ms", i));
        }
        writers += has_times_of_lines(dir, record);
        json_decref(record);
    }
    assert_int_equal(writers, 1);
}

static void test_newest_steps_are_kept(void **state)
{
    (void)state;
    enum { ALL = STEP_RECORDS_COUNT + OLD_STEPS };
    struct dpt_config config = rig_make_config(2, ALL, "checkpoint.every_steps=0");
    char hash[64];
    rig_undisturbed(&config, "long", 1, false, hash);
    json_decref(read_record(rig_dir("long"), 0, STEP_RECORDS_COUNT, ALL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_rank_has_a_record),
        cmocka_unit_test(test_newest_steps_are_kept),
    };
    return cmocka_run_group_tests_name("times of a rank's steps", tests, rig_setup, rig_teardown);
}
