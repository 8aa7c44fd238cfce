/* Steps that no checkpoint has: held by living processes, or lost with dead ones. */
#include "worker/agent/core_state.h"

#include "base/shard.h"

int64_t dpt_agent_saved_step(const struct dpt_agent *agent)
{
    int64_t saved = agent->server.saved_step;
    for (uint32_t i = 0; i < agent->n_ranks; i++) {
        const Dpt__RankState *state = &agent->ranks[i].report.state;
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

bool dpt_agent_holds_step(const struct agent_rank *rank, int64_t step)
{
    return rank->life == LIFE_UP && !rank->doomed && dpt_agent_newest_of(rank) == step;
}

static bool holds_whole_state(const struct agent_rank *rank)
{
    const Dpt__RankState *state = &rank->report.state;
    for (size_t i = 0; i < state->n_shards; i++)
        if (state->shards[i]->of == 1 && !state->shards[i]->pending)
            return true;
    return state->n_shards == 0;
}

/* Whether another rank of this node has the whole state (strategy.name: dp). */
static bool holds_nothing(const struct agent_rank *rank)
{
    const Dpt__RankState *state = &rank->report.state;
    for (size_t i = 0; i < state->n_shards; i++)
        if (state->shards[i]->of != DPT_SHARD_EMPTY_OF)
            return false;
    return state->n_shards > 0;
}

/* Whether each part that the rank holds has a second holder. The rank holds the whole state, as
 * every replica does, or it holds a shadow beside its own shard. */
static bool is_one_of_several(const struct agent_rank *rank)
{
    const Dpt__RankState *state = &rank->report.state;
    uint32_t held = 0;
    for (size_t i = 0; i < state->n_shards; i++)
        held += !state->shards[i]->pending;
    return holds_whole_state(rank) || held > 1;
}

/* ---- lost with a process ---- */

void dpt_agent_note_gone(struct dpt_agent *agent, const struct agent_rank *rank)
{
    struct agent_gone *gone = &agent->gone;
    const int64_t step = rank->report.state.step_applied;
    if (step <= 0 || step < gone->step)
        return;
    gone->is_logged = false;
    gone->is_copied = is_one_of_several(rank) && (step > gone->step || gone->is_copied);
    gone->step = step;
}

int64_t dpt_agent_whole_step(const struct dpt_agent *agent)
{
    int64_t step = dpt_agent_saved_step(agent);
    for (uint32_t i = 0; i < agent->n_ranks; i++) {
        const struct agent_rank *rank = &agent->ranks[i];
        const int64_t newest = dpt_agent_newest_of(rank);
        if (newest > step && dpt_agent_holds_step(rank, newest) && is_one_of_several(rank))
            step = newest;
    }
    return step;
}

int64_t dpt_agent_gone_step(const struct dpt_agent *agent)
{
    return agent->gone.step > dpt_agent_whole_step(agent) ? agent->gone.step : 0;
}

bool dpt_agent_gone_is_elsewhere(const struct dpt_agent *agent)
{
    return agent->gone.is_copied && agent->server.n_nodes > 1 && !agent->end.last_holder;
}

int64_t dpt_agent_steps_elsewhere(const struct dpt_agent *agent)
{
    const int64_t gone = dpt_agent_gone_step(agent);
    return gone > 0 && dpt_agent_gone_is_elsewhere(agent) ? gone - dpt_agent_saved_step(agent) : 0;
}

/* ---- the ranks that write a rescue ---- */

/* If a rank holds the whole state, the lowest such rank writes alone, unless it has been silent for
 * a lease. If each rank holds a part, all ranks write. */
bool dpt_agent_is_rescuer(const struct dpt_agent *agent, uint32_t local_rank)
{
    const int64_t step = agent->end.rescue_step;
    if (!agent->end.rescuing || !dpt_agent_holds_step(&agent->ranks[local_rank], step) ||
        holds_nothing(&agent->ranks[local_rank]))
        return false;
    for (uint32_t i = 0; i < local_rank; i++) {
        const struct agent_rank *lower = &agent->ranks[i];
        if (dpt_agent_holds_step(lower, step) && holds_whole_state(lower) &&
            agent->now_ms - lower->judged_ms <= agent->timing.lease_ms)
            return false;
    }
    return true;
}

enum dpt_agent_rescue dpt_agent_rescue_of(const struct dpt_agent *agent)
{
    const int64_t step = dpt_agent_step_of(agent);
    if (agent->node.facts.checkpoint_dir_id[0] == '\0')
        return DPT_AGENT_RESCUE_NONE;
    if (agent->server.n_nodes <= 1)
        return DPT_AGENT_RESCUE_COMPLETE;
    for (uint32_t i = 0; i < agent->n_ranks; i++)
        if (dpt_agent_holds_step(&agent->ranks[i], step) && holds_whole_state(&agent->ranks[i]))
            return DPT_AGENT_RESCUE_COMPLETE;
    return DPT_AGENT_RESCUE_PART;
}
