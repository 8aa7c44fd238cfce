/* The history that a journal gives people and programs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/fs.h"
#include "rendezvous/store/history.h"
#include "rendezvous/store/store.h"
#include "tests/rendezvous/core/trio.h"
#include "tests/tmp.h"

#include <jansson.h>
#include <limits.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char dir[PATH_MAX];

static int setup(void **state)
{
    assert_true(test_make_memory_dir(dir, sizeof dir, "history"));
    return trio_setup(state);
}

static int teardown(void **state)
{
    struct dpt_err err;
    assert_int_equal(dpt_fs_remove_tree(dir, &err), DPT_OK);
    return trio_teardown(state);
}

static void write_journal(void)
{
    struct dpt_err err;
    struct dpt_store *store = NULL;
    assert_int_equal(dpt_store_open(dir, &store, &err), DPT_OK);
    const struct dpt_journal journal = dpt_store_journal(store);
    for (size_t i = 0; i < kept_records_count(stage.journal); i++)
        assert_int_equal(journal.add(journal.ctx, kept_record_at(stage.journal, i), &err), DPT_OK);
    assert_int_equal(journal.commit(journal.ctx, &err), DPT_OK);
    dpt_store_close(&store);
}

/* The output as owned text. */
static char *print_history(const char *run, bool json)
{
    char *text = NULL;
    size_t bytes = 0;
    struct dpt_err err;
    const struct dpt_history_options options = {.dir = dir, .run = run, .json = json};
    FILE *out = open_memstream(&text, &bytes);
    assert_non_null(out);
    if (dpt_store_history(&options, out, &err) != DPT_OK)
        fail_msg("%s", err.text);
    assert_int_equal(fclose(out), 0);
    return text;
}

/* A run that loses node b at step 3 and saves step 3, with 40 ms for a step. */
static void live(void)
{
    static Dpt__NodeHealth health;
    memset(a.key, 0xa1, sizeof a.key);
    dpt__node_health__init(&health);
    health.mflops = 31000;
    health.fault = "core 3 computes wrong values";
    a.state.health = &health;
    a.state.rack = "r1";
    b.state.host_name = "vm";
    fake_say(&a, &stage); /* is refused, and joins mended */
    health.fault = "";
    trio_start();
    a.ranks[0].step_ms_median = b.ranks[0].step_ms_median = 40;
    trio_save_and_lose_b();
    assert_int_equal(stage.view.phase, DPT_RDZV_RUNNING);
}

static void expect(const char *text, const char *words)
{
    if (strstr(text, words) == NULL)
        fail_msg("wanted '%s' in:\n%s", words, text);
}

static void text_names_losses_and_checkpoints(void **state)
{
    (void)state;
    live();
    write_journal();
    char *text = print_history(NULL, false);
    expect(text, "run demo of alice: open, began ");
    expect(text, "saved step 3, 1 restarts in use");
    expect(text, "node b (host vm, rank 1) lost: control and data connections broken");
    expect(text, " node lost    b (host vm): control and data connections broken\n");
    expect(text, "restart used");
    expect(text, "  checkpoints\n");
    expect(text, "nodes refused by their health check\n  2");
    expect(text, "node a (host ");
    expect(text, " of run demo: core 3 computes wrong values\n");
    expect(text, "step 3, generation 1");
    expect(text, "   25.0  start\n"); /* 1000 ms / 40 ms */
    expect(text, "  rack                     nodes  (of the newest plan)\n"
                 "  r1                           1  a\n");
    free(text);
}

/* A server that was started again has not heard b, and knows no host of it. */
static void text_names_lost_node_without_host(void **state)
{
    (void)state;
    trio_start();
    stage_restart_with_journal(&stage, 101);
    a.conn += 100;
    a.ranks[0].plan_rank = (int32_t)fake_place(&a)->rank;
    stage_pass_speaking(&stage, (struct fake *const[]){&a}, 1, 60000);
    write_journal();
    char *text = print_history(NULL, false);
    expect(text, " node lost    b: ");
    free(text);
}

static void text_of_a_run_without_steps_has_none(void **state)
{
    (void)state;
    fake_say(&a, &stage);
    write_journal();
    char *text = print_history(NULL, false);
    expect(text, ", generation 0, step -, saved step -, 0 restarts in use\n");
    free(text);
}

/* The list of the only run; `ret_root` owns it. */
static const json_t *read_list(const char *name, json_t **ret_root)
{
    json_error_t error;
    char *text = print_history("demo", true);
    *ret_root = json_loads(text, 0, &error);
    free(text);
    assert_non_null(*ret_root);
    const json_t *run = json_array_get(json_object_get(*ret_root, "runs"), 0);
    const json_t *list = json_object_get(run, name);
    assert_true(json_is_array(list));
    return list;
}

/* The run is done, its workers end, and it is forgotten. */
static void end(void)
{
    for (size_t i = 0; i < 2; i++) {
        fake_phase(two[i], DPT__RANK_PHASE__RANK_FINISHED, two[i]->generation);
        fake_say(two[i], &stage);
    }
    assert_int_equal(stage.view.phase, DPT_RDZV_DONE);
    for (size_t i = 0; i < 2; i++)
        stage_step(&stage,
                   (struct dpt_rdzv_event){.kind = DPT_RDZV_EVENT_BROKEN, .conn = two[i]->conn});
    stage_pass(&stage, 11000);
    assert_int_equal(dpt_rdzv_runs(stage.core), 0);
}

static void run_that_all_nodes_left_has_an_end(void **state)
{
    (void)state;
    trio_start();
    trio_step_to(9);
    a.state.leaving = b.state.leaving = true;
    fakes_settle(&stage, two, 2);
    stage_pass(&stage, 30000);
    assert_int_equal(dpt_rdzv_runs(stage.core), 0);
    write_journal();
    char *text = print_history("demo", false), *json = print_history("demo", true);
    expect(text, ": left, began ");
    assert_null(strstr(text, "ended -"));
    assert_non_null(strstr(json, "\"ended\":\""));
    free(text);
    free(json);
}

static void nodes_of_an_ended_run_are_not_lost(void **state)
{
    (void)state;
    json_t *root;
    trio_start();
    end();
    write_journal();
    assert_int_equal(json_array_size(read_list("failures", &root)), 0);
    json_decref(root);
    const json_t *nodes = read_list("nodes", &root); /* but they are removed */
    assert_int_equal(json_array_size(nodes), 2);
    for (size_t i = 0; i < 2; i++)
        assert_true(json_is_string(json_object_get(json_array_get(nodes, i), "removed")));
    json_decref(root);
}

static void losses_before_the_end_stay(void **state)
{
    (void)state;
    json_t *root;
    size_t lost = 0;
    live();
    fake_phase(&a, DPT__RANK_PHASE__RANK_FINISHED, a.generation);
    fake_say(&a, &stage);
    assert_int_equal(stage.view.phase, DPT_RDZV_DONE);
    stage_pass(&stage, 11000);
    write_journal();
    const json_t *failures = read_list("failures", &root);
    for (size_t i = 0; i < json_array_size(failures); i++) {
        const json_t *failure = json_array_get(failures, i);
        if (strcmp(json_string_value(json_object_get(failure, "what")), "node lost") != 0)
            continue;
        assert_string_equal(json_string_value(json_object_get(failure, "node")), "b");
        lost++;
    }
    assert_int_equal(lost, 1);
    json_decref(root);
}

/* The connection breaks again while generation 2 forms. */
static void generation_that_never_ran_has_no_speed(void **state)
{
    (void)state;
    json_t *root;
    trio_start();
    a.ranks[0].step_ms_median = b.ranks[0].step_ms_median = 40;
    trio_step_to(3);
    fake_breaks_off(&a, &stage);
    fake_say(&b, &stage);
    fakes_report(&stage, two, 2);
    assert_int_equal(a.phase, DPT__SERVER_PHASE__SERVER_PLAN);
    fake_breaks_off(&a, &stage);
    stage_pass_speaking(&stage, two, 2, 1100);
    fakes_settle(&stage, two, 2);
    assert_int_equal(stage.view.phase, DPT_RDZV_RUNNING);
    write_journal();
    const json_t *generations = read_list("generations", &root);
    assert_int_equal(json_array_size(generations), 3);
    const json_t *first = json_array_get(generations, 0), *second = json_array_get(generations, 1);
    assert_int_equal(json_integer_value(json_object_get(first, "step_ms")), 40);
    assert_true(json_number_value(json_object_get(first, "steps_per_s")) == 25.0);
    assert_int_equal(json_integer_value(json_object_get(second, "ran")), 0);
    assert_true(json_is_null(json_object_get(second, "step_ms")));
    assert_true(json_is_null(json_object_get(second, "steps_per_s")));
    json_decref(root);
}

static void text_without_racks_has_no_table_of_them(void **state)
{
    (void)state;
    trio_start();
    write_journal();
    char *text = print_history(NULL, false);
    expect(text, "start\n");
    assert_null(strstr(text, "rack"));
    free(text);
}

/* Nodes without a rack come last. */
static void text_lists_the_nodes_of_each_rack(void **state)
{
    (void)state;
    struct fake *const all[] = {&a, &b, &c};
    b.state.rack = c.state.rack = "r2";
    fakes_start(&stage, all, 3);
    write_journal();
    char *text = print_history(NULL, false);
    expect(text, "  r2                           2  b, c\n"
                 "  -                            1  a\n");
    free(text);
}

static void json_has_generations_with_members(void **state)
{
    (void)state;
    live();
    write_journal();
    char *text = print_history("demo", true);
    json_error_t error;
    json_t *root = json_loads(text, 0, &error);
    assert_non_null(root);
    const json_t *run = json_array_get(json_object_get(root, "runs"), 0);
    const json_t *generations = json_object_get(run, "generations");
    assert_int_equal(json_array_size(generations), 2);
    const json_t *second = json_array_get(generations, 1);
    assert_string_equal(json_string_value(json_object_get(second, "cause")), "node_lost");
    assert_int_equal(json_integer_value(json_object_get(second, "world")), 1);
    assert_int_equal(json_integer_value(json_object_get(second, "resume_step")), 3);
    assert_int_equal(json_integer_value(json_object_get(second, "steps_lost")), 0);
    assert_true(json_integer_value(json_object_get(second, "report_ms")) >= 0);
    const json_t *member = json_array_get(json_object_get(second, "members"), 0);
    assert_string_equal(json_string_value(json_object_get(member, "node")), "a");
    assert_string_equal(json_string_value(json_object_get(member, "rack")), "r1");
    const json_t *members = json_object_get(json_array_get(generations, 0), "members");
    assert_true(json_is_null(json_object_get(json_array_get(members, 1), "rack"))); /* of b */
    assert_int_equal(json_array_size(json_object_get(run, "checkpoints")), 1);
    const json_t *nodes = json_object_get(run, "nodes");
    const char *definer = json_string_value(json_object_get(run, "definer"));
    assert_int_equal(json_array_size(nodes), 2);
    assert_int_equal(strspn(definer, "a1"), 64); /* the key of a, in 64 digits */
    assert_string_equal(json_string_value(json_object_get(json_array_get(nodes, 0), "key")),
                        definer);
    assert_string_equal(json_string_value(json_object_get(json_array_get(nodes, 1), "key")), "");
    assert_true(json_array_size(json_object_get(run, "failures")) >= 2);
    const json_t *health = json_object_get(json_array_get(nodes, 0), "health");
    assert_int_equal(json_integer_value(json_object_get(health, "mflops")), 31000);
    assert_true(json_is_null(json_object_get(json_array_get(nodes, 1), "health")));
    const json_t *refused = json_array_get(json_object_get(root, "unhealthy"), 0);
    assert_string_equal(json_string_value(json_object_get(refused, "fault")),
                        "core 3 computes wrong values");
    assert_string_equal(json_string_value(json_object_get(refused, "run")), "demo");
    json_decref(root);
    free(text);
}

/* While a server has the journal open, and commits. */
static void running_server_is_read(void **state)
{
    (void)state;
    struct dpt_err err;
    struct dpt_store *store = NULL;
    live();
    write_journal();
    assert_int_equal(dpt_store_open(dir, &store, &err), DPT_OK);
    char *text = print_history(NULL, false);
    expect(text, "run demo of alice: open");
    free(text);
    const struct dpt_journal journal = dpt_store_journal(store);
    const struct dpt_rdzv_record record = {.kind = DPT_RDZV_RECORD_START, .step = -1, .number = 9};
    assert_int_equal(journal.add(journal.ctx, &record, &err), DPT_OK);
    assert_int_equal(journal.commit(journal.ctx, &err), DPT_OK);
    dpt_store_close(&store);
}

static void refuse(const char *from, const char *run, enum dpt_status status, const char *words)
{
    struct dpt_err err;
    const struct dpt_history_options options = {.dir = from, .run = run};
    assert_int_equal(dpt_store_history(&options, stdout, &err), status);
    expect(err.text, words);
}

static void absent_journal_and_run_are_refused(void **state)
{
    (void)state;
    refuse(dir, NULL, DPT_ENOENT, "there is no journal");
    live();
    write_journal();
    refuse(dir, "nobody", DPT_ENOENT, "knows no run 'nobody'");
    refuse("/proc", NULL, DPT_ENOENT, "--state-dir");
}

static void empty_journal_says_so(void **state)
{
    (void)state;
    struct dpt_err err;
    struct dpt_store *store = NULL;
    assert_int_equal(dpt_store_open(dir, &store, &err), DPT_OK);
    dpt_store_close(&store);
    char *text = print_history(NULL, false);
    expect(text, "has no run yet");
    free(text);
    text = print_history(NULL, true);
    expect(text, "\"runs\":[]");
    free(text);
}

/* As an operator asks with sqlite3. */
static void plain_sql_answers(void **state)
{
    (void)state;
    char path[PATH_MAX];
    sqlite3 *database = NULL;
    sqlite3_stmt *rows = NULL;
    live();
    write_journal();
    assert_true(snprintf(path, sizeof path, "%s/journal.sqlite", dir) < (int)sizeof path);
    assert_int_equal(sqlite3_open(path, &database), SQLITE_OK);
    assert_int_equal(sqlite3_prepare_v2(database,
                                        "SELECT run, cause, detect_ms, report_ms, rebuild_ms"
                                        " FROM recoveries",
                                        -1, &rows, NULL),
                     SQLITE_OK);
    assert_int_equal(sqlite3_step(rows), SQLITE_ROW);
    assert_string_equal((const char *)sqlite3_column_text(rows, 1), "node_lost");
    assert_int_equal(sqlite3_step(rows), SQLITE_DONE);
    assert_int_equal(sqlite3_finalize(rows), SQLITE_OK);
    assert_int_equal(sqlite3_close(database), SQLITE_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(text_names_losses_and_checkpoints, setup, teardown),
        cmocka_unit_test_setup_teardown(text_names_lost_node_without_host, setup, teardown),
        cmocka_unit_test_setup_teardown(text_of_a_run_without_steps_has_none, setup, teardown),
        cmocka_unit_test_setup_teardown(run_that_all_nodes_left_has_an_end, setup, teardown),
        cmocka_unit_test_setup_teardown(nodes_of_an_ended_run_are_not_lost, setup, teardown),
        cmocka_unit_test_setup_teardown(losses_before_the_end_stay, setup, teardown),
        cmocka_unit_test_setup_teardown(generation_that_never_ran_has_no_speed, setup, teardown),
        cmocka_unit_test_setup_teardown(text_without_racks_has_no_table_of_them, setup, teardown),
        cmocka_unit_test_setup_teardown(text_lists_the_nodes_of_each_rack, setup, teardown),
        cmocka_unit_test_setup_teardown(json_has_generations_with_members, setup, teardown),
        cmocka_unit_test_setup_teardown(running_server_is_read, setup, teardown),
        cmocka_unit_test_setup_teardown(absent_journal_and_run_are_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(empty_journal_says_so, setup, teardown),
        cmocka_unit_test_setup_teardown(plain_sql_answers, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
