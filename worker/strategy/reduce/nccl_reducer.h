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

#include "worker/plan/buckets.h"
#include "worker/plan/world.h"
#include "worker/strategy/reduce/reducer.h"

struct dpt_nccl_reducer_spec {
    struct dpt_device *device;
    struct dpt_stream *stream;        /* the communication thread's own, of the device, */
    struct dpt_stream *main_stream;   /* and the main thread's */
    struct dpt_comm_thread *thread;   /* that opens NCCL (dpt_comm_thread_set_gpu) */
    const struct dpt_bucket *buckets; /* borrowed */
    int n_buckets;
    int64_t block;
    float *const *buffers; /* of the device: the stack of this rank's lanes, whole flat gradients,
                              its subtree sums in the first ones; borrowed */
    const struct dpt_world *world; /* of two ranks or more; borrowed */
    int rank;
    enum dpt_dtype wire; /* what every sum is rounded to; DPT_F32: nothing is */
    bool any_order;      /* each rank has one sum, and nothing is rounded */
    bool shards;         /* sums stay with the owners of their pieces; not with any_order */
};

/* Makes everything one generation needs, on the device, too; nothing is allocated later. Of NCCL's
 * own all-reduce the cost is what a ring sends. */
DPT_MUST_USE enum dpt_status dpt_nccl_reducer_create(const struct dpt_nccl_reducer_spec *spec,
                                                     struct dpt_reducer **ret, struct dpt_err *err);

#endif
