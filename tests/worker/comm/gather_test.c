/* The small all-gather when a rank dies in it: bytes that one rank has received from all, the
 * others receive, too. */
#include "tests/worker/comm/comm_world.h"
#include "worker/comm/comm_state.h"

#include "base/clock.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { VICTIM, FIRST, SECOND, SIZE, SMALL = 8, LARGE = 3000, SOON_MS = TIMEOUT_MS / 2 };

/* How far each rank came before the victim was killed. */
enum scene {
    ALL_SENT,       /* the victim may have got all: both others must */
    ABORTED,        /* the same, and FIRST is told to abort before it looks */
    SECOND_GAVE_UP, /* the same, and SECOND has failed and left before FIRST looks */
    SECOND_MISSING, /* no rank can have received all */
    VICTIM_MISSING, /* no rank can have received all */
    SCENE_COUNT
};

struct script {
    enum scene scene;
    size_t bytes;
};

enum { MARK_SENT = 1, MARK_LOOKED = 2 };

static uint8_t byte_of(int rank)
{
    return (uint8_t)(17 + rank);
}

static bool sends_first(enum scene scene, int rank)
{
    return !(scene == SECOND_MISSING && rank == SECOND) &&
           !(scene == VICTIM_MISSING && rank == VICTIM) && rank != FIRST;
}

/* The transfers of small_all_gather in two halves: the sends are gone when this returns. */
static struct dpt_comm_op *post_gather(struct rank *self, struct dpt_comm *comm,
                                       struct dpt_comm_mem *mem,
                                       struct dpt_comm_xfer xfers[2 * SIZE], uint8_t *all)
{
    const size_t bytes = ((const struct script *)self->world->arg)->bytes;
    struct dpt_comm_op *op;
    int n = 0;
    memset(dpt_comm_mem_data(mem), byte_of(self->rank), bytes);
    memset(all + (size_t)self->rank * bytes, byte_of(self->rank), bytes);
    for (int r = 0; r < SIZE; r++) {
        if (r == self->rank)
            continue;
        xfers[n++] = (struct dpt_comm_xfer){.dir = DPT_COMM_SEND,
                                            .peer = r,
                                            .mem = bytes > DPT_COMM_BUF_BYTES_MAX ? mem : NULL,
                                            .buf = dpt_comm_mem_data(mem),
                                            .bytes = bytes};
        xfers[n++] = (struct dpt_comm_xfer){
            .dir = DPT_COMM_RECV, .peer = r, .buf = all + (size_t)r * bytes, .bytes = bytes};
    }
    CHECK_OK(dpt_comm_exchange(comm, xfers, n, &op, &self->err), &self->err);
    return op;
}

static void check_all(const struct rank *self, const uint8_t *all)
{
    const size_t bytes = ((const struct script *)self->world->arg)->bytes;
    for (int r = 0; r < SIZE; r++)
        for (size_t i = 0; i < bytes; i++)
            CHECK(all[(size_t)r * bytes + i] == byte_of(r));
}

static void await_death(pid_t pid)
{
    const int64_t deadline = dpt_now_ms() + 2 * SOON_MS;
    while (kill(pid, 0) == 0) { /* the parent reaps it */
        CHECK(dpt_now_ms() < deadline);
        let_pass_us(500);
    }
}

/* FIRST uses the call itself, with all that will come in its sockets. */
static void be_first(struct rank *self, struct dpt_comm *comm)
{
    const struct script *script = self->world->arg;
    uint8_t mine[LARGE], all[SIZE * LARGE];
    memset(mine, byte_of(FIRST), script->bytes);
    if (script->scene == ABORTED)
        dpt_comm_abort(comm);
    const int64_t start = dpt_now_ms();
    const enum dpt_status status =
        dpt_comm_small_all_gather(comm, mine, script->bytes, all, &self->err);
    CHECK(dpt_now_ms() - start < SOON_MS);
    if (script->scene == SECOND_MISSING || script->scene == VICTIM_MISSING) {
        CHECK_STATUS(DPT_EPEER, status, &self->err);
    } else {
        CHECK_OK(status, &self->err);
        check_all(self, all);
    }
    /* Whatever came of it, that was the last: the victim is missed. */
    const enum dpt_status next =
        dpt_comm_small_all_gather(comm, mine, script->bytes, all, &self->err);
    CHECK(next == DPT_EPEER || (next == DPT_EABORTED && script->scene == ABORTED));
    CHECK(next == DPT_EABORTED || dpt_comm_suspect(comm) == VICTIM);
}

/* SECOND has posted before the death, and looks when FIRST has: between hosts its part may be done
 * by then. */
static void be_second(struct rank *self, struct dpt_comm *comm, struct dpt_comm_op *op,
                      const uint8_t *all)
{
    const enum scene scene = ((const struct script *)self->world->arg)->scene;
    enum dpt_status status;
    do
        status = dpt_comm_poll(comm, op, -1, &self->err);
    while (status == DPT_INPROGRESS);
    const bool may_end_well = scene == ALL_SENT || scene == ABORTED;
    if (status == DPT_OK && may_end_well) {
        check_all(self, all);
        return;
    }
    CHECK_STATUS(DPT_EPEER, status, &self->err);
    CHECK(dpt_comm_suspect(comm) == VICTIM);
    CHECK(dpt_comm_settle(comm, op) == may_end_well);
    if (may_end_well)
        check_all(self, all);
}

static void play_rank(struct rank *self)
{
    struct world *world = self->world;
    const struct script *script = world->arg;
    struct dpt_comm_xfer xfers[2 * SIZE];
    struct dpt_comm_mem *mem;
    struct dpt_comm_op *op = NULL;
    uint8_t all[SIZE * LARGE];
    CHECK_OK(dpt_comm_mem_create(self->listener, LARGE, &mem, &self->err), &self->err);
    struct dpt_comm *comm = world_comm(self, 1);
    pthread_barrier_wait(&world->barrier); /* the others' creation must not see the death */
    if (sends_first(script->scene, self->rank))
        op = post_gather(self, comm, mem, xfers, all);
    mark_set(&world->marks[self->rank], MARK_SENT);
    if (self->rank == VICTIM)
        for (;;)
            pause();
    for (int r = 0; r < SIZE; r++)
        mark_wait(&world->marks[r], MARK_SENT);
    if (self->rank == SECOND)
        CHECK(kill(world->pids[VICTIM], SIGKILL) == 0);
    await_death(world->pids[VICTIM]);
    const int other = self->rank == FIRST ? SECOND : FIRST;
    const bool goes_first = (self->rank == SECOND) == (script->scene == SECOND_GAVE_UP);
    if (!goes_first)
        mark_wait(&world->marks[other], MARK_LOOKED);
    if (self->rank == FIRST)
        be_first(self, comm);
    else if (op != NULL)
        be_second(self, comm, op, all);
    if (script->scene == SECOND_GAVE_UP) /* says goodbye before the other looks */
        dpt_comm_destroy(&comm);
    mark_set(&world->marks[self->rank], MARK_LOOKED);
    mark_wait(&world->marks[other], MARK_LOOKED);
    dpt_comm_destroy(&comm);
    dpt_comm_mem_destroy(&mem);
}

static void play_gather(const int *hosts, struct script script)
{
    struct world *world = world_shared(SIZE, hosts);
    int status[RANKS_MAX];
    world->arg = &script;
    world_run_forks(world, play_rank, status);
    assert_true(WIFSIGNALED(status[VICTIM]) && WTERMSIG(status[VICTIM]) == SIGKILL);
    for (int r = FIRST; r < SIZE; r++)
        if (status[r] != 0)
            fail_msg("scene %d, %zu bytes, hosts %d %d %d: rank %d ended with %x",
                     (int)script.scene, script.bytes, hosts[0], hosts[1], hosts[2], r,
                     (unsigned)status[r]);
    world_free(world);
}

static void every_scene(size_t bytes)
{
    const int hosts[][SIZE] = {{0, 0, 0}, {0, 1, 2}, {0, 0, 1}, {0, 1, 1}};
    for (size_t h = 0; h < sizeof hosts / sizeof *hosts; h++)
        for (int scene = 0; scene < SCENE_COUNT; scene++)
            /* Memory of a peer that gave up is not read: it may have another use. */
            if (scene != SECOND_GAVE_UP || bytes <= DPT_COMM_BUF_BYTES_MAX)
                play_gather(hosts[h], (struct script){.scene = (enum scene)scene, .bytes = bytes});
}

static void death_in_a_small_gather(void **state)
{
    (void)state;
    every_scene(SMALL);
}

static void death_in_a_gather_from_memory(void **state)
{
    (void)state;
    every_scene(LARGE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(death_in_a_small_gather),
        cmocka_unit_test(death_in_a_gather_from_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
