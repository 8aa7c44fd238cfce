/* Verifies a journal. Each record has a checksum of its row, of the rows of its run and its health,
 * of the checksum of its members, and of the record before it in its chain. The table `newest` has
 * the last record of each chain, so no end is missing either. */
#include "rendezvous/store/internal.h"

#include <stdlib.h>
#include <string.h>

/* ---- which members count ---- */

static bool add_plan(struct chain *chain, int64_t seq)
{
    if (chain->n_plans == chain->plans_max) {
        const size_t max = chain->plans_max == 0 ? 4 : 2 * chain->plans_max;
        int64_t *bigger = realloc(chain->plans, max * sizeof *bigger);
        if (bigger == NULL)
            return false;
        chain->plans = bigger;
        chain->plans_max = max;
    }
    chain->plans[chain->n_plans++] = seq;
    return true;
}

/* A place in a plan counts until a later plan has run (kept.h). Of plans with the same members in a
 * row the last one is enough. False: no memory. */
static bool note_plan(struct chain *chain, enum dpt_rdzv_record_kind kind, sqlite3_stmt *row)
{
    if (kind == DPT_RDZV_RECORD_RUNS && chain->n_plans > 0) {
        chain->plans[0] = chain->plans[chain->n_plans - 1];
        chain->n_plans = 1;
    }
    if (kind != DPT_RDZV_RECORD_PLAN && kind != DPT_RDZV_RECORD_ADOPTED)
        return true;
    if (kind == DPT_RDZV_RECORD_ADOPTED)
        chain->n_plans = 0;
    else if (chain->n_plans > 0 && store_sum_is(chain->members, row, MEMBERS))
        chain->n_plans--;
    chain->members = (struct dpt_hash128){0};
    if (sqlite3_column_bytes(row, MEMBERS) == STORE_SUM_BYTES)
        chain->members = store_sum_unpack(sqlite3_column_blob(row, MEMBERS));
    return add_plan(chain, sqlite3_column_int64(row, SEQ));
}

/* ---- verifying ---- */

struct verifier {
    sqlite3 *database;
    const char *path;
    enum open_how how;
    struct chains *chains;
    sqlite3_stmt *rows, *members;
};

static enum dpt_status fail_record(const struct verifier *verifier, const char *why,
                                   struct dpt_err *err)
{
    return store_fail_damaged(verifier->path, err, "record %lld: %s",
                              (long long)sqlite3_column_int64(verifier->rows, SEQ), why);
}

static enum dpt_status fail_to_read(const struct verifier *verifier, struct dpt_err *err)
{
    return store_fail(verifier->database, verifier->path, "read the journal", err);
}

/* The members of a plan that no server needs: the history has them. */
static enum dpt_status verify_members(const struct verifier *verifier, struct dpt_err *err)
{
    struct dpt_hash128 sum = {0};
    int code;
    (void)sqlite3_bind_int64(verifier->members, 1, sqlite3_column_int64(verifier->rows, SEQ));
    while ((code = sqlite3_step(verifier->members)) == SQLITE_ROW)
        for (int column = 0; column < MEMBER_COLUMNS; column++)
            store_sum_column(&sum, verifier->members, column);
    (void)sqlite3_reset(verifier->members);
    if (code != SQLITE_DONE)
        return fail_to_read(verifier, err);
    return store_sum_is(sum, verifier->rows, MEMBERS)
               ? DPT_OK
               : fail_record(verifier, "the checksum of its members is wrong", err);
}

static struct dpt_hash128 sum_of_row(sqlite3_stmt *row, enum dpt_rdzv_record_kind kind,
                                     struct dpt_hash128 before)
{
    struct dpt_hash128 sum = before;
    for (int column = NAME; kind == DPT_RDZV_RECORD_RUN && column <= FOLDER; column++)
        store_sum_column(&sum, row, column);
    const bool is_checked = sqlite3_column_type(row, CHECKED) != SQLITE_NULL;
    for (int column = CHECK_US; is_checked && column <= ROUND_TRIP_US; column++)
        store_sum_column(&sum, row, column);
    for (int column = SEQ; column <= MEMBERS; column++)
        store_sum_column(&sum, row, column);
    return sum;
}

static enum dpt_status verify_row(const struct verifier *verifier, struct dpt_err *err)
{
    sqlite3_stmt *row = verifier->rows;
    const char *name = (const char *)sqlite3_column_text(row, KIND);
    const int64_t run = sqlite3_column_int64(row, RUN);
    enum dpt_rdzv_record_kind kind;
    if (name == NULL || !store_kind_of(name, &kind))
        return fail_record(verifier, "it has no known kind", err);
    const bool known = store_chain_of(verifier->chains, run) != NULL;
    struct chain *chain = store_chain_for(verifier->chains, kind, run);
    if (chain == NULL || (kind == DPT_RDZV_RECORD_RUN && known))
        return fail_record(verifier, "the records of its run do not begin with the run", err);
    const struct dpt_hash128 sum = sum_of_row(row, kind, chain->sum);
    if (!store_sum_is(sum, row, SUM))
        return fail_record(verifier, "its checksum, which covers the records before, is wrong",
                           err);
    chain->sum = sum;
    chain->newest = sqlite3_column_int64(row, SEQ);
    if (!note_plan(chain, kind, row))
        return dpt_fail_nomem(err, "read the journal '%s'", verifier->path);
    if (verifier->how == OPEN_TO_READ && sqlite3_column_type(row, MEMBERS) != SQLITE_NULL)
        DPT_TRY(verify_members(verifier, err));
    if (kind == DPT_RDZV_RECORD_FORGET && run != 0) {
        if (sqlite3_column_int64(row, OVER) != 1)
            return fail_record(verifier, "its run is over, and counts as open", err);
        store_chain_end(verifier->chains, run);
    }
    return DPT_OK;
}

/* Each chain ends with the record in the table `newest`, and each in the table is a chain. */
static enum dpt_status verify_ends(const struct verifier *verifier, struct dpt_err *err)
{
    sqlite3_stmt *ends = NULL;
    size_t n = 0;
    int code = SQLITE_ERROR;
    bool is_good = true;
    if (sqlite3_prepare_v2(verifier->database, "SELECT run, record FROM newest", -1, &ends, NULL) ==
        SQLITE_OK) {
        while ((code = sqlite3_step(ends)) == SQLITE_ROW) {
            const struct chain *chain =
                store_chain_of(verifier->chains, sqlite3_column_int64(ends, 0));
            is_good = is_good && chain != NULL && chain->newest == sqlite3_column_int64(ends, 1);
            n++;
        }
    }
    const enum dpt_status status = code == SQLITE_DONE ? DPT_OK : fail_to_read(verifier, err);
    (void)sqlite3_finalize(ends);
    DPT_TRY(status);
    return is_good && n == verifier->chains->n
               ? DPT_OK
               : store_fail_damaged(verifier->path, err, "the newest records of a run are missing");
}

/* What was committed, and perhaps told to nodes, is there. A record that is not the newest may have
 * been deleted with its run, which is over. */
static enum dpt_status verify_newest(const struct verifier *verifier, const struct newest *newest,
                                     struct dpt_err *err)
{
    char hex[DPT_HASH_HEX_BYTES];
    sqlite3_stmt *found = NULL;
    if (newest->seq == 0)
        return DPT_OK;
    bool is_same = newest->seq <= store_newest_of(verifier->chains)->newest;
    int code = sqlite3_prepare_v2(verifier->database, "SELECT sum FROM record WHERE seq = ?1", -1,
                                  &found, NULL);
    if (code == SQLITE_OK)
        code = sqlite3_bind_int64(found, 1, newest->seq);
    if (code == SQLITE_OK)
        code = sqlite3_step(found);
    if (code == SQLITE_ROW && sqlite3_column_bytes(found, 0) == STORE_SUM_BYTES) {
        dpt_hash128_hex(store_sum_unpack(sqlite3_column_blob(found, 0)), hex);
        is_same = strcmp(hex, newest->hex) == 0;
    }
    const enum dpt_status status =
        code == SQLITE_ROW || code == SQLITE_DONE ? DPT_OK : fail_to_read(verifier, err);
    (void)sqlite3_finalize(found);
    DPT_TRY(status);
    if (is_same)
        return DPT_OK;
    return store_fail_damaged(
        verifier->path, err,
        "it ends with record %lld, and record %lld of '%s-newest' is not in it",
        (long long)store_newest_of(verifier->chains)->newest, (long long)newest->seq,
        verifier->path);
}

enum dpt_status store_verify(sqlite3 *database, const struct opening *opening, struct dpt_err *err)
{
    struct verifier verifier = {.database = database,
                                .path = opening->path,
                                .how = opening->how,
                                .chains = opening->chains};
    const char *sql = opening->how == OPEN_TO_READ ? rows_of_all : rows_that_count;
    enum dpt_status status = DPT_OK;
    int code = SQLITE_ROW;
    if (sqlite3_prepare_v2(database, sql, -1, &verifier.rows, NULL) != SQLITE_OK ||
        sqlite3_prepare_v2(database, rows_of_members, -1, &verifier.members, NULL) != SQLITE_OK)
        status = fail_to_read(&verifier, err);
    while (status == DPT_OK && (code = sqlite3_step(verifier.rows)) == SQLITE_ROW)
        status = verify_row(&verifier, err);
    if (status == DPT_OK && code != SQLITE_DONE)
        status = fail_to_read(&verifier, err);
    (void)sqlite3_finalize(verifier.rows);
    (void)sqlite3_finalize(verifier.members);
    if (status == DPT_OK)
        status = verify_ends(&verifier, err);
    if (status == DPT_OK)
        status = verify_newest(&verifier, opening->newest, err);
    return status;
}
