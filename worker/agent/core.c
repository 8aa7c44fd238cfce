/* The outermost layer of the core: events in, actions and messages out. */
#include "worker/agent/core_state.h"

#include <stdlib.h>

/* ---- create, destroy ---- */

enum dpt_status dpt_agent_create(const struct dpt_agent_options *options, struct dpt_agent **ret,
                                 struct dpt_err *err)
{
    DPT_ASSERT(options->incarnation > 0);
    struct dpt_agent *agent = calloc(1, sizeof *agent);
    if (agent == NULL)
        return dpt_fail_nomem(err, "node agent");
    struct agent_node *node = &agent->node;
    struct agent_end *end = &agent->end;
    dpt_agent_copy_text(node->run, sizeof node->run, options->run);
    dpt_agent_copy_text(node->id, sizeof node->id, options->node);
    dpt_agent_copy_text(node->software, sizeof node->software, options->software);
    node->incarnation = options->incarnation;
    agent->timing = dpt_timing_from(options->timeout_ms, 0);
    agent->now_ms = agent->deadline_ms = agent->beat_ms = options->now_ms;
    agent->server.contact_ms = options->now_ms;
    end->drain_by_ms = end->kill_at_ms = end->give_up_ms = agent->errors.fatal_by_ms = INT64_MAX;
    agent->stage = STAGE_ASKING;
    agent->gen.first_local = -1;
    agent->gen.still_since_ms = -1;
    agent->gen.grant_step = -1;
    *ret = agent;
    return DPT_OK;
}

void dpt_agent_destroy(struct dpt_agent **agent_p)
{
    struct dpt_agent *agent = *agent_p;
    *agent_p = NULL;
    if (agent == NULL)
        return;
    dpt_agent_drop_plan(agent);
    dpt__run_spec__free_unpacked(agent->node.spec, NULL);
    dpt__run_spec__free_unpacked(agent->end.spec, NULL);
    dpt__run_spec__free_unpacked(agent->out.configure_spec, NULL);
    free(agent);
}

/* ---- time ---- */

/* Two messages to the server are this far apart at most. */
static int64_t longest_pause_ms(const struct dpt_agent *agent)
{
    const int64_t pause_ms = agent->server.pause_ms;
    return dpt_agent_has_long_pauses(agent) ? pause_ms + pause_ms / 2 : pause_ms;
}

/* Ranks may write files for write_ms after the agent's newest step (docs/membership.md, "Write
 * permission"). If the agent's loop was suspended, the server may have expelled this node
 * meanwhile: the agent fences its ranks until the server has answered a later message. Without a
 * server no node is expelled, and a restarted server grants a full lease. So without a connection
 * only a gap fences the ranks that is longer than lease_ms less write_ms and less the pause, in
 * which the server may have had no message. */
static void note_time_and_gap(struct dpt_agent *agent, int64_t now_ms)
{
    DPT_ASSERT(now_ms >= agent->now_ms);
    const struct dpt_timing *timing = &agent->timing;
    const int64_t expected_ms =
        agent->deadline_ms > agent->now_ms ? agent->deadline_ms : agent->now_ms;
    const int64_t gap_ms = now_ms - expected_ms;
    const int64_t fence_ms = agent->server.up
                                 ? timing->gap_ms
                                 : timing->lease_ms - timing->write_ms - longest_pause_ms(agent);
    agent->now_ms = now_ms;
    if (gap_ms <= timing->gap_ms)
        return;
    for (uint32_t i = 0; i < agent->n_ranks; i++) {
        agent->ranks[i].judged_ms += gap_ms;
        agent->ranks[i].asked_ms += gap_ms;
    }
    agent->server.contact_ms += gap_ms;
    agent->server.denied_ms += gap_ms;
    agent->out.server_due = true;
    if (agent->stage == STAGE_ENDING || gap_ms <= fence_ms)
        return;
    dpt_agent_fence(agent);
    dpt_agent_tell_ranks(agent);
    dpt_agent_log(agent, DPT_LOG_WARN,
                  "this process was suspended or starved for %lld ms; its ranks write no file "
                  "until the server answers",
                  (long long)gap_ms);
}

/* ---- configuration ---- */

static void on_configured(struct dpt_agent *agent, const struct dpt_agent_facts *facts)
{
    struct agent_node *node = &agent->node;
    DPT_ASSERT(facts->n_ranks >= 1 && facts->n_ranks <= DPT_PROTO_RANKS_MAX);
    if (node->spec != NULL)
        return;
    node->spec = dpt_agent_copy_message(agent, &facts->spec->base);
    if (node->spec == NULL)
        return;
    node->facts = *facts;
    node->facts.spec = node->spec;
    if (facts->incarnation > node->incarnation)
        node->incarnation = facts->incarnation;
    agent->n_ranks = facts->n_ranks;
    for (uint32_t i = 0; i < agent->n_ranks; i++)
        dpt_agent_rank_reset(&agent->ranks[i], i);
    agent->timing = dpt_timing_from(facts->spec->timeout_ms, facts->spec->drain_ms);
    if (agent->stage == STAGE_ASKING)
        agent->stage = STAGE_JOINING;
    agent->out.server_due = true;
}

/* ---- outputs ---- */

static void lower_to(int64_t *due_ms, int64_t at_ms)
{
    if (at_ms < *due_ms)
        *due_ms = at_ms;
}

static int64_t next_deadline(const struct dpt_agent *agent)
{
    int64_t due_ms = agent->beat_ms;
    lower_to(&due_ms, agent->end.drain_by_ms);
    lower_to(&due_ms, agent->end.kill_at_ms);
    lower_to(&due_ms, agent->end.give_up_ms);
    for (uint32_t i = 0; i < agent->n_ranks; i++)
        if (dpt_agent_will_respawn(agent, i))
            lower_to(&due_ms, agent->ranks[i].respawn_at_ms);
    return due_ms > agent->now_ms ? due_ms : agent->now_ms + 1;
}

/* A node that writes a rescue has left its generation without a PREPARE. It sends nothing until its
 * end: the server must not read the state of its ranks. */
static bool sends_to_server(const struct dpt_agent *agent)
{
    return agent->stage == STAGE_ASKING || agent->stage == STAGE_JOINING ||
           (agent->stage == STAGE_JOINED && !agent->end.rescuing) || agent->end.goodbye;
}

/* The pause between two messages. A server of many nodes wants a longer one than the heartbeat. A
 * server that does not answer a newcomer has thousands of them, perhaps: the longer it is silent,
 * the less often it is asked. */
static int64_t pause_ms(const struct dpt_agent *agent)
{
    const struct dpt_timing *timing = &agent->timing;
    if (agent->stage == STAGE_JOINED)
        return agent->server.pause_ms;
    const int64_t silent_ms = agent->now_ms - agent->server.contact_ms;
    return silent_ms < timing->lease_ms / 4 ? silent_ms : timing->lease_ms / 4;
}

/* At a heartbeat: true if a message to the server is due. If the server wants long pauses, one that
 * a report has just preceded is left out; the next ones keep their moments, so that nodes which
 * report together do not go on to send together. */
static bool is_server_beat_due(struct dpt_agent *agent)
{
    struct agent_server *server = &agent->server;
    const int64_t sent_ms = agent->lease.sent_ms[server->counter % SENT_MAX];
    const int64_t pause = pause_ms(agent);
    if (agent->now_ms < server->beat_ms)
        return false;
    server->beat_ms = agent->now_ms + pause - agent->timing.heartbeat_ms;
    return !dpt_agent_has_long_pauses(agent) || agent->end.leaving ||
           agent->now_ms - sent_ms >= pause / 2;
}

static void fill_output(struct dpt_agent *agent, bool beat, struct dpt_agent_output *ret)
{
    struct agent_outputs *out = &agent->out;
    if (!agent->lease.fenced && agent->stage == STAGE_JOINED)
        agent->lease.write_until_ms = agent->now_ms + agent->timing.write_ms;
    for (uint32_t i = 0; i < agent->n_ranks && agent->stage != STAGE_ENDED; i++)
        if (agent->ranks[i].life == LIFE_UP && (beat || agent->ranks[i].has_news))
            dpt_agent_send_to_rank(agent, i);
    const bool beat_due = beat && is_server_beat_due(agent);
    const bool server_due = sends_to_server(agent) && (beat_due || out->server_due);
    *ret = (struct dpt_agent_output){
        .actions = out->actions,
        .n_actions = out->n_actions,
        .to_server = server_due ? dpt_agent_make_state(agent) : NULL,
        .to_ranks = out->sends,
        .n_to_ranks = out->n_sends,
        .logs = out->logs,
        .n_logs = out->n_logs,
        .deadline_ms = next_deadline(agent),
    };
    out->server_due = agent->end.goodbye = false;
}

/* ---- events ---- */

static void handle_event(struct dpt_agent *agent, const struct dpt_agent_event *event)
{
    for (uint32_t i = 0; event->steps != NULL && i < agent->n_ranks; i++)
        dpt_agent_on_rank_step(agent, i, event->steps[i]);
    switch (event->kind) {
    case DPT_AGENT_EVENT_TICK:
        dpt_agent_check_ranks(agent);
        dpt_agent_check_stage(agent);
        break;
    case DPT_AGENT_EVENT_CONFIGURED:
        on_configured(agent, event->facts);
        break;
    case DPT_AGENT_EVENT_SERVER_UP:
        agent->server.up = agent->out.server_due = true;
        agent->server.round_trip_us = event->round_trip_us;
        break;
    case DPT_AGENT_EVENT_SERVER_DOWN:
        agent->server.up = false;
        break;
    case DPT_AGENT_EVENT_SERVER_DENIES:
        if (agent->server.denial[0] == '\0')
            agent->server.denied_ms = agent->now_ms;
        dpt_agent_copy_text(agent->server.denial, sizeof agent->server.denial, event->text);
        break;
    case DPT_AGENT_EVENT_SERVER_MESSAGE:
        dpt_agent_on_server(agent, event->server_message);
        break;
    case DPT_AGENT_EVENT_RANK_MESSAGE:
        dpt_agent_on_rank(agent, event);
        break;
    case DPT_AGENT_EVENT_RANK_EOF:
        dpt_agent_on_rank_eof(agent, event);
        break;
    case DPT_AGENT_EVENT_RANK_EXITED:
        dpt_agent_on_rank_exited(agent, event);
        break;
    case DPT_AGENT_EVENT_RANK_WAITS:
        dpt_agent_on_rank_waits(agent, event);
        break;
    case DPT_AGENT_EVENT_DISOWNED:
        /* This node must not write files any more. */
        dpt_agent_end(agent, END_AT_ONCE, DPT_EXIT_EXPELLED, "%s", event->text);
        break;
    case DPT_AGENT_EVENT_SIGNAL:
        dpt_agent_on_signal(agent);
        break;
    default:
        DPT_ASSERT(false);
    }
    dpt_agent_settle_stage(agent);
}

enum dpt_status dpt_agent_step(struct dpt_agent *agent, const struct dpt_agent_event *event,
                               struct dpt_agent_output *ret, struct dpt_err *err)
{
    struct agent_outputs *out = &agent->out;
    out->n_actions = out->n_logs = out->n_sends = 0;
    if (agent->stage == STAGE_ENDED) {
        *ret = (struct dpt_agent_output){.deadline_ms = event->now_ms + agent->timing.timeout_ms};
        return DPT_OK;
    }
    note_time_and_gap(agent, event->now_ms);
    const bool beat = event->kind == DPT_AGENT_EVENT_TICK && agent->now_ms >= agent->beat_ms;
    if (beat)
        agent->beat_ms = agent->now_ms + agent->timing.heartbeat_ms;
    handle_event(agent, event);
    fill_output(agent, beat, ret);
    agent->deadline_ms = ret->deadline_ms;
    if (out->no_memory)
        return dpt_fail_nomem(err, "node agent");
    return DPT_OK;
}
