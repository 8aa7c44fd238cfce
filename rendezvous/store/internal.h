/* Shared by the files of the store.
 *
 *   store.c    the journal: records wait, and are committed      history.c  what was, for people
 *   rows.c     a record becomes rows                             open.c     a database file
 *   read.c     rows become records                               schema.c   tables, views, kinds
 *   verify.c   verifies their checksums                          sum.c      a checksum of values
 *   chain.c    the chains of records                             fail.c     errors
 *   wal.c      the files before SQLite opens them                folder.c   the default folder
 *   newest.c   what was committed last                           newest_time.c  the newest time */
#ifndef DPT_RENDEZVOUS_STORE_INTERNAL_H
#define DPT_RENDEZVOUS_STORE_INTERNAL_H

#include "base/hash.h"
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

/* ---- sum.c ---- */

enum { STORE_SUM_BYTES = 16 };
/* Each adds a value to a checksum, which is 0 before the first one. */
void store_sum_number(struct dpt_hash128 *sum, int64_t number);
void store_sum_text(struct dpt_hash128 *sum, const char *text);
void store_sum_blob(struct dpt_hash128 *sum, const void *data, size_t bytes); /* data NULL: NULL */
/* As the value that was bound. */
void store_sum_column(struct dpt_hash128 *sum, sqlite3_stmt *row, int column);
/* As it is stored. */
void store_sum_pack(struct dpt_hash128 sum, uint8_t ret[STORE_SUM_BYTES]);
struct dpt_hash128 store_sum_unpack(const uint8_t stored[STORE_SUM_BYTES]);
/* True: the column has this checksum. */
bool store_sum_is(struct dpt_hash128 sum, sqlite3_stmt *row, int column);

/* ---- wal.c ---- */

/* Looks at the files of the journal `path`, which no server uses, before SQLite does. `committed`:
 * the number of the newest committed record, if it is known. DPT_ECORRUPT: the database is missing
 * or empty, and was not; or durable transactions of the write-ahead log are damaged. */
DPT_MUST_USE enum dpt_status store_check_files(const char *path, int64_t committed,
                                               struct dpt_err *err);

/* ---- newest.c ---- */

/* The newest committed record. seq 0: nothing is known of it. */
struct newest {
    int64_t seq;
    char hex[DPT_HASH_HEX_BYTES]; /* its checksum */
};
/* DPT_ECORRUPT: the file is damaged. */
DPT_MUST_USE enum dpt_status store_newest_read(const char *path, struct newest *ret,
                                               struct dpt_err *err);
/* The file, made if it is absent. The caller closes it. */
DPT_MUST_USE enum dpt_status store_newest_open(const char *path, int *ret_fd, struct dpt_err *err);
void store_newest_write(int fd, const char *path, int64_t seq, struct dpt_hash128 sum);

/* ---- fail.c ---- */

/* The error of a SQLite call, with the file and what to do. DPT_ENOSPC, DPT_EIO, DPT_ENOMEM,
 * DPT_ECORRUPT. */
enum dpt_status store_fail(sqlite3 *database, const char *path, const char *what,
                           struct dpt_err *err);
/* DPT_ECORRUPT, with the file, the reason and what to do. */
enum dpt_status store_fail_damaged(const char *path, struct dpt_err *err, const char *fmt, ...)
    DPT_PRINTF(3, 4);
/* Runs statements without results. */
DPT_MUST_USE enum dpt_status store_run(sqlite3 *database, const char *path, const char *sql,
                                       struct dpt_err *err);

/* ---- open.c ---- */

/* The first column of the first row as a number. */
DPT_MUST_USE enum dpt_status store_ask_number(sqlite3 *database, const char *path, const char *sql,
                                              int64_t *ret, struct dpt_err *err);

enum open_how { OPEN_TO_WRITE, OPEN_TO_READ };

struct chains;
struct opening {
    const char *path; /* of the database */
    enum open_how how;
    const struct newest *newest;
    struct chains *chains; /* filled, also by a failure; the caller calls store_chains_fini */
};
/* Opens the database and checks that it is a whole journal of this version. To write: makes an
 * empty one if the file is absent or empty. store_keep is in force. */
DPT_MUST_USE enum dpt_status store_open_database(const struct opening *opening, sqlite3 **ret,
                                                 struct dpt_err *err);
/* True: closing the database changes no file. False: it may move the write-ahead log into it. */
void store_keep(sqlite3 *database, bool as_it_is);
/* ---- chain.c ---- */

/* The records of a run are a chain: each has a checksum of itself and of the one before it. Records
 * of the server and FORGET are one more, of run 0. */
struct chain {
    int64_t run;
    int64_t newest; /* seq of its newest record; 0: none */
    struct dpt_hash128 sum;
    int64_t *plans; /* (n_plans) seq of the plans whose members count, ascending; owned */
    size_t n_plans, plans_max;
    struct dpt_hash128 members; /* checksum of the newest plan's members */
};

struct chains {
    struct chain *list; /* (n) owned; [0] is of run 0, the others of the runs that are not over */
    size_t n, max;
};

void store_chains_fini(struct chains *chains);
/* A copy without the plans. False: no memory. */
bool store_chains_copy(const struct chains *chains, struct chains *ret);
/* NULL: there is none. */
struct chain *store_chain_of(struct chains *chains, int64_t run);
/* The chain to which a record of this kind and run belongs; makes it for RUN. NULL: none is there,
 * or for want of memory. */
struct chain *store_chain_for(struct chains *chains, enum dpt_rdzv_record_kind kind, int64_t run);
void store_chain_end(struct chains *chains, int64_t run);
/* The chain that has the newest record of all; one without records if there is none. */
const struct chain *store_newest_of(const struct chains *chains);

/* ---- verify.c ---- */

/* Verifies all that a server reads of its journal, and that nothing is missing. To read: also the
 * history. DPT_ECORRUPT: it is damaged. */
DPT_MUST_USE enum dpt_status store_verify(sqlite3 *database, const struct opening *opening,
                                          struct dpt_err *err);

/* ---- rows.c ---- */

/* The statements of a store, prepared once. */
struct rows {
    sqlite3_stmt *add_run, *add_record, *add_member, *add_health, *end_run, *set_newest, *end_chain;
};
DPT_MUST_USE enum dpt_status rows_prepare(struct rows *rows, sqlite3 *database, const char *path,
                                          struct dpt_err *err);
void rows_fini(struct rows *rows);
/* A record on its way into the database. */
struct addition {
    const struct dpt_rdzv_record *record;
    int64_t seq, wall_ms; /* Unix time */
    int64_t run_id;       /* 0: of the server; set for RUN */
};
/* Adds it to the end of its chain. Returns SQLite's code. */
int rows_add(const struct rows *rows, sqlite3 *database, struct addition *addition,
             struct chains *chains);

/* ---- read.c ---- */

/* The columns of a record with its run and its health. */
enum column {
    SEQ,
    AT_MS,
    RUN,
    KIND,
    GENERATION,
    STEP,
    NUMBER,
    AMOUNT,
    FLAGS,
    TEXT,
    CAUSE,
    DETECT_MS,
    STEP_MS,
    NODE,
    HOST,
    INCARNATION,
    SECRET,
    DIGEST,
    KEY,
    MEMBERS,
    SUM,
    NAME,
    USER,
    CONFIG,
    SPEC,
    FINGERPRINT,
    DATA_DIGEST,
    FOLDER,
    OVER,
    CHECKED, /* NULL: there was no check, and the columns below are NULL */
    CHECK_US,
    MEMORY_BYTES,
    CORES,
    MFLOPS,
    ROUND_TRIP_US
};
/* Rows of `enum column` in order: those that count for a server; all. */
extern const char rows_that_count[], rows_of_all[];
/* The members of plan ?1. */
extern const char rows_of_members[];
enum { MEMBER_COLUMNS = 6 }; /* position, node, incarnation, first_rank, ranks, rack */

/* Called with each record that counts, in order, and the number of its run; the record is valid
 * until it returns. */
typedef enum dpt_status rows_take(void *ctx, const struct dpt_rdzv_record *record, int64_t run_id,
                                  struct dpt_err *err);
struct reading {
    sqlite3 *database;
    const char *path;
    struct chains *chains; /* verified */
    rows_take *take;
    void *ctx;
};
DPT_MUST_USE enum dpt_status rows_read(const struct reading *reading, struct dpt_err *err);

#endif
