/* Finds out whether the state is on two nodes, and accompanies the rebuilding of shadows during
 * training. The strategy copies the shadows (strategy.h, rebuild); this file synchronises the
 * ranks, logs and reports. */
#include "base/clock.h"
#include "base/log.h"
#include "base/strategy_traits.h"
#include "worker/train/formation/formation.h"
#include "worker/train/log/rank_log.h"
#include "worker/train/step/step.h"

#include <stdlib.h>
#include <string.h>

/* Whether the plan follows a loss. A join or a drain may take the time to fill the shadows, because
 * the old holders keep the state until all ranks have theirs. After a loss all ranks wait for the
 * formation. */
static bool follows_loss(const Dpt__Plan *plan)
{
    static const char *const kinds[] = {"rank_lost", "node_lost", "comm_error", "stalled"};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (strcmp(plan->cause_kind, kinds[i]) == 0)
            return true;
    return false;
}

struct dpt_shard rank_defer_shadow(struct dpt_rank *r, const Dpt__Plan *plan)
{
    if (!r->gen.begun || !follows_loss(plan))
        return (struct dpt_shard){0, 0};
    return dpt_strategy_defer_shadow(r->strategy);
}

enum dpt_status rank_begin_rebuild(struct dpt_rank *r, const struct dpt_hello *hellos,
                                   struct dpt_err *err)
{
    struct generation *g = &r->gen;
    bool *late = calloc((size_t)g->world_size, sizeof *late);
    if (!late)
        return dpt_fail_nomem(err, "formation");
    for (int i = 0; i < g->world_size; i++) {
        late[i] = !dpt_shard_is_none(hellos[i].late);
        g->redundancy.rebuilding = g->redundancy.rebuilding || late[i];
    }
    if (g->redundancy.rebuilding && g->begun)
        dpt_strategy_rebuild(r->strategy, late);
    free(late);
    return DPT_OK;
}

/* Whether the nodes other than that of rank `i` hold the whole state or (`late`) will hold it. It
 * is not enough to search for the rank's own shard, because nodes of different sizes cut their
 * replicas differently. `shards` has room for the parts of `n_trainers` ranks. */
static bool is_covered(const struct generation *g, const struct dpt_hello *hellos, int i, bool late,
                       struct dpt_shard *shards)
{
    int n = 0;
    for (int k = 0; k < g->n_trainers; k++) {
        if (g->node_of_rank[k] == g->node_of_rank[i])
            continue;
        for (int part = 0; part < DPT_MOVE_STATE_PARTS; part++)
            shards[n++] = hellos[k].held[part];
        if (late)
            shards[n++] = hellos[k].late;
    }
    return dpt_shards_cover(shards, n);
}

/* `alone`: a rank whose node has a part that no other node has. */
static void warn_of_single_copies(const struct dpt_rank *r, int alone)
{
    const struct dpt_config *c = r->config;
    const struct dpt_strategy_traits traits = dpt_strategy_traits(c);
    const bool replicas = traits.state == DPT_STATE_PER_NODE;
    if (replicas && c->cluster.nnodes_max > 1)
        dpt_log(DPT_LOG_WARN,
                "strategy.sharding: hybrid_shard, but there is one node, and so one replica: after "
                "the loss of a rank the run goes back to its newest checkpoint; add a node");
    if (!traits.shadow)
        return;
    if (r->gen.redundancy.rebuilding)
        dpt_log(DPT_LOG_WARN,
                "redundancy rebuilding: shadows are copied while training continues from step "
                "%lld; if a node is lost before they are complete, the run goes back to its newest "
                "checkpoint",
                (long long)r->state.step);
    else
        dpt_log(DPT_LOG_WARN,
                "strategy.redundancy: shadow, but the other nodes lack a part of the state that "
                "rank %d's node has: after its loss the run goes back to its newest checkpoint; "
                "add a node",
                alone);
}

enum dpt_status rank_judge_redundancy(struct dpt_rank *r, const struct dpt_hello *hellos,
                                      struct dpt_err *err)
{
    struct generation *g = &r->gen;
    int alone = 0, bare = 0;
    struct dpt_shard *shards =
        calloc((size_t)g->world_size * (DPT_MOVE_STATE_PARTS + 1), sizeof *shards);
    if (!shards)
        return dpt_fail_nomem(err, "formation");
    while (alone < g->n_trainers && is_covered(g, hellos, alone, false, shards))
        alone++;
    while (bare < g->n_trainers && is_covered(g, hellos, bare, true, shards))
        bare++;
    free(shards);
    g->redundancy.whole = alone == g->n_trainers;
    g->redundancy.then_whole = bare == g->n_trainers;
    r->formation->rebuild_step = r->state.step;
    if (g->rank == 0 && !g->redundancy.whole)
        warn_of_single_copies(r, alone);
    return DPT_OK;
}

static void log_rebuilt(struct dpt_rank *r, double ms)
{
    char cause[DPT_PROTO_TEXT_BYTES];
    struct dpt_strategy_cost cost;
    struct dpt_err err;
    dpt_strategy_cost(r->strategy, &cost);
    (void)snprintf(cause, sizeof cause, "shadows were rebuilt in %lld steps",
                   (long long)(r->state.step - r->formation->rebuild_step));
    if (r->gen.rank == 0)
        dpt_log(DPT_LOG_INFO, "redundancy %s: %s, %.0f ms", generation_redundancy(&r->gen), cause,
                ms);
    const struct dpt_event_record e = {.kind = "redundancy",
                                       .cause = cause,
                                       .rebuild_ms = ms,
                                       .total_ms = ms,
                                       .resume_step = r->state.step,
                                       .sends_bytes = cost.sent_bytes,
                                       .redundancy = generation_redundancy(&r->gen)};
    rank_add_line(r, dpt_run_file_event(&r->log->files, &e, &err), &err);
}

enum dpt_status rank_finish_rebuild(struct dpt_rank *r, struct dpt_err *err)
{
    if (!r->gen.redundancy.rebuilding || dpt_strategy_rebuilding(r->strategy))
        return DPT_OK;
    DPT_TRY(rank_verify(r, err));
    r->gen.redundancy.rebuilding = false;
    r->gen.redundancy.whole = r->gen.redundancy.then_whole;
    log_rebuilt(r, (double)(dpt_now_ms() - r->formation->restored_ms));
    rank_report(r, DPT__RANK_PHASE__RANK_RUNNING, r->gen.number);
    return DPT_OK;
}
