/* For train.verify_every: each rank sends a hash of its own part and one of its shadow. All holders
 * of a shard must have the same hash. Pure. */
#ifndef DPT_WORKER_TRAIN_STEP_REPLICA_HASHES_H
#define DPT_WORKER_TRAIN_STEP_REPLICA_HASHES_H

#include "base/err.h"
#include "base/hash.h"
#include "checkpoint/layout/shard_piece.h"

#include <assert.h>
#include <stdint.h>

enum { DPT_REPLICA_PARTS = 2 }; /* the rank's own part and its shadow */

/* The message of a rank, sent as it lies in memory. A part that the rank lacks has shard 0 of 0. */
struct dpt_replica_hashes {
    int64_t step; /* completed steps */
    struct dpt_replica_hash {
        struct dpt_shard shard;
        struct dpt_hash128 hash;
    } part[DPT_REPLICA_PARTS];
};
static_assert(sizeof(struct dpt_replica_hashes) == 56, "every byte of the message is a field's");

/* Compares the shares of all ranks, [world] by rank. DPT_ECORRUPT: the text names the rank that
 * differs from the majority of the shard's holders or, without a majority, from the lowest holder
 * of the most frequent hash. DPT_EPROTO: a rank is at another step, or names a shard that cannot
 * exist. The text is the same on every rank. */
DPT_MUST_USE enum dpt_status dpt_replica_hashes_compare(const struct dpt_replica_hashes *all,
                                                        int world, int64_t step,
                                                        struct dpt_err *err);

#endif
