/* Messages of the crowd's agents and of their operator. */
#include "tests/rendezvous/scale/crowd_internal.h"

static void fill_rank(const struct crowd *crowd, const struct member *member, uint32_t local,
                      Dpt__RankState *rank)
{
    dpt__rank_state__init(rank);
    rank->local_rank = local;
    rank->spawn = 1;
    rank->phase = member->rank_phase;
    rank->generation = member->rank_generation;
    rank->shm_addr = (char *)member->id;
    rank->tcp_addr = (char *)member->tcp;
    rank->step_applied = crowd->step;
    rank->outcome_step = rank->checkpoint_step = rank->grant_step = -1;
    rank->suspect = local == 0 ? member->suspect : -1;
    rank->failed_generation = member->failed_generation;
    rank->step_ms_median = 50;
    rank->plan_rank = member->first_rank < 0 ? -1 : member->first_rank + (int32_t)local;
}

static Dpt__RunSpec spec_of(const struct crowd *crowd)
{
    Dpt__RunSpec spec = DPT__RUN_SPEC__INIT;
    spec.min_nodes = 1;
    spec.max_nodes = crowd->n;
    spec.timeout_ms = CROWD_TIMEOUT_MS;
    spec.max_restarts = 100;
    spec.max_world = crowd->n * crowd->ranks;
    spec.config_digest = (char *)"digest";
    spec.config_yaml = (char *)"run: demo\n";
    spec.user = (char *)"alice";
    return spec;
}

size_t crowd_encode_state(struct crowd *crowd, struct member *member)
{
    static uint8_t secret[DPT_PROTO_SECRET_BYTES] = {7};
    Dpt__RankState ranks[DPT_PROTO_RANKS_MAX];
    Dpt__RankState *list[DPT_PROTO_RANKS_MAX];
    Dpt__AgentState state = DPT__AGENT_STATE__INIT;
    Dpt__Stamp stamp = DPT__STAMP__INIT;
    Dpt__RunSpec spec = spec_of(crowd);
    size_t bytes = 0;
    struct dpt_err err;
    for (uint32_t i = 0; i < crowd->ranks; i++) {
        fill_rank(crowd, member, i, &ranks[i]);
        list[i] = &ranks[i];
    }
    stamp.epoch = member->epoch;
    stamp.run = (char *)"demo";
    stamp.generation = member->generation;
    stamp.node = member->id;
    stamp.incarnation = 1;
    state.version = DPT_PROTO_VERSION;
    state.software = (char *)"dpt scale";
    state.stamp = &stamp;
    state.counter = ++member->counter;
    state.spec = member->is_known ? NULL : &spec;
    state.fingerprint = (char *)"cpu";
    state.host = state.host_name = member->id;
    state.log_dir_id = (char *)"logs";
    state.checkpoint_dir_id = (char *)"checkpoints";
    state.data_digest = (char *)"data";
    state.plan_digest = member->digest;
    state.plan_world = member->world;
    state.secret = (ProtobufCBinaryData){sizeof secret, secret};
    state.ranks = list;
    state.n_ranks = crowd->ranks;
    if (dpt_message_encode(&state.base, crowd->in, CROWD_MESSAGE_BYTES_MAX, &bytes, &err) != DPT_OK)
        crowd_fail("encode a state", err.text);
    return bytes;
}

size_t crowd_encode_command(struct crowd *crowd, Dpt__ControlVerb verb)
{
    Dpt__AgentState state = DPT__AGENT_STATE__INIT;
    Dpt__Stamp stamp = DPT__STAMP__INIT;
    Dpt__Control control = DPT__CONTROL__INIT;
    size_t bytes = 0;
    struct dpt_err err;
    control.verb = verb;
    control.run = stamp.run = (char *)"demo";
    control.step = -1;
    stamp.node = (char *)"dpt-ctl";
    stamp.incarnation = 1;
    state.version = DPT_PROTO_VERSION;
    state.software = (char *)"dpt scale";
    state.stamp = &stamp;
    state.counter = 1;
    state.control = &control;
    if (dpt_message_encode(&state.base, crowd->in, CROWD_MESSAGE_BYTES_MAX, &bytes, &err) != DPT_OK)
        crowd_fail("encode a command", err.text);
    return bytes;
}
