/* strategy.compression powersgd: ranks hold equal weights after every step, a fixed world gives the
 * same bits again, losses and joins cost no step, and training gets nearly as far as without. */
#include "tests/worker/train/rank_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

enum { SLOTS = 6, START = 2 };

static struct dpt_config make_powersgd_config(int rank, int steps)
{
    struct dpt_config config = rig_make_config(2 * SLOTS, steps, "");
    config.strategy.compression = rank > 0 ? DPT_COMPRESSION_POWERSGD : DPT_COMPRESSION_NONE;
    config.strategy.powersgd_rank = rank > 0 ? rank : 1;
    config.strategy.powersgd_start_step = START;
    config.train.verify_every = 1; /* stops the run where ranks differ */
    return config;
}

static double loss_of(const char *name)
{
    json_t *summary = rig_summary_of(rig_dir(name));
    const double loss = json_number_value(json_object_get(summary, "loss"));
    json_decref(summary);
    return loss;
}

static void powersgd_repeats_hash_in_fixed_world(void **state)
{
    (void)state;
    char first[64], again[64], name[32];
    for (int world = 1; world <= 4; world++)
        for (int rank = 1; rank <= 2; rank++) {
            const struct dpt_config config = make_powersgd_config(rank, 6);
            (void)snprintf(name, sizeof name, "first-%d-%d", world, rank);
            rig_undisturbed(&config, name, world, world % 2 == 0, first);
            (void)snprintf(name, sizeof name, "again-%d-%d", world, rank);
            rig_undisturbed(&config, name, world, world % 2 == 0, again);
            assert_string_equal(first, again);
        }
}

/* The steps before the first compressed one are those of a run with one lane for each rank. */
static void nothing_is_compressed_before_its_time(void **state)
{
    (void)state;
    char plain[64], waits[64], compressed[64];
    struct dpt_config config = make_powersgd_config(0, START);
    config.train.lanes = 3;
    rig_undisturbed(&config, "plain", 3, true, plain);
    config = make_powersgd_config(1, START);
    rig_undisturbed(&config, "waits", 3, true, waits);
    assert_string_equal(plain, waits);
    config.strategy.powersgd_start_step = START - 1;
    rig_undisturbed(&config, "compressed", 3, true, compressed);
    assert_string_not_equal(plain, compressed);
}

/* What dies takes its error along, a joiner begins with none: the others' steps stay. */
static void deaths_and_healing_cost_no_step(void **state)
{
    (void)state;
    const struct dpt_config config = make_powersgd_config(1, 18);
    char dir[128];
    struct director *d = rig_begin(&config, "killed", dir);
    (void)director_start(d, 0);
    int b = director_start(d, 0), c = director_start(d, 1);
    int joiner = director_start(d, 0);
    director_bench(d, joiner, true);
    assert_true(director_form(d, false));
    director_await_step(d, 4);
    director_kill(d, c);
    assert_true(director_form(d, false));
    director_await_step(d, 7);
    director_bench(d, joiner, false);
    assert_true(director_form(d, true));
    director_await_step(d, 10);
    director_kill(d, b);
    assert_non_null(director_finish(d)); /* with one hash, or it fails */
    assert_int_equal(director_steps_lost(d), 0);
    director_destroy(&d);
}

/* A checkpoint has neither errors nor factors: a resumed run begins with none. */
static void a_run_goes_on_from_a_checkpoint(void **state)
{
    (void)state;
    struct dpt_config config = make_powersgd_config(1, 10);
    char dir[128], first[64], again[64];
    for (int i = 0; i < 2; i++) {
        const char *name = i == 0 ? "stopped-first" : "stopped-again";
        config.train.steps = 4;
        config.optimizer.schedule = DPT_SCHEDULE_CONSTANT;
        rig_undisturbed(&config, name, 2, false, i == 0 ? first : again);
        config.train.steps = 10;
        struct director *d = rig_begin(&config, name, dir);
        (void)director_start(d, 0);
        (void)director_start(d, 0);
        assert_true(director_form(d, false));
        (void)snprintf(i == 0 ? first : again, sizeof first, "%s", director_finish(d));
        director_destroy(&d);
    }
    assert_string_equal(first, again);
}

/* Without error feedback rank 1 would be left behind. */
static void training_gets_nearly_as_far(void **state)
{
    (void)state;
    enum { STEPS = 60 };
    char hash[64], name[32];
    double loss[3];
    for (int rank = 0; rank <= 2; rank++) {
        struct dpt_config config = make_powersgd_config(rank, STEPS);
        config.train.verify_every = 0;
        config.optimizer.lr = 3e-3;
        (void)snprintf(name, sizeof name, "far-%d", rank);
        rig_undisturbed(&config, name, 2, false, hash);
        loss[rank] = loss_of(name);
    }
    struct dpt_config config = make_powersgd_config(0, 2);
    rig_undisturbed(&config, "beginning", 1, false, hash);
    const double learned = loss_of("beginning") - loss[0];
    assert_true(learned > 0.5);
    for (int rank = 1; rank <= 2; rank++)
        if (!(loss[rank] < loss[0] + learned / 4))
            fail_msg("rank %d ends at %g, without compression at %g", rank, loss[rank], loss[0]);
}

/* By a rank in the last step that the log has. */
static json_int_t sent_in_last_step(const char *name)
{
    char path[192], line[1024];
    json_int_t sent = -1;
    (void)snprintf(path, sizeof path, "%s/metrics.jsonl", rig_dir(name));
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) {
        json_t *record = json_loads(line, 0, NULL);
        const json_t *value = json_object_get(record, "sent_bytes");
        sent = value ? json_integer_value(value) : sent;
        json_decref(record);
    }
    assert_int_equal(fclose(f), 0);
    assert_true(sent > 0);
    return sent;
}

/* A convolution's weight is a matrix, and running statistics travel as they are: ranks have equal
 * ones after every step. */
static void convolutions_are_compressed(void **state)
{
    (void)state;
    char first[64], again[64];
    struct dpt_config config = make_powersgd_config(1, 6), plain = make_powersgd_config(0, 6);
    rig_choose_resnet(&config);
    rig_choose_resnet(&plain);
    rig_undisturbed(&config, "resnet", 3, true, first);
    rig_undisturbed(&config, "resnet-again", 3, true, again);
    assert_string_equal(first, again);
    rig_undisturbed(&plain, "resnet-plain", 3, true, again);
    assert_true(3 * sent_in_last_step("resnet") < sent_in_last_step("resnet-plain"));
}

static void resume_refuses_another_rank(void **state)
{
    (void)state;
    struct dpt_config config = make_powersgd_config(1, 4);
    char hash[64], dir[128];
    rig_undisturbed(&config, "own", 1, false, hash);
    config.strategy.powersgd_rank = 2;
    struct director *d = rig_begin(&config, "own", dir);
    const char *text = NULL;
    assert_true(director_fatal(d, director_start(d, 0), &text));
    assert_non_null(strstr(text, "strategy.powersgd_rank"));
    director_destroy(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(powersgd_repeats_hash_in_fixed_world),
        cmocka_unit_test(nothing_is_compressed_before_its_time),
        cmocka_unit_test(deaths_and_healing_cost_no_step),
        cmocka_unit_test(a_run_goes_on_from_a_checkpoint),
        cmocka_unit_test(training_gets_nearly_as_far),
        cmocka_unit_test(convolutions_are_compressed),
        cmocka_unit_test(resume_refuses_another_rank),
    };
    return cmocka_run_group_tests_name("rank_powersgd", tests, rig_setup, rig_teardown);
}
