/* The view of the core for the terminal and the simulator. */
#include "worker/agent/core_state.h"

#include <string.h>

static void view_generation(const struct dpt_agent *agent, struct dpt_agent_view *ret)
{
    const Dpt__Plan *plan = agent->gen.plan;
    if (plan == NULL)
        return;
    ret->world_size = plan->world_size;
    dpt_agent_copy_text(ret->plan_digest, sizeof ret->plan_digest, plan->digest);
    const int64_t lost = plan->steps_done_before - plan->resume_step;
    /* A final save makes no step. The node that leaves prints another line. */
    if (agent->gen.order != ORDER_GO ||
        (plan->final_save && lost <= 0 && strcmp(plan->cause_kind, "left") == 0))
        return;
    ret->trains = true;
    ret->cause = plan->cause;
    ret->cause_kind = plan->cause_kind;
    ret->resume_step = plan->resume_step;
    ret->steps_lost = lost > 0 ? lost : 0;
    ret->still_ms = agent->gen.still_ms;
}

static void view_rank(const struct agent_rank *rank, struct dpt_agent_view *ret)
{
    const Dpt__RankToAgent *report = &rank->report.message;
    ret->computing = ret->computing || dpt_agent_makes_steps(rank);
    /* Each rank reports the rate of the whole world. */
    if (report->tokens_per_s > ret->tokens_per_s)
        ret->tokens_per_s = report->tokens_per_s;
    if (dpt_agent_newest_of(rank) == ret->step && report->tokens_per_s > 0)
        ret->loss = rank->report.state.loss;
    if (report->val_step > ret->val.step)
        ret->val = (struct dpt_agent_evaluation){.step = report->val_step,
                                                 .loss = report->val_loss,
                                                 .right = report->val_right,
                                                 .samples = report->val_samples};
}

void dpt_agent_view(const struct dpt_agent *agent, struct dpt_agent_view *ret)
{
    const int64_t step = dpt_agent_step_of(agent), saved = dpt_agent_saved_step(agent);
    const int32_t first = agent->gen.first_local;
    *ret = (struct dpt_agent_view){
        .incarnation = agent->node.incarnation,
        .generation = agent->gen.number,
        .epoch = agent->server.epoch,
        .phase = agent->server.phase,
        .n_nodes = agent->server.n_nodes,
        .step = step,
        .unsaved_steps = step > saved ? step - saved : 0,
        .steps_elsewhere = dpt_agent_steps_elsewhere(agent),
        .rescue = dpt_agent_rescue_of(agent),
        .paused = agent->server.paused,
        .server_up = agent->server.up,
        .leaving = agent->end.leaving,
        .ending = agent->stage >= STAGE_ENDING,
        .ended = agent->stage == STAGE_ENDED,
        .last_call.length_ms = agent->server.last_call_ms,
        .write_until_ms = agent->lease.write_until_ms,
        .timing = agent->timing,
        .cause = "",
        .cause_kind = "",
        .first = first < 0 ? NULL : &agent->ranks[first].report.message,
    };
    dpt_agent_copy_text(ret->last_call.reason, sizeof ret->last_call.reason, agent->server.reason);
    view_generation(agent, ret);
    for (uint32_t i = 0; i < agent->n_ranks; i++)
        view_rank(&agent->ranks[i], ret);
}
