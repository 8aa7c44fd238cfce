/* Steps that are not finite: the run saves its state and ends before them, or leaves them out with
 * one hash in every world. A state that is not finite never becomes a checkpoint. */
#include "tests/worker/train/trace_view.h"

#include "base/fs.h"
#include "checkpoint/checkpoint.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 12 };

/* The gradients of `n` steps from the `first` (0-based) on are NaN, for ranks that start from now
 * on. */
static void spoil(int n, int first)
{
    char text[32];
    (void)snprintf(text, sizeof text, "%d:%d", n, first);
    assert_int_equal(setenv("DPT_TEST_SPOIL_STEPS", text, 1), 0);
}

static void spoil_nothing(void)
{
    assert_int_equal(unsetenv("DPT_TEST_SPOIL_STEPS"), 0);
}

static int teardown(void **state)
{
    spoil_nothing();
    return rig_teardown(state);
}

static struct dpt_config make_divergence_config(enum dpt_divergence mode)
{
    struct dpt_config config = rig_make_config(14, STEPS, "");
    config.train.on_divergence = mode;
    return config;
}

static bool has_checkpoint(const char *dir, int64_t step)
{
    char path[192];
    (void)snprintf(path, sizeof path, "%s/checkpoints/step-%08lld", dir, (long long)step);
    return dpt_fs_exists(path);
}

static void assert_newest(const char *dir, int64_t step)
{
    char path[160];
    int64_t newest = -1;
    struct dpt_err err;
    struct dpt_checkpoint *checkpoint = NULL;
    (void)snprintf(path, sizeof path, "%s/checkpoints", dir);
    assert_int_equal(dpt_checkpoint_newest(path, &newest, &err), DPT_OK);
    assert_int_equal(newest, step);
    assert_int_equal(dpt_checkpoint_open(path, newest, &checkpoint, &err), DPT_OK);
    assert_int_equal(dpt_checkpoint_verify(checkpoint, &err), DPT_OK);
    dpt_checkpoint_close(&checkpoint);
}

static int count_events(const char *dir, const char *action)
{
    char path[192], line[1024], words[64];
    int n = 0;
    (void)snprintf(path, sizeof path, "%s/events.jsonl", dir);
    (void)snprintf(words, sizeof words, "\"action\":\"%s\"", action);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f))
        n += strstr(line, "\"kind\":\"diverged\"") != NULL && strstr(line, words) != NULL;
    assert_int_equal(fclose(f), 0);
    return n;
}

static struct director *begin_diverging_run(const struct dpt_config *config, const char *name,
                                            int world, char dir[128])
{
    struct director *d = rig_begin(config, name, dir);
    for (int rank = 0; rank < world; rank++)
        (void)director_start(d, rank % 2);
    assert_true(director_form(d, false));
    return d;
}

/* The run saves the state before the step and ends; without the fault it continues from there as if
 * undisturbed. */
static void stop_keeps_what_was_held(void **state)
{
    (void)state;
    struct dpt_config config = make_divergence_config(DPT_DIVERGENCE_STOP);
    for (int i = 0; i < RIG_STRATEGIES + RIG_COVERED; i += dpt_test_every()) {
        const char *strategy =
            i < RIG_STRATEGIES ? rig_strategies[i] : rig_covered[i - RIG_STRATEGIES];
        const int world = i == 0 ? 1 : 3 + i % 2;
        char name[48], dir[128], expected[64];
        config.train.accumulate = i % 2 ? DPT_ACCUMULATE_REDUCE : DPT_ACCUMULATE_LOCAL;
        rig_choose(&config, "ddp");
        (void)snprintf(name, sizeof name, "calm-%d", i % 2);
        rig_undisturbed(&config, name, 1, false, expected);
        rig_choose(&config, strategy);
        (void)snprintf(name, sizeof name, "stop-%s", strategy);
        spoil(1, 6);
        struct director *d = begin_diverging_run(&config, name, world, dir);
        const char *text = director_await_fatal(d);
        assert_non_null(strstr(text, "step 7: the gradient's norm is nan"));
        assert_non_null(strstr(text, "newest finite checkpoint: of step 6"));
        assert_non_null(strstr(text, "--set optimizer.lr="));
        assert_non_null(strstr(text, " --allow-change optimizer.lr"));
        assert_non_null(strstr(text, "leave such steps out, --set train.on_divergence=skip"));
        director_destroy(&d);
        assert_newest(dir, 6);
        assert_int_equal(count_events(dir, "stop"), 1);
        spoil_nothing();
        d = begin_diverging_run(&config, name, 2 + i % 2, dir);
        assert_string_equal(director_finish(d), expected);
        director_destroy(&d);
    }
}

/* The run ends within a window: each rank writes the steps before. */
static void stop_ends_the_window(void **state)
{
    (void)state;
    char dir[128];
    struct dpt_config config = make_divergence_config(DPT_DIVERGENCE_STOP);
    rig_choose(&config, "full_shard");
    (void)snprintf(config.trace.dir, sizeof config.trace.dir, "%s/traces", rig_dir("window"));
    config.trace.wait = 2;
    config.trace.active = STEPS;
    spoil(1, 6);
    struct director *d = begin_diverging_run(&config, "window", 2, dir);
    (void)director_await_fatal(d);
    director_destroy(&d);
    spoil_nothing();
    for (int rank = 0; rank < 2; rank++) {
        json_t *trace = trace_view_only("window", "full_shard", rank);
        assert_int_equal(trace_view_count(trace, "user_annotation", "ProfilerStep#*"), 3);
        for (int step = 4; step <= 6; step++) {
            char name[32];
            (void)snprintf(name, sizeof name, "ProfilerStep#%d", step);
            assert_int_equal(trace_view_count(trace, "user_annotation", name), 1);
        }
        json_decref(trace);
    }
}

static void expect_arguments(struct dpt_config *config, double lr, double min_lr,
                             const char *arguments)
{
    char dir[128];
    config->optimizer.lr = lr;
    config->optimizer.min_lr = min_lr;
    struct director *d = begin_diverging_run(config, "arguments", 1, dir);
    const char *text = director_await_fatal(d);
    if (!strstr(text, arguments))
        fail_msg("'%s' does not say '%s'", text, arguments);
    director_destroy(&d);
}

/* As they are to be typed: no min_lr above the lr, not by the digits that are printed either. */
static void stop_names_rates_that_are_accepted(void **state)
{
    (void)state;
    struct dpt_config config = make_divergence_config(DPT_DIVERGENCE_STOP);
    spoil(1, 0);
    expect_arguments(&config, 0.01, 0.001,
                     ", --set optimizer.lr=0.001 --allow-change optimizer.lr, or in the same way");
    expect_arguments(&config, 0.01, 0.005,
                     ", --set optimizer.lr=0.001 --set optimizer.min_lr=0.0005 --allow-change "
                     "optimizer.lr --allow-change optimizer.min_lr, or in the same way");
    expect_arguments(&config, 0.012345641, 0.0012345641,
                     ", --set optimizer.lr=0.00123456 --set optimizer.min_lr=0.000123456 ");
    spoil_nothing();
}

/* A rank that dies while the last state is saved costs nothing but a second try. */
static void death_at_the_stop(void **state)
{
    (void)state;
    struct dpt_config config = make_divergence_config(DPT_DIVERGENCE_STOP);
    char dir[128];
    spoil(1, 6);
    struct director *d = rig_begin(&config, "stop-death", dir);
    const int a = director_start(d, 0);
    (void)director_start(d, 1);
    assert_true(director_form(d, false));
    director_await_step(d, 6);
    director_kill(d, a);
    const char *text = NULL;
    if (!director_fatal(d, 1, &text)) {
        assert_true(director_form(d, false));
        text = director_await_fatal(d);
    }
    assert_non_null(strstr(text, "newest finite checkpoint: of step 6"));
    director_destroy(&d);
    spoil_nothing();
    assert_newest(dir, 6);
}

/* What older checkpoints keep says nothing about the last: it comes beside them. */
static void stop_removes_no_checkpoint(void **state)
{
    (void)state;
    struct dpt_config config = make_divergence_config(DPT_DIVERGENCE_STOP);
    char dir[128];
    config.checkpoint.keep = 1;
    spoil(1, 6);
    struct director *d = begin_diverging_run(&config, "stop-keeps", 2, dir);
    (void)director_await_fatal(d);
    director_destroy(&d);
    spoil_nothing();
    assert_true(has_checkpoint(dir, 4) && has_checkpoint(dir, 6));
}

static void one_hash(const struct dpt_config *config, const char *name, int world,
                     const char *expected)
{
    char hash[64];
    rig_undisturbed(config, name, world, world > 2, hash);
    if (strcmp(hash, expected) != 0)
        fail_msg("%s: %s instead of %s", name, hash, expected);
    json_t *summary = rig_summary_of(rig_dir(name));
    assert_int_equal(json_integer_value(json_object_get(summary, "skipped_steps")), 2);
    json_decref(summary);
    assert_int_equal(count_events(rig_dir(name), "skip"), 2);
}

static void skip_is_one_hash_in_every_world(void **state)
{
    (void)state;
    struct dpt_config config = make_divergence_config(DPT_DIVERGENCE_SKIP);
    char expected[64], other[64], name[48];
    rig_undisturbed(&config, "skip-calm", 1, false, other);
    for (int order = DPT_ACCUMULATE_LOCAL; order <= DPT_ACCUMULATE_REDUCE; order++) {
        config.train.accumulate = order;
        rig_choose(&config, "ddp");
        spoil(2, 5);
        (void)snprintf(name, sizeof name, "skip-%d", order);
        rig_undisturbed(&config, name, 1, false, expected);
        assert_string_not_equal(expected, other);
        for (int i = 0; i < RIG_STRATEGIES; i += dpt_test_every()) {
            rig_choose(&config, rig_strategies[i]);
            (void)snprintf(name, sizeof name, "skip-%s-%d", rig_strategies[i], order);
            one_hash(&config, name, 2 + i % 3, expected);
        }
        for (int i = 0; i < RIG_COVERED; i += dpt_test_every()) {
            rig_choose(&config, rig_covered[i]);
            (void)snprintf(name, sizeof name, "skip-%s-%d", rig_covered[i], order);
            one_hash(&config, name, 3 + i % 2, expected);
        }
        spoil_nothing();
    }
}

/* Steps that are left out leave weights and moments: where all are, the seed's stay. */
static void skip_changes_nothing(void **state)
{
    (void)state;
    char hash[3][64], name[32];
    struct dpt_config config = make_divergence_config(DPT_DIVERGENCE_SKIP);
    for (int i = 0; i < 3; i++) {
        config.train.steps = i < 2 ? i + 1 : 1;
        (void)snprintf(name, sizeof name, "nothing-%d", i);
        if (i < 2)
            spoil(2, 0);
        else
            spoil_nothing();
        rig_undisturbed(&config, name, 2, false, hash[i]);
    }
    assert_string_equal(hash[0], hash[1]);
    assert_string_not_equal(hash[0], hash[2]);
}

static void skip_goes_through_deaths_and_resume(void **state)
{
    (void)state;
    struct dpt_config config = make_divergence_config(DPT_DIVERGENCE_SKIP);
    spoil(4, 2); /* the checkpoint of step 4 is in between, with two in a row */
    config.train.divergence_limit = 4;
    rig_all_die(&config);
    config.train.steps = 18;
    rig_deaths_and_healing(&config);
    spoil_nothing();
}

static void skip_ends_at_its_limit(void **state)
{
    (void)state;
    struct dpt_config config = make_divergence_config(DPT_DIVERGENCE_SKIP);
    char dir[128];
    config.train.divergence_limit = 3;
    spoil(4, 2);
    struct director *d = begin_diverging_run(&config, "limit", 2, dir);
    const char *text = director_await_fatal(d);
    assert_non_null(strstr(text, "step 6: "));
    assert_non_null(strstr(text, "after 3 such steps in a row"));
    director_destroy(&d);
    assert_newest(dir, 5);
    /* Started again it has not forgotten them. */
    d = begin_diverging_run(&config, "limit", 1, dir);
    assert_non_null(strstr(director_await_fatal(d), "after 3 such steps in a row"));
    director_destroy(&d);
    spoil_nothing();
    d = begin_diverging_run(&config, "limit", 3, dir);
    (void)director_finish(d);
    director_destroy(&d);
}

/* Every rank says that the run ends: one that does not would train on with those that are left. */
static void assert_all_fatal(struct director *d, int world, const char *first, const char *words)
{
    (void)director_await_fatal(d);
    for (int rank = 0; rank < world; rank++) {
        const char *text = NULL;
        for (int tries = 0; !director_fatal(d, rank, &text); tries++) {
            assert_true(tries < 200);
            director_listen(d, 50);
        }
        if (!strstr(text, words) || strncmp(text, first, strlen(first)) != 0)
            fail_msg("rank %d: %s", rank, text);
    }
}

/* The step is applied, the weights are NaN from then on, and no checkpoint is. */
static void continue_commits_nothing_that_is_not_finite(void **state)
{
    (void)state;
    struct dpt_config config = make_divergence_config(DPT_DIVERGENCE_CONTINUE);
    for (int i = 0; i < 3; i++) {
        static const char *const strategies[] = {"ddp", "zero1", "full_shard"};
        char name[48], dir[128];
        rig_choose(&config, strategies[i]);
        (void)snprintf(name, sizeof name, "continue-%s", strategies[i]);
        spoil(1, 5);
        struct director *d = begin_diverging_run(&config, name, 1 + i, dir);
        assert_all_fatal(
            d, 1 + i, "the last checkpoint, of step 12, is not written: ",
            " holds a value that is not finite; newest finite checkpoint: of step 4; ");
        assert_true(director_best_step(d) == STEPS);
        director_destroy(&d);
        spoil_nothing();
        assert_newest(dir, 4);
        assert_int_equal(count_events(dir, "continue"), 1);
    }
}

/* Loss and gradient are finite, the second moment is not: the first checkpoint finds it, and the
 * run ends on all ranks. */
static void a_state_that_is_not_finite_ends_the_run(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) {
        static const char *const strategies[] = {"ddp", "zero1", "full_shard"};
        struct dpt_config config =
            make_divergence_config(i ? DPT_DIVERGENCE_STOP : DPT_DIVERGENCE_SKIP);
        char name[48], dir[128];
        config.train.grad_clip = 0;
        config.train.steps = 100000; /* no checkpoint takes as long */
        rig_choose(&config, strategies[i]);
        (void)snprintf(name, sizeof name, "moment-%s", strategies[i]);
        assert_int_equal(setenv("DPT_TEST_SPOIL_STEPS", "1:5:1e24", 1), 0);
        struct director *d = begin_diverging_run(&config, name, 1 + i, dir);
        assert_all_fatal(d, 1 + i, "step ", "; newest finite checkpoint: of step 4; ");
        const int64_t step = director_best_step(d);
        if (step < 9 || step >= config.train.steps)
            fail_msg("%s: ended at step %lld", strategies[i], (long long)step);
        director_destroy(&d);
        spoil_nothing();
        assert_newest(dir, 4);
        assert_int_equal(count_events(dir, "stop"), 1);
    }
}

/* A checkpoint has the validation loss of its weights, made before it is saved. */
static void a_checkpoint_has_its_validation_loss(void **state)
{
    (void)state;
    struct dpt_config config = make_divergence_config(DPT_DIVERGENCE_STOP);
    char dir[128], path[192], line[1024];
    int found = 0;
    config.checkpoint.keep = 100;
    rig_evaluate(&config, 4, 8);
    struct director *d = begin_diverging_run(&config, "evaluated", 2, dir);
    (void)director_finish(d);
    director_destroy(&d);
    (void)snprintf(path, sizeof path, "%s/metrics.jsonl", dir);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) {
        json_t *record = json_loads(line, 0, NULL);
        const json_t *loss = json_object_get(record, "val_loss");
        const int64_t step = json_integer_value(json_object_get(record, "step"));
        if (loss && has_checkpoint(dir, step)) { /* not every one was due */
            (void)snprintf(path, sizeof path, "%s/checkpoints/step-%08lld/state.json", dir,
                           (long long)step);
            json_t *saved = json_load_file(path, 0, NULL);
            assert_true(json_number_value(json_object_get(saved, "val_loss")) ==
                        json_number_value(loss));
            json_decref(saved);
            found++;
        }
        json_decref(record);
    }
    assert_int_equal(fclose(f), 0);
    assert_in_range(found, 2, 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stop_keeps_what_was_held),
        cmocka_unit_test(stop_ends_the_window),
        cmocka_unit_test(stop_names_rates_that_are_accepted),
        cmocka_unit_test(death_at_the_stop),
        cmocka_unit_test(stop_removes_no_checkpoint),
        cmocka_unit_test(skip_is_one_hash_in_every_world),
        cmocka_unit_test(skip_changes_nothing),
        cmocka_unit_test(skip_goes_through_deaths_and_resume),
        cmocka_unit_test(skip_ends_at_its_limit),
        cmocka_unit_test(continue_commits_nothing_that_is_not_finite),
        cmocka_unit_test(a_state_that_is_not_finite_ends_the_run),
        cmocka_unit_test(a_checkpoint_has_its_validation_loss),
    };
    return cmocka_run_group_tests_name("rank_divergence", tests, rig_setup, teardown);
}
