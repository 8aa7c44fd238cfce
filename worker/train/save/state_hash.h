/* The weights hash of a state that ranks hold in shards (checkpoint.h: dpt_weights_hash), without
 * gathering the state. The holder of a block's first element hashes the block. The holders of the
 * rest send their parts to it; this happens for at most one block at each shard boundary. Then an
 * all-gather gives all ranks the hashes of all blocks, and each rank joins them. */
#ifndef DPT_WORKER_TRAIN_SAVE_STATE_HASH_H
#define DPT_WORKER_TRAIN_SAVE_STATE_HASH_H

#include "worker/train/save/state_pieces.h"

struct dpt_state_hash {
    const struct dpt_state_tensors *tensors;
    const struct dpt_state_part *own; /* this rank's part */
    const struct dpt_shard *shards;   /* [world] own shards of all ranks */
    int world, rank;
};

/* Whether every rank holds the whole state. If so, dpt_state_hash needs no communicator. */
bool dpt_state_hash_is_local(const struct dpt_state_hash *spec);

/* Computes the hash. Unless it is local, all ranks call this together, each on the thread that owns
 * the communicator, and get the same hash. DPT_ECORRUPT: the shards do not make up the whole state.
 * Other errors are those of the communicator. */
DPT_MUST_USE enum dpt_status dpt_state_hash(struct dpt_comm *comm,
                                            const struct dpt_state_hash *spec,
                                            struct dpt_hash128 *ret, struct dpt_err *err);

/* The hash of the first `vectors` vectors of a part. Ranks that hold the same values of the shard
 * get the same hash. 0: there is no shard. */
struct dpt_hash128 dpt_state_part_hash(const struct dpt_state_part *part,
                                       const struct dpt_grid *grid, int vectors);

#endif
