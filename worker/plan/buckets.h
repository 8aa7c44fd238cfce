/* Buckets of gradients, which overlap communication with backward: contiguous runs of tensors of
 * the flat gradient, taken from its end, because backward completes tensors in about reverse order.
 * The first bucket may be small so that communication starts early (Li et al., VLDB'20). Pure. */
#ifndef DPT_WORKER_PLAN_BUCKETS_H
#define DPT_WORKER_PLAN_BUCKETS_H

#include <stdint.h>

struct dpt_bucket {
    int first_tensor, n_tensors; /* in flat order */
    int64_t first, end;          /* elements of the flat gradient, padding between units included */
};

/* `offset[i]` is where tensor i starts in the flat vector (ascending), `total` its padded length;
 * the bucket boundaries lie on tensor starts and cover [0, total). A bucket takes tensors while it
 * stays within `first_bytes` (bucket 0) or `bytes` (others), and at least one. Returns the number
 * of buckets (at most n_tensors), in the order in which they are expected to complete: bucket 0
 * holds the last tensors. */
int dpt_buckets_make(const int64_t *offset, int n_tensors, int64_t total, int64_t first_bytes,
                     int64_t bytes, struct dpt_bucket *ret);

#endif
