/* The list of moves of reshard.h. */
#include "checkpoint/layout/reshard.h"

#include <stdlib.h>

/* The pieces of one need, and the holding that gives each piece. */
struct need_cut {
    const struct dpt_reshard_plan *plan;
    struct piece {
        struct dpt_interval range;
        int have; /* the holding that gives it; -1: none yet */
    } * pieces;   /* [2 * n_have + 1], ascending: each holding adds at most two bounds */
    int n_pieces;
};

static void insert_piece(struct need_cut *s, int at, struct piece piece)
{
    for (int i = s->n_pieces++; i > at; i--)
        s->pieces[i] = s->pieces[i - 1];
    s->pieces[at] = piece;
}

/* Assigns to holding `have` the parts of the pieces that have no giver yet. */
static void assign_holding(struct need_cut *s, int have, struct dpt_interval held)
{
    for (int i = 0; i < s->n_pieces; i++) {
        const struct dpt_interval range = s->pieces[i].range;
        const struct dpt_interval common = dpt_interval_intersect(range, held);
        if (s->pieces[i].have >= 0 || common.end <= common.first)
            continue;
        s->pieces[i] = (struct piece){common, have};
        if (common.first > range.first)
            insert_piece(s, i++, (struct piece){{range.first, common.first}, -1});
        if (range.end > common.end)
            insert_piece(s, i + 1, (struct piece){{common.end, range.end}, -1});
    }
}

static bool is_assigned(const struct need_cut *s)
{
    for (int i = 0; i < s->n_pieces; i++)
        if (s->pieces[i].have < 0)
            return false;
    return true;
}

enum distance { SAME_RANK, SAME_HOST, OTHER_HOST, DISTANCE_COUNT };

static enum distance distance_between(const struct dpt_holding *need,
                                      const struct dpt_holding *have)
{
    return have->rank == need->rank ? SAME_RANK : have->host == need->host ? SAME_HOST : OTHER_HOST;
}

/* Assigns each piece to its nearest holding. `have` is sorted by rank, so the cyclic order starts
 * at `next`. */
static void assign_nearest(struct need_cut *s, int unit, const struct dpt_holding *need)
{
    const struct dpt_reshard_plan *plan = s->plan;
    int next = 0;
    while (next < plan->n_have && plan->have[next].rank <= need->rank)
        next++;
    for (int d = SAME_RANK; d < DISTANCE_COUNT; d++)
        for (int k = 0; k < plan->n_have && !is_assigned(s); k++) {
            const int i = (next + k) % plan->n_have;
            if (distance_between(need, &plan->have[i]) == (enum distance)d)
                assign_holding(s, i, dpt_shard_piece(plan->grid, plan->have[i].shard, unit));
        }
}

static enum dpt_status move_need(struct need_cut *s, int unit, const struct dpt_holding *need,
                                 dpt_move_fn move, void *ctx, struct dpt_err *err)
{
    const struct dpt_reshard_plan *plan = s->plan;
    const struct dpt_interval wanted = dpt_shard_piece(plan->grid, need->shard, unit);
    if (wanted.end <= wanted.first)
        return DPT_OK;
    s->pieces[0] = (struct piece){wanted, -1};
    s->n_pieces = 1;
    assign_nearest(s, unit, need);
    for (int i = 0; i < s->n_pieces; i++) {
        const struct piece *piece = &s->pieces[i];
        if (piece->have < 0)
            return dpt_fail(err, DPT_EPEER,
                            "no rank holds elements %lld to %lld of the state, which rank %d needs",
                            (long long)piece->range.first, (long long)piece->range.end - 1,
                            need->rank);
        const struct dpt_holding *have = &plan->have[piece->have];
        const struct dpt_move one = {.unit = unit,
                                     .from = have->rank,
                                     .from_part = have->part,
                                     .to = need->rank,
                                     .to_part = need->part,
                                     .range = piece->range};
        DPT_TRY(move(ctx, &one, err));
    }
    return DPT_OK;
}

enum dpt_status dpt_reshard_each(const struct dpt_reshard_plan *plan, dpt_move_fn move, void *ctx,
                                 struct dpt_err *err)
{
    struct need_cut search = {.plan = plan};
    for (int i = 1; i < plan->n_have; i++)
        DPT_ASSERT(plan->have[i - 1].rank <= plan->have[i].rank);
    search.pieces = calloc(2 * (size_t)plan->n_have + 1, sizeof *search.pieces);
    if (!search.pieces)
        return dpt_fail_nomem(err, "plan of resharding");
    enum dpt_status status = DPT_OK;
    for (int u = 0; status == DPT_OK && u < plan->grid->n_units; u++)
        for (int i = 0; status == DPT_OK && i < plan->n_need; i++)
            status = move_need(&search, u, &plan->need[i], move, ctx, err);
    free(search.pieces);
    return status;
}
