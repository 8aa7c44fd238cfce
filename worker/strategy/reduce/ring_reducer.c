/* The ring all-reduce of training (ring_reducer.h). */
#include "worker/strategy/reduce/ring_reducer.h"

#include "worker/strategy/transport/pattern_run.h"
#include "worker/trace/present_work.h"
#include "worker/trace/span.h"

#include <stdlib.h>

static const int64_t part_numel = DPT_PATTERN_RUN_PART_BYTES / (int64_t)sizeof(float);

struct ring_reducer {
    struct dpt_reducer base;
    struct dpt_pattern pattern; /* this rank's moves */
    struct dpt_pattern_run *run;
    struct dpt_comm_mem *staging;
};

static struct ring_reducer *ring_of(struct dpt_reducer *reducer)
{
    return (struct ring_reducer *)reducer;
}

static enum dpt_status plan_ring(const struct dpt_reducer_spec *of, struct dpt_pattern *ret,
                                 struct dpt_err *err)
{
    const struct dpt_pattern_spec spec = {.collective = DPT_COLLECTIVE_ALL_REDUCE,
                                          .algorithm = DPT_ALGORITHM_RING,
                                          .world = of->world,
                                          .of_rank = true,
                                          .rank = of->rank};
    return dpt_pattern_init(ret, &spec, err);
}

static int64_t largest_bucket(const struct dpt_reducer_spec *of)
{
    int64_t most = 0;
    for (int b = 0; b < of->n_buckets; b++) {
        const int64_t numel = of->buckets[b].end - of->buckets[b].first;
        most = numel > most ? numel : most;
    }
    return most;
}

enum dpt_status dpt_ring_reducer_bytes(const struct dpt_reducer_spec *of, size_t *ret_bytes,
                                       struct dpt_err *err)
{
    struct dpt_pattern pattern;
    const enum dpt_status status = plan_ring(of, &pattern, err);
    if (status == DPT_OK)
        *ret_bytes = dpt_pattern_run_staging(&pattern, of->rank, largest_bucket(of), part_numel);
    dpt_pattern_fini(&pattern);
    return status;
}

static enum dpt_status ring_run_buckets(struct dpt_reducer *reducer, struct dpt_comm_thread *thread,
                                        int first, int end, struct dpt_err *err)
{
    struct ring_reducer *r = ring_of(reducer);
    struct dpt_comm *comm = dpt_comm_thread_comm(thread);
    for (int b = first; b < end; b++) {
        const struct dpt_bucket *bucket = &r->base.of.buckets[b];
        DPT_TRY(dpt_reducer_await_ready(reducer, comm, b, err));
        dpt_present_work_note(DPT_WORK_ALL_REDUCE, b, -1);
        const int64_t began_ns = dpt_trace_begin();
        DPT_TRY(dpt_pattern_run_once(r->run, comm,
                                     (struct dpt_interval){bucket->first, bucket->end}, err));
        dpt_reducer_trace_bucket(reducer, began_ns, b);
    }
    return DPT_OK;
}

static void ring_cost(const struct dpt_reducer *reducer, struct dpt_strategy_cost *cost)
{
    const struct ring_reducer *r = (const struct ring_reducer *)reducer;
    for (int b = 0; b < r->base.of.n_buckets; b++)
        cost->sent_bytes +=
            dpt_pattern_run_sent(r->run, r->base.of.buckets[b].end - r->base.of.buckets[b].first);
}

static void ring_release(struct dpt_reducer *reducer)
{
    struct ring_reducer *r = ring_of(reducer);
    dpt_pattern_run_destroy(&r->run);
    dpt_comm_mem_destroy(&r->staging);
    dpt_pattern_fini(&r->pattern);
}

static const struct dpt_reducer_ops ring_reducer = {.release = ring_release,
                                                    .begin = dpt_reducer_clear_ready,
                                                    .ready = dpt_reducer_set_ready,
                                                    .run_buckets = ring_run_buckets,
                                                    .cost = ring_cost};

static enum dpt_status make_ring_reducer(struct ring_reducer *r,
                                         const struct dpt_ring_reducer_spec *spec,
                                         struct dpt_err *err)
{
    const int64_t most = largest_bucket(&r->base.of);
    DPT_TRY(dpt_reducer_alloc_ready(&r->base, err));
    DPT_TRY(plan_ring(&r->base.of, &r->pattern, err));
    const size_t bytes = dpt_pattern_run_staging(&r->pattern, r->base.of.rank, most, part_numel);
    if (bytes > 0)
        DPT_TRY(dpt_comm_mem_create(spec->listener, bytes, &r->staging, err));
    const struct dpt_pattern_run_spec run = {.pattern = &r->pattern,
                                             .rank = r->base.of.rank,
                                             .numel_max = most,
                                             .part_numel = part_numel,
                                             .from = spec->buffer,
                                             .to = spec->buffer,
                                             .staging = r->staging,
                                             .ops = spec->ops,
                                             .stream = r->base.of.stream};
    return dpt_pattern_run_create(&run, &r->run, err);
}

enum dpt_status dpt_ring_reducer_create(const struct dpt_ring_reducer_spec *spec,
                                        struct dpt_reducer **ret, struct dpt_err *err)
{
    DPT_ASSERT(spec->of.wire == DPT_F32 && !spec->of.shards);
    struct ring_reducer *r = calloc(1, sizeof *r);
    if (!r)
        return dpt_fail_nomem(err, "all-reduce");
    r->base = (struct dpt_reducer){.ops = &ring_reducer, .of = spec->of};
    struct dpt_reducer *base = &r->base;
    const enum dpt_status status = make_ring_reducer(r, spec, err);
    if (status != DPT_OK)
        dpt_reducer_destroy(&base);
    else
        *ret = base;
    return status;
}
