/* Two nodes that cannot reach one another must not stop the others for ever: when the same pair
 * fails two formations in a row, one of the two is excluded for a time. */
#include "rendezvous/core/held.h"
#include "rendezvous/core/loss.h"

#include <string.h>

static bool has_pair(const struct pair *pairs, size_t n, struct pair pair)
{
    for (size_t i = 0; i < n; i++)
        if (pairs[i].a == pair.a && pairs[i].b == pair.b)
            return true;
    return false;
}

static size_t count_pairs_of(const struct pair *pairs, size_t n, uint64_t id_hash)
{
    size_t count = 0;
    for (size_t i = 0; i < n; i++)
        count += pairs[i].a == id_hash || pairs[i].b == id_hash;
    return count;
}

/* A process of the plan has ended. Its peers gave up for that, and others for them: a failed pair
 * means nothing then. */
static bool is_any_process_gone(const struct plan *plan)
{
    for (uint32_t i = 0; i < plan->world_size; i++) {
        const struct rank *rank = dpt_rdzv_rank_at(&plan->places[i]);
        if (rank == NULL || rank->phase == DPT__RANK_PHASE__RANK_DEAD)
            return true;
    }
    return false;
}

/* Pairs of nodes of which a rank of one suspects a rank of the other. */
static size_t failed_pairs(const struct run *run, struct pair ret_pairs[PAIRS_MAX])
{
    size_t n = 0;
    struct rank_cursor at = {0};
    for (const struct rank *rank; (rank = dpt_rdzv_next_rank(run, &at)) != NULL;) {
        if (rank->failed_generation != run->plan.generation ||
            !dpt_rdzv_rank_is_member(run, rank) || rank->suspect < 0 ||
            (uint32_t)rank->suspect >= run->plan.world_size)
            continue;
        const uint64_t x = rank->node->id_hash;
        const uint64_t y = run->plan.places[rank->suspect].node->id_hash;
        const struct pair pair = {x < y ? x : y, x < y ? y : x};
        if (x != y && n < PAIRS_MAX && !has_pair(ret_pairs, n, pair))
            ret_pairs[n++] = pair;
    }
    return n;
}

/* The node of the most failed pairs among those that failed before, too; of equal ones the later to
 * join. NULL: none. */
static struct node *worst_node(const struct run *run, const struct pair *pairs, size_t n)
{
    const struct formation *formation = &run->formation;
    struct node *worst = NULL;
    size_t worst_count = 0;
    for (size_t k = 0; k < run->n_nodes; k++) {
        struct node *node = run->nodes[k];
        const size_t count = count_pairs_of(pairs, n, node->id_hash);
        bool again = false;
        for (size_t i = 0; i < n; i++)
            again = again || ((pairs[i].a == node->id_hash || pairs[i].b == node->id_hash) &&
                              has_pair(formation->pairs, formation->n_pairs, pairs[i]));
        if (again && count >= worst_count) { /* in order of joining */
            worst = node;
            worst_count = count;
        }
    }
    return worst;
}

void dpt_rdzv_judge_pairs(struct dpt_rdzv *core, struct run *run)
{
    struct formation *formation = &run->formation;
    if (run->plan.generation == 0 || formation->pairs_generation == run->plan.generation)
        return;
    formation->pairs_generation = run->plan.generation;
    if (is_any_process_gone(&run->plan))
        return;
    struct pair pairs[PAIRS_MAX];
    const size_t n = failed_pairs(run, pairs);
    struct node *worst = worst_node(run, pairs, n);
    memcpy(formation->pairs, pairs, n * sizeof pairs[0]);
    formation->n_pairs = n;
    uint32_t others = 0;
    for (size_t i = 0; i < run->n_nodes; i++)
        others += run->nodes[i] != worst && dpt_rdzv_group_of(core, run->nodes[i]) == GROUP_STAYING;
    if (worst == NULL || others < dpt_rdzv_min_nodes(run))
        return;
    worst->excluded_until_ms = core->now_ms + run->timing.bench_ms;
    formation->n_pairs = 0;
    dpt_rdzv_log(core, run, DPT_LOG_WARN,
                 "node %s failed two formations in a row with the same peer: excluded for %lld s",
                 worst->id, (long long)(run->timing.bench_ms / 1000));
}
