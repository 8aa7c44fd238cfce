/* The checkpoints that a commit keeps: the newest, pinned steps, the best by validation loss. A
 * value that is not finite is never committed. */
#include "tests/checkpoint/checkpoint_fixture.h"

#include "base/fs.h"
#include "checkpoint/fault.h"

#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static struct dpt_err err;

static enum dpt_status write_spec(struct dpt_checkpoint_spec *spec)
{
    enum dpt_status status = DPT_OK;
    for (int writer = spec->n_writers - 1; status == DPT_OK && writer >= 0; writer--) {
        spec->writer = writer;
        status = model_write_part(spec, &err);
    }
    spec->writer = 0;
    if (status == DPT_OK)
        status = dpt_checkpoint_collect(spec, 1000, &err);
    if (status == DPT_OK)
        status = dpt_checkpoint_commit(spec, &err);
    if (status != DPT_OK)
        dpt_checkpoint_abandon(spec);
    return status;
}

/* Damaged steps that the first writer knows. */
static const int64_t *damaged;
static int n_damaged;

/* NaN: not evaluated. */
static void write_step(int64_t step, int keep, int keep_best, double val_loss)
{
    static const int64_t pinned[] = {20, 40};
    struct model model;
    model_init(&model, step, 1);
    struct dpt_checkpoint_spec spec = model_spec(&model, root, step, 0, 2);
    spec.keep = keep;
    spec.keep_best = keep_best;
    spec.keep_steps = pinned;
    spec.n_keep_steps = 2;
    spec.damaged = damaged;
    spec.n_damaged = n_damaged;
    spec.state.has_val_loss = isfinite(val_loss);
    spec.state.val_loss = val_loss;
    if (write_spec(&spec) != DPT_OK)
        fail_msg("%s", err.text);
    model_fini(&model);
}

/* `root` holds exactly these steps. */
static void assert_steps(const int64_t *steps, size_t n)
{
    char **names = NULL;
    size_t n_names = 0;
    assert_int_equal(dpt_fs_list(root, &names, &n_names, &err), DPT_OK);
    for (size_t i = 0; i < n_names && i < n; i++) {
        char name[32];
        (void)snprintf(name, sizeof name, "step-%08lld", (long long)steps[i]);
        assert_string_equal(names[i], name);
    }
    assert_int_equal(n_names, n);
    dpt_fs_list_free(&names, n_names);
}
#define ASSERT_STEPS(...)                                                                          \
    assert_steps((const int64_t[]){__VA_ARGS__},                                                   \
                 sizeof((const int64_t[]){__VA_ARGS__}) / sizeof(int64_t))

static void pinned_steps_stay(void **state)
{
    (void)state;
    for (int64_t step = 10; step <= 60; step += 10)
        write_step(step, 1, 0, NAN);
    ASSERT_STEPS(20, 40, 60);
    /* A pinned step counts among the newest. */
    write_step(70, 3, 0, NAN);
    ASSERT_STEPS(20, 40, 60, 70);
    write_step(80, 2, 0, NAN);
    ASSERT_STEPS(20, 40, 70, 80);
}

static void lowest_losses_stay(void **state)
{
    (void)state;
    static const double losses[] = {3.0, NAN, 1.5, 2.5, 1.5, 4.0, 3.5};
    for (int i = 0; i < 7; i++)
        write_step(101 + i, 1, 2, losses[i]);
    ASSERT_STEPS(103, 105, 107); /* both have the lowest loss, 1.5 */
    write_step(108, 1, 1, 9);
    ASSERT_STEPS(105, 108); /* of equal losses the newer step */
    write_step(109, 1, 1, 1);
    ASSERT_STEPS(109);
}

/* A checkpoint with known damage and right sizes does not count and stays: a person may repair it.
 */
static void known_damage_does_not_count_and_stays(void **state)
{
    (void)state;
    for (int64_t step = 101; step <= 103; step++)
        write_step(step, 3, 1, (double)step);
    damaged = (const int64_t[]){102, 103};
    n_damaged = 2;
    write_step(104, 3, 0, NAN);
    ASSERT_STEPS(101, 102, 103, 104);
    write_step(105, 2, 1, NAN); /* the best without known damage */
    ASSERT_STEPS(101, 102, 103, 104, 105);
    write_step(106, 2, 0, NAN);
    ASSERT_STEPS(102, 103, 105, 106);
    damaged = NULL;
    n_damaged = 0;
    write_step(107, 2, 0, NAN);
    ASSERT_STEPS(106, 107);
}

/* A state that cannot be read has no loss; the best of the others stays. */
static void damaged_best_is_removed(void **state)
{
    (void)state;
    write_step(101, 3, 1, 1.0);
    write_step(102, 3, 1, 2.0);
    write_step(103, 3, 1, 3.0);
    char path[192];
    (void)snprintf(path, sizeof path, "%s/step-00000101/state.json", root);
    assert_int_equal(dpt_fs_write_file_atomic(path, "{}", 2, &err), DPT_OK);
    write_step(104, 1, 1, 4.0);
    ASSERT_STEPS(102, 104);
}

/* In every kind of value, on any writer: complete checkpoints stay, and no other file remains. */
static void not_finite_is_never_committed(void **state)
{
    (void)state;
    static const float values[] = {NAN, INFINITY, -INFINITY};
    static const char *const words[] = {"dropped: tensor '", "first moment of tensor '",
                                        "second moment of tensor '"};
    write_step(101, 1, 0, NAN);
    for (int n_writers = 1; n_writers <= 3; n_writers++)
        for (int kind = 0; kind < 3; kind++)
            for (int tensor = 0; tensor < 9; tensor += 4) {
                struct model model;
                model_init(&model, 102, 1);
                const struct dpt_checkpoint_tensor *t = &model.tensors[tensor];
                float *const vector[] = {t->param, t->m, t->v};
                vector[kind][t->dim[0] - 1] = values[(kind + tensor) % 3];
                struct dpt_checkpoint_spec spec = model_spec(&model, root, 102, 0, n_writers);
                spec.keep = 1;
                assert_int_equal(write_spec(&spec), DPT_EDIVERGED);
                assert_non_null(strstr(err.text, words[kind]));
                assert_non_null(strstr(err.text, t->name));
                model_fini(&model);
                ASSERT_STEPS(101);
            }
}

/* The report of the writer with the value informs the first writer. */
static void first_writer_is_told(void **state)
{
    (void)state;
    struct model model;
    model_init(&model, 102, 1);
    struct dpt_checkpoint_spec spec = model_spec(&model, root, 102, 0, 2);
    assert_int_equal(model_write_part(&spec, &err), DPT_OK);
    model.tensors[model.n - 1].param[0] = NAN;
    spec.writer = 1;
    assert_int_equal(model_write_part(&spec, &err), DPT_EDIVERGED);
    spec.writer = 0;
    assert_int_equal(dpt_checkpoint_collect(&spec, 60000, &err), DPT_EDIVERGED);
    assert_non_null(strstr(err.text, "not finite"));
    dpt_checkpoint_abandon(&spec);
    model_fini(&model);
}

/* The step of the leftover is 5. */
static int refuse_leftover(enum dpt_fault_op op, const char *path)
{
    return op == DPT_FAULT_RENAME && strstr(path, "step-00000005") ? EACCES : 0;
}

static void leftover_that_stays_keeps_no_checkpoint(void **state)
{
    (void)state;
    char leftover[256];
    (void)snprintf(leftover, sizeof leftover, "%s/.tmp-step-00000005-g0-stray", root);
    assert_int_equal(dpt_fs_mkdirs(leftover, &err), DPT_OK);
    dpt_fault_hook = refuse_leftover;
    write_step(10, 1, 0, NAN);
    write_step(30, 1, 0, NAN);
    dpt_fault_hook = NULL;
    assert_true(dpt_fs_exists(leftover));
    assert_int_equal(dpt_fs_remove_tree(leftover, &err), DPT_OK);
    ASSERT_STEPS(30);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, make_fast_root, remove_root)

int main(void)
{
    const struct CMUnitTest tests[] = {TEST(pinned_steps_stay),
                                       TEST(lowest_losses_stay),
                                       TEST(known_damage_does_not_count_and_stays),
                                       TEST(damaged_best_is_removed),
                                       TEST(leftover_that_stays_keeps_no_checkpoint),
                                       TEST(not_finite_is_never_committed),
                                       TEST(first_writer_is_told)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
