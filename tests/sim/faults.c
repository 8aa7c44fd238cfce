/* What goes wrong, and when: drawn from the seed. */
#include "tests/sim/faults.h"

#include <stdlib.h>

enum { CLOSE_MS = 500, OUTAGE_PERMILLE = 100, KEY_PERMILLE = 300, OUTAGE_FAULTS_MAX = 6 };

void profile_random(struct rng *rng, struct profile *ret)
{
    int machines = (int)rng_range(rng, 1, rng_chance(rng, 200) ? 16 : 5);
    int loss[] = {0, 0, 20, 100, 250};
    *ret = (struct profile){
        .machines = machines,
        .ranks = rng_chance(rng, 600) ? 1 : (int)rng_range(rng, 1, 3),
        .min_nodes = (int)rng_range(rng, 1, machines),
        .max_nodes = machines,
        .timeout_ms = rng_chance(rng, 700) ? 5000 : 2000,
        .steps = rng_range(rng, 50, 250),
        .checkpoint_every = rng_range(rng, 5, 60),
        .max_world = rng_chance(rng, 700) ? 1024 : (uint32_t)rng_range(rng, 1, 8),
        .max_restarts = 100000,
        .loss = loss[rng_range(rng, 0, 4)],
        .duplicate = rng_chance(rng, 500) ? 0 : 50,
        .reorder = rng_chance(rng, 500) ? 0 : 30,
        .delay_min_ms = 1,
        .delay_max_ms = rng_chance(rng, 700) ? 5 : 150,
        .compute_min_ms = 20,
        .compute_max_ms = rng_chance(rng, 800) ? 120 : 600,
        .start_min_ms = 50,
        .start_max_ms = rng_chance(rng, 700) ? 300 : 2000,
        .faults_from_ms = 200,
        .faults_until_ms = 20000,
        .n_faults = (int)rng_range(rng, 0, 14),
        .n_end_faults = rng_chance(rng, 500) ? 0 : (int)rng_range(rng, 1, 3),
        .spread_ms = rng_chance(rng, 600) ? 100 : 8000,
        .shared_folder = rng_chance(rng, 500),
        .bad_pair_a = -1,
        .bad_pair_b = -1,
    };
    if (rng_chance(rng, 600))
        ret->sharding = (enum sharding)rng_range(rng, 1, SHARDING_COUNT - 1);
    if (rng_chance(rng, 150) && machines > 1)
        ret->max_nodes = (int)rng_range(rng, ret->min_nodes, machines);
    struct rng keys = {rng->state}; /* its own: draws of it move nothing */
    if (rng_chance(&keys, KEY_PERMILLE))
        ret->wait_ms = rng_range(&keys, 6000, 40000);
    if (rng_chance(&keys, KEY_PERMILLE))
        ret->first_step_ms = rng_range(&keys, 20000, 60000);
    if (rng_chance(&keys, KEY_PERMILLE))
        ret->drain_ms = rng_range(&keys, 2000, 30000);
    if (rng_chance(rng, OUTAGE_PERMILLE)) /* up to ten join times: beyond every deadline */
        ret->outage_ms = rng_range(rng, 1000, 10 * dpt_timing_from(ret->timeout_ms, 0).join_ms);
}

void profile_big(struct rng *rng, int machines, struct profile *ret)
{
    profile_random(rng, ret);
    ret->machines = (int)rng_range(rng, 200, 300);
    if (machines > 0)
        ret->machines = machines < MACHINES_MAX ? machines : MACHINES_MAX;
    ret->ranks = 1;
    ret->min_nodes = ret->machines / 2;
    ret->max_nodes = ret->machines;
    ret->max_world = 1024;
    ret->steps = 40;
    ret->loss = ret->duplicate = ret->reorder = 0;
    ret->n_faults = 6;
}

void profile_beside(struct rng *rng, const struct profile *host, struct profile *ret)
{
    static const int64_t timeouts_ms[] = {2000, 5000, 20000, 60000};
    profile_random(rng, ret);
    do
        ret->timeout_ms = timeouts_ms[rng_range(rng, 0, 3)];
    while (ret->timeout_ms == host->timeout_ms);
    ret->n_end_faults = 0;
    ret->outage_ms = 0; /* the other run has it */
    ret->n_faults = (int)rng_range(rng, 0, 4);
    /* With such periods it would still recover, but long after this simulation is over. */
    if (ret->timeout_ms > 5000)
        ret->n_faults = 0;
    ret->loss = ret->loss > 20 ? 20 : ret->loss;
}

/* The server fails, often during a formation. Other faults occur until it is back. */
static void plan_outage(struct sim *sim)
{
    static const int kinds[] = {FAULT_KILL_RANK,   FAULT_EXIT_RANK,  FAULT_LEAVE,       FAULT_LEAVE,
                                FAULT_LEAVE_TWICE, FAULT_KILL_AGENT, FAULT_STOP_MACHINE};
    const struct profile *profile = &sim->profile;
    const int64_t from_ms = rng_range(&sim->rng, profile->faults_from_ms, profile->faults_until_ms);
    const int n = (int)rng_range(&sim->rng, 1, OUTAGE_FAULTS_MAX);
    for (int i = 0; i <= n; i++) {
        struct fault *fault = &sim->faults[profile->n_faults + i];
        *fault = (struct fault){
            .at_ms = from_ms,
            .kind = FAULT_OUTAGE,
            .machine = (int)rng_range(&sim->rng, 0, profile->machines - 1),
            .local = (uint32_t)rng_range(&sim->rng, 0, profile->ranks - 1),
            .length_ms = profile->outage_ms,
        };
        if (i > 0) {
            const bool at_once = i == 1 && rng_chance(&sim->rng, 600);
            fault->kind = kinds[rng_range(&sim->rng, 0, 6)];
            fault->at_ms += at_once ? rng_range(&sim->rng, -CLOSE_MS, CLOSE_MS)
                                    : rng_range(&sim->rng, 0, profile->outage_ms);
            fault->length_ms = rng_range(&sim->rng, 20, 12000);
        }
        if (fault->at_ms < 0)
            fault->at_ms = 0;
        sim_push(sim, (struct event){.at_ms = fault->at_ms,
                                     .kind = EV_FAULT,
                                     .machine = -1,
                                     .number = profile->n_faults + i});
    }
    sim->profile.faults_until_ms = from_ms + profile->outage_ms > profile->faults_until_ms
                                       ? from_ms + profile->outage_ms
                                       : profile->faults_until_ms;
}

void faults_plan(struct sim *sim)
{
    const struct profile *profile = &sim->profile;
    DPT_ASSERT(profile->n_faults + profile->n_end_faults + OUTAGE_FAULTS_MAX + 1 <= FAULTS_MAX);
    for (int i = 0; i < profile->n_faults; i++) {
        struct fault *fault = &sim->faults[i];
        fault->at_ms = rng_range(&sim->rng, profile->faults_from_ms, profile->faults_until_ms);
        fault->kind = (int)rng_range(&sim->rng, 0, FAULT_COUNT - 1);
        const bool leaves = i > 0 && sim->faults[i - 1].kind == FAULT_LEAVE;
        if (i > 0 && rng_chance(&sim->rng, leaves ? 600 : 200)) { /* while that goes on */
            fault->at_ms = sim->faults[i - 1].at_ms + rng_range(&sim->rng, 0, CLOSE_MS);
            if (leaves)
                fault->kind = rng_chance(&sim->rng, 500) ? FAULT_KILL_RANK : FAULT_KILL_AGENT;
        }
        if (fault->at_ms > profile->faults_until_ms) /* a later fault would not be repaired */
            fault->at_ms = profile->faults_until_ms;
        fault->machine = (int)rng_range(&sim->rng, 0, profile->machines - 1);
        fault->local = (uint32_t)rng_range(&sim->rng, 0, profile->ranks - 1);
        fault->length_ms = rng_chance(&sim->rng, 500) ? rng_range(&sim->rng, 20, 1500)
                                                      : rng_range(&sim->rng, 20, 12000);
        sim_push(sim, (struct event){
                          .at_ms = fault->at_ms, .kind = EV_FAULT, .machine = -1, .number = i});
    }
    if (profile->outage_ms > 0)
        plan_outage(sim);
    net_faults_plan(sim);
}

void fault_at_end(struct sim *sim, int machine, uint32_t local)
{
    static const int kinds[] = {FAULT_KILL_RANK, FAULT_KILL_AGENT, FAULT_STOP_RANK,
                                FAULT_STOP_MACHINE};
    if (sim->profile.n_end_faults == 0)
        return;
    int index = FAULTS_MAX - sim->profile.n_end_faults--;
    struct fault *fault = &sim->faults[index];
    fault->kind = kinds[rng_range(&sim->rng, 0, 3)];
    fault->machine = machine;
    fault->local = local;
    fault->at_ms = sim_delay(sim, 1, 250);
    fault->length_ms = rng_range(&sim->rng, 20, 12000);
    sim_push(sim, (struct event){
                      .at_ms = fault->at_ms, .kind = EV_FAULT, .machine = -1, .number = index});
}

void fault_later(struct sim *sim, int64_t after_ms, enum event_kind kind, int machine,
                 uint64_t life)
{
    sim_push(sim,
             (struct event){
                 .at_ms = sim->now_ms + after_ms, .kind = kind, .machine = machine, .life = life});
}

void fault_stop_machine(struct sim *sim, const struct fault *fault, bool with_ranks)
{
    struct machine *m = &sim->machines[fault->machine];
    if (m->agent == NULL || m->stopped)
        return;
    m->stopped = true;
    for (int i = 0; with_ranks && i < LOCALS_MAX; i++)
        if (m->procs[i] != NULL && m->procs[i]->alive)
            m->procs[i]->stopped = true;
    fault_later(sim, fault->length_ms, EV_MACHINE_CONT, fault->machine, m->life);
}

static void stop_rank(struct sim *sim, const struct fault *fault, struct proc *proc)
{
    if (proc->stopped)
        return;
    proc->stopped = true;
    sim_push(sim, (struct event){.at_ms = sim->now_ms + fault->length_ms,
                                 .kind = EV_RANK_CONT,
                                 .machine = fault->machine,
                                 .life = proc->life,
                                 .local = proc->local,
                                 .spawn = proc->spawn});
}

static void stop_server(struct sim *sim, const struct fault *fault, bool crash)
{
    if (sim->core == NULL || sim->host->server_stopped)
        return;
    int64_t length_ms = fault->length_ms < 8000 ? fault->length_ms : 8000;
    if (crash && sim->host->has_journal && rng_chance(&sim->host->nonces, 500)) {
        sim->host->crash_is_armed = true;
        sim->host->crash_before_persist = rng_chance(&sim->host->nonces, 300);
    } else if (crash) {
        server_crash(sim);
        fault_later(sim, length_ms, EV_SERVER_START, -1, 0);
    } else {
        server_stop(sim);
        fault_later(sim, length_ms, EV_SERVER_CONT, -1, sim->server_life);
    }
}

/* Cut off from the server. A client whose heartbeats stop coming back replaces its socket; the
 * server learns of the old one's end when the net is whole again. */
void fault_partition(struct sim *sim, const struct fault *fault)
{
    struct machine *m = &sim->machines[fault->machine];
    if (m->partitioned)
        return;
    m->partitioned = true;
    fault_later(sim, fault->length_ms, EV_HEAL_NETWORK, fault->machine, 0);
    if (fault->length_ms < sim->profile.timeout_ms / 2 || m->agent == NULL || m->conn == 0)
        return;
    fault_later(sim, sim->profile.timeout_ms / 2, EV_AGENT_DOWN, fault->machine, m->life);
    sim_push(sim, (struct event){.at_ms = sim->now_ms + fault->length_ms + 5,
                                 .kind = EV_SERVER_BROKEN,
                                 .machine = -1,
                                 .conn = m->conn});
}

/* The server's own network is down: it hears no node of any run. */
static void cut_off_server(struct sim *host, const struct fault *fault)
{
    for (struct sim *sim = host; sim != NULL; sim = sim->beside)
        for (int i = 0; i < sim->profile.machines; i++)
            fault_partition(sim, &(struct fault){.machine = i, .length_ms = fault->length_ms});
}

static const char *const fault_names[FAULT_COUNT] = {
    "kill agent",  "kill rank",  "rank exits",     "stop machine", "stop agent",
    "stop rank",   "wedge rank", "leave",          "leave twice",  "crash server",
    "stop server", "overload",   "cut off server", "partition",    "break connection",
    "refuse",      "slow",       "bad pair",       "stranger"};

/* While it lasts nodes may not hear the server. */
static bool is_of_server(enum fault_kind kind)
{
    return kind == FAULT_CRASH_SERVER || kind == FAULT_STOP_SERVER ||
           kind == FAULT_OVERLOAD_SERVER || kind == FAULT_CUT_OFF_SERVER ||
           kind == FAULT_PARTITION || (kind >= FAULT_OUTAGE && kind <= FAULT_SPLIT) ||
           kind == FAULT_SERVER_CLOCK;
}

/* A client that is refused speaks again some time after that is over. */
enum { RECONNECT_MS = 1000 };

static void note_fault(struct sim *sim, struct machine *m, const struct fault *fault)
{
    const int64_t lease_ms = dpt_timing_from(sim->profile.timeout_ms, 0).lease_ms;
    const bool in_bad_pair = fault->kind == FAULT_BAD_PAIR;
    const bool is_short = fault->kind == FAULT_REFUSE &&
                          fault->length_ms + RECONNECT_MS < lease_ms && !m->partitioned;
    m->was_hit = m->was_hit || m->refused_ms >= 0 || !is_short;
    m->refused_ms = is_short ? sim->now_ms : m->refused_ms;
    m->was_stopped = m->was_stopped || fault->kind == FAULT_STOP_MACHINE ||
                     fault->kind == FAULT_STOP_AGENT || fault->kind == FAULT_STOP_RANK ||
                     fault->kind == FAULT_WEDGE_RANK;
    for (int i = 0; in_bad_pair && i < sim->profile.machines; i++)
        sim->machines[i].was_hit = true;
}

void fault_strike(struct sim *sim, const struct fault *fault)
{
    struct machine *m = &sim->machines[fault->machine];
    struct proc *proc = m->procs[fault->local];
    bool has_rank = proc != NULL && proc->alive;
    sim_say(sim, "FAULT %s %s.%u %lld ms",
            fault->kind < FAULT_COUNT ? fault_names[fault->kind] : net_fault_name(fault->kind),
            m->id, fault->local, (long long)fault->length_ms);
    sim->host->server_hurt = sim->host->server_hurt || is_of_server(fault->kind);
    note_fault(sim, m, fault);
    sim->host->server_hit =
        sim->host->server_hit || (is_of_server(fault->kind) && fault->kind != FAULT_PARTITION);
    m->hurt = m->hurt || fault->kind != FAULT_LEAVE || m->told_ms >= 0;
    switch (fault->kind) {
    case FAULT_KILL_AGENT:
        if (m->agent != NULL) {
            machine_kill(sim, fault->machine);
            fault_later(sim, fault->length_ms, EV_MACHINE_START, fault->machine, 0);
        }
        break;
    case FAULT_KILL_RANK:
    case FAULT_EXIT_RANK:
        if (has_rank)
            proc_kill(sim, proc, fault->kind == FAULT_KILL_RANK ? -9 : 1);
        break;
    case FAULT_STOP_MACHINE:
    case FAULT_STOP_AGENT:
        fault_stop_machine(sim, fault, fault->kind == FAULT_STOP_MACHINE);
        break;
    case FAULT_STOP_RANK:
        if (has_rank)
            stop_rank(sim, fault, proc);
        break;
    case FAULT_WEDGE_RANK:
        /* Starting and the very first step have no deadline. */
        if (has_rank && proc->step_ms > 0)
            proc->wedged = true;
        break;
    case FAULT_LEAVE:
    case FAULT_LEAVE_TWICE:
        m->told_twice =
            fault->kind == FAULT_LEAVE_TWICE || (m->told_ms >= 0 && m->told_life == m->life);
        m->told_life = m->life;
        m->rescues = false;
        m->told_ms = sim->now_ms;
        fault_later(sim, 0, EV_AGENT_SIGNAL, fault->machine, m->life);
        if (fault->kind == FAULT_LEAVE_TWICE)
            fault_later(sim, 100, EV_AGENT_SIGNAL, fault->machine, m->life);
        break;
    case FAULT_CRASH_SERVER:
    case FAULT_STOP_SERVER:
        stop_server(sim, fault, fault->kind == FAULT_CRASH_SERVER);
        break;
    case FAULT_OVERLOAD_SERVER:
        server_overload(sim, fault->length_ms);
        break;
    case FAULT_CUT_OFF_SERVER:
        cut_off_server(sim->host, fault);
        break;
    case FAULT_OUTAGE:
        server_outage(sim, fault->length_ms);
        break;
    case FAULT_PARTITION:
        fault_partition(sim, fault);
        break;
    case FAULT_BLIP:
        if (m->agent != NULL && m->conn != 0) {
            net_break(sim, fault->machine);
            fault_later(sim, 1, EV_AGENT_DOWN, fault->machine, m->life);
        }
        break;
    case FAULT_REFUSE:
        if (m->agent != NULL && m->conn != 0 && !m->partitioned) {
            net_break(sim, fault->machine);
            m->partitioned = true;
            fault_later(sim, 1, EV_AGENT_DOWN, fault->machine, m->life);
            fault_later(sim, fault->length_ms, EV_HEAL_NETWORK, fault->machine, 0);
        }
        break;
    case FAULT_SLOW:
        m->slow = m->slow == 1 ? 6 : 1;
        break;
    case FAULT_BAD_PAIR:
        if (sim->profile.bad_pair_a < 0 && sim->profile.machines > 2) {
            sim->profile.bad_pair_a = fault->machine;
            sim->profile.bad_pair_b = (fault->machine + 1) % sim->profile.machines;
        } else {
            sim->profile.bad_pair_a = sim->profile.bad_pair_b = -1;
        }
        break;
    case FAULT_STRANGER:
        server_meet_stranger(sim, fault->machine);
        break;
    default:
        DPT_ASSERT(net_fault_strike(sim, fault));
    }
}
