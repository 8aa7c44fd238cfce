/* The reducer through the hosts' memory (staged_reducer.h). */
#include "worker/strategy/reduce/staged_reducer.h"

#include <stdlib.h>

struct staged_reducer {
    struct dpt_reducer base;
    struct dpt_staged_reducer_spec spec;
};

static struct staged_reducer *staged_of(struct dpt_reducer *reducer)
{
    return (struct staged_reducer *)reducer;
}

static float *host_buffer(const struct staged_reducer *r, int i)
{
    return dpt_comm_mem_data(r->spec.host.buffers[i]);
}

static enum dpt_status staged_ready(struct dpt_reducer *reducer, int bucket, struct dpt_err *err)
{
    struct staged_reducer *r = staged_of(reducer);
    const struct dpt_bucket *b = &reducer->of.buckets[bucket];
    const size_t bytes = (size_t)(b->end - b->first) * sizeof(float);
    for (int i = 0; i < r->spec.n_sums; i++)
        r->spec.ops->copy(r->spec.stream, bytes, r->spec.on_device[i] + b->first,
                          host_buffer(r, i) + b->first);
    DPT_TRY(dpt_stream_sync(r->spec.stream, err));
    return dpt_reducer_ready(reducer->inner, bucket, err);
}

static enum dpt_status staged_finish(struct dpt_reducer *reducer, struct dpt_err *err)
{
    struct staged_reducer *r = staged_of(reducer);
    DPT_TRY(dpt_reducer_finish(reducer->inner, err));
    r->spec.ops->copy(r->spec.stream, (size_t)r->spec.numel * sizeof(float), host_buffer(r, 0),
                      r->spec.on_device[0]);
    return DPT_OK;
}

static const struct dpt_reducer_ops staged_reducer = {.ready = staged_ready,
                                                      .finish = staged_finish};

enum dpt_status dpt_staged_reducer_create(const struct dpt_staged_reducer_spec *spec,
                                          struct dpt_reducer **ret, struct dpt_err *err)
{
    struct staged_reducer *r = calloc(1, sizeof *r);
    if (!r)
        return dpt_fail_nomem(err, "all-reduce");
    r->base = (struct dpt_reducer){.ops = &staged_reducer, .of = spec->host.of};
    r->spec = *spec;
    struct dpt_reducer *base = &r->base;
    const enum dpt_status status = dpt_host_reducer_create(&spec->host, &base->inner, err);
    if (status != DPT_OK)
        dpt_reducer_destroy(&base);
    else
        *ret = base;
    return status;
}
