/* The newest time in a journal, by a connection of its own. */
#include "rendezvous/store/internal.h"

#include "base/fs.h"

static enum dpt_status read_newest(sqlite3 *database, const char *path, int64_t *ret_ms,
                                   struct dpt_err *err)
{
    static const char sql[] = "SELECT coalesce(max(at_ms), 0) FROM record";
    sqlite3_stmt *statement = NULL;
    enum dpt_status status = DPT_OK;
    if (sqlite3_prepare_v2(database, sql, -1, &statement, NULL) != SQLITE_OK ||
        sqlite3_step(statement) != SQLITE_ROW)
        status = store_fail(database, path, "read the journal", err);
    else
        *ret_ms = sqlite3_column_int64(statement, 0);
    (void)sqlite3_finalize(statement);
    return status;
}

enum dpt_status dpt_store_newest_ms(const char *dir, int64_t *ret_ms, struct dpt_err *err)
{
    char path[PATH_MAX];
    sqlite3 *database = NULL;
    enum dpt_status status;
    DPT_TRY(dpt_fs_join(dir, "journal.sqlite", path, sizeof path, err));
    if (sqlite3_open_v2(path, &database, SQLITE_OPEN_READONLY, NULL) != SQLITE_OK)
        status = database == NULL ? dpt_fail_nomem(err, "open the journal '%s'", path)
                                  : store_fail(database, path, "open the journal", err);
    else
        status = read_newest(database, path, ret_ms, err);
    (void)sqlite3_close(database);
    return status;
}
