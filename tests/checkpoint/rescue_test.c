/* Rescues are whole like checkpoints. The search finds them when nothing newer is committed, any
 * writer that finds all parts seals them, and a later commit removes them. */
#include "tests/checkpoint/checkpoint_fixture.h"

#include "base/clock.h"
#include "base/fs.h"
#include "base/log.h"
#include "checkpoint/fault.h"
#include "checkpoint/names.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { STEP = 5, WRITERS = 4, SOON_MS = 10000, ROUNDS = 20 };

static struct dpt_err err;

static struct dpt_checkpoint_spec rescue_spec(const struct model *model, const char *dir,
                                              int64_t step, int writer, int n_writers)
{
    struct dpt_checkpoint_spec spec = model_spec(model, dir, step, writer, n_writers);
    spec.attempt = "rescue-a1";
    spec.state.rescue.run = "demo";
    spec.state.rescue.node = "n1";
    spec.state.rescue.generation = 7;
    return spec;
}

static enum dpt_status write_rescue(const char *dir, int64_t step)
{
    struct model model;
    model_init(&model, step, 1);
    const struct dpt_checkpoint_spec spec = rescue_spec(&model, dir, step, 0, 1);
    enum dpt_status status = model_write_part(&spec, &err);
    if (status == DPT_OK)
        status = dpt_checkpoint_seal(&spec, 0, &err);
    model_fini(&model);
    return status;
}

static void commit(const char *dir, int64_t step)
{
    struct model model;
    model_init(&model, step, 1);
    OK(model_write(&model, dir, step, 1, &err));
    model_fini(&model);
}

static int64_t newest(const char *dir)
{
    int64_t step = -7;
    OK(dpt_checkpoint_newest(dir, &step, &err));
    return step;
}

static bool folder_has(const char *dir, const char *name)
{
    char path[512];
    (void)snprintf(path, sizeof path, "%s/%s", dir, name);
    return dpt_fs_exists(path);
}

static size_t entries(const char *dir)
{
    char **names = NULL;
    size_t n = 0;
    OK(dpt_fs_list(dir, &names, &n, &err));
    dpt_fs_list_free(&names, n);
    return n;
}

/* Step `step` is read from a rescue. */
static bool is_rescue(const char *dir, int64_t step)
{
    struct dpt_checkpoint *checkpoint = NULL;
    OK(dpt_checkpoint_open(dir, step, &checkpoint, &err));
    OK(dpt_checkpoint_verify(checkpoint, &err));
    const struct dpt_checkpoint_state *state = dpt_checkpoint_get_state(checkpoint);
    const bool is = state->rescue.node != NULL;
    if (is) {
        assert_string_equal(state->rescue.node, "n1");
        assert_string_equal(state->rescue.run, "demo");
        assert_int_equal(state->rescue.generation, 7);
    }
    dpt_checkpoint_close(&checkpoint);
    return is;
}

static void rescue_is_found_and_read(void **state)
{
    (void)state;
    const char *dir = in_root("alone");
    OK(write_rescue(dir, STEP));
    assert_true(folder_has(dir, "rescue-step-00000005"));
    assert_int_equal(entries(dir), 1);
    assert_int_equal(newest(dir), STEP);
    assert_true(is_rescue(dir, STEP));
    OK(model_check(dir, STEP, 1, &err));
    int64_t step;
    assert_false(dpt_name_parse_step("rescue-step-00000005", &step)); /* older programs ignore it */
    OK(write_rescue(dir, STEP)); /* again, with equal content */
    assert_int_equal(entries(dir), 1);
}

static void newer_checkpoint_comes_first(void **state)
{
    (void)state;
    const char *dir = in_root("beside");
    commit(dir, 3);
    OK(write_rescue(dir, STEP));
    assert_int_equal(newest(dir), STEP); /* nothing newer is committed */
    commit(dir, 4);
    assert_int_equal(newest(dir), STEP);
    assert_true(folder_has(dir, "rescue-step-00000005"));
    commit(dir, STEP);
    assert_false(is_rescue(dir, STEP));
    assert_false(folder_has(dir, "rescue-step-00000005"));
    OK(write_rescue(dir, STEP));
    commit(dir, STEP + 1);
    assert_false(folder_has(dir, "rescue-step-00000005"));
    assert_int_equal(entries(dir), 2); /* keep */
}

static void flip_byte(const char *path)
{
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, -5, SEEK_END), 0);
    const int byte = fgetc(f);
    assert_int_equal(fseek(f, -5, SEEK_END), 0);
    assert_int_equal(fputc(byte ^ 1, f), byte ^ 1);
    assert_int_equal(fclose(f), 0);
}

/* A rescue exists beside a checkpoint of its step when the checkpoint's bytes are damaged and its
 * sizes are right. */
static void rescue_beside_damaged_checkpoint(void **state)
{
    (void)state;
    const char *dir = in_root("beside-damaged");
    char path[512];
    commit(dir, STEP);
    (void)snprintf(path, sizeof path, "%s/step-00000005/config.json", dir);
    flip_byte(path);
    OK(write_rescue(dir, STEP));
    assert_int_equal(newest(dir), STEP);
    assert_true(is_rescue(dir, STEP));
    OK(model_check(dir, STEP, 1, &err));
    commit(dir, STEP);
    assert_false(is_rescue(dir, STEP));
    assert_int_equal(entries(dir), 1);
}

static void damaged_rescue_is_skipped(void **state)
{
    (void)state;
    const char *dir = in_root("damaged");
    commit(dir, 3);
    OK(write_rescue(dir, STEP));
    char path[512];
    (void)snprintf(path, sizeof path, "%s/rescue-step-00000005/MANIFEST.json", dir);
    OK(dpt_fs_write_file_atomic(path, "{}", 2, &err));
    assert_int_equal(newest(dir), 3);
    struct dpt_checkpoint *checkpoint = NULL;
    assert_int_equal(dpt_checkpoint_open(dir, STEP, &checkpoint, &err), DPT_ECORRUPT);
    assert_non_null(strstr(err.text, "rescue-step-00000005"));
}

/* No writer is the first one: the last writer finds all parts. */
static void last_writer_seals(void **state)
{
    (void)state;
    const char *dir = in_root("parts");
    struct model model;
    model_init(&model, STEP, 1);
    for (int writer = 0; writer < WRITERS; writer++) {
        const struct dpt_checkpoint_spec spec = rescue_spec(&model, dir, STEP, writer, WRITERS);
        OK(model_write_part(&spec, &err));
        enum dpt_status status = dpt_checkpoint_seal(&spec, dpt_now_ms() + 50, &err);
        assert_int_equal(status, writer < WRITERS - 1 ? DPT_ETIMEOUT : DPT_OK);
        if (status != DPT_OK)
            assert_non_null(strstr(err.text, "has not reported its part in time"));
        assert_int_equal(newest(dir), status == DPT_OK ? STEP : -1);
    }
    OK(model_check(dir, STEP, 1, &err));
    model_fini(&model);
}

struct hand {
    struct dpt_checkpoint_spec spec;
    pthread_t thread;
    enum dpt_status status;
    struct dpt_err err;
};

static void *write_part_and_seal(void *arg)
{
    struct hand *hand = arg;
    hand->status = model_write_part(&hand->spec, &hand->err);
    if (hand->status == DPT_OK || hand->status == DPT_EEXIST)
        hand->status = dpt_checkpoint_seal(&hand->spec, dpt_now_ms() + SOON_MS, &hand->err);
    return NULL;
}

static void all_at_once(struct hand *hands, int n)
{
    for (int i = 0; i < n; i++)
        assert_int_equal(pthread_create(&hands[i].thread, NULL, write_part_and_seal, &hands[i]), 0);
    for (int i = 0; i < n; i++)
        assert_int_equal(pthread_join(hands[i].thread, NULL), 0);
}

static void writers_seal_at_once(void **state)
{
    (void)state;
    struct model model;
    model_init(&model, STEP, 1);
    for (int round = 0; round < ROUNDS; round++) {
        char name[32];
        (void)snprintf(name, sizeof name, "at-once-%d", round);
        const char *dir = in_root(name);
        struct hand hands[WRITERS];
        for (int i = 0; i < WRITERS; i++)
            hands[i] = (struct hand){.spec = rescue_spec(&model, dir, STEP, i, WRITERS)};
        all_at_once(hands, WRITERS);
        for (int i = 0; i < WRITERS; i++)
            if (hands[i].status != DPT_OK)
                fail_msg("round %d, writer %d: %s", round, i, hands[i].err.text);
        OK(model_check(dir, STEP, 1, &err));
        assert_int_equal(entries(dir), 1);
    }
    model_fini(&model);
}

/* Nodes that each hold the whole state, under separate names. */
static void whole_holders_at_once(void **state)
{
    (void)state;
    struct model model;
    model_init(&model, STEP, 1);
    for (int round = 0; round < ROUNDS; round++) {
        char name[32], attempts[WRITERS][24];
        (void)snprintf(name, sizeof name, "holders-%d", round);
        const char *dir = in_root(name);
        struct hand hands[WRITERS];
        for (int i = 0; i < WRITERS; i++) {
            hands[i] = (struct hand){.spec = rescue_spec(&model, dir, STEP, 0, 1)};
            (void)snprintf(attempts[i], sizeof attempts[i], "rescue-n%d", i);
            hands[i].spec.attempt = attempts[i];
        }
        all_at_once(hands, WRITERS);
        for (int i = 0; i < WRITERS; i++)
            if (hands[i].status != DPT_OK)
                fail_msg("round %d, holder %d: %s", round, i, hands[i].err.text);
        OK(model_check(dir, STEP, 1, &err));
        assert_int_equal(entries(dir), 1);
    }
    model_fini(&model);
}

/* The second node completes its rescue immediately before the rename of the first. */
static bool let_another_be_faster(void *ctx)
{
    const struct dpt_checkpoint_spec *other = ctx;
    OK(dpt_checkpoint_seal(other, 0, &err));
    return true;
}

static void another_holder_is_faster(void **state)
{
    (void)state;
    const char *dir = in_root("faster");
    struct model model;
    model_init(&model, STEP, 1);
    struct dpt_checkpoint_spec first = rescue_spec(&model, dir, STEP, 0, 1), second = first;
    first.attempt = "rescue-n0";
    second.attempt = "rescue-n1";
    second.state.rescue.node = "n2";
    first.may_rename = let_another_be_faster;
    first.ctx = &second;
    OK(model_write_part(&first, &err));
    OK(model_write_part(&second, &err));
    OK(dpt_checkpoint_seal(&first, 0, &err));
    assert_true(is_rescue(dir, STEP)); /* the rescue of n1 has replaced the other */
    OK(model_check(dir, STEP, 1, &err));
    assert_int_equal(entries(dir), 1);
    model_fini(&model);
}

/* Immediately before the rename of the first writer, a late writer writes the same parts again. */
static bool let_the_same_parts_come_again(void *ctx)
{
    const struct dpt_checkpoint_spec *late = ctx;
    OK(model_write_part(late, &err));
    assert_int_equal(dpt_checkpoint_seal(late, 0, &err), DPT_ETIMEOUT);
    return true;
}

static void late_writer_waits_for_the_seal(void **state)
{
    (void)state;
    const char *dir = in_root("late");
    struct model model;
    model_init(&model, STEP, 1);
    struct dpt_checkpoint_spec first = rescue_spec(&model, dir, STEP, 0, 1), late = first;
    first.may_rename = let_the_same_parts_come_again;
    first.ctx = &late;
    OK(model_write_part(&first, &err));
    OK(dpt_checkpoint_seal(&first, 0, &err));
    assert_true(is_rescue(dir, STEP));
    OK(dpt_checkpoint_seal(&late, 0, &err));
    assert_int_equal(entries(dir), 1);
    model_fini(&model);
}

/* A new generation does not remove the attempt at a rescue of a node without a server, sealed or
 * not. */
static void attempt_survives_formation(void **state)
{
    (void)state;
    const char *dir = in_root("formation");
    struct model model;
    model_init(&model, STEP, 1);
    const struct dpt_checkpoint_spec spec = rescue_spec(&model, dir, STEP, 0, 1);
    OK(model_write_part(&spec, &err));
    OK(dpt_fs_mkdirs(in_root("formation/.tmp-step-00000006-g9-rescue-b2-seal"), &err));
    OK(dpt_fs_mkdirs(in_root("formation/.tmp-step-00000006-g9-b2"), &err));
    OK(dpt_checkpoint_clean(dir, 1, "new", &err));
    assert_int_equal(entries(dir), 2);
    OK(dpt_checkpoint_seal(&spec, 0, &err));
    assert_true(is_rescue(dir, STEP));
    OK(model_check(dir, STEP, 1, &err));
    assert_true(folder_has(dir, ".tmp-step-00000006-g9-rescue-b2-seal"));
    model_fini(&model);
}

/* The commit of the same or a later step removes an attempt of a killed node, also one with a
 * higher generation, which a restarted server causes. A writer that still works on it fails, and
 * finds the step saved. */
static void commit_removes_attempts(void **state)
{
    (void)state;
    const char *dir = in_root("leftovers");
    struct model model;
    model_init(&model, STEP, 1);
    struct dpt_checkpoint_spec killed = rescue_spec(&model, dir, STEP, 0, 2), later = killed;
    killed.generation = 99;
    OK(model_write_part(&killed, &err));
    later.state.step = STEP + 1;
    OK(model_write_part(&later, &err));
    commit(dir, STEP - 1);
    assert_int_equal(entries(dir), 3);
    commit(dir, STEP);
    assert_int_equal(entries(dir), 3);
    assert_true(folder_has(dir, ".tmp-step-00000006-g7-rescue-a1"));
    assert_int_equal(dpt_checkpoint_seal(&killed, 0, &err), DPT_ETIMEOUT);
    assert_int_equal(newest(dir), STEP);
    commit(dir, STEP + 2);
    assert_int_equal(entries(dir), 2); /* keep */
    model_fini(&model);
}

/* Only attempts at rescues have the prefix of rescues. */
static void attempt_prefix_is_checked(void **state)
{
    (void)state;
    const char *dir = in_root("names");
    struct model model;
    model_init(&model, STEP, 1);
    struct dpt_checkpoint_spec rescue = rescue_spec(&model, dir, STEP, 0, 1),
                               checkpoint = model_spec(&model, dir, STEP, 0, 1);
    rescue.attempt = "a1";
    checkpoint.attempt = "rescue-a1";
    assert_int_equal(model_write_part(&rescue, &err), DPT_EINVAL);
    assert_int_equal(model_write_part(&checkpoint, &err), DPT_EINVAL);
    assert_int_equal(newest(dir), -1);
    model_fini(&model);
}

static int fail_renames(enum dpt_fault_op op, const char *path)
{
    return op == DPT_FAULT_RENAME && strstr(path, "rescue-step-") != NULL ? ENOSPC : 0;
}

static void failing_disk(void **state)
{
    (void)state;
    const char *dir = in_root("failing");
    dpt_fault_hook = fail_renames;
    assert_int_equal(write_rescue(dir, STEP), DPT_ENOSPC);
    dpt_fault_hook = NULL;
    assert_int_equal(newest(dir), -1);
    assert_int_equal(entries(dir), 0);
    OK(write_rescue(dir, STEP));
    assert_int_equal(newest(dir), STEP);
}

/* A part with such a value is never sealed. */
static void not_finite_is_never_sealed(void **state)
{
    (void)state;
    struct model model;
    model_init(&model, STEP, 1);
    for (int bad = 0; bad < 2; bad++) {
        const char *dir = in_root(bad == 0 ? "first-not-finite" : "second-not-finite");
        for (int writer = 0; writer < 2; writer++) {
            const struct dpt_checkpoint_spec spec = rescue_spec(&model, dir, STEP, writer, 2);
            float *value = model.tensors[writer == 0 ? 0 : model.n - 1].param;
            const float sound = *value;
            if (writer == bad)
                *value = NAN;
            assert_int_equal(model_write_part(&spec, &err), writer == bad ? DPT_EDIVERGED : DPT_OK);
            *value = sound;
        }
        const struct dpt_checkpoint_spec other = rescue_spec(&model, dir, STEP, 1 - bad, 2);
        assert_int_equal(dpt_checkpoint_seal(&other, dpt_now_ms() + SOON_MS, &err), DPT_EDIVERGED);
        assert_non_null(strstr(err.text, "not finite"));
        assert_int_equal(newest(dir), -1);
    }
    model_fini(&model);
}

int main(void)
{
    dpt_log_set_level(DPT_LOG_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rescue_is_found_and_read),
        cmocka_unit_test(newer_checkpoint_comes_first),
        cmocka_unit_test(rescue_beside_damaged_checkpoint),
        cmocka_unit_test(damaged_rescue_is_skipped),
        cmocka_unit_test(last_writer_seals),
        cmocka_unit_test(writers_seal_at_once),
        cmocka_unit_test(late_writer_waits_for_the_seal),
        cmocka_unit_test(whole_holders_at_once),
        cmocka_unit_test(another_holder_is_faster),
        cmocka_unit_test(attempt_survives_formation),
        cmocka_unit_test(commit_removes_attempts),
        cmocka_unit_test(attempt_prefix_is_checked),
        cmocka_unit_test(failing_disk),
        cmocka_unit_test(not_finite_is_never_sealed),
    };
    return cmocka_run_group_tests_name("rescue", tests, make_fast_root, remove_root);
}
