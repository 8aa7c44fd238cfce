/* Evaluation by ranks: one validation loss in every world and with any number of threads, weights
 * as without it, one line each however the world changes meanwhile. */
#include "tests/worker/train/rank_rig.h"

#include "base/fs.h"
#include "base/hash.h"
#include "base/rng.h"
#include "tests/worker/train/plain.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { EVALS_MAX = 64 };

/* Evaluations in the order of the log. */
struct evals {
    int n;
    int64_t step[EVALS_MAX];
    double loss[EVALS_MAX];
};

static struct evals evals_of(const char *dir)
{
    struct evals e = {0};
    char path[160], line[1024];
    (void)snprintf(path, sizeof path, "%s/metrics.jsonl", dir);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) {
        json_t *record = json_loads(line, 0, NULL);
        assert_non_null(record);
        json_t *loss = json_object_get(record, "val_loss");
        if (loss) {
            assert_true(e.n < EVALS_MAX);
            e.step[e.n] = json_integer_value(json_object_get(record, "step"));
            e.loss[e.n++] = json_real_value(loss);
        }
        json_decref(record);
    }
    assert_int_equal(fclose(f), 0);
    return e;
}

/* The same steps with the same bits, each once. */
static void expect_equal(const struct evals *a, const struct evals *b, const char *what)
{
    if (a->n != b->n)
        fail_msg("%s: %d evaluations, not %d", what, b->n, a->n);
    for (int i = 0; i < a->n; i++)
        if (a->step[i] != b->step[i] || memcmp(&a->loss[i], &b->loss[i], sizeof a->loss[i]) != 0)
            fail_msg("%s: step %lld %.17g, not step %lld %.17g", what, (long long)b->step[i],
                     b->loss[i], (long long)a->step[i], a->loss[i]);
}

static double val_loss_of_summary(const char *dir)
{
    json_t *summary = rig_summary_of(dir);
    json_t *loss = json_object_get(summary, "val_loss");
    double value = json_is_real(loss) ? json_real_value(loss) : (double)NAN;
    json_decref(summary);
    return value;
}

static void run_eval_world(const struct dpt_config *config, const char *name, int world,
                           char hash[64], struct evals *ret)
{
    char dir[128];
    struct director *d = rig_begin(config, name, dir);
    for (int i = 0; i < world; i++)
        (void)director_start_threads(d, i % 2, 1 + i % 3);
    assert_true(director_form(d, false));
    (void)snprintf(hash, 64, "%s", director_finish(d));
    director_destroy(&d);
    *ret = evals_of(dir);
    assert_true(val_loss_of_summary(dir) == ret->loss[ret->n - 1]);
}

/* 13 sequences in batches of 2: six whole ones and a short one, divided among 1 to 4 ranks. */
static void one_loss_in_every_world(void **state)
{
    (void)state;
    struct dpt_config config = rig_make_config(14, 10, "");
    char without[64], hash[64], name[32];
    rig_undisturbed(&config, "without", 1, false, without);
    rig_evaluate(&config, 4, 13);
    struct evals first = {0}, other;
    for (int world = 1; world <= 4; world++) {
        (void)snprintf(name, sizeof name, "eval-%d", world);
        run_eval_world(&config, name, world, hash, &other);
        assert_string_equal(hash, without); /* evaluation leaves no trace in the weights */
        if (world == 1)
            first = other;
        expect_equal(&first, &other, name);
    }
    assert_int_equal(first.n, 3);
    static const int64_t steps[] = {4, 8, 10}; /* and after the last */
    for (int i = 0; i < 3; i++)
        assert_int_equal(first.step[i], steps[i]);
    assert_true(first.loss[2] < first.loss[0] && first.loss[0] < log(256.0));
}

/* The reported value is the loss: one sequence after another in a plain loop gives it, except for
 * the bits that the shape of a batch changes. */
static void loss_of_a_plain_loop(enum dpt_precision precision, const char *name)
{
    struct dpt_config config = rig_make_config(14, 6, "");
    rig_evaluate(&config, 6, 13);
    config.train.precision = precision;
    char hash[64], expected[DPT_HASH_HEX_BYTES];
    struct evals told;
    double loss = 0;
    run_eval_world(&config, name, 2, hash, &told);
    plain_train_and_validate(&config, 13, expected, &loss);
    assert_string_equal(hash, expected);
    assert_int_equal(told.n, 1);
    assert_true(fabs(told.loss[0] - loss) < 1e-6 * loss);
}

static void the_loss_of_a_plain_loop(void **state)
{
    (void)state;
    loss_of_a_plain_loop(DPT_PRECISION_FP32, "plain");
    loss_of_a_plain_loop(DPT_PRECISION_BF16, "plain-bf16");
}

/* The evaluations of the undisturbed run; the stories below must report the same ones. */
static void calm(const struct dpt_config *config, const char *name, char hash[64],
                 struct evals *ret)
{
    run_eval_world(config, name, 1, hash, ret);
    assert_int_equal(ret->n, config->train.steps);
}

/* Every step is evaluated, so most of the time is: the dead die in the middle of it, the log's
 * writer too. */
static void losses_meanwhile(void **state)
{
    (void)state;
    struct dpt_config config = rig_make_config(14, 14, "");
    rig_evaluate(&config, 1, 24);
    char expected[64], dir[128], name[32];
    struct evals all, told;
    calm(&config, "losses-calm", expected, &all);
    for (int victim = 0; victim < 3; victim += dpt_test_every()) {
        (void)snprintf(name, sizeof name, "losses-%d", victim);
        struct director *d = rig_begin(&config, name, dir);
        for (int i = 0; i < 3; i++)
            (void)director_start(d, i % 2);
        int joiner = director_start(d, 0);
        director_bench(d, joiner, true);
        assert_true(director_form(d, false));
        director_await_step(d, 3);
        director_kill(d, victim);
        assert_true(director_form(d, false));
        director_await_step(d, 7);
        director_bench(d, joiner, false);
        assert_true(director_form(d, true));
        director_await_step(d, 10);
        director_kill(d, (victim + 1) % 3);
        assert_string_equal(director_finish(d), expected);
        assert_int_equal(director_steps_lost(d), 0);
        director_destroy(&d);
        told = evals_of(dir);
        expect_equal(&all, &told, name);
        assert_true(val_loss_of_summary(dir) == all.loss[all.n - 1]);
    }
}

/* Worlds change faster than an evaluation takes: each continues after the last one's batches, and
 * no batch is computed again, except the round that a hard end interrupts. */
static void no_batch_twice(void **state)
{
    (void)state;
    enum { WORLDS = 20, BATCHES = 30, HARD = 4 };
    struct dpt_config config = rig_make_config(14, 3, "");
    rig_evaluate(&config, 3, 2 * BATCHES);
    char expected[64], dir[128];
    struct evals all, told;
    run_eval_world(&config, "batches-calm", 1, expected, &all);
    struct director *d = rig_begin(&config, "batches", dir);
    const int a = director_start(d, 0), b = director_start(d, 1);
    assert_true(director_form(d, false));
    director_await_step(d, 3);
    for (int i = 0; i < WORLDS; i++) {
        director_bench(d, b, i % 3 == 2);
        assert_true(director_form(d, i % (WORLDS / HARD) != 1));
    }
    director_bench(d, b, false);
    assert_true(director_form(d, true));
    assert_string_equal(director_finish(d), expected);
    const uint32_t done = director_work_done(d, a);
    if (done > BATCHES + HARD)
        fail_msg("rank a went through %u batches of %d", done, BATCHES);
    director_destroy(&d);
    told = evals_of(dir);
    expect_equal(&all, &told, "batches");
}

/* Re-formations, soft and hard, at moments that the seed chooses. */
static void evaluations_survive_random_formations(void **state)
{
    (void)state;
    struct dpt_config config = rig_make_config(14, 20, "");
    rig_evaluate(&config, 1, 24);
    char expected[64], dir[128], name[32];
    struct evals all, told;
    calm(&config, "restless-calm", expected, &all);
    for (uint64_t seed = 0; seed < 4; seed += dpt_test_every()) {
        (void)snprintf(name, sizeof name, "restless-%d", (int)seed);
        struct director *d = rig_begin(&config, name, dir);
        for (int i = 0; i < 3; i++)
            (void)director_start(d, (int)(seed % 2) * (i % 2));
        assert_true(director_form(d, false));
        struct dpt_rng_key key = dpt_rng_key(seed, DPT_RNG_TEST, 2, 0, 0);
        for (int i = 0; i < 9; i++) {
            uint32_t block[4];
            dpt_philox(key, (uint64_t)i, block);
            director_await_step(d, 1 + 2 * i);
            assert_true(director_form(d, block[0] % 2 == 0));
        }
        if (strcmp(director_finish(d), expected) != 0)
            fail_msg("seed %d: another hash", (int)seed);
        director_destroy(&d);
        told = evals_of(dir);
        expect_equal(&all, &told, name);
    }
}

/* All die; the resumed run makes the evaluation that is due at its first step, and summary.json of
 * a run that had finished has it, too. */
static void resumed_from_a_checkpoint(void **state)
{
    (void)state;
    struct dpt_config config = rig_make_config(14, 8, "");
    rig_evaluate(&config, 4, 13);
    char hash[64], dir[128];
    struct evals first, again;
    run_eval_world(&config, "resumed", 2, hash, &first);
    struct director *d = rig_begin(&config, "resumed", dir);
    (void)director_start(d, 0);
    assert_true(director_form(d, false));
    assert_string_equal(director_finish(d), hash);
    director_destroy(&d);
    again = evals_of(dir);
    expect_equal(&first, &again, "resumed"); /* made again, but no second line */
    assert_true(val_loss_of_summary(dir) == first.loss[first.n - 1]);
}

/* evaluation.json of a run that only evaluates; owned by the caller. */
static json_t *evaluation_of(const char *dir)
{
    char path[160];
    (void)snprintf(path, sizeof path, "%s/evaluation.json", dir);
    json_t *file = json_load_file(path, 0, NULL);
    if (!file)
        fail_msg("no %s", path);
    return file;
}

static bool exists(const char *dir, const char *name)
{
    char path[192];
    (void)snprintf(path, sizeof path, "%s/%s", dir, name);
    return access(path, F_OK) == 0;
}

/* Trains in one world, evaluates its checkpoints in others: the losses are those of the training,
 * and nothing else is written. */
static void evaluated_alone(void **state)
{
    (void)state;
    struct dpt_config config = rig_make_config(14, 8, "");
    rig_evaluate(&config, 4, 13);
    char hash[64], dir[128], name[32];
    struct evals trained;
    run_eval_world(&config, "trained", 2, hash, &trained);
    assert_int_equal(trained.n, 2);
    config.train.eval_only = true;
    config.data.train[0] = '\0'; /* is not needed */
    config.optimizer.lr = 1;     /* nor are these as in the training */
    config.seed = 1;
    rig_choose(&config, "zero2"); /* train.accumulate: auto is another order than with ddp */
    for (int world = 1; world <= 4; world += dpt_test_every())
        for (int step = 0; step <= 4; step += 4) { /* the newest; that of step 4 */
            (void)snprintf(name, sizeof name, "alone-%d-%d", world, step);
            config.train.eval_step = step;
            struct director *d = rig_begin(&config, name, dir);
            director_read_checkpoints(d, rig_dir("trained"));
            for (int i = 0; i < world; i++)
                (void)director_start_threads(d, i % 2, 1 + i % 2);
            assert_true(director_form(d, false));
            assert_true((strcmp(director_finish(d), hash) == 0) == (step == 0));
            director_destroy(&d);
            json_t *e = evaluation_of(dir);
            assert_true(json_real_value(json_object_get(e, "val_loss")) ==
                        trained.loss[step == 4 ? 0 : 1]);
            assert_int_equal(json_integer_value(json_object_get(e, "step")), step == 4 ? 4 : 8);
            assert_int_equal(json_integer_value(json_object_get(e, "world_size")), world);
            assert_int_equal(json_integer_value(json_object_get(e, "val_tokens")), 13 * 16);
            json_decref(e);
            assert_false(exists(dir, "metrics.jsonl") || exists(dir, "summary.json") ||
                         exists(dir, "events.jsonl"));
        }
}

/* After a loss the others begin the evaluation again and print the same loss. */
static void losses_while_evaluating_alone(void **state)
{
    (void)state;
    struct dpt_config config = rig_make_config(14, 4, "");
    rig_evaluate(&config, 4, 60);
    char hash[64], dir[128];
    struct evals trained;
    run_eval_world(&config, "short-trained", 1, hash, &trained);
    config.train.eval_only = true;
    for (int victim = 0; victim < 3; victim += dpt_test_every()) {
        char name[32];
        (void)snprintf(name, sizeof name, "short-%d", victim);
        struct director *d = rig_begin(&config, name, dir);
        director_read_checkpoints(d, rig_dir("short-trained"));
        for (int i = 0; i < 3; i++)
            (void)director_start(d, i % 2);
        assert_true(director_form(d, false));
        director_kill(d, victim);
        assert_true(director_form(d, false));
        assert_string_equal(director_finish(d), hash);
        director_destroy(&d);
        json_t *e = evaluation_of(dir);
        assert_true(json_real_value(json_object_get(e, "val_loss")) == trained.loss[0]);
        json_decref(e);
    }
}

/* Told once, at the start, where checkpoints fall on steps that are not evaluated. */
static void checkpoints_without_a_loss_are_told(void **state)
{
    (void)state;
    static const struct {
        int every_steps, keep_best, told;
    } cases[] = {{3, 1, 1}, {4, 1, 0}, {3, 0, 0}, {0, 1, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct dpt_config config = rig_make_config(14, 4, "");
        rig_evaluate(&config, 2, 10);
        config.checkpoint.every_steps = cases[i].every_steps;
        config.checkpoint.keep_best = cases[i].keep_best;
        char dir[128], name[32], said[160];
        (void)snprintf(name, sizeof name, "best-%d", (int)i);
        struct director *d = rig_begin(&config, name, dir);
        const int fd = rig_log_to(dir, said);
        (void)director_start(d, 0);
        assert_true(director_form(d, false));
        (void)director_finish(d);
        director_destroy(&d);
        rig_log_back(fd);
        assert_int_equal(rig_said(said, "not a multiple of train.eval_every (2)"), cases[i].told);
    }
}

/* What is unfinished in the folder is of a run that trains there now. */
static void unfinished_checkpoints_stay(void **state)
{
    (void)state;
    struct dpt_config config = rig_make_config(14, 4, "");
    rig_evaluate(&config, 4, 10);
    char hash[64], dir[128], checkpoints[160], path[200];
    struct evals trained;
    run_eval_world(&config, "unfinished", 1, hash, &trained);
    (void)snprintf(checkpoints, sizeof checkpoints, "%s/checkpoints", rig_dir("unfinished"));
    (void)snprintf(path, sizeof path, "%s/.tmp-step-00000008-g1-theirs", checkpoints);
    struct dpt_err err;
    assert_int_equal(dpt_fs_mkdirs(path, &err), DPT_OK);
    config.train.eval_only = true;
    struct director *d = rig_begin(&config, "beside-unfinished", dir);
    director_read_checkpoints(d, rig_dir("unfinished"));
    (void)director_start(d, 0);
    assert_true(director_form(d, false));
    assert_string_equal(director_finish(d), hash);
    director_destroy(&d);
    assert_true(dpt_fs_exists(path));
}

static void nothing_to_evaluate(void **state)
{
    (void)state;
    static const struct {
        const char *said;
        int step, nodes_max;
        bool no_folder;
    } cases[] = {{"no complete checkpoint in '", 0, 1, false},
                 {"no complete checkpoint in '", 0, 8, false}, /* another node might have had one */
                 {"no complete checkpoint of step 7 in '", 7, 1, false},
                 {"no complete checkpoint of step 7 in '", 7, 8, false},
                 {"checkpoint.dir: there is no folder '", 0, 1, true},
                 {"checkpoint.dir: there is no folder '", 7, 8, true}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct dpt_config config = rig_make_config(14, 4, "");
        rig_evaluate(&config, 4, 10);
        config.train.eval_only = true;
        config.train.eval_step = cases[i].step;
        config.cluster.nnodes_max = cases[i].nodes_max;
        char dir[128], name[32], path[160], said[160];
        (void)snprintf(name, sizeof name, "nothing-%d", (int)i);
        struct director *d = rig_begin(&config, name, dir);
        (void)snprintf(path, sizeof path, "%s/checkpoints", dir);
        if (cases[i].no_folder)
            assert_int_equal(rmdir(path), 0);
        const int fd = rig_log_to(dir, said);
        int rank = director_start(d, 0);
        const char *text = NULL;
        if (!director_fatal(d, rank, &text)) {
            assert_true(cases[i].nodes_max > 1);
            director_prepare(d, false);
            director_plan(d);
            text = director_await_fatal(d);
        }
        if (!strstr(text, cases[i].said) || !strstr(text, dir))
            fail_msg("'%s' does not say what is missing", text);
        director_destroy(&d);
        rig_log_back(fd);
        assert_int_equal(rig_said(said, " W "), 0); /* the agent prints it, once */
        assert_true(dpt_fs_exists(path) != cases[i].no_folder);
    }
}

static void another_model_is_refused(void **state)
{
    (void)state;
    struct dpt_config config = rig_make_config(14, 4, "");
    rig_evaluate(&config, 4, 10);
    char hash[64], dir[128];
    struct evals trained;
    run_eval_world(&config, "other", 1, hash, &trained);
    config.train.eval_only = true;
    config.model.n_layer = 1;
    struct director *d = rig_begin(&config, "other", dir);
    const char *text = NULL;
    assert_true(director_fatal(d, director_start(d, 0), &text));
    if (!strstr(text, "model.n_layer (2, here 1)"))
        fail_msg("'%s' does not name the key", text);
    director_destroy(&d);
}

static void bad_validation_data(void **state)
{
    (void)state;
    static const struct {
        const char *name, *said;
        size_t bytes; /* 0: absent */
    } cases[] = {{"absent", "data.val: open", 0}, {"short", "data.val: '", 16}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct dpt_config config = rig_make_config(14, 4, "");
        rig_evaluate(&config, 2, 10);
        char dir[128], path[192];
        struct director *d = rig_begin(&config, cases[i].name, dir);
        director_destroy(&d);
        (void)snprintf(path, sizeof path, "%s/val", dir);
        if (cases[i].bytes > 0) {
            FILE *f = fopen(path, "w");
            assert_non_null(f);
            for (size_t k = 0; k < cases[i].bytes; k++)
                (void)fputc('x', f);
            assert_int_equal(fclose(f), 0);
        }
        (void)snprintf(config.data.val, sizeof config.data.val, "%s", path);
        d = rig_begin(&config, cases[i].name, dir);
        const char *text = NULL;
        assert_true(director_fatal(d, director_start(d, 0), &text));
        if (!strstr(text, cases[i].said) || !strstr(text, path))
            fail_msg("'%s' does not say what is wrong", text);
        director_destroy(&d);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_loss_in_every_world),
        cmocka_unit_test(the_loss_of_a_plain_loop),
        cmocka_unit_test(losses_meanwhile),
        cmocka_unit_test(no_batch_twice),
        cmocka_unit_test(evaluations_survive_random_formations),
        cmocka_unit_test(resumed_from_a_checkpoint),
        cmocka_unit_test(evaluated_alone),
        cmocka_unit_test(losses_while_evaluating_alone),
        cmocka_unit_test(checkpoints_without_a_loss_are_told),
        cmocka_unit_test(unfinished_checkpoints_stay),
        cmocka_unit_test(nothing_to_evaluate),
        cmocka_unit_test(another_model_is_refused),
        cmocka_unit_test(bad_validation_data),
    };
    return cmocka_run_group_tests_name("rank_eval", tests, rig_setup, rig_teardown);
}
