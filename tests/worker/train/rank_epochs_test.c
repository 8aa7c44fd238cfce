/* train.epochs by ranks: one line an epoch with the mean of its steps' losses, the same in every
 * world, through losses and from a checkpoint within an epoch; an evaluation after each. */
#include "tests/worker/train/rank_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

enum { EPOCHS = 3, EPOCH_STEPS = 5, STEPS = EPOCHS * EPOCH_STEPS, BATCH = 14 };
enum { LINES_MAX = 2 * EPOCHS }; /* of epochs: one that is made again has two */

/* What metrics.jsonl has, in its order. */
struct told {
    int n_epochs, n_evaluations;
    int64_t step[LINES_MAX], first_step[LINES_MAX], epoch[LINES_MAX], evaluated[EPOCHS];
    double avg_loss[LINES_MAX], samples_per_s[LINES_MAX];
    double loss[STEPS + 1]; /* by completed steps */
};

static int64_t integer(json_t *record, const char *key)
{
    assert_true(json_is_integer(json_object_get(record, key)));
    return json_integer_value(json_object_get(record, key));
}

static void take_line(json_t *record, struct told *t)
{
    const int64_t step = integer(record, "step");
    if (json_object_get(record, "epoch")) {
        const int i = t->n_epochs++;
        assert_true(i < LINES_MAX);
        assert_int_equal(integer(record, "epochs"), EPOCHS);
        t->step[i] = step;
        t->epoch[i] = integer(record, "epoch");
        t->first_step[i] = integer(record, "first_step");
        t->avg_loss[i] = json_real_value(json_object_get(record, "avg_loss"));
        t->samples_per_s[i] = json_real_value(json_object_get(record, "samples_per_s"));
        assert_true(json_is_real(json_object_get(record, "seconds")));
    } else if (json_object_get(record, "val_loss")) {
        assert_true(t->n_evaluations < EPOCHS);
        t->evaluated[t->n_evaluations++] = step;
    } else {
        assert_in_range(step, 1, STEPS);
        t->loss[step] = json_real_value(json_object_get(record, "loss"));
    }
}

static struct told told_in(const char *dir)
{
    struct told t = {0};
    char path[160], line[1024];
    (void)snprintf(path, sizeof path, "%s/metrics.jsonl", dir);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) {
        json_t *record = json_loads(line, 0, NULL);
        assert_non_null(record);
        take_line(record, &t);
        json_decref(record);
    }
    assert_int_equal(fclose(f), 0);
    return t;
}

/* Each epoch once, after its last step, with the mean of all its steps, added in their order. */
static void expect_epochs(const char *dir)
{
    const struct told t = told_in(dir);
    assert_int_equal(t.n_epochs, EPOCHS);
    for (int i = 0; i < EPOCHS; i++) {
        double sum = 0;
        assert_int_equal(t.epoch[i], i + 1);
        assert_int_equal(t.step[i], (i + 1) * EPOCH_STEPS);
        assert_int_equal(t.first_step[i], i * EPOCH_STEPS + 1);
        for (int64_t step = t.first_step[i]; step <= t.step[i]; step++)
            sum += t.loss[step];
        if (t.avg_loss[i] != sum / EPOCH_STEPS)
            fail_msg("%s: epoch %d: %.17g, its steps' losses give %.17g", dir, i + 1, t.avg_loss[i],
                     sum / EPOCH_STEPS);
        assert_true(t.samples_per_s[i] > 0);
    }
}

static struct dpt_config make_epochs_config(void)
{
    struct dpt_config config = rig_make_config(BATCH, STEPS, "");
    config.train.epochs = EPOCHS;
    config.train.epoch_steps = EPOCH_STEPS;
    return config;
}

static void one_account_in_every_world(void **state)
{
    (void)state;
    struct dpt_config config = make_epochs_config(), steps = make_epochs_config();
    char hash[64], first[64], name[32];
    for (int world = 1; world <= 3; world++) {
        (void)snprintf(name, sizeof name, "world-%d", world);
        rig_undisturbed(&config, name, world, world == 3, hash);
        if (world == 1)
            memcpy(first, hash, sizeof first);
        assert_string_equal(hash, first);
        expect_epochs(rig_dir(name));
        assert_int_equal(told_in(rig_dir(name)).n_evaluations, 0);
    }
    /* Each epoch has a different permutation, and the run reads all of it. */
    steps.train.epochs = 0;
    steps.train.epoch_steps = DPT_AUTO;
    rig_undisturbed(&steps, "steps", 1, false, hash);
    assert_string_not_equal(hash, first);
    assert_int_equal(told_in(rig_dir("steps")).n_epochs, 0);
}

static void evaluated_after_each(void **state)
{
    (void)state;
    struct dpt_config config = make_epochs_config();
    char hash[64];
    rig_evaluate(&config, 0, 13);
    rig_undisturbed(&config, "evaluated", 2, false, hash);
    const struct told t = told_in(rig_dir("evaluated"));
    expect_epochs(rig_dir("evaluated"));
    assert_int_equal(t.n_evaluations, EPOCHS);
    for (int i = 0; i < EPOCHS; i++)
        assert_int_equal(t.evaluated[i], (i + 1) * EPOCH_STEPS);
}

/* The log writer dies within an epoch, and at its end; a rank that joins in between receives the
 * account with the weights, and writes the next line. */
static void losses_within_epochs(void **state)
{
    (void)state;
    struct dpt_config config = make_epochs_config();
    char expected[64], dir[128], name[32];
    rig_undisturbed(&config, "calm", 1, false, expected);
    for (int64_t at = 2; at <= EPOCH_STEPS; at += 1 + dpt_test_every()) {
        (void)snprintf(name, sizeof name, "losses-%d", (int)at);
        struct director *d = rig_begin(&config, name, dir);
        const int a = director_start(d, 0), b = director_start(d, 1);
        const int joiner = director_start(d, 0);
        director_bench(d, joiner, true);
        assert_true(director_form(d, false));
        director_await_step(d, at);
        director_kill(d, a);
        assert_true(director_form(d, false));
        director_await_step(d, at + 2);
        director_bench(d, joiner, false);
        assert_true(director_form(d, true));
        director_await_step(d, EPOCH_STEPS + at);
        director_kill(d, b);
        assert_string_equal(director_finish(d), expected);
        assert_int_equal(director_steps_lost(d), 0);
        director_destroy(&d);
        expect_epochs(dir);
    }
}

/* All die after the checkpoint of step 8, the third step of an epoch: the resumed run knows the
 * losses of the steps before. */
static void resumed_within_an_epoch(void **state)
{
    (void)state;
    struct dpt_config config = make_epochs_config();
    char expected[64], dir[128];
    rig_undisturbed(&config, "whole", 2, false, expected);
    struct director *d = rig_begin(&config, "resumed", dir);
    for (int i = 0; i < 2; i++)
        (void)director_start(d, i);
    assert_true(director_form(d, false));
    director_await_checkpoint(d, 8);
    for (int i = 0; i < 2; i++)
        director_kill(d, i);
    for (int i = 0; i < 2; i++)
        (void)director_start(d, i);
    assert_true(director_form(d, false));
    assert_string_equal(director_finish(d), expected);
    director_destroy(&d);
    const struct told t = told_in(dir), whole = told_in(rig_dir("whole"));
    for (int i = 0; i < t.n_epochs; i++) /* a line may be there twice: steps were made again */
        assert_true(t.avg_loss[i] == whole.avg_loss[t.epoch[i] - 1] &&
                    t.first_step[i] == whole.first_step[t.epoch[i] - 1]);
    assert_int_equal(t.epoch[t.n_epochs - 1], EPOCHS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_account_in_every_world),
        cmocka_unit_test(evaluated_after_each),
        cmocka_unit_test(losses_within_epochs),
        cmocka_unit_test(resumed_within_an_epoch),
    };
    return cmocka_run_group_tests_name("rank_epochs", tests, rig_setup, rig_teardown);
}
