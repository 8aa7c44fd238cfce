/* A classification trains as any model does: one hash and one accuracy for every strategy and
 * world, those of the textbook's loop, through deaths in steps and in evaluations, and from a
 * checkpoint.
 */
#include "tests/worker/train/one_hash.h"
#include "tests/worker/train/plain.h"
#include "tests/worker/train/rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { WORLD_MAX = 3, SAMPLES = 13, EVALS_MAX = 32 };

/* 11 slots in 4 lanes; of the evaluation's batches the last is short. */
static struct dpt_config make_config(bool llama, int steps)
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

static void one_hash_and_accuracy(void **state)
{
    (void)state;
    const struct dpt_config config = make_config(false, 4);
    expect_one_hash_and_accuracy("gpt2", &config, WORLD_MAX, SAMPLES);
}

static void one_hash_and_accuracy_of_a_llama(void **state)
{
    (void)state;
    struct dpt_config config = make_config(true, 4);
    config.train.accumulate = DPT_ACCUMULATE_REDUCE;
    expect_one_hash_and_accuracy("llama", &config, WORLD_MAX, SAMPLES);
}

static void one_hash_in_16_bits(void **state)
{
    (void)state;
    struct dpt_config config = make_config(false, 4);
    char expected[DPT_HASH_HEX_BYTES], hash[64];
    config.train.precision = DPT_PRECISION_BF16;
    config.train.activation_checkpointing = DPT_ACTIVATION_CHECKPOINTING_FULL;
    plain_train(&config, expected);
    rig_undisturbed(&config, "bf16", 2, true, hash);
    assert_string_equal(hash, expected);
}

/* The losses fall, and what is learnt is what the texts say. */
static void it_learns(void **state)
{
    (void)state;
    struct dpt_config config = make_config(false, 40);
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
    struct dpt_config config = make_config(false, 14);
    config.train.eval_every = 1;
    char expected[64], dir[128], name[32];
    struct director *d;
    start_world(&config, "evals-calm", 1, &d, dir);
    (void)snprintf(expected, sizeof expected, "%s", director_finish(d));
    director_destroy(&d);
    const struct evals calm = evals_of(dir);
    assert_int_equal(calm.n, 14);
    for (int victim = 0; victim < 3; victim += RIG_EVERY) {
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

static void deaths_and_healing_cost_no_step(void **state)
{
    (void)state;
    const struct dpt_config config = make_config(true, 18);
    rig_deaths_and_healing(&config);
}

static void all_die_and_the_checkpoint_holds(void **state)
{
    (void)state;
    const struct dpt_config config = make_config(false, 9);
    rig_all_die(&config);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_hash_and_accuracy),
        cmocka_unit_test(one_hash_and_accuracy_of_a_llama),
        cmocka_unit_test(one_hash_in_16_bits),
        cmocka_unit_test(it_learns),
        cmocka_unit_test(one_accuracy_through_deaths),
        cmocka_unit_test(deaths_and_healing_cost_no_step),
        cmocka_unit_test(all_die_and_the_checkpoint_holds),
    };
    return cmocka_run_group_tests(tests, rig_setup, rig_teardown);
}
