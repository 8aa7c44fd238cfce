/* A leaving node is released when another node or a checkpoint has its state:
 *
 *   others stay and train     the leaving node hands its part over (a guest of the plan, plan.c),
 *                             and stays until the generation without it runs
 *   too few stay              a farewell: all that hold the state save it in a checkpoint
 *   no checkpoint possible    the node is released as last holder and writes a rescue itself
 *
 * A node has `drain_ms` in all, so three quarters of it bound every wait here. */
#include "rendezvous/core/advance.h"

#include "rendezvous/core/queries.h"
#include "rendezvous/core/reply.h"
#include "rendezvous/core/rules.h"

#include <string.h>

bool dpt_rdzv_farewell_is_due(const struct run *run)
{
    bool can_save = false;
    for (size_t i = 0; i < run->n_nodes; i++)
        can_save = can_save || run->nodes[i]->checkpoint_dir_id[0] != '\0';
    if (!can_save || (run->membership.n_leaving == 0 && !dpt_rdzv_wait_is_over(run)))
        return false;
    const int64_t step = dpt_rdzv_step_unsaved(run);
    return step > 0 && step != run->progress.farewell_step;
}

/* If no node stays, a farewell saves the state before the step. But ranks that are busy have ended
 * the step and are already saving the state after it, so the step is not stopped. */
void dpt_rdzv_stop_step_for_leaving(struct run *run)
{
    const struct node *due = NULL;
    bool some_stay = false;
    if (!run->formation.soft || run->plan.farewell || run->membership.n_leaving == 0)
        return;
    for (size_t i = 0; i < run->n_nodes; i++) {
        const struct node *node = run->nodes[i];
        some_stay = some_stay || (dpt_rdzv_node_is_member(node) && !node->leaving);
        if (node->leaving && run->core->now_ms - node->leaving_ms >= run->timing.boundary_ms)
            due = node;
    }
    if (due != NULL && (some_stay || run->plan.n_busy == 0))
        dpt_rdzv_prepare(run, PREPARE_HARD,
                         dpt_rdzv_cause(CAUSE_LEFT, 0,
                                        "node %s leaves and cannot wait for the end of the step",
                                        due->id));
}

/* How long a leaving node stays if it has no place in a plan in force. WAITING: its shards and the
 * shards of nodes that return may become a whole state. PLANNED: the only other holder of its part
 * may be lost before the generation runs. */
static int64_t release_after_ms(const struct run *run)
{
    const bool useful =
        run->phase == DPT_RDZV_PLANNED ||
        (run->phase == DPT_RDZV_WAITING && run->spec.sharded && dpt_rdzv_is_return_possible(run));
    return useful ? run->timing.drain_ms * 3 / 4 : 0;
}

/* True: processes have died with steps that no checkpoint and no living process has. If the state
 * is sharded, these were processes of this node. Otherwise no rank of another node has such a
 * step. */
static bool has_lost_steps(const struct run *run, const struct node *node)
{
    const struct progress *progress = &run->progress;
    if (progress->steps_done <= progress->saved_step)
        return false;
    for (size_t i = 0; run->spec.sharded && i < progress->n_losses; i++)
        if (strcmp(progress->losses[i].node, node->id) == 0)
            return true;
    struct rank_cursor at = {0};
    for (const struct rank *rank; (rank = dpt_rdzv_next_rank(run, &at)) != NULL;)
        if (rank->node != node && dpt_rdzv_rank_is_alive(rank) &&
            rank->step_applied > progress->saved_step)
            return false;
    return !run->spec.sharded;
}

/* True: no other node and no checkpoint has the steps of this node. False while a plan is in force,
 * because its generation has taken the node's part over. If a farewell could not write to its
 * folder, every leaving node is a last holder, unless nodes that stay hold the step, and tries its
 * own folder. */
static bool is_last_holder(const struct run *run, const struct node *node)
{
    const struct progress *progress = &run->progress;
    if (run->plan.in_force)
        return false;
    if (progress->farewell_step > progress->saved_step)
        return dpt_rdzv_step_held(run, GROUP_STAYING | GROUP_EXCLUDED, NULL) <
               progress->farewell_step;
    const int64_t step = dpt_rdzv_step_held(run, GROUP_ALL, NULL);
    if (step <= progress->saved_step)
        return has_lost_steps(run, node);
    return dpt_rdzv_step_held(run, GROUP_ALL, node) < step;
}

static void release_node(struct run *run, struct node *node)
{
    const struct progress *progress = &run->progress;
    struct departed told = {.released = true, .last_holder = is_last_holder(run, node)};
    if (told.last_holder && progress->farewell_step > progress->saved_step)
        told.n_nodes = run->plan.n_nodes;
    dpt_rdzv_answer_released(run, node, &told);
    dpt_rdzv_log(run, DPT_LOG_INFO, "node %s is released", node->id);
    struct departed *departed = dpt_rdzv_remove_node(run, node);
    departed->released = true;
    departed->last_holder = told.last_holder;
    departed->n_nodes = told.n_nodes;
    run->changed = true;
}

void dpt_rdzv_release_leaving(struct run *run)
{
    if (run->membership.n_leaving == 0)
        return;
    const int64_t after_ms = release_after_ms(run);
    for (size_t i = run->n_nodes; i-- > 0;) {
        struct node *node = run->nodes[i];
        if (node->leaving && run->core->now_ms - node->leaving_ms >= after_ms &&
            !(run->plan.in_force && dpt_rdzv_node_is_member(node)))
            release_node(run, node);
    }
}
