/* Exchange between ranks as threads, beside the random traffic: running ahead, lending, limits, bad
 * transfers, gathers, leaving, waking. */
#include "tests/every.h"
#include "tests/worker/comm/comm_world.h"

#include "base/cores.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

/* Layouts of hosts: all shared memory, all TCP, mixed. */
static const int every_host[RANKS_MAX] = {0, 1, 2, 3, 4, 5, 6, 7},
                 mixed[RANKS_MAX] = {0, 0, 1, 1, 1, 2};

/* A sender far ahead of its receiver: more transfers than any window, and more bytes than any
 * socket takes. */
enum { AHEAD = 150, AHEAD_BYTES = 100000 };

static void run_ahead(struct rank *self)
{
    struct dpt_comm_mem *mem;
    CHECK_OK(dpt_comm_mem_create(self->listener, AHEAD * AHEAD_BYTES, &mem, &self->err),
             &self->err);
    struct dpt_comm *comm = world_comm(self, 1);
    static _Thread_local struct dpt_comm_xfer xfers[2 * AHEAD];
    uint8_t small = 0;
    const int peer = 1 - self->rank;
    uint8_t *data = dpt_comm_mem_data(mem);
    struct dpt_comm_op *op;
    if (self->rank == 0)
        memset(data, 0x5a, AHEAD * AHEAD_BYTES);
    for (int i = 0; i < AHEAD; i++) { /* large and small in turn, in both directions */
        xfers[2 * i] =
            (struct dpt_comm_xfer){.dir = self->rank == 0 ? DPT_COMM_SEND : DPT_COMM_RECV,
                                   .peer = peer,
                                   .mem = mem,
                                   .offset = (size_t)i * AHEAD_BYTES,
                                   .bytes = AHEAD_BYTES};
        xfers[2 * i + 1] =
            (struct dpt_comm_xfer){.dir = self->rank == 0 ? DPT_COMM_RECV : DPT_COMM_SEND,
                                   .peer = peer,
                                   .buf = &small,
                                   .bytes = 1};
    }
    if (self->rank == 0) {
        CHECK_OK(dpt_comm_exchange(comm, xfers, 2 * AHEAD, &op, &self->err), &self->err);
        /* No receive is posted there: the large transfer is not done here. */
        CHECK_STATUS(DPT_INPROGRESS, dpt_comm_poll(comm, op, 20, &self->err), &self->err);
        mark_set(&self->world->marks[0], 1);
    } else {
        mark_wait(&self->world->marks[0], 1);
        CHECK_OK(dpt_comm_exchange(comm, xfers, 2 * AHEAD, &op, &self->err), &self->err);
    }
    CHECK_OK(dpt_comm_poll(comm, op, -1, &self->err), &self->err);
    dpt_comm_op_free(comm, &op);
    for (size_t i = 0; self->rank == 1 && i < AHEAD * AHEAD_BYTES; i++)
        CHECK(data[i] == 0x5a);
    if (self->rank == 0)
        CHECK(dpt_comm_bytes_sent(comm) == AHEAD * AHEAD_BYTES);
    else
        CHECK(dpt_comm_bytes_sent(comm) == AHEAD);
    dpt_comm_destroy(&comm);
    dpt_comm_mem_destroy(&mem);
}

static void sender_runs_ahead(void **state)
{
    (void)state;
    struct world shm = {.size = 2}, tcp = {.size = 2, .hosts = {0, 1}};
    world_run_threads(&shm, run_ahead);
    world_run_threads(&tcp, run_ahead);
}

/* LEND: the sender is not done before the receiver has freed. */
static void lend_and_hold(struct rank *self)
{
    struct dpt_comm_mem *mem;
    CHECK_OK(dpt_comm_mem_create(self->listener, 4096, &mem, &self->err), &self->err);
    struct dpt_comm *comm = world_comm(self, 1);
    struct dpt_comm_xfer x = {.dir = self->rank == 0 ? DPT_COMM_SEND : DPT_COMM_LEND,
                              .peer = 1 - self->rank,
                              .bytes = 4096};
    struct dpt_comm_op *op;
    if (self->rank == 0) {
        memset(dpt_comm_mem_data(mem), 3, 4096);
        x.mem = mem;
    }
    CHECK_OK(dpt_comm_exchange(comm, &x, 1, &op, &self->err), &self->err);
    if (self->rank == 0) {
        mark_wait(&self->world->marks[0], 1); /* it has the bytes, */
        CHECK_STATUS(DPT_INPROGRESS, dpt_comm_poll(comm, op, 20, &self->err), &self->err);
        mark_set(&self->world->marks[1], 1); /* and frees now */
        CHECK_OK(dpt_comm_poll(comm, op, -1, &self->err), &self->err);
        dpt_comm_op_free(comm, &op);
    } else {
        CHECK_OK(dpt_comm_poll(comm, op, -1, &self->err), &self->err);
        CHECK(((const uint8_t *)x.lent)[4095] == 3);
        mark_set(&self->world->marks[0], 1);
        mark_wait(&self->world->marks[1], 1);
        dpt_comm_op_free(comm, &op);
    }
    dpt_comm_destroy(&comm);
    dpt_comm_mem_destroy(&mem);
}

static void lent_memory_is_held(void **state)
{
    (void)state;
    struct world world = {.size = 2};
    world_run_threads(&world, lend_and_hold);
}

static void ill_formed(struct rank *self)
{
    struct dpt_comm_mem *mem;
    CHECK_OK(dpt_comm_mem_create(self->listener, 4096, &mem, &self->err), &self->err);
    struct dpt_comm *comm = world_comm(self, 1);
    const int peer = 1 - self->rank;
    uint8_t buf[2048];
    struct dpt_comm_op *op = NULL;
    struct dpt_comm_xfer bad[] = {
        {.dir = DPT_COMM_SEND, .peer = self->rank, .mem = mem, .bytes = 1},
        {.dir = DPT_COMM_SEND, .peer = 2, .mem = mem, .bytes = 1},
        {.dir = DPT_COMM_SEND, .peer = -1, .mem = mem, .bytes = 1},
        {.dir = DPT_COMM_RECV, .peer = peer, .mem = mem, .bytes = 4097},
        {.dir = DPT_COMM_RECV, .peer = peer, .mem = mem, .offset = 4096, .bytes = 1},
        {.dir = DPT_COMM_RECV, .peer = peer, .mem = mem, .offset = SIZE_MAX, .bytes = 2},
        {.dir = DPT_COMM_SEND, .peer = peer, .buf = buf, .bytes = 1025},
        {.dir = DPT_COMM_RECV, .peer = peer, .bytes = 1},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        CHECK_STATUS(DPT_EINVAL, dpt_comm_exchange(comm, &bad[i], 1, &op, &self->err), &self->err);
    /* Too many ops: the pool holds 256. */
    struct dpt_comm_xfer recv = {.dir = DPT_COMM_RECV, .peer = peer, .buf = buf, .bytes = 1};
    static _Thread_local struct dpt_comm_op *ops[DPT_COMM_OPS_MAX];
    for (int i = 0; i < DPT_COMM_OPS_MAX; i++)
        CHECK_OK(dpt_comm_exchange(comm, &recv, 1, &ops[i], &self->err), &self->err);
    CHECK_STATUS(DPT_EOVERFLOW, dpt_comm_exchange(comm, &recv, 1, &op, &self->err), &self->err);
    CHECK(op == NULL);
    pthread_barrier_wait(&self->world->barrier);
    dpt_comm_destroy(&comm); /* with all of them posted */
    dpt_comm_mem_destroy(&mem);
}

static void ill_formed_transfers_are_refused(void **state)
{
    (void)state;
    struct world shm = {.size = 2}, tcp = {.size = 2, .hosts = {0, 1}};
    world_run_threads(&shm, ill_formed);
    world_run_threads(&tcp, ill_formed);
}

static void lengths_differ(struct rank *self)
{
    struct dpt_comm *comm = world_comm(self, 1);
    uint8_t buf[8] = {0};
    struct dpt_comm_xfer x = {.dir = self->rank == 0 ? DPT_COMM_SEND : DPT_COMM_RECV,
                              .peer = 1 - self->rank,
                              .buf = buf,
                              .bytes = self->rank == 0 ? 8 : 4};
    struct dpt_comm_op *op;
    CHECK_OK(dpt_comm_exchange(comm, &x, 1, &op, &self->err), &self->err);
    if (self->rank == 1) {
        CHECK_STATUS(DPT_EPROTO, dpt_comm_poll(comm, op, -1, &self->err), &self->err);
        CHECK(dpt_comm_suspect(comm) == 0);
        CHECK_STATUS(DPT_EPROTO, dpt_comm_poll(comm, NULL, 0, &self->err), &self->err); /* stays */
        CHECK_STATUS(DPT_EPROTO, dpt_comm_exchange(comm, &x, 1, &op, &self->err), &self->err);
    }
    pthread_barrier_wait(&self->world->barrier);
    dpt_comm_destroy(&comm);
}

static void lengths_must_agree(void **state)
{
    (void)state;
    struct world shm = {.size = 2}, tcp = {.size = 2, .hosts = {0, 1}};
    world_run_threads(&shm, lengths_differ);
    world_run_threads(&tcp, lengths_differ);
}

static void gathers(struct rank *self)
{
    enum { PART = 5000 };
    const int n = self->world->size;
    struct dpt_comm_mem *mem;
    CHECK_OK(dpt_comm_mem_create(self->listener, RANKS_MAX * PART, &mem, &self->err), &self->err);
    uint8_t *data = dpt_comm_mem_data(mem);
    struct dpt_comm *comm = world_comm(self, 1);
    for (int round = 0; round < 5; round++) {
        size_t offsets[RANKS_MAX], bytes[RANKS_MAX];
        for (int r = 0; r < n; r++) {
            offsets[r] = (size_t)r * PART;
            bytes[r] = (size_t)((r + round) % 3) * 2500; /* some give nothing */
        }
        memset(data, 0, RANKS_MAX * PART);
        memset(data + offsets[self->rank], self->rank + 1, bytes[self->rank]);
        CHECK_OK(world_gather(self, comm, mem, offsets, bytes), &self->err);
        for (int r = 0; r < n; r++)
            for (size_t i = 0; i < PART; i++)
                CHECK(data[offsets[r] + i] == (i < bytes[r] ? r + 1 : 0));

        static const size_t sizes[] = {0, 1, 700, 1024, 1025, DPT_COMM_SMALL_BYTES_MAX};
        for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
            uint8_t *mine = malloc(sizes[s] + 1), *all = malloc(sizes[s] * (size_t)n + 1);
            CHECK(mine != NULL && all != NULL);
            memset(mine, self->rank + round, sizes[s]);
            CHECK_OK(dpt_comm_small_all_gather(comm, mine, sizes[s], all, &self->err), &self->err);
            for (int r = 0; r < n; r++)
                for (size_t i = 0; i < sizes[s]; i++)
                    CHECK(all[(size_t)r * sizes[s] + i] == r + round);
            free(mine);
            free(all);
        }
    }
    CHECK_STATUS(
        DPT_EINVAL,
        dpt_comm_small_all_gather(comm, data, DPT_COMM_SMALL_BYTES_MAX + 1, data, &self->err),
        &self->err);
    dpt_comm_destroy(&comm);
    dpt_comm_mem_destroy(&mem);
}

static void gathers_of_all_sizes(void **state)
{
    (void)state;
    for (int size = 1; size <= 6; size += dpt_test_sanitized_every()) {
        struct world shm = {.size = size}, tcp = {.size = size}, both = {.size = size},
                     sim = {.size = size};
        memcpy(tcp.hosts, every_host, sizeof tcp.hosts);
        memcpy(both.hosts, mixed, sizeof both.hosts);
        world_run_threads(&shm, gathers);
        world_run_threads(&tcp, gathers);
        world_run_threads(&both, gathers);
        assert_int_equal(dpt_sim_net_create(&sim.sim, NULL), DPT_OK);
        world_run_threads(&sim, gathers);
        dpt_sim_net_destroy(&sim.sim);
    }
}

/* One rank leaves in good order while the others still communicate; ranks that wait for nothing
 * from it go on. */
static void leaves_early(struct rank *self)
{
    struct dpt_comm *comm = world_comm(self, 1);
    uint8_t buf[4] = {1, 2, 3, 4};
    for (int i = 0; i < 3; i++) {
        uint8_t all[4 * RANKS_MAX];
        CHECK_OK(dpt_comm_small_all_gather(comm, buf, 4, all, &self->err), &self->err);
    }
    if (self->rank != 2) {
        struct dpt_comm_xfer x = {.dir = self->rank == 0 ? DPT_COMM_SEND : DPT_COMM_RECV,
                                  .peer = 1 - self->rank,
                                  .buf = buf,
                                  .bytes = 4};
        struct dpt_comm_op *op;
        mark_wait(&self->world->marks[2], 1);
        CHECK_STATUS(DPT_OK, dpt_comm_poll(comm, NULL, 10, &self->err), &self->err);
        CHECK_OK(dpt_comm_exchange(comm, &x, 1, &op, &self->err), &self->err);
        CHECK_OK(dpt_comm_poll(comm, op, -1, &self->err), &self->err);
        dpt_comm_op_free(comm, &op);
        /* A rank that then waits for it gets an error. */
        x = (struct dpt_comm_xfer){.dir = DPT_COMM_RECV, .peer = 2, .buf = buf, .bytes = 4};
        CHECK_OK(dpt_comm_exchange(comm, &x, 1, &op, &self->err), &self->err);
        CHECK_STATUS(DPT_EPEER, dpt_comm_poll(comm, op, -1, &self->err), &self->err);
        CHECK(dpt_comm_suspect(comm) == 2);
        pthread_barrier_wait(&self->world->barrier);
        dpt_comm_destroy(&comm);
    } else {
        if (self->world->seed == 1)
            dpt_comm_abort(comm); /* with nothing in flight that is as orderly */
        dpt_comm_destroy(&comm);
        mark_set(&self->world->marks[2], 1);
        pthread_barrier_wait(&self->world->barrier);
    }
}

static void orderly_leave_is_no_death(void **state)
{
    (void)state;
    struct world shm = {.size = 3}, tcp = {.size = 3, .hosts = {0, 1, 2}}, sim = {.size = 3};
    world_run_threads(&shm, leaves_early);
    world_run_threads(&tcp, leaves_early);
    shm = (struct world){.size = 3, .seed = 1};
    tcp = (struct world){.size = 3, .hosts = {0, 1, 2}, .seed = 1};
    world_run_threads(&shm, leaves_early);
    world_run_threads(&tcp, leaves_early);
    assert_int_equal(dpt_sim_net_create(&sim.sim, NULL), DPT_OK);
    world_run_threads(&sim, leaves_early);
    dpt_sim_net_destroy(&sim.sim);
}

static void *wakes(void *arg)
{
    struct rank *self = arg;
    mark_wait(&self->world->marks[0], 1);
    dpt_comm_wake(self->world->arg);
    return NULL;
}

static void wait_in_vain(struct rank *self)
{
    struct dpt_comm *comm = world_comm(self, 1);
    uint8_t byte = 0;
    struct dpt_comm_xfer x = {.dir = DPT_COMM_RECV, .peer = 1, .buf = &byte, .bytes = 1};
    struct dpt_comm_op *op;
    pthread_t thread;
    if (self->rank == 0) {
        self->world->arg = comm;
        CHECK(pthread_create(&thread, NULL, wakes, self) == 0);
        CHECK_OK(dpt_comm_exchange(comm, &x, 1, &op, &self->err), &self->err);
        mark_set(&self->world->marks[0], 1);
        CHECK_STATUS(DPT_INPROGRESS, dpt_comm_poll(comm, op, -1, &self->err), &self->err);
        CHECK_STATUS(DPT_INPROGRESS, dpt_comm_poll(comm, op, 10, &self->err), &self->err);
        CHECK_STATUS(DPT_INPROGRESS, dpt_comm_poll(comm, op, 0, &self->err), &self->err);
        CHECK(pthread_join(thread, NULL) == 0);
    }
    pthread_barrier_wait(&self->world->barrier);
    dpt_comm_destroy(&comm);
}

static void wake_ends_a_wait(void **state)
{
    (void)state;
    struct world shm = {.size = 2}, tcp = {.size = 2, .hosts = {0, 1}};
    world_run_threads(&shm, wait_in_vain);
    world_run_threads(&tcp, wait_in_vain);
}

/* A wait that may spin does so for a moment only, then it sleeps. */
enum { WAIT_MS = 300, BUSY_MS = 60 };

static int64_t thread_cpu_ms(void)
{
    struct timespec t;
    CHECK(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t) == 0);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void wait_for_nothing(struct rank *self)
{
    struct dpt_comm *comm = world_comm(self, 1);
    struct dpt_comm_op *op;
    uint8_t byte = 0;
    struct dpt_comm_xfer x = {
        .dir = DPT_COMM_RECV, .peer = 1 - self->rank, .buf = &byte, .bytes = 1};
    CHECK_OK(dpt_comm_exchange(comm, &x, 1, &op, &self->err), &self->err);
    dpt_comm_allow_spin(comm, true);
    const int64_t before = thread_cpu_ms();
    CHECK_STATUS(DPT_INPROGRESS, dpt_comm_poll(comm, op, WAIT_MS, &self->err), &self->err);
    CHECK(thread_cpu_ms() - before < BUSY_MS);
    pthread_barrier_wait(&self->world->barrier);
    x.dir = DPT_COMM_SEND;
    struct dpt_comm_op *send;
    CHECK_OK(dpt_comm_exchange(comm, &x, 1, &send, &self->err), &self->err);
    CHECK_OK(dpt_comm_poll(comm, op, -1, &self->err), &self->err); /* and is woken */
    dpt_comm_op_free(comm, &send);
    dpt_comm_op_free(comm, &op);
    pthread_barrier_wait(&self->world->barrier);
    dpt_comm_destroy(&comm);
}

static void a_long_wait_sleeps(void **state)
{
    (void)state;
    for (int cores = 0; cores < 2; cores++) {
        struct world world = {.size = 2};
        dpt_cores_set_demand(cores == 0 ? 1 : dpt_cores() + 1);
        world_run_threads(&world, wait_for_nothing);
    }
    dpt_cores_set_demand(0);
}

/* A nap takes its time, and not a millisecond. */
enum { NAPS = 50, NAP_NS = 100 * 1000 };

static int64_t now_ns(void)
{
    struct timespec t;
    CHECK(clock_gettime(CLOCK_MONOTONIC, &t) == 0);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void nap(struct rank *self)
{
    struct dpt_comm *comm = world_comm(self, 1);
    dpt_comm_allow_spin(comm, true);
    int64_t shortest = INT64_MAX;
    for (int i = 0; i < NAPS; i++) {
        const int64_t before = now_ns();
        CHECK_STATUS(DPT_INPROGRESS, dpt_comm_poll_woken(comm, NAP_NS, &self->err), &self->err);
        const int64_t took = now_ns() - before;
        CHECK(took >= NAP_NS);
        shortest = took < shortest ? took : shortest;
    }
    CHECK(shortest < 1000 * 1000);
    pthread_barrier_wait(&self->world->barrier);
    dpt_comm_wake(comm); /* which ends a nap that is no nap */
    CHECK_STATUS(DPT_INPROGRESS, dpt_comm_poll_woken(comm, INT64_MAX / 2, &self->err), &self->err);
    pthread_barrier_wait(&self->world->barrier);
    dpt_comm_destroy(&comm);
}

static void naps_are_short(void **state)
{
    (void)state;
    struct world shm = {.size = 2}, tcp = {.size = 2, .hosts = {0, 1}};
    dpt_cores_set_demand(1);
    world_run_threads(&shm, nap);
    world_run_threads(&tcp, nap);
    dpt_cores_set_demand(0);
}

/* Of two exchanges the later is done first: poll_any reports it, and then the other, each once. */
static void any_of_two(struct rank *self)
{
    struct dpt_comm_mem *mem;
    CHECK_OK(dpt_comm_mem_create(self->listener, 4096, &mem, &self->err), &self->err);
    struct dpt_comm *comm = world_comm(self, 1);
    struct dpt_comm_xfer first = {.dir = self->rank == 0 ? DPT_COMM_SEND : DPT_COMM_RECV,
                                  .peer = 1 - self->rank,
                                  .mem = mem,
                                  .bytes = 4096};
    struct dpt_comm_xfer second = {.dir = self->rank == 0 ? DPT_COMM_RECV : DPT_COMM_SEND,
                                   .peer = 1 - self->rank,
                                   .mem = mem,
                                   .bytes = 4096};
    struct dpt_comm_op *one, *two;
    if (self->rank == 0) {
        CHECK_OK(dpt_comm_exchange(comm, &first, 1, &one, &self->err), &self->err);
        CHECK_OK(dpt_comm_exchange(comm, &second, 1, &two, &self->err), &self->err);
        CHECK_OK(dpt_comm_poll_any(comm, -1, &self->err), &self->err);
        CHECK(dpt_comm_op_done(two) && !dpt_comm_op_done(one));
        CHECK_STATUS(DPT_INPROGRESS, dpt_comm_poll_any(comm, 20, &self->err), &self->err);
        mark_set(&self->world->marks[0], 1);
        CHECK_OK(dpt_comm_poll_any(comm, -1, &self->err), &self->err);
        CHECK(dpt_comm_op_done(one));
    } else {
        CHECK_OK(dpt_comm_exchange(comm, &second, 1, &two, &self->err), &self->err);
        CHECK_OK(dpt_comm_poll(comm, two, -1, &self->err), &self->err);
        mark_wait(&self->world->marks[0], 1);
        CHECK_OK(dpt_comm_exchange(comm, &first, 1, &one, &self->err), &self->err);
        CHECK_OK(dpt_comm_poll(comm, one, -1, &self->err), &self->err);
    }
    dpt_comm_op_free(comm, &one);
    dpt_comm_op_free(comm, &two);
    dpt_comm_destroy(&comm);
    dpt_comm_mem_destroy(&mem);
}

static void a_wait_for_any(void **state)
{
    (void)state;
    struct world shm = {.size = 2}; /* a socket takes all bytes at once */
    world_run_threads(&shm, any_of_two);
}

static void a_world_of_one(void **state)
{
    (void)state;
    struct dpt_err err;
    struct dpt_comm_listener *listener;
    struct dpt_comm *comm;
    const struct dpt_comm_spec spec = {.run = "alone", .world_size = 1, .timeout_ms = 1000};
    CHECK_OK(dpt_comm_listener_create("127.0.0.1", &listener, &err), &err);
    CHECK_OK(dpt_comm_create(listener, &spec, -1, &comm, NULL, &err), &err);
    struct dpt_comm_op *none;
    CHECK_OK(dpt_comm_exchange(comm, NULL, 0, &none, &err), &err);
    CHECK_OK(dpt_comm_poll(comm, none, -1, &err), &err); /* done at once */
    dpt_comm_op_free(comm, &none);
    CHECK_OK(dpt_comm_poll(comm, NULL, -1, &err), &err); /* nothing in flight: no wait */
    dpt_comm_destroy(&comm);
    dpt_comm_listener_destroy(&listener);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wake_ends_a_wait),
        cmocka_unit_test(a_long_wait_sleeps),
        cmocka_unit_test(naps_are_short),
        cmocka_unit_test(a_wait_for_any),
        cmocka_unit_test(a_world_of_one),
        cmocka_unit_test(sender_runs_ahead),
        cmocka_unit_test(lent_memory_is_held),
        cmocka_unit_test(ill_formed_transfers_are_refused),
        cmocka_unit_test(lengths_must_agree),
        cmocka_unit_test(gathers_of_all_sizes),
        cmocka_unit_test(orderly_leave_is_no_death),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
