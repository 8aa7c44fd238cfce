/* Ranks as threads or processes for the communicator's tests (comm_world.h). */
#include "tests/worker/comm/comm_world.h"

#include "base/clock.h"

#include <dirent.h>
#include <sched.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static void publish(struct rank *self)
{
    struct world *world = self->world;
    if (world->sim != NULL)
        CHECK_OK(dpt_sim_listener_create(world->sim, self->rank, &self->listener, &self->err),
                 &self->err);
    else
        CHECK_OK(dpt_comm_listener_create(world->address, &self->listener, &self->err), &self->err);
    set_text(world->shm_addr[self->rank], sizeof world->shm_addr[self->rank],
             dpt_comm_listener_shm_addr(self->listener));
    set_text(world->tcp_addr[self->rank], sizeof world->tcp_addr[self->rank],
             dpt_comm_listener_tcp_addr(self->listener));
    pthread_barrier_wait(&world->barrier);
}

struct start {
    struct rank rank;
    rank_fn fn;
};

static void *run_rank(void *arg)
{
    struct start *start = arg;
    publish(&start->rank);
    start->fn(&start->rank);
    dpt_comm_listener_destroy(&start->rank.listener);
    return NULL;
}

void world_run_threads(struct world *world, rank_fn fn)
{
    pthread_t threads[RANKS_MAX];
    struct start starts[RANKS_MAX];
    if (world->address == NULL)
        world->address = "127.0.0.1";
    pthread_barrier_init(&world->barrier, NULL, (unsigned)world->size);
    for (int i = 0; i < world->size; i++) {
        starts[i] = (struct start){.rank = {.world = world, .rank = i}, .fn = fn};
        CHECK(pthread_create(&threads[i], NULL, run_rank, &starts[i]) == 0);
    }
    for (int i = 0; i < world->size; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    pthread_barrier_destroy(&world->barrier);
}

struct world *world_shared(int size, const int *hosts)
{
    struct world *world =
        mmap(NULL, sizeof *world, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(world != MAP_FAILED);
    world->size = size;
    world->address = "127.0.0.1";
    for (int i = 0; i < size; i++)
        world->hosts[i] = hosts[i];
    pthread_barrierattr_t attr;
    pthread_barrierattr_init(&attr);
    pthread_barrierattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&world->barrier, &attr, (unsigned)size);
    pthread_barrierattr_destroy(&attr);
    return world;
}

void world_free(struct world *world)
{
    munmap(world, sizeof *world);
}

void world_run_forks(struct world *world, rank_fn fn, int *ret_status)
{
    fflush(NULL);
    for (int i = 0; i < world->size; i++) {
        const pid_t pid = fork();
        CHECK(pid >= 0);
        if (pid == 0) {
            alarm(30);
            struct start start = {.rank = {.world = world, .rank = i}, .fn = fn};
            world->pids[i] = getpid();
            run_rank(&start);
            _exit(0);
        }
        world->pids[i] = pid;
    }
    for (int i = 0; i < world->size; i++)
        CHECK(waitpid(world->pids[i], &ret_status[i], 0) == world->pids[i]);
}

enum dpt_encrypt world_encrypt(const struct world *world)
{
    const char *text = getenv("DPT_TEST_ENCRYPT");
    if (world->encrypt != DPT_ENCRYPT_NONE || text == NULL)
        return world->encrypt;
    CHECK(strcmp(text, "mac") == 0 || strcmp(text, "data") == 0);
    return strcmp(text, "mac") == 0 ? DPT_ENCRYPT_MAC : DPT_ENCRYPT_DATA;
}

struct dpt_comm_spec world_spec(struct rank *self, uint64_t generation)
{
    const struct world *world = self->world;
    struct dpt_comm_spec spec = {.run = "test",
                                 .generation = generation,
                                 .rank = self->rank,
                                 .world_size = world->size,
                                 .host = world->hosts[self->rank],
                                 .peers = self->peers,
                                 .timeout_ms = TIMEOUT_MS,
                                 .mesh_max = world->mesh_max,
                                 .encrypt = world_encrypt(world)};
    memset(spec.nonce, (int)(generation * 7 + 1), sizeof spec.nonce);
    for (int i = 0; i < world->size; i++) {
        if (i == self->rank)
            continue;
        struct dpt_comm_peer *peer = &self->peers[spec.n_peers++];
        peer->rank = i;
        peer->host = world->hosts[i];
        set_text(peer->shm_addr, sizeof peer->shm_addr, world->shm_addr[i]);
        set_text(peer->tcp_addr, sizeof peer->tcp_addr, world->tcp_addr[i]);
    }
    return spec;
}

struct dpt_comm *world_comm(struct rank *self, uint64_t generation)
{
    struct dpt_comm *comm;
    const struct dpt_comm_spec spec = world_spec(self, generation);
    CHECK_OK(dpt_comm_create(self->listener, &spec, -1, &comm, NULL, &self->err), &self->err);
    return comm;
}

enum dpt_status world_gather(struct rank *self, struct dpt_comm *comm, struct dpt_comm_mem *mem,
                             const size_t *offsets, const size_t *bytes)
{
    struct dpt_comm_xfer xfers[2 * RANKS_MAX];
    int n = 0;
    for (int r = 0; r < self->world->size; r++) {
        if (r != self->rank && bytes[self->rank] > 0)
            xfers[n++] = (struct dpt_comm_xfer){.dir = DPT_COMM_SEND,
                                                .peer = r,
                                                .mem = mem,
                                                .offset = offsets[self->rank],
                                                .bytes = bytes[self->rank]};
        if (r != self->rank && bytes[r] > 0)
            xfers[n++] = (struct dpt_comm_xfer){.dir = DPT_COMM_RECV,
                                                .peer = r,
                                                .mem = mem,
                                                .offset = offsets[r],
                                                .bytes = bytes[r]};
    }
    struct dpt_comm_op *op;
    DPT_TRY(dpt_comm_exchange(comm, xfers, n, &op, &self->err));
    const enum dpt_status status = dpt_comm_poll(comm, op, -1, &self->err);
    dpt_comm_op_free(comm, &op);
    return status;
}

void mark_wait(const int *mark, int value)
{
    const int64_t end = dpt_now_ms() + 20000;
    while (__atomic_load_n(mark, __ATOMIC_ACQUIRE) < value) {
        CHECK(dpt_now_ms() < end);
        sched_yield();
    }
}

void mark_set(int *mark, int value)
{
    __atomic_store_n(mark, value, __ATOMIC_RELEASE);
}

void let_pass_us(uint64_t us)
{
    const struct timespec time = {.tv_nsec = (long)us * 1000};
    nanosleep(&time, NULL); /* tidy: pause of a bounded poll (here: one turn) */
}

void set_text(char *ret, size_t bytes, const char *text)
{
    const int n = snprintf(ret, bytes, "%s", text);
    CHECK(n >= 0 && (size_t)n < bytes);
}

int count_fds(void)
{
    int n = 0;
    DIR *dir = opendir("/proc/self/fd");
    CHECK(dir != NULL);
    while (readdir(dir) != NULL)
        n++;
    closedir(dir);
    return n;
}

/* Mappings of memfds: others come and go with malloc. */
int count_maps(void)
{
    int n = 0;
    char line[512];
    FILE *file = fopen("/proc/self/maps", "r");
    CHECK(file != NULL);
    while (fgets(line, sizeof line, file) != NULL)
        n += strstr(line, "memfd:dpt") != NULL;
    fclose(file);
    return n;
}
