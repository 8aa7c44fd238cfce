/* A node that leaves stays until its state is safe elsewhere: on other nodes by a transfer, or on
 * disk by a save. Three quarters of drain_ms bound the wait.
 *
 *   enough nodes stay    transfer: the node hands its part over (a handover rank, plan.c), and
 *                        stays until the generation without it runs; in a pause, until the others
 *                        have it
 *   too few stay         save: all nodes that hold the state save it in a checkpoint (final save)
 *   no save is possible  the node is released as last holder and writes a rescue itself
 *
 * A run that ends because it has too few nodes saves its state by the same rule. So does a run that
 * an operator stops, or pauses and wants saved. */
#include "rendezvous/core/advance.h"
#include "rendezvous/core/kept.h"

#include "rendezvous/core/apply.h"
#include "rendezvous/core/queries.h"
#include "rendezvous/core/reply.h"
#include "rendezvous/core/rules.h"

#include <string.h>

/* True: the run has waited for nodes for too long and may save its state. The first final save may
 * be late, because it waits for the lease of a silent node or of an earlier server's nodes. Further
 * ones are formed for drain_ms after the wait. */
static bool is_ending(const struct run *run)
{
    const int64_t end_ms = run->formation.waits_since_ms + run->spec.wait_ms;
    return dpt_rdzv_wait_is_over(run) &&
           (!run->plan.final_save || run->core->now_ms - end_ms < run->timing.drain_ms);
}

bool dpt_rdzv_final_save_is_due(struct run *run)
{
    bool can_save = false;
    const bool is_wanted =
        dpt_rdzv_is_held(run) && (run->kept.stopped || dpt_rdzv_save_wanted(run) > 0);
    if (run->membership.n_leaving == 0 && !is_ending(run) && !is_wanted)
        return false;
    for (size_t i = 0; i < run->n_nodes && !can_save; i++)
        can_save = run->nodes[i]->checkpoint_dir_id[0] != '\0';
    if (!can_save)
        return false;
    const int64_t step = dpt_rdzv_step_unsaved(run);
    return step > 0 && step != run->progress.final_save_step;
}

bool dpt_rdzv_is_release_due(const struct run *run)
{
    bool is_due = false;
    if (!dpt_rdzv_is_held(run) || run->membership.n_leaving == 0)
        return false;
    for (size_t i = 0; i < run->n_nodes; i++)
        is_due = is_due ||
                 (run->nodes[i]->leaving &&
                  run->core->now_ms - run->nodes[i]->leaving_ms >= run->timing.drain_ms * 7 / 8);
    return is_due;
}

/* True: a node leaves that still has time to hand its state over. */
static bool has_time_to_hand_over(const struct run *run)
{
    bool has = false;
    for (size_t i = 0; i < run->n_nodes; i++)
        has = has || (run->nodes[i]->leaving &&
                      run->core->now_ms - run->nodes[i]->leaving_ms < run->timing.drain_ms * 3 / 4);
    return has && !dpt_rdzv_is_release_due(run);
}

bool dpt_rdzv_handover_is_due(struct run *run)
{
    if (!dpt_rdzv_is_held(run) || run->membership.n_leaving == 0 || run->generation == 0 ||
        !has_time_to_hand_over(run) || dpt_rdzv_final_save_is_due(run) ||
        dpt_rdzv_count_ready(run) < dpt_rdzv_min_nodes(run))
        return false;
    return dpt_rdzv_step_unsaved(run) > dpt_rdzv_step_held(run, GROUP_STAYING | GROUP_EXCLUDED);
}

/* If no node stays, the final save has the state before the step. But ranks that are busy have
 * ended the step and are already saving the state after it, so the step is not stopped. */
void dpt_rdzv_stop_step_for_leaving(struct run *run)
{
    const struct node *due = NULL;
    bool some_stay = false;
    if (!run->formation.soft || run->plan.final_save || run->membership.n_leaving == 0 ||
        run->core->now_ms - run->membership.leaving_since_ms < run->timing.boundary_ms)
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

/* True: the state of a leaving node without a place in the plan in force may still become safe.
 * PLANNED: the only other holder of its part may be lost before the generation runs. WAITING: its
 * shards and the shards of nodes that return may become a whole state. */
static bool is_stay_useful(const struct run *run)
{
    return run->phase == DPT_RDZV_PLANNED || (run->phase == DPT_RDZV_WAITING && run->spec.sharded &&
                                              dpt_rdzv_is_return_possible(run));
}

/* True: processes have died with steps that no checkpoint and no living process has. If the state
 * is sharded, these were processes of this node. Otherwise no rank of a node that stays has such
 * a step. */
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
        if (!rank->node->leaving && dpt_rdzv_rank_is_alive(rank) &&
            rank->step_applied > progress->saved_step)
            return false;
    return !run->spec.sharded;
}

enum leave {
    LEAVE_STAYS,      /* the node hands its state over, or waits until the state is safe */
    LEAVE_IS_SAFE,    /* a node that stays or a checkpoint has the steps of the node */
    LEAVE_LAST_HOLDER /* neither has */
};

/* The steps that nodes hold; the same for all nodes that leave. */
struct held {
    bool known;
    int64_t all, others; /* of all nodes, of those that do not leave */
};

static enum leave judge_leaving(const struct run *run, const struct node *node, struct held *held)
{
    const struct progress *progress = &run->progress;
    const bool in_time = run->core->now_ms - node->leaving_ms < run->timing.drain_ms * 3 / 4;
    if ((run->plan.in_force && dpt_rdzv_node_is_member(node)) || (in_time && is_stay_useful(run)))
        return LEAVE_STAYS;
    if (run->plan.in_force) /* its generation has taken the node's part over */
        return LEAVE_IS_SAFE;
    /* final_save_step counts, too: some nodes that held it may have been released already. */
    if (!held->known)
        *held = (struct held){.known = true,
                              .all = dpt_rdzv_step_held(run, GROUP_ALL),
                              .others = dpt_rdzv_step_held(run, GROUP_STAYING | GROUP_EXCLUDED)};
    const int64_t step =
        held->all > progress->final_save_step ? held->all : progress->final_save_step;
    const bool is_lost =
        step <= progress->saved_step ? has_lost_steps(run, node) : held->others < step;
    return is_lost ? LEAVE_LAST_HOLDER : LEAVE_IS_SAFE;
}

static void release_node(struct run *run, struct node *node, bool last_holder)
{
    const struct progress *progress = &run->progress;
    const bool unsaved = last_holder && progress->final_save_step > progress->saved_step;
    const struct departed told = {.last_holder = last_holder,
                                  .n_nodes = unsaved ? run->plan.n_nodes : 0};
    dpt_rdzv_answer_released(run, node, &told);
    const int64_t without = last_holder ? dpt_rdzv_step_without_checkpoint(run) : 0;
    if (without > 0)
        dpt_rdzv_log(run, DPT_LOG_WARN,
                     "node %s is released, and no checkpoint and no node that stays has the steps "
                     "up to %lld: its log says whether it has written a rescue",
                     node->id, (long long)without);
    else
        dpt_rdzv_log(run, DPT_LOG_INFO, "node %s is released", node->id);
    dpt_rdzv_remove_node(run, node,
                         &(struct removal){.why = "released",
                                           .released = true,
                                           .last_holder = told.last_holder,
                                           .n_nodes = told.n_nodes});
}

void dpt_rdzv_release_leaving(struct run *run)
{
    if (run->membership.n_leaving == 0)
        return;
    struct held held = {0};
    enum leave *judged = dpt_outbox_alloc(&run->core->out, run->n_nodes * sizeof judged[0]);
    if (judged == NULL)
        return;
    /* All are judged before one is removed, because nodes that leave together may hold one state
     * together. */
    for (size_t i = 0; i < run->n_nodes; i++)
        judged[i] = run->nodes[i]->leaving ? judge_leaving(run, run->nodes[i], &held) : LEAVE_STAYS;
    for (size_t i = run->n_nodes; i-- > 0;)
        if (judged[i] != LEAVE_STAYS)
            release_node(run, run->nodes[i], judged[i] == LEAVE_LAST_HOLDER);
}
