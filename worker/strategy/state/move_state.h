/* Moves the state between the ranks of a generation until each rank has its wanted parts. All ranks
 * know the held and the wanted parts of all ranks. checkpoint/layout/reshard.h lists the moves.
 * Masters and moments are copied directly from held to wanted memory, without other memory. */
#ifndef DPT_WORKER_STRATEGY_STATE_MOVE_STATE_H
#define DPT_WORKER_STRATEGY_STATE_MOVE_STATE_H

#include "worker/strategy/strategy.h"

enum { DPT_MOVE_STATE_PARTS = 2 }; /* own, shadow */

/* The parts of one rank. A shard whose `of` is 0: the rank does not have this part. */
struct dpt_move_state_rank {
    int host;
    struct dpt_shard held[DPT_MOVE_STATE_PARTS], wanted[DPT_MOVE_STATE_PARTS];
};

struct dpt_reshard {
    const struct dpt_grid *grid;
    int rank, world_size;                    /* of the communicator */
    const struct dpt_move_state_rank *ranks; /* [world_size], equal on all ranks; borrowed */
    /* This rank's memory of its parts in `ranks`. All ranks have the same vectors. */
    const struct dpt_strategy_state *held, *wanted;
    /* Most transfers of one exchange; 0: the communicator's maximum. */
    int xfers_max;
    int64_t bytes_received, bytes_sent; /* out */
};

/* Fills the wanted parts. Called by a job on the communication thread; `comm` may be NULL with one
 * rank. Ranks post in batches that end at the same moves on all ranks, so that no batch waits for a
 * later one. Errors are those of dpt_comm_poll (DPT_EPEER, DPT_EABORTED, DPT_ETIMEOUT); DPT_EPEER
 * also if no rank holds a wanted part. After a failure `held` is unchanged, apart from memory that
 * it shares with `wanted`, and `wanted` is undefined. */
DPT_MUST_USE enum dpt_status dpt_move_state(struct dpt_comm *comm, struct dpt_reshard *reshard,
                                            struct dpt_err *err);

#endif
