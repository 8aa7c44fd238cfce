/* Prints the views of a journal (schema.c). */
#include "rendezvous/store/history.h"

#include "base/fs.h"
#include "rendezvous/store/internal.h"

#include <string.h>

/* A run that all nodes have left ends with the last of them. */
#define ENDED                                                                                      \
    "coalesce(ended, CASE state WHEN 'left' THEN"                                                  \
    " (SELECT max(at) FROM timed WHERE timed.run = r.run_id AND kind = 'removed') END)"

static const char runs_sql[] =
    "SELECT run_id, run, user, state, began, " ENDED ", generation, nullif(step, -1),"
    " nullif(saved_step, -1), restarts_used, error FROM runs r"
    " WHERE ?1 IS NULL OR run = ?1 ORDER BY run_id";

static const char generations_sql[] =
    "SELECT began, generation, world, nodes, resume_step, last_step, steps_lost, detect_ms,"
    " report_ms, rebuild_ms, steps_per_s, text, ran FROM generations WHERE run_id = ?1"
    " ORDER BY began, generation";

/* Of the newest plan, if a member of it has a rack. */
static const char racks_sql[] =
    "SELECT coalesce(rack, '-'), count(*), group_concat(node, ', ') FROM (SELECT rack, node,"
    " max(rack) OVER () AS some FROM members WHERE record ="
    " (SELECT max(record) FROM members WHERE run_id = ?1) ORDER BY first_rank)"
    " WHERE some IS NOT NULL GROUP BY rack ORDER BY rack IS NULL, rack";

/* The text of a loss does not name the node. A node that a restarted server has not heard has no
 * host. */
static const char failures_sql[] =
    "SELECT at, what, CASE WHEN what != 'node lost' THEN text WHEN host = '' THEN node || ': ' ||"
    " text ELSE node || ' (host ' || host || '): ' || text END FROM failures WHERE run_id = ?1"
    " ORDER BY at";

static const char checkpoints_sql[] =
    "SELECT reported, step, generation FROM checkpoints WHERE run_id = ?1 ORDER BY step";

static const char unhealthy_sql[] =
    "SELECT at, node, host, run, fault FROM unhealthy WHERE ?1 IS NULL OR run = ?1 ORDER BY at";

static const char json_sql[] =
    "SELECT json_object('version', 1, 'runs', json_group_array(json(one)),"
    " 'unhealthy', json((SELECT json_group_array(json_object('at', at, 'run', run, 'node', node,"
    "  'host', host, 'incarnation', incarnation, 'key', key, 'fault', fault))"
    "  FROM (SELECT * FROM unhealthy WHERE ?1 IS NULL OR run = ?1 ORDER BY at)))) FROM ("
    "SELECT json_object('run', run, 'user', user, 'definer', definer, 'state', state,"
    " 'began', began, 'ended', " ENDED ", 'generation', generation, 'step', step, 'saved_step', "
    "saved_step,"
    " 'restarts_used', restarts_used, 'error', error,"
    " 'generations', json((SELECT json_group_array(json_object('generation', generation,"
    "  'began', began, 'cause', cause, 'text', text, 'world', world, 'nodes', nodes,"
    "  'resume_step', resume_step, 'last_step', last_step, 'steps_lost', steps_lost,"
    "  'detect_ms', detect_ms, 'report_ms', report_ms, 'rebuild_ms', rebuild_ms, 'ran', ran,"
    "  'step_ms', step_ms, 'steps_per_s', steps_per_s,"
    "  'members', json((SELECT json_group_array(json_object('node', node, 'incarnation',"
    "   incarnation, 'first_rank', first_rank, 'ranks', ranks, 'rack', rack)) FROM members m"
    "   WHERE m.record = g.record))))"
    "  FROM (SELECT * FROM generations WHERE run_id = r.run_id ORDER BY began, generation) g)),"
    " 'failures', json((SELECT json_group_array(json_object('at', at, 'what', what, 'node', node,"
    "  'host', host, 'step', step, 'text', text))"
    "  FROM (SELECT * FROM failures WHERE run_id = r.run_id ORDER BY at))),"
    " 'checkpoints', json((SELECT json_group_array(json_object('step', step, 'reported', reported,"
    "  'granted', granted, 'generation', generation))"
    "  FROM (SELECT * FROM checkpoints WHERE run_id = r.run_id ORDER BY step))),"
    " 'nodes', json((SELECT json_group_array(json_object('node', node, 'host', host,"
    "  'incarnation', incarnation, 'key', key, 'joined', joined, 'removed', removed, 'why', why,"
    "  'health', json(CASE WHEN check_us IS NOT NULL THEN json_object('check_us', check_us,"
    "   'memory_bytes', memory_bytes, 'cores', cores, 'mflops', mflops,"
    "   'round_trip_us', round_trip_us) END)))"
    "  FROM (SELECT * FROM nodes WHERE run_id = r.run_id ORDER BY joined)))) AS one"
    " FROM runs r WHERE ?1 IS NULL OR run = ?1 ORDER BY run_id)";

struct history {
    sqlite3 *database;
    const char *path;
    FILE *out;
};

static const char *text_at(sqlite3_stmt *row, int column)
{
    const char *text = (const char *)sqlite3_column_text(row, column);
    return text != NULL ? text : "-";
}

static enum dpt_status fail_to_read(const struct history *history, struct dpt_err *err)
{
    return store_fail(history->database, history->path, "read the journal", err);
}

/* Calls `print` for each row of `sql` with ?1 = run_id. The title goes before the first row. */
static enum dpt_status print_rows(const struct history *history, const char *sql, int64_t run_id,
                                  const char *title, void (*print)(FILE *out, sqlite3_stmt *row),
                                  struct dpt_err *err)
{
    sqlite3_stmt *rows = NULL;
    int code = SQLITE_ERROR;
    if (sqlite3_prepare_v2(history->database, sql, -1, &rows, NULL) == SQLITE_OK &&
        sqlite3_bind_int64(rows, 1, run_id) == SQLITE_OK) {
        for (bool first = true; (code = sqlite3_step(rows)) == SQLITE_ROW; first = false) {
            if (first)
                (void)fputs(title, history->out);
            print(history->out, rows);
        }
    }
    const enum dpt_status status = code == SQLITE_DONE ? DPT_OK : fail_to_read(history, err);
    (void)sqlite3_finalize(rows);
    return status;
}

static void print_generation(FILE *out, sqlite3_stmt *row)
{
    (void)fprintf(out, "  %-24s %5s %5s %5s %8s %8s %5s %7s %7s %7s %8s  %s%s\n", text_at(row, 0),
                  text_at(row, 1), text_at(row, 2), text_at(row, 3), text_at(row, 4),
                  text_at(row, 5), text_at(row, 6), text_at(row, 7), text_at(row, 8),
                  text_at(row, 9), text_at(row, 10), text_at(row, 11),
                  sqlite3_column_int(row, 12) != 0 ? "" : " (it never ran)");
}

static void print_rack(FILE *out, sqlite3_stmt *row)
{
    (void)fprintf(out, "  %-24s %5s  %s\n", text_at(row, 0), text_at(row, 1), text_at(row, 2));
}

static void print_failure(FILE *out, sqlite3_stmt *row)
{
    (void)fprintf(out, "  %-24s %-12s %s\n", text_at(row, 0), text_at(row, 1), text_at(row, 2));
}

static void print_checkpoint(FILE *out, sqlite3_stmt *row)
{
    (void)fprintf(out, "  %-24s step %s, generation %s\n", text_at(row, 0), text_at(row, 1),
                  text_at(row, 2));
}

static enum dpt_status print_run(const struct history *history, sqlite3_stmt *run,
                                 struct dpt_err *err)
{
    const int64_t id = sqlite3_column_int64(run, 0);
    const char *error = text_at(run, 10);
    (void)fprintf(history->out,
                  "run %s of %s: %s, began %s, ended %s, generation %s, step %s, saved step %s, %s "
                  "restarts in use\n%s%s%s",
                  text_at(run, 1), text_at(run, 2), text_at(run, 3), text_at(run, 4),
                  text_at(run, 5), text_at(run, 6), text_at(run, 7), text_at(run, 8),
                  text_at(run, 9), error[0] != '\0' ? "  error: " : "", error,
                  error[0] != '\0' ? "\n" : "");
    DPT_TRY(
        print_rows(history, generations_sql, id,
                   "  generation began         number world nodes     from       to  lost  detect "
                   " report rebuild  steps/s  cause (times in ms)\n",
                   print_generation, err));
    DPT_TRY(print_rows(history, racks_sql, id,
                       "  rack                     nodes  (of the newest plan)\n", print_rack,
                       err));
    DPT_TRY(print_rows(history, failures_sql, id, "  failures\n", print_failure, err));
    return print_rows(history, checkpoints_sql, id, "  checkpoints\n", print_checkpoint, err);
}

/* Nodes that were refused because of their health check. run NULL: of all runs. */
static enum dpt_status print_unhealthy(const struct history *history, const char *run,
                                       struct dpt_err *err)
{
    sqlite3_stmt *rows = NULL;
    int code = SQLITE_ERROR;
    if (sqlite3_prepare_v2(history->database, unhealthy_sql, -1, &rows, NULL) == SQLITE_OK &&
        (run == NULL || sqlite3_bind_text(rows, 1, run, -1, SQLITE_STATIC) == SQLITE_OK)) {
        for (bool first = true; (code = sqlite3_step(rows)) == SQLITE_ROW; first = false)
            (void)fprintf(history->out, "%s  %-24s node %s (host %s) of run %s: %s\n",
                          first ? "nodes refused by their health check\n" : "", text_at(rows, 0),
                          text_at(rows, 1), text_at(rows, 2), text_at(rows, 3), text_at(rows, 4));
    }
    const enum dpt_status status = code == SQLITE_DONE ? DPT_OK : fail_to_read(history, err);
    (void)sqlite3_finalize(rows);
    return status;
}

/* *ret_n: the number of runs. */
static enum dpt_status print_runs(const struct history *history, sqlite3_stmt *runs, size_t *ret_n,
                                  struct dpt_err *err)
{
    int code;
    *ret_n = 0;
    while ((code = sqlite3_step(runs)) == SQLITE_ROW) {
        if ((*ret_n)++ > 0)
            (void)fputc('\n', history->out);
        DPT_TRY(print_run(history, runs, err));
    }
    return code == SQLITE_DONE ? DPT_OK : fail_to_read(history, err);
}

static enum dpt_status print_json(const struct history *history, sqlite3_stmt *all,
                                  struct dpt_err *err)
{
    if (sqlite3_step(all) != SQLITE_ROW)
        return fail_to_read(history, err);
    (void)fprintf(history->out, "%s\n", text_at(all, 0));
    return DPT_OK;
}

static enum dpt_status check_run(const struct history *history, const char *run,
                                 struct dpt_err *err)
{
    sqlite3_stmt *names = NULL;
    bool found = false;
    if (sqlite3_prepare_v2(history->database, "SELECT 1 FROM run WHERE name = ?1 LIMIT 1", -1,
                           &names, NULL) == SQLITE_OK &&
        sqlite3_bind_text(names, 1, run, -1, SQLITE_STATIC) == SQLITE_OK)
        found = sqlite3_step(names) == SQLITE_ROW;
    const bool failed = !found && sqlite3_errcode(history->database) != SQLITE_DONE;
    enum dpt_status status = DPT_OK;
    if (failed)
        status = fail_to_read(history, err);
    else if (!found)
        status =
            dpt_fail(err, DPT_ENOENT,
                     "the journal '%s' knows no run '%s': dpt-rdzv history without --run lists "
                     "its runs",
                     history->path, run);
    (void)sqlite3_finalize(names);
    return status;
}

static enum dpt_status print_history(const struct history *history,
                                     const struct dpt_history_options *options, struct dpt_err *err)
{
    sqlite3_stmt *rows = NULL;
    size_t n = 0;
    enum dpt_status status = DPT_OK;
    if (options->run != NULL)
        DPT_TRY(check_run(history, options->run, err));
    if (sqlite3_prepare_v2(history->database, options->json ? json_sql : runs_sql, -1, &rows,
                           NULL) != SQLITE_OK ||
        (options->run != NULL &&
         sqlite3_bind_text(rows, 1, options->run, -1, SQLITE_STATIC) != SQLITE_OK))
        status = fail_to_read(history, err);
    else
        status =
            options->json ? print_json(history, rows, err) : print_runs(history, rows, &n, err);
    (void)sqlite3_finalize(rows);
    if (status == DPT_OK && !options->json && n == 0)
        (void)fprintf(history->out, "the journal '%s' has no run yet\n", history->path);
    if (status == DPT_OK && !options->json)
        status = print_unhealthy(history, options->run, err);
    return status;
}

enum dpt_status dpt_store_history(const struct dpt_history_options *options, FILE *out,
                                  struct dpt_err *err)
{
    char path[PATH_MAX];
    struct history history = {.path = path, .out = out};
    DPT_TRY(dpt_fs_join(options->dir, "journal.sqlite", path, sizeof path, err));
    if (!dpt_fs_exists(path))
        return dpt_fail(
            err, DPT_ENOENT,
            "there is no journal '%s': give --state-dir as to the server, or its --port", path);
    struct newest newest;
    struct chains chains = {0};
    DPT_TRY(store_newest_read(path, &newest, err)); /* first: a server may be writing */
    const struct opening opening = {
        .path = path, .how = OPEN_TO_READ, .newest = &newest, .chains = &chains};
    enum dpt_status status = store_open_database(&opening, &history.database, err);
    store_chains_fini(&chains);
    if (status == DPT_OK)
        status = print_history(&history, options, err);
    (void)sqlite3_close(history.database);
    return status;
}
