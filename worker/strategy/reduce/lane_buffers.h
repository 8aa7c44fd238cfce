/* The lane buffers of a rank, whole flat gradients: a stack, as worker/plan/lanes.h describes, in
 * which slots are added. They are registered memory; or a device's, and then what of them goes
 * through the host's memory has registered buffers beside them. And the reducer of a generation,
 * chosen by where they are. All by the main thread, between generations. */
#ifndef DPT_WORKER_STRATEGY_REDUCE_LANE_BUFFERS_H
#define DPT_WORKER_STRATEGY_REDUCE_LANE_BUFFERS_H

#include "worker/plan/partition.h"
#include "worker/strategy/memory/memory_list.h"
#include "worker/strategy/reduce/model_buckets.h"
#include "worker/strategy/reduce/reducer.h"
#include "worker/strategy/transport/buffer.h"

struct dpt_lane_buffers {
    int n_registered, n_on_device;
    struct dpt_comm_mem *registered[DPT_COVER_MAX];
    struct dpt_buffer on_device[DPT_COVER_MAX];
    float *data[DPT_COVER_MAX]; /* those that slots are added in */
};

/* Makes those that `memory` lists. Buffers are kept when a larger world needs fewer: a failure,
 * which makes worlds smaller, should not wait for the kernel to clear memory that this rank has had
 * before. */
DPT_MUST_USE enum dpt_status dpt_lane_buffers_make(struct dpt_lane_buffers *buffers,
                                                   const struct dpt_strategy_env *env,
                                                   const struct dpt_memory_list *memory,
                                                   struct dpt_err *err);
void dpt_lane_buffers_free(struct dpt_lane_buffers *buffers);

/* The reducer of a generation, once its buffers are made. All borrowed for its life. */
DPT_MUST_USE enum dpt_status dpt_lane_reducer_create(const struct dpt_strategy_env *env,
                                                     const struct dpt_partition *part,
                                                     const struct dpt_model_buckets *buckets,
                                                     const struct dpt_lane_buffers *buffers,
                                                     struct dpt_reducer **ret, struct dpt_err *err);

#endif
