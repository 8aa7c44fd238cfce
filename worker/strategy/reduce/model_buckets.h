/* The buckets of a model's gradient, as a strategy reduces it (base/strategy_traits.h). */
#ifndef DPT_WORKER_STRATEGY_REDUCE_MODEL_BUCKETS_H
#define DPT_WORKER_STRATEGY_REDUCE_MODEL_BUCKETS_H

#include "base/strategy_traits.h"
#include "checkpoint/layout/shard_piece.h"
#include "worker/model/model.h"
#include "worker/plan/buckets.h"

/* Buckets are in the order in which backward completes them: bucket 0 has the last tensors. Ranges
 * of the flat vector (worker/plan/step_list.h) are in ascending order: bucket b of n buckets is
 * range n-1-b. */
struct dpt_model_buckets {
    int n;
    struct dpt_bucket *bucket; /* [n] */
    int *of_param;             /* [n_params] bucket */
    int *unit;                 /* [n], by range: the unit whose backward completes it */
    int64_t *offset;           /* [n + 1] of the ranges' grid */
    struct dpt_grid ranges;
};

/* Where the state is replicated and reduced by buckets, these are runs of tensors of the config's
 * sizes. Elsewhere each bucket is one unit, because sums stay with the owners of the shards or the
 * gradient is reduced unit by unit. The caller calls dpt_model_buckets_fini also after a failure.
 * DPT_ENOMEM. */
DPT_MUST_USE enum dpt_status dpt_model_buckets_init(struct dpt_model_buckets *buckets,
                                                    const struct dpt_config *config,
                                                    const struct dpt_model *model,
                                                    struct dpt_err *err);
/* Accepts zeroes. */
void dpt_model_buckets_fini(struct dpt_model_buckets *buckets);

#endif
