/* Memory that is lent to be written: the borrower writes a result there. A lender that gives up
 * takes it back, and nothing is written there afterwards, even by a writer that was stopped in the
 * middle. */
#include "tests/worker/comm/comm_world.h"

#include "base/clock.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum {
    FLOATS = 3000,
    ROUNDS = 200,
    SOON_MS = TIMEOUT_MS / 2, /* an end within it has not waited for the deadline */
    LENDER = 0,
    WRITER = 1
};

static struct dpt_comm_mem *open_mem(struct rank *self)
{
    struct dpt_comm_mem *mem;
    CHECK_OK(dpt_comm_mem_create_for(self->listener, DPT_MEMORY_COMM, true, FLOATS * sizeof(float),
                                     &mem, &self->err),
             &self->err);
    return mem;
}

static struct dpt_comm_xfer lending(enum dpt_comm_dir dir, int peer, struct dpt_comm_mem *mem)
{
    return (struct dpt_comm_xfer){.dir = dir,
                                  .peer = peer,
                                  .mem = dir == DPT_COMM_SEND ? mem : NULL,
                                  .bytes = FLOATS * sizeof(float),
                                  .write = true};
}

/* Rank 0 adds the values of all ranks, in place in each memory. */
static void sum_rounds(struct rank *self)
{
    const int size = self->world->size;
    struct dpt_comm_mem *mem = open_mem(self);
    float *data = dpt_comm_mem_data(mem);
    struct dpt_comm *comm = world_comm(self, 1);
    for (int round = 0; round < ROUNDS; round++) {
        struct dpt_comm_xfer x[RANKS_MAX];
        struct dpt_comm_op *op;
        int n = 0;
        for (int i = 0; i < FLOATS; i++)
            data[i] = (float)(round + i * (self->rank + 1));
        for (int r = 1; r < size; r++)
            if (self->rank == 0)
                x[n++] = lending(DPT_COMM_LEND, r, mem);
        if (self->rank != 0)
            x[n++] = lending(DPT_COMM_SEND, 0, mem);
        CHECK_OK(dpt_comm_exchange(comm, x, n, &op, &self->err), &self->err);
        CHECK_OK(dpt_comm_poll(comm, op, -1, &self->err), &self->err);
        if (self->rank == 0) {
            CHECK_OK(dpt_comm_write_begin(comm, op, &self->err), &self->err);
            for (int r = 0; r < n; r++) {
                CHECK(x[r].lent == x[r].lent_write);
                for (int i = 0; i < FLOATS; i++)
                    data[i] += ((const float *)x[r].lent)[i];
            }
            for (int r = 0; r < n; r++)
                memcpy(x[r].lent_write, data, FLOATS * sizeof(float));
            dpt_comm_write_end(comm);
        }
        dpt_comm_op_free(comm, &op);
        for (int i = 0; i < FLOATS; i++)
            CHECK(data[i] == (float)(round * size + i * (size * (size + 1) / 2)));
        if (self->rank != 0)
            CHECK(dpt_comm_bytes_sent(comm) == (uint64_t)(round + 1) * FLOATS * sizeof(float));
    }
    if (self->rank == 0)
        CHECK(dpt_comm_bytes_sent(comm) ==
              (uint64_t)(size - 1) * ROUNDS * FLOATS * sizeof(float)); /* written */
    while (dpt_comm_poll(comm, NULL, -1, &self->err) == DPT_INPROGRESS)
        continue;
    pthread_barrier_wait(&self->world->barrier);
    dpt_comm_destroy(&comm);
    dpt_comm_mem_destroy(&mem);
}

static void the_sum_comes_back_in_place(void **state)
{
    (void)state;
    for (int size = 2; size <= 4; size++) {
        struct world world = {.size = size};
        world_run_threads(&world, sum_rounds);
    }
}

static void refuse(struct rank *self)
{
    struct dpt_comm_mem *mem = open_mem(self), *closed;
    uint8_t buf[4];
    CHECK_OK(dpt_comm_mem_create(self->listener, 64, &closed, &self->err), &self->err);
    struct dpt_comm *comm = world_comm(self, 1);
    struct dpt_comm_op *op;
    const int host_peer = 1 - self->rank % 2 + self->rank / 2 * 2, other = (self->rank + 2) % 4;
    struct dpt_comm_xfer bad[] = {
        {.dir = DPT_COMM_SEND, .peer = host_peer, .mem = closed, .bytes = 4},
        {.dir = DPT_COMM_SEND, .peer = host_peer, .buf = buf, .bytes = 4},
        {.dir = DPT_COMM_RECV, .peer = host_peer, .mem = mem, .bytes = 4},
        {.dir = DPT_COMM_LEND, .peer = host_peer, .mem = mem, .bytes = 4},
        {.dir = DPT_COMM_LEND, .peer = host_peer, .buf = buf, .bytes = 4},
        {.dir = DPT_COMM_SEND, .peer = other, .mem = mem, .bytes = 4}, /* of another host */
        {.dir = DPT_COMM_LEND, .peer = other, .bytes = 4},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        bad[i].write = true;
        CHECK_STATUS(DPT_EINVAL, dpt_comm_exchange(comm, &bad[i], 1, &op, &self->err), &self->err);
    }
    pthread_barrier_wait(&self->world->barrier);
    dpt_comm_destroy(&comm);
    dpt_comm_mem_destroy(&mem);
    dpt_comm_mem_destroy(&closed);
}

static void only_open_memory_of_one_host(void **state)
{
    (void)state;
    struct world world = {.size = 4, .hosts = {0, 0, 1, 1}};
    world_run_threads(&world, refuse);
}

/* One side means to write, the other to read alone. */
static void disagree(struct rank *self)
{
    struct dpt_comm_mem *mem = open_mem(self);
    struct dpt_comm *comm = world_comm(self, 1);
    struct dpt_comm_op *op;
    struct dpt_comm_xfer x =
        lending(self->rank == LENDER ? DPT_COMM_SEND : DPT_COMM_LEND, 1 - self->rank, mem);
    x.write = self->rank == (int)self->world->seed;
    CHECK_OK(dpt_comm_exchange(comm, &x, 1, &op, &self->err), &self->err);
    const enum dpt_status status = dpt_comm_poll(comm, op, -1, &self->err);
    CHECK(status == (self->rank == WRITER ? DPT_EPROTO : DPT_EPEER));
    dpt_comm_destroy(&comm);
    dpt_comm_mem_destroy(&mem);
}

static void both_sides_must_mean_it(void **state)
{
    (void)state;
    for (uint64_t who = 0; who < 2; who++) {
        struct world world = {.size = 2, .seed = who};
        world_run_threads(&world, disagree);
    }
}

/* The lender gives up while the writer is: */
enum moment { BEFORE, STOPPED_IN_THE_MIDST, DEAD_IN_THE_MIDST };
enum { MARK_BORROWED = 1, MARK_SHUT, MARK_WRITTEN };

static void be_writer(struct rank *self, struct dpt_comm *comm, const struct dpt_comm_op *op,
                      const struct dpt_comm_xfer *x)
{
    struct world *world = self->world;
    const enum moment moment = (enum moment)world->seed;
    if (moment == BEFORE) {
        mark_set(&world->marks[WRITER], MARK_BORROWED);
        mark_wait(&world->marks[LENDER], MARK_SHUT);
        CHECK_STATUS(DPT_EPEER, dpt_comm_write_begin(comm, op, &self->err), &self->err);
        CHECK(dpt_comm_suspect(comm) == LENDER);
        return;
    }
    CHECK_OK(dpt_comm_write_begin(comm, op, &self->err), &self->err);
    mark_set(&world->marks[WRITER], MARK_BORROWED);
    CHECK(raise(moment == DEAD_IN_THE_MIDST ? SIGKILL : SIGSTOP) == 0);
    memset(x->lent_write, 0xff, x->bytes); /* continued: late */
    dpt_comm_write_end(comm);
    mark_set(&world->marks[WRITER], MARK_WRITTEN);
}

static void be_lender(struct rank *self, struct dpt_comm *comm, struct dpt_comm_op *op, float *data)
{
    struct world *world = self->world;
    const enum moment moment = (enum moment)world->seed;
    const pid_t writer = world->pids[WRITER];
    int64_t start = dpt_now_ms();
    mark_wait(&world->marks[WRITER], MARK_BORROWED);
    if (moment == STOPPED_IN_THE_MIDST) { /* it is, or is about to */
        char path[64], text[256] = "";
        (void)snprintf(path, sizeof path, "/proc/%d/stat", (int)writer);
        while (strstr(text, ") T ") == NULL) {
            CHECK(dpt_now_ms() - start < SOON_MS);
            FILE *file = fopen(path, "r");
            CHECK(file != NULL && fgets(text, sizeof text, file) != NULL);
            (void)fclose(file);
        }
    }
    start = dpt_now_ms();
    dpt_comm_abort(comm);
    const enum dpt_status status = dpt_comm_poll(comm, op, -1, &self->err);
    CHECK(status == DPT_EABORTED || (status == DPT_EPEER && moment == DEAD_IN_THE_MIDST));
    CHECK(dpt_now_ms() - start < SOON_MS);
    for (int i = 0; i < FLOATS; i++) /* the rank's values again */
        data[i] = (float)i;
    dpt_comm_destroy(&comm);
    mark_set(&world->marks[LENDER], MARK_SHUT);
    if (moment == STOPPED_IN_THE_MIDST) {
        CHECK(kill(writer, SIGCONT) == 0);
        mark_wait(&world->marks[WRITER], MARK_WRITTEN);
    }
    for (int i = 0; i < FLOATS; i++)
        CHECK(data[i] == (float)i);
}

static void give_up(struct rank *self)
{
    struct dpt_comm_mem *mem = open_mem(self);
    float *data = dpt_comm_mem_data(mem);
    struct dpt_comm *comm = world_comm(self, 1);
    struct dpt_comm_op *op;
    struct dpt_comm_xfer x =
        lending(self->rank == LENDER ? DPT_COMM_SEND : DPT_COMM_LEND, 1 - self->rank, mem);
    CHECK_OK(dpt_comm_exchange(comm, &x, 1, &op, &self->err), &self->err);
    if (self->rank == LENDER) {
        be_lender(self, comm, op, data);
    } else {
        CHECK_OK(dpt_comm_poll_received(comm, op, -1, &self->err), &self->err);
        be_writer(self, comm, op, &x);
        dpt_comm_destroy(&comm);
    }
    /* The memory serves the next generation unchanged. */
    dpt_comm_mem_destroy(&mem);
}

static void play_write(enum moment moment)
{
    struct world *world = world_shared(2, (const int[]){0, 0});
    int status[RANKS_MAX];
    world->seed = (uint64_t)moment;
    world_run_forks(world, give_up, status);
    if (moment == DEAD_IN_THE_MIDST)
        assert_true(WIFSIGNALED(status[WRITER]) && WTERMSIG(status[WRITER]) == SIGKILL);
    else
        assert_int_equal(status[WRITER], 0);
    assert_int_equal(status[LENDER], 0);
    world_free(world);
}

static void taken_back_before_the_write(void **state)
{
    (void)state;
    play_write(BEFORE);
}

static void taken_back_from_a_stopped_writer(void **state)
{
    (void)state;
    play_write(STOPPED_IN_THE_MIDST);
}

static void taken_back_from_a_dead_writer(void **state)
{
    (void)state;
    play_write(DEAD_IN_THE_MIDST);
}

/* The peers of the next generation get the exchanged memory. */
static void next_generation(struct rank *self)
{
    struct dpt_comm_mem *mem = open_mem(self);
    float *data = dpt_comm_mem_data(mem);
    for (uint64_t generation = 1; generation <= 3; generation++) {
        struct dpt_comm *comm = world_comm(self, generation);
        struct dpt_comm_op *op;
        struct dpt_comm_xfer x =
            lending(self->rank == LENDER ? DPT_COMM_SEND : DPT_COMM_LEND, 1 - self->rank, mem);
        for (int i = 0; i < FLOATS; i++)
            data[i] = (float)(i + self->rank);
        CHECK_OK(dpt_comm_exchange(comm, &x, 1, &op, &self->err), &self->err);
        CHECK_OK(dpt_comm_poll_received(comm, op, -1, &self->err), &self->err);
        if (self->rank == WRITER) {
            CHECK_OK(dpt_comm_write_begin(comm, op, &self->err), &self->err);
            memcpy(x.lent_write, data, x.bytes);
            if (generation == 2) { /* stops in the middle: the lender takes its memory back */
                mark_set(&self->world->marks[WRITER], 1);
                mark_wait(&self->world->marks[LENDER], 1);
                memset(x.lent_write, 0xff, x.bytes);
            }
            dpt_comm_write_end(comm);
            dpt_comm_op_free(comm, &op);
            while (dpt_comm_poll(comm, NULL, generation == 2 ? 0 : -1, &self->err) ==
                   DPT_INPROGRESS)
                continue;
        } else if (generation == 2) {
            mark_wait(&self->world->marks[WRITER], 1);
            dpt_comm_abort(comm);
            CHECK_STATUS(DPT_EABORTED, dpt_comm_poll(comm, op, -1, &self->err), &self->err);
            for (int i = 0; i < FLOATS; i++)
                data[i] = -1;
            mark_set(&self->world->marks[LENDER], 1);
        } else {
            CHECK_OK(dpt_comm_poll(comm, op, -1, &self->err), &self->err);
            for (int i = 0; i < FLOATS; i++)
                CHECK(data[i] == (float)(i + WRITER));
        }
        pthread_barrier_wait(&self->world->barrier);
        for (int i = 0; i < FLOATS && self->rank == LENDER && generation == 2; i++)
            CHECK(data[i] == -1);
        dpt_comm_destroy(&comm);
        pthread_barrier_wait(&self->world->barrier);
    }
    dpt_comm_mem_destroy(&mem);
}

static void memory_serves_the_next_generation(void **state)
{
    (void)state;
    struct world world = {.size = 2};
    world_run_threads(&world, next_generation);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_sum_comes_back_in_place),
        cmocka_unit_test(only_open_memory_of_one_host),
        cmocka_unit_test(both_sides_must_mean_it),
        cmocka_unit_test(taken_back_before_the_write),
        cmocka_unit_test(taken_back_from_a_stopped_writer),
        cmocka_unit_test(taken_back_from_a_dead_writer),
        cmocka_unit_test(memory_serves_the_next_generation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
