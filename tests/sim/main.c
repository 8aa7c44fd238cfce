/* dpt_sim [--seed N] [--seeds FIRST COUNT] [--big | --nodes N] [--net] [--ctl]
 *         [--journal | --no-journal] [--each-record] [--crash-at RECORD [--lost]] [--verbose]
 * Runs seeds; the exit code is the verdict, a failing seed is named with the line to replay it.
 * In half of the seeds the server has a journal (--journal: in all).
 * --big: 200 to 300 machines of one rank; --nodes: so many.
 * --ctl: an operator pauses, resumes, stops and saves the run, drains and evicts nodes.
 * --net: also one-way partitions, split networks, slow agents, clocks that differ and jump.
 * --crash-at: the server crashes in the step of this record, after it is durable and before a
 * message leaves (--lost: before it is durable). --each-record: each seed is run once for each of
 * its records, with a crash there. */
#include "tests/every.h"
#include "tests/sim/faults.h"

#include <malloc.h>
#include <stdlib.h>
#include <string.h>

/* A rank that hangs in its last save is given busy_ms (300 s at 5 s). */
enum { SETTLE_MS = 500 * 1000, EACH_RECORD_MAX = 400 };

/* Faults are over: lasting ones (a bad pair, a slow machine) are repaired, too. Returns the time
 * that the steps may take. */
static int64_t mend(struct sim *sim)
{
    struct profile *profile = &sim->profile;
    profile->bad_pair_a = profile->bad_pair_b = -1;
    profile->loss = profile->loss > 20 ? 20 : profile->loss;
    for (int i = 0; i < profile->machines; i++)
        sim->machines[i].slow = 1;
    return profile->steps * (profile->compute_max_ms + 50);
}

/* What the seeds had that the simulation does not count itself. */
struct had {
    uint64_t pauses, drains, evictions, stops;
    uint64_t second_runs, overloads; /* overloads that came due: the server may have been down */
    uint64_t net[FAULT_END - FAULT_OUTAGE]; /* faults of the network and of clocks that came due */
};

static void count_had(const struct sim *sim, struct had *had)
{
    had->second_runs += sim->beside != NULL;
    had->pauses += sim->operator.pauses;
    had->drains += sim->operator.drains;
    had->evictions += sim->operator.evictions;
    had->stops += sim->operator.stops;
    for (const struct sim *each = sim; each != NULL; each = each->beside) {
        for (int i = 0; i < each->profile.n_faults; i++)
            had->overloads += each->faults[i].kind == FAULT_OVERLOAD_SERVER &&
                              each->faults[i].at_ms <= sim->now_ms;
        for (int i = each->profile.n_faults; i < FAULTS_MAX; i++)
            if (each->faults[i].kind >= FAULT_OUTAGE && each->faults[i].at_ms <= sim->now_ms)
                had->net[each->faults[i].kind - FAULT_OUTAGE]++;
    }
}

struct how {
    int nodes; /* 0: drawn */
    bool big, net, ctl, verbose, each_record, crash_before_persist;
    enum { JOURNAL_DRAWN, JOURNAL_ALWAYS, JOURNAL_OLDER, JOURNAL_NEVER } journal;
    uint64_t crash_at_record;
};

static bool draws_journal(uint64_t seed, const struct how *how)
{
    struct rng rng = {seed ^ 0x6a6f75726e616cu}; /* its own: moves no other draw */
    return how->journal == JOURNAL_ALWAYS || how->journal == JOURNAL_OLDER ||
           (how->journal == JOURNAL_DRAWN && rng_chance(&rng, 500));
}

static int draw_racks(uint64_t seed)
{
    struct rng rng = {seed ^ 0x7261636b73u}; /* its own: moves no other draw */
    return (int)rng_range(&rng, 0, 4);
}

static uint32_t draw_server_max_world(uint64_t seed)
{
    struct rng rng = {seed ^ 0x6c696d6974u}; /* likewise */
    return rng_chance(&rng, 300) ? (uint32_t)rng_range(&rng, 1, 4) : 0;
}

static void print_failed(uint64_t seed, const struct how *how, const struct sim *sim)
{
    char crash[64] = "";
    if (how->crash_at_record > 0)
        (void)snprintf(crash, sizeof crash, " --crash-at %llu%s",
                       (unsigned long long)how->crash_at_record,
                       how->crash_before_persist ? " --lost" : "");
    const char *journal = how->journal == JOURNAL_ALWAYS  ? " --journal"
                          : how->journal == JOURNAL_OLDER ? " --older-copies"
                          : how->journal == JOURNAL_NEVER ? " --no-journal"
                                                          : "";
    char size[32] = "";
    if (how->nodes > 0)
        (void)snprintf(size, sizeof size, " --nodes %d", how->nodes);
    else if (how->big)
        (void)snprintf(size, sizeof size, " --big");
    printf("seed %llu%s FAILED %s\n  replay: dpt_sim%s%s%s%s --seed %llu%s --verbose\n",
           (unsigned long long)seed, how->big ? " (big)" : "", sim->failure, journal, crash,
           how->net ? " --net" : "", how->ctl ? " --ctl" : "", (unsigned long long)seed, size);
}

/* *ret_records: the number of records that the servers have made. */
static bool run_seed(uint64_t seed, const struct how *how, struct sim *ret_totals,
                     struct had *ret_had, uint64_t *ret_records)
{
    struct rng rng = {seed};
    struct profile profile, beside;
    const bool big = how->big;
    if (big)
        profile_big(&rng, how->nodes, &profile);
    else
        profile_random(&rng, &profile);
    profile.has_journal = draws_journal(seed, how);
    profile.has_older_copies = how->journal == JOURNAL_OLDER;
    profile.racks = draw_racks(seed);
    profile.server_max_world = draw_server_max_world(seed);
    profile.crash_at_record = how->crash_at_record;
    profile.crash_before_persist = how->crash_before_persist;
    struct rng net = {~seed}; /* its own: moves no other draw */
    profile.n_net_faults = how->net ? (int)rng_range(&net, 1, 6) : 0;
    struct rng commands = {~seed ^ 1}; /* likewise */
    profile.n_commands = how->ctl ? (int)rng_range(&commands, 1, 6) : 0;
    struct sim *sim = sim_create(seed, &profile, how->verbose, NULL);
    if (!big && seed % 4 == 0) {
        profile_beside(&rng, &profile, &beside);
        sim_add(sim, ~seed, &beside);
    }
    const int64_t until_ms = sim->profile.faults_until_ms;
    sim_run(sim, until_ms);
    int64_t steps_ms = 0;
    for (struct sim *each = sim; each != NULL; each = each->beside) {
        const int64_t longest_ms = mend(each);
        steps_ms = longest_ms > steps_ms ? longest_ms : steps_ms;
    }
    int64_t end_ms = until_ms + steps_ms + SETTLE_MS;
    uint64_t crashes = sim->crashes_at_records;
    sim_run(sim, end_ms);
    /* A server that crashed when it gave that rank up gives it the time once more. */
    for (; crashes < sim->crashes_at_records; crashes++)
        sim_run(sim, end_ms += sim_timing(sim).busy_ms);
    for (struct sim *each = sim; each != NULL; each = each->beside)
        check_end(each);
    bool good = sim->failure[0] == '\0';
    if (!good)
        print_failed(seed, how, sim);
    *ret_records = sim->records;
    ret_totals->records += sim->records;
    ret_totals->crashes_at_records += sim->crashes_at_records;
    ret_totals->older_copies += sim->older_copies;
    ret_totals->events += sim->events;
    ret_totals->formations += sim->formations;
    ret_totals->applied += sim->applied;
    ret_totals->healed += sim->healed;
    ret_totals->handed += sim->handed;
    ret_totals->loaded += sim->loaded;
    ret_totals->saved += sim->saved;
    ret_totals->fenced_writes += sim->fenced_writes;
    ret_totals->expulsions += sim->expulsions;
    ret_totals->moved += sim->moved;
    ret_totals->rebuilt += sim->rebuilt;
    ret_totals->dropped += sim->dropped;
    ret_totals->hosted += sim->hosted;
    ret_totals->final_saves += sim->final_saves;
    ret_totals->strangers += sim->strangers;
    ret_totals->outages += sim->outages;
    ret_totals->lines += sim->lines;
    ret_totals->held_lines += sim->held_lines;
    ret_totals->foreign_logs += sim->foreign_logs;
    ret_totals->rescued += sim->rescued;
    ret_totals->unsaved += sim->unsaved;
    count_had(sim, ret_had);
    sim_destroy(&sim);
    return good;
}

static uint64_t run_one(uint64_t seed, const struct how *how, struct sim *totals, struct had *had)
{
    uint64_t records;
    return !run_seed(seed, how, totals, had, &records);
}

/* Runs the seed with a crash at each of its records: the records of the step are durable, or at
 * every third one they are lost. Returns the number of failures. */
static uint64_t run_each_record(uint64_t seed, struct sim *totals, struct had *had)
{
    struct how how = {.journal = JOURNAL_ALWAYS};
    uint64_t records = 1, failed = 0;
    for (uint64_t at = 1; at <= records && at <= EACH_RECORD_MAX; at++) {
        how.crash_at_record = at;
        how.crash_before_persist = at % 3 == 0;
        failed += !run_seed(seed, &how, totals, had, &records);
    }
    return failed;
}

int main(int argc, char **argv)
{
    uint64_t first = 1, count = 200;
    struct how how = {0};
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--big") == 0) {
            how.big = true;
        } else if (strcmp(argv[i], "--nodes") == 0 && i + 1 < argc) {
            how.big = true;
            how.nodes = (int)strtol(argv[++i], NULL, 10);
        } else if (strcmp(argv[i], "--net") == 0) {
            how.net = true;
        } else if (strcmp(argv[i], "--ctl") == 0) {
            how.ctl = true;
        } else if (strcmp(argv[i], "--verbose") == 0) {
            how.verbose = true;
        } else if (strcmp(argv[i], "--journal") == 0) {
            how.journal = JOURNAL_ALWAYS;
        } else if (strcmp(argv[i], "--older-copies") == 0) {
            how.journal = JOURNAL_OLDER;
        } else if (strcmp(argv[i], "--no-journal") == 0) {
            how.journal = JOURNAL_NEVER;
        } else if (strcmp(argv[i], "--each-record") == 0) {
            how.each_record = true;
        } else if (strcmp(argv[i], "--lost") == 0) {
            how.crash_before_persist = true;
        } else if (strcmp(argv[i], "--crash-at") == 0 && i + 1 < argc) {
            how.crash_at_record = strtoull(argv[++i], NULL, 10);
            how.journal = JOURNAL_ALWAYS;
        } else if (strcmp(argv[i], "--seed") == 0 && i + 1 < argc) {
            first = strtoull(argv[++i], NULL, 10);
            count = 1;
        } else if (strcmp(argv[i], "--seeds") == 0 && i + 2 < argc) {
            first = strtoull(argv[++i], NULL, 10);
            count = strtoull(argv[++i], NULL, 10);
        } else {
            fprintf(stderr,
                    "usage: dpt_sim [--seed N | --seeds FIRST COUNT] [--big | --nodes N] [--net] "
                    "[--ctl] [--journal | --older-copies | --no-journal] [--each-record | "
                    "--crash-at RECORD "
                    "[--lost]] [--verbose]\n");
            return 2;
        }
    }
    /* Agents are large, and most of their memory is never used: as mappings of their own they need
     * not be set to 0. */
    (void)mallopt(M_MMAP_THRESHOLD, 128 << 10);
    struct had had = {0};
    struct sim *totals = calloc(1, sizeof *totals);
    DPT_ASSERT(totals != NULL);
    uint64_t failed = 0;
    const uint64_t every = dpt_test_asked_every();
    for (uint64_t seed = first; seed < first + count; seed += every)
        failed += how.each_record ? run_each_record(seed, totals, &had)
                                  : run_one(seed, &how, totals, &had);
    if (how.ctl)
        printf("%llu pauses, %llu drains, %llu evictions, %llu stops\n",
               (unsigned long long)had.pauses, (unsigned long long)had.drains,
               (unsigned long long)had.evictions, (unsigned long long)had.stops);
    printf(
        "%llu seeds, %llu failed: %llu events, %llu generations, %llu steps applied, %llu healed, "
        "%llu outcomes handed over, %llu loaded, %llu saved, %llu writes fenced, %llu expulsions, "
        "%llu parts moved, %llu of these dropped, %llu shadows rebuilt beside the steps, %llu "
        "handed over by who left, %llu final saves, %llu strangers refused, %llu outages, %llu "
        "rescues, %llu left unsaved, %llu lines logged, %llu steps at which lines waited, %llu "
        "writers who met lines of another world, %llu second runs, %llu overloads, %llu records, "
        "%llu crashes at a record, %llu older copies of the journal",
        (unsigned long long)((count + every - 1) / every), (unsigned long long)failed,
        (unsigned long long)totals->events, (unsigned long long)totals->formations,
        (unsigned long long)totals->applied, (unsigned long long)totals->healed,
        (unsigned long long)totals->handed, (unsigned long long)totals->loaded,
        (unsigned long long)totals->saved, (unsigned long long)totals->fenced_writes,
        (unsigned long long)totals->expulsions, (unsigned long long)totals->moved,
        (unsigned long long)totals->dropped, (unsigned long long)totals->rebuilt,
        (unsigned long long)totals->hosted, (unsigned long long)totals->final_saves,
        (unsigned long long)totals->strangers, (unsigned long long)totals->outages,
        (unsigned long long)totals->rescued, (unsigned long long)totals->unsaved,
        (unsigned long long)totals->lines, (unsigned long long)totals->held_lines,
        (unsigned long long)totals->foreign_logs, (unsigned long long)had.second_runs,
        (unsigned long long)had.overloads, (unsigned long long)totals->records,
        (unsigned long long)totals->crashes_at_records, (unsigned long long)totals->older_copies);
    for (int kind = FAULT_OUTAGE; how.net && kind < FAULT_END; kind++)
        printf(", %llu %s", (unsigned long long)had.net[kind - FAULT_OUTAGE], net_fault_name(kind));
    printf("\n");
    free(totals);
    return failed == 0 ? 0 : 1;
}
