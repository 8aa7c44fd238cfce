/* Ranks whose node leaves while no server answers write their state as a rescue. A run that is
 * started again continues from it, with the weights of the undisturbed run. */
#include "base/claim.h"
#include "base/fs.h"
#include "checkpoint/checkpoint.h"
#include "tests/worker/train/rank_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

enum { STEPS = 40, RANKS = 4, SOON_MS = 10000 };

static struct dpt_config make_rescue_config(const char *strategy)
{
    struct dpt_config config = rig_make_config(14, STEPS, "");
    rig_choose(&config, strategy);
    config.train.accumulate = DPT_ACCUMULATE_REDUCE; /* one hash for all strategies */
    config.train.lanes = RANKS;
    config.checkpoint.every_steps = 0; /* no other state is left */
    return config;
}

static const char *calm_hash(void)
{
    static char hash[64];
    const struct dpt_config config = make_rescue_config("ddp");
    if (!hash[0])
        rig_undisturbed(&config, "calm", 1, false, hash);
    return hash;
}

enum place { IN_STEPS, QUIESCED, READY };

static struct director *begin_config(const struct dpt_config *config, const char *name,
                                     char dir[128])
{
    struct director *d = rig_begin(config, name, dir);
    for (int i = 0; i < RANKS; i++)
        (void)director_start(d, i % 2);
    assert_true(director_form(d, false));
    return d;
}

static struct director *begin_rescue_run(const char *strategy, const char *name, char dir[128])
{
    const struct dpt_config config = make_rescue_config(strategy);
    return begin_config(&config, name, dir);
}

/* New processes continue from step `from`, and end as undisturbed. */
static void go_on(const char *strategy, const char *name, int64_t from)
{
    char dir[128];
    const struct dpt_config config = make_rescue_config(strategy);
    struct director *d = rig_begin(&config, name, dir);
    for (int i = 0; i < RANKS; i++)
        (void)director_start(d, i % 2);
    director_prepare(d, false);
    for (int i = 0; i < RANKS; i++)
        assert_int_equal(director_checkpoint_step(d, i), from);
    assert_true(director_form(d, false));
    const char *hash = director_finish(d);
    if (strcmp(hash, calm_hash()) != 0)
        fail_msg("%s: %s instead of %s", name, hash, calm_hash());
    director_destroy(&d);
    json_t *summary = rig_summary_of(dir);
    if (from < STEPS)
        assert_int_equal(json_integer_value(json_object_get(summary, "start_step")), from);
    json_decref(summary);
    char path[160];
    struct dpt_err err;
    int64_t newest = -1;
    (void)snprintf(path, sizeof path, "%s/checkpoints", dir);
    assert_int_equal(dpt_checkpoint_newest(path, &newest, &err), DPT_OK);
    assert_int_equal(newest, STEPS);
    struct dpt_checkpoint *checkpoint = NULL;
    assert_int_equal(dpt_checkpoint_open(path, newest, &checkpoint, &err), DPT_OK);
    assert_null(
        dpt_checkpoint_get_state(checkpoint)->rescue.node); /* the run's own took its place */
    dpt_checkpoint_close(&checkpoint);
}

/* A rank dies; the others write the rescue, with its part or without. */
static void rescue_in(const char *strategy, enum place place, int killed)
{
    char dir[128], name[64];
    (void)snprintf(name, sizeof name, "%s-%d-%d", strategy, (int)place, killed);
    struct director *d = begin_rescue_run(strategy, name, dir);
    if (place == IN_STEPS)
        director_await_step(d, 3);
    else
        director_prepare(d, true); /* all at one step */
    if (killed >= 0)
        director_kill(d, killed);
    if (place == READY && killed >= 0)
        director_prepare(d, false);
    if (place == READY) {
        director_plan(d);
        director_await_ready(d);
    }
    assert_int_equal(director_rescue(d, SOON_MS), killed >= 0 ? RANKS - 1 : RANKS);
    int64_t step = director_best_step(d);
    director_destroy(&d);
    go_on(strategy, name, step);
}

/* Every rank holds everything; they stop in the middle of steps, of which not all know the last. */
static void whole_holders(void **state)
{
    (void)state;
    for (enum place place = IN_STEPS; place <= READY; place++)
        rescue_in("ddp", place, place == IN_STEPS ? -1 : 1);
}

static void test_rescue_in_each_strategy(void **state)
{
    (void)state;
    for (int i = 0; i < RIG_STRATEGIES; i++) {
        rescue_in(rig_strategies[i], QUIESCED, -1);
        if (i % dpt_test_every() == 0)
            rescue_in(rig_strategies[i], READY, -1);
    }
}

/* What the dead held alone is on another node. */
static void parts_of_the_dead(void **state)
{
    (void)state;
    for (int i = 0; i < RIG_COVERED; i++)
        rescue_in(rig_covered[i], QUIESCED, i % RANKS);
}

/* Nobody has them: each says so when its time is over, and nothing is found later. */
static void a_part_that_nobody_has(void **state)
{
    (void)state;
    char dir[128], path[160];
    struct director *d = begin_rescue_run("full_shard", "lost", dir);
    director_prepare(d, true);
    director_kill(d, 2);
    assert_int_equal(director_rescue(d, 300), 0);
    director_destroy(&d);
    int64_t newest = -7;
    struct dpt_err err;
    (void)snprintf(path, sizeof path, "%s/checkpoints", dir);
    assert_int_equal(dpt_checkpoint_newest(path, &newest, &err), DPT_OK);
    assert_int_equal(newest, -1);
}

/* A new start of the run that has taken the folder over since meets no rescue of the old one. */
static void a_folder_that_was_taken_over(void **state)
{
    (void)state;
    for (int taken = 0; taken < 2; taken++) {
        char dir[128], path[160];
        struct dpt_claim_record record = {.run = "run", .token = "0123", .lease_ms = 1000};
        struct dpt_err err;
        int64_t newest = -7;
        const struct dpt_config config = make_rescue_config("ddp");
        struct director *d = rig_begin(&config, taken ? "taken" : "claimed", dir);
        (void)snprintf(path, sizeof path, "%s/checkpoints", dir);
        dpt_claim_describe_self(&record);
        assert_int_equal(dpt_claim_take(path, 1, &record, &err), DPT_OK);
        director_claim(d, 1, "0123");
        for (int i = 0; i < 2; i++)
            (void)director_start(d, i);
        assert_true(director_form(d, false));
        director_prepare(d, true);
        record.token[0] = '9';
        if (taken)
            assert_int_equal(dpt_claim_take(path, 2, &record, &err), DPT_OK);
        const int64_t step = director_best_step(d);
        assert_int_equal(director_rescue(d, SOON_MS), taken ? 0 : 2);
        director_destroy(&d);
        assert_int_equal(dpt_checkpoint_newest(path, &newest, &err), DPT_OK);
        assert_int_equal(newest, taken ? -1 : step);
    }
}

/* Beside the rescue: a checkpoint that finds at its rename that the folder is another's ends the
 * run, which would train on for nothing. */
static void a_checkpoint_for_a_folder_that_was_taken_over(void **state)
{
    (void)state;
    char dir[128], path[160];
    struct dpt_claim_record record = {.run = "run", .token = "0123", .lease_ms = 1000};
    struct dpt_err err;
    int64_t newest = -7;
    struct dpt_config config = make_rescue_config("ddp");
    config.checkpoint.every_steps = 4;
    config.train.steps = 4000;
    struct director *d = rig_begin(&config, "checkpoint-taken", dir);
    (void)snprintf(path, sizeof path, "%s/checkpoints", dir);
    dpt_claim_describe_self(&record);
    assert_int_equal(dpt_claim_take(path, 1, &record, &err), DPT_OK);
    director_claim(d, 1, "0123");
    (void)director_start(d, 0);
    (void)snprintf(record.run, sizeof record.run, "other");
    record.token[0] = '9';
    assert_int_equal(dpt_claim_take(path, 2, &record, &err), DPT_OK);
    assert_true(director_form(d, false));
    const char *text = director_await_fatal(d);
    assert_non_null(strstr(text, "checkpoint of step "));
    assert_non_null(strstr(text, "was taken over by a worker of run other (host "));
    assert_true(director_best_step(d) < config.train.steps);
    director_destroy(&d);
    assert_int_equal(dpt_checkpoint_newest(path, &newest, &err), DPT_OK);
    assert_int_equal(newest, -1);
}

/* A start from a rescue appends unconfirmed lines: those of steps up to the rescue that the log
 * lacks, no events, no lines of later steps, no incomplete lines. */
static void lines_that_were_not_confirmed_complete_the_log(void **state)
{
    (void)state;
    char dir[128], path[192], lines[512], *log;
    size_t bytes;
    struct dpt_err err;
    struct director *d = begin_rescue_run("ddp", "unconfirmed", dir);
    director_prepare(d, true);
    assert_int_equal(director_rescue(d, SOON_MS), RANKS);
    const long long step = (long long)director_best_step(d);
    director_destroy(&d);
    (void)snprintf(path, sizeof path, "%s/node-n7", dir);
    assert_int_equal(dpt_fs_mkdirs(path, &err), DPT_OK);
    (void)snprintf(path, sizeof path, "%s/node-n7/rank-0.unconfirmed.jsonl", dir);
    (void)snprintf(lines, sizeof lines,
                   "\n{}\n{\"kind\": \"diverged\", \"step\": %lld, \"of\": \"an event\"}\n"
                   "{\"step\": %lld, \"val_loss\": 1.5, \"of\": \"a step that is there\"}\n"
                   "{\"step\": %lld, \"val_loss\": 1.5, \"of\": \"the rescue\"}\n"
                   "{\"step\": %lld, \"of\": \"a later one\"}\n{\"step\": %lld, \"of\": \"half",
                   step, step - 1, step, step + 1, step);
    assert_int_equal(dpt_fs_write_file_atomic(path, lines, strlen(lines), &err), DPT_OK);
    go_on("ddp", "unconfirmed", step);
    (void)snprintf(path, sizeof path, "%s/metrics.jsonl", dir);
    assert_int_equal(dpt_fs_read_file(path, 1 << 20, &log, &bytes, &err), DPT_OK);
    const char *taken = strstr(log, "\"of\": ");
    assert_non_null(taken);
    assert_memory_equal(taken, "\"of\": \"the rescue\"}\n", 20);
    assert_null(strstr(taken + 1, "\"of\": "));
    free(log);
}

static void write_unconfirmed(const char *dir, const char *node, const char *lines)
{
    char path[192];
    struct dpt_err err;
    (void)snprintf(path, sizeof path, "%s/node-%s", dir, node);
    assert_int_equal(dpt_fs_mkdirs(path, &err), DPT_OK);
    (void)snprintf(path, sizeof path, "%s/node-%s/rank-0.unconfirmed.jsonl", dir, node);
    assert_int_equal(dpt_fs_write_file_atomic(path, lines, strlen(lines), &err), DPT_OK);
}

/* Several nodes have lines, in parts and in an order that is not theirs: each step comes once, with
 * the line that was made last. */
static void lines_of_several_nodes_come_in_order(void **state)
{
    (void)state;
    char dir[128], path[192], taken[64] = "", *log;
    size_t bytes;
    struct dpt_err err;
    struct dpt_config config = make_rescue_config("ddp");
    config.train.steps = 100 * STEPS; /* its end has a checkpoint, with which no lines wait */
    struct director *d = begin_config(&config, "several", dir);
    director_await_step(d, 3);
    director_prepare(d, true);
    assert_int_equal(director_rescue(d, SOON_MS), RANKS);
    const int64_t step = director_best_step(d);
    assert_true(step >= 3);
    director_destroy(&d);
    (void)snprintf(path, sizeof path, "%s/metrics.jsonl", dir);
    assert_int_equal(dpt_fs_write_file_atomic(path, "", 0, &err), DPT_OK);
    write_unconfirmed(dir, "n7",
                      "{\"step\": 2, \"time\": 8, \"of\": \"a\"}\n{\"step\": 3, \"of\": \"b\"}\n");
    write_unconfirmed(dir, "n8",
                      "{\"step\": 1, \"of\": \"c\"}\n{\"step\": 2, \"time\": 9, \"of\": \"d\"}\n"
                      "{\"step\": 2, \"val_loss\": 1.5, \"of\": \"e\"}\n");
    d = begin_config(&config, "several", dir);
    director_await_step(d, step + 1);
    director_destroy(&d);
    assert_int_equal(dpt_fs_read_file(path, 1 << 20, &log, &bytes, &err), DPT_OK);
    for (const char *at = log; (at = strstr(at, "\"of\": \"")) != NULL; at += 7)
        (void)snprintf(taken + strlen(taken), sizeof taken - strlen(taken), "%c", at[7]);
    assert_string_equal(taken, "cdeb");
    free(log);
}

/* A run that starts at step 0 in the folder of an earlier one appends none of the earlier run's
 * lines, neither at its start nor when it continues from a rescue. */
static void lines_of_an_earlier_history_go(void **state)
{
    (void)state;
    char dir[128], path[192], *log;
    size_t bytes;
    struct dpt_err err;
    struct dpt_config config = make_rescue_config("ddp");
    config.train.steps = 100 * STEPS;
    struct director *d = rig_begin(&config, "anew", dir);
    write_unconfirmed(dir, "n7", "{\"step\": 1, \"of\": \"a\"}\n{\"step\": 2, \"of\": \"b\"}\n");
    for (int i = 0; i < RANKS; i++)
        (void)director_start(d, i % 2);
    assert_true(director_form(d, false));
    director_await_step(d, 3);
    (void)snprintf(path, sizeof path, "%s/node-n7/rank-0.unconfirmed.jsonl", dir);
    assert_false(dpt_fs_exists(path));
    director_prepare(d, true);
    assert_int_equal(director_rescue(d, SOON_MS), RANKS);
    const int64_t step = director_best_step(d);
    director_destroy(&d);
    (void)snprintf(path, sizeof path, "%s/metrics.jsonl", dir);
    assert_int_equal(dpt_fs_write_file_atomic(path, "", 0, &err), DPT_OK);
    d = begin_config(&config, "anew", dir);
    director_await_step(d, step + 1);
    director_destroy(&d);
    assert_int_equal(dpt_fs_read_file(path, 1 << 20, &log, &bytes, &err), DPT_OK);
    assert_null(strstr(log, "\"of\": "));
    free(log);
}

/* A run that continues from a step keeps the lines up to it: a later start may need them. */
static void lines_after_the_step_go(void **state)
{
    (void)state;
    char dir[128], path[192], lines[192], *left;
    size_t bytes;
    struct dpt_err err;
    struct director *d = begin_rescue_run("ddp", "back", dir);
    director_prepare(d, true);
    assert_int_equal(director_rescue(d, SOON_MS), RANKS);
    const long long step = (long long)director_best_step(d);
    director_destroy(&d);
    (void)snprintf(lines, sizeof lines, "{\"step\": %lld}\n{\"step\": %lld}\n{\"step\": %lld}\n",
                   step, step + 1, step);
    write_unconfirmed(dir, "n7", lines);
    go_on("ddp", "back", step);
    (void)snprintf(path, sizeof path, "%s/node-n7/rank-0.unconfirmed.jsonl", dir);
    assert_int_equal(dpt_fs_read_file(path, 1 << 20, &left, &bytes, &err), DPT_OK);
    (void)snprintf(lines, sizeof lines, "{\"step\": %lld}\n{\"step\": %lld}\n", step, step);
    assert_int_equal(bytes, strlen(lines));
    assert_memory_equal(left, lines, bytes);
    free(left);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole_holders),
        cmocka_unit_test(test_rescue_in_each_strategy),
        cmocka_unit_test(parts_of_the_dead),
        cmocka_unit_test(a_part_that_nobody_has),
        cmocka_unit_test(a_folder_that_was_taken_over),
        cmocka_unit_test(a_checkpoint_for_a_folder_that_was_taken_over),
        cmocka_unit_test(lines_that_were_not_confirmed_complete_the_log),
        cmocka_unit_test(lines_of_several_nodes_come_in_order),
        cmocka_unit_test(lines_of_an_earlier_history_go),
        cmocka_unit_test(lines_after_the_step_go),
    };
    return cmocka_run_group_tests_name("rank_rescue", tests, rig_setup, rig_teardown);
}
