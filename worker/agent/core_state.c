/* The core's outputs, owned copies of messages, and questions about the core's state. */
#include "worker/agent/core_state.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- outputs ---- */

void dpt_agent_act(struct dpt_agent *agent, const struct dpt_agent_action *action)
{
    DPT_ASSERT(agent->out.n_actions < ACTIONS_MAX);
    agent->out.actions[agent->out.n_actions++] = *action;
}

void dpt_agent_log(struct dpt_agent *agent, enum dpt_log_level level, const char *fmt, ...)
{
    struct agent_outputs *out = &agent->out;
    if (out->n_logs == LOG_LINES_MAX)
        return;
    char *text = out->log_texts[out->n_logs];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, LOG_TEXT_BYTES, fmt, ap);
    va_end(ap);
    out->logs[out->n_logs++] =
        (struct dpt_agent_log_line){.level = level, .generation = agent->gen.number, .text = text};
}

void dpt_agent_tell_ranks(struct dpt_agent *agent)
{
    for (uint32_t i = 0; i < agent->n_ranks; i++)
        agent->ranks[i].has_news = true;
}

void dpt_agent_copy_text(char *to, size_t to_bytes, const char *from)
{
    const size_t bytes = strnlen(from, to_bytes - 1);
    memcpy(to, from, bytes);
    to[bytes] = '\0';
}

void *dpt_agent_copy_message(struct dpt_agent *agent, const ProtobufCMessage *from)
{
    const size_t bytes = protobuf_c_message_get_packed_size(from);
    uint8_t *packed = malloc(bytes + 1);
    ProtobufCMessage *copy = NULL;
    if (packed != NULL) {
        (void)protobuf_c_message_pack(from, packed);
        copy = protobuf_c_message_unpack(from->descriptor, NULL, bytes, packed);
    }
    free(packed);
    agent->out.no_memory = agent->out.no_memory || copy == NULL;
    return copy;
}

void dpt_agent_drop_plan(struct dpt_agent *agent)
{
    dpt__plan__free_unpacked(agent->gen.plan, NULL);
    agent->gen.plan = NULL;
    agent->gen.grant_step = -1;
    for (uint32_t i = 0; i < agent->n_ranks; i++)
        agent->ranks[i].plan_rank = -1;
}

void dpt_agent_fence(struct dpt_agent *agent)
{
    agent->lease.fenced = true;
    agent->lease.fence_counter = agent->server.counter;
    agent->lease.write_until_ms = 0;
}

/* ---- questions ---- */

bool dpt_agent_has_process(const struct agent_rank *rank)
{
    return rank->life == LIFE_UP || rank->life == LIFE_KILLED;
}

bool dpt_agent_has_processes(const struct dpt_agent *agent)
{
    for (uint32_t i = 0; i < agent->n_ranks; i++)
        if (dpt_agent_has_process(&agent->ranks[i]))
            return true;
    return false;
}

static bool is_running(const struct agent_rank *rank)
{
    return rank->life == LIFE_UP && rank->report.state.phase == DPT__RANK_PHASE__RANK_RUNNING;
}

bool dpt_agent_is_computing(const struct dpt_agent *agent)
{
    for (uint32_t i = 0; i < agent->n_ranks; i++)
        if (is_running(&agent->ranks[i]))
            return true;
    return false;
}

bool dpt_agent_makes_steps(const struct agent_rank *rank)
{
    const Dpt__RankState *state = &rank->report.state;
    return is_running(rank) && state->failed_generation != state->generation;
}

int64_t dpt_agent_newest_of(const struct agent_rank *rank)
{
    const int64_t reported = rank->report.state.step_applied;
    return rank->kept_step > reported ? rank->kept_step : reported;
}

int64_t dpt_agent_step_of(const struct dpt_agent *agent)
{
    int64_t step = -1;
    for (uint32_t i = 0; i < agent->n_ranks; i++)
        if (agent->ranks[i].life == LIFE_UP && dpt_agent_newest_of(&agent->ranks[i]) > step)
            step = dpt_agent_newest_of(&agent->ranks[i]);
    return step;
}

bool dpt_agent_spec_is_known(const struct dpt_agent *agent)
{
    return agent->server.spec_counter != 0 && agent->server.seen >= agent->server.spec_counter;
}

bool dpt_agent_has_long_pauses(const struct dpt_agent *agent)
{
    return agent->server.pause_ms > agent->timing.heartbeat_ms;
}

bool dpt_agent_is_waiting(const struct dpt_agent *agent)
{
    return agent->stage == STAGE_JOINED &&
           (agent->server.phase == DPT__SERVER_PHASE__SERVER_WAITING ||
            agent->server.phase == DPT__SERVER_PHASE__SERVER_SETTLING);
}

bool dpt_agent_lacks_server(const struct dpt_agent *agent)
{
    const struct dpt_timing *timing = &agent->timing;
    /* The rescue has the other three quarters of the drain time. */
    const int64_t quarter_ms = timing->drain_ms / 4;
    const int64_t silent_ms = timing->lease_ms < quarter_ms ? timing->lease_ms : quarter_ms;
    return agent->now_ms - agent->server.contact_ms >= silent_ms;
}
