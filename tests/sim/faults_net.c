/* Faults of networks and clocks beside those of faults.c: one-way partitions, a network that
 * splits, slow agents, clocks that differ and jump. They have a source of random numbers of their
 * own, so that a seed is the same world without them. */
#include "tests/sim/faults.h"

enum {
    NET_FAULTS_MAX = 6,
    CLOCK_MS_MAX = 1000 * 1000 * 1000, /* clocks differ by this at most when the world begins */
    LENGTH_MS_MAX = 12000,
    PAUSE_MS_MIN = 50, /* of a slow agent: longer than a heartbeat */
    PAUSE_MS_MAX = 400,
    AWAKE_MS_MIN = 5,
    AWAKE_MS_MAX = 60
};

static const char *const names[] = {"outage",     "unheard", "hears nothing", "split",
                                    "slow agent", "clock",   "server clock"};

const char *net_fault_name(int kind)
{
    DPT_ASSERT(kind >= FAULT_OUTAGE && kind < FAULT_END);
    return names[kind - FAULT_OUTAGE];
}

void net_clocks_begin(struct sim *sim)
{
    sim->clocks.state = ~sim->seed;
    for (int i = 0; sim->profile.n_net_faults > 0 && i < sim->profile.machines; i++)
        sim->machines[i].clock_ms = rng_range(&sim->clocks, 0, CLOCK_MS_MAX);
}

void net_server_clock_begin(struct sim *host)
{
    if (host->profile.n_net_faults > 0)
        host->server_clock_ms = rng_range(&host->clocks, 0, CLOCK_MS_MAX);
}

void net_faults_plan(struct sim *sim)
{
    const struct profile *profile = &sim->profile;
    const int first = FAULTS_MAX - NET_FAULTS_MAX - profile->n_end_faults;
    DPT_ASSERT(profile->n_net_faults <= NET_FAULTS_MAX);
    for (int i = 0; i < profile->n_net_faults; i++) {
        struct fault *fault = &sim->faults[first + i];
        *fault = (struct fault){
            .at_ms = rng_range(&sim->clocks, profile->faults_from_ms, profile->faults_until_ms),
            .kind = (int)rng_range(&sim->clocks, FAULT_UNHEARD, FAULT_END - 1),
            .machine = (int)rng_range(&sim->clocks, 0, profile->machines - 1),
            .length_ms = rng_range(&sim->clocks, 20, LENGTH_MS_MAX)};
        sim_push(sim,
                 (struct event){
                     .at_ms = fault->at_ms, .kind = EV_FAULT, .machine = -1, .number = first + i});
    }
}

/* As fault_partition, in one direction. A connection needs both, so the client, whose heartbeats
 * are not answered, cannot make a new one. */
static void cut_one_way(struct sim *sim, const struct fault *fault)
{
    struct machine *m = &sim->machines[fault->machine];
    const int64_t half_ms = sim->profile.timeout_ms / 2;
    if (m->partitioned || m->unheard || m->hears_nothing)
        return;
    m->unheard = fault->kind == FAULT_UNHEARD;
    m->hears_nothing = fault->kind == FAULT_HEARS_NOTHING;
    fault_later(sim, fault->length_ms, EV_HEAL_NETWORK, fault->machine, 0);
    if (fault->length_ms < half_ms || m->agent == NULL || m->conn == 0)
        return;
    fault_later(sim, half_ms, EV_AGENT_DOWN, fault->machine, m->life);
    /* The end of the old connection reaches the server, or does so when the network is whole. */
    sim_push(sim, (struct event){.at_ms = sim->now_ms +
                                          (m->hears_nothing ? half_ms : fault->length_ms) + 5,
                                 .kind = EV_SERVER_BROKEN,
                                 .machine = -1,
                                 .conn = m->conn});
}

static void split(struct sim *sim, const struct fault *fault)
{
    if (sim->split_at > 0 || fault->machine == 0)
        return;
    sim->split_at = fault->machine;
    for (int i = sim->split_at; i < sim->profile.machines; i++) {
        sim->machines[i].was_hit = sim->machines[i].hurt = true;
        fault_partition(sim, &(struct fault){.machine = i, .length_ms = fault->length_ms});
    }
    /* A shorter cut delays data, and TCP sends it again. */
    if (fault->length_ms >= sim->profile.timeout_ms)
        group_split(sim);
}

/* The agent's processor is shared with others: it runs for some ms between pauses. */
static void slow_agent(struct sim *sim, const struct fault *fault)
{
    const int64_t pause_ms = rng_range(&sim->clocks, PAUSE_MS_MIN, PAUSE_MS_MAX);
    if (sim->now_ms >= fault->at_ms + fault->length_ms)
        return;
    fault_stop_machine(sim, &(struct fault){.machine = fault->machine, .length_ms = pause_ms},
                       false);
    sim_push(sim, (struct event){.at_ms = sim->now_ms + pause_ms +
                                          rng_range(&sim->clocks, AWAKE_MS_MIN, AWAKE_MS_MAX),
                                 .kind = EV_FAULT,
                                 .machine = -1,
                                 .number = fault - sim->faults});
}

/* The agent reads its clock at its next event, which is due at once. */
static void jump_clock(struct sim *sim, const struct fault *fault)
{
    struct machine *m = &sim->machines[fault->machine];
    m->clock_ms += fault->length_ms;
    m->tick_ms = sim->now_ms;
    fault_later(sim, 0, EV_AGENT_TICK, fault->machine, m->life);
}

/* The server takes a jump for its own suspension since its last deadline. The rest of the jump, or
 * a shorter jump, is time for it. */
static void jump_server_clock(struct sim *host, const struct fault *fault)
{
    const int64_t due_ms = host->server_due_ms - host->now_ms, left_ms = due_ms > 0 ? due_ms : 0;
    for (struct sim *sim = host; sim != NULL; sim = sim->beside)
        sim->ran_ms -=
            fault->length_ms - left_ms > sim_timing(sim).gap_ms ? left_ms : fault->length_ms;
    host->server_clock_ms += fault->length_ms;
    host->server_tick_ms = host->now_ms;
    fault_later(host, 0, EV_SERVER_TICK, -1, host->server_life);
}

bool net_fault_strike(struct sim *sim, const struct fault *fault)
{
    switch (fault->kind) {
    case FAULT_UNHEARD:
    case FAULT_HEARS_NOTHING:
        cut_one_way(sim, fault);
        return true;
    case FAULT_SPLIT:
        split(sim, fault);
        return true;
    case FAULT_SLOW_AGENT:
        slow_agent(sim, fault);
        return true;
    case FAULT_CLOCK:
        jump_clock(sim, fault);
        return true;
    case FAULT_SERVER_CLOCK:
        jump_server_clock(sim->host, fault);
        return true;
    default:
        return false;
    }
}
