/* What the server says, and what it is told. */
#include "worker/agent/core_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void dpt_agent_drop_plan(struct dpt_agent *agent)
{
    if (agent->plan != NULL)
        dpt__plan__free_unpacked(agent->plan, NULL);
    agent->plan = NULL;
    for (uint32_t i = 0; i < DPT_PROTO_RANKS_MAX; i++)
        agent->ranks[i].plan_rank = -1;
}

/* ---- orders ---- */

static void take_prepare(struct dpt_agent *agent, const Dpt__ServerState *message)
{
    if (message->stamp->generation <= agent->generation)
        return;
    agent->generation = message->stamp->generation;
    agent->prepare_ms = agent->now_ms;
    agent->order = message->soft ? ORDER_PREPARE_SOFT : ORDER_PREPARE;
    if (!message->soft) {
        agent->grant_step = -1;
        dpt_agent_drop_plan(agent);
    }
    agent->tell_server = true;
    dpt_agent_tell_ranks(agent);
}

static bool copy_plan(struct dpt_agent *agent, const Dpt__Plan *plan)
{
    size_t bytes = dpt__plan__get_packed_size(plan);
    uint8_t *packed = malloc(bytes + 1);
    Dpt__Plan *copy = NULL;
    if (packed != NULL) {
        (void)dpt__plan__pack(plan, packed);
        copy = dpt__plan__unpack(NULL, bytes, packed);
    }
    free(packed);
    if (copy == NULL) {
        agent->no_memory = true;
        return false;
    }
    dpt_agent_drop_plan(agent);
    agent->plan = copy;
    return true;
}

/* A plan names processes by the reports that it was made from: a successor that has quiesced for
 * the same generation is not meant. */
static void take_plan(struct dpt_agent *agent, const Dpt__ServerState *message)
{
    const Dpt__Plan *plan = message->plan;
    bool prepared = agent->order == ORDER_PREPARE || agent->order == ORDER_PREPARE_SOFT;
    if (plan == NULL || plan->generation != agent->generation ||
        message->stamp->generation != agent->generation || !prepared || !copy_plan(agent, plan))
        return;
    for (size_t i = 0; i < plan->n_ranks; i++) {
        int32_t local = plan->ranks[i]->local_rank;
        if (local < 0 || (uint32_t)local >= agent->n_ranks)
            continue;
        struct agent_rank *rank = &agent->ranks[local];
        if (rank->life == LIFE_UP && rank->spawn == plan->ranks[i]->spawn &&
            rank->state.phase == DPT__RANK_PHASE__RANK_QUIESCED &&
            rank->state.generation == agent->generation)
            rank->plan_rank = (int32_t)plan->ranks[i]->rank;
    }
    agent->order = ORDER_PLAN;
    agent->plan_ms = agent->now_ms;
    agent->grant_step = -1;
    agent->tell_server = true;
    dpt_agent_tell_ranks(agent);
}

/* For people: how long training stood still, whose lines are printed here. Steps that were lost are
 * not those of the world that goes on. */
static void note_go(struct dpt_agent *agent)
{
    const bool soft = strcmp(agent->plan->cause_kind, "joined") == 0 ||
                      strcmp(agent->plan->cause_kind, "left") == 0;
    /* A soft stop comes some steps after PREPARE; a loss may have been waited out before it. */
    const bool earlier = agent->still_since_ms >= 0 && agent->still_since_ms < agent->prepare_ms;
    const bool later = agent->still_since_ms > agent->prepare_ms;
    const int64_t since_ms =
        (soft && later) || (!soft && earlier) ? agent->still_since_ms : agent->prepare_ms;
    agent->still_ms = (int64_t)agent->plan->detect_ms + agent->now_ms - since_ms;
    agent->first_local = -1;
    for (uint32_t i = 0; i < agent->n_ranks; i++) {
        struct agent_rank *rank = &agent->ranks[i];
        if (rank->plan_rank == 0)
            agent->first_local = (int32_t)i;
        while (rank->n_steps > 0 && rank->steps[rank->n_steps - 1].step > agent->plan->resume_step)
            rank->n_steps--;
    }
}

static void take_go(struct dpt_agent *agent, const Dpt__ServerState *message)
{
    if (message->stamp->generation != agent->generation || agent->order != ORDER_PLAN)
        return;
    agent->order = ORDER_GO;
    note_go(agent);
    agent->step_high = agent->plan->resume_step; /* what it lost is told in its plan */
    agent->gone_step = 0;
    agent->expulsions = 0;
    dpt_agent_tell_ranks(agent);
}

static void take_spare(struct dpt_agent *agent, const Dpt__ServerState *message)
{
    uint64_t generation = message->stamp->generation;
    bool prepared = agent->order == ORDER_PREPARE || agent->order == ORDER_PREPARE_SOFT;
    if (generation < agent->generation || (generation == agent->generation && !prepared))
        return;
    agent->generation = generation;
    agent->order = ORDER_NONE;
    agent->step_high = agent->gone_step = 0;
    agent->grant_step = -1;
    dpt_agent_drop_plan(agent);
    dpt_agent_tell_ranks(agent);
}

static void take_grant(struct dpt_agent *agent, const Dpt__ServerState *message)
{
    bool runs = agent->order == ORDER_GO || agent->order == ORDER_PREPARE_SOFT;
    if (!runs || message->grant_step <= agent->grant_step ||
        message->stamp->generation != agent->generation)
        return;
    agent->grant_step = message->grant_step;
    dpt_agent_tell_ranks(agent);
}

/* The ranks here may be sound: they write what no checkpoint holds, or clear away a checkpoint that
 * they have begun. */
static void take_failed(struct dpt_agent *agent, const char *why)
{
    const int code = agent->fatal ? agent->fatal_code : DPT_EXIT_FAILED;
    char text[sizeof agent->rescue_text];
    (void)snprintf(text, sizeof text, "the run failed: %s", why);
    if (!dpt_agent_end_by_rescue(agent, code, text))
        dpt_agent_end(agent, code, true, NULL, "%s", text);
}

/* Ends that mean the same whether or not the server counts this incarnation in. */
static bool take_end(struct dpt_agent *agent, const Dpt__ServerState *message)
{
    switch (message->phase) {
    case DPT__SERVER_PHASE__SERVER_DONE:
    case DPT__SERVER_PHASE__SERVER_RELEASED:
        agent->phase = message->phase;
        agent->done = message->phase == DPT__SERVER_PHASE__SERVER_DONE;
        agent->last_holder =
            message->phase == DPT__SERVER_PHASE__SERVER_RELEASED && message->last_holder;
        /* Nodes had the same to save, in one folder, which took nothing: the folder here may. */
        if (!agent->last_holder || agent->n_nodes <= 1 ||
            !dpt_agent_end_by_rescue(agent, DPT_EXIT_DONE, ""))
            dpt_agent_end(agent, DPT_EXIT_DONE, true, NULL, "%s", "");
        return true;
    case DPT__SERVER_PHASE__SERVER_FAILED:
        take_failed(agent, message->text);
        return true;
    case DPT__SERVER_PHASE__SERVER_EXPELLED:
        if (message->saved_step > agent->saved_step)
            agent->saved_step = message->saved_step;
        dpt_agent_expelled(agent, message->world_step, message->text);
        return true;
    case DPT__SERVER_PHASE__SERVER_REFUSED:
        dpt_agent_end(agent, DPT_EXIT_CONFIG, false, message->spec, "refused by the server: %s",
                      message->text);
        return true;
    default:
        return false;
    }
}

/* The server has heard of the fatal error here and ends neither the run nor this node: it is young,
 * and may not have heard yet of others that train. Nothing here waits for that. */
static bool has_told_fatal(const struct dpt_agent *agent)
{
    return agent->fatal && agent->counter_seen > agent->fatal_counter;
}

/* The server does not count this incarnation in (yet): it hands out the config, or asks for all. */
static void take_hello(struct dpt_agent *agent, const Dpt__ServerState *message)
{
    if (!agent->configured) {
        if (agent->configure_asked)
            return;
        agent->configure_asked = true;
        if (message->spec != NULL &&
            dpt_agent_copy_spec(agent, message->spec, &agent->configure_spec))
            agent->has_configure_spec = true;
        dpt_agent_act(agent, &(struct dpt_agent_action){.kind = DPT_AGENT_ACTION_CONFIGURE,
                                                        .spec = agent->has_configure_spec
                                                                    ? &agent->configure_spec
                                                                    : NULL});
        return;
    }
    if (agent->spec_known)
        agent->tell_server = true;
    agent->spec_known = false;
    agent->spec_counter = 0;
}

static void take_last_call(struct dpt_agent *agent, const Dpt__ServerState *message)
{
    const bool settling = message->phase == DPT__SERVER_PHASE__SERVER_SETTLING;
    if (settling && message->n_nodes != agent->last_call_nodes)
        agent->last_call_ms = message->last_call_ms;
    agent->last_call_nodes = settling ? message->n_nodes : 0;
    dpt_agent_copy_text(agent->reason, sizeof agent->reason, settling ? message->text : "");
}

/* What was made here until then was made by a world that counts: the server that says so has this
 * incarnation in a generation, or had since it last said so. One that was restarted a moment ago
 * answers before it knows of a newer generation. Told at once: ranks write lines of the log by it.
 */
static void confirm(struct dpt_agent *agent, Dpt__ServerPhase phase)
{
    const uint64_t seen = agent->counter_seen;
    if (phase == DPT__SERVER_PHASE__SERVER_RUNNING || phase == DPT__SERVER_PHASE__SERVER_DRAINING)
        agent->confirming_epoch = agent->epoch;
    if (agent->confirming_epoch != agent->epoch || phase == DPT__SERVER_PHASE__SERVER_EXPELLED ||
        phase == DPT__SERVER_PHASE__SERVER_REFUSED)
        return;
    if (seen > agent->counter || agent->counter - seen >= SENT_MAX ||
        agent->sent_ms[seen % SENT_MAX] <= agent->confirmed_ms)
        return;
    agent->confirmed_ms = agent->sent_ms[seen % SENT_MAX];
    dpt_agent_tell_ranks(agent);
}

/* Newest word of the server that counts us in. False: stale. A message of another epoch is that of
 * a restarted server if it has seen more of us than the old one had when it last spoke. */
static bool take_counters(struct dpt_agent *agent, const Dpt__ServerState *message)
{
    if (message->stamp->epoch == agent->epoch) {
        if (message->counter <= agent->server_counter)
            return false;
    } else {
        if (agent->epoch != 0 && message->counter_seen <= agent->counter_seen)
            return false;
        if (agent->epoch != 0)
            dpt_agent_log(agent, DPT_LOG_INFO, "the server was restarted and counts this node in");
        agent->epoch = message->stamp->epoch;
        agent->spec_known = false;
    }
    agent->server_counter = message->counter;
    if (message->counter_seen > agent->counter_seen)
        agent->counter_seen = message->counter_seen;
    if (agent->spec_counter != 0 && message->counter_seen >= agent->spec_counter)
        agent->spec_known = true;
    if (agent->fenced && message->counter_seen > agent->fence_counter)
        agent->fenced = false;
    return true;
}

void dpt_agent_on_server(struct dpt_agent *agent, const Dpt__ServerState *message)
{
    const Dpt__Stamp *stamp = message->stamp;
    if (agent->stage >= STAGE_RESETTING || strcmp(stamp->run, agent->run) != 0 ||
        strcmp(stamp->node, agent->node) != 0 || stamp->incarnation != agent->incarnation)
        return;
    if (agent->rescuing) { /* it takes no part any more; but what others have saved is not lost */
        if (message->version == DPT_PROTO_VERSION && message->saved_step > agent->saved_step)
            agent->saved_step = message->saved_step;
        return;
    }
    agent->contact_ms = agent->now_ms;
    agent->heard_ever = true;
    if (message->version != DPT_PROTO_VERSION) {
        dpt_agent_end(agent, DPT_EXIT_CONFIG, false, NULL,
                      "the server speaks protocol %u, this worker (%s) protocol %d: %s",
                      message->version, agent->software, DPT_PROTO_VERSION, message->text);
        return;
    }
    agent->n_nodes = message->n_nodes;
    if (message->counter_seen == 0) {
        if (!take_end(agent, message))
            take_hello(agent, message);
        return;
    }
    if (!take_counters(agent, message))
        return;
    agent->phase = message->phase;
    if (message->saved_step > agent->saved_step)
        agent->saved_step = message->saved_step;
    take_last_call(agent, message);
    confirm(agent, message->phase);
    if (take_end(agent, message))
        return;
    if (has_told_fatal(agent)) {
        dpt_agent_end(agent, agent->fatal_code, true, NULL, "%s", agent->first_error);
        return;
    }
    if (agent->stage == STAGE_JOINING) {
        agent->stage = STAGE_JOINED;
        dpt_agent_spawn_ranks(agent);
    }
    switch (message->phase) {
    case DPT__SERVER_PHASE__SERVER_PREPARE:
        take_prepare(agent, message);
        break;
    case DPT__SERVER_PHASE__SERVER_PLAN:
        take_plan(agent, message);
        break;
    case DPT__SERVER_PHASE__SERVER_RUNNING:
    case DPT__SERVER_PHASE__SERVER_DRAINING:
        take_go(agent, message);
        break;
    case DPT__SERVER_PHASE__SERVER_SPARE:
        take_spare(agent, message);
        break;
    default:
        break; /* WAITING and SETTLING change nothing: what was quiesced stays so */
    }
    take_grant(agent, message);
}

/* ---- to the server ---- */

static Dpt__RankState *rank_state(struct dpt_agent *agent, uint32_t local_rank)
{
    struct agent_rank *rank = &agent->ranks[local_rank];
    rank->state.local_rank = local_rank;
    rank->state.spawn = rank->spawn;
    rank->state.plan_rank = rank->plan_rank;
    rank->state.step_ms_median = rank->step_ms_median;
    rank->state.silent_ms = agent->now_ms - rank->word_ms;
    if (rank->life != LIFE_UP)
        rank->state.phase = DPT__RANK_PHASE__RANK_DEAD;
    return &rank->state;
}

const Dpt__AgentState *dpt_agent_make_state(struct dpt_agent *agent)
{
    Dpt__AgentState *state = &agent->to_server;
    dpt__agent_state__init(state);
    dpt__stamp__init(&agent->stamp);
    agent->stamp.epoch = agent->epoch;
    agent->stamp.run = agent->run;
    agent->stamp.generation = agent->generation;
    agent->stamp.node = agent->node;
    agent->stamp.incarnation = agent->incarnation;
    state->version = DPT_PROTO_VERSION;
    state->software = agent->software;
    state->stamp = &agent->stamp;
    state->counter = ++agent->counter;
    agent->sent_ms[agent->counter % SENT_MAX] = agent->now_ms;
    if (!agent->configured)
        return state;
    if (!agent->spec_known) {
        state->spec = &agent->spec;
        if (agent->spec_counter == 0)
            agent->spec_counter = state->counter;
    }
    state->fingerprint = agent->fingerprint;
    state->host = agent->host;
    state->host_name = agent->host_name;
    state->log_dir_id = agent->log_dir_id;
    state->checkpoint_dir_id = agent->checkpoint_dir_id;
    state->data_digest = agent->data_digest;
    state->secret = (ProtobufCBinaryData){sizeof agent->secret, agent->secret};
    state->leaving = agent->leaving;
    state->crashes = agent->crashes;
    state->fatal = agent->fatal;
    state->step_high = agent->step_high;
    if (agent->first_error[0] != '\0') {
        state->first_error = agent->first_error;
        state->first_error_ms_ago = agent->now_ms - agent->error_ms;
    }
    if (agent->plan != NULL) {
        state->plan_digest = agent->plan->digest;
        state->plan_world = agent->plan->world_size;
    }
    state->ranks = agent->to_server_ranks;
    for (uint32_t i = 0; i < agent->n_ranks && agent->ranks[i].spawn > 0; i++)
        agent->to_server_ranks[state->n_ranks++] = rank_state(agent, i);
    return state;
}
