/* Tables and views of the journal. Times are Unix times in ms; the flags are those of
 * dpt_rdzv_record_flag; -1 is no step. Views spell them out for people. */
#include "rendezvous/store/internal.h"

#include <string.h>

/* A key (docs/security.md) is of 32 bytes, NULL without keys.
 *
 * run: one training under one name, until the name is free (`over`). `spec` is the RunSpec of
 * dpt.proto. record: a decision of the server; core.h has the kinds. `run` is run.id; 0: it is
 * about the server. member: a node with a place in the plan of `record`. health: what a node that
 * was admitted or refused by `record` has measured at its start; none: it has made no check.
 *
 * record.sum is the record's checksum (verify.c), record.members that of its members, NULL without
 * members. newest: the last record of each chain: of the server (0), and of each run that is not
 * over. */
static const char tables[] =
    "CREATE TABLE run(id INTEGER PRIMARY KEY, name TEXT NOT NULL, user TEXT NOT NULL,"
    " config TEXT NOT NULL, spec BLOB NOT NULL, fingerprint TEXT NOT NULL,"
    " data_digest TEXT NOT NULL, folder TEXT NOT NULL, over INTEGER NOT NULL);"
    "CREATE TABLE record(seq INTEGER PRIMARY KEY, at_ms INTEGER NOT NULL, run INTEGER NOT NULL,"
    " kind TEXT NOT NULL, generation INTEGER NOT NULL, step INTEGER NOT NULL,"
    " number INTEGER NOT NULL, amount INTEGER NOT NULL, flags INTEGER NOT NULL,"
    " text TEXT NOT NULL, cause TEXT NOT NULL, detect_ms INTEGER NOT NULL,"
    " step_ms INTEGER NOT NULL, node TEXT NOT NULL, host TEXT NOT NULL,"
    " incarnation INTEGER NOT NULL, secret BLOB, digest TEXT NOT NULL, key BLOB, members BLOB,"
    " sum BLOB NOT NULL);"
    "CREATE TABLE newest(run INTEGER PRIMARY KEY, record INTEGER NOT NULL);"
    "CREATE INDEX record_by_run ON record(run, kind, generation);"
    "CREATE TABLE member(record INTEGER NOT NULL, position INTEGER NOT NULL, node TEXT NOT NULL,"
    " incarnation INTEGER NOT NULL, first_rank INTEGER NOT NULL, ranks INTEGER NOT NULL,"
    " rack TEXT NOT NULL, PRIMARY KEY(record, position)) WITHOUT ROWID;"
    "CREATE TABLE health(record INTEGER PRIMARY KEY, check_us INTEGER NOT NULL,"
    " memory_bytes INTEGER NOT NULL, cores INTEGER NOT NULL, mflops INTEGER NOT NULL,"
    " round_trip_us INTEGER NOT NULL);"
    "CREATE VIEW timed AS SELECT *,"
    " strftime('%Y-%m-%dT%H:%M:%fZ', at_ms / 1000.0, 'unixepoch') AS at FROM record;";

/* failures: a node that is removed after the end of its run is no loss. */
static const char views_of_runs[] =
    "CREATE VIEW runs AS SELECT run.id AS run_id, run.name AS run, run.user AS user,"
    " lower(hex(b.key)) AS definer, b.at AS began,"
    " e.at AS ended, CASE WHEN e.text = '' THEN 'done' WHEN e.seq IS NOT NULL THEN 'failed'"
    "  WHEN run.over THEN 'left' ELSE 'open' END AS state, coalesce(e.text, '') AS error,"
    " (SELECT max(generation) FROM record WHERE record.run = run.id) AS generation,"
    " coalesce((SELECT max(step) FROM record WHERE record.run = run.id"
    "  AND kind IN ('generation', 'end', 'saved', 'plan')), -1) AS step,"
    " coalesce((SELECT max(step) FROM record WHERE record.run = run.id AND kind = 'saved'), -1)"
    "  AS saved_step,"
    " coalesce((SELECT amount FROM record WHERE record.run = run.id"
    "  AND kind IN ('crash', 'refill') ORDER BY seq DESC LIMIT 1), 0) AS restarts_used"
    " FROM run JOIN timed b ON b.run = run.id AND b.kind = 'run'"
    " LEFT JOIN timed e ON e.run = run.id AND e.kind = 'end';"
    "CREATE VIEW failures AS SELECT f.run AS run_id, run.name AS run, f.at AS at,"
    " CASE f.kind WHEN 'removed' THEN 'node lost' WHEN 'crash' THEN 'restart used'"
    "  ELSE 'run failed' END AS what,"
    " f.node AS node, f.host AS host, f.step AS step, f.text AS text"
    " FROM timed f JOIN run ON run.id = f.run"
    " WHERE (f.kind = 'removed' AND (f.flags & 4) = 0 AND NOT EXISTS (SELECT 1 FROM record e"
    "   WHERE e.run = f.run AND e.kind = 'end' AND e.seq < f.seq))"
    "  OR f.kind = 'crash'"
    "  OR (f.kind = 'end' AND f.text != '');"
    "CREATE VIEW checkpoints AS SELECT s.run AS run_id, run.name AS run, s.step AS step,"
    " s.at AS reported, s.generation AS generation,"
    " (SELECT max(x.at) FROM timed x WHERE x.run = s.run AND x.kind = 'grant'"
    "  AND x.step = s.step AND x.seq < s.seq) AS granted"
    " FROM timed s JOIN run ON run.id = s.run WHERE s.kind = 'saved';"
    "CREATE VIEW nodes AS SELECT j.run AS run_id, run.name AS run, j.node AS node, j.host AS host,"
    " j.incarnation AS incarnation, lower(hex(j.key)) AS key, j.at AS joined, r.at AS removed,"
    " coalesce(r.text, '') AS why, h.check_us AS check_us, h.memory_bytes AS memory_bytes,"
    " h.cores AS cores, h.mflops AS mflops, h.round_trip_us AS round_trip_us"
    " FROM timed j JOIN run ON run.id = j.run LEFT JOIN health h ON h.record = j.seq"
    " LEFT JOIN timed r ON r.seq = (SELECT min(x.seq) FROM record x WHERE x.run = j.run"
    "  AND x.kind = 'removed' AND x.node = j.node AND x.incarnation = j.incarnation"
    "  AND x.seq > j.seq)"
    " WHERE j.kind = 'joined';"
    "CREATE VIEW unhealthy AS SELECT at, cause AS run, node, host, incarnation,"
    " lower(hex(key)) AS key, text AS fault FROM timed WHERE kind = 'unhealthy';";

/* g: PREPARE of a generation, or its adoption by a later server. p: its plan. r: all ranks are
 * READY. n: the next of the run, with the newest step of this one, and the time of a step; those of
 * an earlier one if this one never ran. */
static const char views_of_generations[] =
    "CREATE VIEW generations AS SELECT g.run AS run_id, run.name AS run,"
    " g.generation AS generation, coalesce(p.seq, g.seq) AS record, g.at AS began,"
    " CASE WHEN g.kind = 'adopted' THEN 'server_restart' ELSE coalesce(p.cause, g.cause) END"
    "  AS cause,"
    " CASE WHEN g.kind = 'adopted' THEN 'the server was restarted, and the generation went on'"
    "  ELSE coalesce(p.text, g.text) END AS text,"
    " (g.flags & 16) != 0 AS soft, g.detect_ms AS detect_ms,"
    " p.at_ms - g.at_ms AS report_ms, r.at_ms - p.at_ms AS rebuild_ms,"
    " coalesce(p.amount, CASE WHEN g.kind = 'adopted' THEN g.amount END) AS world,"
    " (SELECT count(*) FROM member WHERE member.record = coalesce(p.seq, g.seq)) AS nodes,"
    " p.step AS resume_step, max(0, p.number - p.step) AS steps_lost,"
    " r.seq IS NOT NULL OR g.kind = 'adopted' AS ran,"
    " CASE WHEN (r.seq IS NOT NULL OR g.kind = 'adopted') AND n.step >= 0 THEN n.step END"
    "  AS last_step,"
    " CASE WHEN (r.seq IS NOT NULL OR g.kind = 'adopted') AND n.step_ms > 0 THEN n.step_ms END"
    "  AS step_ms,"
    " CASE WHEN (r.seq IS NOT NULL OR g.kind = 'adopted') AND n.step_ms > 0"
    "  THEN round(1000.0 / n.step_ms, 2) END AS steps_per_s"
    " FROM timed g JOIN run ON run.id = g.run"
    " LEFT JOIN record p ON g.kind = 'generation' AND p.run = g.run AND p.kind = 'plan'"
    "  AND p.generation = g.generation"
    " LEFT JOIN record r ON g.kind = 'generation' AND r.run = g.run AND r.kind = 'runs'"
    "  AND r.generation = g.generation"
    " LEFT JOIN record n ON n.seq = (SELECT min(x.seq) FROM record x WHERE x.run = g.run"
    "  AND x.seq > g.seq AND x.kind IN ('generation', 'adopted', 'end'))"
    " WHERE g.kind IN ('generation', 'adopted');"
    "CREATE VIEW recoveries AS SELECT * FROM generations WHERE ran AND cause IN"
    " ('rank_lost', 'node_lost', 'comm_error', 'stalled', 'server_restart');"
    "CREATE VIEW members AS SELECT p.run AS run_id, run.name AS run, p.generation AS generation,"
    " m.record AS record, m.node AS node, m.incarnation AS incarnation,"
    " m.first_rank AS first_rank, m.ranks AS ranks, nullif(m.rack, '') AS rack"
    " FROM member m JOIN record p ON p.seq = m.record JOIN run ON run.id = p.run;";

const char *const store_schema[STORE_SCHEMA_PARTS] = {tables, views_of_runs, views_of_generations};

static const char *const kind_names[DPT_RDZV_RECORD_COUNT] = {
    "start",   "run",     "joined", "removed",   "generation", "plan",  "runs",
    "adopted", "grant",   "saved",  "crash",     "refill",     "error", "end",
    "paused",  "stopped", "denied", "unhealthy", "forget"};

const char *store_kind_name(enum dpt_rdzv_record_kind kind)
{
    DPT_ASSERT((unsigned)kind < DPT_RDZV_RECORD_COUNT && kind_names[kind] != NULL);
    return kind_names[kind];
}

bool store_kind_of(const char *name, enum dpt_rdzv_record_kind *ret)
{
    for (int kind = 0; kind < DPT_RDZV_RECORD_COUNT; kind++)
        if (strcmp(name, kind_names[kind]) == 0) {
            *ret = (enum dpt_rdzv_record_kind)kind;
            return true;
        }
    return false;
}
