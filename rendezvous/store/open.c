/* Opens the database of a journal: its form, its version, whether it is whole. */
#include "rendezvous/store/internal.h"

#include "base/fs.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* "dptj" in PRAGMA application_id marks a journal of dpt-rdzv. */
#define APPLICATION_ID 0x6470746a

enum dpt_status store_ask_number(sqlite3 *database, const char *path, const char *sql, int64_t *ret,
                                 struct dpt_err *err)
{
    sqlite3_stmt *statement = NULL;
    enum dpt_status status = DPT_OK;
    if (sqlite3_prepare_v2(database, sql, -1, &statement, NULL) != SQLITE_OK ||
        sqlite3_step(statement) != SQLITE_ROW)
        status = store_fail(database, path, "read the journal", err);
    else
        *ret = sqlite3_column_int64(statement, 0);
    (void)sqlite3_finalize(statement);
    return status;
}

/* The first column of the first row as text. */
static enum dpt_status ask_text(sqlite3 *database, const char *path, const char *sql, char **ret,
                                struct dpt_err *err)
{
    sqlite3_stmt *statement = NULL;
    enum dpt_status status = DPT_OK;
    char *text = NULL;
    if (sqlite3_prepare_v2(database, sql, -1, &statement, NULL) != SQLITE_OK ||
        sqlite3_step(statement) != SQLITE_ROW) {
        status = store_fail(database, path, "read the journal", err);
    } else {
        const char *said = (const char *)sqlite3_column_text(statement, 0);
        text = strdup(said != NULL ? said : "no answer");
        if (text == NULL)
            status = dpt_fail_nomem(err, "read the journal '%s'", path);
    }
    (void)sqlite3_finalize(statement);
    if (status == DPT_OK)
        *ret = text;
    return status;
}

/* One of SQLite's checks, whose answer is "ok" if all is well. */
static enum dpt_status check_with(sqlite3 *database, const char *path, const char *pragma,
                                  struct dpt_err *err)
{
    char *said = NULL;
    DPT_TRY(ask_text(database, path, pragma, &said, err));
    const enum dpt_status status =
        strcmp(said, "ok") == 0 ? DPT_OK : store_fail_damaged(path, err, "%s", said);
    free(said);
    return status;
}

/* A server leaves out the table of members, which is far larger than all others: it verifies the
 * members that it reads. */
static enum dpt_status check_whole(sqlite3 *database, const char *path, enum open_how how,
                                   struct dpt_err *err)
{
    static const char *const parts[] = {"PRAGMA quick_check('record')", "PRAGMA quick_check('run')",
                                        "PRAGMA quick_check('health')",
                                        "PRAGMA quick_check('newest')"};
    if (how == OPEN_TO_READ)
        return check_with(database, path, "PRAGMA integrity_check(1)", err);
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        DPT_TRY(check_with(database, path, parts[i], err));
    return DPT_OK;
}

static enum dpt_status add_schema(sqlite3 *database, const char *path, struct dpt_err *err)
{
    for (int i = 0; i < STORE_SCHEMA_PARTS; i++)
        DPT_TRY(store_run(database, path, store_schema[i], err));
    return DPT_OK;
}

/* The tables, the index and the views are those of this version. */
static enum dpt_status check_schema(sqlite3 *database, const char *path, struct dpt_err *err)
{
    static const char text_of_schema[] =
        "SELECT group_concat(type || ' ' || name || ' ' || tbl_name || ' ' || coalesce(sql, ''),"
        " x'0a') FROM (SELECT * FROM sqlite_master ORDER BY type, name)";
    sqlite3 *fresh = NULL;
    char *want = NULL, *found = NULL;
    enum dpt_status status = sqlite3_open(":memory:", &fresh) == SQLITE_OK
                                 ? add_schema(fresh, path, err)
                                 : dpt_fail_nomem(err, "read the journal '%s'", path);
    if (status == DPT_OK)
        status = ask_text(fresh, path, text_of_schema, &want, err);
    if (status == DPT_OK)
        status = ask_text(database, path, text_of_schema, &found, err);
    if (status == DPT_OK && strcmp(want, found) != 0)
        status = store_fail_damaged(path, err, "its tables are not those of its version");
    (void)sqlite3_close(fresh);
    free(want);
    free(found);
    return status;
}

/* Whether the database is a journal of this version. *ret_empty: it has no table at all, because a
 * server ended before its first commit. */
static enum dpt_status check_form(sqlite3 *database, const char *path, enum open_how how,
                                  bool *ret_empty, struct dpt_err *err)
{
    int64_t application, version, tables;
    DPT_TRY(store_ask_number(database, path, "PRAGMA application_id", &application, err));
    DPT_TRY(store_ask_number(database, path, "PRAGMA user_version", &version, err));
    DPT_TRY(store_ask_number(database, path, "SELECT count(*) FROM sqlite_master", &tables, err));
    *ret_empty = application == 0 && version == 0 && tables == 0;
    if (*ret_empty)
        return DPT_OK;
    if (application != APPLICATION_ID)
        return dpt_fail(
            err, DPT_ECORRUPT,
            "'%s' is a database of another program, no journal of dpt-rdzv: it was left "
            "as it is; name another --state-dir",
            path);
    if (version != DPT_STORE_VERSION)
        return dpt_fail(err, DPT_EVERSION,
                        "the journal '%s' has version %lld, and this dpt-rdzv writes version %d: "
                        "start the dpt-rdzv that wrote it, or name another --state-dir (nodes that "
                        "train come back with their state)",
                        path, (long long)version, DPT_STORE_VERSION);
    DPT_TRY(check_schema(database, path, err));
    return check_whole(database, path, how, err);
}

static enum dpt_status create_tables(sqlite3 *database, const char *path, struct dpt_err *err)
{
    char marks[128];
    (void)snprintf(marks, sizeof marks, "PRAGMA application_id=%d; PRAGMA user_version=%d; COMMIT",
                   APPLICATION_ID, DPT_STORE_VERSION);
    DPT_TRY(store_run(database, path, "BEGIN IMMEDIATE", err));
    enum dpt_status status = add_schema(database, path, err);
    if (status == DPT_OK)
        status = store_run(database, path, marks, err);
    if (status != DPT_OK)
        (void)sqlite3_exec(database, "ROLLBACK", NULL, NULL, NULL);
    return status;
}

/* A write-ahead log has one fsync for a commit, and a reader does not stop the server. */
static enum dpt_status set_up_writer(sqlite3 *database, const char *path, struct dpt_err *err)
{
    sqlite3_stmt *statement = NULL;
    bool wal = false;
    if (sqlite3_prepare_v2(database, "PRAGMA journal_mode=WAL", -1, &statement, NULL) ==
            SQLITE_OK &&
        sqlite3_step(statement) == SQLITE_ROW) {
        const char *mode = (const char *)sqlite3_column_text(statement, 0);
        wal = mode != NULL && strcmp(mode, "wal") == 0;
    }
    const enum dpt_status status =
        wal ? DPT_OK : store_fail(database, path, "use a write-ahead log for", err);
    (void)sqlite3_finalize(statement);
    DPT_TRY(status);
    return store_run(database, path, "PRAGMA synchronous=FULL; PRAGMA foreign_keys=OFF", err);
}

/* Makes the file, readable by its owner only: SQLite gives its other files the same mode. */
static enum dpt_status make_file(const char *path, struct dpt_err *err)
{
    const int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0)
        return dpt_fail_errno(err, errno, "open the journal '%s'", path);
    (void)close(fd);
    return DPT_OK;
}

static enum dpt_status check_database(sqlite3 *database, const struct opening *opening,
                                      struct dpt_err *err)
{
    const char *path = opening->path;
    bool empty;
    if (opening->how == OPEN_TO_READ) /* one state of it, for all that follows */
        DPT_TRY(store_run(database, path, "BEGIN", err));
    DPT_TRY(check_form(database, path, opening->how, &empty, err));
    if (empty && opening->newest->seq > 0)
        return store_fail_damaged(path, err, "it is empty, and '%s-newest' has record %lld", path,
                                  (long long)opening->newest->seq);
    if (!empty)
        DPT_TRY(store_verify(database, opening, err));
    if (opening->how == OPEN_TO_READ)
        return empty ? dpt_fail(err, DPT_ENOENT, "the journal '%s' is empty", path) : DPT_OK;
    if (sqlite3_db_readonly(database, "main") != 0)
        return store_fail_damaged(path, err, "its header forbids writes");
    DPT_TRY(set_up_writer(database, path, err));
    return empty ? create_tables(database, path, err) : DPT_OK;
}

void store_keep(sqlite3 *database, bool as_it_is)
{
    (void)sqlite3_db_config(database, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, as_it_is ? 1 : 0, NULL);
}

enum dpt_status store_open_database(const struct opening *opening, sqlite3 **ret,
                                    struct dpt_err *err)
{
    const char *path = opening->path;
    const enum open_how how = opening->how;
    sqlite3 *database = NULL;
    if (how == OPEN_TO_WRITE)
        DPT_TRY(make_file(path, err));
    const int flags = how == OPEN_TO_WRITE ? SQLITE_OPEN_READWRITE : SQLITE_OPEN_READONLY;
    enum dpt_status status = DPT_OK;
    if (sqlite3_open_v2(path, &database, flags | SQLITE_OPEN_NOMUTEX, NULL) != SQLITE_OK)
        status = database == NULL ? dpt_fail_nomem(err, "open the journal '%s'", path)
                                  : store_fail(database, path, "open the journal", err);
    if (status == DPT_OK) {
        (void)sqlite3_busy_timeout(database, STORE_BUSY_MS);
        status = check_database(database, opening, err);
    }
    /* A database that is refused is left as it is: no checkpoint of its write-ahead log. */
    if (database != NULL)
        store_keep(database, true);
    if (status != DPT_OK)
        (void)sqlite3_close(database);
    else
        *ret = database;
    return status;
}
