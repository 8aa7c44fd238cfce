/* How the sums of lanes of all ranks become the gradient of the step, bucket by bucket, beside the
 * computation. One interface, and what carries it out:
 *   host_reducer.h    in the hosts' memory: shared memory and sockets
 *   nccl_reducer.h    from GPU to GPU
 *   staged_reducer.h  from GPUs through the hosts' memory
 *   powersgd.h        approximated by matrices of low rank
 *
 * A step: begin; ready for each bucket as it becomes final; meanwhile, or afterwards,
 * dpt_reducer_job on the communication thread; finish. Or run for each bucket in place of ready and
 * the job. Buffer 0 of the rank's lanes (lane_buffers.h) then holds the sum: all of it, or this
 * rank's shards. All but the job by the main thread. */
#ifndef DPT_WORKER_STRATEGY_REDUCE_REDUCER_H
#define DPT_WORKER_STRATEGY_REDUCE_REDUCER_H

#include "worker/strategy/strategy.h"

struct dpt_reducer;

struct dpt_reducer_ops {
    /* After the communicator is closed. */
    void (*destroy)(struct dpt_reducer *reducer);
    /* No bucket is ready. Returns whether this step's buckets are reduced one by one; if not, all
     * is done by finish, and there is no job. */
    bool (*begin)(struct dpt_reducer *reducer, int64_t step);
    /* What the main thread's stream was given up to here makes the bucket's range of this rank's
     * sums final. */
    enum dpt_status (*ready)(struct dpt_reducer *reducer, int bucket, struct dpt_err *err);
    /* On the communication thread: buckets [first, end), from their readiness to their sums. */
    enum dpt_status (*run_buckets)(struct dpt_reducer *reducer, struct dpt_comm_thread *thread,
                                   int first, int end, struct dpt_err *err);
    enum dpt_status (*finish)(struct dpt_reducer *reducer, struct dpt_err *err); /* or NULL */
    /* Adds the bytes that this rank sends in a step, and of gradients that the reducer holds. */
    void (*cost)(const struct dpt_reducer *reducer, struct dpt_strategy_cost *cost);
};

/* Every reducer starts with this. */
struct dpt_reducer {
    const struct dpt_reducer_ops *ops;
    struct dpt_comm_thread *thread;
    int n_buckets, world_size;
    bool posted;
};

void dpt_reducer_destroy(struct dpt_reducer **reducer);
bool dpt_reducer_begin(struct dpt_reducer *reducer, int64_t step);
DPT_MUST_USE enum dpt_status dpt_reducer_ready(struct dpt_reducer *reducer, int bucket,
                                               struct dpt_err *err);
/* Ready, and returns when the bucket's sum is here. */
DPT_MUST_USE enum dpt_status dpt_reducer_run(struct dpt_reducer *reducer, int bucket,
                                             struct dpt_err *err);
/* A dpt_comm_job with the reducer as its context. */
DPT_MUST_USE enum dpt_status dpt_reducer_job(struct dpt_comm_thread *thread, void *ctx,
                                             struct dpt_err *err);
/* Posts the job, in a world of several; finish then waits for it. */
void dpt_reducer_post(struct dpt_reducer *reducer);
DPT_MUST_USE enum dpt_status dpt_reducer_finish(struct dpt_reducer *reducer, struct dpt_err *err);
int64_t dpt_reducer_bytes_sent(const struct dpt_reducer *reducer);

#endif
