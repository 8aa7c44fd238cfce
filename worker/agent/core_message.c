/* The messages of this node to its ranks and to the server. */
#include "worker/agent/core_state.h"

#include <string.h>

/* ---- to a rank ---- */

static Dpt__RankCommand command_for(const struct dpt_agent *agent, uint32_t local_rank)
{
    const struct agent_rank *rank = &agent->ranks[local_rank];
    if (agent->stage == STAGE_ENDING)
        return DPT__RANK_COMMAND__COMMAND_EXIT;
    if (agent->end.rescuing)
        return dpt_agent_is_rescuer(agent, local_rank) ? DPT__RANK_COMMAND__COMMAND_RESCUE
                                                       : DPT__RANK_COMMAND__COMMAND_STANDBY;
    if (rank->report.state.phase == DPT__RANK_PHASE__RANK_STARTING)
        return DPT__RANK_COMMAND__COMMAND_STANDBY;
    if (agent->gen.order == ORDER_PREPARE_SOFT)
        return DPT__RANK_COMMAND__COMMAND_PREPARE_SOFT;
    if (agent->gen.order == ORDER_PREPARE)
        return DPT__RANK_COMMAND__COMMAND_PREPARE;
    if (agent->gen.order == ORDER_NONE || rank->plan_rank < 0)
        return DPT__RANK_COMMAND__COMMAND_STANDBY;
    return agent->gen.order == ORDER_PLAN ? DPT__RANK_COMMAND__COMMAND_PLAN
                                          : DPT__RANK_COMMAND__COMMAND_GO;
}

void dpt_agent_send_to_rank(struct dpt_agent *agent, uint32_t local_rank)
{
    struct agent_rank *rank = &agent->ranks[local_rank];
    const struct agent_generation *gen = &agent->gen;
    struct agent_outputs *out = &agent->out;
    Dpt__AgentToRank *message = &out->to_rank[local_rank];
    dpt__agent_to_rank__init(message);
    message->command = command_for(agent, local_rank);
    message->generation = gen->number;
    /* A rank that has carried out the plan needs no copy of it. */
    if (message->command == DPT__RANK_COMMAND__COMMAND_PLAN ||
        (message->command == DPT__RANK_COMMAND__COMMAND_GO &&
         rank->report.state.generation != gen->number))
        message->plan = gen->plan;
    message->lease_until_ms = agent->lease.write_until_ms;
    message->confirmed_ms = agent->lease.confirmed_ms;
    message->grant_step = gen->grant_step;
    message->save_from = agent->server.save_from;
    message->dump = agent->server.dump;
    message->leaving = agent->end.leaving;
    message->prepare_ms = gen->prepare_ms;
    message->plan_ms = gen->plan_ms;
    /* The rank has exit_ms left to report the result. */
    if (message->command == DPT__RANK_COMMAND__COMMAND_RESCUE)
        message->rescue_by_ms = agent->end.drain_by_ms - agent->timing.exit_ms;
    if (message->command == DPT__RANK_COMMAND__COMMAND_PREPARE &&
        rank->asked_generation != gen->number) {
        rank->asked_generation = gen->number;
        rank->asked_ms = agent->now_ms;
    }
    rank->has_news = false;
    out->sends[out->n_sends++] =
        (struct dpt_agent_send){.local_rank = local_rank, .spawn = rank->spawn, .message = message};
}

/* ---- to the server ---- */

static Dpt__RankState *rank_state_for_server(struct dpt_agent *agent, uint32_t local_rank)
{
    struct agent_rank *rank = &agent->ranks[local_rank];
    Dpt__RankState *state = &rank->report.state;
    state->local_rank = local_rank;
    state->spawn = rank->spawn;
    state->plan_rank = rank->plan_rank;
    state->step_ms_median = rank->report.message.step_ms_median;
    state->silent_ms = agent->now_ms - rank->report_ms;
    if (rank->life != LIFE_UP)
        state->phase = DPT__RANK_PHASE__RANK_DEAD;
    return state;
}

/* Of the ranks of the node that have the same outcome, or the same error, only the first reports
 * it. */
static Dpt__RankState *without_repetition(struct dpt_agent *agent, Dpt__RankState *state)
{
    struct agent_outputs *out = &agent->out;
    bool outcome = false, text = false;
    for (uint32_t i = 0; i < state->local_rank; i++) {
        const Dpt__RankState *other = out->to_server_ranks[i];
        if (other->phase != state->phase || other->generation != state->generation)
            continue;
        outcome = outcome || (state->outcome.len > 0 && other->outcome.len > 0 &&
                              other->outcome_step == state->outcome_step);
        text = text || (state->text[0] != '\0' && strcmp(other->text, state->text) == 0 &&
                        other->failed_generation == state->failed_generation);
    }
    if (!outcome && !text)
        return state;
    Dpt__RankState *copy = &out->without_repetition[state->local_rank];
    *copy = *state;
    if (outcome)
        copy->outcome.len = 0;
    if (text)
        copy->text = out->no_text;
    return copy;
}

static void add_health(struct dpt_agent *agent, Dpt__AgentState *state)
{
    struct dpt_agent_facts *facts = &agent->node.facts;
    if (!facts->health.checked)
        return;
    facts->health.round_trip_us = agent->server.round_trip_us;
    dpt_health_to_message(&facts->health, &agent->out.health);
    agent->out.health.fault = facts->health_fault;
    state->health = &agent->out.health;
}

/* Adds the fields that a configured node knows. */
static void add_configured_state(struct dpt_agent *agent, Dpt__AgentState *state)
{
    struct dpt_agent_facts *facts = &agent->node.facts;
    if (!dpt_agent_spec_is_known(agent)) {
        state->spec = agent->node.spec;
        add_health(agent, state);
        if (agent->server.spec_counter == 0)
            agent->server.spec_counter = state->counter;
    }
    state->fingerprint = facts->fingerprint;
    state->host = facts->host;
    state->host_name = facts->host_name;
    state->rack = facts->rack;
    state->log_dir_id = facts->log_dir_id;
    state->checkpoint_dir_id = facts->checkpoint_dir_id;
    state->data_digest = facts->data_digest;
    state->secret = (ProtobufCBinaryData){sizeof facts->secret, facts->secret};
    state->leaving = agent->end.leaving;
    state->crashes = agent->errors.crashes;
    state->fatal = agent->errors.fatal;
    state->step_high = agent->step_high;
    if (agent->errors.first[0] != '\0') {
        state->first_error = agent->errors.first;
        state->first_error_ms_ago = agent->now_ms - agent->errors.first_ms;
    }
    if (agent->gen.plan != NULL) {
        state->plan_digest = agent->gen.plan->digest;
        state->plan_world = agent->gen.plan->world_size;
    }
    state->ranks = agent->out.to_server_ranks;
    for (uint32_t i = 0; i < agent->n_ranks && agent->ranks[i].spawn > 0; i++)
        agent->out.to_server_ranks[state->n_ranks++] =
            without_repetition(agent, rank_state_for_server(agent, i));
}

const Dpt__AgentState *dpt_agent_make_state(struct dpt_agent *agent)
{
    Dpt__AgentState *state = &agent->out.to_server;
    Dpt__Stamp *stamp = &agent->out.stamp;
    dpt__agent_state__init(state);
    dpt__stamp__init(stamp);
    stamp->epoch = agent->server.epoch;
    stamp->run = agent->node.run;
    stamp->generation = agent->gen.number;
    stamp->node = agent->node.id;
    stamp->incarnation = agent->node.incarnation;
    state->version = DPT_PROTO_VERSION;
    state->software = agent->node.software;
    state->stamp = stamp;
    state->counter = ++agent->server.counter;
    agent->lease.sent_ms[state->counter % SENT_MAX] = agent->now_ms;
    if (agent->node.spec != NULL)
        add_configured_state(agent, state);
    return state;
}
