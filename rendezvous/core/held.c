/* The newest whole state (docs/membership.md, "The plan"). The state of a step is the same in every
 * generation. So all shards of a step count together, whichever generations made them. */
#include "rendezvous/core/queries.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS_TRIED_MAX = 64 }; /* number of steps that are tested for a whole state */

enum group dpt_rdzv_group_of(const struct node *node)
{
    return node->exclusion.assumed                              ? GROUP_EXCLUDED
           : node->leaving                                      ? GROUP_LEAVING
           : node->exclusion.until_ms > node->run->core->now_ms ? GROUP_EXCLUDED
                                                                : GROUP_STAYING;
}

struct rank *dpt_rdzv_next_reported(const struct run *run, unsigned groups, struct rank_cursor *at)
{
    for (struct rank *rank; (rank = dpt_rdzv_next_rank(run, at)) != NULL;)
        if ((dpt_rdzv_group_of(rank->node) & groups) != 0 && dpt_rdzv_has_quiesced(rank))
            return rank;
    return NULL;
}

/* ---- one rank ---- */

static const struct rank *rank_with_outcome(const struct run *run, int64_t step)
{
    struct rank_cursor at = {0};
    for (const struct rank *rank; (rank = dpt_rdzv_next_reported(run, GROUP_ALL, &at)) != NULL;)
        if (rank->outcome_step == step && rank->outcome != NULL)
            return rank;
    return NULL;
}

/* True: the rank can apply the step after step_applied when it gets the outcome of that step. */
static bool keeps_gradient(const struct rank *rank, uint64_t state_generation)
{
    return rank->step_applied >= 0 && rank->gradient &&
           !dpt_rdzv_pending_counts(rank, state_generation);
}

/* True: the rank has applied `step`, or can apply it because the outcome is known. */
static bool is_at_step(const struct rank *rank, int64_t step, bool outcome_known,
                       uint64_t state_generation)
{
    if (rank->step_applied < 0)
        return false;
    return rank->step_applied == step || (rank->step_applied == step - 1 && outcome_known &&
                                          keeps_gradient(rank, state_generation));
}

/* ---- many ranks ---- */

/* Ranks that have quiesced, and the newest state that they hold together. */
struct holders {
    const struct run *run;
    const struct rank **ranks; /* (n) */
    size_t n;
    int64_t *outcomes; /* (n_outcomes) rising: steps whose outcome a rank of any group has */
    size_t n_outcomes;
    struct dpt_shard *shards; /* room for the shards of all ranks */
    struct resume newest;
};

static int compare_steps(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

static bool is_outcome_known(const struct holders *holders, int64_t step)
{
    return holders->n_outcomes > 0 && bsearch(&step, holders->outcomes, holders->n_outcomes,
                                              sizeof step, compare_steps) != NULL;
}

static int shards_at_step(const struct holders *holders, int64_t step)
{
    const bool outcome_known = is_outcome_known(holders, step);
    const uint64_t generation = holders->newest.state_generation;
    int n = 0;
    for (size_t i = 0; i < holders->n; i++)
        if (is_at_step(holders->ranks[i], step, outcome_known, generation))
            n += dpt_rdzv_shards_of(holders->ranks[i], generation, holders->shards + n);
    return n;
}

/* The highest step below `limit` that a rank has applied or can apply; -1: none. */
static int64_t next_lower_step(const struct holders *holders, int64_t limit)
{
    int64_t best = -1;
    for (size_t i = 0; i < holders->n; i++) {
        const int64_t applied = holders->ranks[i]->step_applied;
        if (applied + 1 > best && applied + 1 < limit &&
            keeps_gradient(holders->ranks[i], holders->newest.state_generation) &&
            is_outcome_known(holders, applied + 1))
            best = applied + 1;
        if (applied > best && applied < limit)
            best = applied;
    }
    return best;
}

static void find_whole_step(struct holders *holders)
{
    holders->newest.step = INT64_MAX;
    holders->newest.lost_step = -1;
    for (int i = 0; i < STEPS_TRIED_MAX; i++) {
        holders->newest.step = next_lower_step(holders, holders->newest.step);
        if (holders->newest.step < 0)
            return;
        const int n = shards_at_step(holders, holders->newest.step);
        if (dpt_shards_cover(holders->shards, n))
            return;
        if (holders->newest.lost_step < 0) {
            holders->newest.lost_step = holders->newest.step;
            holders->newest.missing = dpt_shards_missing(holders->shards, n);
        }
    }
    holders->newest.step = -1;
}

/* Finds the newest whole state. A generation may have filled its pending shards and never have run.
 * These shards are complete and correct on each rank that reports them. They count only if steps
 * would be lost without them. */
static void find_newest_step(struct holders *holders)
{
    find_whole_step(holders);
    struct holders other = *holders;
    for (size_t i = 0; holders->newest.lost_step >= 0 && i < holders->n; i++)
        if (holders->ranks[i]->pending_generation > other.newest.state_generation)
            other.newest.state_generation = holders->ranks[i]->pending_generation;
    if (other.newest.state_generation == holders->newest.state_generation)
        return;
    find_whole_step(&other);
    if (other.newest.step > holders->newest.step)
        *holders = other;
}

static void list_outcomes(struct holders *holders)
{
    struct rank_cursor at = {0};
    for (const struct rank *rank;
         (rank = dpt_rdzv_next_reported(holders->run, GROUP_ALL, &at)) != NULL;)
        if (!holders->run->core->out.no_memory && rank->outcome != NULL &&
            (holders->n_outcomes == 0 ||
             holders->outcomes[holders->n_outcomes - 1] != rank->outcome_step))
            holders->outcomes[holders->n_outcomes++] = rank->outcome_step;
    if (holders->n_outcomes > 1)
        qsort(holders->outcomes, holders->n_outcomes, sizeof holders->outcomes[0], compare_steps);
}

/* Collects the holders of these groups. If memory runs out, there are none. */
static struct holders find_holders(const struct run *run, unsigned groups)
{
    struct outbox *out = &run->core->out;
    const size_t max = dpt_rdzv_count_ranks(run) + 1;
    struct holders ret = {
        .run = run,
        .ranks = dpt_outbox_alloc(out, max * sizeof ret.ranks[0]),
        .shards = dpt_outbox_alloc(out, max * DPT_PROTO_SHARDS_MAX * sizeof ret.shards[0]),
        .outcomes = dpt_outbox_alloc(out, max * sizeof ret.outcomes[0]),
        .newest = {.load_checkpoint = -1, .state_generation = dpt_rdzv_state_generation(run)}};
    struct rank_cursor at = {0};
    for (const struct rank *rank; (rank = dpt_rdzv_next_reported(run, groups, &at)) != NULL;)
        if (!out->no_memory)
            ret.ranks[ret.n++] = rank;
    list_outcomes(&ret);
    find_newest_step(&ret);
    return ret;
}

int64_t dpt_rdzv_step_held(const struct run *run, unsigned groups)
{
    return find_holders(run, groups).newest.step;
}

/* ---- checkpoints ---- */

/* The newest checkpoint that at least one rank has seen. A rank that looked before the commit has
 * not seen it. */
static int64_t newest_seen_checkpoint(const struct holders *holders)
{
    int64_t newest = -1;
    for (size_t i = 0; i < holders->n; i++)
        if (holders->ranks[i]->checkpoint_step > newest)
            newest = holders->ranks[i]->checkpoint_step;
    return newest;
}

/* The newest checkpoint that can be loaded. If the state is sharded, every rank reads its own part,
 * so all ranks must see the checkpoint. Otherwise one rank that sees it is enough. */
static int64_t newest_loadable_checkpoint(const struct holders *holders)
{
    int64_t newest = newest_seen_checkpoint(holders);
    for (size_t i = 0; holders->run->spec.sharded && i < holders->n; i++)
        if (holders->ranks[i]->checkpoint_step < newest)
            newest = holders->ranks[i]->checkpoint_step;
    return newest;
}

int64_t dpt_rdzv_step_unsaved(struct run *run)
{
    struct progress *progress = &run->progress;
    if (progress->unsaved_known)
        return progress->unsaved_step;
    const struct holders holders = find_holders(run, GROUP_ALL);
    progress->unsaved_step =
        holders.newest.step > newest_seen_checkpoint(&holders) ? holders.newest.step : -1;
    progress->unsaved_known = !run->core->out.no_memory;
    return progress->unsaved_step;
}

/* ---- the choice ---- */

/* The number of nodes of these groups that have a rank that has quiesced. */
static uint32_t count_reported(const struct run *run, unsigned groups)
{
    uint32_t n = 0;
    const struct node *last = NULL;
    struct rank_cursor at = {0};
    for (const struct rank *rank; (rank = dpt_rdzv_next_reported(run, groups, &at)) != NULL;) {
        n += rank->node != last;
        last = rank->node;
    }
    return n;
}

/* Peers may not reach an excluded node, so a leaving node is preferred. It hands its part over, and
 * then the nodes that stay need neither. */
unsigned dpt_rdzv_admitted_groups(const struct run *run)
{
    static const unsigned more[] = {GROUP_LEAVING, GROUP_EXCLUDED};
    const uint32_t wanted = dpt_rdzv_min_nodes(run);
    unsigned groups = GROUP_STAYING;
    uint32_t nodes = count_reported(run, groups);
    if (nodes < wanted) {
        groups |= GROUP_EXCLUDED;
        nodes = count_reported(run, groups);
    }
    if (nodes == 0 || nodes < wanted)
        return 0;
    if (nodes == count_reported(run, GROUP_ALL)) /* nobody else holds anything */
        return groups;
    const struct holders holders = find_holders(run, groups);
    const int64_t all_hold = dpt_rdzv_step_held(run, GROUP_ALL);
    if (all_hold <= holders.newest.step || all_hold <= newest_loadable_checkpoint(&holders))
        return groups;
    for (size_t i = 0; i < sizeof more / sizeof more[0]; i++)
        if (dpt_rdzv_step_held(run, groups | more[i]) >= all_hold)
            return groups | more[i];
    return GROUP_ALL;
}

struct resume dpt_rdzv_choose_state(const struct run *run, unsigned groups)
{
    const struct holders holders = find_holders(run, groups);
    struct resume resume = holders.newest;
    const int64_t checkpoint = newest_loadable_checkpoint(&holders);
    if (checkpoint > resume.step)
        resume.load_checkpoint = resume.step = checkpoint;
    else if (resume.step >= 0)
        resume.outcome_of = rank_with_outcome(run, resume.step);
    return resume;
}

bool dpt_rdzv_has_state(const struct run *run, const struct resume *resume, const struct rank *rank)
{
    if (resume->step < 0)
        return false;
    if (resume->load_checkpoint >= 0)
        return run->spec.sharded ? rank->checkpoint_step >= resume->load_checkpoint
                                 : rank->checkpoint_step == resume->load_checkpoint;
    return is_at_step(rank, resume->step, resume->outcome_of != NULL, resume->state_generation);
}

int dpt_rdzv_parts_of(const struct resume *resume, const struct rank *rank,
                      struct dpt_shard ret[DPT_PROTO_SHARDS_MAX])
{
    const bool in_memory = resume->step >= 0 && resume->load_checkpoint < 0;
    return in_memory ? dpt_rdzv_shards_of(rank, resume->state_generation, ret) : 0;
}

void dpt_rdzv_print_loss(const struct run *run, const struct resume *resume,
                         char ret[DPT_PROTO_TEXT_BYTES])
{
    const struct progress *progress = &run->progress;
    char holders_text[DPT_PROTO_TEXT_BYTES / 2] = "", back[DPT_PROTO_NAME_BYTES] = "the beginning";
    size_t used = 0;
    ret[0] = '\0';
    if (resume->lost_step < 0 || resume->step >= resume->lost_step)
        return;
    for (size_t i = 0; i < progress->n_losses && used < sizeof holders_text; i++) {
        const struct loss *loss = &progress->losses[i];
        if (dpt_shard_is_among(loss->shards, loss->n_shards, resume->missing))
            used += (size_t)snprintf(holders_text + used, sizeof holders_text - used, "%s node %s",
                                     used == 0 ? " with" : " and its shadow holder", loss->node);
    }
    if (resume->load_checkpoint >= 0)
        (void)snprintf(back, sizeof back, "the checkpoint of step %lld",
                       (long long)resume->load_checkpoint);
    else if (resume->step > 0)
        (void)snprintf(back, sizeof back, "step %lld", (long long)resume->step);
    (void)snprintf(ret, DPT_PROTO_TEXT_BYTES,
                   "shard %d of %d is lost%s%s: going back to %s, losing %lld steps",
                   resume->missing.index, resume->missing.of, holders_text,
                   progress->rebuilding ? ", before its copy was complete after the last loss" : "",
                   back, (long long)(progress->steps_done - (resume->step > 0 ? resume->step : 0)));
}

/* ---- redundancy ---- */

/* A shard that a rank of the plan holds, and the rank's node. */
struct holding {
    struct dpt_shard shard;
    uint32_t node; /* index of the node in the plan */
};

static int compare_holdings(const void *a, const void *b)
{
    const struct holding *x = a, *y = b;
    if (x->shard.of != y->shard.of)
        return x->shard.of < y->shard.of ? -1 : 1;
    if (x->shard.index != y->shard.index)
        return x->shard.index < y->shard.index ? -1 : 1;
    return x->node < y->node ? -1 : x->node > y->node;
}

/* True: the holdings of one division, sorted, are a whole state. */
static bool is_division_whole(const struct holding *list, size_t n)
{
    int index = 0; /* shards below it are there */
    for (size_t i = 0; i < n; i++)
        if (list[i].shard.index == index)
            index++;
        else if (list[i].shard.index > index)
            return false;
    return index == list[0].shard.of;
}

/* Adds one to the count of each node that is the only holder of a shard of this whole division.
 * `counted_for` has the division for which a node was counted last. */
static void count_sole_holders(const struct holding *list, size_t n, uint32_t *counts,
                               int *counted_for)
{
    for (size_t i = 0, end; i < n; i = end) {
        const uint32_t node = list[i].node;
        bool alone = true;
        for (end = i; end < n && list[end].shard.index == list[i].shard.index; end++)
            alone = alone && list[end].node == node;
        if (alone && counted_for[node] != list[i].shard.of) {
            counted_for[node] = list[i].shard.of;
            counts[node]++;
        }
    }
}

static size_t list_holdings(const struct plan *plan, struct holding *ret)
{
    struct dpt_shard shards[DPT_PROTO_SHARDS_MAX];
    size_t n = 0;
    for (uint32_t i = 0; i < plan->world_size; i++) {
        const struct rank *rank = dpt_rdzv_rank_at(&plan->places[i]);
        const int more = rank != NULL ? dpt_rdzv_shards_of(rank, plan->generation, shards) : 0;
        for (int k = 0; k < more; k++)
            ret[n++] = (struct holding){shards[k], plan->places[i].node_index};
    }
    return n;
}

/* True: whichever one node of the plan is lost, the others hold a whole state. Replicas on nodes of
 * different sizes have different divisions. So a node is needed if it is the only holder of a shard
 * in every division that is whole. */
static bool is_redundant(struct dpt_rdzv *core, const struct plan *plan)
{
    struct outbox *out = &core->out;
    const size_t max = (size_t)plan->world_size * DPT_PROTO_SHARDS_MAX + 1;
    struct holding *list = dpt_outbox_alloc(out, max * sizeof list[0]);
    uint32_t *counts = dpt_outbox_alloc(out, (plan->n_nodes + 1) * sizeof counts[0]);
    int *counted_for = dpt_outbox_alloc(out, (plan->n_nodes + 1) * sizeof counted_for[0]);
    uint32_t n_whole = 0;
    if (out->no_memory)
        return false;
    const size_t n = list_holdings(plan, list);
    qsort(list, n, sizeof list[0], compare_holdings);
    for (size_t i = 0, end; i < n; i = end) {
        for (end = i; end < n && list[end].shard.of == list[i].shard.of; end++)
            continue;
        if (!is_division_whole(&list[i], end - i))
            continue;
        count_sole_holders(&list[i], end - i, counts, counted_for);
        n_whole++;
    }
    for (uint32_t i = 0; i < plan->n_nodes; i++)
        if (counts[i] == n_whole)
            return false;
    return plan->world_size > 0 && n_whole > 0;
}

void dpt_rdzv_update_redundancy(struct run *run)
{
    run->progress.rebuilding = run->plan.n_rebuilding > 0;
    run->progress.redundant = is_redundant(run->core, &run->plan);
}
