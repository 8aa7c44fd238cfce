/* A classification learns, and its evaluations have one accuracy through deaths in the middle of
 * them. */
#include "tests/worker/train/plain.h"
#include "tests/worker/train/rank_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { SAMPLES = 13, EVALS_MAX = 32 };

/* 11 slots in 4 lanes; of the evaluation's batches the last is short. */
static struct dpt_config make_labels_config(bool llama, int steps)
{
    struct dpt_config config = rig_make_config(2 * 11, steps, "");
    if (llama)
        rig_choose_llama(&config, true);
    rig_choose_labels(&config);
    rig_evaluate(&config, 2, SAMPLES);
    config.train.accumulate = DPT_ACCUMULATE_LOCAL;
    config.train.lanes = 4;
    return config;
}

/* The losses fall, and the predicted labels are those of the texts. */
static void labels_of_texts_are_learned(void **state)
{
    (void)state;
    struct dpt_config config = make_labels_config(false, 40);
    char hash[DPT_HASH_HEX_BYTES];
    struct plain_validation found;
    plain_train_and_evaluate(&config, SAMPLES, hash, &found);
    assert_true(found.loss < log(3.0) / 2 && found.right >= SAMPLES - 1);
}

/* Steps, losses and accuracies of the evaluations, as the log has them. */
struct evals {
    int n;
    double told[EVALS_MAX][3];
};

static struct evals evals_of(const char *dir)
{
    struct evals e;
    char path[160], line[1024];
    memset(&e, 0, sizeof e);
    (void)snprintf(path, sizeof path, "%s/metrics.jsonl", dir);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) {
        json_t *record = json_loads(line, 0, NULL);
        assert_non_null(record);
        if (json_object_get(record, "val_loss")) {
            assert_true(e.n < EVALS_MAX);
            double *told = e.told[e.n++];
            told[0] = rig_number(record, "step");
            told[1] = rig_number(record, "val_loss");
            told[2] = rig_number(record, "val_accuracy");
            assert_true(rig_number(record, "val_samples") == SAMPLES);
            assert_null(json_object_get(record, "val_tokens"));
        }
        json_decref(record);
    }
    assert_int_equal(fclose(f), 0);
    return e;
}

static void start_world(const struct dpt_config *config, const char *name, int world,
                        struct director **ret, char dir[128])
{
    *ret = rig_begin(config, name, dir);
    for (int i = 0; i < world; i++)
        (void)director_start(*ret, i % 2);
    assert_true(director_form(*ret, false));
}

/* Every step is evaluated, so most of the time is: the dead die in the middle of it. */
static void one_accuracy_through_deaths(void **state)
{
    (void)state;
    struct dpt_config config = make_labels_config(false, 14);
    config.train.eval_every = 1;
    char expected[64], dir[128], name[32];
    struct director *d;
    start_world(&config, "evals-calm", 1, &d, dir);
    (void)snprintf(expected, sizeof expected, "%s", director_finish(d));
    director_destroy(&d);
    const struct evals calm = evals_of(dir);
    assert_int_equal(calm.n, 14);
    for (int victim = 0; victim < 3; victim += dpt_test_every()) {
        (void)snprintf(name, sizeof name, "evals-%d", victim);
        start_world(&config, name, 3, &d, dir);
        director_await_step(d, 3);
        director_kill(d, victim);
        assert_true(director_form(d, false));
        director_await_step(d, 8);
        director_kill(d, (victim + 1) % 3);
        assert_string_equal(director_finish(d), expected);
        assert_int_equal(director_steps_lost(d), 0);
        director_destroy(&d);
        const struct evals told = evals_of(dir);
        assert_memory_equal(&told, &calm, sizeof told);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(labels_of_texts_are_learned),
        cmocka_unit_test(one_accuracy_through_deaths),
    };
    return cmocka_run_group_tests(tests, rig_setup, rig_teardown);
}
