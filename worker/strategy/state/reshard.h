/* Moves the state between the ranks of a generation until each has its wanted part. All ranks know
 * the held and the wanted parts of all; checkpoint/layout/reshard.h lists the moves; masters and
 * moments go directly from held to wanted memory. No other memory is needed. */
#ifndef DPT_WORKER_STRATEGY_STATE_RESHARD_H
#define DPT_WORKER_STRATEGY_STATE_RESHARD_H

#include "worker/strategy/strategy.h"

enum { DPT_RESHARD_PARTS = 2 }; /* own, shadow */

/* The parts of one rank; of 0: none. */
struct dpt_reshard_rank {
    int host;
    struct dpt_shard held[DPT_RESHARD_PARTS], wanted[DPT_RESHARD_PARTS];
};

struct dpt_reshard {
    const struct dpt_grid *grid;
    int rank, world_size;                 /* of the communicator */
    const struct dpt_reshard_rank *ranks; /* [world_size], the same on all; borrowed */
    /* This rank's memory of its parts in `ranks`. All ranks have the same vectors. */
    const struct dpt_strategy_state *held, *wanted;
    int xfers_max;                      /* of an exchange; 0: the communicator's maximum */
    int64_t bytes_received, bytes_sent; /* out */
};

/* Fills the wanted parts. By a job on the communication thread; `comm` may be NULL with one rank.
 * Ranks post in batches that are cut at the same moves everywhere, so that no batch waits for a
 * later one. DPT_EPEER also when no rank holds what one wants; DPT_EABORTED, DPT_ETIMEOUT as
 * dpt_comm_poll. After a failure `held` is as it was (where `wanted` is not the same memory), and
 * `wanted` is undefined. */
DPT_MUST_USE enum dpt_status dpt_reshard_run(struct dpt_comm *comm, struct dpt_reshard *reshard,
                                             struct dpt_err *err);

#endif
