/* What goes wrong, and when: drawn from the seed. */
#include "tests/sim/sim.h"

#include <stdlib.h>

enum { CLOSE_MS = 500 };

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
}

void profile_big(struct rng *rng, struct profile *ret)
{
    profile_random(rng, ret);
    ret->machines = (int)rng_range(rng, 200, 300);
    ret->ranks = 1;
    ret->min_nodes = ret->machines / 2;
    ret->max_nodes = ret->machines;
    ret->max_world = 1024;
    ret->steps = 40;
    ret->loss = ret->duplicate = ret->reorder = 0;
    ret->n_faults = 6;
}

void faults_plan(struct sim *sim)
{
    const struct profile *profile = &sim->profile;
    DPT_ASSERT(profile->n_faults + profile->n_end_faults <= FAULTS_MAX);
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
        fault->machine = (int)rng_range(&sim->rng, 0, profile->machines - 1);
        fault->local = (uint32_t)rng_range(&sim->rng, 0, profile->ranks - 1);
        fault->length_ms = rng_chance(&sim->rng, 500) ? rng_range(&sim->rng, 20, 1500)
                                                      : rng_range(&sim->rng, 20, 12000);
        sim_push(sim, (struct event){
                          .at_ms = fault->at_ms, .kind = EV_FAULT, .machine = -1, .number = i});
    }
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

static void later(struct sim *sim, int64_t after_ms, enum event_kind kind, int machine,
                  uint64_t life)
{
    sim_push(sim,
             (struct event){
                 .at_ms = sim->now_ms + after_ms, .kind = kind, .machine = machine, .life = life});
}

static void stop_machine(struct sim *sim, const struct fault *fault, bool with_ranks)
{
    struct machine *m = &sim->machines[fault->machine];
    if (m->agent == NULL || m->stopped)
        return;
    m->stopped = m->was_stopped = true;
    m->continued_ms = sim->now_ms + fault->length_ms;
    m->stopped_ms = fault->length_ms;
    m->lease_ms = dpt_timing_from(sim->profile.timeout_ms).lease_ms;
    for (int i = 0; with_ranks && i < LOCALS_MAX; i++)
        if (m->procs[i] != NULL && m->procs[i]->alive)
            m->procs[i]->stopped = true;
    later(sim, fault->length_ms, EV_MACHINE_CONT, fault->machine, m->life);
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
    if (sim->core == NULL || sim->server_stopped)
        return;
    int64_t length_ms = fault->length_ms < 8000 ? fault->length_ms : 8000;
    if (crash) {
        server_crash(sim);
        later(sim, length_ms, EV_SERVER_START, -1, 0);
    } else {
        sim->server_stopped = true;
        later(sim, length_ms, EV_SERVER_CONT, -1, sim->server_life);
    }
}

/* Cut off from the server. A client whose heartbeats stop coming back replaces its socket; the
 * server learns of the old one's end when the net is whole again. */
static void partition(struct sim *sim, const struct fault *fault)
{
    struct machine *m = &sim->machines[fault->machine];
    if (m->partitioned)
        return;
    m->partitioned = true;
    later(sim, fault->length_ms, EV_HEAL_NETWORK, fault->machine, 0);
    if (fault->length_ms < sim->profile.timeout_ms / 2 || m->agent == NULL || m->conn == 0)
        return;
    later(sim, sim->profile.timeout_ms / 2, EV_AGENT_DOWN, fault->machine, m->life);
    sim_push(sim, (struct event){.at_ms = sim->now_ms + fault->length_ms + 5,
                                 .kind = EV_SERVER_BROKEN,
                                 .machine = -1,
                                 .conn = m->conn});
}

static const char *const fault_names[FAULT_COUNT] = {
    "kill agent",       "kill rank", "rank exits",  "stop machine", "stop agent",  "stop rank",
    "wedge rank",       "leave",     "leave twice", "crash server", "stop server", "partition",
    "break connection", "slow",      "bad pair"};

void fault_strike(struct sim *sim, const struct fault *fault)
{
    struct machine *m = &sim->machines[fault->machine];
    struct proc *proc = m->procs[fault->local];
    bool has_rank = proc != NULL && proc->alive;
    sim_say(sim, "FAULT %s %s.%u %lld ms", fault_names[fault->kind], m->id, fault->local,
            (long long)fault->length_ms);
    m->hurt = m->hurt || fault->kind != FAULT_LEAVE || m->told_ms >= 0;
    switch (fault->kind) {
    case FAULT_KILL_AGENT:
        if (m->agent != NULL) {
            machine_kill(sim, fault->machine);
            later(sim, fault->length_ms, EV_MACHINE_START, fault->machine, 0);
        }
        break;
    case FAULT_KILL_RANK:
    case FAULT_EXIT_RANK:
        if (has_rank)
            proc_kill(sim, proc, fault->kind == FAULT_KILL_RANK ? -9 : 1);
        break;
    case FAULT_STOP_MACHINE:
    case FAULT_STOP_AGENT:
        stop_machine(sim, fault, fault->kind == FAULT_STOP_MACHINE);
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
        m->told_ms = sim->now_ms;
        later(sim, 0, EV_AGENT_SIGNAL, fault->machine, m->life);
        if (fault->kind == FAULT_LEAVE_TWICE)
            later(sim, 100, EV_AGENT_SIGNAL, fault->machine, m->life);
        break;
    case FAULT_CRASH_SERVER:
    case FAULT_STOP_SERVER:
        stop_server(sim, fault, fault->kind == FAULT_CRASH_SERVER);
        break;
    case FAULT_PARTITION:
        partition(sim, fault);
        break;
    case FAULT_BLIP:
        if (m->agent != NULL && m->conn != 0) {
            net_break(sim, fault->machine);
            later(sim, 1, EV_AGENT_DOWN, fault->machine, m->life);
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
    default:
        DPT_ASSERT(false);
    }
}
