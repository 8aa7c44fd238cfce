/* Resharding: who gives what to whom, so that everyone comes to hold what it needs of a state that
 * lies in pieces among them. Every rank makes the same list from the same lists of holdings and
 * needs. Pure. */
#ifndef DPT_CHECKPOINT_LAYOUT_RESHARD_H
#define DPT_CHECKPOINT_LAYOUT_RESHARD_H

#include "base/err.h"
#include "checkpoint/layout/shard.h"

/* A shard that a rank has or needs. `part` is the caller's name for it among those of the rank. */
struct dpt_holding {
    int rank, host, part;
    struct dpt_shard shard;
};

/* One piece on its way: `range` of the flat vectors, inside unit `unit`. from == to: the rank has
 * it itself. */
struct dpt_move {
    int unit;
    int from, from_part, to, to_part;
    struct dpt_interval range;
};

typedef enum dpt_status (*dpt_move_fn)(void *ctx, const struct dpt_move *move, struct dpt_err *err);

struct dpt_reshard_plan {
    const struct dpt_grid *grid;
    const struct dpt_holding *have; /* [n_have], by rank */
    const struct dpt_holding *need; /* [n_need] */
    int n_have, n_need;
};

/* Calls `move` for every piece, by unit, then in the order of `need`, then by element. What is
 * needed is taken from the needer's own holdings if it is there, else from a holder of its host,
 * else from any; of several the one that follows the needer first, counting ranks cyclically, so
 * that those who have the same share the work. Pieces of one need are disjoint and fill it.
 * DPT_EPEER: nobody holds something that is needed (what is said before that has been said); what
 * `move` returns, if it fails; DPT_ENOMEM. O(units x needs x holdings). */
DPT_MUST_USE enum dpt_status dpt_reshard_each(const struct dpt_reshard_plan *plan, dpt_move_fn move,
                                              void *ctx, struct dpt_err *err);

#endif
