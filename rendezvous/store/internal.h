/* Shared by the files of the store.
 *
 *   store.c    the journal: records wait, and are committed      history.c  what was, for people
 *   rows.c     a record as a row                                 open.c     a database file
 *   schema.c   tables, views, names of kinds                     folder.c   the default folder
 *   newest.c   the newest time */
#ifndef DPT_RENDEZVOUS_STORE_INTERNAL_H
#define DPT_RENDEZVOUS_STORE_INTERNAL_H

#include "rendezvous/store/store.h"

#include <sqlite3.h>

enum { STORE_BUSY_MS = 2000 }; /* a reader's checkpoint may hold the lock for a moment */

/* ---- schema.c ---- */

enum { STORE_SCHEMA_PARTS = 3 };
extern const char *const store_schema[STORE_SCHEMA_PARTS]; /* CREATE statements */
/* The name of a kind in the column `kind`. */
const char *store_kind_name(enum dpt_rdzv_record_kind kind);
/* False: no kind has this name. */
bool store_kind_of(const char *name, enum dpt_rdzv_record_kind *ret);

/* ---- open.c ---- */

enum open_how { OPEN_TO_WRITE, OPEN_TO_READ };

/* Opens the database `path` and checks that it is a whole journal of this version. To write: makes
 * an empty one if the file is absent or empty. */
DPT_MUST_USE enum dpt_status store_open_database(const char *path, enum open_how how, sqlite3 **ret,
                                                 struct dpt_err *err);
/* The error of a SQLite call, with the file and what to do. DPT_ENOSPC, DPT_EIO, DPT_ENOMEM,
 * DPT_ECORRUPT. */
enum dpt_status store_fail(sqlite3 *database, const char *path, const char *what,
                           struct dpt_err *err);
/* Runs statements without results. */
DPT_MUST_USE enum dpt_status store_run(sqlite3 *database, const char *path, const char *sql,
                                       struct dpt_err *err);

/* ---- rows.c ---- */

/* The statements of a store, prepared once. */
struct rows {
    sqlite3_stmt *add_run, *add_record, *add_member, *add_health, *end_run;
};
DPT_MUST_USE enum dpt_status rows_prepare(struct rows *rows, sqlite3 *database, const char *path,
                                          struct dpt_err *err);
void rows_fini(struct rows *rows);
/* Adds a record of run `run_id` (0: of the server) at Unix time `wall_ms`. Of a RUN record:
 * *run_id is set. Returns SQLite's code. */
int rows_add(const struct rows *rows, sqlite3 *database, const struct dpt_rdzv_record *record,
             int64_t wall_ms, int64_t *run_id);
/* Called with each record that counts, in order, and the number of its run; the record is valid
 * until it returns. */
typedef enum dpt_status rows_take(void *ctx, const struct dpt_rdzv_record *record, int64_t run_id,
                                  struct dpt_err *err);
DPT_MUST_USE enum dpt_status rows_read(sqlite3 *database, const char *path, rows_take *take,
                                       void *ctx, struct dpt_err *err);

#endif
