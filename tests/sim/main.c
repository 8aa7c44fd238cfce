/* dpt_sim [--seed N] [--seeds FIRST COUNT] [--big] [--verbose]
 * Runs seeds; the exit code is the verdict, a failing seed is named with the line to replay it. */
#include "tests/sim/sim.h"

#include <stdlib.h>
#include <string.h>

/* A rank that hangs in its last save is given busy_ms (300 s at 5 s). */
enum { SETTLE_MS = 500 * 1000 };

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
    uint64_t second_runs, overloads; /* overloads that came due: the server may have been down */
};

static void count_had(const struct sim *sim, struct had *had)
{
    had->second_runs += sim->beside != NULL;
    for (const struct sim *each = sim; each != NULL; each = each->beside)
        for (int i = 0; i < each->profile.n_faults; i++)
            had->overloads += each->faults[i].kind == FAULT_OVERLOAD_SERVER &&
                              each->faults[i].at_ms <= sim->now_ms;
}

static bool run_seed(uint64_t seed, bool big, bool verbose, struct sim *ret_totals,
                     struct had *ret_had)
{
    struct rng rng = {seed};
    struct profile profile, beside;
    if (big)
        profile_big(&rng, &profile);
    else
        profile_random(&rng, &profile);
    struct sim *sim = sim_create(seed, &profile, verbose, NULL);
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
    sim_run(sim, until_ms + steps_ms + SETTLE_MS);
    for (struct sim *each = sim; each != NULL; each = each->beside)
        check_end(each);
    bool good = sim->failure[0] == '\0';
    if (!good)
        printf("seed %llu%s FAILED %s\n  replay: dpt_sim --seed %llu%s --verbose\n",
               (unsigned long long)seed, big ? " (big)" : "", sim->failure,
               (unsigned long long)seed, big ? " --big" : "");
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
    ret_totals->farewells += sim->farewells;
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

int main(int argc, char **argv)
{
    uint64_t first = 1, count = 200;
    bool big = false, verbose = false;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--big") == 0) {
            big = true;
        } else if (strcmp(argv[i], "--verbose") == 0) {
            verbose = true;
        } else if (strcmp(argv[i], "--seed") == 0 && i + 1 < argc) {
            first = strtoull(argv[++i], NULL, 10);
            count = 1;
        } else if (strcmp(argv[i], "--seeds") == 0 && i + 2 < argc) {
            first = strtoull(argv[++i], NULL, 10);
            count = strtoull(argv[++i], NULL, 10);
        } else {
            fprintf(stderr,
                    "usage: dpt_sim [--seed N | --seeds FIRST COUNT] [--big] [--verbose]\n");
            return 2;
        }
    }
    struct had had = {0};
    struct sim *totals = calloc(1, sizeof *totals);
    DPT_ASSERT(totals != NULL);
    uint64_t failed = 0;
    for (uint64_t seed = first; seed < first + count; seed++)
        failed += !run_seed(seed, big, verbose, totals, &had);
    printf(
        "%llu seeds, %llu failed: %llu events, %llu generations, %llu steps applied, %llu healed, "
        "%llu outcomes handed over, %llu loaded, %llu saved, %llu writes fenced, %llu expulsions, "
        "%llu parts moved, %llu of these dropped, %llu shadows rebuilt beside the steps, %llu "
        "handed over by who left, %llu farewells, %llu strangers refused, %llu outages, %llu "
        "rescues, %llu left unsaved, %llu lines logged, %llu steps at which lines waited, %llu "
        "writers who met lines of another world, %llu second runs, %llu overloads\n",
        (unsigned long long)count, (unsigned long long)failed, (unsigned long long)totals->events,
        (unsigned long long)totals->formations, (unsigned long long)totals->applied,
        (unsigned long long)totals->healed, (unsigned long long)totals->handed,
        (unsigned long long)totals->loaded, (unsigned long long)totals->saved,
        (unsigned long long)totals->fenced_writes, (unsigned long long)totals->expulsions,
        (unsigned long long)totals->moved, (unsigned long long)totals->dropped,
        (unsigned long long)totals->rebuilt, (unsigned long long)totals->hosted,
        (unsigned long long)totals->farewells, (unsigned long long)totals->strangers,
        (unsigned long long)totals->outages, (unsigned long long)totals->rescued,
        (unsigned long long)totals->unsaved, (unsigned long long)totals->lines,
        (unsigned long long)totals->held_lines, (unsigned long long)totals->foreign_logs,
        (unsigned long long)had.second_runs, (unsigned long long)had.overloads);
    free(totals);
    return failed == 0 ? 0 : 1;
}
