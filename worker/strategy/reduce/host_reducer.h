/* Canonical all-reduce of sums of lanes in the hosts' memory (reducer.h).
 *
 * The main thread brings each rank's subtree sums into the lane buffers and says which buckets are
 * complete; a job on the communication thread moves them: stage 1 inside the host, stage 2 between
 * hosts, ordered sum by the piece's owner, all-gather. Inside one host a bucket goes round in
 * chunks, between hosts it is one. All ranks post in one fixed order (stage 1 of chunk c, stage 2
 * of c-1, all-gather of c-2), so matching never depends on the speed of a rank. At the end buffer 0
 * holds the whole reduced gradient on every rank; or, of shards, there is no all-gather, and buffer
 * 0 holds this rank's. */
#ifndef DPT_WORKER_STRATEGY_REDUCE_HOST_REDUCER_H
#define DPT_WORKER_STRATEGY_REDUCE_HOST_REDUCER_H

#include "worker/plan/reduce.h"
#include "worker/strategy/reduce/reducer.h"

enum {
    DPT_HOST_REDUCER_PIECE_BYTES = 2 << 20, /* of a rank's piece of a chunk inside one host */
    DPT_HOST_REDUCER_STAGINGS = 2           /* chunks under way at once between hosts */
};

struct dpt_host_reducer_spec {
    struct dpt_reducer_spec of;
    const struct dpt_ops *ops;
    struct dpt_comm_listener *listener; /* for registered staging memory */
    /* Lane buffers of the whole flat gradient, dpt_reduce_buffers() of the world; borrowed. */
    struct dpt_comm_mem *const *buffers;
    size_t piece_bytes; /* of a chunk inside one host, about; 0: as fits the caches */
};

/* Makes lane buffer `index` of `numel` elements; buffer 0 is open to the peers of the host, which
 * write the sums there. */
DPT_MUST_USE enum dpt_status dpt_host_reducer_buffer_create(struct dpt_comm_listener *listener,
                                                            int index, int64_t numel,
                                                            struct dpt_comm_mem **ret,
                                                            struct dpt_err *err);

/* Makes everything one generation needs, before its communicator; nothing is allocated later. */
DPT_MUST_USE enum dpt_status dpt_host_reducer_create(const struct dpt_host_reducer_spec *spec,
                                                     struct dpt_reducer **ret, struct dpt_err *err);

#endif
