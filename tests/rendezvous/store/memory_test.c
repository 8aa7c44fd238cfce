/* SQLite gets no memory during a commit: the commit fails with DPT_ENOMEM, and the journal has all
 * records of it or none. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/fs.h"
#include "tests/rendezvous/store/disk.h"

#include <sqlite3.h>
#include <string.h>

/* ---- memory that fails ---- */

enum { NEVER = -1, ALLOCATIONS_MAX = 100000 };

static sqlite3_mem_methods system_memory;
static int good_left = NEVER; /* allocations that succeed before one fails */
static bool fails_once;       /* false: all after it fail, too */
static bool has_failed;

static bool fails_now(void)
{
    if (good_left == NEVER)
        return false;
    if (good_left > 0) {
        good_left--;
        return false;
    }
    if (fails_once)
        good_left = NEVER;
    has_failed = true;
    return true;
}

static void *failing_malloc(int bytes)
{
    return fails_now() ? NULL : system_memory.xMalloc(bytes);
}

static void *failing_realloc(void *at, int bytes)
{
    return fails_now() ? NULL : system_memory.xRealloc(at, bytes);
}

/* Before the first use of SQLite. Every allocation comes here: there is no memory beside. */
static int use_failing_memory(void **state)
{
    (void)state;
    assert_int_equal(sqlite3_config(SQLITE_CONFIG_GETMALLOC, &system_memory), SQLITE_OK);
    static sqlite3_mem_methods memory;
    memory = system_memory;
    memory.xMalloc = failing_malloc;
    memory.xRealloc = failing_realloc;
    assert_int_equal(sqlite3_config(SQLITE_CONFIG_MALLOC, &memory), SQLITE_OK);
    assert_int_equal(sqlite3_config(SQLITE_CONFIG_LOOKASIDE, 0, 0), SQLITE_OK);
    return 0;
}

/* ---- commits ---- */

/* Commits all records of the stage; the allocation after `good` fails. */
static enum dpt_status commit_with(int good, struct dpt_err *err)
{
    struct dpt_store *store = disk_open();
    const struct dpt_journal journal = dpt_store_journal(store);
    for (size_t i = 0; i < kept_records_count(stage.journal); i++)
        assert_int_equal(journal.add(journal.ctx, kept_record_at(stage.journal, i), err), DPT_OK);
    has_failed = false;
    good_left = good;
    const enum dpt_status status = journal.commit(journal.ctx, err);
    good_left = NEVER;
    dpt_store_close(&store);
    return status;
}

/* Each allocation of a commit fails in turn. */
static void fail_each_allocation(bool once)
{
    struct dpt_err err;
    int n_failed = 0;
    fails_once = once;
    disk_live();
    for (int good = 0; good < ALLOCATIONS_MAX; good++) {
        const enum dpt_status status = commit_with(good, &err);
        if (status != DPT_OK) {
            if (status != DPT_ENOMEM || strstr(err.text, disk_path) == NULL)
                fail_msg("allocation %d: %s", good, err.text);
            disk_write(stage.journal); /* none of the records is there yet */
            n_failed++;
        }
        disk_read_back();
        assert_int_equal(dpt_fs_remove_tree(disk_dir, &err), DPT_OK);
        if (!has_failed)
            break;
    }
    assert_false(has_failed);
    assert_true(n_failed > (int)kept_records_count(stage.journal));
}

static void one_allocation_fails(void **state)
{
    (void)state;
    fail_each_allocation(true);
}

static void all_allocations_fail_from_one_on(void **state)
{
    (void)state;
    fail_each_allocation(false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(one_allocation_fails, disk_setup, trio_teardown),
        cmocka_unit_test_setup_teardown(all_allocations_fail_from_one_on, disk_setup,
                                        trio_teardown),
    };
    return cmocka_run_group_tests(tests, use_failing_memory, NULL);
}
