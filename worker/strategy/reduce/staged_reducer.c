/* Through the hosts' memory (staged_reducer.h). */
#include "worker/strategy/reduce/staged_reducer.h"

#include <stdlib.h>

struct staged_reducer {
    struct dpt_reducer base;
    struct dpt_staged_reducer_spec spec;
    struct dpt_reducer *inner;
};

static struct staged_reducer *staged_of(struct dpt_reducer *reducer)
{
    return (struct staged_reducer *)reducer;
}

static float *host_buffer(const struct staged_reducer *r, int i)
{
    return dpt_comm_mem_data(r->spec.host.buffers[i]);
}

static bool staged_begin(struct dpt_reducer *reducer, int64_t step)
{
    return dpt_reducer_begin(staged_of(reducer)->inner, step);
}

static enum dpt_status staged_ready(struct dpt_reducer *reducer, int bucket, struct dpt_err *err)
{
    struct staged_reducer *r = staged_of(reducer);
    const struct dpt_bucket *b = &r->spec.host.buckets[bucket];
    const size_t bytes = (size_t)(b->end - b->first) * sizeof(float);
    for (int i = 0; i < r->spec.n_sums; i++)
        r->spec.ops->copy(r->spec.stream, bytes, r->spec.on_device[i] + b->first,
                          host_buffer(r, i) + b->first);
    DPT_TRY(dpt_stream_sync(r->spec.stream, err));
    return dpt_reducer_ready(r->inner, bucket, err);
}

static enum dpt_status staged_run_buckets(struct dpt_reducer *reducer,
                                          struct dpt_comm_thread *thread, int first, int end,
                                          struct dpt_err *err)
{
    struct dpt_reducer *inner = staged_of(reducer)->inner;
    return inner->ops->run_buckets(inner, thread, first, end, err);
}

static enum dpt_status staged_finish(struct dpt_reducer *reducer, struct dpt_err *err)
{
    struct staged_reducer *r = staged_of(reducer);
    DPT_TRY(dpt_reducer_finish(r->inner, err));
    r->spec.ops->copy(r->spec.stream, (size_t)r->spec.numel * sizeof(float), host_buffer(r, 0),
                      r->spec.on_device[0]);
    return DPT_OK;
}

static void staged_cost(const struct dpt_reducer *reducer, struct dpt_strategy_cost *cost)
{
    const struct staged_reducer *r = (const struct staged_reducer *)reducer;
    r->inner->ops->cost(r->inner, cost);
}

static void staged_destroy(struct dpt_reducer *reducer)
{
    struct staged_reducer *r = staged_of(reducer);
    dpt_reducer_destroy(&r->inner);
    free(r);
}

static const struct dpt_reducer_ops staged_reducer = {.destroy = staged_destroy,
                                                      .begin = staged_begin,
                                                      .ready = staged_ready,
                                                      .run_buckets = staged_run_buckets,
                                                      .finish = staged_finish,
                                                      .cost = staged_cost};

enum dpt_status dpt_staged_reducer_create(const struct dpt_staged_reducer_spec *spec,
                                          struct dpt_reducer **ret, struct dpt_err *err)
{
    struct staged_reducer *r = calloc(1, sizeof *r);
    if (!r)
        return dpt_fail_nomem(err, "all-reduce");
    r->base = (struct dpt_reducer){.ops = &staged_reducer,
                                   .thread = spec->host.thread,
                                   .n_buckets = spec->host.n_buckets,
                                   .world_size = spec->host.world->size};
    r->spec = *spec;
    const enum dpt_status status = dpt_host_reducer_create(&spec->host, &r->inner, err);
    if (status != DPT_OK)
        staged_destroy(&r->base);
    else
        *ret = &r->base;
    return status;
}
