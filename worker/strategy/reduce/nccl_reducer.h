/* Canonical all-reduce of a step's gradient between GPUs, bucket by bucket, beside the computation.
 * It does by NCCL in the devices' memory what host_reducer.h does in the hosts' memory.
 *
 * Rank r owns piece r of each bucket. First each rank sends its subtree sums of a piece to the
 * owner. The owner adds them on its device in the order of the lanes' tree, and then sends the sum
 * to all ranks. Both transfers are operations of NCCL sends and receives (worker/comm/nccl_comm.h),
 * which all ranks post in one order: the contributions of bucket b, then the sums of bucket b - 1.
 * So one bucket is transferred while the bucket before is added. The bits are the same as with
 * every other reducer.
 *
 * Where the order of addition is open (train.reduction: fast) each bucket is one operation, NCCL's
 * own all-reduce.
 *
 * On the device a transfer waits for the work that makes its bytes; the main thread waits for no
 * bucket. At the end buffer 0 has the reduced gradient on every rank; with `shards`, each rank's
 * own pieces. */
#ifndef DPT_WORKER_STRATEGY_REDUCE_NCCL_REDUCER_H
#define DPT_WORKER_STRATEGY_REDUCE_NCCL_REDUCER_H

#include "worker/strategy/reduce/reducer.h"

struct dpt_nccl_reducer_spec {
    /* Two ranks or more. The thread opens NCCL (dpt_comm_thread_set_device). The stream is the
     * device's. */
    struct dpt_reducer_spec of;
    struct dpt_device *device;
    struct dpt_stream *main_stream; /* the main thread's stream on the device */
    /* The stack of this rank's lanes in the device's memory, each buffer a whole flat gradient; the
     * first buffers get the rank's subtree sums. Borrowed. */
    float *const *buffers;
    /* Use NCCL's own all-reduce: each rank has one sum, nothing is rounded, and all ranks get the
     * sums. */
    bool any_order;
};

/* Allocates everything that one generation needs, including memory of the device; nothing is
 * allocated later. For NCCL's own all-reduce the cost counts the bytes that a ring sends. */
DPT_MUST_USE enum dpt_status dpt_nccl_reducer_create(const struct dpt_nccl_reducer_spec *spec,
                                                     struct dpt_reducer **ret, struct dpt_err *err);

#endif
