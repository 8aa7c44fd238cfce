/* From which state a generation goes on: the newest step of which those who are admitted hold a
 * whole state together, and who is admitted for it (docs/membership.md, "The plan"). */
#include "rendezvous/core/internal.h"

#include <stdio.h>
#include <string.h>

enum group dpt_rdzv_group_of(const struct dpt_rdzv *core, const struct node *node)
{
    return node->leaving                     ? GROUP_LEAVING
           : dpt_rdzv_is_benched(core, node) ? GROUP_BENCHED
                                             : GROUP_STAYING;
}

/* ---- what a rank holds ---- */

/* Newest generation that was sent off: this server knows, or a rank that heard it. */
static uint64_t state_generation(const struct run *run)
{
    uint64_t newest = run->run_generation;
    for (size_t i = 0; i < run->n_nodes; i++)
        for (uint32_t k = 0; k < run->nodes[i]->n_ranks; k++)
            if (run->nodes[i]->ranks[k].ran_generation > newest)
                newest = run->nodes[i]->ranks[k].ran_generation;
    return newest;
}

/* What is pending of a generation that was sent off has taken the place of what was before it. */
static bool pending_counts(const struct rank *rank, uint64_t generation)
{
    return rank->pending_generation != 0 && rank->pending_generation <= generation;
}

/* The shards that count, into `ret` (DPT_PROTO_SHARDS_MAX); returns their number. */
static int shards_of(const struct rank *rank, uint64_t generation, struct dpt_shard *ret)
{
    const bool pending = pending_counts(rank, generation);
    int n = 0;
    if (rank->n_shards == 0) {
        ret[0] = (struct dpt_shard){0, 1};
        return 1;
    }
    for (int i = 0; i < rank->n_shards; i++)
        if (rank->pending[i] == pending)
            ret[n++] = rank->shards[i];
    return n;
}

static const struct rank *outcome_of(const struct run *run, int64_t step)
{
    for (size_t i = 0; i < run->n_nodes; i++)
        for (uint32_t k = 0; k < run->nodes[i]->n_ranks; k++) {
            const struct rank *rank = &run->nodes[i]->ranks[k];
            if (dpt_rdzv_has_quiesced(run, rank) && rank->outcome_step == step &&
                rank->outcome_bytes > 0)
                return rank;
        }
    return NULL;
}

/* Can apply the step after step_applied, when it is told that step's outcome. */
static bool keeps_gradient(const struct rank *rank, uint64_t generation)
{
    return rank->step_applied >= 0 && rank->gradient && !pending_counts(rank, generation);
}

/* Stands at `step` by itself: has applied it, or has what it takes to apply it. */
static bool stands_at(const struct rank *rank, int64_t step, bool told, uint64_t generation)
{
    if (rank->step_applied < 0)
        return false;
    return rank->step_applied == step ||
           (rank->step_applied == step - 1 && told && keeps_gradient(rank, generation));
}

/* ---- the newest whole state ---- */

/* The ranks of the admitted groups that have reported, and what is made of them. */
struct crowd {
    const struct run *run;
    const struct rank **ranks;
    size_t n;
    uint64_t generation;
    struct dpt_shard *shards; /* room for those of all */
};

static bool gather(struct dpt_rdzv *core, const struct run *run, const bool in[GROUP_COUNT],
                   struct crowd *ret)
{
    size_t max = 0;
    for (size_t i = 0; i < run->n_nodes; i++)
        max += run->nodes[i]->n_ranks;
    *ret = (struct crowd){.run = run,
                          .generation = state_generation(run),
                          .ranks = dpt_outbox_alloc(&core->out, (max + 1) * sizeof ret->ranks[0]),
                          .shards = dpt_outbox_alloc(&core->out, (max + 1) * DPT_PROTO_SHARDS_MAX *
                                                                     sizeof ret->shards[0])};
    if (ret->ranks == NULL || ret->shards == NULL)
        return false;
    for (size_t i = 0; i < run->n_nodes; i++)
        for (uint32_t k = 0; k < run->nodes[i]->n_ranks; k++)
            if (in[dpt_rdzv_group_of(core, run->nodes[i])] &&
                dpt_rdzv_has_quiesced(run, &run->nodes[i]->ranks[k]))
                ret->ranks[ret->n++] = &run->nodes[i]->ranks[k];
    return true;
}

static int shards_at(const struct crowd *crowd, int64_t step)
{
    const bool told = outcome_of(crowd->run, step) != NULL;
    int n = 0;
    for (size_t i = 0; i < crowd->n; i++)
        if (stands_at(crowd->ranks[i], step, told, crowd->generation))
            n += shards_of(crowd->ranks[i], crowd->generation, crowd->shards + n);
    return n;
}

/* The highest step below `limit` at which somebody stands; -1: none. */
static int64_t next_step(const struct crowd *crowd, int64_t limit)
{
    int64_t best = -1;
    for (size_t i = 0; i < crowd->n; i++) {
        const int64_t applied = crowd->ranks[i]->step_applied;
        if (applied + 1 > best && applied + 1 < limit &&
            keeps_gradient(crowd->ranks[i], crowd->generation) &&
            outcome_of(crowd->run, applied + 1) != NULL)
            best = applied + 1;
        if (applied > best && applied < limit)
            best = applied;
    }
    return best;
}

/* The newest step of which the crowd holds all; -1: none. *ret_lost: the newest that somebody holds
 * a part of, if it is a newer one; else -1. */
static int64_t newest_whole(const struct crowd *crowd, int64_t *ret_lost,
                            struct dpt_shard *ret_missing)
{
    int64_t step = INT64_MAX;
    *ret_lost = -1;
    for (int i = 0; i < STEPS_TRIED_MAX; i++) {
        step = next_step(crowd, step);
        if (step < 0)
            return -1;
        const int n = shards_at(crowd, step);
        if (dpt_shards_cover(crowd->shards, n))
            return step;
        if (*ret_lost < 0) {
            *ret_lost = step;
            *ret_missing = dpt_shards_missing(crowd->shards, n);
        }
    }
    return -1;
}

/* The same; what is pending of a generation that was perhaps not sent off may save what else is
 * lost, and then counts: it is whole and right wherever it is told. */
static int64_t newest_state(struct crowd *crowd, int64_t *ret_lost, struct dpt_shard *ret_missing)
{
    const uint64_t known = crowd->generation;
    const int64_t step = newest_whole(crowd, ret_lost, ret_missing);
    for (size_t i = 0; *ret_lost >= 0 && i < crowd->n; i++)
        if (crowd->ranks[i]->pending_generation > crowd->generation)
            crowd->generation = crowd->ranks[i]->pending_generation;
    if (crowd->generation == known)
        return step;
    int64_t lost;
    struct dpt_shard missing;
    const int64_t other = newest_whole(crowd, &lost, &missing);
    if (other <= step) {
        crowd->generation = known;
        return step;
    }
    *ret_lost = lost;
    *ret_missing = missing;
    return other;
}

static int64_t best_step(struct dpt_rdzv *core, const struct run *run, const bool in[GROUP_COUNT])
{
    struct crowd crowd;
    struct dpt_shard missing;
    int64_t lost;
    return gather(core, run, in, &crowd) ? newest_state(&crowd, &lost, &missing) : -1;
}

/* The newest that any of them has seen: those who looked before it was committed have not. */
static int64_t newest_saved(const struct crowd *crowd)
{
    int64_t newest = -1;
    for (size_t i = 0; i < crowd->n; i++)
        if (crowd->ranks[i]->checkpoint_step > newest)
            newest = crowd->ranks[i]->checkpoint_step;
    return newest;
}

/* The newest checkpoint that serves the crowd: of parts each must read its own, so all must see it;
 * of the whole state one reader is enough. */
static int64_t newest_checkpoint(const struct crowd *crowd)
{
    int64_t newest = newest_saved(crowd);
    for (size_t i = 0; crowd->run->spec.sharded && i < crowd->n; i++)
        if (crowd->ranks[i]->checkpoint_step < newest)
            newest = crowd->ranks[i]->checkpoint_step;
    return newest;
}

/* ---- who is admitted ---- */

static uint32_t nodes_of(const struct dpt_rdzv *core, const struct run *run, enum group group)
{
    uint32_t n = 0;
    for (size_t i = 0; i < run->n_nodes; i++) {
        bool any = false;
        for (uint32_t k = 0; k < run->nodes[i]->n_ranks; k++)
            any = any || dpt_rdzv_has_quiesced(run, &run->nodes[i]->ranks[k]);
        n += any && dpt_rdzv_group_of(core, run->nodes[i]) == group;
    }
    return n;
}

bool dpt_rdzv_admit(struct dpt_rdzv *core, const struct run *run, bool ret_in[GROUP_COUNT])
{
    bool in[GROUP_COUNT] = {[GROUP_STAYING] = true};
    uint32_t nodes = nodes_of(core, run, GROUP_STAYING);
    int64_t best = best_step(core, run, in);
    in[GROUP_BENCHED] = true;
    const int64_t with_benched = best_step(core, run, in);
    in[GROUP_BENCHED] = nodes < dpt_rdzv_min_nodes(run) || with_benched > best;
    if (in[GROUP_BENCHED]) {
        nodes += nodes_of(core, run, GROUP_BENCHED);
        best = with_benched;
    }
    struct crowd crowd;
    if (!gather(core, run, in, &crowd))
        return false;
    const int64_t checkpoint = newest_checkpoint(&crowd);
    in[GROUP_LEAVING] = true;
    const int64_t theirs = best_step(core, run, in);
    in[GROUP_LEAVING] = theirs > best && theirs > checkpoint;
    memcpy(ret_in, in, sizeof in);
    return nodes > 0 && nodes >= dpt_rdzv_min_nodes(run);
}

bool dpt_rdzv_farewell_is_due(struct dpt_rdzv *core, const struct run *run)
{
    static const bool all[GROUP_COUNT] = {true, true, true};
    bool leaves = dpt_rdzv_wait_is_over(core, run), can_save = false;
    for (size_t i = 0; i < run->n_nodes; i++) {
        leaves = leaves || run->nodes[i]->leaving;
        can_save = can_save || run->nodes[i]->checkpoint_dir_id[0] != '\0';
    }
    struct crowd crowd;
    if (!leaves || !can_save || !gather(core, run, all, &crowd))
        return false;
    struct dpt_shard missing;
    int64_t lost;
    const int64_t step = newest_state(&crowd, &lost, &missing);
    return step > 0 && step > newest_saved(&crowd) && step != run->farewell_step;
}

int64_t dpt_rdzv_step_staying(struct dpt_rdzv *core, const struct run *run)
{
    static const bool staying[GROUP_COUNT] = {[GROUP_STAYING] = true, [GROUP_BENCHED] = true};
    struct crowd crowd;
    struct dpt_shard missing;
    int64_t lost;
    return gather(core, run, staying, &crowd) ? newest_state(&crowd, &lost, &missing) : -1;
}

int64_t dpt_rdzv_step_held(struct dpt_rdzv *core, const struct run *run, const struct node *without)
{
    static const bool all[GROUP_COUNT] = {true, true, true};
    struct crowd crowd;
    struct dpt_shard missing;
    int64_t lost;
    size_t n = 0;
    if (!gather(core, run, all, &crowd))
        return -1;
    for (size_t i = 0; i < crowd.n; i++) {
        bool is_its = false;
        for (uint32_t k = 0; without != NULL && k < without->n_ranks; k++)
            is_its = is_its || crowd.ranks[i] == &without->ranks[k];
        if (!is_its)
            crowd.ranks[n++] = crowd.ranks[i];
    }
    crowd.n = n;
    return newest_state(&crowd, &lost, &missing);
}

/* ---- the choice ---- */

struct source dpt_rdzv_choose_state(struct dpt_rdzv *core, const struct run *run,
                                    const bool in[GROUP_COUNT])
{
    struct source source = {.step = -1, .load_checkpoint = -1, .lost_step = -1};
    struct crowd crowd;
    if (!gather(core, run, in, &crowd))
        return source;
    source.step = newest_state(&crowd, &source.lost_step, &source.missing);
    source.state_generation = crowd.generation;
    source.outcome_of = source.step < 0 ? NULL : outcome_of(run, source.step);
    const int64_t checkpoint = newest_checkpoint(&crowd);
    if (checkpoint > source.step) { /* memory wins against one that is not newer */
        source.load_checkpoint = source.step = checkpoint;
        source.outcome_of = NULL;
    }
    return source;
}

bool dpt_rdzv_has_state(const struct run *run, const struct source *source, const struct rank *rank)
{
    if (source->step < 0)
        return false;
    if (source->load_checkpoint >= 0)
        return run->spec.sharded ? rank->checkpoint_step >= source->load_checkpoint
                                 : rank->checkpoint_step == source->load_checkpoint;
    return stands_at(rank, source->step, source->outcome_of != NULL, source->state_generation);
}

int dpt_rdzv_parts_of(const struct source *source, const struct rank *rank,
                      struct dpt_shard ret[DPT_PROTO_SHARDS_MAX])
{
    const bool in_memory = source->step >= 0 && source->load_checkpoint < 0;
    return in_memory ? shards_of(rank, source->state_generation, ret) : 0;
}

/* ---- redundancy ---- */

/* A place's node is gone, or its process. */
static const struct rank *rank_at(const struct place *place)
{
    if (place->node == NULL || place->node->ranks[place->local_rank].spawn != place->spawn)
        return NULL;
    return &place->node->ranks[place->local_rank];
}

/* Whether the other nodes than that of place `i` hold a whole state. Replicas of nodes of different
 * sizes are cut differently, so it is not enough to look for the same shards. `shards` has room for
 * those of all places. */
static bool is_covered(const struct plan *plan, uint32_t i, struct dpt_shard *shards)
{
    int n = 0;
    for (uint32_t k = 0; k < plan->world_size; k++) {
        const struct rank *rank = rank_at(&plan->places[k]);
        if (rank != NULL && plan->places[k].node != plan->places[i].node)
            n += shards_of(rank, plan->generation, shards + n);
    }
    return dpt_shards_cover(shards, n);
}

bool dpt_rdzv_is_redundant(struct dpt_rdzv *core, const struct run *run)
{
    const struct plan *plan = &run->plan;
    struct dpt_shard *shards = dpt_outbox_alloc(
        &core->out, (plan->world_size + 1) * DPT_PROTO_SHARDS_MAX * sizeof shards[0]);
    if (shards == NULL)
        return false;
    for (uint32_t i = 0; i < plan->world_size; i++) {
        bool seen = false; /* one place a node is enough */
        for (uint32_t k = 0; k < i && !seen; k++)
            seen = plan->places[k].node == plan->places[i].node;
        if (!seen && !is_covered(plan, i, shards))
            return false;
    }
    return plan->world_size > 0;
}

bool dpt_rdzv_is_rebuilding(const struct run *run)
{
    for (uint32_t i = 0; i < run->plan.world_size; i++) {
        const struct rank *rank = rank_at(&run->plan.places[i]);
        if (rank != NULL && rank->rebuilding)
            return true;
    }
    return false;
}

/* ---- what is lost ---- */

void dpt_rdzv_note_loss(struct run *run, const struct node *node, const struct rank *rank)
{
    if (run->n_losses == LOSSES_MAX || rank->step_applied < 0 || rank->n_shards == 0)
        return;
    struct loss *loss = &run->losses[run->n_losses++];
    memcpy(loss->node, node->id, sizeof loss->node);
    loss->n_shards = shards_of(rank, state_generation(run), loss->shards);
}

void dpt_rdzv_tell_loss(const struct run *run, const struct source *source,
                        char ret[DPT_PROTO_TEXT_BYTES])
{
    char who[DPT_PROTO_TEXT_BYTES / 2] = "", back[DPT_PROTO_NAME_BYTES] = "the beginning";
    size_t used = 0;
    ret[0] = '\0';
    if (source->lost_step < 0 || source->step >= source->lost_step)
        return;
    for (size_t i = 0; i < run->n_losses && used < sizeof who; i++)
        if (dpt_shard_is_among(run->losses[i].shards, run->losses[i].n_shards, source->missing))
            used += (size_t)snprintf(who + used, sizeof who - used, "%s node %s",
                                     used == 0 ? " with" : " and its buddy", run->losses[i].node);
    if (source->load_checkpoint >= 0)
        (void)snprintf(back, sizeof back, "the checkpoint of step %lld",
                       (long long)source->load_checkpoint);
    else if (source->step > 0)
        (void)snprintf(back, sizeof back, "step %lld", (long long)source->step);
    (void)snprintf(ret, DPT_PROTO_TEXT_BYTES,
                   "shard %d of %d is gone%s%s: going back to %s, losing %lld steps",
                   source->missing.index, source->missing.of, who,
                   run->rebuilding ? ", before its copy was rebuilt after the loss before" : "",
                   back, (long long)(run->steps_done - (source->step > 0 ? source->step : 0)));
}
