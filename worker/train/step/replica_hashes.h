/* train.verify_every: ranks exchange a hash of their own part and one of their shadow. Holders of
 * the same shard must have the same hash. Pure. */
#ifndef DPT_WORKER_TRAIN_STEP_REPLICA_HASHES_H
#define DPT_WORKER_TRAIN_STEP_REPLICA_HASHES_H

#include "base/err.h"
#include "base/hash.h"
#include "checkpoint/layout/shard.h"

#include <stdint.h>

enum {
    DPT_VERIFY_PARTS = 2, /* own, shadow */
    DPT_VERIFY_SHARE_BYTES = 8 + DPT_VERIFY_PARTS * (2 * 4 + 2 * 8)
};

/* The message of a rank. A part that it does not have is the shard 0 of 0. */
struct dpt_verify_share {
    int64_t step; /* completed */
    struct dpt_verify_part {
        struct dpt_shard shard;
        struct dpt_hash128 hash;
    } part[DPT_VERIFY_PARTS];
};

void dpt_verify_share_pack(const struct dpt_verify_share *share,
                           uint8_t buf[DPT_VERIFY_SHARE_BYTES]);

/* Looks at the shares of all ranks, in rank order: DPT_ECORRUPT names the rank that differs from
 * the majority of the shard's holders or, without a majority, from the lowest of them. DPT_EPROTO:
 * a rank is at another step, or says what no rank can. The same text on every rank. */
DPT_MUST_USE enum dpt_status dpt_verify_fold(const uint8_t *all, int world, int64_t step,
                                             struct dpt_err *err);

#endif
