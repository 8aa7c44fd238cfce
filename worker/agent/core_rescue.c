/* Steps that no checkpoint holds, while there is no server: a node that is told to leave then has
 * its ranks write a rescue, which needs no grant (docs/checkpoints.md). */
#include "worker/agent/core_internal.h"

int64_t dpt_agent_saved_step(const struct dpt_agent *agent)
{
    int64_t saved = agent->saved_step;
    for (uint32_t i = 0; i < agent->n_ranks; i++) {
        const Dpt__RankState *state = &agent->ranks[i].state;
        if (state->checkpoint_step > saved)
            saved = state->checkpoint_step;
        if (state->rescued_step > saved)
            saved = state->rescued_step;
    }
    return saved;
}

bool dpt_agent_holds_unsaved(const struct dpt_agent *agent)
{
    return dpt_agent_step_of(agent) > dpt_agent_saved_step(agent);
}

/* A drain leaves most of its time to what it is for. */
bool dpt_agent_lacks_server(const struct dpt_agent *agent)
{
    const struct dpt_timing *timing = &agent->timing;
    const int64_t quarter_ms = timing->drain_ms / 4;
    const int64_t least_ms = timing->lease_ms < quarter_ms ? timing->lease_ms : quarter_ms;
    return agent->now_ms - agent->contact_ms >= least_ms;
}

/* ---- who writes ---- */

static bool holds_step(const struct agent_rank *rank, int64_t step)
{
    return rank->life == LIFE_UP && !rank->doomed && dpt_agent_newest_of(rank) == step;
}

static bool holds_all(const struct agent_rank *rank)
{
    for (size_t i = 0; i < rank->state.n_shards; i++)
        if (rank->state.shards[i]->of == 1 && !rank->state.shards[i]->pending)
            return true;
    return rank->state.n_shards == 0;
}

/* ---- what died with a process ---- */

/* All of the state, or beside its own shard the shadow of another: then each has a second holder.
 */
static bool is_one_of_several(const struct agent_rank *rank)
{
    uint32_t held = 0;
    for (size_t i = 0; i < rank->state.n_shards; i++)
        held += !rank->state.shards[i]->pending;
    return holds_all(rank) || held > 1;
}

void dpt_agent_note_gone(struct dpt_agent *agent, const struct agent_rank *rank)
{
    const int64_t step = rank->state.step_applied;
    if (step <= 0 || step < agent->gone_step)
        return;
    agent->gone_told = false;
    agent->gone_copied = is_one_of_several(rank) && (step > agent->gone_step || agent->gone_copied);
    agent->gone_step = step;
}

int64_t dpt_agent_whole_step(const struct dpt_agent *agent)
{
    int64_t step = dpt_agent_saved_step(agent);
    for (uint32_t i = 0; i < agent->n_ranks; i++) {
        const struct agent_rank *rank = &agent->ranks[i];
        const int64_t newest = dpt_agent_newest_of(rank);
        if (newest > step && holds_step(rank, newest) && is_one_of_several(rank))
            step = newest;
    }
    return step;
}

int64_t dpt_agent_gone_step(const struct dpt_agent *agent)
{
    return agent->gone_step > dpt_agent_whole_step(agent) ? agent->gone_step : 0;
}

bool dpt_agent_gone_is_elsewhere(const struct dpt_agent *agent)
{
    return agent->gone_copied && agent->n_nodes > 1 && !agent->last_holder;
}

/* The lowest rank that holds everything writes alone, unless it has been silent for a lease; where
 * each holds a part, all write. */
bool dpt_agent_is_rescuer(const struct dpt_agent *agent, uint32_t local_rank)
{
    if (!agent->rescuing || !holds_step(&agent->ranks[local_rank], agent->rescue_step))
        return false;
    for (uint32_t i = 0; i < local_rank; i++) {
        const struct agent_rank *lower = &agent->ranks[i];
        if (holds_step(lower, agent->rescue_step) && holds_all(lower) &&
            agent->now_ms - lower->heard_ms <= agent->timing.lease_ms)
            return false;
    }
    return true;
}

enum dpt_agent_rescue dpt_agent_rescue_of(const struct dpt_agent *agent)
{
    if (agent->checkpoint_dir_id[0] == '\0')
        return DPT_AGENT_RESCUE_NONE;
    if (agent->n_nodes <= 1)
        return DPT_AGENT_RESCUE_WHOLE;
    const int64_t step = dpt_agent_step_of(agent);
    for (uint32_t i = 0; i < agent->n_ranks; i++)
        if (holds_step(&agent->ranks[i], step) && holds_all(&agent->ranks[i]))
            return DPT_AGENT_RESCUE_WHOLE;
    return DPT_AGENT_RESCUE_PART;
}

/* ---- begin and end ---- */

/* A rank here makes steps: when all nodes are told at about the same time, the ranks stop at one
 * step, and then say that they are busy with its save. */
static bool makes_steps(const struct dpt_agent *agent)
{
    for (uint32_t i = 0; i < agent->n_ranks; i++) {
        const struct agent_rank *rank = &agent->ranks[i];
        if (rank->life == LIFE_UP && rank->state.phase == DPT__RANK_PHASE__RANK_RUNNING &&
            rank->state.failed_generation != rank->state.generation && !rank->state.busy)
            return true;
    }
    return false;
}

static void begin(struct dpt_agent *agent)
{
    const bool again = agent->rescuing; /* a rank has ended the step that it had begun */
    const char *why = "there is no server to take over or commit";
    if (agent->last_holder)
        why = "the nodes that leave have not saved";
    else if (agent->rescue_code != 0 && !dpt_agent_lacks_server(agent))
        why = "the run ends and nobody commits";
    agent->rescuing = true;
    agent->rescue_step = dpt_agent_step_of(agent);
    dpt_agent_tell_ranks(agent);
    if (again)
        return;
    dpt_agent_log(agent, DPT_LOG_WARN, "%s step %lld: the ranks write it as a rescue, within %g s",
                  why, (long long)agent->rescue_step,
                  (double)(agent->drain_by_ms - agent->now_ms) / 1000);
}

/* Somebody here still writes, or waits for the parts of others. */
static bool goes_on(const struct dpt_agent *agent, const char **ret_why)
{
    *ret_why = "the rank processes that held them are gone";
    for (uint32_t i = 0; i < agent->n_ranks; i++) {
        if (!dpt_agent_is_rescuer(agent, i))
            continue;
        if (!agent->ranks[i].state.rescue_failed)
            return true;
        *ret_why = agent->ranks[i].text;
    }
    return false;
}

bool dpt_agent_end_by_rescue(struct dpt_agent *agent, int code, const char *text)
{
    const int64_t step = dpt_agent_step_of(agent);
    bool can = false;
    for (uint32_t i = 0; i < agent->n_ranks; i++)
        can = can || holds_step(&agent->ranks[i], step);
    if (agent->stage != STAGE_JOINED || agent->rescuing || !can ||
        !dpt_agent_holds_unsaved(agent) || agent->checkpoint_dir_id[0] == '\0')
        return false;
    agent->rescue_code = code;
    dpt_agent_copy_text(agent->rescue_text, sizeof agent->rescue_text, text);
    if (!agent->leaving) /* else its time runs already */
        agent->drain_by_ms = agent->now_ms + agent->timing.drain_ms;
    agent->leaving = true;
    begin(agent);
    return true;
}

void dpt_agent_check_rescue(struct dpt_agent *agent)
{
    if (agent->stage != STAGE_JOINED || !agent->leaving)
        return;
    if (!agent->rescuing) {
        const bool can = agent->checkpoint_dir_id[0] != '\0';
        const int64_t told_ms = agent->drain_by_ms - agent->timing.drain_ms;
        if (!dpt_agent_lacks_server(agent) ||
            (makes_steps(agent) && agent->now_ms < told_ms + agent->timing.drain_ms / 4))
            return;
        if (dpt_agent_holds_unsaved(agent) && can)
            begin(agent);
        else /* there is nothing to save, or nowhere: the latter is said */
            dpt_agent_end(agent, DPT_EXIT_DONE, true, NULL, "%s", "");
        return;
    }
    if (dpt_agent_step_of(agent) > agent->rescue_step)
        begin(agent);
    const char *why = "";
    const bool saved = dpt_agent_saved_step(agent) >= agent->rescue_step;
    if (!saved && goes_on(agent, &why))
        return;
    if (saved)
        dpt_agent_log(agent, DPT_LOG_WARN,
                      "step %lld is saved: the run goes on from there when it is started again",
                      (long long)agent->rescue_step);
    if (agent->rescue_code != 0)
        dpt_agent_end(agent, agent->rescue_code, true, NULL, "%s", agent->rescue_text);
    else if (agent->fatal)
        dpt_agent_end(agent, agent->fatal_code, true, NULL, "%s", agent->first_error);
    else if (saved || agent->last_holder) /* what is not saved is said */
        dpt_agent_end(agent, DPT_EXIT_DONE, true, NULL, "%s", "");
    else
        dpt_agent_end(agent, DPT_EXIT_EXPELLED, true, NULL, "left without a server: %.400s", why);
}
