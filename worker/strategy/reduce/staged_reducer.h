/* The all-reduce, through the hosts' memory, of sums of lanes that are on a device (cluster.backend
 * host). A bucket's sums are copied to the host's lane buffers, a host reducer (host_reducer.h)
 * adds the sums of all ranks there, and the whole sum is copied back to the device. */
#ifndef DPT_WORKER_STRATEGY_REDUCE_STAGED_REDUCER_H
#define DPT_WORKER_STRATEGY_REDUCE_STAGED_REDUCER_H

#include "worker/strategy/reduce/host_reducer.h"

struct dpt_staged_reducer_spec {
    struct dpt_stream *stream;         /* the main thread's stream on the device */
    const struct dpt_ops *ops;         /* of the device */
    float *const *on_device;           /* lane buffers of the device; borrowed */
    int n_sums;                        /* sums of this rank, in its first buffers */
    int64_t numel;                     /* of the flat gradient */
    struct dpt_host_reducer_spec host; /* of several ranks */
};

DPT_MUST_USE enum dpt_status dpt_staged_reducer_create(const struct dpt_staged_reducer_spec *spec,
                                                       struct dpt_reducer **ret,
                                                       struct dpt_err *err);

#endif
