/* The gradients of a rank's own run of lanes (`accumulate: local` with whole gradient buffers).
 * During backward slots are added into lanes, and lanes are added up the tree. The reducer gets a
 * bucket while backward goes on with the tensors before it (Li et al., "PyTorch Distributed",
 * VLDB'20).
 *
 * Lane buffers are a stack, as worker/plan/lanes.h describes. When the last slot of a lane
 * announces a tensor, that tensor is joined up the stack; after the last lane the sums of a bucket
 * go to the reducer. All by the main thread. */
#ifndef DPT_WORKER_STRATEGY_REDUCE_LANE_SUMS_H
#define DPT_WORKER_STRATEGY_REDUCE_LANE_SUMS_H

#include "worker/plan/partition.h"
#include "worker/strategy/memory/memory_list.h"
#include "worker/strategy/reduce/model_buckets.h"
#include "worker/strategy/reduce/reducer.h"

struct dpt_lane_sums;

/* `env` and `buckets` are borrowed; the lists of memory are only read. */
DPT_MUST_USE enum dpt_status dpt_lane_sums_create(const struct dpt_strategy_env *env,
                                                  const struct dpt_model_buckets *buckets,
                                                  const struct dpt_memory_list *memory,
                                                  struct dpt_lane_sums **ret, struct dpt_err *err);
void dpt_lane_sums_destroy(struct dpt_lane_sums **sums);

/* `part` is borrowed until the generation's end. */
DPT_MUST_USE enum dpt_status dpt_lane_sums_begin_generation(struct dpt_lane_sums *sums,
                                                            const struct dpt_partition *part,
                                                            const struct dpt_memory_list *memory,
                                                            struct dpt_err *err);
void dpt_lane_sums_end_generation(struct dpt_lane_sums *sums);
/* The generation's reducer of buckets; borrowed. */
struct dpt_reducer *dpt_lane_sums_reducer(const struct dpt_lane_sums *sums);

void dpt_lane_sums_begin_step(struct dpt_lane_sums *sums);
/* Fills grads, accumulate and parts_apart. */
void dpt_lane_sums_begin_slot(struct dpt_lane_sums *sums, int slot_index, struct dpt_slot *slot);
/* Adds a parameter's gradient of the present slot, which is complete. */
void dpt_lane_sums_add_tensor(struct dpt_lane_sums *sums, int param);
void dpt_lane_sums_end_slot(struct dpt_lane_sums *sums);

/* Tells that the step was applied. May be called after the end of the step's generation. */
void dpt_lane_sums_applied(struct dpt_lane_sums *sums, int64_t step);

/* The reduced gradient at its places in the flat vector. */
float *dpt_lane_sums_gradient(const struct dpt_lane_sums *sums);

/* Bytes of gradients held, the number of their buffers, and the bytes sent in a step. */
void dpt_lane_sums_cost(const struct dpt_lane_sums *sums, struct dpt_strategy_cost *ret);

#endif
