/* Puts a plan in force: one that this server has made (plan.c), or one of an earlier server. */
#include "rendezvous/core/advance.h"

#include "rendezvous/core/apply.h"
#include "rendezvous/core/queries.h"
#include "rendezvous/core/tally.h"

#include <stdlib.h>
#include <string.h>

void dpt_rdzv_put_in_force(struct run *run, const struct plan *plan)
{
    struct rank_cursor at = {0};
    dpt_rdzv_plan_fini(&run->plan);
    run->plan = *plan;
    for (struct rank *rank; (rank = dpt_rdzv_next_rank(run, &at)) != NULL;)
        rank->place = -1;
    for (uint32_t i = 0; i < plan->world_size; i++) {
        struct node *node = plan->places[i].node;
        struct rank *rank = &node->ranks[plan->places[i].local_rank];
        rank->plan_generation = node->placed_generation = plan->generation;
        rank->plan_rank = rank->place = (int32_t)i;
    }
    dpt_rdzv_count_all_ranks(run);
    run->membership.outside_due_ms = 0;
    run->progress.stepped = run->progress.redundant = false;
    run->progress.step_ms = dpt_rdzv_listened_ms(run);
    run->changed = true;
}

void dpt_rdzv_record_plan(struct run *run, enum dpt_rdzv_record_kind kind)
{
    const struct plan *plan = &run->plan;
    struct dpt_rdzv_member *members =
        dpt_outbox_alloc(&run->core->out, (run->n_nodes + 1) * sizeof members[0]);
    size_t n = 0;
    for (size_t i = 0; members != NULL && i < run->n_nodes; i++) {
        const struct node *node = run->nodes[i];
        struct dpt_rdzv_member member = {
            .node = node->id, .rack = node->location.rack, .incarnation = node->incarnation};
        for (uint32_t k = 0; k < node->n_ranks; k++) {
            const uint32_t rank = (uint32_t)node->ranks[k].plan_rank;
            if (!dpt_rdzv_rank_is_member(&node->ranks[k]))
                continue;
            if (member.n_ranks == 0 || rank < member.first_rank)
                member.first_rank = rank;
            member.n_ranks++;
        }
        if (member.n_ranks > 0)
            members[n++] = member;
    }
    dpt_rdzv_record(run, (struct dpt_rdzv_record){
                             .kind = kind,
                             .generation = plan->generation,
                             .step = plan->adopted ? run->progress.step : plan->resume_step,
                             .number = (uint64_t)plan->steps_done_before,
                             .count = plan->world_size,
                             .flags = (plan->final_save ? DPT_RDZV_FLAG_FINAL_SAVE : 0u) |
                                      (plan->handover_ranks > 0 ? DPT_RDZV_FLAG_HANDOVER : 0u),
                             .cause = dpt_rdzv_cause_name(run->formation.cause.kind),
                             .detect_ms = run->formation.cause.detect_ms,
                             .text = run->formation.cause.text,
                             .digest = plan->digest,
                             .members = members,
                             .n_members = n});
}

/* ---- a plan of an earlier server ---- */

/* True: the rank trains in the generation of the plan, by a plan with the same digest, and its
 * place is free. */
static bool fits_adopted_plan(const struct plan *plan, const struct rank *rank)
{
    return (rank->phase == DPT__RANK_PHASE__RANK_RUNNING ||
            rank->phase == DPT__RANK_PHASE__RANK_FINISHED) &&
           rank->generation == plan->generation &&
           strcmp(rank->node->plan_digest, plan->digest) == 0 && rank->reported_rank >= 0 &&
           (uint32_t)rank->reported_rank < plan->world_size &&
           plan->places[rank->reported_rank].node == NULL;
}

bool dpt_rdzv_adopt_plan(struct run *run, const struct node *node)
{
    if (node->plan_world == 0 || node->plan_world > dpt_rdzv_count_ranks(run))
        return false;
    struct plan plan = {.generation = run->formation.generation_high,
                        .in_force = true,
                        .adopted = true,
                        .world_size = node->plan_world,
                        .load_checkpoint = -1,
                        .places = calloc(node->plan_world, sizeof plan.places[0])};
    if (plan.places == NULL) {
        run->core->out.no_memory = true;
        return false;
    }
    memcpy(plan.digest, node->plan_digest, sizeof plan.digest);
    uint32_t found = 0;
    const struct node *last = NULL;
    struct rank_cursor at = {0};
    for (const struct rank *rank; (rank = dpt_rdzv_next_rank(run, &at)) != NULL;) {
        if (!fits_adopted_plan(&plan, rank))
            continue;
        const bool finished = rank->phase == DPT__RANK_PHASE__RANK_FINISHED;
        plan.n_nodes += rank->node != last;
        last = rank->node;
        plan.places[rank->reported_rank] =
            (struct place){.node = rank->node,
                           .node_index = plan.n_nodes - 1,
                           .local_rank = (uint32_t)(rank - rank->node->ranks),
                           .spawn = rank->spawn,
                           .finished = finished};
        found++;
        plan.n_finished += finished;
    }
    if (found < plan.world_size) {
        dpt_rdzv_plan_fini(&plan);
        return false;
    }
    run->formation.run_generation = plan.generation;
    run->formation.cause =
        dpt_rdzv_cause(CAUSE_SERVER_RESTART, 0, "adopted from an earlier server");
    dpt_rdzv_put_in_force(run, &plan);
    dpt_rdzv_record_plan(run, DPT_RDZV_RECORD_ADOPTED);
    dpt_rdzv_count_all_ranks(run); /* the record has set the generation */
    dpt_rdzv_update_redundancy(run);
    return true;
}
