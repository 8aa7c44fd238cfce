/* dpt_timeline NAME GOLDEN [--write]: plays a scripted scenario and compares the messages, line by
 * line with their times, with the committed text. `--write` writes the text again, to be read
 * before it is committed. */
#include "tests/sim/faults.h"

#include <stdlib.h>
#include <string.h>

enum { STEPS = 100, UNTIL_MS = 60 * 1000, LINE_BYTES = 1024, NEVER_MS = 1000 * 1000 };

struct scenario {
    const char *name;
    int machines, min_nodes, racks;
    enum sharding sharding;
    int64_t late_ms;
    int n_faults;
    struct fault faults[4];
    bool has_journal;
    uint64_t crash_at_record;
};

static const struct scenario scenarios[] = {
    {.name = "join", .machines = 3, .min_nodes = 2, .late_ms = 7000},
    {.name = "loss",
     .machines = 3,
     .min_nodes = 2,
     .n_faults = 1,
     .faults = {{.at_ms = 3000, .kind = FAULT_KILL_AGENT, .machine = 1, .length_ms = 1500}}},
    {.name = "rank-loss",
     .machines = 2,
     .min_nodes = 2,
     .n_faults = 1,
     .faults = {{.at_ms = 3000, .kind = FAULT_KILL_RANK, .machine = 1}}},
    /* The second node dies when the plan without the first is out. The first dies while its peers
     * compute a step: they name it. */
    {.name = "double-loss",
     .machines = 4,
     .min_nodes = 2,
     .n_faults = 2,
     .faults = {{.at_ms = 3030, .kind = FAULT_KILL_AGENT, .machine = 1, .length_ms = NEVER_MS},
                {.at_ms = 3300, .kind = FAULT_KILL_AGENT, .machine = 2, .length_ms = NEVER_MS}}},
    /* All machines of a rack, on two hosts, die. The shadows of their shards are in the other. */
    {.name = "rack-loss",
     .machines = 8,
     .min_nodes = 4,
     .racks = 2,
     .sharding = SHARDING_SHADOW,
     .n_faults = 4,
     .faults = {{.at_ms = 3030, .kind = FAULT_KILL_AGENT, .machine = 0, .length_ms = NEVER_MS},
                {.at_ms = 3030, .kind = FAULT_KILL_AGENT, .machine = 1, .length_ms = NEVER_MS},
                {.at_ms = 3030, .kind = FAULT_KILL_AGENT, .machine = 2, .length_ms = NEVER_MS},
                {.at_ms = 3030, .kind = FAULT_KILL_AGENT, .machine = 3, .length_ms = NEVER_MS}}},
    {.name = "leave",
     .machines = 3,
     .min_nodes = 2,
     .n_faults = 1,
     .faults = {{.at_ms = 3000, .kind = FAULT_LEAVE, .machine = 1}}},
    {.name = "stopped",
     .machines = 2,
     .min_nodes = 1,
     .n_faults = 1,
     .faults = {{.at_ms = 2000, .kind = FAULT_STOP_MACHINE, .machine = 1, .length_ms = 6000}}},
    /* The first writer dies when the other has finished and the checkpoint is not committed. */
    {.name = "finish-loss",
     .machines = 2,
     .min_nodes = 2,
     .n_faults = 1,
     .faults = {{.at_ms = 11660, .kind = FAULT_KILL_RANK, .machine = 0}}},
    /* The control connection alone. */
    {.name = "refused",
     .machines = 2,
     .min_nodes = 2,
     .n_faults = 1,
     .faults = {{.at_ms = 3000, .kind = FAULT_REFUSE, .machine = 1, .length_ms = 2000}}},
    {.name = "server-restart",
     .machines = 2,
     .min_nodes = 2,
     .n_faults = 1,
     .faults = {{.at_ms = 2000, .kind = FAULT_CRASH_SERVER, .length_ms = 700}}},
    /* The same with a journal: a server that is away for 700 ms. */
    {.name = "journal-restart",
     .machines = 3,
     .min_nodes = 2,
     .n_faults = 1,
     .faults = {{.at_ms = 2000, .kind = FAULT_OUTAGE, .length_ms = 700}},
     .has_journal = true},
    /* The network splits: two nodes and the server on one side, two nodes on the other. */
    {.name = "split",
     .machines = 4,
     .min_nodes = 2,
     .n_faults = 1,
     .faults = {{.at_ms = 3000, .kind = FAULT_SPLIT, .machine = 2, .length_ms = 8000}}},
    /* A node is cut off for longer than a lease, no generation can run without it, and it comes
     * back with its state. */
    {.name = "return",
     .machines = 2,
     .min_nodes = 2,
     .n_faults = 1,
     .faults = {{.at_ms = 3000, .kind = FAULT_SPLIT, .machine = 1, .length_ms = 7000}}},
    /* A link that comes and goes, for less and for more than a lease. */
    {.name = "flapping",
     .machines = 3,
     .min_nodes = 2,
     .n_faults = 3,
     .faults = {{.at_ms = 2000, .kind = FAULT_SPLIT, .machine = 2, .length_ms = 300},
                {.at_ms = 3000, .kind = FAULT_PARTITION, .machine = 2, .length_ms = 1000},
                {.at_ms = 4500, .kind = FAULT_PARTITION, .machine = 2, .length_ms = 5500}}},
    /* The server does not hear a node that hears the server and its peers: it is expelled. */
    {.name = "fencing",
     .machines = 3,
     .min_nodes = 2,
     .n_faults = 1,
     .faults = {{.at_ms = 2000, .kind = FAULT_UNHEARD, .machine = 2, .length_ms = 6000}}},
    /* The server crashes when the plan without the lost node is durable and no node has it. */
    {.name = "journal-formation",
     .machines = 3,
     .min_nodes = 2,
     .n_faults = 1,
     .faults = {{.at_ms = 3000, .kind = FAULT_KILL_AGENT, .machine = 1, .length_ms = NEVER_MS}},
     .has_journal = true,
     .crash_at_record = 13},
};

static const struct scenario *find_scenario(const char *name)
{
    for (size_t i = 0; i < sizeof scenarios / sizeof scenarios[0]; i++)
        if (strcmp(scenarios[i].name, name) == 0)
            return &scenarios[i];
    return NULL;
}

static bool play_scenario(const struct scenario *scenario, FILE *out)
{
    struct profile profile = {
        .machines = scenario->machines,
        .ranks = 1,
        .min_nodes = scenario->min_nodes,
        .max_nodes = scenario->machines, /* full at once: formed without a last call */
        .timeout_ms = 5000,
        .steps = STEPS,
        .checkpoint_every = 1000,
        .max_world = 64,
        .max_restarts = 100,
        .delay_min_ms = 1,
        .delay_max_ms = 1,
        .compute_min_ms = 80,
        .compute_max_ms = 100,
        .start_min_ms = 300,
        .start_max_ms = 400,
        .late_ms = scenario->late_ms,
        .racks = scenario->racks,
        .sharding = scenario->sharding,
        .bad_pair_a = -1,
        .bad_pair_b = -1,
        .has_journal = scenario->has_journal,
        .crash_at_record = scenario->crash_at_record,
    };
    struct sim *sim = sim_create(1, &profile, false, out);
    for (int i = 0; i < scenario->n_faults; i++) {
        sim->faults[i] = scenario->faults[i];
        sim_push(sim,
                 (struct event){
                     .at_ms = sim->faults[i].at_ms, .kind = EV_FAULT, .machine = -1, .number = i});
    }
    sim_run(sim, UNTIL_MS);
    bool good = sim->failure[0] == '\0' && sim->furthest == STEPS;
    if (!good)
        fprintf(stderr, "%s: step %lld, %s\n", scenario->name, (long long)sim->furthest,
                sim->failure);
    sim_destroy(&sim);
    return good;
}

static int compare(const char *played, const char *golden)
{
    FILE *a = fopen(played, "r"), *b = fopen(golden, "r");
    int differ = a == NULL || b == NULL;
    char have[LINE_BYTES], want[LINE_BYTES];
    for (int line = 1; !differ; line++) {
        char *x = fgets(have, sizeof have, a), *y = fgets(want, sizeof want, b);
        if (x == NULL && y == NULL)
            break;
        if (x == NULL || y == NULL || strcmp(have, want) != 0) {
            fprintf(stderr, "%s:%d\n  want: %s  have: %s", golden, line,
                    y != NULL ? want : "the end\n", x != NULL ? have : "the end\n");
            differ = 1;
        }
    }
    if (a != NULL)
        (void)fclose(a);
    if (b != NULL)
        (void)fclose(b);
    return differ;
}

int main(int argc, char **argv)
{
    const struct scenario *scenario = argc >= 3 ? find_scenario(argv[1]) : NULL;
    if (scenario == NULL) {
        fprintf(stderr, "usage: dpt_timeline NAME GOLDEN [--write]\n");
        return 2;
    }
    bool write = argc > 3 && strcmp(argv[3], "--write") == 0;
    char path[LINE_BYTES];
    (void)snprintf(path, sizeof path, "%s%s", write ? argv[2] : scenario->name,
                   write ? "" : ".played.txt");
    FILE *out = fopen(path, "w");
    if (out == NULL) {
        perror(path);
        return 2;
    }
    bool good = play_scenario(scenario, out);
    if (fclose(out) != 0 || !good)
        return 1;
    return write ? 0 : compare(path, argv[2]);
}
