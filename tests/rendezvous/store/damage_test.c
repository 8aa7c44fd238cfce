/* Damaged journals are refused and left as they are: single bits, lost ends, lost files, wrong
 * rows. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/fs.h"
#include "base/rng.h"
#include "rendezvous/store/history.h"
#include "tests/rendezvous/store/disk.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAIN, LOG, NEWEST, FILES, FILE_BYTES_MAX = 64 << 20, SEED = 20261127 };
static const char *const endings[FILES] = {"", "-wal", "-newest"};

/* The files of a journal; data NULL: there is no such file. */
struct files {
    struct {
        char *data; /* owned */
        size_t bytes;
    } of[FILES];
};

static const char *name_of(int file)
{
    static char name[PATH_MAX + 16];
    (void)snprintf(name, sizeof name, "%s%s", disk_path, endings[file]);
    return name;
}

static struct files take_files(void)
{
    struct files files = {0};
    struct dpt_err err;
    for (int i = 0; i < FILES; i++)
        if (dpt_fs_exists(name_of(i)))
            assert_int_equal(dpt_fs_read_file(name_of(i), FILE_BYTES_MAX, &files.of[i].data,
                                              &files.of[i].bytes, &err),
                             DPT_OK);
    return files;
}

static void free_files(struct files *files)
{
    for (int i = 0; i < FILES; i++)
        free(files->of[i].data);
}

/* The folder has these files and nothing else. */
static void put_files(const struct files *files)
{
    struct dpt_err err;
    assert_int_equal(dpt_fs_remove_tree(disk_dir, &err), DPT_OK);
    assert_int_equal(mkdir(disk_dir, 0700), 0);
    for (int i = 0; i < FILES; i++)
        if (files->of[i].data != NULL)
            assert_int_equal(
                dpt_fs_write_file_atomic(name_of(i), files->of[i].data, files->of[i].bytes, &err),
                DPT_OK);
}

/* SQLite makes an empty log beside a database that it reads. */
static bool are_on_disk(const struct files *files)
{
    struct files now = take_files();
    bool same = true;
    for (int i = 0; i < FILES; i++) {
        const size_t bytes = files->of[i].bytes;
        const bool is_there = now.of[i].data != NULL, was_there = files->of[i].data != NULL;
        same = same && (is_there == was_there || (i == LOG && bytes == 0)) &&
               now.of[i].bytes == bytes &&
               (bytes == 0 || memcmp(now.of[i].data, files->of[i].data, bytes) == 0);
    }
    free_files(&now);
    return same;
}

/* ---- what a journal tells ---- */

/* The history as owned text; NULL: it is refused, as *err says. */
static char *tell_history(struct dpt_err *err)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    assert_non_null(out);
    const struct dpt_history_options options = {.dir = disk_dir, .json = true};
    const enum dpt_status status = dpt_store_history(&options, out, err);
    assert_int_equal(fclose(out), 0);
    if (status != DPT_OK) {
        free(text);
        text = NULL;
    }
    return text;
}

/* What a server gets back; NULL: the journal is refused, as *err says. */
static struct dpt_rdzv *restore(struct dpt_err *err)
{
    struct dpt_store *store = NULL;
    struct dpt_rdzv *core = disk_new_core();
    enum dpt_status status = dpt_store_open(disk_dir, &store, err);
    if (status == DPT_OK) {
        const struct dpt_journal journal = dpt_store_journal(store);
        status = journal.restore(journal.ctx, core, err);
    }
    dpt_store_close(&store);
    if (status != DPT_OK)
        dpt_rdzv_destroy(&core);
    return core;
}

/* Words that each refusal has: the file and the remedy. */
static void check_refusal(const struct files *files, const struct dpt_err *err, const char *what)
{
    if (!are_on_disk(files))
        fail_msg("%s: refused, and changed: %s", what, err->text);
    if (strstr(err->text, disk_path) == NULL ||
        (err->status != DPT_ECORRUPT && err->status != DPT_EVERSION))
        fail_msg("%s: status %d: %s", what, (int)err->status, err->text);
}

/* The files are refused, which it counts, or tell what `history` and the trio know. */
static void check_files(const struct files *files, const char *history, const char *what,
                        int *ret_refused)
{
    struct dpt_err err;
    put_files(files);
    char *told = tell_history(&err);
    if (told == NULL)
        check_refusal(files, &err, what);
    else if (strcmp(told, history) != 0)
        fail_msg("%s: another history", what);
    else if (!are_on_disk(files))
        fail_msg("%s: the history has changed a file", what);
    free(told);
    put_files(files);
    struct dpt_rdzv *core = restore(&err);
    const char *differs = core != NULL ? kept_difference(core, stage.replica) : NULL;
    if (differs != NULL)
        fail_msg("%s: accepted, and decides otherwise: %s", what, differs);
    if (core == NULL) {
        check_refusal(files, &err, what);
        (*ret_refused)++;
    }
    dpt_rdzv_destroy(&core);
}

/* Turns `n` random bits of a file, one at a time. Returns how many files a server has refused. */
static int flip_bits(struct files *files, int file, int n, const char *history)
{
    int refused = 0;
    const struct dpt_rng_key key = dpt_rng_key(SEED, DPT_RNG_TEST, (uint64_t)file, 0, 0);
    for (int i = 0; i < n; i++) {
        char what[80];
        uint32_t random[4];
        dpt_philox(key, (uint64_t)i, random);
        const size_t bit = random[0] % (8 * files->of[file].bytes);
        (void)snprintf(what, sizeof what, "seed %d: bit %llu of journal.sqlite%s", SEED,
                       (unsigned long long)bit, endings[file]);
        files->of[file].data[bit / 8] ^= (char)(1U << (bit % 8));
        check_files(files, history, what, &refused);
        files->of[file].data[bit / 8] ^= (char)(1U << (bit % 8));
    }
    print_message("journal.sqlite%s: %d of %d flips refused\n", endings[file], refused, n);
    return refused;
}

/* The files of a server that is killed: each record is a commit, and none is moved from the log. */
static struct files killed(void)
{
    struct dpt_err err;
    struct dpt_store *store = disk_open();
    const struct dpt_journal journal = dpt_store_journal(store);
    for (size_t i = 0; i < kept_records_count(stage.journal); i++) {
        assert_int_equal(journal.add(journal.ctx, kept_record_at(stage.journal, i), &err), DPT_OK);
        assert_int_equal(journal.commit(journal.ctx, &err), DPT_OK);
    }
    struct files files = take_files();
    assert_true(files.of[LOG].bytes > 0 && files.of[NEWEST].bytes > 0);
    dpt_store_close(&store);
    return files;
}

/* A server that has ended: all is in the database. Without -newest, as a copy. */
static struct files ended(void)
{
    disk_write(stage.journal);
    struct files files = take_files();
    assert_true(files.of[LOG].data == NULL);
    free(files.of[NEWEST].data);
    files.of[NEWEST].data = NULL;
    files.of[NEWEST].bytes = 0;
    return files;
}

static char *true_history(const struct files *files)
{
    struct dpt_err err;
    put_files(files);
    char *history = tell_history(&err);
    if (history == NULL)
        fail_msg("%s", err.text);
    return history;
}

/* ---- bits ---- */

static void bits_of_the_database(void **state)
{
    (void)state;
    disk_live();
    struct files files = ended();
    char *history = true_history(&files);
    assert_true(flip_bits(&files, MAIN, 300, history) > 50); /* most of its pages are empty */
    free(history);
    free_files(&files);
}

static void bits_of_the_log(void **state)
{
    (void)state;
    disk_live();
    struct files files = killed();
    char *history = true_history(&files);
    assert_int_equal(flip_bits(&files, LOG, 200, history), 200);
    free(history);
    free_files(&files);
}

static void bits_of_the_newest(void **state)
{
    (void)state;
    disk_live();
    struct files files = killed();
    char *history = true_history(&files);
    assert_int_equal(flip_bits(&files, NEWEST, 50, history), 50);
    free(history);
    free_files(&files);
}

/* Each bit of a row's values, which a random bit may miss. */
static void bits_of_a_secret(void **state)
{
    (void)state;
    disk_live();
    struct files files = ended();
    char *history = true_history(&files);
    const struct dpt_rdzv_record *joined = NULL;
    for (size_t i = 0; joined == NULL; i++)
        if (kept_record_at(stage.journal, i)->kind == DPT_RDZV_RECORD_JOINED)
            joined = kept_record_at(stage.journal, i);
    char *at =
        memmem(files.of[MAIN].data, files.of[MAIN].bytes, joined->secret, sizeof joined->secret);
    assert_non_null(at);
    int refused = 0;
    for (size_t bit = 0; bit < 8 * sizeof joined->secret; bit++) {
        at[bit / 8] ^= (char)(1U << (bit % 8));
        check_files(&files, history, "a bit of a secret", &refused);
        at[bit / 8] ^= (char)(1U << (bit % 8));
    }
    assert_int_equal(refused, 8 * sizeof joined->secret);
    free(history);
    free_files(&files);
}

/* ---- lost ends and files ---- */

/* Must be refused with these words, and is left as it is. */
static void refuse(const struct files *files, const char *words)
{
    struct dpt_err err;
    put_files(files);
    struct dpt_rdzv *core = restore(&err);
    if (core != NULL)
        fail_msg("accepted; wanted: %s", words);
    check_refusal(files, &err, words);
    if (strstr(err.text, words) == NULL)
        fail_msg("wanted '%s' in: %s", words, err.text);
}

/* The log ends early, at any frame or within one, or is gone: decisions that were sent are lost. */
static void lost_end_of_the_log(void **state)
{
    (void)state;
    disk_live();
    struct files files = killed();
    const size_t whole = files.of[LOG].bytes;
    for (size_t bytes = 0; bytes < whole; bytes += 1 + whole / 40) {
        files.of[LOG].bytes = bytes;
        refuse(&files, "-newest'");
    }
    free_files(&files);
}

/* Without -newest the log itself shows damage before its last transaction. */
static void damage_within_the_log(void **state)
{
    (void)state;
    disk_live();
    struct files files = killed();
    free(files.of[NEWEST].data);
    files.of[NEWEST].data = NULL;
    files.of[NEWEST].bytes = 0;
    char *log = files.of[LOG].data;
    for (size_t at = 32 + 1000; at < files.of[LOG].bytes * 3 / 4; at += 24 + 4096) {
        log[at] ^= 1;
        refuse(&files, "decisions follow it");
        log[at] ^= 1;
    }
    for (size_t at = 0; at < 32; at++) {
        log[at] ^= 4;
        refuse(&files, "header of its '-wal' file");
        log[at] ^= 4;
    }
    free_files(&files);
}

/* A power failure leaves a part of a transaction that was never durable: it is dropped. */
static void torn_transaction_is_dropped(void **state)
{
    (void)state;
    int refused = 0;
    disk_live();
    struct files files = killed();
    char *history = true_history(&files);
    const size_t frame = 24 + 4096, n = 3;
    char *longer = calloc(1, files.of[LOG].bytes + n * frame);
    assert_non_null(longer);
    memcpy(longer, files.of[LOG].data, files.of[LOG].bytes);
    for (size_t i = 1; i < n; i++) { /* the first was not written, and the last is a commit */
        char *torn = longer + files.of[LOG].bytes + i * frame;
        torn[3] = 2;
        torn[7] = i == n - 1 ? 9 : 0;
        memcpy(torn + 8, files.of[LOG].data + 16, 8);
    }
    free(files.of[LOG].data);
    files.of[LOG].data = longer;
    files.of[LOG].bytes += n * frame;
    check_files(&files, history, "a torn transaction", &refused);
    assert_int_equal(refused, 0);
    free(history);
    free_files(&files);
}

static void lost_database(void **state)
{
    (void)state;
    disk_live();
    struct files files = killed();
    files.of[MAIN].bytes = 0;
    refuse(&files, "missing or empty beside its '-wal' file");
    free(files.of[MAIN].data);
    files.of[MAIN].data = NULL;
    refuse(&files, "missing or empty beside its '-wal' file");
    free(files.of[LOG].data);
    files.of[LOG].data = NULL;
    files.of[LOG].bytes = 0;
    refuse(&files, "missing or empty beside its '-newest' file");
    free_files(&files);
}

/* An older copy in the same folder has lost what came after it. */
static void older_copy_is_refused(void **state)
{
    (void)state;
    disk_live();
    struct files old = ended();
    const struct dpt_rdzv_record start = {.kind = DPT_RDZV_RECORD_START, .step = -1, .number = 9};
    struct dpt_err err;
    struct dpt_store *store = disk_open();
    const struct dpt_journal journal = dpt_store_journal(store);
    assert_int_equal(journal.add(journal.ctx, &start, &err), DPT_OK);
    assert_int_equal(journal.commit(journal.ctx, &err), DPT_OK);
    dpt_store_close(&store);
    struct files now = take_files();
    struct files mixed = old;
    mixed.of[NEWEST] = now.of[NEWEST];
    refuse(&mixed, "-newest' is not in it");
    put_files(&old); /* in a new folder it is safe */
    struct dpt_rdzv *core = restore(&err);
    assert_non_null(core);
    dpt_rdzv_destroy(&core);
    free_files(&old);
    free_files(&now);
}

/* ---- bytes and rows ---- */

/* Bytes in the middle of the file are wrong. */
static void junk_is_refused(void **state)
{
    (void)state;
    disk_live();
    struct files files = ended();
    for (size_t at = 4096; at + 2000 < files.of[MAIN].bytes; at += 4096)
        memset(files.of[MAIN].data + at, 0xa5, 2000);
    refuse(&files, "damaged");
    free_files(&files);
}

/* The database is whole, and a row is missing or another one. */
static void wrong_rows_are_refused(void **state)
{
    (void)state;
    static const char *const edits[] = {
        "DELETE FROM record WHERE kind = 'joined'",
        "DELETE FROM record WHERE seq = (SELECT max(seq) FROM record)",
        "DELETE FROM record WHERE kind IN ('start', 'denied')",
        "DELETE FROM member",
        "UPDATE member SET rack = 'r9' WHERE record = (SELECT max(record) FROM member)",
        "DELETE FROM health",
        "UPDATE health SET mflops = 1",
        "UPDATE record SET kind = 'nothing' WHERE kind = 'grant'",
        "UPDATE record SET secret = NULL WHERE kind = 'joined'",
        "UPDATE record SET generation = 1 WHERE kind = 'generation'",
        "UPDATE record SET cause = 'magic' WHERE kind = 'generation'",
        "UPDATE record SET at_ms = at_ms + 1 WHERE seq = 1",
        "UPDATE run SET spec = x'ff'",
        "UPDATE run SET over = 1",
        "DELETE FROM run",
        "DELETE FROM newest",
        "UPDATE newest SET record = record - 1 WHERE run = 0",
        "CREATE TABLE more(a)",
        "DROP VIEW members",
    };
    disk_live();
    for (size_t i = 0; i < sizeof edits / sizeof edits[0]; i++) {
        struct dpt_err err;
        struct stat info;
        assert_int_equal(dpt_fs_remove_tree(disk_dir, &err), DPT_OK);
        disk_write(stage.journal);
        disk_run_sql(edits[i]);
        assert_true(stat(name_of(LOG), &info) != 0);
        struct files files = take_files();
        refuse(&files, "is damaged (");
        free_files(&files);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(bits_of_the_database, disk_setup, disk_teardown),
        cmocka_unit_test_setup_teardown(bits_of_the_log, disk_setup, disk_teardown),
        cmocka_unit_test_setup_teardown(bits_of_the_newest, disk_setup, disk_teardown),
        cmocka_unit_test_setup_teardown(bits_of_a_secret, disk_setup, disk_teardown),
        cmocka_unit_test_setup_teardown(lost_end_of_the_log, disk_setup, disk_teardown),
        cmocka_unit_test_setup_teardown(damage_within_the_log, disk_setup, disk_teardown),
        cmocka_unit_test_setup_teardown(torn_transaction_is_dropped, disk_setup, disk_teardown),
        cmocka_unit_test_setup_teardown(lost_database, disk_setup, disk_teardown),
        cmocka_unit_test_setup_teardown(older_copy_is_refused, disk_setup, disk_teardown),
        cmocka_unit_test_setup_teardown(junk_is_refused, disk_setup, disk_teardown),
        cmocka_unit_test_setup_teardown(wrong_rows_are_refused, disk_setup, disk_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
