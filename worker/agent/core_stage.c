/* The stages of this node: expulsion, signals, deadlines. */
#include "worker/agent/core_state.h"

/* ---- expulsion ---- */

static void log_steps_of_expelled(struct dpt_agent *agent, int64_t world_step)
{
    const int64_t saved = dpt_agent_saved_step(agent), held = dpt_agent_step_of(agent);
    const int64_t gone = dpt_agent_gone_is_elsewhere(agent) ? 0 : dpt_agent_gone_step(agent);
    const int64_t step = gone > held ? gone : held;
    const int64_t kept = world_step > saved ? world_step : saved;
    agent->end.unsaved_told = true;
    if (step > saved && step <= world_step)
        dpt_agent_log(agent, DPT_LOG_INFO,
                      "the last %lld steps here, which no checkpoint has, are not lost: the run "
                      "went on without this node and is at step %lld",
                      (long long)(step - saved), (long long)world_step);
    else if (world_step > saved && step > world_step)
        dpt_agent_log(agent, DPT_LOG_WARN,
                      "the last %lld steps here (after step %lld, up to %lld) are newer than what "
                      "the server has heard of the other nodes: these have them, or compute them "
                      "again",
                      (long long)(step - world_step), (long long)world_step, (long long)step);
    else if (step > kept)
        dpt_agent_log(agent, DPT_LOG_WARN,
                      "NOT SAVED: the last %lld steps (after step %lld, up to %lld) are in memory "
                      "only and go with this incarnation%s; the run will compute them again",
                      (long long)(step - kept), (long long)kept, (long long)step,
                      world_step == 0 && agent->server.n_nodes > 0 ? " unless another node has them"
                                                                   : "");
}

void dpt_agent_on_expelled(struct dpt_agent *agent, int64_t world_step, const char *text)
{
    if (agent->stage >= STAGE_RESETTING)
        return;
    log_steps_of_expelled(agent, world_step);
    /* The other nodes continue the run. */
    if (agent->errors.fatal) {
        dpt_agent_end(agent, END_IN_ORDER, agent->errors.fatal_code, "%s", agent->errors.first);
        return;
    }
    agent->expulsions++;
    if (agent->end.leaving) {
        dpt_agent_end(agent, END_AT_ONCE, DPT_EXIT_EXPELLED, "expelled while leaving: %s", text);
        return;
    }
    if (agent->expulsions > EXPULSIONS_MAX) {
        dpt_agent_end(agent, END_AT_ONCE, DPT_EXIT_EXPELLED,
                      "expelled %u times without getting back into the run: %s", agent->expulsions,
                      text);
        return;
    }
    dpt_agent_fence(agent);
    dpt_agent_log(agent, DPT_LOG_WARN,
                  "expelled (%s): discarding the state here, joining again as incarnation %llu",
                  text, (unsigned long long)agent->node.incarnation + 1);
    agent->stage = STAGE_RESETTING;
    dpt_agent_kill_ranks(agent);
}

static void join_as_next_incarnation(struct dpt_agent *agent)
{
    agent->node.incarnation++;
    agent->server.epoch = 0;
    agent->server.its_counter = 0;
    agent->server.spec_counter = 0;
    agent->server.phase = DPT__SERVER_PHASE__SERVER_WAITING;
    agent->server.saved_step = 0;
    agent->gen.order = ORDER_NONE;
    agent->gen.number = 0;
    agent->lease.confirmed_ms = 0;
    agent->lease.confirming_epoch = 0;
    agent->end.unsaved_told = false;
    agent->step_high = agent->gone.step = 0;
    agent->errors.crashes = 0;
    dpt_agent_drop_plan(agent);
    agent->stage = STAGE_JOINING;
    agent->out.server_due = true;
}

/* ---- signals ---- */

/* Whether this node may end without the server, because it has nothing to save or to hand over. A
 * final save writes unsaved steps while the server waits for nodes, and a rescue writes them
 * without a server. Only the server knows whether another node has the steps of a dead process. */
static bool may_end_now(const struct dpt_agent *agent)
{
    if (agent->stage != STAGE_JOINED)
        return true;
    return (agent->gen.order == ORDER_NONE || dpt_agent_is_waiting(agent)) &&
           !dpt_agent_holds_unsaved(agent) && dpt_agent_gone_step(agent) == 0;
}

static const char *format_leave_time(const struct dpt_agent *agent)
{
    const bool computes = dpt_agent_is_computing(agent);
    if (!computes && !dpt_agent_holds_unsaved(agent))
        return "when the server lets it go";
    return dpt_agent_is_waiting(agent) || !computes
               ? "when the steps that no checkpoint has are saved"
               : "after the step in flight";
}

static void begin_to_leave(struct dpt_agent *agent)
{
    struct agent_end *end = &agent->end;
    if (end->rescuing) { /* the node ends after the rescue in any case */
        dpt_agent_log(agent, DPT_LOG_INFO,
                      "leaving when step %lld is saved, within %g s; a second signal ends at once",
                      (long long)end->rescue_step,
                      (double)(end->drain_by_ms - agent->now_ms) / 1000);
        return;
    }
    end->leaving = true;
    agent->out.server_due = true;
    dpt_agent_tell_ranks(agent);
    if (may_end_now(agent)) {
        dpt_agent_log(agent, DPT_LOG_INFO, "leaving: nothing is running here");
        dpt_agent_end(agent, END_IN_ORDER, DPT_EXIT_DONE, "%s", "");
        return;
    }
    end->drain_by_ms = agent->now_ms + agent->timing.drain_ms;
    dpt_agent_log(agent, DPT_LOG_INFO, "leaving %s, within %g s; a second signal ends at once",
                  format_leave_time(agent), (double)agent->timing.drain_ms / 1000);
    dpt_agent_check_rescue(agent);
}

void dpt_agent_on_drain(struct dpt_agent *agent)
{
    if (agent->stage >= STAGE_RESETTING || agent->end.leaving)
        return;
    dpt_agent_log(agent, DPT_LOG_INFO, "an operator drains this node");
    begin_to_leave(agent);
}

/* A node that an operator drains has its time already. */
static void on_first_signal(struct dpt_agent *agent)
{
    struct agent_end *end = &agent->end;
    const bool drains = end->leaving && !end->rescuing;
    end->signalled = true;
    if (drains)
        dpt_agent_log(agent, DPT_LOG_INFO, "leaving already; a second signal ends at once");
    else
        begin_to_leave(agent);
}

void dpt_agent_on_signal(struct dpt_agent *agent)
{
    struct agent_end *end = &agent->end;
    if (agent->stage == STAGE_ENDING) {
        end->kill_at_ms = agent->now_ms;
        end->give_up_ms = agent->now_ms + agent->timing.exit_ms;
        dpt_agent_kill_ranks(agent);
    } else if (end->signalled) {
        dpt_agent_end(agent, END_AT_ONCE, DPT_EXIT_EXPELLED, "told twice to end: left at once");
    } else {
        on_first_signal(agent);
    }
}

/* ---- deadlines ---- */

static void end_without_server(struct dpt_agent *agent, int64_t silent_s)
{
    const int64_t saved = dpt_agent_saved_step(agent), gone = dpt_agent_gone_step(agent);
    if (!agent->server.heard_ever)
        dpt_agent_end(agent, END_AT_ONCE, DPT_EXIT_SERVER,
                      "no rendezvous server answered within %lld s", (long long)silent_s);
    else if (gone > 0)
        dpt_agent_end(agent, END_AT_ONCE, DPT_EXIT_EXPELLED,
                      "the rendezvous server has not answered for %lld s, and the last "
                      "%lld steps died with rank processes here",
                      (long long)silent_s, (long long)(gone - saved));
    else if (saved > 0 && dpt_agent_step_of(agent) >= 0)
        dpt_agent_end(agent, END_AT_ONCE, DPT_EXIT_SERVER,
                      "the rendezvous server has not answered for %lld s; nothing is lost: "
                      "step %lld, the newest here, is saved",
                      (long long)silent_s, (long long)saved);
    else
        dpt_agent_end(agent, END_AT_ONCE, DPT_EXIT_SERVER,
                      "the rendezvous server has not answered for %lld s", (long long)silent_s);
}

static void end_late_drain(struct dpt_agent *agent)
{
    const struct agent_end *end = &agent->end;
    if (end->rescue_code != 0)
        dpt_agent_end(agent, END_AT_ONCE, end->rescue_code, "%s", end->rescue_text);
    else
        dpt_agent_end(agent, END_AT_ONCE, DPT_EXIT_EXPELLED,
                      end->rescuing ? "the rescue was not complete within %g s"
                                    : "did not drain within %g s: what was not handed over "
                                      "is lost",
                      (double)agent->timing.drain_ms / 1000);
}

static void end_by_fatal_error(struct dpt_agent *agent)
{
    if (dpt_agent_lacks_server(agent))
        dpt_agent_end_saved(agent, agent->errors.fatal_code, agent->errors.first);
    else
        dpt_agent_end(agent, END_AT_ONCE, agent->errors.fatal_code, "%s", agent->errors.first);
}

/* Whether a local rank makes steps. A rank whose generation has failed stays RUNNING without an
 * order of the server. */
static bool makes_steps(const struct dpt_agent *agent)
{
    for (uint32_t i = 0; i < agent->n_ranks; i++)
        if (dpt_agent_makes_steps(&agent->ranks[i]))
            return true;
    return false;
}

void dpt_agent_check_stage(struct dpt_agent *agent)
{
    const struct agent_end *end = &agent->end;
    if (agent->stage == STAGE_ENDING) {
        if (agent->now_ms >= end->give_up_ms)
            dpt_agent_finish(agent);
        else if (agent->now_ms >= end->kill_at_ms)
            dpt_agent_kill_ranks(agent);
        return;
    }
    if (agent->now_ms >= end->drain_by_ms) {
        end_late_drain(agent);
        return;
    }
    if (agent->now_ms >= agent->errors.fatal_by_ms && !end->rescuing)
        end_by_fatal_error(agent);
    dpt_agent_check_rescue(agent);
    if (agent->stage == STAGE_ENDING || end->leaving)
        return; /* the drain has its own deadline */
    /* Ranks that compute need no server. Unsaved steps wait for a server without limit, also those
     * of other nodes, but not for one that has not taken this machine's keys for join_ms: then they
     * are saved. A node with neither ends after join_ms without a server. */
    const int64_t silent_ms = agent->now_ms - agent->server.contact_ms;
    if (silent_ms < agent->timing.join_ms)
        return;
    const bool denied = agent->server.denial[0] != '\0';
    const int64_t denied_ms = agent->now_ms - agent->server.denied_ms;
    if (denied && denied_ms >= agent->timing.join_ms && !makes_steps(agent))
        dpt_agent_end_saved(agent, DPT_EXIT_DENIED, agent->server.denial);
    else if (!denied && !dpt_agent_is_computing(agent) && !dpt_agent_holds_unsaved(agent) &&
             dpt_agent_steps_elsewhere(agent) == 0)
        end_without_server(agent, silent_ms / 1000);
}

void dpt_agent_settle_stage(struct dpt_agent *agent)
{
    if (dpt_agent_has_processes(agent))
        return;
    if (agent->stage == STAGE_RESETTING)
        join_as_next_incarnation(agent);
    if (agent->stage == STAGE_ENDING)
        dpt_agent_finish(agent);
}
