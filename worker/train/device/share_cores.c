/* The number of threads that a rank computes with: cluster.threads, or its share of the host's
 * cores in this generation. The bits of a result do not depend on it. */
#include "worker/plan/rank_threads.h"

#include "base/cores.h"
#include "base/log.h"
#include "worker/train/device/rank_device.h"

#include <limits.h>
#include <stdlib.h>

enum dpt_status rank_open_stream(struct dpt_rank *r, struct dpt_err *err)
{
    const int asked = r->options->start->threads;
    const int cores = dpt_cores();
    const int threads = asked > 0                        ? asked
                        : cores < DPT_STREAM_THREADS_MAX ? cores
                                                         : DPT_STREAM_THREADS_MAX;
    DPT_TRY(dpt_stream_create(r->device->host, threads, &r->device->stream, err));
    r->device->threads_max = threads;
    /* rank_share_cores prepares memory for more threads if a generation gives them to this rank. */
    r->device->threads = r->device->threads_prepared = asked > 0 ? asked : 1;
    dpt_stream_set_threads(r->device->stream, r->device->threads);
    return DPT_OK;
}

/* The message of a rank about the cores that it may use. */
struct cores_share {
    uint64_t id; /* id of the set of cores */
    int64_t cores, asked;
};

static enum dpt_status exchange_cores(struct dpt_rank *r, struct dpt_err *err)
{
    struct cores_share mine = {.asked = r->options->start->threads};
    mine.cores = dpt_cores_identified(&mine.id); /* asked by the thread that computes */
    return generation_all_gather(&r->gen, r->comm_thread, &mine, sizeof mine, err);
}

static int clamp_to_int(int64_t x)
{
    return x < 0 || x > INT_MAX ? INT_MAX : (int)x;
}

/* The cores of rank `rank`, as received in the exchange. */
static struct dpt_rank_cores cores_of_rank(const struct generation *g, int rank)
{
    const struct cores_share share = ((const struct cores_share *)g->gathered)[rank];
    return (struct dpt_rank_cores){.host = g->host_of_rank[rank],
                                   .id = share.id,
                                   .cores = clamp_to_int(share.cores),
                                   .asked = clamp_to_int(share.asked)};
}

static void log_threads(struct dpt_rank *r, const struct dpt_rank_cores *all)
{
    const char *s = r->device->threads == 1 ? "" : "s";
    const struct dpt_rank_cores *own = &all[r->gen.rank];
    const int sharers = dpt_rank_threads_sharers(all, r->gen.n_trainers, r->gen.rank);
    if (own->asked > 0)
        dpt_log(DPT_LOG_INFO, "computes with %d thread%s (cluster.threads)", r->device->threads, s);
    else
        dpt_log(DPT_LOG_INFO, "computes with %d thread%s: %d core%s for %d rank%s of this host",
                r->device->threads, s, own->cores, own->cores == 1 ? "" : "s", sharers,
                sharers == 1 ? "" : "s");
    r->device->threads_told = r->device->threads;
}

/* `all`: the cores of the ranks that train. */
static enum dpt_status use_share(struct dpt_rank *r, const struct dpt_rank_cores *all,
                                 struct dpt_err *err)
{
    const int n = r->gen.n_trainers;
    dpt_cores_set_demand(dpt_rank_threads_near(all, n, &all[r->gen.rank], DPT_STREAM_THREADS_MAX));
    if (r->gen.rank >= n)
        return DPT_OK; /* a handover rank computes nothing */
    /* The stream has threads_max threads, so cores that were added after the start are not used. */
    r->device->threads = dpt_rank_threads(all, n, r->gen.rank, r->device->threads_max);
    dpt_stream_set_threads(r->device->stream, r->device->threads);
    if (r->device->threads != r->device->threads_told)
        log_threads(r, all);
    if (r->device->threads <= r->device->threads_prepared)
        return DPT_OK;
    r->device->threads_prepared = r->device->threads;
    return rank_prepare_ops(r, err);
}

enum dpt_status rank_share_cores(struct dpt_rank *r, struct dpt_err *err)
{
    struct dpt_rank_cores *all = calloc((size_t)r->gen.world_size, sizeof *all);
    if (!all)
        return dpt_fail_nomem(err, "formation");
    enum dpt_status status = exchange_cores(r, err);
    for (int i = 0; status == DPT_OK && i < r->gen.world_size; i++)
        all[i] = cores_of_rank(&r->gen, i);
    if (status == DPT_OK)
        status = use_share(r, all, err);
    free(all);
    return status;
}
