/* The threads that a rank computes with: a count of its own, or its share of the host's cores,
 * decided anew in each generation. The bits of a result do not depend on it. */
#include "worker/plan/threads.h"

#include "base/cores.h"
#include "base/cursor.h"
#include "base/log.h"
#include "worker/train/rank_internal.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum dpt_status rank_open_stream(struct dpt_rank *r, struct dpt_err *err)
{
    const int asked = r->options->start->threads;
    const int cores = dpt_cores();
    const int threads = asked > 0                        ? asked
                        : cores < DPT_STREAM_THREADS_MAX ? cores
                                                         : DPT_STREAM_THREADS_MAX;
    DPT_TRY(dpt_stream_create(r->device, threads, &r->stream, err));
    r->threads_max = threads;
    /* What a thread works in is made for as many as a generation gives this rank. */
    r->threads = r->threads_prepared = asked > 0 ? asked : 1;
    dpt_stream_set_threads(r->stream, r->threads);
    return DPT_OK;
}

enum { CORES_BYTES = 3 * 8 };

struct exchange {
    struct dpt_rank *rank;
    uint8_t *all; /* [world_size x CORES_BYTES], by rank */
};

static int to_int(uint64_t x)
{
    return x < INT_MAX ? (int)x : INT_MAX;
}

static struct dpt_rank_cores cores_of(const struct exchange *x, int rank)
{
    struct dpt_reader reader;
    dpt_reader_init(&reader, x->all + (size_t)rank * CORES_BYTES, CORES_BYTES);
    struct dpt_rank_cores ret = {.host = x->rank->gen.host_of_rank[rank]};
    ret.id = dpt_reader_u64(&reader);
    ret.cores = to_int(dpt_reader_u64(&reader));
    ret.asked = to_int(dpt_reader_u64(&reader));
    return ret;
}

static enum dpt_status job_tell_cores(struct dpt_comm_thread *thread, void *ctx,
                                      struct dpt_err *err)
{
    struct exchange *x = ctx;
    uint8_t mine[CORES_BYTES];
    memcpy(mine, x->all + (size_t)x->rank->gen.rank * CORES_BYTES, CORES_BYTES);
    return dpt_comm_small_all_gather(dpt_comm_thread_comm(thread), mine, CORES_BYTES, x->all, err);
}

static enum dpt_status tell_cores(struct exchange *x, struct dpt_err *err)
{
    struct dpt_rank *r = x->rank;
    struct dpt_writer w;
    uint64_t id;
    const int cores = dpt_cores_identified(&id); /* by the thread that computes */
    dpt_writer_init(&w, x->all + (size_t)r->gen.rank * CORES_BYTES, CORES_BYTES);
    dpt_writer_u64(&w, id);
    dpt_writer_u64(&w, (uint64_t)cores);
    dpt_writer_u64(&w, (uint64_t)r->options->start->threads);
    DPT_ASSERT(!w.failed);
    return r->gen.world_size > 1 ? dpt_comm_thread_run(r->comm_thread, job_tell_cores, x, err)
                                 : DPT_OK;
}

static void say_threads(struct dpt_rank *r, const struct dpt_rank_cores *all)
{
    const char *s = r->threads == 1 ? "" : "s";
    const struct dpt_rank_cores *own = &all[r->gen.rank];
    const int sharers = dpt_rank_sharers(all, r->gen.n_trainers, r->gen.rank);
    if (own->asked > 0)
        dpt_log(DPT_LOG_INFO, "computes with %d thread%s, as cluster.threads says", r->threads, s);
    else
        dpt_log(DPT_LOG_INFO, "computes with %d thread%s: %d core%s for %d rank%s of this host",
                r->threads, s, own->cores, own->cores == 1 ? "" : "s", sharers,
                sharers == 1 ? "" : "s");
    r->threads_told = r->threads;
}

/* `all`: of the ranks that train. */
static enum dpt_status take_share(struct dpt_rank *r, const struct dpt_rank_cores *all,
                                  struct dpt_err *err)
{
    const int n = r->gen.n_trainers;
    dpt_cores_set_demand(dpt_near_threads(all, n, &all[r->gen.rank], DPT_STREAM_THREADS_MAX));
    if (r->gen.rank >= n)
        return DPT_OK; /* a guest computes nothing */
    /* Cores that came after the start are left alone: there are no threads for them. */
    r->threads = dpt_rank_threads(all, n, r->gen.rank, r->threads_max);
    dpt_stream_set_threads(r->stream, r->threads);
    if (r->threads != r->threads_told)
        say_threads(r, all);
    if (r->threads <= r->threads_prepared)
        return DPT_OK;
    r->threads_prepared = r->threads;
    return rank_prepare_ops(r, err);
}

enum dpt_status rank_deal_cores(struct dpt_rank *r, struct dpt_err *err)
{
    const size_t n = (size_t)r->gen.world_size;
    struct exchange x = {.rank = r, .all = calloc(n, CORES_BYTES)};
    struct dpt_rank_cores *all = calloc(n, sizeof *all);
    enum dpt_status status =
        x.all && all ? tell_cores(&x, err) : dpt_fail(err, DPT_ENOMEM, "formation: out of memory");
    if (status == DPT_OK) {
        for (int i = 0; i < r->gen.world_size; i++)
            all[i] = cores_of(&x, i);
        status = take_share(r, all, err);
    }
    free(x.all);
    free(all);
    return status;
}
