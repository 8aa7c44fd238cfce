/* The journal on disk: what it gives back, what it refuses, a disk without room. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/fs.h"
#include "base/hash.h"
#include "rendezvous/store/store.h"
#include "tests/rendezvous/core/trio.h"
#include "tests/tmp.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static char dir[PATH_MAX], path[PATH_MAX];

static int setup(void **state)
{
    assert_true(test_make_memory_dir(dir, sizeof dir, "journal"));
    assert_true(snprintf(path, sizeof path, "%s/journal.sqlite", dir) < (int)sizeof path);
    return trio_setup(state);
}

static int teardown(void **state)
{
    struct dpt_err err;
    assert_int_equal(dpt_fs_remove_tree(dir, &err), DPT_OK);
    return trio_teardown(state);
}

static struct dpt_store *open_store(void)
{
    struct dpt_store *store = NULL;
    struct dpt_err err;
    if (dpt_store_open(dir, &store, &err) != DPT_OK)
        fail_msg("%s", err.text);
    return store;
}

/* Opens a journal that must be refused with this status and these words. */
static void refuse(enum dpt_status status, const char *const *words)
{
    struct dpt_store *store = NULL;
    struct dpt_err err;
    assert_int_equal(dpt_store_open(dir, &store, &err), status);
    assert_null(store);
    for (; *words != NULL; words++)
        if (strstr(err.text, *words) == NULL)
            fail_msg("wanted '%s' in: %s", *words, err.text);
}

static void write_records(const struct kept_records *records)
{
    struct dpt_err err;
    struct dpt_store *store = open_store();
    const struct dpt_journal journal = dpt_store_journal(store);
    for (size_t i = 0; i < kept_records_count(records); i++)
        assert_int_equal(journal.add(journal.ctx, kept_record_at(records, i), &err), DPT_OK);
    if (journal.commit(journal.ctx, &err) != DPT_OK)
        fail_msg("%s", err.text);
    dpt_store_close(&store);
    assert_null(store);
}

static struct dpt_rdzv *new_core(void)
{
    const struct dpt_rdzv_options options = {.epoch = 5};
    struct dpt_rdzv *core = NULL;
    struct dpt_err err;
    assert_int_equal(dpt_rdzv_create(&options, &core, &err), DPT_OK);
    return core;
}

/* The journal gives the durable state back that the servers of the stage had. */
static void read_back(void)
{
    struct dpt_err err;
    struct dpt_store *store = open_store();
    struct dpt_rdzv *core = new_core();
    const struct dpt_journal journal = dpt_store_journal(store);
    if (journal.restore(journal.ctx, core, &err) != DPT_OK)
        fail_msg("%s", err.text);
    const char *differs = kept_difference(core, stage.replica);
    if (differs != NULL)
        fail_msg("%s", differs);
    dpt_rdzv_destroy(&core);
    dpt_store_close(&store);
}

/* A run with a loss, a grant, a checkpoint, a restart of the server, and its end. */
static void live(void)
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
    trio_step_to(3);
    a.ranks[0].grant_step = 3;
    fake_say(&a, &stage);
    a.ranks[0].checkpoint_step = 3;
    fake_say(&a, &stage);
    fake_dies(&b, &a, &stage);
    stage_pass_speaking(&stage, two, 1, 600);
    fakes_settle(&stage, two, 1);
    assert_int_equal(stage.view.phase, DPT_RDZV_RUNNING);
    stage_restart_with_journal(&stage, UINT64_MAX - 3); /* an epoch of all 64 bits */
    stage_tick(&stage, 0);
    a.conn += 100;
    a.ranks[0].plan_rank = (int32_t)fake_place(&a)->rank;
    fake_say(&a, &stage);
    assert_int_equal(stage.view.phase, DPT_RDZV_RUNNING);
}

static void state_survives(void **state)
{
    (void)state;
    live();
    write_records(stage.journal);
    read_back();
    read_back(); /* reading changes nothing */
}

/* Of a forgotten run only the end counts; its name is used again. */
static void forgotten_run_leaves_its_numbers(void **state)
{
    (void)state;
    live();
    fake_phase(&a, DPT__RANK_PHASE__RANK_FINISHED, a.generation);
    fake_say(&a, &stage);
    assert_int_equal(stage.view.phase, DPT_RDZV_DONE);
    stage_pass(&stage, 11000);
    assert_int_equal(dpt_rdzv_runs(stage.core), 0);
    fake_fini(&c);
    fake_reset(&c, "c");
    c.conn = 5000;
    fake_say(&c, &stage);
    assert_int_equal(dpt_rdzv_runs(stage.core), 1);
    write_records(stage.journal);
    read_back();
}

static void uncommitted_records_are_lost(void **state)
{
    (void)state;
    struct dpt_err err;
    live();
    write_records(stage.journal);
    struct dpt_store *store = open_store();
    const struct dpt_journal journal = dpt_store_journal(store);
    const struct dpt_rdzv_record record = {.kind = DPT_RDZV_RECORD_START, .step = -1, .number = 9};
    assert_int_equal(journal.add(journal.ctx, &record, &err), DPT_OK);
    dpt_store_close(&store);
    read_back();
}

static void folder_in_use_is_refused(void **state)
{
    (void)state;
    struct dpt_store *first = open_store();
    char pid[32];
    (void)snprintf(pid, sizeof pid, "process %ld", (long)getpid());
    refuse(DPT_EEXIST, (const char *const[]){dir, "in use", pid, "--state-dir", NULL});
    dpt_store_close(&first);
    first = open_store();
    dpt_store_close(&first);
}

static struct dpt_hash128 hash_of_file(void)
{
    char *data = NULL;
    size_t bytes = 0;
    struct dpt_err err;
    assert_int_equal(dpt_fs_read_file(path, 64 << 20, &data, &bytes, &err), DPT_OK);
    const struct dpt_hash128 hash = dpt_hash128(data, bytes);
    free(data);
    return hash;
}

static void refuse_unchanged(enum dpt_status status, const char *const *words)
{
    const struct dpt_hash128 before = hash_of_file();
    refuse(status, words);
    const struct dpt_hash128 after = hash_of_file();
    assert_memory_equal(&before, &after, sizeof before);
}

static void run_sql(const char *sql)
{
    sqlite3 *database = NULL;
    assert_int_equal(sqlite3_open(path, &database), SQLITE_OK);
    assert_int_equal(sqlite3_exec(database, sql, NULL, NULL, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_close(database), SQLITE_OK);
}

static void other_files_are_refused(void **state)
{
    (void)state;
    struct dpt_err err;
    static const char text[] = "this is a text, and no database at all: nobody may overwrite it.\n";
    char long_text[40 * sizeof text] = "";
    for (int i = 0; i < 40; i++)
        memcpy(long_text + (size_t)i * (sizeof text - 1), text, sizeof text);
    assert_int_equal(dpt_fs_write_file_atomic(path, long_text, strlen(long_text), &err), DPT_OK);
    refuse_unchanged(DPT_ECORRUPT,
                     (const char *const[]){path, "no journal of dpt-rdzv", "--state-dir", NULL});
    assert_int_equal(unlink(path), 0);
    run_sql("CREATE TABLE prices(a); INSERT INTO prices VALUES(3)");
    refuse_unchanged(DPT_ECORRUPT, (const char *const[]){path, "another program", NULL});
}

static void other_version_is_refused(void **state)
{
    (void)state;
    live();
    write_records(stage.journal);
    run_sql("PRAGMA user_version=7");
    refuse_unchanged(DPT_EVERSION,
                     (const char *const[]){path, "version 7", "version 4", "--state-dir", NULL});
}

/* Bytes in the middle of the file are wrong. */
static void damage_is_refused(void **state)
{
    (void)state;
    struct stat info;
    live();
    write_records(stage.journal);
    assert_int_equal(stat(path, &info), 0);
    const int fd = open(path, O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0);
    char junk[2000];
    memset(junk, 0xa5, sizeof junk);
    for (off_t at = 4096; at + (off_t)sizeof junk < info.st_size; at += 4096)
        assert_int_equal(pwrite(fd, junk, sizeof junk, at), sizeof junk);
    assert_int_equal(close(fd), 0);
    refuse_unchanged(DPT_ECORRUPT, (const char *const[]){path, "damaged", "left as it is", NULL});
}

/* The database is whole, and a row is missing or of no kind: the record is named. */
static void wrong_rows_are_refused(void **state)
{
    (void)state;
    static const char *const edits[] = {
        "DELETE FROM record WHERE kind = 'joined'",
        "DELETE FROM member",
        "UPDATE record SET kind = 'nothing' WHERE kind = 'grant'",
        "UPDATE record SET secret = NULL WHERE kind = 'joined'",
        "UPDATE record SET generation = 1 WHERE kind = 'generation'",
        "UPDATE record SET cause = 'magic' WHERE kind = 'generation'",
        "UPDATE run SET spec = x'ff'",
        "DELETE FROM run",
    };
    live();
    for (size_t i = 0; i < sizeof edits / sizeof edits[0]; i++) {
        struct dpt_err err;
        (void)unlink(path);
        write_records(stage.journal);
        run_sql(edits[i]);
        struct dpt_store *store = open_store();
        struct dpt_rdzv *core = new_core();
        const struct dpt_journal journal = dpt_store_journal(store);
        const enum dpt_status status = journal.restore(journal.ctx, core, &err);
        /* Without its run no row counts any more, but START. */
        assert_int_equal(status, strstr(edits[i], "FROM run") ? DPT_OK : DPT_ECORRUPT);
        if (status != DPT_OK)
            assert_true(strstr(err.text, "damaged (record ") != NULL && strstr(err.text, path));
        dpt_rdzv_destroy(&core);
        dpt_store_close(&store);
    }
}

/* A server that ended before its first commit leaves an empty file. */
static void empty_file_is_a_new_journal(void **state)
{
    (void)state;
    struct dpt_err err;
    struct stat info;
    assert_int_equal(dpt_fs_write_file_atomic(path, "", 0, &err), DPT_OK);
    live();
    write_records(stage.journal);
    read_back();
    assert_int_equal(unlink(path), 0);
    struct dpt_store *store = open_store();
    dpt_store_close(&store);
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0600); /* it has the secrets of nodes */
}

static void full_disk_is_waited_for(void **state)
{
    (void)state;
    struct dpt_err err;
    struct rlimit limit;
    live();
    struct dpt_store *store = open_store();
    const struct dpt_journal journal = dpt_store_journal(store);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    const struct rlimit none = {.rlim_cur = 0, .rlim_max = limit.rlim_max};
    assert_true(signal(SIGXFSZ, SIG_IGN) != SIG_ERR);
    for (size_t i = 0; i < kept_records_count(stage.journal); i++) {
        assert_int_equal(journal.add(journal.ctx, kept_record_at(stage.journal, i), &err), DPT_OK);
        if (i % 4 != 0)
            continue;
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &none), 0);
        for (int tries = 0; tries < 2; tries++) {
            const enum dpt_status status = journal.commit(journal.ctx, &err);
            assert_true(status == DPT_EIO || status == DPT_ENOSPC);
            assert_non_null(strstr(err.text, path));
        }
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
        if (i % 8 == 0)
            assert_int_equal(journal.commit(journal.ctx, &err), DPT_OK);
    }
    assert_int_equal(journal.commit(journal.ctx, &err), DPT_OK);
    dpt_store_close(&store);
    read_back();
}

static void too_many_pending_records_are_refused(void **state)
{
    (void)state;
    struct dpt_err err;
    struct dpt_store *store = open_store();
    const struct dpt_journal journal = dpt_store_journal(store);
    const struct dpt_rdzv_record record = {.kind = DPT_RDZV_RECORD_START, .step = -1, .number = 9};
    for (int i = 0; i < DPT_STORE_PENDING_MAX; i++)
        assert_int_equal(journal.add(journal.ctx, &record, &err), DPT_OK);
    assert_int_equal(journal.add(journal.ctx, &record, &err), DPT_EOVERFLOW);
    assert_non_null(strstr(err.text, path));
    dpt_store_close(&store);
}

static void default_folders(void **state)
{
    (void)state;
    char found[PATH_MAX];
    struct dpt_err err;
    assert_int_equal(setenv("XDG_STATE_HOME", "/x/state", 1), 0);
    assert_int_equal(dpt_store_folder(29500, found, &err), DPT_OK);
    assert_string_equal(found, "/x/state/dpt-rdzv/29500");
    assert_int_equal(setenv("XDG_STATE_HOME", "relative", 1), 0);
    assert_int_equal(setenv("HOME", "/home/alice", 1), 0);
    assert_int_equal(dpt_store_folder(7, found, &err), DPT_OK);
    assert_string_equal(found, geteuid() == 0 ? "/var/lib/dpt-rdzv/7"
                                              : "/home/alice/.local/state/dpt-rdzv/7");
}

/* The folder's place is a file, or may not be written. */
static void unusable_folder_is_refused(void **state)
{
    (void)state;
    struct dpt_err err;
    struct dpt_store *store = NULL;
    char file[PATH_MAX];
    assert_int_equal(dpt_fs_join(dir, "file", file, sizeof file, &err), DPT_OK);
    assert_int_equal(dpt_fs_write_file_atomic(file, "x", 1, &err), DPT_OK);
    assert_true(dpt_store_open(file, &store, &err) != DPT_OK);
    assert_non_null(strstr(err.text, file));
    assert_true(dpt_store_open("/proc/no/folder", &store, &err) != DPT_OK);
    assert_non_null(strstr(err.text, "/proc/no"));
    assert_null(store);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(state_survives, setup, teardown),
        cmocka_unit_test_setup_teardown(forgotten_run_leaves_its_numbers, setup, teardown),
        cmocka_unit_test_setup_teardown(uncommitted_records_are_lost, setup, teardown),
        cmocka_unit_test_setup_teardown(folder_in_use_is_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(other_files_are_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(other_version_is_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(damage_is_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(wrong_rows_are_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(empty_file_is_a_new_journal, setup, teardown),
        cmocka_unit_test_setup_teardown(full_disk_is_waited_for, setup, teardown),
        cmocka_unit_test_setup_teardown(too_many_pending_records_are_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(default_folders, setup, teardown),
        cmocka_unit_test_setup_teardown(unusable_folder_is_refused, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
