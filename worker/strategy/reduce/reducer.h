/* Adds the sums of lanes of all ranks to the gradient of the step, bucket by bucket, beside the
 * computation. One interface, with these implementations:
 *   host_reducer.h    in the hosts' memory: shared memory and sockets
 *   ring_reducer.h    in the hosts' memory, from each rank to the next one
 *   nccl_reducer.h    from GPU to GPU
 *   staged_reducer.h  from GPUs through the hosts' memory
 *   powersgd.h        approximated by matrices of low rank
 *
 * The calls of a step: begin; ready for each bucket when its sums are final; finish. At the same
 * time or afterwards dpt_reducer_job runs on the communication thread. Instead of ready and the
 * job, the caller may call run for each bucket. Buffer 0 of the rank's lanes (struct
 * strategy_lanes of strategy_internal.h) then has the sum: the whole sum, or this rank's shards.
 * The main thread calls everything but the job. */
#ifndef DPT_WORKER_STRATEGY_REDUCE_REDUCER_H
#define DPT_WORKER_STRATEGY_REDUCE_REDUCER_H

#include "worker/plan/buckets.h"
#include "worker/strategy/strategy.h"

#include <stdatomic.h>

struct dpt_reducer;

struct dpt_reducer_ops {
    /* Frees the reducer's resources apart from the struct and `inner`; NULL: there are none. */
    void (*release)(struct dpt_reducer *reducer);
    /* Marks all buckets as not ready. Returns whether this step's buckets are reduced one by one;
     * if not, finish reduces everything, and there is no job. */
    bool (*begin)(struct dpt_reducer *reducer, int64_t step);
    /* Tells that the work posted to the main thread's stream so far completes the bucket's range of
     * this rank's sums. */
    enum dpt_status (*ready)(struct dpt_reducer *reducer, int bucket, struct dpt_err *err);
    /* On the communication thread: reduces buckets [first, end), each when it is ready. */
    enum dpt_status (*run_buckets)(struct dpt_reducer *reducer, struct dpt_comm_thread *thread,
                                   int first, int end, struct dpt_err *err);
    enum dpt_status (*finish)(struct dpt_reducer *reducer, struct dpt_err *err); /* or NULL */
    void (*cost)(const struct dpt_reducer *reducer, struct dpt_strategy_cost *cost);
};

/* The buckets that a generation reduces, and its ranks. All borrowed for the reducer's life. */
struct dpt_reducer_spec {
    struct dpt_comm_thread *thread;
    struct dpt_stream *stream;        /* the communication thread's own */
    const struct dpt_bucket *buckets; /* of the flat gradient */
    int n_buckets;
    int64_t block; /* a bucket is cut into a piece for each rank in whole blocks */
    const struct dpt_world *world;
    int rank;
    /* The dtype to which every sum is rounded, and in which sums are sent to other hosts; DPT_F32:
     * no rounding. The values in the buffers at the beginning are already rounded. */
    enum dpt_dtype wire;
    /* True: each bucket is a unit, and the sum of a piece stays with its owner; rank r of n owns
     * piece r of n of every bucket. False: all ranks get all sums. */
    bool shards;
};

/* Every reducer starts with this. */
struct dpt_reducer {
    const struct dpt_reducer_ops *ops;
    struct dpt_reducer_spec of;
    /* Owned, or NULL. Carries out those of begin, run_buckets and cost that are NULL in `ops`. */
    struct dpt_reducer *inner;
    atomic_int *ready; /* [of.n_buckets] of dpt_reducer_alloc_ready, or NULL; owned */
    bool posted;
};

/* Call it after the communicator is closed. */
void dpt_reducer_destroy(struct dpt_reducer **reducer);
bool dpt_reducer_begin(struct dpt_reducer *reducer, int64_t step);
DPT_MUST_USE enum dpt_status dpt_reducer_ready(struct dpt_reducer *reducer, int bucket,
                                               struct dpt_err *err);
/* Marks the bucket as ready, and returns when this rank has the bucket's sum. */
DPT_MUST_USE enum dpt_status dpt_reducer_run(struct dpt_reducer *reducer, int bucket,
                                             struct dpt_err *err);
/* A dpt_comm_job with the reducer as its context. */
DPT_MUST_USE enum dpt_status dpt_reducer_job(struct dpt_comm_thread *thread, void *ctx,
                                             struct dpt_err *err);
/* Posts the job if the world has several ranks; finish then waits for it. */
void dpt_reducer_post(struct dpt_reducer *reducer);
DPT_MUST_USE enum dpt_status dpt_reducer_finish(struct dpt_reducer *reducer, struct dpt_err *err);
/* Adds to `cost` the bytes that this rank sends in a step, and the bytes of gradients that the
 * reducer holds. */
void dpt_reducer_cost(const struct dpt_reducer *reducer, struct dpt_strategy_cost *cost);
int64_t dpt_reducer_bytes_sent(const struct dpt_reducer *reducer);

/* For reducers of the hosts' memory. A flag for each bucket, which the main thread sets when the
 * bucket is ready, and for which the communication thread waits. */
DPT_MUST_USE enum dpt_status dpt_reducer_alloc_ready(struct dpt_reducer *reducer,
                                                     struct dpt_err *err);
/* Their begin and ready of struct dpt_reducer_ops. */
bool dpt_reducer_clear_ready(struct dpt_reducer *reducer, int64_t step);
DPT_MUST_USE enum dpt_status dpt_reducer_set_ready(struct dpt_reducer *reducer, int bucket,
                                                   struct dpt_err *err);
/* Waits until the main thread has completed `bucket`. Transfers in flight go on meanwhile. */
DPT_MUST_USE enum dpt_status dpt_reducer_await_ready(const struct dpt_reducer *reducer,
                                                     struct dpt_comm *comm, int bucket,
                                                     struct dpt_err *err);
/* Traces the reduction of a bucket, which ends now. No effect if began_ns is 0. */
void dpt_reducer_trace_bucket(const struct dpt_reducer *reducer, int64_t began_ns, int bucket);

#endif
