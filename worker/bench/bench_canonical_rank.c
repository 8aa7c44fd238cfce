/* A rank of dpt-bench canonical. It does whole training steps of a strategy over a communicator
 * among processes of this host, as the trainer does; only the data differ: tokens that are drawn
 * once.
 *
 * Every step is a generation, so that canonical and fast steps alternate on one state: the weights,
 * the moments and the lane buffers stay. The time to make the communicator is not counted. */
#include "worker/bench/bench_canonical.h"

#include "base/accum.h"
#include "base/clock.h"
#include "base/cores.h"
#include "base/rng.h"
#include "kernels/device.h"
#include "worker/bench/bench.h"
#include "worker/strategy/strategy.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct rank {
    struct canonical_shared *shared;
    struct dpt_config config;
    int rank;
    struct dpt_device *device;
    struct dpt_stream *stream, *comm_stream;
    const struct dpt_ops *ops;
    struct dpt_model *model;
    struct dpt_comm_listener *listener;
    struct dpt_comm_thread *thread;
    int64_t offset[DPT_UNITS_MAX + 1];
    struct dpt_grid grid;
    struct dpt_strategy *strategy;
    struct dpt_world world;
    int rank_of_position[BC_RANKS_MAX], host_of_position[BC_RANKS_MAX];
    uint64_t generation;
    int64_t step;
    void *saved, *scratch;
    float *losses;
    int32_t *tokens; /* (B, T + 1) */
    double loss;     /* summed over this rank's slots */
    struct dpt_accum mine, all[BC_RANKS_MAX];
    uint64_t sent;
    struct dpt_err err;
};

#define MUST(r, call)                                                                              \
    do {                                                                                           \
        if ((call) != DPT_OK) {                                                                    \
            (void)fprintf(stderr, "dpt-bench canonical: rank %d: %s\n", (r)->rank, (r)->err.text); \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static void publish_and_await(struct rank *r)
{
    struct canonical_shared *shared = r->shared;
    memcpy(shared->shm_addr[r->rank], dpt_comm_listener_shm_addr(r->listener), DPT_COMM_ADDR_BYTES);
    MUST(r,
         dpt_bench_meet(shared->listening, shared->n_ranks, r->rank, DPT_BENCH_MEET_MS, &r->err));
}

static void canonical_make_model(struct rank *r)
{
    MUST(r, dpt_model_create(&r->config, &r->model, &r->err));
    const int n = dpt_model_n_units(r->model);
    const int64_t b = r->config.train.micro_batch, t = r->config.train.seq_len;
    for (int u = 0; u < n; u++)
        r->offset[u] = dpt_model_unit(r->model, u)->offset;
    r->offset[n] = dpt_model_flat_numel(r->model);
    r->grid = (struct dpt_grid){.offset = r->offset, .n_units = n, .block = DPT_BLOCK};
    MUST(r, dpt_device_alloc(r->device, dpt_model_saved_bytes(r->model, b, t), &r->saved, &r->err));
    MUST(r, dpt_device_alloc(r->device, dpt_model_scratch_bytes(r->model, b, t), &r->scratch,
                             &r->err));
    r->losses = calloc((size_t)(b * t), sizeof *r->losses);
    r->tokens = calloc((size_t)(b * t) + 1, sizeof *r->tokens);
    if (!r->losses || !r->tokens)
        exit(1);
    const struct dpt_rng_key key = dpt_rng_key(1, DPT_RNG_TEST, (uint64_t)r->rank, 0, 0);
    for (int64_t i = 0; i <= b * t; i++) {
        uint32_t draw[4];
        dpt_philox(key, (uint64_t)i, draw);
        r->tokens[i] = (int32_t)(draw[0] % (uint32_t)dpt_model_vocab(r->model));
    }
}

static void canonical_open_rank(struct rank *r)
{
    MUST(r, dpt_device_cpu_create(&r->device, &r->err));
    MUST(r, dpt_stream_create(r->device, 1, &r->stream, &r->err));
    MUST(r, dpt_stream_create(r->device, 1, &r->comm_stream, &r->err));
    r->ops = dpt_device_ops(r->device);
    canonical_make_model(r);
    MUST(r, dpt_comm_listener_create("127.0.0.1", &r->listener, &r->err));
    MUST(r, dpt_comm_thread_create(r->listener, &r->thread, &r->err));
    for (int i = 0; i < r->shared->n_ranks; i++)
        r->rank_of_position[i] = i;
    const struct dpt_strategy_env env = {.config = &r->config,
                                         .model = r->model,
                                         .device = r->device,
                                         .stream = r->stream,
                                         .comm_stream = r->comm_stream,
                                         .listener = r->listener,
                                         .comm_thread = r->thread,
                                         .grid = &r->grid};
    MUST(r, dpt_strategy_create(&env, &r->strategy, &r->err));
    dpt_cores_set_demand(r->shared->n_ranks); /* as in a run whose ranks have one thread each */
    publish_and_await(r);
}

static void canonical_close_rank(struct rank *r)
{
    const int64_t b = r->config.train.micro_batch, t = r->config.train.seq_len;
    dpt_strategy_destroy(&r->strategy);
    dpt_comm_thread_destroy(&r->thread);
    dpt_comm_listener_destroy(&r->listener);
    dpt_device_free(r->device, r->saved, dpt_model_saved_bytes(r->model, b, t));
    dpt_device_free(r->device, r->scratch, dpt_model_scratch_bytes(r->model, b, t));
    free(r->losses);
    free(r->tokens);
    dpt_model_destroy(&r->model);
    dpt_stream_destroy(&r->stream);
    dpt_stream_destroy(&r->comm_stream);
    dpt_device_destroy(&r->device);
}

static void open_generation(struct rank *r)
{
    struct dpt_comm_peer peers[BC_RANKS_MAX] = {{.rank = 0}};
    const int n = r->shared->n_ranks;
    r->world = (struct dpt_world){.lanes = dpt_config_lanes_of(&r->config, n),
                                  .size = n,
                                  .rank_of_position = r->rank_of_position,
                                  .host_of_position = r->host_of_position};
    MUST(r, dpt_strategy_begin_generation(r->strategy, &r->world, r->rank, &r->err));
    if (r->generation == 0) {
        const struct dpt_state_part *own = &dpt_strategy_wanted(r->strategy)->own;
        dpt_model_init_range(r->model, r->ops, r->stream, 1,
                             (struct dpt_span){0, dpt_model_flat_numel(r->model)},
                             dpt_comm_mem_data(own->vector[DPT_VECTOR_PARAM].mem));
        MUST(r, dpt_stream_sync(r->stream, &r->err));
        dpt_strategy_state_changed(r->strategy);
    }
    struct dpt_comm_spec spec = {.run = "bench",
                                 .generation = ++r->generation,
                                 .rank = r->rank,
                                 .world_size = n,
                                 .peers = peers,
                                 .timeout_ms = 60000};
    spec.nonce[0] = (uint8_t)(r->generation % 251);
    for (int i = 0; i < n; i++) {
        if (i == r->rank)
            continue;
        peers[spec.n_peers].rank = i;
        memcpy(peers[spec.n_peers++].shm_addr, r->shared->shm_addr[i], DPT_COMM_ADDR_BYTES);
    }
    dpt_comm_thread_arm(r->thread);
    MUST(r, dpt_comm_thread_open(r->thread, &spec, &r->err));
}

static void begin_slot(struct rank *r, int index, struct dpt_slot *slot)
{
    const int64_t b = r->config.train.micro_batch, t = r->config.train.seq_len;
    *slot = (struct dpt_slot){.mode = DPT_MODE_TRAIN,
                              .seed = 1,
                              .step = r->step,
                              .slot = index,
                              .b = b,
                              .t = t,
                              .batch = {.part = {r->tokens, r->tokens + 1}},
                              .dloss = 1.0f / (float)(b * t * dpt_config_slots(&r->config)),
                              .saved = r->saved,
                              .scratch = r->scratch,
                              .losses = r->losses};
    dpt_strategy_begin_slot(r->strategy, index, slot);
}

static void end_slot(struct rank *r)
{
    MUST(r, dpt_stream_sync(r->stream, &r->err));
    for (int64_t i = 0; i < (int64_t)r->config.train.micro_batch * r->config.train.seq_len; i++)
        r->loss += (double)r->losses[i];
}

static void run_actions(struct rank *r)
{
    const struct dpt_step_list *list = dpt_strategy_step_list(r->strategy);
    struct dpt_slot slot = {.b = 0};
    for (int i = 0; i < list->n_actions; i++) {
        const struct dpt_action *a = &list->actions[i];
        if (a->kind == DPT_ACTION_BEGIN_SLOT)
            begin_slot(r, a->slot, &slot);
        else if (a->kind == DPT_ACTION_FORWARD)
            dpt_model_forward(r->model, r->ops, r->stream, a->unit, &slot);
        else if (a->kind == DPT_ACTION_BACKWARD)
            dpt_model_backward(r->model, r->ops, r->stream, a->unit, &slot);
        else if (a->kind == DPT_ACTION_END_SLOT)
            end_slot(r);
        else
            MUST(r, dpt_strategy_act(r->strategy, i, &r->err));
    }
}

static enum dpt_status job_commit(struct dpt_comm_thread *thread, void *ctx, struct dpt_err *err)
{
    struct rank *r = ctx;
    struct dpt_comm *comm = dpt_comm_thread_comm(thread);
    r->all[0] = r->mine;
    if (!comm)
        return DPT_OK;
    return dpt_comm_small_all_gather(comm, &r->mine, sizeof r->mine, r->all, err);
}

/* Waits until the peers have taken all sent bytes, because only then the bytes are counted. Then
 * waits for all ranks. */
static enum dpt_status job_meet(struct dpt_comm_thread *thread, void *ctx, struct dpt_err *err)
{
    struct rank *r = ctx;
    struct dpt_comm *comm = dpt_comm_thread_comm(thread);
    uint8_t here = 1, all[BC_RANKS_MAX];
    if (!comm)
        return DPT_OK;
    while (dpt_comm_poll(comm, NULL, -1, err) == DPT_INPROGRESS)
        continue;
    r->sent = dpt_comm_bytes_sent(comm);
    return dpt_comm_small_all_gather(comm, &here, sizeof here, all, err);
}

static void one_step(struct rank *r)
{
    r->loss = 0;
    dpt_strategy_begin_step(r->strategy, r->step);
    run_actions(r);
    MUST(r, dpt_strategy_await_gradient(r->strategy, &r->err));
    MUST(r, dpt_strategy_norm_share(r->strategy, &r->mine, &r->err));
    MUST(r, dpt_comm_thread_run(r->thread, job_commit, r, &r->err));
    struct dpt_accum norm;
    dpt_accum_init(&norm);
    for (int i = 0; i < r->world.size; i++)
        dpt_accum_merge(&norm, &r->all[i]);
    const struct dpt_optim_step update = {
        .step = r->step,
        .updates = r->step,
        .grad_scale =
            dpt_optim_clip_scale(sqrt(dpt_accum_value(&norm)), r->config.train.grad_clip)};
    MUST(r, dpt_strategy_apply(r->strategy, &update, &r->err));
    r->step++;
}

static double cpu_ms(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static void answer_canonical(struct rank *r, enum dpt_reduction reduction)
{
    struct canonical_answer *a = &r->shared->answer[r->rank];
    struct dpt_strategy_cost cost;
    r->config.train.reduction = reduction;
    open_generation(r);
    MUST(r, dpt_comm_thread_run(r->thread, job_meet, r, &r->err));
    const uint64_t sent = r->sent;
    const int64_t start_ns = dpt_now_ns();
    const double start_cpu = cpu_ms();
    one_step(r);
    a->wall_ms = (double)(dpt_now_ns() - start_ns) * 1e-6;
    a->cpu_ms = cpu_ms() - start_cpu;
    a->loss = r->loss;
    MUST(r, dpt_comm_thread_run(r->thread, job_meet, r, &r->err));
    dpt_strategy_cost(r->strategy, &cost);
    a->bytes_sent = r->sent - sent;
    a->gradient_bytes = cost.gradient_bytes;
    a->gradient_buffers = cost.gradient_buffers;
    dpt_comm_thread_close(r->thread);
    dpt_strategy_end_generation(r->strategy);
}

int canonical_rank(struct canonical_shared *shared, int rank, int in, int out)
{
    static struct rank r;
    enum dpt_reduction reduction;
    ssize_t n;
    r = (struct rank){.shared = shared, .config = shared->config, .rank = rank};
    canonical_open_rank(&r);
    while ((n = read(in, &reduction, sizeof reduction)) == (ssize_t)sizeof reduction) {
        answer_canonical(&r, reduction);
        const char done = 1;
        if (write(out, &done, 1) != 1)
            return 1;
    }
    canonical_close_rank(&r);
    return n == 0 ? 0 : 1;
}
