/* The report of a modelled rank to its agent. */
#include "tests/sim/sim.h"

#include <stdlib.h>

static Dpt__RankPhase phase_of(const struct proc *proc)
{
    switch (proc->stage) {
    case RS_STARTING:
        return DPT__RANK_PHASE__RANK_STARTING;
    case RS_STANDBY:
        return DPT__RANK_PHASE__RANK_STANDBY;
    case RS_QUIESCED:
    case RS_BUILDING:
        return DPT__RANK_PHASE__RANK_QUIESCED;
    case RS_READY:
        return DPT__RANK_PHASE__RANK_READY;
    case RS_FINISHED:
        return DPT__RANK_PHASE__RANK_FINISHED;
    default:
        return DPT__RANK_PHASE__RANK_RUNNING;
    }
}

struct told_shards {
    Dpt__Shard shards[DPT_PROTO_SHARDS_MAX], *list[DPT_PROTO_SHARDS_MAX];
    size_t n;
};

static void tell_parts(struct told_shards *told, const struct parts *parts, bool pending)
{
    const struct dpt_shard both[2] = {parts->own, parts->shadow};
    for (int i = 0; i < 2; i++) {
        if (dpt_shard_is_none(both[i]))
            continue;
        Dpt__Shard *shard = &told->shards[told->n];
        dpt__shard__init(shard);
        shard->index = (uint32_t)both[i].index;
        shard->of = (uint32_t)both[i].of;
        shard->pending = pending;
        told->list[told->n++] = shard;
    }
}

static void tell_state(const struct sim *sim, const struct proc *proc, Dpt__RankState *state,
                       struct told_shards *told)
{
    told->n = 0;
    if (sim->profile.sharding != SHARDING_NONE && proc->step >= 0) {
        tell_parts(told, &proc->held, false);
        if (proc->pending_generation != 0)
            tell_parts(told, &proc->pending, true);
    }
    state->n_shards = told->n;
    state->shards = told->list;
    state->gradient = proc->step >= 0 && proc->gradient_step == proc->step + 1;
    state->pending_generation = proc->pending_generation;
    state->ran_generation = proc->ran_generation;
    state->rebuilding = proc->group != NULL && proc->group->rebuilds &&
                        proc->step < proc->group->resume_step + REBUILD_STEPS;
}

void model_report(struct sim *sim, struct proc *proc)
{
    char shm[96], tcp[64];
    (void)snprintf(shm, sizeof shm, "dpt-%s-%u-%u", sim->machines[proc->machine].id, proc->local,
                   proc->spawn);
    (void)snprintf(tcp, sizeof tcp, "10.0.%d.%d:%u", proc->machine / 250, proc->machine % 250,
                   1000 + proc->local);
    Dpt__RankState state = DPT__RANK_STATE__INIT;
    state.local_rank = proc->local;
    state.spawn = proc->spawn;
    state.phase = phase_of(proc);
    state.generation = proc->generation;
    state.shm_addr = shm;
    state.tcp_addr = tcp;
    state.step_applied = proc->step;
    state.outcome_step = proc->outcome_step;
    if (proc->stage == RS_QUIESCED && proc->outcome_step >= 0)
        state.outcome = (ProtobufCBinaryData){sizeof proc->outcome, (uint8_t *)&proc->outcome};
    struct told_shards told;
    tell_state(sim, proc, &state, &told);
    state.checkpoint_step = proc->checkpoint_seen;
    state.failed_generation = proc->failed_generation;
    state.suspect = proc->suspect;
    state.text = proc->failed_generation != 0 ? "connection to a peer broke" : "";
    state.grant_step = proc->want_grant;
    state.rescued_step = proc->rescued_step;
    state.soft_stop_seen = proc->prepare_soft && proc->prepare_generation > proc->generation;
    state.busy = proc->stage == RS_SAVING || proc->stage == RS_FINISHING;
    Dpt__RankToAgent message = DPT__RANK_TO_AGENT__INIT;
    message.state = &state;
    message.step_ms_median = proc->step_ms;
    struct event event = {.at_ms = sim->now_ms + 1,
                          .kind = EV_AGENT_RANK_MESSAGE,
                          .machine = proc->machine,
                          .life = proc->life,
                          .local = proc->local,
                          .spawn = proc->spawn};
    sim_pack(sim, &message.base, &event);
    sim_push(sim, event);
}
