/* The life of the agent: joining, leaving, being expelled, ending. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "worker/agent/core_internal.h"

/* An error is known again by so many of its first bytes: the server cuts a long one. */
enum { ERROR_KNOWN_BYTES = 256 };

/* ---- ending ---- */

bool dpt_agent_is_waiting(const struct dpt_agent *agent)
{
    return agent->stage == STAGE_JOINED && (agent->phase == DPT__SERVER_PHASE__SERVER_WAITING ||
                                            agent->phase == DPT__SERVER_PHASE__SERVER_SETTLING);
}

/* No other node saves or takes over the state of the ranks here, as far as is known here, where no
 * generation is in force, no server is there or has answered since this node stood still, the drain
 * is over or cut short (`at_once`), or the run has failed. */
static bool is_left_alone(const struct dpt_agent *agent, bool failed, bool at_once)
{
    if (agent->phase == DPT__SERVER_PHASE__SERVER_RELEASED)
        return agent->last_holder || agent->fenced;
    return dpt_agent_is_waiting(agent) || dpt_agent_lacks_server(agent) || agent->fenced ||
           failed || at_once;
}

/* Nodes that leave together, or at the end of a run that has failed, each save what they hold. */
static bool others_may_have(const struct dpt_agent *agent)
{
    return agent->n_nodes > 1 && (!agent->last_holder || agent->rescuing);
}

/* The closing line of this node tells the first error here. */
static bool ends_by_first_error(const struct dpt_agent *agent)
{
    char known[ERROR_KNOWN_BYTES];
    dpt_agent_copy_text(known, sizeof known, agent->first_error);
    return strstr(agent->end_text, known) != NULL;
}

/* Returns how many steps are lost with this node for want of a checkpoint that should have them. */
static int64_t say_unsaved(struct dpt_agent *agent, bool failed, bool at_once)
{
    const int64_t saved = dpt_agent_saved_step(agent), gone = dpt_agent_gone_step(agent);
    const int64_t held = agent->rescuing ? agent->rescue_step : dpt_agent_step_of(agent);
    const bool died = !agent->rescuing && gone > held;
    const int64_t step = died ? gone : held;
    if (step <= saved || agent->done || agent->unsaved_said ||
        !is_left_alone(agent, failed, at_once))
        return 0;
    if (died && !agent->last_holder &&
        (agent->phase == DPT__SERVER_PHASE__SERVER_EXPELLED ||
         agent->phase == DPT__SERVER_PHASE__SERVER_RELEASED))
        return 0; /* others have them, or tell what it cost */
    if (died && !agent->gone_told && agent->first_error[0] != '\0' && !ends_by_first_error(agent))
        dpt_agent_log(agent, DPT_LOG_WARN, "%s", agent->first_error);
    if (died && dpt_agent_gone_is_elsewhere(agent)) {
        dpt_agent_log(agent, DPT_LOG_WARN,
                      "the last %lld steps (after step %lld, up to %lld) died with rank processes "
                      "here; no checkpoint has them, but other nodes had the same",
                      (long long)(step - saved), (long long)saved, (long long)step);
        return 0;
    }
    dpt_agent_log(
        agent, DPT_LOG_WARN, "NOT SAVED: the last %lld steps (after step %lld, up to %lld) %s%s%s",
        (long long)(step - saved), (long long)saved, (long long)step,
        died ? "died with rank processes here" : "are in memory only and go with this node",
        others_may_have(agent) ? " unless another node has them" : "",
        failed || agent->checkpoint_dir_id[0] == '\0' ? "" : "; the run will compute them again");
    return agent->checkpoint_dir_id[0] == '\0' ? 0 : step - saved;
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
    agent->end_code = code;
    const int64_t lost = say_unsaved(agent, agent->fatal || code == DPT_EXIT_FAILED,
                                     !politely && (agent->leaving || code == DPT_EXIT_EXPELLED));
    if (lost > 0 && code == DPT_EXIT_DONE) {
        agent->end_code = DPT_EXIT_EXPELLED;
        (void)snprintf(agent->end_text, sizeof agent->end_text,
                       "left the run, but its last %lld steps are not saved", (long long)lost);
    }
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

/* What goes with this incarnation is held by the world that has gone on without it, or by nobody.
 */
static void say_expelled(struct dpt_agent *agent, int64_t world_step)
{
    const int64_t saved = dpt_agent_saved_step(agent), held = dpt_agent_step_of(agent);
    const int64_t gone = dpt_agent_gone_is_elsewhere(agent) ? 0 : dpt_agent_gone_step(agent);
    const int64_t step = gone > held ? gone : held;
    const int64_t kept = world_step > saved ? world_step : saved;
    agent->unsaved_said = true;
    if (step > saved && step <= world_step)
        dpt_agent_log(
            agent, DPT_LOG_INFO,
            "the last %lld steps here, which no checkpoint has, are not lost: the run went "
            "on without this node and is at step %lld",
            (long long)(step - saved), (long long)world_step);
    else if (step > kept)
        dpt_agent_log(agent, DPT_LOG_WARN,
                      "NOT SAVED: the last %lld steps (after step %lld, up to %lld) are in memory "
                      "only and go with this incarnation%s; the run will compute them again",
                      (long long)(step - kept), (long long)kept, (long long)step,
                      world_step == 0 && agent->n_nodes > 0 ? " unless another node has them" : "");
}

void dpt_agent_expelled(struct dpt_agent *agent, int64_t world_step, const char *text)
{
    if (agent->stage >= STAGE_RESETTING)
        return;
    say_expelled(agent, world_step);
    if (agent->fatal) { /* the others go on without this node */
        dpt_agent_end(agent, agent->fatal_code, true, NULL, "%s", agent->first_error);
        return;
    }
    agent->expulsions++;
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
    agent->fenced = true;
    agent->fence_counter = agent->counter;
    agent->write_until_ms = 0;
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
    agent->saved_step = 0;
    agent->unsaved_said = false;
    agent->confirmed_ms = 0;
    agent->confirming_epoch = 0;
    agent->step_high = agent->gone_step = 0;
    agent->crashes = 0;
    dpt_agent_drop_plan(agent);
    agent->stage = STAGE_JOINING;
    agent->tell_server = true;
}

/* ---- leaving ---- */

/* Nothing here that anybody would have to wait for: while too few are here a server has what is not
 * saved saved, and without one the ranks do it by themselves. What died with a process here the
 * server may have elsewhere: it is asked. */
static bool is_idle(const struct dpt_agent *agent)
{
    if (agent->stage != STAGE_JOINED)
        return true;
    return (agent->order == ORDER_NONE || dpt_agent_is_waiting(agent)) &&
           !dpt_agent_holds_unsaved(agent) && dpt_agent_gone_step(agent) == 0;
}

void dpt_agent_on_signal(struct dpt_agent *agent)
{
    if (agent->stage == STAGE_ENDING) {
        agent->kill_at_ms = agent->now_ms;
        agent->give_up_ms = agent->now_ms + agent->timing.exit_ms;
        dpt_agent_kill_ranks(agent);
        return;
    }
    if (agent->told) {
        dpt_agent_end(agent, DPT_EXIT_EXPELLED, false, NULL, "told twice to end: left at once");
        return;
    }
    agent->told = true;
    if (agent->rescuing) { /* which is what a node that leaves does last */
        dpt_agent_log(agent, DPT_LOG_INFO,
                      "leaving when step %lld is saved, within %g s; once more means at once",
                      (long long)agent->rescue_step,
                      (double)(agent->drain_by_ms - agent->now_ms) / 1000);
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
    dpt_agent_log(agent, DPT_LOG_INFO, "leaving %s, within %g s; once more means at once",
                  !dpt_agent_is_computing(agent) && !dpt_agent_holds_unsaved(agent)
                      ? "when the server lets it go"
                  : dpt_agent_is_waiting(agent) || !dpt_agent_is_computing(agent)
                      ? "when what no checkpoint has is saved"
                      : "after the step in flight",
                  (double)agent->timing.drain_ms / 1000);
    dpt_agent_check_rescue(agent);
}

/* ---- deadlines ---- */

static void say_no_server(struct dpt_agent *agent, int64_t silent_s)
{
    const int64_t saved = dpt_agent_saved_step(agent), gone = dpt_agent_gone_step(agent);
    if (!agent->heard_ever)
        dpt_agent_end(agent, DPT_EXIT_SERVER, false, NULL,
                      "no rendezvous server answered within %lld s", (long long)silent_s);
    else if (gone > 0 && !dpt_agent_gone_is_elsewhere(agent))
        dpt_agent_end(agent, DPT_EXIT_EXPELLED, false, NULL,
                      "the rendezvous server has not answered for %lld s, and the last %lld steps "
                      "died with rank processes here",
                      (long long)silent_s, (long long)(gone - saved));
    else if (gone == 0 && saved > 0 && dpt_agent_step_of(agent) >= 0)
        dpt_agent_end(agent, DPT_EXIT_SERVER, false, NULL,
                      "the rendezvous server has not answered for %lld s; nothing is lost: step "
                      "%lld, the newest here, is saved",
                      (long long)silent_s, (long long)saved);
    else
        dpt_agent_end(agent, DPT_EXIT_SERVER, false, NULL,
                      "the rendezvous server has not answered for %lld s", (long long)silent_s);
}

void dpt_agent_check_stage(struct dpt_agent *agent)
{
    if (agent->stage == STAGE_ENDING) {
        if (agent->now_ms >= agent->give_up_ms)
            finish(agent);
        else if (agent->now_ms >= agent->kill_at_ms && !agent->kill_sent)
            dpt_agent_kill_ranks(agent);
        return;
    }
    if (agent->now_ms >= agent->drain_by_ms && agent->rescue_code != 0) {
        dpt_agent_end(agent, agent->rescue_code, false, NULL, "%s", agent->rescue_text);
        return;
    }
    if (agent->now_ms >= agent->drain_by_ms) {
        dpt_agent_end(agent, DPT_EXIT_EXPELLED, false, NULL,
                      agent->rescuing ? "the rescue did not become whole within %g s"
                                      : "did not drain within %g s: what was not handed over is "
                                        "lost",
                      (double)agent->timing.drain_ms / 1000);
        return;
    }
    if (agent->now_ms >= agent->fatal_by_ms && !agent->rescuing &&
        !(dpt_agent_lacks_server(agent) &&
          dpt_agent_end_by_rescue(agent, agent->fatal_code, agent->first_error))) {
        dpt_agent_end(agent, agent->fatal_code, false, NULL, "%s", agent->first_error);
        return;
    }
    dpt_agent_check_rescue(agent);
    if (agent->stage == STAGE_ENDING || agent->leaving)
        return; /* the drain has its own deadline */
    /* Ranks that compute go on without a server as long as they like, and what no checkpoint holds
     * waits for one as long as it takes; nobody else waits for ever. */
    int64_t silent_ms = agent->now_ms - agent->contact_ms;
    if (silent_ms < agent->timing.join_ms || dpt_agent_is_computing(agent) ||
        dpt_agent_holds_unsaved(agent))
        return;
    say_no_server(agent, silent_ms / 1000);
}

void dpt_agent_settle_stage(struct dpt_agent *agent)
{
    if (agent->stage == STAGE_RESETTING && !dpt_agent_has_processes(agent))
        rejoin(agent);
    if (agent->stage == STAGE_ENDING && !dpt_agent_has_processes(agent))
        finish(agent);
}
