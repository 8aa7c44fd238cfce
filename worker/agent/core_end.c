/* The end of this node. Before the end, the ranks save the steps that no other node saves. This
 * checkpoint is a rescue, which needs no grant (docs/checkpoints.md). */
#include "worker/agent/core_state.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Number of bytes in which two errors are compared: the server shortens a long text. */
enum { ERROR_KNOWN_BYTES = 256 };

/* ---- steps that are lost with this node ---- */

/* Whether another node may have the steps of this one. When nodes leave together, and when the run
 * has failed, each node saves the steps that it holds. */
static bool others_may_have(const struct dpt_agent *agent)
{
    return agent->server.n_nodes > 1 && (!agent->end.last_holder || agent->end.rescuing);
}

/* Whether the closing line of this node contains its first error. */
static bool ends_by_first_error(const struct dpt_agent *agent)
{
    char known[ERROR_KNOWN_BYTES];
    dpt_agent_copy_text(known, sizeof known, agent->errors.first);
    return strstr(agent->end.text, known) != NULL;
}

/* Logs the steps that died here and that other nodes had, too. */
static void log_gone_elsewhere(struct dpt_agent *agent, int64_t saved, int64_t gone)
{
    dpt_agent_log(
        agent, DPT_LOG_WARN,
        "the last %lld steps (after step %lld, up to %lld) died with rank processes here; "
        "no checkpoint has them, but other nodes had the same",
        (long long)(gone - saved), (long long)saved, (long long)gone);
}

/* Logs the steps that are lost with this node. Returns the number of those that a checkpoint should
 * have. */
static int64_t log_unsaved(struct dpt_agent *agent, bool failed)
{
    const struct agent_end *end = &agent->end;
    const int64_t saved = dpt_agent_saved_step(agent), gone = dpt_agent_gone_step(agent);
    const int64_t held = end->rescuing ? end->rescue_step : dpt_agent_step_of(agent);
    bool died = !end->rescuing && gone > held;
    const bool has_folder = agent->node.facts.checkpoint_dir_id[0] != '\0';
    /* If the server releases a node, other nodes have its steps. A fenced node is an exception: the
     * server may have released it before it heard of the newest steps. */
    const bool others_have = agent->server.phase == DPT__SERVER_PHASE__SERVER_RELEASED &&
                             !end->last_holder && (died || !agent->lease.fenced);
    if ((died ? gone : held) <= saved || others_have || end->unsaved_told ||
        (agent->server.phase == DPT__SERVER_PHASE__SERVER_DONE && !agent->server.paused))
        return 0;
    if (died && !agent->gone.is_logged && agent->errors.first[0] != '\0' &&
        !ends_by_first_error(agent))
        dpt_agent_log(agent, DPT_LOG_WARN, "%s", agent->errors.first);
    if (died && dpt_agent_gone_is_elsewhere(agent)) {
        log_gone_elsewhere(agent, saved, gone);
        died = false; /* the living processes may hold an earlier step */
    }
    const int64_t step = died ? gone : held;
    if (step <= saved)
        return 0;
    dpt_agent_log(
        agent, DPT_LOG_WARN, "NOT SAVED: the last %lld steps (after step %lld, up to %lld) %s%s%s",
        (long long)(step - saved), (long long)saved, (long long)step,
        died ? "died with rank processes here" : "are in memory only and go with this node",
        others_may_have(agent) ? " unless another node has them" : "",
        failed || !has_folder ? "" : "; the run will compute them again");
    return has_folder ? step - saved : 0;
}

/* ---- the end ---- */

void dpt_agent_end(struct dpt_agent *agent, enum end_kind kind, int code, const char *fmt, ...)
{
    struct agent_end *end = &agent->end;
    if (agent->stage >= STAGE_ENDING)
        return;
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(end->text, sizeof end->text, fmt, ap);
    va_end(ap);
    end->code = code;
    const int64_t lost = log_unsaved(agent, agent->errors.fatal || code == DPT_EXIT_FAILED);
    if (lost > 0 && code == DPT_EXIT_DONE) {
        end->code = DPT_EXIT_EXPELLED;
        (void)snprintf(end->text, sizeof end->text,
                       "left the run, but its last %lld steps are not saved", (long long)lost);
    } else if (lost > 0 && code == DPT_EXIT_CONFIG && !agent->errors.fatal) {
        end->code = DPT_EXIT_EXPELLED; /* a server of another version has met a node of the run */
    }
    end->goodbye = end->leaving && agent->stage == STAGE_JOINED;
    agent->out.server_due = agent->out.server_due || end->goodbye;
    agent->stage = STAGE_ENDING;
    end->drain_by_ms = INT64_MAX;
    end->kill_at_ms = agent->now_ms;
    if (kind == END_AT_ONCE)
        dpt_agent_kill_ranks(agent);
    else
        end->kill_at_ms += agent->timing.exit_ms;
    /* A process that hangs in the kernel cannot delay the agent's end beyond this time. */
    end->give_up_ms = end->kill_at_ms + agent->timing.exit_ms;
    dpt_agent_tell_ranks(agent);
}

void dpt_agent_finish(struct dpt_agent *agent)
{
    struct agent_end *end = &agent->end;
    agent->stage = STAGE_ENDED;
    dpt_agent_act(agent, &(struct dpt_agent_action){.kind = DPT_AGENT_ACTION_EXIT,
                                                    .exit_code = end->code,
                                                    .text = end->text,
                                                    .spec = end->spec});
}

/* ---- a rescue before it ---- */

static bool can_rescue(const struct dpt_agent *agent)
{
    return dpt_agent_holds_unsaved(agent) && agent->node.facts.checkpoint_dir_id[0] != '\0';
}

/* Called a second time when a rank has completed the step that was in flight. */
static void begin_rescue(struct dpt_agent *agent)
{
    struct agent_end *end = &agent->end;
    const bool again = end->rescuing;
    const char *why = "no server answers";
    if (agent->server.denial[0] != '\0')
        why = "the server does not take this machine's keys";
    else if (end->last_holder)
        why = "the nodes that leave have not saved";
    else if (end->rescue_code != 0 && !dpt_agent_lacks_server(agent))
        why = "the run ends without a checkpoint";
    end->rescuing = true;
    end->rescue_step = dpt_agent_step_of(agent);
    dpt_agent_tell_ranks(agent);
    if (!again)
        dpt_agent_log(agent, DPT_LOG_WARN, "%s: the ranks write step %lld as a rescue, within %g s",
                      why, (long long)end->rescue_step,
                      (double)(end->drain_by_ms - agent->now_ms) / 1000);
}

void dpt_agent_end_saved(struct dpt_agent *agent, int code, const char *text)
{
    struct agent_end *end = &agent->end;
    const int64_t step = dpt_agent_step_of(agent);
    bool holds = false;
    for (uint32_t i = 0; i < agent->n_ranks; i++)
        holds = holds || dpt_agent_holds_step(&agent->ranks[i], step);
    if (agent->stage != STAGE_JOINED || end->rescuing || !holds || !can_rescue(agent)) {
        dpt_agent_end(agent, END_IN_ORDER, code, "%s", text);
        return;
    }
    end->rescue_code = code;
    dpt_agent_copy_text(end->rescue_text, sizeof end->rescue_text, text);
    /* A node that leaves already has its drain time. */
    if (!end->leaving)
        end->drain_by_ms = agent->now_ms + agent->timing.drain_ms;
    end->leaving = true;
    begin_rescue(agent);
}

/* Whether a local rank makes steps. The ranks go on for a while, so that nodes that are told to
 * leave at about the same time stop at the same step. A rank that saves is busy and does not
 * count. */
static bool steps_go_on(const struct dpt_agent *agent)
{
    for (uint32_t i = 0; i < agent->n_ranks; i++)
        if (dpt_agent_makes_steps(&agent->ranks[i]) && !agent->ranks[i].report.state.busy)
            return true;
    return false;
}

static void begin_rescue_if_due(struct dpt_agent *agent)
{
    const int64_t drain_ms = agent->timing.drain_ms;
    const int64_t stop_by_ms = agent->end.drain_by_ms - drain_ms + drain_ms / 4;
    if (!dpt_agent_lacks_server(agent) || (steps_go_on(agent) && agent->now_ms < stop_by_ms))
        return;
    if (can_rescue(agent))
        begin_rescue(agent);
    else
        dpt_agent_end(agent, END_IN_ORDER, DPT_EXIT_DONE, "%s", "");
}

/* Whether a local rank still writes, or waits for the parts of other nodes. False: *ret_why is the
 * reason why the rescue ended. */
static bool rescue_goes_on(const struct dpt_agent *agent, const char **ret_why)
{
    *ret_why = "the rank processes that held them have died";
    for (uint32_t i = 0; i < agent->n_ranks; i++) {
        if (!dpt_agent_is_rescuer(agent, i))
            continue;
        if (!agent->ranks[i].report.state.rescue_failed)
            return true;
        *ret_why = agent->ranks[i].report.text;
    }
    return false;
}

void dpt_agent_check_rescue(struct dpt_agent *agent)
{
    const struct agent_end *end = &agent->end;
    const char *why = "";
    if (agent->stage != STAGE_JOINED || !end->leaving)
        return;
    if (!end->rescuing) {
        begin_rescue_if_due(agent);
        return;
    }
    if (dpt_agent_step_of(agent) > end->rescue_step)
        begin_rescue(agent);
    const bool saved = dpt_agent_saved_step(agent) >= end->rescue_step;
    if (!saved && rescue_goes_on(agent, &why))
        return;
    if (saved && agent->server.denial[0] != '\0')
        dpt_agent_log(
            agent, DPT_LOG_WARN,
            "step %lld is saved here; the other nodes of the run may have gone on without "
            "this node, and then the run does not need it",
            (long long)end->rescue_step);
    else if (saved)
        dpt_agent_log(agent, DPT_LOG_WARN,
                      "step %lld is saved: the run goes on from there when it is started again",
                      (long long)end->rescue_step);
    /* dpt_agent_end changes DPT_EXIT_DONE if steps are lost. */
    if (end->rescue_code != 0)
        dpt_agent_end(agent, END_IN_ORDER, end->rescue_code, "%s", end->rescue_text);
    else if (agent->errors.fatal)
        dpt_agent_end(agent, END_IN_ORDER, agent->errors.fatal_code, "%s", agent->errors.first);
    else if (saved || end->last_holder)
        dpt_agent_end(agent, END_IN_ORDER, DPT_EXIT_DONE, "%s", "");
    else
        dpt_agent_end(agent, END_IN_ORDER, DPT_EXIT_EXPELLED, "left without a server: %.400s", why);
}
