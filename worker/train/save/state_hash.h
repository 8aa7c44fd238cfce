/* The weights hash of a state that ranks hold in shards (checkpoint.h: dpt_weights_hash), without
 * gathering the state. The holder of a block's first element hashes the block; the holders of the
 * rest send it their parts, for one block at each shard boundary at most. Then an all-gather gives
 * all ranks the hashes of all blocks, which each rank joins. */
#ifndef DPT_WORKER_TRAIN_SAVE_STATE_HASH_H
#define DPT_WORKER_TRAIN_SAVE_STATE_HASH_H

#include "worker/train/save/state_pieces.h"

struct dpt_state_hash {
    const struct dpt_tensors *tensors;
    const struct dpt_state_part *own; /* of this rank */
    const struct dpt_shard *shards;   /* [world] own shards of all ranks */
    int world, rank;
};

/* Whether every rank holds the whole state: then dpt_state_hash needs no communicator. */
bool dpt_state_hash_is_local(const struct dpt_state_hash *spec);

/* Unless local, a collective by the communicator's owner: all ranks call it and get the same hash.
 * DPT_ECORRUPT: the shards do not make the whole state; else errors of the communicator. */
DPT_MUST_USE enum dpt_status dpt_state_hash(struct dpt_comm *comm,
                                            const struct dpt_state_hash *spec,
                                            struct dpt_hash128 *ret, struct dpt_err *err);

/* Hash of the first `vectors` vectors of a part, equal for all ranks that hold the same values of
 * the shard; 0: no shard. */
struct dpt_hash128 dpt_state_part_hash(const struct dpt_state_part *part,
                                       const struct dpt_grid *grid, int vectors);

#endif
