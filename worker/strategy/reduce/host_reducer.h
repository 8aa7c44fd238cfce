/* Canonical all-reduce of sums of lanes in the hosts' memory (reducer.h).
 *
 * The main thread adds the rank's subtree sums in the lane buffers and marks the buckets that are
 * complete. A job on the communication thread reduces them: stage 1 inside the host, stage 2
 * between hosts, ordered sum by the piece's owner, all-gather. Inside one host, and with `shards`,
 * a bucket is cut into chunks; else between hosts it is one chunk. All ranks post in one fixed
 * order (stage 1 of chunk c, stage 2 of c-1, all-gather of c-2), so the matching of transfers never
 * depends on the speed of a rank. At the end buffer 0 has the whole reduced gradient on every rank.
 * With `shards` there is no all-gather, and buffer 0 has the reduced gradient of this rank's
 * shards. */
#ifndef DPT_WORKER_STRATEGY_REDUCE_HOST_REDUCER_H
#define DPT_WORKER_STRATEGY_REDUCE_HOST_REDUCER_H

#include "worker/plan/reduce_transfers.h"
#include "worker/strategy/reduce/reducer.h"

enum {
    DPT_HOST_REDUCER_PIECE_BYTES = 2 << 20, /* bytes of a rank's piece of a chunk inside one host */
    DPT_HOST_REDUCER_STAGINGS = 2           /* chunks under way at once between hosts */
};

struct dpt_host_reducer_spec {
    struct dpt_reducer_spec of;
    const struct dpt_ops *ops;
    struct dpt_comm_listener *listener; /* for registered staging memory */
    /* dpt_reduce_buffers() lane buffers, each with the whole flat gradient; borrowed. */
    struct dpt_comm_mem *const *buffers;
    /* Of a rank's piece of a chunk inside one host, about; 0: a size that fits the caches. */
    size_t piece_bytes;
};

/* Makes lane buffer `index` of `numel` elements; buffer 0 is open to peers on the same host, which
 * write sums to it. */
DPT_MUST_USE enum dpt_status dpt_host_reducer_buffer_create(struct dpt_comm_listener *listener,
                                                            int index, int64_t numel,
                                                            struct dpt_comm_mem **ret,
                                                            struct dpt_err *err);

/* Allocates everything that one generation needs, before its communicator is opened; nothing is
 * allocated later. */
DPT_MUST_USE enum dpt_status dpt_host_reducer_create(const struct dpt_host_reducer_spec *spec,
                                                     struct dpt_reducer **ret, struct dpt_err *err);

#endif
