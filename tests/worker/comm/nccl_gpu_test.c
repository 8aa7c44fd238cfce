/* The data plane between GPUs with the real NCCL: three processes on one GPU, each made to look
 * like another machine, so that all data goes through sockets: correct, but slow. A canonical
 * all-reduce; one process dies while the others wait for it; they go on without it. Skips without a
 * GPU. */
#include "kernels/ops.h"
#include "tests/worker/comm/comm_world.h"

#include "base/clock.h"
#include "worker/comm/nccl_comm_state.h"

#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    SIZE = 3,
    VICTIM = 1,
    SKIP = 77,
    PIECE = 100 * 1000, /* elements */
    LONG_MS = 60000,
    SECONDS_MAX = 150
};

struct gpu {
    struct rank *self;
    struct dpt_device *device;
    struct dpt_stream *stream;
    const struct dpt_nccl_calls *calls;
    struct dpt_nccl_comm *comm;
    struct dpt_comm *control;
    float *mine, *staging; /* (SIZE, PIECE), of the device */
    float *host;           /* (SIZE, PIECE) */
};

static void look_like_a_machine(int rank)
{
    static const char *const settings[][2] = {
        {"NCCL_NET", "Socket"},    {"NCCL_SOCKET_IFNAME", "lo"}, {"NCCL_IB_DISABLE", "1"},
        {"NCCL_P2P_DISABLE", "1"}, {"NCCL_SHM_DISABLE", "1"},    {"NCCL_NVLS_ENABLE", "0"},
        {"NCCL_RAS_ENABLE", "0"},  {"NCCL_MAX_CTAS", "2"}};
    char id[32];
    set_text(id, sizeof id, "dpt-test-0");
    id[strlen(id) - 1] = (char)('0' + rank);
    CHECK(setenv("NCCL_HOSTID", id, 1) == 0);
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++)
        CHECK(setenv(settings[i][0], settings[i][1], 1) == 0);
}

static void open_gpu_memory(struct gpu *g)
{
    struct dpt_err *err = &g->self->err;
    look_like_a_machine(g->self->rank);
    if (dpt_device_cuda_create(0, &g->device, err) != DPT_OK ||
        dpt_nccl_calls_load(&g->calls, err) != DPT_OK) {
        (void)fprintf(stderr, "skipped: %s\n", err->text);
        _exit(SKIP);
    }
    const size_t bytes = (size_t)SIZE * PIECE * sizeof(float);
    void *p;
    CHECK_OK(dpt_device_alloc(g->device, bytes, &p, err), err);
    g->mine = p;
    CHECK_OK(dpt_device_alloc(g->device, bytes, &p, err), err);
    g->staging = p;
    g->host = malloc(bytes);
    CHECK(g->host != NULL);
    CHECK_OK(dpt_stream_create(g->device, 1, &g->stream, err), err);
    CHECK_OK(dpt_nccl_comm_create(g->calls, NULL, LONG_MS, &g->comm, err), err);
}

static void copy(struct gpu *g, size_t n, const float *from, float *to)
{
    dpt_device_ops(g->device)->copy(g->stream, n * sizeof *to, from, to);
    CHECK_OK(dpt_stream_sync(g->stream, &g->self->err), &g->self->err);
}

static void open_world(struct gpu *g, uint64_t generation)
{
    const struct dpt_nccl_comm_spec spec = {
        .control = g->control, .generation = generation, .nonce = {1}};
    const int64_t start = dpt_now_ms();
    CHECK_OK(dpt_nccl_comm_open(g->comm, &spec, &g->self->err), &g->self->err);
    (void)printf("rank %d of %d: generation %d %s in %d ms\n", dpt_comm_rank(g->control),
                 dpt_comm_world_size(g->control), (int)generation,
                 g->comm->world.shrink ? "shrunk" : "made", (int)(dpt_now_ms() - start));
}

static void exchange(struct gpu *g, const struct dpt_nccl_piece *pieces, int n)
{
    uint64_t ticket;
    enum dpt_status status;
    CHECK_OK(dpt_nccl_comm_post(g->comm, 0, &(struct dpt_nccl_op){pieces, n, NULL}, &ticket,
                                &g->self->err),
             &g->self->err);
    do
        status = dpt_nccl_comm_poll(g->comm, 0, ticket, -1, &g->self->err);
    while (status == DPT_INPROGRESS);
    CHECK_OK(status, &g->self->err);
}

static struct dpt_nccl_piece piece(enum dpt_nccl_kind kind, int peer, float *at)
{
    return (struct dpt_nccl_piece){
        .kind = kind, .peer = peer, .from = at, .to = at, .count = PIECE * sizeof *at};
}

static float contribution(int rank, int i)
{
    return 1.0F / (float)(3 + 7 * rank + i % 1000);
}

/* As in nccl_comm_test.c, with memory and sums of the device. */
static void all_reduce(struct gpu *g)
{
    const int size = dpt_comm_world_size(g->control), rank = dpt_comm_rank(g->control);
    const struct dpt_ops *ops = dpt_device_ops(g->device);
    struct dpt_nccl_piece pieces[2 * SIZE];
    float *own = g->mine + (size_t)rank * PIECE;
    int n = 0;
    for (int i = 0; i < size * PIECE; i++)
        g->host[i] = contribution(rank, i);
    copy(g, (size_t)size * PIECE, g->host, g->mine);
    copy(g, PIECE, g->host + (size_t)rank * PIECE, g->staging + (size_t)rank * PIECE);
    for (int r = 0; r < size; r++)
        if (r != rank) {
            pieces[n++] = piece(DPT_NCCL_SEND, r, g->mine + (size_t)r * PIECE);
            pieces[n++] = piece(DPT_NCCL_RECV, r, g->staging + (size_t)r * PIECE);
        }
    exchange(g, pieces, n);
    copy(g, PIECE, g->staging, own);
    for (int r = 1; r < size; r++)
        ops->add(g->stream, PIECE, own, g->staging + (size_t)r * PIECE, own);
    CHECK_OK(dpt_stream_sync(g->stream, &g->self->err), &g->self->err);
    n = 0;
    for (int r = 0; r < size; r++)
        if (r != rank) {
            pieces[n++] = piece(DPT_NCCL_SEND, r, own);
            pieces[n++] = piece(DPT_NCCL_RECV, r, g->mine + (size_t)r * PIECE);
        }
    exchange(g, pieces, n);
    copy(g, (size_t)size * PIECE, g->mine, g->host);
    for (int i = 0; i < size * PIECE; i++) {
        float sum = contribution(0, i);
        for (int r = 1; r < size; r++)
            sum += contribution(r, i);
        CHECK(memcmp(&sum, &g->host[i], sizeof sum) == 0);
    }
}

/* The survivors' control: ranks move up. */
static void survivors_control(struct gpu *g)
{
    struct rank *self = g->self;
    struct dpt_comm_spec spec = world_spec(self, 2);
    int n = 0;
    for (int i = 0; i < spec.n_peers; i++) {
        if (self->peers[i].rank == VICTIM)
            continue;
        self->peers[n] = self->peers[i];
        self->peers[n].rank -= self->peers[n].rank > VICTIM;
        n++;
    }
    spec.n_peers = n;
    spec.world_size--;
    spec.rank -= self->rank > VICTIM;
    CHECK_OK(dpt_comm_create(self->listener, &spec, -1, &g->control, NULL, &self->err), &self->err);
}

static void die_or_go_on(struct rank *self)
{
    struct gpu g = {.self = self};
    uint64_t ticket;
    enum dpt_status status;
    (void)alarm(SECONDS_MAX);
    open_gpu_memory(&g);
    g.control = world_comm(self, 1);
    open_world(&g, 1);
    for (int i = 0; i < 3; i++)
        all_reduce(&g);
    pthread_barrier_wait(&self->world->barrier);
    if (self->rank == VICTIM)
        _exit(0);
    const struct dpt_nccl_piece late = piece(DPT_NCCL_RECV, VICTIM, g.staging);
    CHECK_OK(
        dpt_nccl_comm_post(g.comm, 0, &(struct dpt_nccl_op){&late, 1, NULL}, &ticket, &self->err),
        &self->err);
    do
        status = dpt_nccl_comm_poll(g.comm, 0, ticket, -1, &self->err);
    while (status == DPT_INPROGRESS);
    CHECK_STATUS(DPT_EPEER, status, &self->err);
    const int64_t start = dpt_now_ms();
    dpt_nccl_comm_quit(g.comm);
    (void)printf("rank %d: at rest in %d ms\n", self->rank, (int)(dpt_now_ms() - start));
    dpt_comm_destroy(&g.control);
    survivors_control(&g);
    open_world(&g, 2);
    all_reduce(&g);
    dpt_nccl_comm_close(g.comm);
    dpt_comm_destroy(&g.control);
    dpt_nccl_comm_destroy(&g.comm);
    dpt_stream_destroy(&g.stream);
    dpt_device_free(g.device, g.mine, (size_t)SIZE * PIECE * sizeof *g.mine);
    dpt_device_free(g.device, g.staging, (size_t)SIZE * PIECE * sizeof *g.staging);
    dpt_device_destroy(&g.device);
    free(g.host);
    (void)fflush(stdout);
}

int main(void)
{
    int status[SIZE], skipped = 0, failed = 0;
    struct world *world = world_shared(SIZE, (const int[SIZE]){0, 0, 0});
    world_run_forks(world, die_or_go_on, status);
    for (int i = 0; i < SIZE; i++) {
        skipped += WIFEXITED(status[i]) && WEXITSTATUS(status[i]) == SKIP;
        failed += !WIFEXITED(status[i]) || WEXITSTATUS(status[i]) != 0;
    }
    world_free(world);
    return skipped == SIZE ? SKIP : failed > 0;
}
