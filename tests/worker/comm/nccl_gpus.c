/* Ranks with a GPU each, as threads (nccl_gpus.h). */
#include "tests/worker/comm/nccl_gpus.h"

#include <string.h>

struct gpu gpu_plug_in(struct rank *self)
{
    struct scene *scene = self->world->arg;
    return (struct gpu){.self = self,
                        .scene = scene,
                        .view = {.fabric = &scene->fabric,
                                 .fault = self->rank == VICTIM ? scene->fault : FABRIC_WELL}};
}

void gpu_create(struct gpu *g)
{
    CHECK_OK(dpt_nccl_comm_create(&fabric_calls, &g->view, g->scene->timeout_ms, &g->comm,
                                  &g->self->err),
             &g->self->err);
}

void gpu_unplug(struct gpu *g)
{
    dpt_nccl_comm_close(g->comm);
    dpt_comm_destroy(&g->control);
    dpt_nccl_comm_destroy(&g->comm);
}

enum dpt_status gpu_open_with(struct gpu *g, uint64_t generation,
                              const struct dpt_nccl_split_of *splits, int n_splits)
{
    struct dpt_nccl_comm_spec spec = {
        .control = g->control, .generation = generation, .nonce = {1}, .n_splits = n_splits};
    for (int i = 0; i < n_splits; i++)
        spec.splits[i] = splits[i];
    return dpt_nccl_comm_open(g->comm, &spec, &g->self->err);
}

void gpu_open_world(struct gpu *g, uint64_t generation)
{
    CHECK_OK(gpu_open_with(g, generation, NULL, 0), &g->self->err);
}

enum dpt_status gpu_wait_for(struct gpu *g, int group, uint64_t ticket)
{
    enum dpt_status status;
    do
        status = dpt_nccl_comm_poll(g->comm, group, ticket, -1, &g->self->err);
    while (status == DPT_INPROGRESS);
    return status;
}

struct dpt_nccl_piece gpu_send_to(int peer, const float *from, size_t n)
{
    return (struct dpt_nccl_piece){
        .kind = DPT_NCCL_SEND, .peer = peer, .from = from, .count = n * sizeof *from};
}

struct dpt_nccl_piece gpu_recv_from(int peer, float *to, size_t n)
{
    return (struct dpt_nccl_piece){
        .kind = DPT_NCCL_RECV, .peer = peer, .to = to, .count = n * sizeof *to};
}

/* Sums whose bits show the order. */
static float contribution(int rank, int i)
{
    return 1.0F / (float)(3 + 7 * rank + 11 * i);
}

void gpu_exchange(struct gpu *g, const struct dpt_nccl_piece *pieces, int n)
{
    uint64_t ticket;
    CHECK_OK(dpt_nccl_comm_post(g->comm, 0, &(struct dpt_nccl_op){pieces, n, NULL}, &ticket,
                                &g->self->err),
             &g->self->err);
    CHECK_OK(gpu_wait_for(g, 0, ticket), &g->self->err);
}

void gpu_all_reduce(struct gpu *g)
{
    const int size = dpt_comm_world_size(g->control), rank = dpt_comm_rank(g->control);
    float mine[RANKS_MAX * PIECE], staging[RANKS_MAX][PIECE];
    struct dpt_nccl_piece pieces[2 * RANKS_MAX];
    int n = 0;
    for (int i = 0; i < size * PIECE; i++)
        mine[i] = contribution(rank, i);
    memcpy(staging[rank], mine + (size_t)rank * PIECE, sizeof staging[rank]);
    for (int r = 0; r < size; r++)
        if (r != rank) {
            pieces[n++] = gpu_send_to(r, mine + (size_t)r * PIECE, PIECE);
            pieces[n++] = gpu_recv_from(r, staging[r], PIECE);
        }
    gpu_exchange(g, pieces, n);
    for (int i = 0; i < PIECE; i++) {
        float sum = staging[0][i];
        for (int r = 1; r < size; r++)
            sum += staging[r][i];
        mine[rank * PIECE + i] = sum;
    }
    n = 0;
    for (int r = 0; r < size; r++)
        if (r != rank) {
            pieces[n++] = gpu_send_to(r, mine + (size_t)rank * PIECE, PIECE);
            pieces[n++] = gpu_recv_from(r, mine + (size_t)r * PIECE, PIECE);
        }
    gpu_exchange(g, pieces, n);
    for (int i = 0; i < size * PIECE; i++) {
        float sum = contribution(0, i);
        for (int r = 1; r < size; r++)
            sum += contribution(r, i);
        CHECK(memcmp(&sum, &mine[i], sizeof sum) == 0);
    }
}

void gpu_run(int size, struct scene *scene, rank_fn fn)
{
    struct world world = {.size = size, .arg = scene};
    if (scene->timeout_ms == 0)
        scene->timeout_ms = LONG_MS;
    fabric_init(&scene->fabric);
    scene->fabric.closing_min = scene->closing_min;
    world_run_threads(&world, fn);
    fabric_fini(&scene->fabric);
}
