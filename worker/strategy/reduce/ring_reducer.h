/* All-reduce of the ranks' sums by a ring (train.reduction: ring): each rank sends to the next one
 * only (worker/plan/pattern.h). The order of addition is another one for each chunk and world.
 *
 * Buckets are reduced one after another, in place in the rank's lane buffer, and a bucket's chunks
 * go around in parts (transport/pattern_run.h). Ranks of one host read each other's memory in
 * place. */
#ifndef DPT_WORKER_STRATEGY_REDUCE_RING_REDUCER_H
#define DPT_WORKER_STRATEGY_REDUCE_RING_REDUCER_H

#include "worker/strategy/reduce/reducer.h"

struct dpt_ring_reducer_spec {
    struct dpt_reducer_spec of; /* one lane for each rank; f32; without shards */
    const struct dpt_ops *ops;
    struct dpt_comm_listener *listener; /* for registered staging memory */
    struct dpt_comm_mem *buffer;        /* the lane buffer, the whole flat gradient; borrowed */
};

/* Allocates everything that one generation needs, before its communicator is opened; nothing is
 * allocated later. */
DPT_MUST_USE enum dpt_status dpt_ring_reducer_create(const struct dpt_ring_reducer_spec *spec,
                                                     struct dpt_reducer **ret, struct dpt_err *err);

/* Bytes of the registered memory that it allocates, for worlds of several ranks. Reads of, but not
 * its thread and stream. */
DPT_MUST_USE enum dpt_status dpt_ring_reducer_bytes(const struct dpt_reducer_spec *of,
                                                    size_t *ret_bytes, struct dpt_err *err);

#endif
