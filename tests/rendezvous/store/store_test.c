/* The journal on disk: what it gives back, what it refuses, a disk without room. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/fs.h"
#include "base/hash.h"
#include "rendezvous/store/store.h"
#include "tests/rendezvous/store/disk.h"

#include <dirent.h>
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

/* Opens a journal that must be refused with this status and these words. */
static void refuse(enum dpt_status status, const char *const *words)
{
    struct dpt_store *store = NULL;
    struct dpt_err err;
    assert_int_equal(dpt_store_open(disk_dir, &store, &err), status);
    assert_null(store);
    for (; *words != NULL; words++)
        if (strstr(err.text, *words) == NULL)
            fail_msg("wanted '%s' in: %s", *words, err.text);
}

static void state_survives(void **state)
{
    (void)state;
    disk_live();
    disk_write(stage.journal);
    disk_read_back();
    disk_read_back(); /* reading changes nothing */
}

/* Of a forgotten run only the end counts; its name is used again. */
static void forgotten_run_leaves_its_numbers(void **state)
{
    (void)state;
    disk_live();
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
    disk_write(stage.journal);
    disk_read_back();
}

static void uncommitted_records_are_lost(void **state)
{
    (void)state;
    struct dpt_err err;
    disk_live();
    disk_write(stage.journal);
    struct dpt_store *store = disk_open();
    const struct dpt_journal journal = dpt_store_journal(store);
    const struct dpt_rdzv_record record = {.kind = DPT_RDZV_RECORD_START, .step = -1, .number = 9};
    assert_int_equal(journal.add(journal.ctx, &record, &err), DPT_OK);
    dpt_store_close(&store);
    disk_read_back();
}

static void folder_in_use_is_refused(void **state)
{
    (void)state;
    struct dpt_store *first = disk_open();
    char pid[32];
    (void)snprintf(pid, sizeof pid, "process %ld", (long)getpid());
    refuse(DPT_EEXIST, (const char *const[]){disk_dir, "in use", pid, "--state-dir", NULL});
    dpt_store_close(&first);
    first = disk_open();
    dpt_store_close(&first);
}

static struct dpt_hash128 hash_of_file(void)
{
    char *data = NULL;
    size_t bytes = 0;
    struct dpt_err err;
    assert_int_equal(dpt_fs_read_file(disk_path, 64 << 20, &data, &bytes, &err), DPT_OK);
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

static void other_files_are_refused(void **state)
{
    (void)state;
    struct dpt_err err;
    static const char text[] = "this is a text, and no database at all: nobody may overwrite it.\n";
    char long_text[40 * sizeof text] = "";
    for (int i = 0; i < 40; i++)
        memcpy(long_text + (size_t)i * (sizeof text - 1), text, sizeof text);
    assert_int_equal(dpt_fs_write_file_atomic(disk_path, long_text, strlen(long_text), &err),
                     DPT_OK);
    refuse_unchanged(DPT_ECORRUPT, (const char *const[]){disk_path, "no journal of dpt-rdzv",
                                                         "--state-dir", NULL});
    assert_int_equal(unlink(disk_path), 0);
    disk_run_sql("CREATE TABLE prices(a); INSERT INTO prices VALUES(3)");
    refuse_unchanged(DPT_ECORRUPT, (const char *const[]){disk_path, "another program", NULL});
}

static void other_version_is_refused(void **state)
{
    (void)state;
    disk_live();
    disk_write(stage.journal);
    disk_run_sql("PRAGMA user_version=7");
    refuse_unchanged(DPT_EVERSION, (const char *const[]){disk_path, "version 7", "version 6",
                                                         "--state-dir", NULL});
}

/* A server that ended before its first commit leaves an empty file. */
static void empty_file_is_a_new_journal(void **state)
{
    (void)state;
    struct dpt_err err;
    struct stat info;
    assert_int_equal(dpt_fs_write_file_atomic(disk_path, "", 0, &err), DPT_OK);
    disk_live();
    disk_write(stage.journal);
    disk_read_back();
    assert_int_equal(dpt_fs_remove_tree(disk_dir, &err), DPT_OK);
    struct dpt_store *store = disk_open();
    dpt_store_close(&store);
    assert_int_equal(stat(disk_path, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0600); /* it has the secrets of nodes */
}

static void change_modes(mode_t folder, mode_t files)
{
    static const char *const ends[] = {"", "-wal", "-shm", "-newest"};
    char path[PATH_MAX + 8];
    assert_int_equal(chmod(disk_dir, folder), 0);
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
        (void)snprintf(path, sizeof path, "%s%s", disk_path, ends[i]);
        assert_true(chmod(path, files) == 0 || errno == ENOENT);
    }
}

/* All files of the journal, the server's lock among them. */
static void expect_private_files(int count)
{
    struct stat info;
    DIR *folder = opendir(disk_dir);
    assert_non_null(folder);
    for (const struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        if (entry->d_name[0] == '.')
            continue;
        assert_int_equal(fstatat(dirfd(folder), entry->d_name, &info, 0), 0);
        if ((info.st_mode & 0777) != 0600)
            fail_msg("%s has mode %o", entry->d_name, info.st_mode & 0777);
        count--;
    }
    assert_int_equal(closedir(folder), 0);
    assert_int_equal(count, 0);
}

static void commit_a_start(struct dpt_store *store)
{
    struct dpt_err err;
    const struct dpt_journal journal = dpt_store_journal(store);
    const struct dpt_rdzv_record record = {.kind = DPT_RDZV_RECORD_START, .step = -1, .number = 9};
    assert_int_equal(journal.add(journal.ctx, &record, &err), DPT_OK);
    assert_int_equal(journal.commit(journal.ctx, &err), DPT_OK);
}

/* The folder is readable by all users. A new journal is private in it, and a back-up with readable
 * files becomes private. */
static void files_are_for_their_owner(void **state)
{
    (void)state;
    const mode_t mask = umask(022);
    change_modes(0755, 0600);
    struct dpt_store *store = disk_open();
    commit_a_start(store);
    expect_private_files(5);
    dpt_store_close(&store);
    change_modes(0755, 0644);
    store = disk_open();
    commit_a_start(store);
    expect_private_files(5);
    dpt_store_close(&store);
    expect_private_files(3);
    (void)umask(mask);
}

static void refused_file_keeps_its_mode(void **state)
{
    (void)state;
    struct stat info;
    disk_run_sql("CREATE TABLE prices(a); INSERT INTO prices VALUES(3)");
    change_modes(0755, 0644);
    refuse_unchanged(DPT_ECORRUPT, (const char *const[]){disk_path, "another program", NULL});
    assert_int_equal(stat(disk_path, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0644);
}

static void full_disk_is_waited_for(void **state)
{
    (void)state;
    struct dpt_err err;
    struct rlimit limit;
    disk_live();
    struct dpt_store *store = disk_open();
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
            assert_non_null(strstr(err.text, disk_path));
        }
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
        if (i % 8 == 0)
            assert_int_equal(journal.commit(journal.ctx, &err), DPT_OK);
    }
    assert_int_equal(journal.commit(journal.ctx, &err), DPT_OK);
    dpt_store_close(&store);
    disk_read_back();
}

static void too_many_pending_records_are_refused(void **state)
{
    (void)state;
    struct dpt_err err;
    struct dpt_store *store = disk_open();
    const struct dpt_journal journal = dpt_store_journal(store);
    const struct dpt_rdzv_record record = {.kind = DPT_RDZV_RECORD_START, .step = -1, .number = 9};
    for (int i = 0; i < DPT_STORE_PENDING_MAX; i++)
        assert_int_equal(journal.add(journal.ctx, &record, &err), DPT_OK);
    assert_int_equal(journal.add(journal.ctx, &record, &err), DPT_ENOSPC);
    assert_non_null(strstr(err.text, disk_path));
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
    assert_int_equal(dpt_fs_join(disk_dir, "file", file, sizeof file, &err), DPT_OK);
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
        cmocka_unit_test_setup_teardown(state_survives, disk_setup, disk_teardown),
        cmocka_unit_test_setup_teardown(forgotten_run_leaves_its_numbers, disk_setup,
                                        disk_teardown),
        cmocka_unit_test_setup_teardown(uncommitted_records_are_lost, disk_setup, disk_teardown),
        cmocka_unit_test_setup_teardown(folder_in_use_is_refused, disk_setup, disk_teardown),
        cmocka_unit_test_setup_teardown(other_files_are_refused, disk_setup, disk_teardown),
        cmocka_unit_test_setup_teardown(other_version_is_refused, disk_setup, disk_teardown),
        cmocka_unit_test_setup_teardown(empty_file_is_a_new_journal, disk_setup, disk_teardown),
        cmocka_unit_test_setup_teardown(full_disk_is_waited_for, disk_setup, disk_teardown),
        cmocka_unit_test_setup_teardown(too_many_pending_records_are_refused, disk_setup,
                                        disk_teardown),
        cmocka_unit_test_setup_teardown(files_are_for_their_owner, disk_setup, disk_teardown),
        cmocka_unit_test_setup_teardown(refused_file_keeps_its_mode, disk_setup, disk_teardown),
        cmocka_unit_test_setup_teardown(default_folders, disk_setup, disk_teardown),
        cmocka_unit_test_setup_teardown(unusable_folder_is_refused, disk_setup, disk_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
