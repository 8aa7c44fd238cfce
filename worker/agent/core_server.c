/* The messages of the server: orders to the ranks, and ends of this node or of the run. */
#include "worker/agent/core_state.h"

#include "base/hash.h"

#include <stdio.h>
#include <string.h>

/* ---- orders ---- */

static bool is_preparing(const struct dpt_agent *agent)
{
    return agent->gen.order == ORDER_PREPARE || agent->gen.order == ORDER_PREPARE_SOFT;
}

static void take_prepare(struct dpt_agent *agent, const Dpt__ServerState *message)
{
    struct agent_generation *gen = &agent->gen;
    if (message->stamp->generation <= gen->number)
        return;
    gen->number = message->stamp->generation;
    gen->prepare_ms = agent->now_ms;
    gen->order = message->soft ? ORDER_PREPARE_SOFT : ORDER_PREPARE;
    if (!message->soft)
        dpt_agent_drop_plan(agent);
    dpt_agent_tell_ranks(agent);
}

/* The server makes a plan of reports, and the plan names the processes that reported. A later
 * process that has quiesced for the same generation has no place in the plan. */
static void take_plan(struct dpt_agent *agent, const Dpt__ServerState *message)
{
    const Dpt__Plan *plan = message->plan;
    struct agent_generation *gen = &agent->gen;
    if (plan == NULL || plan->generation != gen->number ||
        message->stamp->generation != gen->number || !is_preparing(agent))
        return;
    Dpt__Plan *copy = dpt_agent_copy_message(agent, &plan->base);
    if (copy == NULL)
        return;
    dpt_agent_drop_plan(agent);
    gen->plan = copy;
    for (size_t i = 0; i < plan->n_ranks; i++) {
        int32_t local = plan->ranks[i]->local_rank;
        if (local < 0 || (uint32_t)local >= agent->n_ranks)
            continue;
        struct agent_rank *rank = &agent->ranks[local];
        if (rank->life == LIFE_UP && rank->spawn == plan->ranks[i]->spawn &&
            rank->report.state.phase == DPT__RANK_PHASE__RANK_QUIESCED &&
            rank->report.state.generation == gen->number)
            rank->plan_rank = (int32_t)plan->ranks[i]->rank;
    }
    gen->order = ORDER_PLAN;
    gen->plan_ms = agent->now_ms;
    dpt_agent_tell_ranks(agent);
}

/* Duration of the standstill of training before this generation. A soft stop comes some steps after
 * PREPARE; before a hard PREPARE the ranks may have waited for a lost rank. */
static int64_t standstill_ms(const struct dpt_agent *agent)
{
    const struct agent_generation *gen = &agent->gen;
    const bool soft =
        strcmp(gen->plan->cause_kind, "joined") == 0 || strcmp(gen->plan->cause_kind, "left") == 0;
    const bool earlier = gen->still_since_ms >= 0 && gen->still_since_ms < gen->prepare_ms;
    const bool later = gen->still_since_ms > gen->prepare_ms;
    const int64_t since_ms =
        (soft && later) || (!soft && earlier) ? gen->still_since_ms : gen->prepare_ms;
    return (int64_t)gen->plan->detect_ms + agent->now_ms - since_ms;
}

static void take_go(struct dpt_agent *agent, const Dpt__ServerState *message)
{
    struct agent_generation *gen = &agent->gen;
    if (message->stamp->generation != gen->number || gen->order != ORDER_PLAN)
        return;
    const int64_t resume_step = gen->plan->resume_step;
    gen->order = ORDER_GO;
    gen->still_ms = standstill_ms(agent);
    gen->first_local = -1;
    for (uint32_t i = 0; i < agent->n_ranks; i++) {
        struct agent_rank *rank = &agent->ranks[i];
        Dpt__RankToAgent *report = &rank->report.message;
        if (rank->plan_rank == 0)
            gen->first_local = (int32_t)i;
        /* Steps after resume_step are lost: the world computes them again. */
        while (report->n_steps > 0 && report->steps[report->n_steps - 1]->step > resume_step)
            report->n_steps--;
    }
    /* The plan names the lost steps. */
    agent->step_high = resume_step;
    agent->gone.step = 0;
    agent->expulsions = 0;
    dpt_agent_tell_ranks(agent);
}

static void take_spare(struct dpt_agent *agent, const Dpt__ServerState *message)
{
    struct agent_generation *gen = &agent->gen;
    const uint64_t number = message->stamp->generation;
    if (number < gen->number || (number == gen->number && !is_preparing(agent)))
        return;
    gen->number = number;
    gen->order = ORDER_NONE;
    agent->step_high = agent->gone.step = 0;
    dpt_agent_drop_plan(agent);
    dpt_agent_tell_ranks(agent);
}

static void take_grant(struct dpt_agent *agent, const Dpt__ServerState *message)
{
    struct agent_generation *gen = &agent->gen;
    const bool runs = gen->order == ORDER_GO || gen->order == ORDER_PREPARE_SOFT;
    if (!runs || message->grant_step <= gen->grant_step ||
        message->stamp->generation != gen->number)
        return;
    gen->grant_step = message->grant_step;
    dpt_agent_tell_ranks(agent);
}

/* ---- ends ---- */

static void take_saved_step(struct dpt_agent *agent, const Dpt__ServerState *message)
{
    if (message->saved_step > agent->server.saved_step)
        agent->server.saved_step = message->saved_step;
}

/* The run has ended. If an operator has stopped it, this node may hold steps that nobody has saved:
 * the end reports them. */
static void take_done(struct dpt_agent *agent, const Dpt__ServerState *message)
{
    agent->server.phase = message->phase;
    agent->server.paused = message->last_holder;
    take_saved_step(agent, message);
    dpt_agent_end(agent, END_IN_ORDER, DPT_EXIT_DONE, "%s", "");
}

static void take_failed(struct dpt_agent *agent, const char *why)
{
    char text[END_TEXT_BYTES];
    (void)snprintf(text, sizeof text, "the run failed: %s", why);
    dpt_agent_end_saved(agent, agent->errors.fatal ? agent->errors.fatal_code : DPT_EXIT_FAILED,
                        text);
}

static void take_released(struct dpt_agent *agent, const Dpt__ServerState *message)
{
    agent->server.phase = message->phase;
    agent->end.last_holder = message->last_holder;
    /* The nodes that leave together have failed to save in a common folder. This node's own folder
     * may take a rescue. */
    if (message->last_holder && agent->server.n_nodes > 1)
        dpt_agent_end_saved(agent, DPT_EXIT_DONE, "");
    else
        dpt_agent_end(agent, END_IN_ORDER, DPT_EXIT_DONE, "%s", "");
}

/* A node that was in the run is out of it: an operator has evicted it, or another node or run has
 * taken its place. Only a node that never got in has a configuration to mend. */
static void take_refused(struct dpt_agent *agent, const Dpt__ServerState *message)
{
    struct agent_end *end = &agent->end;
    const bool was_in = agent->stage == STAGE_JOINED || agent->expulsions > 0;
    if (message->spec != NULL && end->spec == NULL)
        end->spec = dpt_agent_copy_message(agent, &message->spec->base);
    dpt_agent_end(agent, END_AT_ONCE, was_in ? DPT_EXIT_EXPELLED : DPT_EXIT_CONFIG,
                  "refused by the server: %s", message->text);
}

/* Handles the phases that end this node or the run, whether or not the server counts this
 * incarnation in. False: the phase is another one. */
static bool take_ending_phase(struct dpt_agent *agent, const Dpt__ServerState *message)
{
    switch (message->phase) {
    case DPT__SERVER_PHASE__SERVER_DONE:
        take_done(agent, message);
        return true;
    case DPT__SERVER_PHASE__SERVER_RELEASED:
        take_released(agent, message);
        return true;
    case DPT__SERVER_PHASE__SERVER_FAILED:
        take_failed(agent, message->text);
        return true;
    case DPT__SERVER_PHASE__SERVER_EXPELLED:
        take_saved_step(agent, message);
        dpt_agent_on_expelled(agent, message->world_step, message->text);
        return true;
    case DPT__SERVER_PHASE__SERVER_REFUSED:
        take_refused(agent, message);
        return true;
    default:
        return false;
    }
}

/* Whether this node ends by its own fatal error. The server knows of the error and ends neither the
 * run nor this node: it has just been started and may not know yet that other nodes train. This
 * node does not wait for that knowledge. */
static bool ends_by_fatal_error(const struct dpt_agent *agent)
{
    return agent->errors.fatal && agent->server.seen > agent->errors.fatal_counter;
}

/* ---- counters ---- */

/* Handles a message of a server that does not count this incarnation in. The server sends the run's
 * config, or asks for this node's whole state. */
static void take_hello(struct dpt_agent *agent, const Dpt__ServerState *message)
{
    struct agent_outputs *out = &agent->out;
    if (agent->node.spec != NULL) {
        out->server_due = out->server_due || dpt_agent_spec_is_known(agent);
        agent->server.spec_counter = 0;
        return;
    }
    if (agent->server.configure_asked)
        return;
    agent->server.configure_asked = true;
    if (message->spec != NULL)
        out->configure_spec = dpt_agent_copy_message(agent, &message->spec->base);
    dpt_agent_act(agent, &(struct dpt_agent_action){.kind = DPT_AGENT_ACTION_CONFIGURE,
                                                    .spec = out->configure_spec});
}

static void take_last_call(struct dpt_agent *agent, const Dpt__ServerState *message)
{
    struct agent_server *server = &agent->server;
    const bool settling = message->phase == DPT__SERVER_PHASE__SERVER_SETTLING;
    if (settling && message->n_nodes != server->last_call_nodes)
        server->last_call_ms = message->last_call_ms;
    server->last_call_nodes = settling ? message->n_nodes : 0;
    dpt_agent_copy_text(server->reason, sizeof server->reason, settling ? message->text : "");
}

/* Notes that the server has confirmed this node: when the node sent the echoed message, its world
 * was the newest. The server must have said RUNNING or DRAINING to this incarnation. A server that
 * was restarted answers before it knows of newer generations, and confirms nothing. Ranks append
 * lines of the log by this time. */
static void take_confirmation(struct dpt_agent *agent, Dpt__ServerPhase phase)
{
    struct agent_lease *lease = &agent->lease;
    const uint64_t seen = agent->server.seen;
    if (phase == DPT__SERVER_PHASE__SERVER_RUNNING || phase == DPT__SERVER_PHASE__SERVER_DRAINING)
        lease->confirming_epoch = agent->server.epoch;
    if (lease->confirming_epoch != agent->server.epoch ||
        phase == DPT__SERVER_PHASE__SERVER_EXPELLED || phase == DPT__SERVER_PHASE__SERVER_REFUSED)
        return;
    if (seen > agent->server.counter || agent->server.counter - seen >= SENT_MAX ||
        lease->sent_ms[seen % SENT_MAX] <= lease->confirmed_ms)
        return;
    lease->confirmed_ms = lease->sent_ms[seen % SENT_MAX];
    dpt_agent_tell_ranks(agent);
}

/* Takes the counters of a message. False: the message is stale. A message of another epoch is from
 * a restarted server if it echoes a later message of this node than the old server did. */
static bool take_counters(struct dpt_agent *agent, const Dpt__ServerState *message)
{
    struct agent_server *server = &agent->server;
    if (message->stamp->epoch == server->epoch) {
        if (message->counter <= server->its_counter)
            return false;
    } else {
        if (server->epoch != 0 && message->counter_seen <= server->seen)
            return false;
        if (server->epoch != 0)
            dpt_agent_log(agent, DPT_LOG_INFO,
                          "the server was restarted and has this node as a member again");
        server->epoch = message->stamp->epoch;
    }
    server->its_counter = message->counter;
    if (message->counter_seen > server->seen)
        server->seen = message->counter_seen;
    if (agent->lease.fenced && message->counter_seen > agent->lease.fence_counter)
        agent->lease.fenced = false;
    return true;
}

/* The first message after a change comes at a moment that depends on the node, so that nodes that
 * are told together do not send together. It comes no later than it would have come. */
static void take_pause(struct dpt_agent *agent, const Dpt__ServerState *message)
{
    struct agent_server *server = &agent->server;
    const int64_t most_ms = agent->timing.lease_ms / 4;
    const int64_t pause_ms = message->heartbeat_ms < most_ms ? message->heartbeat_ms : most_ms;
    if (pause_ms == server->pause_ms)
        return;
    server->pause_ms = pause_ms;
    const uint64_t hash = dpt_hash128(agent->node.id, strlen(agent->node.id)).lo;
    const int64_t beat_ms =
        agent->now_ms + (pause_ms > 0 ? (int64_t)(hash % (uint64_t)pause_ms) : 0);
    if (beat_ms < server->beat_ms)
        server->beat_ms = beat_ms;
}

static void take_order(struct dpt_agent *agent, const Dpt__ServerState *message)
{
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
        /* WAITING and SETTLING: ranks that have quiesced stay quiesced. */
        break;
    }
    take_grant(agent, message);
}

/* Takes what an operator wants, save a drain. */
static void take_requests(struct dpt_agent *agent, const Dpt__ServerState *message)
{
    struct agent_server *server = &agent->server;
    server->paused = message->paused;
    if (server->save_from != message->save_from || server->dump != message->dump)
        dpt_agent_tell_ranks(agent);
    server->save_from = message->save_from;
    server->dump = message->dump;
}

/* Handles a message of a server that counts this incarnation in. */
static void take_member_message(struct dpt_agent *agent, const Dpt__ServerState *message)
{
    if (!take_counters(agent, message))
        return;
    agent->server.phase = message->phase;
    take_pause(agent, message);
    take_saved_step(agent, message);
    take_requests(agent, message);
    take_last_call(agent, message);
    take_confirmation(agent, message->phase);
    if (take_ending_phase(agent, message))
        return;
    if (ends_by_fatal_error(agent)) {
        dpt_agent_end(agent, END_IN_ORDER, agent->errors.fatal_code, "%s", agent->errors.first);
        return;
    }
    if (agent->stage == STAGE_JOINING) {
        agent->stage = STAGE_JOINED;
        dpt_agent_spawn_ranks(agent);
    }
    take_order(agent, message);
    if (message->drain)
        dpt_agent_on_drain(agent);
}

void dpt_agent_on_server(struct dpt_agent *agent, const Dpt__ServerState *message)
{
    const Dpt__Stamp *stamp = message->stamp;
    if (agent->stage >= STAGE_RESETTING || strcmp(stamp->run, agent->node.run) != 0 ||
        strcmp(stamp->node, agent->node.id) != 0 || stamp->incarnation != agent->node.incarnation)
        return;
    /* Orders of the server are ignored now, but other nodes may have saved the step. */
    if (agent->end.rescuing) {
        if (message->version == DPT_PROTO_VERSION)
            take_saved_step(agent, message);
        return;
    }
    agent->server.contact_ms = agent->now_ms;
    agent->server.heard_ever = true;
    if (message->version != DPT_PROTO_VERSION) {
        dpt_agent_end(agent, END_AT_ONCE, DPT_EXIT_CONFIG,
                      "the server speaks protocol %u, this worker (%s) protocol %d: %s",
                      message->version, agent->node.software, DPT_PROTO_VERSION, message->text);
        return;
    }
    agent->server.n_nodes = message->n_nodes;
    if (message->counter_seen != 0)
        take_member_message(agent, message);
    else if (!take_ending_phase(agent, message))
        take_hello(agent, message);
}
