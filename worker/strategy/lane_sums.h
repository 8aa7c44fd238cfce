/* The gradients of a rank's own run of lanes (`accumulate: local` with whole gradient buffers):
 * slots are added into lanes as backward goes, lanes up the tree, and buckets go to the reducer
 * while backward goes on with the tensors before them (Li et al., "PyTorch Distributed", VLDB'20);
 * or as another policy has it (ddp_policy.h).
 *
 * With a resident device (strategy.h) the buffers are there. A bucket's sums go to the other ranks'
 * devices from where they are, by NCCL (gpu_reducer.h), or come to the host's buffers and go on
 * from there.
 *
 * Lane buffers are a stack, as worker/plan/lanes.h describes. When the last slot of a lane
 * announces the last tensor of a bucket, that bucket's range is joined up the stack; after the last
 * lane it goes to the reducer. All by the main thread. */
#ifndef DPT_WORKER_STRATEGY_LANE_SUMS_H
#define DPT_WORKER_STRATEGY_LANE_SUMS_H

#include "worker/strategy/ddp_policy.h"
#include "worker/strategy/gpu_reducer.h"
#include "worker/strategy/reducer.h"
#include "worker/strategy/strategy.h"

struct dpt_lane_sums;

/* With `shards` buckets are units, and the reduced gradient stays with the ranks whose shards it is
 * (dpt_reducer_spec). `env` is borrowed. */
DPT_MUST_USE enum dpt_status dpt_lane_sums_create(const struct dpt_strategy_env *env, bool shards,
                                                  struct dpt_lane_sums **ret, struct dpt_err *err);
void dpt_lane_sums_destroy(struct dpt_lane_sums **sums);

/* As the strategy's functions of these names. */
struct dpt_assignment dpt_lane_sums_assign(const struct dpt_lane_sums *sums,
                                           const struct dpt_world *world, int position);
DPT_MUST_USE enum dpt_status dpt_lane_sums_begin_generation(struct dpt_lane_sums *sums,
                                                            const struct dpt_world *world, int rank,
                                                            int host, struct dpt_err *err);
void dpt_lane_sums_end_generation(struct dpt_lane_sums *sums);
/* `post`: on the communication thread at once; else the caller runs dpt_lane_sums_job there. */
void dpt_lane_sums_begin_step(struct dpt_lane_sums *sums, bool post);
/* Fills grads, accumulate and announce. */
void dpt_lane_sums_begin_slot(struct dpt_lane_sums *sums, int slot_index, struct dpt_slot *slot);
/* Waits for peers where the policy does. What fails here and in an announcement, wait tells. */
void dpt_lane_sums_end_slot(struct dpt_lane_sums *sums);

/* A dpt_comm_job, with the sums as its context. */
DPT_MUST_USE enum dpt_status dpt_lane_sums_job(struct dpt_comm_thread *thread, void *ctx,
                                               struct dpt_err *err);

/* After the last slot: waits until the reduced gradient is there, if the job was posted here. */
DPT_MUST_USE enum dpt_status dpt_lane_sums_wait(struct dpt_lane_sums *sums, struct dpt_err *err);

/* The reduced gradient at its places in the flat vector. */
float *dpt_lane_sums_gradient(const struct dpt_lane_sums *sums);

/* Gradient bytes held, in how many buffers, and bytes sent in a step. */
void dpt_lane_sums_cost(const struct dpt_lane_sums *sums, struct dpt_strategy_cost *ret);

#endif
