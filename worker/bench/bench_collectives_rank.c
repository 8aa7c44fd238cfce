/* A rank of dpt-bench collectives. Each block is a generation: the rank plans the collective, opens
 * a communicator, runs and checks it, and closes the communicator. */
#include "base/clock.h"
#include "base/cores.h"
#include "worker/bench/bench_collectives.h"
#include "worker/bench/collective_math.h"
#include "worker/bench/collectives_gpu.h"
#include "worker/strategy/reduce/host_reducer.h"
#include "worker/strategy/transport/pattern_run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BUCKET_BYTES = 25 << 20, BUCKETS_MAX = 1024, SHARE_BLOCK = 4, TIMEOUT_MS = 30 * 1000 };

struct rank {
    struct collectives_shared *shared;
    int rank;
    struct dpt_device *device;
    struct dpt_stream *stream; /* of the communication thread */
    struct dpt_comm_listener *listener;
    struct dpt_comm_thread *thread;
    struct collectives_gpu *gpu; /* NULL: the ranks use the hosts' memory */
    struct dpt_world world;
    int rank_of_position[AR_RANKS_MAX], host_of_position[AR_RANKS_MAX];
    struct dpt_pattern pattern;
    /* The rank's values out of place; NULL: never. Lane buffer 0 has the result. */
    struct dpt_comm_mem *from;
    struct dpt_comm_mem *buffers[DPT_COVER_MAX];
    struct dpt_comm_mem *staging;
    struct dpt_bucket buckets[BUCKETS_MAX];
    uint64_t generation;
    /* Of a block. */
    const struct collectives_block *block;
    int64_t numel;
    struct dpt_reducer *reducer;
    struct dpt_pattern_run *run;
    struct dpt_err err;
};

#define MUST(r, call)                                                                              \
    do {                                                                                           \
        if ((call) != DPT_OK) {                                                                    \
            (void)fprintf(stderr, "dpt-bench collectives: rank %d: %s\n", (r)->rank,               \
                          (r)->err.text);                                                          \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

int collectives_host(int rank, int n_ranks, int n_hosts)
{
    return dpt_share_of(n_ranks, n_hosts, rank);
}

bool collectives_by_reducer(const struct collectives_shared *shared)
{
    return !shared->cuda && shared->algorithm == DPT_ALGORITHM_DIRECT &&
           (shared->collective == DPT_COLLECTIVE_ALL_REDUCE ||
            shared->collective == DPT_COLLECTIVE_REDUCE_SCATTER);
}

/* ---- plans and memory ---- */

static void set_world(const struct collectives_shared *shared, int *rank_of_position,
                      int *host_of_position, struct dpt_world *ret)
{
    for (int i = 0; i < shared->n_ranks; i++) {
        rank_of_position[i] = i;
        host_of_position[i] = collectives_host(i, shared->n_ranks, shared->n_hosts);
    }
    *ret = (struct dpt_world){.lanes = shared->n_ranks,
                              .size = shared->n_ranks,
                              .rank_of_position = rank_of_position,
                              .host_of_position = host_of_position};
}

int64_t collectives_bytes(const struct collectives_shared *shared)
{
    const int64_t vector = shared->numel[shared->n_sizes - 1] * (int64_t)sizeof(float);
    struct dpt_world world;
    int ranks[AR_RANKS_MAX], hosts[AR_RANKS_MAX];
    int64_t vectors = 0;
    set_world(shared, ranks, hosts, &world);
    for (int position = 0; position < shared->n_ranks; position++)
        vectors += collectives_by_reducer(shared) ? dpt_reduce_buffers(&world, position) : 2;
    return vectors * vector;
}

static void make_memory(struct rank *r)
{
    const struct collectives_shared *shared = r->shared;
    const int64_t numel = shared->numel[shared->n_sizes - 1];
    const bool reducer = collectives_by_reducer(shared);
    const int n_buffers = reducer ? dpt_reduce_buffers(&r->world, r->rank) : 1;
    for (int i = 0; i < n_buffers; i++)
        MUST(r, dpt_host_reducer_buffer_create(r->listener, i, numel, &r->buffers[i], &r->err));
    if (reducer)
        return;
    MUST(r, dpt_comm_mem_create(r->listener, (size_t)numel * sizeof(float), &r->from, &r->err));
    const size_t staging = dpt_pattern_run_staging(&r->pattern, r->rank, numel, shared->part_numel);
    if (staging > 0)
        MUST(r, dpt_comm_mem_create(r->listener, staging, &r->staging, &r->err));
}

static void collectives_open_rank(struct rank *r)
{
    struct collectives_shared *shared = r->shared;
    const struct dpt_pattern_spec spec = {
        .collective = shared->collective, .algorithm = shared->algorithm, .world = &r->world};
    set_world(shared, r->rank_of_position, r->host_of_position, &r->world);
    MUST(r, dpt_pattern_init(&r->pattern, &spec, &r->err));
    MUST(r, dpt_device_cpu_create(&r->device, &r->err));
    MUST(r, dpt_stream_create(r->device, 1, &r->stream, &r->err));
    MUST(r, dpt_comm_listener_create("127.0.0.1", &r->listener, &r->err));
    MUST(r, dpt_comm_thread_create(r->listener, &r->thread, &r->err));
    if (shared->cuda)
        MUST(r, collectives_gpu_open(
                    &(struct collectives_gpu_spec){.collective = shared->collective,
                                                   .rank = r->rank,
                                                   .n_ranks = shared->n_ranks,
                                                   .numel = shared->numel[shared->n_sizes - 1],
                                                   .thread = r->thread,
                                                   .timeout_ms = TIMEOUT_MS},
                    &r->gpu, &r->err));
    else
        make_memory(r);
    dpt_cores_set_demand(shared->n_ranks); /* as in a run whose ranks have one thread each */
    memcpy(shared->shm_addr[r->rank], dpt_comm_listener_shm_addr(r->listener), DPT_COMM_ADDR_BYTES);
    memcpy(shared->tcp_addr[r->rank], dpt_comm_listener_tcp_addr(r->listener), DPT_COMM_ADDR_BYTES);
    MUST(r,
         dpt_bench_meet(shared->listening, shared->n_ranks, r->rank, DPT_BENCH_MEET_MS, &r->err));
}

static void collectives_close_rank(struct rank *r)
{
    collectives_gpu_close(&r->gpu);
    dpt_comm_thread_destroy(&r->thread);
    dpt_comm_mem_destroy(&r->from);
    dpt_comm_mem_destroy(&r->staging);
    for (int i = 0; i < DPT_COVER_MAX; i++)
        dpt_comm_mem_destroy(&r->buffers[i]);
    dpt_comm_listener_destroy(&r->listener);
    dpt_stream_destroy(&r->stream);
    dpt_device_destroy(&r->device);
    dpt_pattern_fini(&r->pattern);
}

/* ---- a generation ---- */

/* ddp's buckets, from the end of the vector. A reduce-scatter has one bucket, of which each rank
 * owns a share. */
static void plan_reducer(struct rank *r)
{
    const bool shards = r->shared->collective == DPT_COLLECTIVE_REDUCE_SCATTER;
    const int64_t most = shards ? r->numel : BUCKET_BYTES / (int64_t)sizeof(float);
    int n = 0;
    for (int64_t end = r->numel; end > 0; end -= most) {
        DPT_ASSERT(n < BUCKETS_MAX);
        r->buckets[n++] = (struct dpt_bucket){.first = end > most ? end - most : 0, .end = end};
    }
    const struct dpt_host_reducer_spec spec = {.of = {.thread = r->thread,
                                                      .stream = r->stream,
                                                      .buckets = r->buckets,
                                                      .n_buckets = n,
                                                      .block = shards ? SHARE_BLOCK : DPT_BLOCK,
                                                      .world = &r->world,
                                                      .rank = r->rank,
                                                      .shards = shards},
                                               .ops = dpt_device_ops(r->device),
                                               .listener = r->listener,
                                               .buffers = r->buffers};
    MUST(r, dpt_host_reducer_create(&spec, &r->reducer, &r->err));
    for (int b = 0; b < n; b++)
        MUST(r, dpt_reducer_ready(r->reducer, b, &r->err));
}

static void plan_pattern(struct rank *r)
{
    const struct dpt_pattern_run_spec spec = {.pattern = &r->pattern,
                                              .rank = r->rank,
                                              .numel_max = r->numel,
                                              .from = r->block->in_place ? r->buffers[0] : r->from,
                                              .to = r->buffers[0],
                                              .staging = r->staging,
                                              .part_numel = r->shared->part_numel,
                                              .ops = dpt_device_ops(r->device),
                                              .stream = r->stream};
    MUST(r, dpt_pattern_run_create(&spec, &r->run, &r->err));
}

static void open_generation(struct rank *r)
{
    struct collectives_shared *shared = r->shared;
    struct dpt_comm_peer peers[AR_RANKS_MAX] = {{.rank = 0}};
    struct dpt_comm_spec spec = {.run = "bench",
                                 .generation = ++r->generation,
                                 .rank = r->rank,
                                 .world_size = shared->n_ranks,
                                 .host = r->host_of_position[r->rank],
                                 .peers = peers,
                                 .timeout_ms = TIMEOUT_MS,
                                 .mesh_max = shared->mesh_max,
                                 .encrypt = shared->encrypt};
    spec.nonce[0] = (uint8_t)(r->generation % 251);
    for (int i = 0; i < shared->n_ranks; i++) {
        if (i == r->rank)
            continue;
        struct dpt_comm_peer *peer = &peers[spec.n_peers++];
        *peer = (struct dpt_comm_peer){.rank = i, .host = r->host_of_position[i]};
        memcpy(peer->shm_addr, shared->shm_addr[i], DPT_COMM_ADDR_BYTES);
        memcpy(peer->tcp_addr, shared->tcp_addr[i], DPT_COMM_ADDR_BYTES);
    }
    dpt_comm_thread_arm(r->thread);
    MUST(r, dpt_comm_thread_open(r->thread, &spec, &r->err));
}

static enum dpt_status collective_once(struct rank *r, struct dpt_comm_thread *thread,
                                       struct dpt_err *err)
{
    if (r->gpu)
        return collectives_gpu_once(r->gpu, thread, r->numel, r->block->in_place, err);
    if (r->reducer)
        return dpt_reducer_job(thread, r->reducer, err);
    return dpt_pattern_run_once(r->run, dpt_comm_thread_comm(thread),
                                (struct dpt_interval){0, r->numel}, err);
}

static enum dpt_status job_once(struct dpt_comm_thread *thread, void *ctx, struct dpt_err *err)
{
    return collective_once(ctx, thread, err);
}

/* Rounds follow each other at once, as in nccl-tests. */
static enum dpt_status job_rounds(struct dpt_comm_thread *thread, void *ctx, struct dpt_err *err)
{
    struct rank *r = ctx;
    for (int i = -r->block->warmup; i < r->block->rounds; i++) {
        const int64_t start = dpt_now_ns();
        DPT_TRY(collective_once(r, thread, err));
        if (i >= 0)
            r->shared->us[r->rank][i] = (double)(dpt_now_ns() - start) * 1e-3;
    }
    return DPT_OK;
}

static void put_values(struct rank *r)
{
    float *to = r->gpu ? collectives_gpu_host(r->gpu) : dpt_comm_mem_data(r->buffers[0]);
    collective_fill(to, r->numel, r->rank);
    if (r->gpu) {
        MUST(r, collectives_gpu_put(r->gpu, r->numel, r->block->in_place, &r->err));
    } else if (!r->block->in_place) {
        collective_fill(dpt_comm_mem_data(r->from), r->numel, r->rank);
        memset(to, 0xff, (size_t)r->numel * sizeof *to); /* NaN: no result */
    }
}

/* One collective on known values. */
static int64_t wrong_elements(struct rank *r)
{
    put_values(r);
    MUST(r, dpt_comm_thread_run(r->thread, job_once, r, &r->err));
    if (r->gpu)
        MUST(r, collectives_gpu_take(r->gpu, r->numel, &r->err));
    const float *vector = r->gpu ? collectives_gpu_host(r->gpu) : dpt_comm_mem_data(r->buffers[0]);
    return collective_wrong(&(struct collective_result){.collective = r->shared->collective,
                                                        .n_ranks = r->shared->n_ranks,
                                                        .rank = r->rank,
                                                        .vector = vector,
                                                        .numel = r->numel});
}

/* A rank leaves only when no other needs its relays any more. */
static enum dpt_status job_part(struct dpt_comm_thread *thread, void *ctx, struct dpt_err *err)
{
    const uint8_t here = 1;
    uint8_t all[AR_RANKS_MAX];
    (void)ctx;
    return dpt_comm_small_all_gather(dpt_comm_thread_comm(thread), &here, 1, all, err);
}

static void collectives_run_block(struct rank *r, const struct collectives_block *block)
{
    r->block = block;
    r->numel = r->shared->numel[block->size_index];
    if (collectives_by_reducer(r->shared))
        plan_reducer(r);
    else if (!r->gpu)
        plan_pattern(r);
    open_generation(r);
    put_values(r);
    MUST(r, dpt_comm_thread_run(r->thread, job_rounds, r, &r->err));
    r->shared->wrong[r->rank] = wrong_elements(r);
    MUST(r, dpt_comm_thread_run(r->thread, job_part, r, &r->err));
    dpt_comm_thread_close(r->thread);
    dpt_reducer_destroy(&r->reducer);
    dpt_pattern_run_destroy(&r->run);
}

int collectives_rank(struct collectives_shared *shared, int rank, int in, int out)
{
    static struct rank r;
    struct collectives_block block;
    ssize_t n;
    r.shared = shared;
    r.rank = rank;
    collectives_open_rank(&r);
    while ((n = read(in, &block, sizeof block)) == (ssize_t)sizeof block) {
        collectives_run_block(&r, &block);
        const char done = 1;
        if (write(out, &done, 1) != 1)
            return 1;
    }
    collectives_close_rank(&r);
    return n == 0 ? 0 : 1;
}
