/* The work of a server's start, which must not grow with the members of plans that count no more.
 * With the arguments DIR NODES GENERATIONS it makes such a journal, to measure the start of
 * dpt-rdzv with it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/fs.h"
#include "tests/rendezvous/store/disk.h"

#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NODES = 200, FEW = 10, MANY = 60, NODES_MAX = 100000 };

/* ---- a long run ---- */

static struct dpt_journal journal;

static void add(struct dpt_rdzv_record record)
{
    struct dpt_err err;
    record.run = record.kind == DPT_RDZV_RECORD_START ? "" : "demo";
    if (journal.add(journal.ctx, &record, &err) != DPT_OK)
        fail_msg("%s", err.text);
}

static void commit(void)
{
    struct dpt_err err;
    if (journal.commit(journal.ctx, &err) != DPT_OK)
        fail_msg("%s", err.text);
}

/* The record of the trio's run. */
static const struct dpt_rdzv_record *run_of_trio(void)
{
    trio_start();
    for (size_t i = 0; i < kept_records_count(stage.journal); i++)
        if (kept_record_at(stage.journal, i)->kind == DPT_RDZV_RECORD_RUN)
            return kept_record_at(stage.journal, i);
    fail_msg("the trio has no run");
    return NULL;
}

static struct dpt_rdzv_member *join_nodes(int nodes)
{
    struct dpt_rdzv_member *members = calloc((size_t)nodes, sizeof members[0]);
    assert_non_null(members);
    for (int i = 0; i < nodes; i++) {
        char name[16];
        (void)snprintf(name, sizeof name, "node-%05d", i);
        members[i] = (struct dpt_rdzv_member){.node = strdup(name),
                                              .rack = "",
                                              .incarnation = 1,
                                              .first_rank = (uint32_t)i,
                                              .n_ranks = 1};
        assert_non_null(members[i].node);
        struct dpt_rdzv_record joined = {.kind = DPT_RDZV_RECORD_JOINED,
                                         .step = -1,
                                         .node = members[i].node,
                                         .host = members[i].node,
                                         .incarnation = 1};
        memset(joined.secret, 1 + i % 250, sizeof joined.secret);
        add(joined);
    }
    commit();
    return members;
}

/* The nodes move, so that no two plans are the same. */
static void form(uint64_t generation, struct dpt_rdzv_member *members, int nodes, bool runs)
{
    for (int i = 0; i < nodes; i++)
        members[i].first_rank = (uint32_t)((i + (int)generation) % nodes);
    add((struct dpt_rdzv_record){.kind = DPT_RDZV_RECORD_GENERATION,
                                 .generation = generation,
                                 .step = -1,
                                 .cause = "start",
                                 .detect_ms = -1});
    add((struct dpt_rdzv_record){.kind = DPT_RDZV_RECORD_PLAN,
                                 .generation = generation,
                                 .cause = "start",
                                 .detect_ms = -1,
                                 .digest = "d",
                                 .count = (uint32_t)nodes,
                                 .members = members,
                                 .n_members = (size_t)nodes});
    if (runs)
        add((struct dpt_rdzv_record){.kind = DPT_RDZV_RECORD_RUNS, .generation = generation});
    commit();
}

/* A run whose generations all run, but the last one. */
static void write_long_run(const char *dir, int nodes, int generations)
{
    struct dpt_err err;
    struct dpt_store *store = NULL;
    if (dpt_store_open(dir, &store, &err) != DPT_OK)
        fail_msg("%s", err.text);
    journal = dpt_store_journal(store);
    add(*run_of_trio());
    struct dpt_rdzv_member *members = join_nodes(nodes);
    for (int i = 1; i <= generations; i++)
        form((uint64_t)i, members, nodes, i < generations);
    for (int i = 0; i < nodes; i++)
        free((void *)members[i].node);
    free(members);
    dpt_store_close(&store);
}

/* ---- what a start reads ---- */

/* Of all statements on all databases. */
static int64_t rows, steps;

static int count(unsigned what, void *ctx, void *statement, void *more)
{
    (void)ctx;
    (void)more;
    if (what == SQLITE_TRACE_ROW)
        rows++;
    else
        steps += sqlite3_stmt_status(statement, SQLITE_STMTSTATUS_VM_STEP, 1);
    return 0;
}

static int trace(sqlite3 *database, const char **error, const struct sqlite3_api_routines *api)
{
    (void)error;
    (void)api;
    return sqlite3_trace_v2(database, SQLITE_TRACE_ROW | SQLITE_TRACE_PROFILE, count, NULL);
}

static void read_back(void)
{
    struct dpt_err err;
    assert_int_equal(sqlite3_auto_extension((void (*)(void))trace), SQLITE_OK);
    rows = steps = 0;
    struct dpt_store *store = disk_open();
    struct dpt_rdzv *core = disk_new_core();
    const struct dpt_journal restored = dpt_store_journal(store);
    if (restored.restore(restored.ctx, core, &err) != DPT_OK)
        fail_msg("%s", err.text);
    dpt_rdzv_destroy(&core);
    dpt_store_close(&store);
    sqlite3_reset_auto_extension();
}

/* More generations cost their own three records, twice, and no member. */
static void old_members_are_not_read(void **state)
{
    (void)state;
    struct dpt_err err;
    write_long_run(disk_dir, NODES, FEW);
    read_back();
    const int64_t few_rows = rows, few_steps = steps;
    assert_true(few_rows >= NODES && few_rows <= 2 * (NODES + 3 * FEW) + 2 * NODES + 60);
    assert_int_equal(dpt_fs_remove_tree(disk_dir, &err), DPT_OK);
    assert_int_equal(trio_teardown(state), 0);
    assert_int_equal(trio_setup(state), 0);
    write_long_run(disk_dir, NODES, MANY);
    read_back();
    print_message("%d generations: %lld rows, %lld steps; %d: %lld rows, %lld steps\n", FEW,
                  (long long)few_rows, (long long)few_steps, MANY, (long long)rows,
                  (long long)steps);
    assert_int_equal(rows - few_rows, 2 * 3 * (MANY - FEW));
    assert_true(steps - few_steps < 150 * 2 * 3 * (MANY - FEW));
}

static int make(char *const *argv)
{
    const int nodes = (int)strtol(argv[2], NULL, 10), generations = (int)strtol(argv[3], NULL, 10);
    void *state = NULL;
    if (nodes < 1 || nodes > NODES_MAX || generations < 1 || trio_setup(&state) != 0)
        return 2;
    write_long_run(argv[1], nodes, generations);
    return trio_teardown(&state);
}

int main(int argc, char **argv)
{
    if (argc == 4)
        return make(argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(old_members_are_not_read, disk_setup, disk_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
