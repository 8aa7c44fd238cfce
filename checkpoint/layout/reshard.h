/* Resharding: the moves that bring every rank the shards it needs, from the pieces of the state
 * that the ranks hold. All ranks compute the same list from the same holdings and needs. Pure. */
#ifndef DPT_CHECKPOINT_LAYOUT_RESHARD_H
#define DPT_CHECKPOINT_LAYOUT_RESHARD_H

#include "base/err.h"
#include "checkpoint/layout/shard_piece.h"

/* A shard that a rank has or needs. `part`: the caller's number of it among the rank's shards. */
struct dpt_holding {
    int rank, host, part;
    struct dpt_shard shard;
};

/* The move of `range` of the flat vectors, inside unit `unit`. from == to: the rank already has
 * it. */
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

/* Calls `move` for every piece: by unit, then in the order of `need`, then by element. A rank that
 * holds a piece gives it to itself; else a holder on the same host gives it; else any holder. Of
 * several equal holders the first one after the needing rank in cyclic order gives the piece, so
 * that the holders share the work. The pieces of one need are disjoint and fill it. DPT_EPEER: no
 * rank holds a needed piece; `move` was called for the pieces before it. DPT_ENOMEM; or the failure
 * of `move`. O(units x needs x holdings). */
DPT_MUST_USE enum dpt_status dpt_reshard_each(const struct dpt_reshard_plan *plan, dpt_move_fn move,
                                              void *ctx, struct dpt_err *err);

#endif
