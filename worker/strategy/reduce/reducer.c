/* What reducers have in common (reducer.h). */
#include "worker/strategy/reduce/reducer.h"

void dpt_reducer_destroy(struct dpt_reducer **reducer)
{
    if (*reducer)
        (*reducer)->ops->destroy(*reducer);
    *reducer = NULL;
}

bool dpt_reducer_begin(struct dpt_reducer *r, int64_t step)
{
    return r->ops->begin(r, step);
}

enum dpt_status dpt_reducer_ready(struct dpt_reducer *r, int bucket, struct dpt_err *err)
{
    return r->ops->ready(r, bucket, err);
}

struct one_bucket {
    struct dpt_reducer *reducer;
    int bucket;
};

static enum dpt_status job_one_bucket(struct dpt_comm_thread *thread, void *ctx,
                                      struct dpt_err *err)
{
    const struct one_bucket *one = ctx;
    return one->reducer->ops->run_buckets(one->reducer, thread, one->bucket, one->bucket + 1, err);
}

enum dpt_status dpt_reducer_run(struct dpt_reducer *r, int bucket, struct dpt_err *err)
{
    struct one_bucket one = {r, bucket};
    DPT_TRY(r->ops->ready(r, bucket, err));
    return r->world_size == 1 ? DPT_OK : dpt_comm_thread_run(r->thread, job_one_bucket, &one, err);
}

enum dpt_status dpt_reducer_job(struct dpt_comm_thread *thread, void *ctx, struct dpt_err *err)
{
    struct dpt_reducer *r = ctx;
    return r->ops->run_buckets(r, thread, 0, r->n_buckets, err);
}

void dpt_reducer_post(struct dpt_reducer *r)
{
    r->posted = r->world_size > 1;
    if (r->posted)
        dpt_comm_thread_post(r->thread, dpt_reducer_job, r);
}

enum dpt_status dpt_reducer_finish(struct dpt_reducer *r, struct dpt_err *err)
{
    const bool posted = r->posted;
    r->posted = false;
    if (posted)
        DPT_TRY(dpt_comm_thread_wait(r->thread, err));
    return r->ops->finish ? r->ops->finish(r, err) : DPT_OK;
}

int64_t dpt_reducer_bytes_sent(const struct dpt_reducer *r)
{
    struct dpt_strategy_cost cost = {.sent_bytes = 0};
    r->ops->cost(r, &cost);
    return cost.sent_bytes;
}
