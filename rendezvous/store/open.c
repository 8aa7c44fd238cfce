/* Opens the database of a journal: its form, its version, whether it is whole. */
#include "rendezvous/store/internal.h"

#include "base/fs.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* "dptj" in PRAGMA application_id marks a journal of dpt-rdzv. */
#define APPLICATION_ID 0x6470746a

enum dpt_status store_fail(sqlite3 *database, const char *path, const char *what,
                           struct dpt_err *err)
{
    const int code = sqlite3_extended_errcode(database);
    const char *text = sqlite3_errmsg(database);
    switch (code & 0xff) {
    case SQLITE_FULL:
        return dpt_fail(err, DPT_ENOSPC, "%s '%s': %s: free space on this disk", what, path, text);
    case SQLITE_NOMEM:
        return dpt_fail_nomem(err, "%s '%s'", what, path);
    case SQLITE_NOTADB:
        return dpt_fail(err, DPT_ECORRUPT,
                        "'%s' is no journal of dpt-rdzv (%s): it was left as it is; name another "
                        "--state-dir, or move the file away",
                        path, text);
    case SQLITE_CORRUPT:
        return dpt_fail(
            err, DPT_ECORRUPT,
            "the journal '%s' is damaged (%s): it was left as it is; move it away or "
            "name another --state-dir (nodes that train come back with their state), or "
            "put a copy back",
            path, text);
    default:
        return dpt_fail(err, DPT_EIO, "%s '%s': %s (SQLite %d)", what, path, text, code);
    }
}

enum dpt_status store_run(sqlite3 *database, const char *path, const char *sql, struct dpt_err *err)
{
    if (sqlite3_exec(database, sql, NULL, NULL, NULL) == SQLITE_OK)
        return DPT_OK;
    return store_fail(database, path, "write the journal", err);
}

/* The first column of the first row as a number. */
static enum dpt_status ask_number(sqlite3 *database, const char *path, const char *sql,
                                  int64_t *ret, struct dpt_err *err)
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

static enum dpt_status check_whole(sqlite3 *database, const char *path, struct dpt_err *err)
{
    sqlite3_stmt *statement = NULL;
    enum dpt_status status = DPT_OK;
    if (sqlite3_prepare_v2(database, "PRAGMA quick_check(1)", -1, &statement, NULL) != SQLITE_OK ||
        sqlite3_step(statement) != SQLITE_ROW) {
        status = store_fail(database, path, "read the journal", err);
    } else {
        const char *said = (const char *)sqlite3_column_text(statement, 0);
        if (said == NULL || strcmp(said, "ok") != 0)
            status =
                dpt_fail(err, DPT_ECORRUPT,
                         "the journal '%s' is damaged (%s): it was left as it is; move it away "
                         "or name another --state-dir (nodes that train come back with their "
                         "state), or put a copy back",
                         path, said != NULL ? said : "no answer");
    }
    (void)sqlite3_finalize(statement);
    return status;
}

/* Whether the database is a journal of this version. *ret_empty: it has no table at all, because a
 * server ended before its first commit. */
static enum dpt_status check_form(sqlite3 *database, const char *path, bool *ret_empty,
                                  struct dpt_err *err)
{
    int64_t application, version, tables;
    DPT_TRY(ask_number(database, path, "PRAGMA application_id", &application, err));
    DPT_TRY(ask_number(database, path, "PRAGMA user_version", &version, err));
    DPT_TRY(ask_number(database, path, "SELECT count(*) FROM sqlite_master", &tables, err));
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
    return check_whole(database, path, err);
}

static enum dpt_status create_tables(sqlite3 *database, const char *path, struct dpt_err *err)
{
    char marks[128];
    (void)snprintf(marks, sizeof marks, "PRAGMA application_id=%d; PRAGMA user_version=%d; COMMIT",
                   APPLICATION_ID, DPT_STORE_VERSION);
    DPT_TRY(store_run(database, path, "BEGIN IMMEDIATE", err));
    enum dpt_status status = DPT_OK;
    for (int i = 0; i < STORE_SCHEMA_PARTS && status == DPT_OK; i++)
        status = store_run(database, path, store_schema[i], err);
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

static enum dpt_status check_database(sqlite3 *database, const char *path, enum open_how how,
                                      struct dpt_err *err)
{
    bool empty;
    DPT_TRY(check_form(database, path, &empty, err));
    if (how == OPEN_TO_READ)
        return empty ? dpt_fail(err, DPT_ENOENT, "the journal '%s' is empty", path) : DPT_OK;
    DPT_TRY(set_up_writer(database, path, err));
    return empty ? create_tables(database, path, err) : DPT_OK;
}

enum dpt_status store_open_database(const char *path, enum open_how how, sqlite3 **ret,
                                    struct dpt_err *err)
{
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
        status = check_database(database, path, how, err);
    }
    /* A database that is refused is left as it is: no checkpoint of its write-ahead log. */
    if (database != NULL && (status != DPT_OK || how == OPEN_TO_READ))
        (void)sqlite3_db_config(database, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, NULL);
    if (status != DPT_OK)
        (void)sqlite3_close(database);
    else
        *ret = database;
    return status;
}
