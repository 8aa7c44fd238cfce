/* The all-reduce of sums of lanes that are on a device, through the hosts' memory (cluster.backend
 * host): a bucket's sums come to the host's lane buffers, a host_reducer.h adds those of all ranks
 * there, and the whole sum goes back. */
#ifndef DPT_WORKER_STRATEGY_REDUCE_STAGED_REDUCER_H
#define DPT_WORKER_STRATEGY_REDUCE_STAGED_REDUCER_H

#include "worker/strategy/reduce/host_reducer.h"

struct dpt_staged_reducer_spec {
    struct dpt_stream *stream;         /* the main thread's, of the device */
    const struct dpt_ops *ops;         /* of the device */
    float *const *on_device;           /* lane buffers of the device; borrowed */
    int n_sums;                        /* this rank's, in its first buffers */
    int64_t numel;                     /* of the flat gradient */
    struct dpt_host_reducer_spec host; /* of several ranks */
};

DPT_MUST_USE enum dpt_status dpt_staged_reducer_create(const struct dpt_staged_reducer_spec *spec,
                                                       struct dpt_reducer **ret,
                                                       struct dpt_err *err);

#endif
