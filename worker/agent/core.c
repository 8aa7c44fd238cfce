/* Events in, actions and messages out: the outermost layer of the agent's machine. */
#include "worker/agent/core.h"

#include "worker/agent/core_internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- small tools ---- */

void dpt_agent_copy_text(char *to, size_t to_bytes, const char *from)
{
    (void)snprintf(to, to_bytes, "%s", from);
}

bool dpt_agent_copy_spec(struct dpt_agent *agent, const Dpt__RunSpec *from, Dpt__RunSpec *to)
{
    char *digest = strdup(from->config_digest), *yaml = strdup(from->config_yaml);
    char *user = strdup(from->user);
    if (digest == NULL || yaml == NULL || user == NULL) {
        free(digest);
        free(yaml);
        free(user);
        agent->no_memory = true;
        return false;
    }
    *to = *from;
    to->base.n_unknown_fields = 0;
    to->base.unknown_fields = NULL;
    to->config_digest = digest;
    to->config_yaml = yaml;
    to->user = user;
    return true;
}

static void free_spec(Dpt__RunSpec *spec)
{
    free(spec->config_digest);
    free(spec->config_yaml);
    free(spec->user);
    *spec = (Dpt__RunSpec)DPT__RUN_SPEC__INIT;
    spec->config_digest = spec->config_yaml = spec->user = NULL;
}

void dpt_agent_act(struct dpt_agent *agent, const struct dpt_agent_action *action)
{
    DPT_ASSERT(agent->n_actions < ACTIONS_MAX);
    agent->actions[agent->n_actions++] = *action;
}

void dpt_agent_log(struct dpt_agent *agent, enum dpt_log_level level, const char *fmt, ...)
{
    if (agent->n_logs == LOG_LINES_MAX)
        return;
    char *text = agent->log_texts[agent->n_logs];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, LOG_TEXT_BYTES, fmt, ap);
    va_end(ap);
    agent->logs[agent->n_logs++] =
        (struct dpt_agent_log_line){.level = level, .generation = agent->generation, .text = text};
}

/* ---- create, destroy ---- */

enum dpt_status dpt_agent_create(const struct dpt_agent_options *options, struct dpt_agent **ret,
                                 struct dpt_err *err)
{
    DPT_ASSERT(options->incarnation > 0);
    struct dpt_agent *agent = calloc(1, sizeof *agent);
    if (agent == NULL)
        return dpt_fail(err, DPT_ENOMEM, "node agent");
    dpt_agent_copy_text(agent->run, sizeof agent->run, options->run);
    dpt_agent_copy_text(agent->node, sizeof agent->node, options->node);
    dpt_agent_copy_text(agent->software, sizeof agent->software, options->software);
    agent->incarnation = options->incarnation;
    agent->timing = dpt_timing_from(options->timeout_ms);
    agent->now_ms = agent->deadline_ms = agent->beat_ms = agent->contact_ms = options->now_ms;
    agent->drain_by_ms = agent->kill_at_ms = agent->give_up_ms = agent->fatal_by_ms = INT64_MAX;
    agent->stage = STAGE_ASKING;
    agent->first_local = -1;
    agent->still_since_ms = -1;
    agent->grant_step = -1;
    for (uint32_t i = 0; i < DPT_PROTO_RANKS_MAX; i++)
        dpt_agent_rank_init(&agent->ranks[i], i);
    *ret = agent;
    return DPT_OK;
}

void dpt_agent_destroy(struct dpt_agent **agent)
{
    if (*agent == NULL)
        return;
    for (uint32_t i = 0; i < DPT_PROTO_RANKS_MAX; i++)
        dpt_agent_rank_fini(&(*agent)->ranks[i]);
    dpt_agent_drop_plan(*agent);
    free_spec(&(*agent)->spec);
    free_spec(&(*agent)->end_spec);
    free_spec(&(*agent)->configure_spec);
    free(*agent);
    *agent = NULL;
}

/* ---- time ---- */

/* Who may write (docs/membership.md): ranks may write files for write_ms after the agent's last
 * word. An agent whose loop stood still does not know whether it was expelled meanwhile, so it
 * takes that leave back until the server has answered a message sent after the gap. While the
 * server is away it gives leave: then nobody can have expelled this node within a lease. */
static void take_time(struct dpt_agent *agent, int64_t now_ms)
{
    DPT_ASSERT(now_ms >= agent->now_ms);
    int64_t expected_ms = agent->deadline_ms > agent->now_ms ? agent->deadline_ms : agent->now_ms;
    int64_t gap_ms = now_ms - expected_ms;
    agent->now_ms = now_ms;
    int64_t fence_ms =
        agent->server_up ? agent->timing.gap_ms : agent->timing.lease_ms - agent->timing.write_ms;
    if (gap_ms <= agent->timing.gap_ms)
        return;
    for (uint32_t i = 0; i < DPT_PROTO_RANKS_MAX; i++) {
        agent->ranks[i].heard_ms += gap_ms;
        agent->ranks[i].asked_ms += gap_ms;
    }
    agent->contact_ms += gap_ms;
    agent->tell_server = true;
    if (agent->stage == STAGE_ENDING || gap_ms <= fence_ms)
        return;
    agent->fenced = true;
    agent->fence_counter = agent->counter;
    agent->write_until_ms = 0;
    dpt_agent_tell_ranks(agent);
    dpt_agent_log(agent, DPT_LOG_WARN,
                  "this node stood still for %lld ms; nothing is written until the server answers",
                  (long long)gap_ms);
}

/* ---- configuration ---- */

static void on_configured(struct dpt_agent *agent, const struct dpt_agent_facts *facts)
{
    DPT_ASSERT(facts->n_ranks >= 1 && facts->n_ranks <= DPT_PROTO_RANKS_MAX);
    if (agent->configured || !dpt_agent_copy_spec(agent, facts->spec, &agent->spec))
        return;
    agent->n_ranks = facts->n_ranks;
    dpt_agent_copy_text(agent->fingerprint, sizeof agent->fingerprint, facts->fingerprint);
    dpt_agent_copy_text(agent->host, sizeof agent->host, facts->host);
    dpt_agent_copy_text(agent->log_dir_id, sizeof agent->log_dir_id, facts->log_dir_id);
    dpt_agent_copy_text(agent->checkpoint_dir_id, sizeof agent->checkpoint_dir_id,
                        facts->checkpoint_dir_id);
    dpt_agent_copy_text(agent->data_digest, sizeof agent->data_digest, facts->data_digest);
    memcpy(agent->secret, facts->secret, sizeof agent->secret);
    if (facts->incarnation > agent->incarnation)
        agent->incarnation = facts->incarnation;
    if (facts->host_name != NULL)
        dpt_agent_copy_text(agent->host_name, sizeof agent->host_name, facts->host_name);
    agent->timing = dpt_timing_of_run(facts->spec->timeout_ms, facts->spec->drain_ms);
    agent->configured = true;
    if (agent->stage == STAGE_ASKING)
        agent->stage = STAGE_JOINING;
    agent->tell_server = true;
}

/* ---- outputs ---- */

static void sooner(int64_t *due_ms, int64_t at_ms)
{
    if (at_ms < *due_ms)
        *due_ms = at_ms;
}

static int64_t next_deadline(const struct dpt_agent *agent)
{
    int64_t due_ms = agent->beat_ms;
    sooner(&due_ms, agent->drain_by_ms);
    sooner(&due_ms, agent->kill_at_ms);
    sooner(&due_ms, agent->give_up_ms);
    for (uint32_t i = 0; i < agent->n_ranks; i++)
        if (dpt_agent_will_respawn(agent, i))
            sooner(&due_ms, agent->ranks[i].respawn_at_ms);
    return due_ms > agent->now_ms ? due_ms : agent->now_ms + 1;
}

static void make_output(struct dpt_agent *agent, bool beat, struct dpt_agent_output *ret)
{
    if (!agent->fenced && agent->stage == STAGE_JOINED)
        agent->write_until_ms = agent->now_ms + agent->timing.write_ms;
    for (uint32_t i = 0; i < agent->n_ranks && agent->stage != STAGE_ENDED; i++)
        if (agent->ranks[i].life == LIFE_UP && (beat || agent->ranks[i].tell))
            dpt_agent_tell_rank(agent, i);
    /* One that writes a rescue has ended its generation without a PREPARE: what its ranks are then
     * is no state of the conversation. */
    bool speaks = agent->stage == STAGE_ASKING || agent->stage == STAGE_JOINING ||
                  (agent->stage == STAGE_JOINED && !agent->rescuing) || agent->goodbye;
    *ret = (struct dpt_agent_output){
        .actions = agent->actions,
        .n_actions = agent->n_actions,
        .to_server = speaks && (beat || agent->tell_server) ? dpt_agent_make_state(agent) : NULL,
        .to_ranks = agent->sends,
        .n_to_ranks = agent->n_sends,
        .logs = agent->logs,
        .n_logs = agent->n_logs,
        .deadline_ms = next_deadline(agent),
    };
    agent->tell_server = agent->goodbye = false;
}

static void dispatch(struct dpt_agent *agent, const struct dpt_agent_event *event)
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
        agent->server_up = agent->tell_server = true;
        break;
    case DPT_AGENT_EVENT_SERVER_DOWN:
        agent->server_up = false;
        break;
    case DPT_AGENT_EVENT_SERVER_MESSAGE:
        dpt_agent_on_server(agent, event->server_message);
        break;
    case DPT_AGENT_EVENT_RANK_MESSAGE:
        dpt_agent_on_rank(agent, event->local_rank, event->spawn, event->rank_message);
        break;
    case DPT_AGENT_EVENT_RANK_EOF:
        dpt_agent_on_rank_eof(agent, event->local_rank, event->spawn, event->step);
        break;
    case DPT_AGENT_EVENT_RANK_EXITED:
        dpt_agent_on_rank_exited(agent, event);
        break;
    case DPT_AGENT_EVENT_RANK_WAITS:
        dpt_agent_on_rank_waits(agent, event->local_rank, event->spawn);
        break;
    case DPT_AGENT_EVENT_DISOWNED: /* nothing here may write any more */
        dpt_agent_end(agent, DPT_EXIT_EXPELLED, false, NULL, "%s", event->text);
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
    agent->n_actions = agent->n_logs = agent->n_sends = 0;
    if (agent->stage == STAGE_ENDED) {
        *ret = (struct dpt_agent_output){.deadline_ms = event->now_ms + agent->timing.timeout_ms};
        return DPT_OK;
    }
    take_time(agent, event->now_ms);
    bool beat = event->kind == DPT_AGENT_EVENT_TICK && agent->now_ms >= agent->beat_ms;
    if (beat)
        agent->beat_ms = agent->now_ms + agent->timing.heartbeat_ms;
    dispatch(agent, event);
    make_output(agent, beat, ret);
    agent->deadline_ms = ret->deadline_ms;
    if (agent->no_memory)
        return dpt_fail(err, DPT_ENOMEM, "node agent");
    return DPT_OK;
}

static void view_generation(const struct dpt_agent *agent, struct dpt_agent_view *ret)
{
    const Dpt__Plan *plan = agent->plan;
    if (plan == NULL || agent->order != ORDER_GO)
        return;
    const int64_t lost = plan->steps_done_before - plan->resume_step;
    if (plan->farewell && lost <= 0 && strcmp(plan->cause_kind, "left") == 0)
        return; /* it saves what is held, and nothing has happened but that somebody leaves */
    ret->trains = true;
    ret->cause = plan->cause;
    ret->cause_kind = plan->cause_kind;
    ret->resume_step = plan->resume_step;
    ret->steps_lost = lost > 0 ? lost : 0;
    ret->still_ms = agent->still_ms;
}

static void view_first(const struct dpt_agent *agent, struct dpt_agent_view *ret)
{
    if (agent->first_local < 0)
        return;
    const struct agent_rank *rank = &agent->ranks[agent->first_local];
    ret->is_first = true;
    ret->steps = rank->steps;
    ret->n_steps = rank->n_steps;
    ret->saved_step = rank->saved_step;
    ret->summary = rank->has_summary ? &rank->summary : NULL;
}

void dpt_agent_view(const struct dpt_agent *agent, struct dpt_agent_view *ret)
{
    *ret = (struct dpt_agent_view){
        .incarnation = agent->incarnation,
        .generation = agent->generation,
        .epoch = agent->epoch,
        .phase = agent->phase,
        .world_size = agent->plan != NULL ? agent->plan->world_size : 0,
        .n_nodes = agent->n_nodes,
        .step = dpt_agent_step_of(agent),
        .unsaved_steps = dpt_agent_holds_unsaved(agent)
                             ? dpt_agent_step_of(agent) - dpt_agent_saved_step(agent)
                             : 0,
        .rescue = dpt_agent_rescue_of(agent),
        .server_up = agent->server_up,
        .leaving = agent->leaving,
        .ending = agent->stage >= STAGE_ENDING,
        .ended = agent->stage == STAGE_ENDED,
        .last_call_ms = agent->last_call_ms,
        .write_until_ms = agent->write_until_ms,
        .timing = agent->timing,
        .cause = "",
        .cause_kind = "",
    };
    dpt_agent_copy_text(ret->reason, sizeof ret->reason, agent->reason);
    view_generation(agent, ret);
    view_first(agent, ret);
    if (agent->plan != NULL)
        dpt_agent_copy_text(ret->plan_digest, sizeof ret->plan_digest, agent->plan->digest);
    for (uint32_t i = 0; i < agent->n_ranks; i++) {
        const struct agent_rank *rank = &agent->ranks[i];
        ret->computing =
            ret->computing ||
            (rank->life == LIFE_UP && rank->state.phase == DPT__RANK_PHASE__RANK_RUNNING &&
             rank->state.failed_generation != rank->state.generation);
        if (rank->tokens_per_s > ret->tokens_per_s) /* each rank tells the world's */
            ret->tokens_per_s = rank->tokens_per_s;
        if (dpt_agent_newest_of(rank) == ret->step && rank->tokens_per_s > 0)
            ret->loss = rank->state.loss;
        if (rank->val_step > ret->val_step) {
            ret->val_step = rank->val_step;
            ret->val_loss = rank->val_loss;
            ret->val_right = rank->val_right;
            ret->val_samples = rank->val_samples;
        }
    }
}
