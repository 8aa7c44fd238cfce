/* Rows become the records of a journal that is verified. */
#include "rendezvous/store/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROWS                                                                                       \
    "SELECT record.seq, record.at_ms, record.run, kind, generation, step, number, amount, flags,"  \
    " text, cause, detect_ms, step_ms, node, host, incarnation, secret, digest, key, members, "    \
    "sum,"                                                                                         \
    " run.name, user, config, spec, fingerprint, data_digest, folder, over, health.record,"        \
    " check_us, memory_bytes, cores, mflops, round_trip_us"                                        \
    " FROM record LEFT JOIN run ON run.id = record.run"                                            \
    " LEFT JOIN health ON health.record = record.seq"

/* Of runs that are over, FORGET has all that counts. */
const char rows_that_count[] =
    ROWS " WHERE record.run = 0 OR kind = 'forget' OR over = 0 ORDER BY record.seq";
const char rows_of_all[] = ROWS " ORDER BY record.seq";
const char rows_of_members[] = "SELECT position, node, incarnation, first_rank, ranks, rack"
                               " FROM member WHERE record = ?1 ORDER BY position";

static const char *text_at(sqlite3_stmt *row, int column)
{
    const char *text = (const char *)sqlite3_column_text(row, column);
    return text != NULL ? text : "";
}

static uint64_t number_at(sqlite3_stmt *row, int column)
{
    return (uint64_t)sqlite3_column_int64(row, column);
}

struct reader {
    const struct reading *reading;
    sqlite3_stmt *records, *members;
    struct dpt_rdzv_member *list; /* owned, with its names */
    size_t n, max;
};

static void clear_members(struct reader *reader)
{
    for (size_t i = 0; i < reader->n; i++)
        free((void *)reader->list[i].node);
    reader->n = 0;
}

static enum dpt_status add_to_members(struct reader *reader, struct dpt_err *err)
{
    if (reader->n == reader->max) {
        const size_t max = reader->max == 0 ? 64 : 2 * reader->max;
        struct dpt_rdzv_member *bigger = realloc(reader->list, max * sizeof *bigger);
        if (bigger == NULL)
            return dpt_fail_nomem(err, "members of a plan in '%s'", reader->reading->path);
        reader->list = bigger;
        reader->max = max;
    }
    char *node = strdup(text_at(reader->members, 1));
    if (node == NULL)
        return dpt_fail_nomem(err, "members of a plan in '%s'", reader->reading->path);
    reader->list[reader->n++] =
        (struct dpt_rdzv_member){.node = node,
                                 .rack = "",
                                 .incarnation = number_at(reader->members, 2),
                                 .first_rank = (uint32_t)number_at(reader->members, 3),
                                 .n_ranks = (uint32_t)number_at(reader->members, 4)};
    return DPT_OK;
}

static enum dpt_status fail_row(const struct reader *reader, const char *why, struct dpt_err *err)
{
    return store_fail_damaged(reader->reading->path, err, "record %lld: %s",
                              (long long)sqlite3_column_int64(reader->records, SEQ), why);
}

static enum dpt_status fail_to_read(const struct reader *reader, struct dpt_err *err)
{
    return store_fail(reader->reading->database, reader->reading->path, "read the journal", err);
}

/* The members of the plan, which must have the checksum that the record has of them. */
static enum dpt_status read_plan(struct reader *reader, struct dpt_err *err)
{
    int code = SQLITE_ROW;
    enum dpt_status status = DPT_OK;
    struct dpt_hash128 sum = {0};
    (void)sqlite3_bind_int64(reader->members, 1, sqlite3_column_int64(reader->records, SEQ));
    while (status == DPT_OK && (code = sqlite3_step(reader->members)) == SQLITE_ROW) {
        for (int column = 0; column < MEMBER_COLUMNS; column++)
            store_sum_column(&sum, reader->members, column);
        status = add_to_members(reader, err);
    }
    (void)sqlite3_reset(reader->members);
    if (status == DPT_OK && code != SQLITE_DONE)
        status = fail_to_read(reader, err);
    if (status == DPT_OK && !store_sum_is(sum, reader->records, MEMBERS))
        status = fail_row(reader, "the checksum of its members is wrong", err);
    return status;
}

/* False: the column has another number of bytes. */
static bool read_proof(sqlite3_stmt *row, int column, uint8_t *ret, size_t bytes)
{
    const size_t stored = (size_t)sqlite3_column_bytes(row, column);
    if (stored == bytes)
        memcpy(ret, sqlite3_column_blob(row, column), bytes);
    return stored == bytes || stored == 0;
}

static struct dpt_health read_health(sqlite3_stmt *row)
{
    return (struct dpt_health){.checked = sqlite3_column_type(row, CHECKED) != SQLITE_NULL,
                               .check_us = sqlite3_column_int64(row, CHECK_US),
                               .memory_bytes = sqlite3_column_int64(row, MEMORY_BYTES),
                               .cores = (uint32_t)number_at(row, CORES),
                               .mflops = (uint32_t)number_at(row, MFLOPS),
                               .round_trip_us = (uint32_t)number_at(row, ROUND_TRIP_US)};
}

/* All but spec and members. False: no record looks like that. */
static bool fill_record(sqlite3_stmt *row, struct dpt_rdzv_record *ret)
{
    *ret = (struct dpt_rdzv_record){.at_ms = sqlite3_column_int64(row, AT_MS),
                                    .run = text_at(row, NAME),
                                    .generation = number_at(row, GENERATION),
                                    .step = sqlite3_column_int64(row, STEP),
                                    .number = number_at(row, NUMBER),
                                    .count = (uint32_t)number_at(row, AMOUNT),
                                    .flags = (uint32_t)number_at(row, FLAGS),
                                    .text = text_at(row, TEXT),
                                    .cause = text_at(row, CAUSE),
                                    .detect_ms = sqlite3_column_int64(row, DETECT_MS),
                                    .step_ms = sqlite3_column_int64(row, STEP_MS),
                                    .node = text_at(row, NODE),
                                    .host = text_at(row, HOST),
                                    .incarnation = number_at(row, INCARNATION),
                                    .digest = text_at(row, DIGEST),
                                    .fingerprint = text_at(row, FINGERPRINT),
                                    .data_digest = text_at(row, DATA_DIGEST),
                                    .folder = text_at(row, FOLDER),
                                    .health = read_health(row)};
    return store_kind_of(text_at(row, KIND), &ret->kind) &&
           (ret->kind != DPT_RDZV_RECORD_JOINED || sqlite3_column_bytes(row, SECRET) > 0) &&
           read_proof(row, SECRET, ret->secret, sizeof ret->secret) &&
           read_proof(row, KEY, ret->key, sizeof ret->key);
}

static int compare_seqs(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Members of other plans change nothing any more. */
static bool members_count(const struct reader *reader)
{
    const int64_t seq = sqlite3_column_int64(reader->records, SEQ);
    const struct chain *chain =
        store_chain_of(reader->reading->chains, sqlite3_column_int64(reader->records, RUN));
    return chain != NULL && chain->n_plans > 0 &&
           bsearch(&seq, chain->plans, chain->n_plans, sizeof seq, compare_seqs) != NULL;
}

static enum dpt_status give_row(struct reader *reader, struct dpt_rdzv_record *record,
                                struct dpt_err *err)
{
    const bool is_plan =
        record->kind == DPT_RDZV_RECORD_PLAN || record->kind == DPT_RDZV_RECORD_ADOPTED;
    struct dpt_err why;
    clear_members(reader);
    record->is_outdated = is_plan && !members_count(reader);
    if (is_plan && !record->is_outdated)
        DPT_TRY(read_plan(reader, err));
    record->members = reader->list;
    record->n_members = reader->n;
    const int64_t run = sqlite3_column_int64(reader->records, RUN);
    const enum dpt_status status = reader->reading->take(reader->reading->ctx, record, run, &why);
    if (status == DPT_ECORRUPT)
        return fail_row(reader, why.text, err);
    return status == DPT_OK ? DPT_OK : dpt_pass(err, &why);
}

static enum dpt_status read_row(struct reader *reader, struct dpt_err *err)
{
    sqlite3_stmt *row = reader->records;
    struct dpt_rdzv_record record;
    Dpt__RunSpec *spec = NULL;
    if (!fill_record(row, &record))
        return fail_row(reader, "no record looks like that", err);
    if (record.kind == DPT_RDZV_RECORD_RUN) {
        const int bytes = sqlite3_column_bytes(row, SPEC);
        spec = bytes > 0
                   ? dpt__run_spec__unpack(NULL, (size_t)bytes, sqlite3_column_blob(row, SPEC))
                   : NULL;
        if (spec == NULL)
            return fail_row(reader, "the run has no config", err);
        record.spec = spec;
    }
    const enum dpt_status status = give_row(reader, &record, err);
    if (spec != NULL)
        dpt__run_spec__free_unpacked(spec, NULL);
    return status;
}

enum dpt_status rows_read(const struct reading *reading, struct dpt_err *err)
{
    struct reader reader = {.reading = reading};
    enum dpt_status status = DPT_OK;
    int code = SQLITE_ROW;
    if (sqlite3_prepare_v2(reading->database, rows_that_count, -1, &reader.records, NULL) !=
            SQLITE_OK ||
        sqlite3_prepare_v2(reading->database, rows_of_members, -1, &reader.members, NULL) !=
            SQLITE_OK)
        status = fail_to_read(&reader, err);
    while (status == DPT_OK && (code = sqlite3_step(reader.records)) == SQLITE_ROW)
        status = read_row(&reader, err);
    if (status == DPT_OK && code != SQLITE_DONE)
        status = fail_to_read(&reader, err);
    (void)sqlite3_finalize(reader.records);
    (void)sqlite3_finalize(reader.members);
    clear_members(&reader);
    free(reader.list);
    return status;
}
