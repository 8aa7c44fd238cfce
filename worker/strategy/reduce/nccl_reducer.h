/* Canonical all-reduce of a step's gradient between GPUs, bucket by bucket, beside the computation:
 * what host_reducer.h does in the host's memory, in the devices', by NCCL.
 *
 * Rank r owns piece r of each bucket. First each rank sends its subtree sums of a piece to the
 * owner, who adds all of them on its device in the order of the lanes' tree; then the owner sends
 * the sum to all. Both are operations of NCCL's sends and receives (worker/comm/nccl_comm.h), which
 * all ranks post in one order: the contributions of bucket b, then the sums of b - 1. So one
 * bucket's transfers go on while the one before is added, and the bits are those of every other way
 * to reduce.
 *
 * Where the order of addition is open (train.reduction: fast) each bucket is one operation, NCCL's
 * own all-reduce.
 *
 * Transfers wait on the device for what made their bytes; the host waits for no bucket. At the end
 * buffer 0 holds the reduced gradient on every rank, or, with `shards`, on each its own pieces. */
#ifndef DPT_WORKER_STRATEGY_REDUCE_NCCL_REDUCER_H
#define DPT_WORKER_STRATEGY_REDUCE_NCCL_REDUCER_H

#include "worker/strategy/reduce/reducer.h"

struct dpt_nccl_reducer_spec {
    struct dpt_reducer_spec of; /* two ranks or more; the thread opens NCCL
                                (dpt_comm_thread_set_gpu); the stream is the device's */
    struct dpt_device *device;
    struct dpt_stream *main_stream; /* the main thread's, of the device */
    float *const *buffers; /* of the device: the stack of this rank's lanes, whole flat gradients,
                              its subtree sums in the first ones; borrowed */
    bool any_order; /* each rank has one sum, nothing is rounded, and all ranks get the sums */
};

/* Makes everything one generation needs, on the device, too; nothing is allocated later. Of NCCL's
 * own all-reduce the cost is what a ring sends. */
DPT_MUST_USE enum dpt_status dpt_nccl_reducer_create(const struct dpt_nccl_reducer_spec *spec,
                                                     struct dpt_reducer **ret, struct dpt_err *err);

#endif
