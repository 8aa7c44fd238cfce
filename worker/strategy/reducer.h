/* Canonical all-reduce of a step's gradient, bucket by bucket, beside the computation.
 *
 * The main thread brings each rank's subtree sums into the lane buffers and says which buckets are
 * complete; a job on the communication thread moves them: stage 1 inside the host, stage 2 between
 * hosts, ordered sum by the piece's owner, all-gather. All ranks post in one fixed order (S1 of
 * bucket b, S2 of b-1, all-gather of b-2), so matching never depends on who is faster. At the end
 * buffer 0 holds the whole reduced gradient on every rank. */
#ifndef DPT_WORKER_STRATEGY_REDUCER_H
#define DPT_WORKER_STRATEGY_REDUCER_H

#include "kernels/ops.h"
#include "worker/plan/buckets.h"
#include "worker/plan/reduce.h"
#include "worker/strategy/comm_thread.h"

struct dpt_reducer;

struct dpt_reducer_spec {
    const struct dpt_ops *ops;
    struct dpt_stream *stream; /* the communication thread's own */
    struct dpt_comm_thread *thread;
    struct dpt_comm_listener *listener; /* for registered staging memory */
    const struct dpt_bucket *buckets;   /* borrowed */
    int n_buckets;
    int64_t block;
    struct dpt_comm_mem *const
        *buffers;  /* [n_buffers] lane buffers of the whole flat gradient; borrowed */
    int n_buffers; /* >= dpt_reducer_buffers() of the same world */
    const struct dpt_world *world; /* borrowed */
    int rank, host;
};

/* Lane buffers a rank needs in this world: its own lanes' stack, and what its host's sums need. */
int dpt_reducer_buffers(const struct dpt_world *world, int position);

/* Makes everything one generation needs, before its communicator; nothing is allocated later. */
DPT_MUST_USE enum dpt_status dpt_reducer_create(const struct dpt_reducer_spec *spec,
                                                struct dpt_reducer **ret, struct dpt_err *err);

/* After the communicator is closed. */
void dpt_reducer_destroy(struct dpt_reducer **reducer);

/* A new step: no bucket is ready. Posts the job (world size > 1). */
void dpt_reducer_begin(struct dpt_reducer *reducer);

/* Bucket `bucket`'s range of this rank's subtree sums is final. By the main thread. */
void dpt_reducer_ready(struct dpt_reducer *reducer, int bucket);

/* Waits until buffer 0 holds the reduced gradient. */
DPT_MUST_USE enum dpt_status dpt_reducer_wait(struct dpt_reducer *reducer, struct dpt_err *err);

#endif
