/* A journal in a folder of its own. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/rendezvous/store/disk.h"

#include "base/fs.h"
#include "tests/tmp.h"

#include <sqlite3.h>
#include <stdio.h>
#include <string.h>

char disk_dir[PATH_MAX], disk_path[PATH_MAX];

int disk_setup(void **state)
{
    assert_true(test_make_memory_dir(disk_dir, sizeof disk_dir, "journal"));
    assert_true(snprintf(disk_path, sizeof disk_path, "%s/journal.sqlite", disk_dir) <
                (int)sizeof disk_path);
    return trio_setup(state);
}

int disk_teardown(void **state)
{
    struct dpt_err err;
    assert_int_equal(dpt_fs_remove_tree(disk_dir, &err), DPT_OK);
    return trio_teardown(state);
}

struct dpt_store *disk_open(void)
{
    struct dpt_store *store = NULL;
    struct dpt_err err;
    if (dpt_store_open(disk_dir, &store, &err) != DPT_OK)
        fail_msg("%s", err.text);
    return store;
}

void disk_write(const struct kept_records *records)
{
    struct dpt_err err;
    struct dpt_store *store = disk_open();
    const struct dpt_journal journal = dpt_store_journal(store);
    for (size_t i = 0; i < kept_records_count(records); i++)
        assert_int_equal(journal.add(journal.ctx, kept_record_at(records, i), &err), DPT_OK);
    if (journal.commit(journal.ctx, &err) != DPT_OK)
        fail_msg("%s", err.text);
    dpt_store_close(&store);
    assert_null(store);
}

struct dpt_rdzv *disk_new_core(void)
{
    const struct dpt_rdzv_options options = {.epoch = 5};
    struct dpt_rdzv *core = NULL;
    struct dpt_err err;
    assert_int_equal(dpt_rdzv_create(&options, &core, &err), DPT_OK);
    return core;
}

/* A run with a loss, a grant, a checkpoint, a restart of the server */
void disk_live(void)
{
    memset(a.key, 0xa1, sizeof a.key); /* of the machine that defines the run, too */
    memset(b.key, 0xb2, sizeof b.key);
    static Dpt__NodeHealth health;
    dpt_health_to_message(&(struct dpt_health){.check_us = 9000,
                                               .memory_bytes = INT64_C(1) << 40,
                                               .cores = 2,
                                               .mflops = UINT32_MAX,
                                               .round_trip_us = 80},
                          &health);
    a.state.health = &health;
    trio_start();
    trio_save_and_lose_b();
    assert_int_equal(stage.view.phase, DPT_RDZV_RUNNING);
    stage_restart_with_journal(&stage, UINT64_MAX - 3); /* an epoch of all 64 bits */
    stage_tick(&stage, 0);
    a.conn += 100;
    a.ranks[0].plan_rank = (int32_t)fake_place(&a)->rank;
    fake_say(&a, &stage);
    assert_int_equal(stage.view.phase, DPT_RDZV_RUNNING);
}

void disk_read_back(void)
{
    struct dpt_err err;
    struct dpt_store *store = disk_open();
    struct dpt_rdzv *core = disk_new_core();
    const struct dpt_journal journal = dpt_store_journal(store);
    if (journal.restore(journal.ctx, core, &err) != DPT_OK)
        fail_msg("%s", err.text);
    const char *differs = kept_difference(core, stage.replica);
    if (differs != NULL)
        fail_msg("%s", differs);
    dpt_rdzv_destroy(&core);
    dpt_store_close(&store);
}

void disk_run_sql(const char *sql)
{
    sqlite3 *database = NULL;
    assert_int_equal(sqlite3_open(disk_path, &database), SQLITE_OK);
    assert_int_equal(sqlite3_exec(database, sql, NULL, NULL, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_close(database), SQLITE_OK);
}
