/* A record becomes rows. A number of 64 bits without a sign is stored with the same bits. */
#include "rendezvous/store/internal.h"

#include <stdlib.h>

static const char add_run[] =
    "INSERT INTO run(name, user, config, spec, fingerprint, data_digest, folder, over)"
    " VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, 0)";
static const char add_record[] =
    "INSERT INTO record(seq, at_ms, run, kind, generation, step, number, amount, flags, text,"
    " cause, detect_ms, step_ms, node, host, incarnation, secret, digest, key, members, sum)"
    " VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19,"
    " ?20, ?21)";
static const char add_member[] =
    "INSERT INTO member(record, position, node, incarnation, first_rank, ranks, rack)"
    " VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7)";
static const char add_health[] =
    "INSERT INTO health(record, check_us, memory_bytes, cores, mflops, round_trip_us)"
    " VALUES(?1, ?2, ?3, ?4, ?5, ?6)";
static const char end_run[] = "UPDATE run SET over = 1 WHERE id = ?1";
static const char set_newest[] = "INSERT OR REPLACE INTO newest(run, record) VALUES(?1, ?2)";
static const char end_chain[] = "DELETE FROM newest WHERE run = ?1";

enum dpt_status rows_prepare(struct rows *rows, sqlite3 *database, const char *path,
                             struct dpt_err *err)
{
    const struct {
        const char *sql;
        sqlite3_stmt **statement;
    } list[] = {{add_run, &rows->add_run},       {add_record, &rows->add_record},
                {add_member, &rows->add_member}, {add_health, &rows->add_health},
                {end_run, &rows->end_run},       {set_newest, &rows->set_newest},
                {end_chain, &rows->end_chain}};
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
    (void)sqlite3_finalize(rows->set_newest);
    (void)sqlite3_finalize(rows->end_chain);
    *rows = (struct rows){0};
}

/* Values of one statement in order, and their checksum. */
struct put {
    sqlite3_stmt *to;
    struct dpt_hash128 *sum;
    int at;   /* values so far */
    int code; /* SQLite's, of the first bind that failed */
};

/* A bind fails for want of memory only. The step would not see it: a value that is not bound is
 * NULL, which some columns may be, and the checksum would be that of another row. */
static void note_bind(struct put *put, int code)
{
    if (put->code == SQLITE_OK)
        put->code = code;
}

static void put_text(struct put *put, const char *text)
{
    const char *value = text != NULL ? text : "";
    note_bind(put, sqlite3_bind_text(put->to, ++put->at, value, -1, SQLITE_TRANSIENT));
    store_sum_text(put->sum, value);
}

/* A number without a part in the checksum. */
static void put_key(struct put *put, int64_t number)
{
    note_bind(put, sqlite3_bind_int64(put->to, ++put->at, number));
}

static void put_number(struct put *put, int64_t number)
{
    put_key(put, number);
    store_sum_number(put->sum, number);
}

/* A blob without a part in the checksum. NULL: NULL. */
static void put_bytes(struct put *put, const void *data, size_t bytes)
{
    put->at++;
    if (data != NULL)
        note_bind(put, sqlite3_bind_blob(put->to, put->at, data, (int)bytes, SQLITE_TRANSIENT));
}

static void put_blob(struct put *put, const void *data, size_t bytes)
{
    put_bytes(put, data, bytes);
    store_sum_blob(put->sum, data, bytes);
}

/* A proof of identity. All zero, which is none: NULL. */
static void put_proof(struct put *put, const uint8_t *proof, size_t bytes)
{
    bool is_none = true;
    for (size_t i = 0; i < bytes; i++)
        is_none = is_none && proof[i] == 0;
    put_blob(put, is_none ? NULL : proof, is_none ? 0 : bytes);
}

/* Carries the statement out if its values are bound, and resets it. */
static int run_statement(const struct put *put)
{
    const int code = put->code != SQLITE_OK ? put->code : sqlite3_step(put->to);
    (void)sqlite3_reset(put->to);
    (void)sqlite3_clear_bindings(put->to);
    return code == SQLITE_DONE ? SQLITE_OK : code;
}

static int insert_run(const struct rows *rows, const struct dpt_rdzv_record *record,
                      struct dpt_hash128 *sum)
{
    const size_t bytes = dpt__run_spec__get_packed_size(record->spec);
    uint8_t *spec = malloc(bytes + 1);
    if (spec == NULL)
        return SQLITE_NOMEM;
    (void)dpt__run_spec__pack(record->spec, spec);
    struct put put = {.to = rows->add_run, .sum = sum};
    put_text(&put, record->run);
    put_text(&put, record->spec->user);
    put_text(&put, record->spec->config_yaml);
    put_blob(&put, spec, bytes);
    put_text(&put, record->fingerprint);
    put_text(&put, record->data_digest);
    put_text(&put, record->folder);
    free(spec);
    return run_statement(&put);
}

static int insert_members(const struct rows *rows, const struct addition *addition,
                          struct dpt_hash128 *sum)
{
    const struct dpt_rdzv_record *record = addition->record;
    int code = SQLITE_OK;
    for (size_t i = 0; i < record->n_members && code == SQLITE_OK; i++) {
        struct put put = {.to = rows->add_member, .sum = sum};
        put_key(&put, addition->seq);
        put_number(&put, (int64_t)i);
        put_text(&put, record->members[i].node);
        put_number(&put, (int64_t)record->members[i].incarnation);
        put_number(&put, record->members[i].first_rank);
        put_number(&put, record->members[i].n_ranks);
        put_text(&put, record->members[i].rack);
        code = run_statement(&put);
    }
    return code;
}

static int insert_health(const struct rows *rows, const struct addition *addition,
                         struct dpt_hash128 *sum)
{
    const struct dpt_health *health = &addition->record->health;
    if (!health->checked)
        return SQLITE_OK;
    struct put put = {.to = rows->add_health, .sum = sum};
    put_key(&put, addition->seq);
    put_number(&put, health->check_us);
    put_number(&put, health->memory_bytes);
    put_number(&put, health->cores);
    put_number(&put, health->mflops);
    put_number(&put, health->round_trip_us);
    return run_statement(&put);
}

/* *sum: of all before; it becomes that of the record. `members` NULL: there are none. */
static int insert_record(const struct rows *rows, const struct addition *addition,
                         const uint8_t *members, struct dpt_hash128 *sum)
{
    const struct dpt_rdzv_record *record = addition->record;
    struct put put = {.to = rows->add_record, .sum = sum};
    put_number(&put, addition->seq);
    put_number(&put, addition->wall_ms);
    put_number(&put, addition->run_id);
    put_text(&put, store_kind_name(record->kind));
    put_number(&put, (int64_t)record->generation);
    put_number(&put, record->step);
    put_number(&put, (int64_t)record->number);
    put_number(&put, record->count);
    put_number(&put, record->flags);
    put_text(&put, record->text);
    put_text(&put, record->cause);
    put_number(&put, record->detect_ms);
    put_number(&put, record->step_ms);
    put_text(&put, record->node);
    put_text(&put, record->host);
    put_number(&put, (int64_t)record->incarnation);
    put_proof(&put, record->secret, sizeof record->secret);
    put_text(&put, record->digest);
    put_proof(&put, record->key, sizeof record->key);
    put_blob(&put, members, members != NULL ? STORE_SUM_BYTES : 0);
    uint8_t packed[STORE_SUM_BYTES];
    store_sum_pack(*sum, packed);
    put_bytes(&put, packed, sizeof packed);
    return run_statement(&put);
}

static int insert_parts(const struct rows *rows, sqlite3 *database, struct addition *addition,
                        struct dpt_hash128 *sum)
{
    const struct dpt_rdzv_record *record = addition->record;
    struct dpt_hash128 members = {0};
    uint8_t packed[STORE_SUM_BYTES];
    int code = SQLITE_OK;
    if (record->kind == DPT_RDZV_RECORD_RUN) {
        code = insert_run(rows, record, sum);
        addition->run_id = sqlite3_last_insert_rowid(database);
    }
    if (code == SQLITE_OK)
        code = insert_members(rows, addition, &members);
    if (code == SQLITE_OK)
        code = insert_health(rows, addition, sum);
    store_sum_pack(members, packed);
    if (code == SQLITE_OK)
        code = insert_record(rows, addition, record->n_members > 0 ? packed : NULL, sum);
    return code;
}

/* Runs a statement with one or two numbers. */
static int run_with(sqlite3_stmt *statement, int64_t first, int64_t second)
{
    struct put put = {.to = statement};
    put_key(&put, first);
    if (sqlite3_bind_parameter_count(statement) > 1)
        put_key(&put, second);
    return run_statement(&put);
}

int rows_add(const struct rows *rows, sqlite3 *database, struct addition *addition,
             struct chains *chains)
{
    const enum dpt_rdzv_record_kind kind = addition->record->kind;
    const struct chain *before =
        kind == DPT_RDZV_RECORD_RUN ? NULL : store_chain_for(chains, kind, addition->run_id);
    struct dpt_hash128 sum = before != NULL ? before->sum : (struct dpt_hash128){0};
    int code = insert_parts(rows, database, addition, &sum);
    if (code != SQLITE_OK)
        return code;
    struct chain *chain = store_chain_for(chains, kind, addition->run_id);
    if (chain == NULL)
        return SQLITE_NOMEM;
    chain->newest = addition->seq;
    chain->sum = sum;
    code = run_with(rows->set_newest, chain->run, chain->newest);
    if (kind == DPT_RDZV_RECORD_FORGET && addition->run_id != 0) {
        store_chain_end(chains, addition->run_id);
        if (code == SQLITE_OK)
            code = run_with(rows->end_run, addition->run_id, 0);
        if (code == SQLITE_OK)
            code = run_with(rows->end_chain, addition->run_id, 0);
    }
    return code;
}
