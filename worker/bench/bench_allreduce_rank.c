/* A rank of dpt-bench allreduce: ddp's own all-reduce (lanes in tree order, buckets of the default
 * size, its communication thread) over vectors of the requested sizes. */
#include "base/clock.h"
#include "base/cores.h"
#include "kernels/device.h"
#include "worker/bench/bench.h"
#include "worker/bench/bench_allreduce.h"
#include "worker/strategy/reduce/host_reducer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BLOCK = 1024, BUCKET_BYTES = 25 << 20, BUCKETS_MAX = 1024 };

struct rank {
    struct allreduce_shared *shared;
    int rank;
    struct dpt_device *device;
    struct dpt_stream *stream;
    struct dpt_comm_listener *listener;
    struct dpt_comm_thread *thread;
    struct dpt_comm_mem *buffer; /* each rank has one lane, so one buffer */
    struct dpt_world world;
    int rank_of_position[AR_RANKS_MAX], host_of_position[AR_RANKS_MAX];
    struct dpt_bucket buckets[AR_SIZES_MAX][BUCKETS_MAX];
    int n_buckets[AR_SIZES_MAX];
    struct dpt_reducer *reducers[AR_SIZES_MAX];
    struct dpt_err err;
};

#define MUST(r, call)                                                                              \
    do {                                                                                           \
        if ((call) != DPT_OK) {                                                                    \
            (void)fprintf(stderr, "dpt-bench allreduce: rank %d: %s\n", (r)->rank, (r)->err.text); \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static void make_reducer(struct rank *r, int index)
{
    const int64_t numel = (int64_t)(r->shared->sizes[index] / sizeof(float));
    const int64_t most = BUCKET_BYTES / (int64_t)sizeof(float);
    for (int64_t end = numel; end > 0; end -= most) {
        if (r->n_buckets[index] == BUCKETS_MAX) {
            (void)fprintf(stderr, "dpt-bench allreduce: more than %d buckets\n", BUCKETS_MAX);
            exit(1);
        }
        r->buckets[index][r->n_buckets[index]++] =
            (struct dpt_bucket){.first = end > most ? end - most : 0, .end = end};
    }
    const struct dpt_host_reducer_spec spec = {.of = {.thread = r->thread,
                                                      .stream = r->stream,
                                                      .buckets = r->buckets[index],
                                                      .n_buckets = r->n_buckets[index],
                                                      .block = BLOCK,
                                                      .world = &r->world,
                                                      .rank = r->rank},
                                               .ops = dpt_device_ops(r->device),
                                               .listener = r->listener,
                                               .buffers = &r->buffer};
    MUST(r, dpt_host_reducer_create(&spec, &r->reducers[index], &r->err));
}

static void publish_and_await(struct rank *r)
{
    struct allreduce_shared *shared = r->shared;
    memcpy(shared->shm_addr[r->rank], dpt_comm_listener_shm_addr(r->listener), DPT_COMM_ADDR_BYTES);
    MUST(r,
         dpt_bench_meet(shared->listening, shared->n_ranks, r->rank, DPT_BENCH_MEET_MS, &r->err));
}

static void allreduce_open_rank(struct rank *r)
{
    const struct allreduce_shared *shared = r->shared;
    size_t largest = 0;
    for (int i = 0; i < shared->n_sizes; i++)
        largest = shared->sizes[i] > largest ? shared->sizes[i] : largest;
    for (int i = 0; i < shared->n_ranks; i++)
        r->rank_of_position[i] = i;
    r->world = (struct dpt_world){.lanes = shared->n_ranks,
                                  .size = shared->n_ranks,
                                  .rank_of_position = r->rank_of_position,
                                  .host_of_position = r->host_of_position};
    MUST(r, dpt_device_cpu_create(&r->device, &r->err));
    MUST(r, dpt_stream_create(r->device, 1, &r->stream, &r->err));
    MUST(r, dpt_comm_listener_create("127.0.0.1", &r->listener, &r->err));
    MUST(r, dpt_comm_thread_create(r->listener, &r->thread, &r->err));
    MUST(r, dpt_host_reducer_buffer_create(r->listener, 0, (int64_t)(largest / sizeof(float)),
                                           &r->buffer, &r->err));
    for (int i = 0; i < shared->n_sizes; i++)
        make_reducer(r, i);
    publish_and_await(r);
    struct dpt_comm_peer peers[AR_RANKS_MAX] = {{.rank = 0}};
    struct dpt_comm_spec spec = {.run = "bench",
                                 .rank = r->rank,
                                 .world_size = shared->n_ranks,
                                 .peers = peers,
                                 .timeout_ms = 10000};
    for (int i = 0; i < shared->n_ranks; i++) {
        if (i == r->rank)
            continue;
        struct dpt_comm_peer *peer = &peers[spec.n_peers++];
        peer->rank = i;
        memcpy(peer->shm_addr, shared->shm_addr[i], DPT_COMM_ADDR_BYTES);
    }
    dpt_cores_set_demand(shared->n_ranks); /* as in a run whose ranks have one thread each */
    dpt_comm_thread_arm(r->thread);
    MUST(r, dpt_comm_thread_open(r->thread, &spec, &r->err));
}

static void allreduce_close_rank(struct rank *r)
{
    dpt_comm_thread_close(r->thread);
    for (int i = 0; i < r->shared->n_sizes; i++)
        dpt_reducer_destroy(&r->reducers[i]);
    dpt_comm_thread_destroy(&r->thread);
    dpt_comm_mem_destroy(&r->buffer);
    dpt_comm_listener_destroy(&r->listener);
    dpt_stream_destroy(&r->stream);
    dpt_device_destroy(&r->device);
}

/* A block whose rounds run on the communication thread. */
struct rounds {
    struct rank *r;
    const struct allreduce_block *block;
};

/* Writes the vector, as a backward pass does, then waits until all ranks have. */
static enum dpt_status write_anew(struct rank *r, int index, struct dpt_err *err)
{
    float *data = dpt_comm_mem_data(r->buffer);
    const float value = (float)r->rank;
    for (size_t i = 0; i < r->shared->sizes[index] / sizeof(float); i++)
        data[i] = value;
    uint8_t here = 1, all[AR_RANKS_MAX];
    return dpt_comm_small_all_gather(dpt_comm_thread_comm(r->thread), &here, 1, all, err);
}

static enum dpt_status job_rounds(struct dpt_comm_thread *thread, void *ctx, struct dpt_err *err)
{
    const struct rounds *rounds = ctx;
    struct rank *r = rounds->r;
    struct dpt_reducer *reducer = r->reducers[rounds->block->size_index];
    for (int i = -rounds->block->warmup; i < rounds->block->rounds; i++) {
        const uint64_t sent = dpt_comm_bytes_sent(dpt_comm_thread_comm(thread));
        if (rounds->block->fresh)
            DPT_TRY(write_anew(r, rounds->block->size_index, err));
        const int64_t start = dpt_now_ns();
        DPT_TRY(dpt_reducer_job(thread, reducer, err));
        const int64_t end = dpt_now_ns();
        if (i >= 0 && r->rank == 0)
            r->shared->us[i] = (double)(end - start) * 1e-3;
        /* Bytes count as sent when the peer has taken them. */
        if (i == rounds->block->rounds - 1)
            while (dpt_comm_poll(dpt_comm_thread_comm(thread), NULL, -1, err) == DPT_INPROGRESS)
                continue;
        if (i == rounds->block->rounds - 1 && rounds->block->rounds == 1 &&
            rounds->block->warmup == 0)
            r->shared->bytes_sent[r->rank] =
                dpt_comm_bytes_sent(dpt_comm_thread_comm(thread)) - sent;
    }
    return DPT_OK;
}

static void say_ready(struct rank *r, int index)
{
    for (int b = 0; b < r->n_buckets[index]; b++)
        MUST(r, dpt_reducer_ready(r->reducers[index], b, &r->err));
}

/* Runs rounds as a training step does: the main thread hands over the buckets and waits. */
static void rounds_by_main(struct rank *r, const struct allreduce_block *block)
{
    for (int i = -block->warmup; i < block->rounds; i++) {
        const int64_t start = dpt_now_ns();
        (void)dpt_reducer_begin(r->reducers[block->size_index], 0);
        dpt_reducer_post(r->reducers[block->size_index]);
        say_ready(r, block->size_index);
        MUST(r, dpt_reducer_finish(r->reducers[block->size_index], &r->err));
        const int64_t end = dpt_now_ns();
        if (i >= 0 && r->rank == 0)
            r->shared->us[i] = (double)(end - start) * 1e-3;
    }
}

static void run_block(struct rank *r, const struct allreduce_block *block)
{
    if (block->by_main) {
        rounds_by_main(r, block);
        return;
    }
    struct rounds rounds = {.r = r, .block = block};
    say_ready(r, block->size_index);
    MUST(r, dpt_comm_thread_run(r->thread, job_rounds, &rounds, &r->err));
}

/* Runs one all-reduce and checks its sum; leaves zeros in the buffer. */
static void check_sum(struct rank *r, int index)
{
    const size_t numel = r->shared->sizes[index] / sizeof(float);
    float *data = dpt_comm_mem_data(r->buffer);
    for (size_t i = 0; i < numel; i++)
        data[i] = (float)(r->rank + 1) * (float)(i % 97);
    run_block(r, &(struct allreduce_block){.size_index = index, .rounds = 1});
    const int n = r->shared->n_ranks;
    const float factor = (float)(n * (n + 1) / 2);
    for (size_t i = 0; i < numel; i++)
        if (data[i] != factor * (float)(i % 97)) {
            (void)fprintf(stderr, "dpt-bench allreduce: rank %d: element %zu of %zu is %g\n",
                          r->rank, i, numel, (double)data[i]);
            exit(1);
        }
    memset(data, 0, numel * sizeof(float));
}

int allreduce_rank(struct allreduce_shared *shared, int rank, int in, int out)
{
    static struct rank r;
    r.shared = shared;
    r.rank = rank;
    allreduce_open_rank(&r);
    struct allreduce_block block;
    ssize_t n;
    while ((n = read(in, &block, sizeof block)) == (ssize_t)sizeof block) {
        check_sum(&r, block.size_index);
        run_block(&r, &block);
        const char done = 1;
        if (write(out, &done, 1) != 1)
            return 1;
    }
    allreduce_close_rank(&r);
    return n == 0 ? 0 : 1;
}
