/* Memory of a generation, and its small exchanges (generation.h). */
#include "worker/train/state/generation.h"

#include "worker/trace/span.h"
#include "worker/train/state/generation_history.h"
#include "worker/train/state/outcome.h"

#include <stdlib.h>
#include <string.h>

enum { INT_LISTS = 6 };

enum dpt_status generation_alloc(struct generation *g, struct dpt_err *err)
{
    const size_t n = (size_t)g->world_size;
    int *lists = calloc(n * INT_LISTS, sizeof *lists);
    g->peers = calloc(n, sizeof *g->peers);
    g->takes_state = calloc(n, sizeof *g->takes_state);
    g->shards = calloc(n, sizeof *g->shards);
    g->writer_shards = calloc((size_t)g->checkpoint_writers + 1, sizeof *g->writer_shards);
    g->of_position.rank = lists;
    if (!lists || !g->peers || !g->takes_state || !g->shards || !g->writer_shards)
        return dpt_fail_nomem(err, "plan of generation %llu", (unsigned long long)g->number);
    g->of_position.host = lists + n;
    g->of_position.node = lists + 2 * n;
    g->of_position.rack = lists + 3 * n;
    g->host_of_rank = lists + 4 * n;
    g->node_of_rank = lists + 5 * n;
    return DPT_OK;
}

enum dpt_status generation_alloc_gathered(struct generation *g, struct dpt_err *err)
{
    const size_t contribution = dpt_contribution_bytes(g->slots_max);
    g->gathered_bytes =
        contribution > sizeof(struct dpt_history) ? contribution : sizeof(struct dpt_history);
    g->gathered = malloc((size_t)g->world_size * g->gathered_bytes);
    return g->gathered
               ? DPT_OK
               : dpt_fail_nomem(err, "exchanges of generation %llu", (unsigned long long)g->number);
}

void generation_free(struct generation *g)
{
    free(g->of_position.rank); /* the other lists of numbers are in the same memory */
    free(g->peers);
    free(g->takes_state);
    free(g->shards);
    free(g->writer_shards);
    free(g->gathered);
    *g = (struct generation){.number = 0};
}

struct gather {
    const void *mine;
    size_t bytes;
    void *all;
};

static enum dpt_status job_gather(struct dpt_comm_thread *thread, void *ctx, struct dpt_err *err)
{
    const struct gather *gather = ctx;
    struct dpt_comm *comm = dpt_comm_thread_comm(thread);
    const int64_t began_ns = dpt_trace_begin(), bytes = (int64_t)gather->bytes,
                  ranks = dpt_comm_world_size(comm);
    const enum dpt_status status =
        dpt_comm_small_all_gather(comm, gather->mine, gather->bytes, gather->all, err);
    dpt_trace_end(began_ns, &(struct dpt_trace_span){.kind = DPT_TRACE_COLLECTIVE,
                                                     .collective = DPT_TRACE_ALL_GATHER,
                                                     .dtype = "Byte",
                                                     .key = {DPT_TRACE_COLLECTIVE_KEYS},
                                                     .value = {bytes, bytes * ranks, ranks}});
    return status;
}

enum dpt_status generation_all_gather(struct generation *g, struct dpt_comm_thread *thread,
                                      const void *mine, size_t bytes, struct dpt_err *err)
{
    struct gather gather = {.mine = mine, .bytes = bytes, .all = g->gathered};
    DPT_ASSERT(bytes <= g->gathered_bytes);
    if (g->world_size > 1)
        return dpt_comm_thread_run(thread, job_gather, &gather, err);
    memcpy(g->gathered, mine, bytes);
    return DPT_OK;
}

int generation_state_source(const struct generation *g)
{
    int source = 0;
    while (g->takes_state[source])
        source++;
    return source;
}

const char *generation_redundancy(const struct generation *g)
{
    return g->redundancy.rebuilding ? "rebuilding" : g->redundancy.whole ? "whole" : "none";
}
