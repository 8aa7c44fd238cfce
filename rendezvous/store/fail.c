/* Errors of the store, and statements without results. */
#include "rendezvous/store/internal.h"

#include <stdarg.h>
#include <stdio.h>

enum dpt_status store_fail_damaged(const char *path, struct dpt_err *err, const char *fmt, ...)
{
    char why[DPT_ERR_TEXT_BYTES];
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(why, sizeof why, fmt, args);
    va_end(args);
    return dpt_fail(err, DPT_ECORRUPT,
                    "the journal '%s' is damaged (%.400s): it was left as it is; move its folder "
                    "away or name another --state-dir (nodes that train come back with their "
                    "state), or put a copy into a new folder",
                    path, why);
}

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
                        "--state-dir, or move its folder away",
                        path, text);
    case SQLITE_CORRUPT:
        return store_fail_damaged(path, err, "%s", text);
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
