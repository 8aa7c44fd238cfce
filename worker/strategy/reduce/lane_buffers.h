/* The lane buffers of a rank, and the reducer of a generation. Each buffer has a whole flat
 * gradient; together they are the stack of worker/plan/lanes.h, in which slots are added. The
 * buffers are registered memory or a device's memory. Buffers of a device that go through the
 * host's memory have registered buffers beside them. The place of the buffers decides which reducer
 * a generation uses. All functions are called by the main thread, between generations. */
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
    float *data[DPT_COVER_MAX]; /* the buffers in which slots are added */
};

/* Makes the buffers that `memory` lists. A rank keeps its buffers when a larger world needs fewer.
 * After a failure the world is smaller and needs them again; recovery then does not wait until the
 * kernel clears new memory. */
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
