/* fp16: one hash in every world, through overflows, deaths, healing and resume; what the log and a
 * checkpoint say of the loss's scale. */
#include "tests/worker/train/plain.h"
#include "tests/worker/train/rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* The loss's gradient by a logit is at most 1/(tokens of a step) times the scale, and at the start
 * of training not much less; fp16 ends at 65504. So with 224 tokens this overflows in the first
 * three steps, and then, growing after every second step, again and again. */
#define SCALE 0x1p25

static struct dpt_config make_config(int slots, int steps)
{
    struct dpt_config config = rig_make_config(2 * slots, steps, "");
    config.train.precision = DPT_PRECISION_FP16;
    config.train.loss_scale = SCALE;
    config.train.loss_scale_interval = 2;
    return config;
}

static void one_hash(struct dpt_config *config, const char *what)
{
    char expected[DPT_HASH_HEX_BYTES], hash[64], name[48];
    plain_train(config, expected);
    for (int world = 1; world <= 4; world++) {
        (void)snprintf(name, sizeof name, "%s-%d", what, world);
        rig_undisturbed(config, name, world, world > 2, hash);
        if (strcmp(expected, hash) != 0)
            fail_msg("%s: %s instead of %s", name, hash, expected);
    }
}

static void one_hash_in_every_world(void **state)
{
    (void)state;
    struct dpt_config config = make_config(7, 8);
    one_hash(&config, "seven");
    config = make_config(8, 8);
    one_hash(&config, "eight");
}

/* Whoever holds the gradient, all know of an overflow. */
static void one_hash_of_every_strategy(void **state)
{
    (void)state;
    struct dpt_config config = make_config(7, 8);
    char expected[DPT_HASH_HEX_BYTES], hash[64], name[48];
    for (int order = DPT_ACCUMULATE_LOCAL; order <= DPT_ACCUMULATE_REDUCE; order++) {
        config.train.accumulate = order;
        rig_choose(&config, "ddp");
        plain_train(&config, expected);
        for (int i = 0; i < RIG_STRATEGIES; i += RIG_EVERY) {
            rig_choose(&config, rig_strategies[i]);
            (void)snprintf(name, sizeof name, "%s-%d", rig_strategies[i], order);
            rig_undisturbed(&config, name, 3, true, hash);
            if (strcmp(expected, hash) != 0)
                fail_msg("%s: %s instead of %s", name, hash, expected);
        }
        for (int i = 0; i < RIG_COVERED; i += RIG_EVERY)
            for (int world = 3; world <= 4; world++) {
                rig_choose(&config, rig_covered[i]);
                (void)snprintf(name, sizeof name, "%s-%d-%d", rig_covered[i], order, world);
                rig_undisturbed(&config, name, world, true, hash);
                if (strcmp(expected, hash) != 0)
                    fail_msg("%s: %s instead of %s", name, hash, expected);
            }
    }
}

/* Steps that overflow are skipped by replicas and shadows too: what is left of them goes on. */
static void a_covered_loss_costs_no_step(void **state)
{
    (void)state;
    struct dpt_config config = make_config(7, 40);
    char expected[64], dir[128], name[48];
    config.train.accumulate = DPT_ACCUMULATE_LOCAL;
    rig_undisturbed(&config, "uncovered", 1, false, expected);
    for (int i = 0; i < RIG_COVERED; i += RIG_EVERY) {
        rig_choose(&config, rig_covered[i]);
        (void)snprintf(name, sizeof name, "loss-%s", rig_covered[i]);
        struct director *d = rig_begin(&config, name, dir);
        for (int rank = 0; rank < 4; rank++)
            (void)director_start(d, rank % 2);
        assert_true(director_form(d, false));
        director_await_step(d, 2 + i); /* amid the first overflows, and after them */
        director_kill(d, i);
        if (strcmp(director_finish(d), expected) != 0)
            fail_msg("%s: %s instead of %s", name, director_finish(d), expected);
        assert_int_equal(director_steps_lost(d), 0);
        director_destroy(&d);
    }
}

/* Every step's scale follows from the one before, and from whether that one overflowed. */
static void the_log_tells_scale_and_skipped_steps(void **state)
{
    (void)state;
    enum { STEPS = 12 };
    struct dpt_config config = make_config(7, STEPS);
    char hash[64], path[192], line[1024];
    rig_undisturbed(&config, "told", 2, false, hash);
    (void)snprintf(path, sizeof path, "%s/metrics.jsonl", rig_dir("told"));
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    double scale = SCALE;
    int good = 0, skipped = 0;
    for (int step = 1; step <= STEPS; step++) {
        assert_non_null(fgets(line, sizeof line, f));
        json_t *record = json_loads(line, 0, NULL);
        assert_non_null(record);
        assert_true(rig_number(record, "step") == step && rig_number(record, "scale") == scale);
        assert_true(isfinite(rig_number(record, "loss"))); /* of the unscaled loss */
        const json_t *norm = json_object_get(record, "grad_norm");
        if (json_is_number(norm)) {
            assert_true(json_number_value(norm) < 100.0); /* of the unscaled gradient */
            good++;
        } else {
            scale /= 2;
            skipped++;
            good = 0;
        }
        if (good == 2) {
            scale *= 2;
            good = 0;
        }
        assert_true(rig_number(record, "skipped_steps") == skipped);
        json_decref(record);
    }
    assert_int_equal(fclose(f), 0);
    assert_in_range(skipped, 3, STEPS - 4);
}

/* A step that is skipped leaves weights and moments: steps that all overflow end where the seed
 * begins. */
static void a_skipped_step_changes_nothing(void **state)
{
    (void)state;
    char hash[5][64];
    for (int steps = 1; steps <= 4; steps++) {
        struct dpt_config config = make_config(7, 4);
        config.train.steps = steps;
        char name[32];
        (void)snprintf(name, sizeof name, "skipped-%d", steps);
        rig_undisturbed(&config, name, 2, false, hash[steps]);
    }
    assert_string_equal(hash[1], hash[2]);
    assert_string_equal(hash[1], hash[3]);
    assert_string_not_equal(hash[1], hash[4]);
}

static void a_checkpoint_has_the_scaler(void **state)
{
    (void)state;
    struct dpt_config config = make_config(7, 5);
    char hash[64], path[192];
    rig_undisturbed(&config, "kept", 2, false, hash);
    (void)snprintf(path, sizeof path, "%s/checkpoints/step-00000005/state.json", rig_dir("kept"));
    json_t *saved = json_load_file(path, 0, NULL);
    assert_non_null(saved);
    const json_t *scaler = json_object_get(saved, "scaler");
    /* Three overflow, two are good. */
    assert_true(rig_number(scaler, "scale") == SCALE / 4);
    assert_true(rig_number(scaler, "good_steps") == 0);
    assert_true(rig_number(scaler, "skipped_steps") == 3);
    json_decref(saved);
}

static void deaths_and_healing_cost_no_step(void **state)
{
    (void)state;
    const struct dpt_config config = make_config(7, 18);
    rig_deaths_and_healing(&config);
}

static void resume_is_as_undisturbed(void **state)
{
    (void)state;
    const struct dpt_config config = make_config(7, 10);
    rig_all_die(&config);
}

static void resume_refuses_another_scaler(void **state)
{
    (void)state;
    struct dpt_config config = make_config(7, 4);
    char hash[64], dir[128];
    rig_undisturbed(&config, "own", 1, false, hash);
    config.train.loss_scale_interval = 3;
    struct director *d = rig_begin(&config, "own", dir);
    const char *text = NULL;
    assert_true(director_fatal(d, director_start(d, 0), &text));
    assert_non_null(strstr(text, "train.loss_scale_interval"));
    director_destroy(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_hash_in_every_world),
        cmocka_unit_test(one_hash_of_every_strategy),
        cmocka_unit_test(a_covered_loss_costs_no_step),
        cmocka_unit_test(the_log_tells_scale_and_skipped_steps),
        cmocka_unit_test(a_skipped_step_changes_nothing),
        cmocka_unit_test(a_checkpoint_has_the_scaler),
        cmocka_unit_test(deaths_and_healing_cost_no_step),
        cmocka_unit_test(resume_is_as_undisturbed),
        cmocka_unit_test(resume_refuses_another_scaler),
    };
    return cmocka_run_group_tests_name("rank_scaler", tests, rig_setup, rig_teardown);
}
