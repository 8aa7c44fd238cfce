/* The loss scale of fp16: in the log and in checkpoints; skipped steps change no weight. */
#include "tests/worker/train/plain.h"
#include "tests/worker/train/rank_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* Overflows in the first three steps, and then, growing after every second step, again and again
 * (settings_table.c). */
#define SCALE 0x1p25

static struct dpt_config make_scaler_config(int slots, int steps)
{
    struct dpt_config config = rig_make_config(2 * slots, steps, "");
    config.train.precision = DPT_PRECISION_FP16;
    config.train.loss_scale = SCALE;
    config.train.loss_scale_interval = 2;
    return config;
}

/* Every step's scale follows from the one before, and from whether that one overflowed. */
static void the_log_tells_scale_and_skipped_steps(void **state)
{
    (void)state;
    enum { STEPS = 12 };
    struct dpt_config config = make_scaler_config(7, STEPS);
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
        struct dpt_config config = make_scaler_config(7, 4);
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
    struct dpt_config config = make_scaler_config(7, 5);
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

/* Computed in fp32: it is on the way that gradients, so scaled, end in infinity; the steps are
 * skipped in every world until the scale fits. */
static void an_overflow_on_the_way_skips_the_step(void **state)
{
    (void)state;
    char expected[DPT_HASH_HEX_BYTES], hash[64], name[32];
    for (int order = DPT_ACCUMULATE_LOCAL; order <= DPT_ACCUMULATE_REDUCE; order++) {
        struct dpt_config config = rig_make_config(14, 8, "strategy.compression=fp16");
        config.train.accumulate = (enum dpt_accumulate)order;
        config.train.loss_scale = 0x1p18;
        config.train.loss_scale_interval = 2;
        plain_train(&config, expected);
        for (int world = 1; world <= 3; world++) {
            (void)snprintf(name, sizeof name, "overflow-%d-%d", order, world);
            rig_undisturbed(&config, name, world, true, hash);
            assert_string_equal(hash, expected);
            char path[192];
            (void)snprintf(path, sizeof path, "%s/checkpoints/step-00000008/state.json",
                           rig_dir(name));
            json_t *saved = json_load_file(path, 0, NULL);
            assert_non_null(saved);
            const json_t *scaler = json_object_get(saved, "scaler");
            const json_int_t skipped = json_integer_value(json_object_get(scaler, "skipped_steps"));
            assert_in_range(skipped, 1, 7);
            json_decref(saved);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_log_tells_scale_and_skipped_steps),
        cmocka_unit_test(a_skipped_step_changes_nothing),
        cmocka_unit_test(a_checkpoint_has_the_scaler),
        cmocka_unit_test(an_overflow_on_the_way_skips_the_step),
    };
    return cmocka_run_group_tests_name("rank_scaler", tests, rig_setup, rig_teardown);
}
