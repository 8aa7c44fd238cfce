/* The newest time in a journal, by a connection of its own. */
#include "rendezvous/store/internal.h"

#include "base/fs.h"

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
        status = store_ask_number(database, path, "SELECT coalesce(max(at_ms), 0) FROM record",
                                  ret_ms, err);
    (void)sqlite3_close(database);
    return status;
}
