/* Canonical all-reduce of a step's gradient, bucket by bucket, beside the computation.
 *
 * The main thread brings each rank's subtree sums into the lane buffers and says which buckets are
 * complete; a job on the communication thread moves them: stage 1 inside the host, stage 2 between
 * hosts, ordered sum by the piece's owner, all-gather. Inside one host a bucket goes round in
 * chunks, between hosts it is one. All ranks post in one fixed order (S1 of chunk c, S2 of c-1,
 * all-gather of c-2), so matching never depends on who is faster. At the end buffer 0 holds the
 * whole reduced gradient on every rank; or, of shards, there is no all-gather, and buffer 0 holds
 * this rank's. */
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
    size_t piece_bytes;            /* of a chunk inside one host, about; 0: as fits the caches */
    int rank, host;
    /* What every sum is rounded to, and goes to other hosts in; DPT_F32: nothing is rounded. What
     * the buffers hold at the beginning has been rounded. */
    enum dpt_dtype wire;
    /* Each bucket is a unit, and its sum stays with the ranks whose shards of it are its pieces:
     * rank r of n has piece r of n of every bucket. */
    bool shards;
};

/* Lane buffers a rank needs in this world: its own lanes' stack, and what its host's sums need. */
int dpt_reducer_buffers(const struct dpt_world *world, int position);

/* Makes lane buffer `index` of `numel` elements; buffer 0 is open to the peers of the host, who
 * write the sums there. */
DPT_MUST_USE enum dpt_status dpt_reducer_buffer_create(struct dpt_comm_listener *listener,
                                                       int index, int64_t numel,
                                                       struct dpt_comm_mem **ret,
                                                       struct dpt_err *err);

/* Makes everything one generation needs, before its communicator; nothing is allocated later. */
DPT_MUST_USE enum dpt_status dpt_reducer_create(const struct dpt_reducer_spec *spec,
                                                struct dpt_reducer **ret, struct dpt_err *err);

/* After the communicator is closed. */
void dpt_reducer_destroy(struct dpt_reducer **reducer);

/* A new step: no bucket is ready. Posts the job (world size > 1). */
void dpt_reducer_begin(struct dpt_reducer *reducer);
/* The same without posting: the caller runs dpt_reducer_job in a job of its own. */
void dpt_reducer_reset(struct dpt_reducer *reducer);

/* Bucket `bucket`'s range of this rank's subtree sums is final. By the main thread. */
void dpt_reducer_ready(struct dpt_reducer *reducer, int bucket);

/* Instead of begin, ready and wait: reduces one bucket, and returns when its sum is here. Begins
 * with reset. */
DPT_MUST_USE enum dpt_status dpt_reducer_run(struct dpt_reducer *reducer, int bucket,
                                             struct dpt_err *err);

/* The job itself, a dpt_comm_job with the reducer as its context: for who is on the communication
 * thread already and has said that all buckets are ready. */
DPT_MUST_USE enum dpt_status dpt_reducer_job(struct dpt_comm_thread *thread, void *ctx,
                                             struct dpt_err *err);

/* Bytes that this rank sends in a step. */
int64_t dpt_reducer_bytes_sent(const struct dpt_reducer *reducer);

/* Waits until buffer 0 holds the reduced gradient: all of it, or this rank's shards. */
DPT_MUST_USE enum dpt_status dpt_reducer_wait(struct dpt_reducer *reducer, struct dpt_err *err);

#endif
