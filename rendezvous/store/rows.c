/* Records as rows. A number of 64 bits without a sign is stored with the same bits. */
#include "rendezvous/store/internal.h"

#include <stdlib.h>
#include <string.h>

static const char add_run[] =
    "INSERT INTO run(name, user, config, spec, fingerprint, data_digest, folder)"
    " VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7)";
static const char add_record[] =
    "INSERT INTO record(at_ms, run, kind, generation, step, number, amount, flags, text, cause,"
    " detect_ms, step_ms, node, host, incarnation, secret, digest, key)"
    " VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18)";
static const char add_member[] =
    "INSERT INTO member(record, position, node, incarnation, first_rank, ranks, rack)"
    " VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7)";
static const char add_health[] =
    "INSERT INTO health(record, check_us, memory_bytes, cores, mflops, round_trip_us)"
    " VALUES(?1, ?2, ?3, ?4, ?5, ?6)";
static const char end_run[] = "UPDATE run SET over = 1 WHERE id = ?1";

/* Of runs that are over, FORGET has all that counts. Columns are those of `enum column`. */
static const char read_records[] =
    "SELECT record.seq, record.at_ms, record.run, kind, generation, step, number, amount, flags,"
    " text, cause, detect_ms, step_ms, node, host, incarnation, secret, digest, key, run.name,"
    " spec, fingerprint, data_digest, folder, health.record, check_us, memory_bytes, cores, mflops,"
    " round_trip_us"
    " FROM record LEFT JOIN run ON run.id = record.run"
    " LEFT JOIN health ON health.record = record.seq"
    " WHERE record.run = 0 OR kind = 'forget' OR over = 0 ORDER BY record.seq";
static const char read_members[] = "SELECT node, incarnation, first_rank, ranks FROM member"
                                   " WHERE record = ?1 ORDER BY position";

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
    NAME,
    SPEC,
    FINGERPRINT,
    DATA_DIGEST,
    FOLDER,
    CHECKED, /* NULL: there was no check, and the columns below are NULL */
    CHECK_US,
    MEMORY_BYTES,
    CORES,
    MFLOPS,
    ROUND_TRIP_US
};

/* ---- writing ---- */

enum dpt_status rows_prepare(struct rows *rows, sqlite3 *database, const char *path,
                             struct dpt_err *err)
{
    const struct {
        const char *sql;
        sqlite3_stmt **statement;
    } list[] = {{add_run, &rows->add_run},
                {add_record, &rows->add_record},
                {add_member, &rows->add_member},
                {add_health, &rows->add_health},
                {end_run, &rows->end_run}};
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++)
        if (sqlite3_prepare_v3(database, list[i].sql, -1, SQLITE_PREPARE_PERSISTENT,
                               list[i].statement, NULL) != SQLITE_OK)
            return store_fail(database, path, "read the journal", err);
    return DPT_OK;
}

void rows_fini(struct rows *rows)
{
    (void)sqlite3_finalize(rows->add_run);
    (void)sqlite3_finalize(rows->add_record);
    (void)sqlite3_finalize(rows->add_member);
    (void)sqlite3_finalize(rows->add_health);
    (void)sqlite3_finalize(rows->end_run);
    *rows = (struct rows){0};
}

/* A bind fails for want of memory only; the step of a statement that is not bound fails, too. */
static void bind_text(sqlite3_stmt *statement, int at, const char *text)
{
    (void)sqlite3_bind_text(statement, at, text != NULL ? text : "", -1, SQLITE_TRANSIENT);
}

static void bind_number(sqlite3_stmt *statement, int at, int64_t number)
{
    (void)sqlite3_bind_int64(statement, at, number);
}

/* A proof of identity. All zero, which is none: NULL. */
static void bind_proof(sqlite3_stmt *statement, int at, const uint8_t *proof, size_t bytes)
{
    bool is_none = true;
    for (size_t i = 0; i < bytes; i++)
        is_none = is_none && proof[i] == 0;
    if (!is_none)
        (void)sqlite3_bind_blob(statement, at, proof, (int)bytes, SQLITE_TRANSIENT);
}

/* Carries the bound statement out and resets it. */
static int run_statement(sqlite3_stmt *statement)
{
    const int code = sqlite3_step(statement);
    (void)sqlite3_reset(statement);
    (void)sqlite3_clear_bindings(statement);
    return code == SQLITE_DONE ? SQLITE_OK : code;
}

static int insert_run(const struct rows *rows, sqlite3 *database,
                      const struct dpt_rdzv_record *record, int64_t *ret_id)
{
    const size_t bytes = dpt__run_spec__get_packed_size(record->spec);
    uint8_t *spec = malloc(bytes + 1);
    if (spec == NULL)
        return SQLITE_NOMEM;
    (void)dpt__run_spec__pack(record->spec, spec);
    bind_text(rows->add_run, 1, record->run);
    bind_text(rows->add_run, 2, record->spec->user);
    bind_text(rows->add_run, 3, record->spec->config_yaml);
    (void)sqlite3_bind_blob(rows->add_run, 4, spec, (int)bytes, SQLITE_TRANSIENT);
    bind_text(rows->add_run, 5, record->fingerprint);
    bind_text(rows->add_run, 6, record->data_digest);
    bind_text(rows->add_run, 7, record->folder);
    const int code = run_statement(rows->add_run);
    free(spec);
    if (code == SQLITE_OK)
        *ret_id = sqlite3_last_insert_rowid(database);
    return code;
}

static int insert_members(const struct rows *rows, const struct dpt_rdzv_record *record,
                          int64_t seq)
{
    int code = SQLITE_OK;
    for (size_t i = 0; i < record->n_members && code == SQLITE_OK; i++) {
        bind_number(rows->add_member, 1, seq);
        bind_number(rows->add_member, 2, (int64_t)i);
        bind_text(rows->add_member, 3, record->members[i].node);
        bind_number(rows->add_member, 4, (int64_t)record->members[i].incarnation);
        bind_number(rows->add_member, 5, record->members[i].first_rank);
        bind_number(rows->add_member, 6, record->members[i].n_ranks);
        bind_text(rows->add_member, 7, record->members[i].rack);
        code = run_statement(rows->add_member);
    }
    return code;
}

static int insert_health(const struct rows *rows, const struct dpt_health *health, int64_t seq)
{
    if (!health->checked)
        return SQLITE_OK;
    bind_number(rows->add_health, 1, seq);
    bind_number(rows->add_health, 2, health->check_us);
    bind_number(rows->add_health, 3, health->memory_bytes);
    bind_number(rows->add_health, 4, health->cores);
    bind_number(rows->add_health, 5, health->mflops);
    bind_number(rows->add_health, 6, health->round_trip_us);
    return run_statement(rows->add_health);
}

static int insert_record(const struct rows *rows, const struct dpt_rdzv_record *record,
                         int64_t wall_ms, int64_t run_id)
{
    sqlite3_stmt *to = rows->add_record;
    bind_number(to, 1, wall_ms);
    bind_number(to, 2, run_id);
    bind_text(to, 3, store_kind_name(record->kind));
    bind_number(to, 4, (int64_t)record->generation);
    bind_number(to, 5, record->step);
    bind_number(to, 6, (int64_t)record->number);
    bind_number(to, 7, record->count);
    bind_number(to, 8, record->flags);
    bind_text(to, 9, record->text);
    bind_text(to, 10, record->cause);
    bind_number(to, 11, record->detect_ms);
    bind_number(to, 12, record->step_ms);
    bind_text(to, 13, record->node);
    bind_text(to, 14, record->host);
    bind_number(to, 15, (int64_t)record->incarnation);
    bind_proof(to, 16, record->secret, sizeof record->secret);
    bind_text(to, 17, record->digest);
    bind_proof(to, 18, record->key, sizeof record->key);
    return run_statement(to);
}

int rows_add(const struct rows *rows, sqlite3 *database, const struct dpt_rdzv_record *record,
             int64_t wall_ms, int64_t *run_id)
{
    int code = SQLITE_OK;
    if (record->kind == DPT_RDZV_RECORD_RUN)
        code = insert_run(rows, database, record, run_id);
    if (code == SQLITE_OK)
        code = insert_record(rows, record, wall_ms, *run_id);
    const int64_t seq = sqlite3_last_insert_rowid(database);
    if (code == SQLITE_OK)
        code = insert_members(rows, record, seq);
    if (code == SQLITE_OK)
        code = insert_health(rows, &record->health, seq);
    if (code == SQLITE_OK && record->kind == DPT_RDZV_RECORD_FORGET) {
        bind_number(rows->end_run, 1, *run_id);
        code = run_statement(rows->end_run);
    }
    return code;
}

/* ---- reading ---- */

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
    sqlite3 *database;
    const char *path;
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
            return dpt_fail_nomem(err, "members of a plan in '%s'", reader->path);
        reader->list = bigger;
        reader->max = max;
    }
    char *node = strdup(text_at(reader->members, 0));
    if (node == NULL)
        return dpt_fail_nomem(err, "members of a plan in '%s'", reader->path);
    reader->list[reader->n++] =
        (struct dpt_rdzv_member){.node = node,
                                 .rack = "",
                                 .incarnation = number_at(reader->members, 1),
                                 .first_rank = (uint32_t)number_at(reader->members, 2),
                                 .n_ranks = (uint32_t)number_at(reader->members, 3)};
    return DPT_OK;
}

static enum dpt_status read_plan(struct reader *reader, int64_t seq, struct dpt_err *err)
{
    int code;
    enum dpt_status status = DPT_OK;
    bind_number(reader->members, 1, seq);
    while ((code = sqlite3_step(reader->members)) == SQLITE_ROW && status == DPT_OK)
        status = add_to_members(reader, err);
    if (status == DPT_OK && code != SQLITE_DONE)
        status = store_fail(reader->database, reader->path, "read the journal", err);
    (void)sqlite3_reset(reader->members);
    return status;
}

static enum dpt_status fail_row(const struct reader *reader, const char *why, struct dpt_err *err)
{
    return dpt_fail(err, DPT_ECORRUPT,
                    "the journal '%s' is damaged (record %lld: %s): it was left as it is; move it "
                    "away or name another --state-dir (nodes that train come back with their "
                    "state), or put a copy back",
                    reader->path, (long long)sqlite3_column_int64(reader->records, SEQ), why);
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

static enum dpt_status read_row(struct reader *reader, rows_take *take, void *ctx,
                                struct dpt_err *err)
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
    enum dpt_status status = DPT_OK;
    clear_members(reader);
    if (record.kind == DPT_RDZV_RECORD_PLAN || record.kind == DPT_RDZV_RECORD_ADOPTED)
        status = read_plan(reader, sqlite3_column_int64(row, SEQ), err);
    record.members = reader->list;
    record.n_members = reader->n;
    struct dpt_err why;
    if (status == DPT_OK) {
        status = take(ctx, &record, sqlite3_column_int64(row, RUN), &why);
        if (status == DPT_ECORRUPT)
            (void)fail_row(reader, why.text, err);
        else if (status != DPT_OK)
            (void)dpt_pass(err, &why);
    }
    if (spec != NULL)
        dpt__run_spec__free_unpacked(spec, NULL);
    return status;
}

enum dpt_status rows_read(sqlite3 *database, const char *path, rows_take *take, void *ctx,
                          struct dpt_err *err)
{
    struct reader reader = {.database = database, .path = path};
    enum dpt_status status = DPT_OK;
    int code = SQLITE_ROW;
    if (sqlite3_prepare_v2(database, read_records, -1, &reader.records, NULL) != SQLITE_OK ||
        sqlite3_prepare_v2(database, read_members, -1, &reader.members, NULL) != SQLITE_OK)
        status = store_fail(database, path, "read the journal", err);
    while (status == DPT_OK && (code = sqlite3_step(reader.records)) == SQLITE_ROW)
        status = read_row(&reader, take, ctx, err);
    if (status == DPT_OK && code != SQLITE_DONE)
        status = store_fail(database, path, "read the journal", err);
    (void)sqlite3_finalize(reader.records);
    (void)sqlite3_finalize(reader.members);
    clear_members(&reader);
    free(reader.list);
    return status;
}
