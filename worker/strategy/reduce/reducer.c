/* The code that all reducers share (reducer.h). */
#include "worker/strategy/reduce/reducer.h"

#include "worker/trace/present_work.h"
#include "worker/trace/span.h"

#include <stdlib.h>

void dpt_reducer_destroy(struct dpt_reducer **reducer)
{
    struct dpt_reducer *r = *reducer;
    if (!r)
        return;
    dpt_reducer_destroy(&r->inner);
    if (r->ops->release)
        r->ops->release(r);
    free(r->ready);
    free(r);
    *reducer = NULL;
}

bool dpt_reducer_begin(struct dpt_reducer *r, int64_t step)
{
    return r->ops->begin ? r->ops->begin(r, step) : dpt_reducer_begin(r->inner, step);
}

enum dpt_status dpt_reducer_ready(struct dpt_reducer *r, int bucket, struct dpt_err *err)
{
    return r->ops->ready(r, bucket, err);
}

static enum dpt_status reduce_buckets(struct dpt_reducer *r, struct dpt_comm_thread *thread,
                                      int first, int end, struct dpt_err *err)
{
    return r->ops->run_buckets ? r->ops->run_buckets(r, thread, first, end, err)
                               : reduce_buckets(r->inner, thread, first, end, err);
}

struct one_bucket {
    struct dpt_reducer *reducer;
    int bucket;
};

static enum dpt_status job_one_bucket(struct dpt_comm_thread *thread, void *ctx,
                                      struct dpt_err *err)
{
    const struct one_bucket *one = ctx;
    return reduce_buckets(one->reducer, thread, one->bucket, one->bucket + 1, err);
}

enum dpt_status dpt_reducer_run(struct dpt_reducer *r, int bucket, struct dpt_err *err)
{
    struct one_bucket one = {r, bucket};
    DPT_TRY(dpt_reducer_ready(r, bucket, err));
    return r->of.world->size == 1 ? DPT_OK
                                  : dpt_comm_thread_run(r->of.thread, job_one_bucket, &one, err);
}

enum dpt_status dpt_reducer_job(struct dpt_comm_thread *thread, void *ctx, struct dpt_err *err)
{
    struct dpt_reducer *r = ctx;
    return reduce_buckets(r, thread, 0, r->of.n_buckets, err);
}

void dpt_reducer_post(struct dpt_reducer *r)
{
    r->posted = r->of.world->size > 1;
    if (r->posted)
        dpt_comm_thread_post(r->of.thread, dpt_reducer_job, r);
}

enum dpt_status dpt_reducer_finish(struct dpt_reducer *r, struct dpt_err *err)
{
    const bool posted = r->posted;
    r->posted = false;
    if (posted)
        DPT_TRY(dpt_comm_thread_wait(r->of.thread, err));
    return r->ops->finish ? r->ops->finish(r, err) : DPT_OK;
}

void dpt_reducer_cost(const struct dpt_reducer *r, struct dpt_strategy_cost *cost)
{
    while (!r->ops->cost)
        r = r->inner;
    r->ops->cost(r, cost);
}

int64_t dpt_reducer_bytes_sent(const struct dpt_reducer *r)
{
    struct dpt_strategy_cost cost = {.sent_bytes = 0};
    dpt_reducer_cost(r, &cost);
    return cost.sent_bytes;
}

/* ---- the flags of buckets ---- */

enum dpt_status dpt_reducer_alloc_ready(struct dpt_reducer *r, struct dpt_err *err)
{
    r->ready = calloc((size_t)r->of.n_buckets, sizeof *r->ready);
    return r->ready ? DPT_OK : dpt_fail_nomem(err, "all-reduce");
}

bool dpt_reducer_clear_ready(struct dpt_reducer *r, int64_t step)
{
    (void)step;
    for (int b = 0; b < r->of.n_buckets; b++)
        atomic_store_explicit(&r->ready[b], 0, memory_order_relaxed);
    return true;
}

enum dpt_status dpt_reducer_set_ready(struct dpt_reducer *r, int bucket, struct dpt_err *err)
{
    (void)err;
    atomic_store_explicit(&r->ready[bucket], 1, memory_order_release);
    if (r->of.world->size > 1)
        dpt_comm_thread_wake(r->of.thread);
    return DPT_OK;
}

enum dpt_status dpt_reducer_await_ready(const struct dpt_reducer *r, struct dpt_comm *comm,
                                        int bucket, struct dpt_err *err)
{
    while (!atomic_load_explicit(&r->ready[bucket], memory_order_acquire)) {
        dpt_present_work_note(DPT_WORK_AWAIT_OWN, bucket, -1);
        const enum dpt_status status = dpt_comm_poll_woken(comm, -1, err);
        if (status != DPT_INPROGRESS)
            return status;
    }
    return DPT_OK;
}

void dpt_reducer_trace_bucket(const struct dpt_reducer *r, int64_t began_ns, int bucket)
{
    const int64_t ranks = r->of.world->size,
                  numel = r->of.buckets[bucket].end - r->of.buckets[bucket].first;
    dpt_trace_end(began_ns,
                  &(struct dpt_trace_span){
                      .kind = DPT_TRACE_COLLECTIVE,
                      .collective = r->of.shards ? DPT_TRACE_REDUCE_SCATTER : DPT_TRACE_ALL_REDUCE,
                      .dtype = "Float",
                      .key = {DPT_TRACE_COLLECTIVE_KEYS, "bucket"},
                      .value = {numel, r->of.shards ? numel / ranks : numel, ranks, bucket}});
}
