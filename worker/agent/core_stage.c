/* The life of the agent: joining, leaving, being expelled, ending. */
#include <stdarg.h>
#include <stdio.h>

#include "worker/agent/core_internal.h"

/* ---- ending ---- */

static bool is_waiting(const struct dpt_agent *agent)
{
    return agent->stage == STAGE_JOINED && (agent->phase == DPT__SERVER_PHASE__SERVER_WAITING ||
                                            agent->phase == DPT__SERVER_PHASE__SERVER_SETTLING);
}

/* The newest checkpoint that a rank here has told of; 0: none. */
static int64_t saved_step(const struct dpt_agent *agent)
{
    int64_t saved = 0;
    for (uint32_t i = 0; i < agent->n_ranks; i++)
        if (agent->ranks[i].state.checkpoint_step > saved)
            saved = agent->ranks[i].state.checkpoint_step;
    return saved;
}

/* Where no generation is in force nobody saves or takes over what the ranks here hold. */
static void say_unsaved(struct dpt_agent *agent)
{
    const int64_t step = dpt_agent_step_of(agent), saved = saved_step(agent);
    if (step <= saved || !(is_waiting(agent) || agent->last_holder))
        return;
    dpt_agent_log(
        agent, DPT_LOG_WARN,
        "NOT SAVED: the last %lld steps (after step %lld, up to %lld) are in memory only "
        "and go with this node%s; the run will compute them again",
        (long long)(step - saved), (long long)saved, (long long)step,
        agent->n_nodes > 1 && !agent->last_holder ? " unless another waiting node has them" : "");
}

void dpt_agent_end(struct dpt_agent *agent, int code, bool politely, const Dpt__RunSpec *spec,
                   const char *fmt, ...)
{
    if (agent->stage >= STAGE_ENDING)
        return;
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(agent->end_text, sizeof agent->end_text, fmt, ap);
    va_end(ap);
    say_unsaved(agent);
    agent->end_code = code;
    if (spec != NULL && dpt_agent_copy_spec(agent, spec, &agent->end_spec))
        agent->has_end_spec = true;
    agent->goodbye = agent->leaving && agent->stage == STAGE_JOINED;
    agent->tell_server = agent->tell_server || agent->goodbye;
    agent->stage = STAGE_ENDING;
    agent->kill_sent = false;
    agent->drain_by_ms = INT64_MAX;
    agent->kill_at_ms = politely ? agent->now_ms + agent->timing.exit_ms : agent->now_ms;
    if (!politely)
        dpt_agent_kill_ranks(agent);
    /* Killed processes are reaped soon; one stuck in the kernel does not keep the agent. */
    agent->give_up_ms = agent->kill_at_ms + agent->timing.exit_ms;
    dpt_agent_tell_ranks(agent);
}

static void finish(struct dpt_agent *agent)
{
    agent->stage = STAGE_ENDED;
    dpt_agent_act(
        agent, &(struct dpt_agent_action){.kind = DPT_AGENT_ACTION_EXIT,
                                          .exit_code = agent->end_code,
                                          .text = agent->end_text,
                                          .spec = agent->has_end_spec ? &agent->end_spec : NULL});
}

/* ---- expelled ---- */

void dpt_agent_expelled(struct dpt_agent *agent, const char *text)
{
    if (agent->stage >= STAGE_RESETTING)
        return;
    agent->expulsions++;
    agent->fenced = true;
    agent->fence_counter = agent->counter;
    agent->write_until_ms = 0;
    if (agent->leaving) {
        dpt_agent_end(agent, DPT_EXIT_EXPELLED, false, NULL, "expelled while leaving: %s", text);
        return;
    }
    if (agent->expulsions > EXPULSIONS_MAX) {
        dpt_agent_end(agent, DPT_EXIT_EXPELLED, false, NULL,
                      "expelled %u times without getting back into the run: %s", agent->expulsions,
                      text);
        return;
    }
    dpt_agent_log(agent, DPT_LOG_WARN,
                  "expelled (%s): discarding the state here, joining again as incarnation %llu",
                  text, (unsigned long long)agent->incarnation + 1);
    agent->stage = STAGE_RESETTING;
    dpt_agent_kill_ranks(agent);
}

static void rejoin(struct dpt_agent *agent)
{
    agent->incarnation++;
    agent->epoch = 0;
    agent->server_counter = 0;
    agent->spec_counter = 0;
    agent->spec_known = false;
    agent->phase = DPT__SERVER_PHASE__SERVER_WAITING;
    agent->order = ORDER_NONE;
    agent->generation = 0;
    agent->grant_step = -1;
    agent->step_high = 0;
    agent->crashes = 0;
    dpt_agent_drop_plan(agent);
    agent->stage = STAGE_JOINING;
    agent->tell_server = true;
}

/* ---- leaving ---- */

/* Nothing here that anybody would have to wait for: while too few are here, a server may have what
 * is not saved saved. */
static bool is_idle(const struct dpt_agent *agent)
{
    const bool unsaved = agent->server_up && dpt_agent_step_of(agent) > saved_step(agent);
    return agent->stage != STAGE_JOINED || agent->order == ORDER_NONE ||
           (is_waiting(agent) && !unsaved);
}

void dpt_agent_on_signal(struct dpt_agent *agent)
{
    if (agent->stage == STAGE_ENDING) {
        agent->kill_at_ms = agent->now_ms;
        agent->give_up_ms = agent->now_ms + agent->timing.exit_ms;
        dpt_agent_kill_ranks(agent);
        return;
    }
    if (agent->leaving) {
        dpt_agent_end(agent, DPT_EXIT_EXPELLED, false, NULL, "told twice to end: left at once");
        return;
    }
    agent->leaving = true;
    agent->tell_server = true;
    dpt_agent_tell_ranks(agent);
    if (is_idle(agent)) {
        dpt_agent_log(agent, DPT_LOG_INFO, "leaving: nothing is running here");
        dpt_agent_end(agent, DPT_EXIT_DONE, true, NULL, "%s", "");
        return;
    }
    agent->drain_by_ms = agent->now_ms + agent->timing.drain_ms;
    dpt_agent_log(agent, DPT_LOG_INFO, "leaving %s, within %lld s; once more means at once",
                  is_waiting(agent) ? "when what no checkpoint has is saved"
                                    : "after the step in flight",
                  (long long)(agent->timing.drain_ms / 1000));
}

/* ---- deadlines ---- */

void dpt_agent_check_stage(struct dpt_agent *agent)
{
    if (agent->stage == STAGE_ENDING) {
        if (agent->now_ms >= agent->give_up_ms)
            finish(agent);
        else if (agent->now_ms >= agent->kill_at_ms && !agent->kill_sent)
            dpt_agent_kill_ranks(agent);
        return;
    }
    if (agent->now_ms >= agent->drain_by_ms) {
        dpt_agent_end(agent, DPT_EXIT_EXPELLED, false, NULL,
                      "did not drain within %lld s: what was not handed over is lost",
                      (long long)(agent->timing.drain_ms / 1000));
        return;
    }
    if (agent->now_ms >= agent->fatal_by_ms) {
        dpt_agent_end(agent, agent->fatal_code, false, NULL, "%s", agent->first_error);
        return;
    }
    /* Ranks that compute go on without a server as long as they like; nobody else waits for ever.
     */
    int64_t silent_ms = agent->now_ms - agent->contact_ms;
    if (silent_ms < agent->timing.join_ms || dpt_agent_is_computing(agent))
        return;
    dpt_agent_end(agent, DPT_EXIT_SERVER, false, NULL,
                  agent->heard_ever ? "the rendezvous server has not answered for %lld s"
                                    : "no rendezvous server answered within %lld s",
                  (long long)(silent_ms / 1000));
}

void dpt_agent_settle_stage(struct dpt_agent *agent)
{
    if (agent->stage == STAGE_RESETTING && !dpt_agent_has_processes(agent))
        rejoin(agent);
    if (agent->stage == STAGE_ENDING && !dpt_agent_has_processes(agent))
        finish(agent);
}
