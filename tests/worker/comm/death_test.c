/* Ranks as processes: one is killed or stopped at each stage of its life, and the others notice. */
#include "tests/every.h"
#include "tests/worker/comm/comm_world.h"

#include "base/clock.h"
#include "base/cores.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

enum {
    DETECT_MS = 100, /* the promise, when this process gets the processor */
    SLACK_MS = 900,  /* for a machine that is busy with other tests, and sanitizers */
    ATTEMPTS = 5,    /* of which one is in time, however busy it is */
    BYTES = 2 << 20,
    GATHER_BYTES = 5000
};

enum stage {
    BEFORE_CREATE, /* listening, never creates */
    IN_CREATE,     /* connected with some, waits for one that does not come */
    IDLE,          /* after creation; the others wait for it */
    IN_TRANSFER,   /* endless traffic among all */
    WHILE_LENDING, /* the others read its memory in place */
    IN_GATHERS,    /* endless small all-gathers */
    STAGE_COUNT
};

struct scene {
    enum stage stage;
    int victim;
    uint64_t delay_us;
    int mesh_max; /* of comm_world.h */
};

/* Shared between the processes; the time of death is the killer's. */
static struct scene *scene_of(struct rank *self)
{
    return (struct scene *)self->world->arg;
}

static void wait_to_be_killed(void)
{
    for (;;)
        pause();
}

static void check_victim_named(struct rank *self, enum dpt_status status, int suspect)
{
    CHECK_STATUS(DPT_EPEER, status, &self->err);
    CHECK(suspect == scene_of(self)->victim);
    const int64_t killed = __atomic_load_n(&self->world->killed_ms, __ATOMIC_ACQUIRE);
    const int64_t took = dpt_now_ms() - killed;
    CHECK(killed != 0);
    if (took > DETECT_MS)
        (void)fprintf(stderr, "rank %d: noticed after %d ms\n", self->rank, (int)took);
    int64_t longest = __atomic_load_n(&self->world->noticed_ms, __ATOMIC_ACQUIRE);
    while (took > longest &&
           !__atomic_compare_exchange_n(&self->world->noticed_ms, &longest, took, false,
                                        __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
        continue;
}

/* The last rank is the killer in every scene. It kills on another thread while it communicates like
 * the others. */
static void *killer(void *arg)
{
    struct rank *self = arg;
    struct world *world = self->world;
    const struct scene *scene = scene_of(self);
    mark_wait(&world->marks[scene->victim], 1);
    let_pass_us(scene->delay_us); /* a random moment in the stage */
    __atomic_store_n(&world->killed_ms, dpt_now_ms(), __ATOMIC_RELEASE);
    CHECK(kill(world->pids[scene->victim], SIGKILL) == 0);
    return NULL;
}

static enum dpt_status talk(struct rank *self, struct dpt_comm *comm, struct dpt_comm_mem *mem)
{
    const struct world *world = self->world;
    const bool lend = scene_of(self)->stage == WHILE_LENDING;
    for (;;) {
        struct dpt_comm_xfer sends[RANKS_MAX], recvs[RANKS_MAX];
        struct dpt_comm_op *send_op, *recv_op;
        int n = 0;
        for (int r = 0; r < world->size; r++) {
            if (r == self->rank)
                continue;
            sends[n] = (struct dpt_comm_xfer){
                .dir = DPT_COMM_SEND, .peer = r, .mem = mem, .bytes = BYTES / RANKS_MAX};
            recvs[n] = sends[n];
            recvs[n].dir = lend ? DPT_COMM_LEND : DPT_COMM_RECV;
            recvs[n].offset = (size_t)(1 + r) * BYTES;
            n++;
        }
        enum dpt_status status = dpt_comm_exchange(comm, sends, n, &send_op, &self->err);
        if (status == DPT_OK)
            status = dpt_comm_exchange(comm, recvs, n, &recv_op, &self->err);
        if (status == DPT_OK)
            status = dpt_comm_poll(comm, recv_op, -1, &self->err);
        uint64_t sum = 0;
        for (int i = 0; status == DPT_OK && lend && i < n; i++) /* its memory outlives it */
            for (size_t at = 0; at < recvs[i].bytes; at += 4096)
                sum += ((const uint8_t *)recvs[i].lent)[at];
        CHECK(sum == 0);
        if (status == DPT_OK)
            dpt_comm_op_free(comm, &recv_op);
        if (status == DPT_OK)
            status = dpt_comm_poll(comm, send_op, -1, &self->err);
        if (status != DPT_OK)
            return status;
        dpt_comm_op_free(comm, &send_op);
    }
}

static enum dpt_status gather_on(struct rank *self, struct dpt_comm *comm)
{
    uint8_t mine[GATHER_BYTES], all[RANKS_MAX * GATHER_BYTES];
    memset(mine, self->rank, sizeof mine);
    for (;;) {
        const enum dpt_status status =
            dpt_comm_small_all_gather(comm, mine, sizeof mine, all, &self->err);
        if (status != DPT_OK)
            return status;
        for (int r = 0; r < self->world->size; r++)
            CHECK(all[r * GATHER_BYTES] == r && all[(r + 1) * GATHER_BYTES - 1] == r);
    }
}

/* A survivor's end must not be taken for the victim's, which a busy rank may see later. */
static void leave_together(struct rank *self)
{
    mark_set(&self->world->marks[self->rank], 2);
    for (int r = 0; r < self->world->size; r++)
        if (r != scene_of(self)->victim)
            mark_wait(&self->world->marks[r], 2);
}

static void live_and_die(struct rank *self)
{
    const struct scene *scene = scene_of(self);
    struct world *world = self->world;
    const bool victim = self->rank == scene->victim;
    pthread_t thread;
    struct dpt_comm_mem *mem;
    struct dpt_comm *comm = NULL;
    CHECK_OK(dpt_comm_mem_create(self->listener, (size_t)BYTES * (RANKS_MAX + 1), &mem, &self->err),
             &self->err);
    if (self->rank == world->size - 1)
        CHECK(pthread_create(&thread, NULL, killer, self) == 0);
    if (victim && scene->stage <= IN_CREATE)
        mark_set(&world->marks[self->rank], 1);
    if (victim && scene->stage == BEFORE_CREATE)
        wait_to_be_killed();
    /* IN_CREATE: the killer does not come, so no creation succeeds, and all others are connected.
     */
    const struct dpt_comm_spec spec = world_spec(self, 1);
    int suspect = -1;
    enum dpt_status status = DPT_EPEER;
    if (scene->stage == IN_CREATE && self->rank == world->size - 1) {
        CHECK(pthread_join(thread, NULL) == 0);
        leave_together(self);
        dpt_comm_mem_destroy(&mem);
        return;
    }
    status = dpt_comm_create(self->listener, &spec, -1, &comm, &suspect, &self->err);
    if (scene->stage > IN_CREATE && status == DPT_OK) {
        if (victim)
            mark_set(&world->marks[self->rank], 1);
        if (victim && scene->stage == IDLE)
            wait_to_be_killed();
        dpt_comm_allow_spin(comm, self->rank % 2 == 0); /* where all are of one host */
        status = scene->stage == IN_GATHERS ? gather_on(self, comm) : talk(self, comm, mem);
        suspect = dpt_comm_suspect(comm);
    }
    if (scene->stage <= IN_CREATE &&
        status == DPT_OK) { /* a rank without a link to the absent one */
        CHECK(scene->mesh_max > 0);
        status = dpt_comm_poll_woken(comm, -1, &self->err);
        suspect = dpt_comm_suspect(comm);
    }
    check_victim_named(self, status, suspect);
    if (self->rank == world->size - 1)
        CHECK(pthread_join(thread, NULL) == 0);
    leave_together(self);
    dpt_comm_destroy(&comm);
    dpt_comm_mem_destroy(&mem);
}

/* Returns the longest that a rank took to notice the death. */
static int64_t play_once(const int *hosts, int size, struct scene scene)
{
    struct world *world = world_shared(size, hosts);
    world->mesh_max = scene.mesh_max;
    int status[RANKS_MAX];
    world->arg = &scene;
    world_run_forks(world, live_and_die, status);
    for (int r = 0; r < size; r++) {
        if (r == scene.victim)
            assert_true(WIFSIGNALED(status[r]) && WTERMSIG(status[r]) == SIGKILL);
        else if (status[r] != 0)
            fail_msg("stage %d, victim %d, delay %d us: rank %d ended with %x", (int)scene.stage,
                     scene.victim, (int)scene.delay_us, r, (unsigned)status[r]);
    }
    const int64_t noticed_ms = world->noticed_ms;
    world_free(world);
    return noticed_ms;
}

static void play_death(const int *hosts, int size, struct scene scene)
{
    for (int attempt = 0; attempt < ATTEMPTS; attempt++)
        if (play_once(hosts, size, scene) < DETECT_MS + SLACK_MS)
            return;
    fail_msg("stage %d, victim %d, delay %d us: noticed late in each of %d attempts",
             (int)scene.stage, scene.victim, (int)scene.delay_us, ATTEMPTS);
}

/* A sanitizer sees each stage and victim once. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { ROUNDS = 1 };
#else
enum { ROUNDS = 2 };
#endif

static void killed_at_every_stage(const int *hosts)
{
    uint64_t random = 4711;
    for (int stage = BEFORE_CREATE; stage < STAGE_COUNT; stage++)
        for (int victim = stage % dpt_test_every(); victim < 3; victim += dpt_test_every())
            for (int round = 0; round < ROUNDS; round++)
                play_death(hosts, 4,
                           (struct scene){.stage = (enum stage)stage,
                                          .victim = victim,
                                          .delay_us = next_random(&random) % 40000});
}

static void killed_in_one_host(void **state)
{
    (void)state;
    killed_at_every_stage((const int[]){0, 0, 0, 0});
}

static void killed_between_hosts(void **state)
{
    (void)state;
    killed_at_every_stage((const int[]){0, 1, 2, 3});
}

static void killed_in_mixed_world(void **state)
{
    (void)state;
    killed_at_every_stage((const int[]){0, 0, 1, 1});
}

/* A rank to which a survivor has no connection dies: those that have one tell it. */
static void killed_where_ranks_relay(void **state)
{
    (void)state;
    const int hosts[] = {0, 1, 2, 3, 4, 5, 6, 7}, pairs[] = {0, 0, 1, 1, 2, 2, 3, 3};
    uint64_t random = 4712;
    for (int stage = BEFORE_CREATE; stage < STAGE_COUNT; stage++)
        for (int round = 0; stage != WHILE_LENDING && round < 2 * ROUNDS; round++)
            play_death(round % 2 == 0 ? hosts : pairs, 8,
                       (struct scene){.stage = (enum stage)stage,
                                      .victim = (int)(next_random(&random) % 7),
                                      .delay_us = next_random(&random) % 40000,
                                      .mesh_max = 4});
}

/* A stopped peer: silence has no deadline, abort ends it. */
static void *abort_soon(void *arg)
{
    let_pass_us(30000);
    dpt_comm_abort(arg);
    return NULL;
}

static void wait_for_stopped(struct rank *self)
{
    struct world *world = self->world;
    struct dpt_comm_mem *mem;
    CHECK_OK(dpt_comm_mem_create(self->listener, BYTES, &mem, &self->err), &self->err);
    struct dpt_comm *comm = world_comm(self, 1);
    if (self->rank == 1) {
        mark_set(&world->marks[1], 1);
        wait_to_be_killed();
    }
    struct dpt_comm_op *op;
    struct dpt_comm_xfer x[] = {{.dir = DPT_COMM_SEND, .peer = 1, .mem = mem, .bytes = BYTES},
                                {.dir = DPT_COMM_RECV, .peer = 1, .mem = mem, .bytes = BYTES}};
    mark_wait(&world->marks[1], 1);
    CHECK(kill(world->pids[1], SIGSTOP) == 0);
    CHECK_OK(dpt_comm_exchange(comm, x, 2, &op, &self->err), &self->err);
    CHECK_STATUS(DPT_INPROGRESS, dpt_comm_poll(comm, op, 50, &self->err), &self->err);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, abort_soon, comm) == 0);
    const int64_t start = dpt_now_ms();
    CHECK_STATUS(DPT_EABORTED, dpt_comm_poll(comm, op, -1, &self->err), &self->err);
    CHECK(dpt_now_ms() - start < TIMEOUT_MS / 2);
    CHECK(pthread_join(thread, NULL) == 0);
    dpt_comm_destroy(&comm);
    dpt_comm_mem_destroy(&mem);
    CHECK(kill(world->pids[1], SIGKILL) == 0);
}

static void stopped_peer_then_abort(void **state)
{
    (void)state;
    for (int host = 0; host < 2; host++) {
        struct world *world = world_shared(2, (const int[]){0, host});
        int status[RANKS_MAX];
        world_run_forks(world, wait_for_stopped, status);
        assert_int_equal(status[0], 0);
        world_free(world);
    }
}

/* Between hosts: a transfer that has begun and stops is an error, within the given time. */
static void stop_in_transfer(struct rank *self)
{
    enum { TIMEOUT = 2000 }; /* also of the creation, which a busy machine must manage */
    struct world *world = self->world;
    struct dpt_comm_mem *mem;
    CHECK_OK(dpt_comm_mem_create(self->listener, 16 * (size_t)BYTES, &mem, &self->err), &self->err);
    struct dpt_comm_spec spec = world_spec(self, 1);
    spec.timeout_ms = TIMEOUT;
    struct dpt_comm *comm;
    CHECK_OK(dpt_comm_create(self->listener, &spec, -1, &comm, NULL, &self->err), &self->err);
    struct dpt_comm_op *op;
    struct dpt_comm_xfer x = {.dir = self->rank == 0 ? DPT_COMM_RECV : DPT_COMM_SEND,
                              .peer = 1 - self->rank,
                              .mem = mem,
                              .bytes = 16 * (size_t)BYTES};
    if (self->rank == 1) { /* as much as the socket takes at once, then nothing more */
        CHECK_OK(dpt_comm_exchange(comm, &x, 1, &op, &self->err), &self->err);
        mark_set(&world->marks[1], 1);
        wait_to_be_killed();
    }
    mark_wait(&world->marks[1], 1);
    CHECK_OK(dpt_comm_exchange(comm, &x, 1, &op, &self->err), &self->err);
    const int64_t start = dpt_now_ms();
    CHECK_STATUS(DPT_ETIMEOUT, dpt_comm_poll(comm, op, -1, &self->err), &self->err);
    const int64_t took = dpt_now_ms() - start;
    CHECK(took >= TIMEOUT && took < TIMEOUT_MS / 2);
    CHECK(dpt_comm_suspect(comm) == 1);
    dpt_comm_destroy(&comm);
    dpt_comm_mem_destroy(&mem);
    CHECK(kill(world->pids[1], SIGKILL) == 0);
}

static void begun_transfer_that_stops(void **state)
{
    (void)state;
    struct world *world = world_shared(2, (const int[]){0, 1});
    int status[RANKS_MAX];
    world_run_forks(world, stop_in_transfer, status);
    assert_int_equal(status[0], 0);
    world_free(world);
}

/* Rank 1 sends twice to rank 0, which reads the first alone and waits for rank 2. Then rank 1 dies,
 * which is noticed although its last message is unread; or it leaves, and that message can still be
 * read. */
static void end_behind_unread(struct rank *self)
{
    enum { PART = 64 << 10 };
    struct world *world = self->world;
    const bool dies = *(const bool *)world->arg;
    struct dpt_comm_mem *mem;
    CHECK_OK(dpt_comm_mem_create(self->listener, (size_t)BYTES, &mem, &self->err), &self->err);
    struct dpt_comm *comm = world_comm(self, 1);
    struct dpt_comm_op *op, *other;
    struct dpt_comm_xfer sends[] = {{.dir = DPT_COMM_SEND, .peer = 0, .mem = mem, .bytes = PART},
                                    {.dir = DPT_COMM_SEND, .peer = 0, .mem = mem, .bytes = PART}};
    struct dpt_comm_xfer from_1 = {.dir = DPT_COMM_RECV, .peer = 1, .mem = mem, .bytes = PART};
    struct dpt_comm_xfer from_2 = {.dir = DPT_COMM_RECV, .peer = 2, .mem = mem, .bytes = PART};
    if (self->rank == 0) {
        mark_wait(&world->marks[1], 1);
        CHECK_OK(dpt_comm_exchange(comm, &from_1, 1, &op, &self->err), &self->err);
        CHECK_OK(dpt_comm_poll(comm, op, -1, &self->err), &self->err);
        dpt_comm_op_free(comm, &op);
        CHECK_OK(dpt_comm_exchange(comm, &from_2, 1, &other, &self->err), &self->err);
        mark_set(&world->marks[0], 1);
        const enum dpt_status status = dpt_comm_poll(comm, other, dies ? 20000 : 200, &self->err);
        CHECK_STATUS(dies ? DPT_EPEER : DPT_INPROGRESS, status, &self->err);
        CHECK(dpt_comm_suspect(comm) == (dies ? 1 : -1));
        if (!dies) {
            CHECK_OK(dpt_comm_exchange(comm, &from_1, 1, &op, &self->err), &self->err);
            CHECK_OK(dpt_comm_poll(comm, op, -1, &self->err), &self->err);
            dpt_comm_op_free(comm, &op);
        }
        mark_set(&world->marks[0], 2);
    } else if (self->rank == 1) {
        CHECK_OK(dpt_comm_exchange(comm, sends, 2, &op, &self->err), &self->err);
        CHECK_OK(dpt_comm_poll(comm, op, -1, &self->err), &self->err);
        dpt_comm_op_free(comm, &op);
        mark_set(&world->marks[1], 1);
        mark_wait(&world->marks[0], 1);
        mark_wait(&world->marks[2], 1);
        if (dies)
            CHECK(kill(getpid(), SIGKILL) == 0);
    } else {
        mark_set(&world->marks[2], 1); /* its communicator is whole: rank 1 may end */
        mark_wait(&world->marks[0], 2);
    }
    dpt_comm_destroy(&comm);
    dpt_comm_mem_destroy(&mem);
}

static void ended_behind_unread(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        bool dies = i == 0;
        struct world *world = world_shared(3, (const int[]){0, 1, 2});
        int status[RANKS_MAX];
        world->arg = &dies;
        world_run_forks(world, end_behind_unread, status);
        assert_int_equal(status[0], 0);
        assert_int_equal(status[2], 0);
        assert_true(dies ? WIFSIGNALED(status[1]) : status[1] == 0);
        world_free(world);
    }
}

int main(void)
{
    dpt_cores_set_demand(1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(killed_in_one_host),      cmocka_unit_test(killed_between_hosts),
        cmocka_unit_test(killed_in_mixed_world),   cmocka_unit_test(killed_where_ranks_relay),
        cmocka_unit_test(stopped_peer_then_abort), cmocka_unit_test(begun_transfer_that_stops),
        cmocka_unit_test(ended_behind_unread),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
