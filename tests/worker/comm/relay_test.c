/* Transfers and small all-gathers where ranks relay: ranks as threads on simulated hosts. Deaths
 * are in death_test.c, whole strategies in tests/worker/strategy/sharded_test.c. */
#include "tests/every.h"
#include "tests/worker/comm/comm_world.h"
#include "worker/comm/route.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

enum { ALONE, PAIRS, ONE_HOST, HOSTS_COUNT, ROUNDS = 3, LARGE = 300 << 10, MANY = 24 };

static const size_t gather_bytes[] = {
    1, 100, DPT_COMM_BUF_BYTES_MAX, DPT_COMM_BUF_BYTES_MAX + 1, 17 << 10, DPT_COMM_SMALL_BYTES_MAX};
enum { GATHERS = sizeof gather_bytes / sizeof gather_bytes[0] };

static int host_of(int how, int rank)
{
    return how == ALONE ? rank : how == PAIRS ? rank / 2 : 0;
}

static void run_world(int size, int how, rank_fn fn, void *arg)
{
    struct world world = {.size = size, .mesh_max = 1, .arg = arg};
    for (int r = 0; r < size; r++)
        world.hosts[r] = host_of(how, r);
    world_run_threads(&world, fn);
}

static void every_world(rank_fn fn)
{
    for (int size = 1; size <= RANKS_MAX; size++)
        for (int how = 0; how < HOSTS_COUNT; how++)
            if ((size + how) % dpt_test_sanitized_every() == 0)
                run_world(size, how, fn, NULL);
}

static uint8_t byte_of(int rank, int round, size_t at)
{
    return (uint8_t)(rank * 31 + round * 7 + (int)(at % 251));
}

static void fill(uint8_t *to, size_t bytes, int rank, int round)
{
    for (size_t i = 0; i < bytes; i++)
        to[i] = byte_of(rank, round, i);
}

static void check(const uint8_t *data, size_t bytes, int rank, int round)
{
    for (size_t i = 0; i < bytes; i++)
        CHECK(data[i] == byte_of(rank, round, i));
}

static void gather_every_size(struct rank *self)
{
    const int size = self->world->size;
    uint8_t *mine = malloc(DPT_COMM_SMALL_BYTES_MAX),
            *all = malloc((size_t)size * DPT_COMM_SMALL_BYTES_MAX);
    CHECK(mine != NULL && all != NULL);
    struct dpt_comm *comm = world_comm(self, 1);
    CHECK(dpt_comm_relays(comm) == (size > 1));
    for (int round = 0; round < ROUNDS; round++)
        for (int g = 0; g < GATHERS; g++) {
            const size_t bytes = gather_bytes[g];
            fill(mine, bytes, self->rank, round);
            memset(all, 0xff, (size_t)size * bytes);
            CHECK_OK(dpt_comm_small_all_gather(comm, mine, bytes, all, &self->err), &self->err);
            for (int r = 0; r < size; r++)
                check(all + (size_t)r * bytes, bytes, r, round);
        }
    CHECK_STATUS(
        DPT_EINVAL,
        dpt_comm_small_all_gather(comm, mine, DPT_COMM_SMALL_BYTES_MAX + 1, all, &self->err),
        &self->err);
    CHECK_OK(dpt_comm_poll(comm, NULL, -1, &self->err), &self->err);
    dpt_comm_destroy(&comm);
    free(mine);
    free(all);
}

static void small_gathers_of_every_world(void **state)
{
    (void)state;
    every_world(gather_every_size);
}

/* All with all, of different sizes, in several generations; then everybody has passed on everything
 * that others need. */
static void exchange_all(struct rank *self)
{
    const int size = self->world->size;
    struct dpt_comm_mem *mem;
    size_t offsets[RANKS_MAX], bytes[RANKS_MAX];
    uint8_t all[RANKS_MAX], one = 1;
    CHECK_OK(dpt_comm_mem_create(self->listener, (size_t)RANKS_MAX * LARGE, &mem, &self->err),
             &self->err);
    for (int round = 0; round < ROUNDS; round++) {
        struct dpt_comm *comm = world_comm(self, (uint64_t)round + 1);
        for (int r = 0; r < size; r++) {
            offsets[r] = (size_t)r * LARGE;
            bytes[r] = r == 1 ? LARGE : (size_t)(r * 40009 + round * 16384) % LARGE;
        }
        memset(dpt_comm_mem_data(mem), 0, (size_t)RANKS_MAX * LARGE);
        fill((uint8_t *)dpt_comm_mem_data(mem) + offsets[self->rank], bytes[self->rank], self->rank,
             round);
        CHECK_OK(world_gather(self, comm, mem, offsets, bytes), &self->err);
        for (int r = 0; r < size; r++)
            check((uint8_t *)dpt_comm_mem_data(mem) + offsets[r], bytes[r], r, round);
        CHECK(size == 1 || dpt_comm_bytes_sent(comm) == (uint64_t)(size - 1) * bytes[self->rank]);
        CHECK_OK(dpt_comm_small_all_gather(comm, &one, 1, all, &self->err), &self->err);
        CHECK_OK(dpt_comm_poll(comm, NULL, -1, &self->err), &self->err);
        dpt_comm_destroy(&comm);
    }
    dpt_comm_mem_destroy(&mem);
}

static void exchanges_of_every_world(void **state)
{
    (void)state;
    every_world(exchange_all);
}

/* Many transfers of each pair, also of no bytes, arrive in their order. Half lend with staging. */
static void exchange_many(struct rank *self)
{
    const int size = self->world->size;
    struct dpt_comm_xfer x[2 * MANY];
    struct dpt_comm_op *op[RANKS_MAX] = {NULL};
    static _Thread_local uint8_t got[RANKS_MAX][MANY][64];
    static _Thread_local struct dpt_comm_xfer xfers[RANKS_MAX][2 * MANY];
    struct dpt_comm *comm = world_comm(self, 1);
    for (int r = 0; r < size; r++) {
        int n = 0;
        if (r == self->rank)
            continue;
        for (int i = 0; i < MANY; i++) {
            uint8_t buf[64];
            const bool near = host_of(PAIRS, r) == host_of(PAIRS, self->rank);
            const size_t bytes = (size_t)(i * 5 % 60);
            fill(buf, bytes, self->rank, i);
            x[i] =
                (struct dpt_comm_xfer){.dir = DPT_COMM_SEND, .peer = r, .buf = buf, .bytes = bytes};
            struct dpt_comm_op *sent;
            CHECK_OK(dpt_comm_exchange(comm, &x[i], 1, &sent, &self->err), &self->err);
            dpt_comm_op_free(comm, &sent);
            xfers[r][n++] =
                (struct dpt_comm_xfer){.dir = i % 2 == 0 || near ? DPT_COMM_RECV : DPT_COMM_LEND,
                                       .peer = r,
                                       .buf = got[r][i],
                                       .bytes = bytes};
        }
        CHECK_OK(dpt_comm_exchange(comm, xfers[r], n, &op[r], &self->err), &self->err);
    }
    for (int r = 0; r < size; r++)
        if (r != self->rank) {
            CHECK_OK(dpt_comm_poll(comm, op[r], -1, &self->err), &self->err);
            for (int i = 0; i < MANY; i++) {
                CHECK(xfers[r][i].dir == DPT_COMM_RECV || xfers[r][i].lent == got[r][i]);
                check(got[r][i], xfers[r][i].bytes, r, i);
            }
            dpt_comm_op_free(comm, &op[r]);
        }
    uint8_t all[RANKS_MAX], one = 1;
    CHECK_OK(dpt_comm_small_all_gather(comm, &one, 1, all, &self->err), &self->err);
    CHECK_OK(dpt_comm_poll(comm, NULL, -1, &self->err), &self->err);
    dpt_comm_destroy(&comm);
}

static void many_transfers_keep_their_order(void **state)
{
    (void)state;
    run_world(6, PAIRS, exchange_many, NULL);
    run_world(9, PAIRS, exchange_many, NULL);
}

/* Two ranks without a link exchange; all others have no work and relay. */
struct idle {
    int from, to;
    struct dpt_comm *comm[RANKS_MAX];
    int done; /* ranks; atomic */
};

static void relay_or_exchange(struct rank *self)
{
    struct idle *idle = self->world->arg;
    struct dpt_comm_mem *mem;
    CHECK_OK(dpt_comm_mem_create(self->listener, 2 * (size_t)LARGE, &mem, &self->err), &self->err);
    struct dpt_comm *comm = idle->comm[self->rank] = world_comm(self, 1);
    pthread_barrier_wait(&self->world->barrier);
    if (self->rank == idle->from || self->rank == idle->to) {
        const int peer = self->rank == idle->from ? idle->to : idle->from;
        struct dpt_comm_xfer x[] = {
            {.dir = DPT_COMM_SEND, .peer = peer, .mem = mem, .bytes = LARGE},
            {.dir = DPT_COMM_RECV, .peer = peer, .mem = mem, .offset = LARGE, .bytes = LARGE}};
        struct dpt_comm_op *op;
        fill(dpt_comm_mem_data(mem), LARGE, self->rank, 1);
        CHECK_OK(dpt_comm_exchange(comm, x, 2, &op, &self->err), &self->err);
        enum dpt_status status;
        do
            status = dpt_comm_poll(comm, op, -1, &self->err);
        while (status == DPT_INPROGRESS); /* the other is done, and has woken all */
        CHECK_OK(status, &self->err);
        check((uint8_t *)dpt_comm_mem_data(mem) + LARGE, LARGE, peer, 1);
        dpt_comm_op_free(comm, &op);
        __atomic_add_fetch(&idle->done, 1, __ATOMIC_ACQ_REL);
        for (int r = 0; r < self->world->size; r++)
            dpt_comm_wake(idle->comm[r]);
    }
    while (__atomic_load_n(&idle->done, __ATOMIC_ACQUIRE) < 2)
        CHECK(dpt_comm_relay(comm) == DPT_INPROGRESS);
    pthread_barrier_wait(&self->world->barrier);
    dpt_comm_destroy(&comm);
    dpt_comm_mem_destroy(&mem);
}

static void ranks_without_work_relay(void **state)
{
    (void)state;
    for (int to = 1; to < RANKS_MAX; to += dpt_test_sanitized_every()) {
        struct idle idle = {.to = to};
        run_world(RANKS_MAX, ALONE, relay_or_exchange, &idle);
    }
}

/* A rank that is told to abort while it only relays has not failed: its goodbye is orderly. A rank
 * that waits for it fails and names it, and so do the others. */
static void abort_while_relaying(struct rank *self)
{
    uint8_t byte = 0;
    struct dpt_comm_op *op;
    struct dpt_comm *comm = world_comm(self, 1);
    pthread_barrier_wait(&self->world->barrier);
    if (self->rank == 4) {
        dpt_comm_abort(comm);
        CHECK(dpt_comm_relay(comm) == DPT_EABORTED);
        dpt_comm_destroy(&comm);
        pthread_barrier_wait(&self->world->barrier);
        return;
    }
    struct dpt_comm_xfer x = {.dir = DPT_COMM_RECV, .peer = 4, .buf = &byte, .bytes = 1};
    if (self->rank == 3) { /* it has a link to rank 4 */
        enum dpt_status status = dpt_comm_exchange(comm, &x, 1, &op, &self->err);
        if (status == DPT_OK)
            status = dpt_comm_poll(comm, op, -1, &self->err);
        CHECK_STATUS(DPT_EPEER, status, &self->err);
    } else {
        CHECK(dpt_comm_relay(comm) == DPT_EPEER);
        CHECK(dpt_comm_relay(comm) == DPT_EPEER);
    }
    CHECK(dpt_comm_suspect(comm) == 4);
    pthread_barrier_wait(&self->world->barrier);
    dpt_comm_destroy(&comm);
}

static void abort_of_a_rank_without_work(void **state)
{
    (void)state;
    run_world(8, ALONE, abort_while_relaying, NULL);
}

/* Lengths that differ, over one hop and over two; staging that is missing. */
static void send_other_length(struct rank *self)
{
    const int to = *(const int *)self->world->arg;
    uint8_t bytes[8] = {0};
    struct dpt_comm_op *op;
    enum dpt_status status = DPT_INPROGRESS;
    struct dpt_comm *comm = world_comm(self, 1);
    struct dpt_comm_xfer x = {.dir = self->rank == 0 ? DPT_COMM_SEND : DPT_COMM_RECV,
                              .peer = self->rank == 0 ? to : 0,
                              .buf = bytes,
                              .bytes = self->rank == 0 ? 8 : 7};
    pthread_barrier_wait(&self->world->barrier); /* no creation sees the failure */
    if (self->rank == 0 || self->rank == to) {
        CHECK_OK(dpt_comm_exchange(comm, &x, 1, &op, &self->err), &self->err);
        while (status == DPT_INPROGRESS || status == DPT_OK)
            status = dpt_comm_poll_woken(comm, -1, &self->err);
    } else {
        status = dpt_comm_relay(comm);
    }
    CHECK_STATUS(self->rank == to ? DPT_EPROTO : DPT_EPEER, status, &self->err);
    CHECK(self->rank != to || dpt_comm_suspect(comm) == 0);
    pthread_barrier_wait(&self->world->barrier);
    dpt_comm_destroy(&comm);
}

static void unequal_lengths(void **state)
{
    (void)state;
    for (int to = 2; to <= 3; to++) {
        assert_int_equal(dpt_route_is_link(8, 0, to), to == 2);
        run_world(8, ALONE, send_other_length, &to);
    }
}

static void lend_without_staging(struct rank *self)
{
    struct dpt_comm_op *op;
    struct dpt_comm *comm = world_comm(self, 1);
    struct dpt_comm_xfer x = {.dir = DPT_COMM_LEND, .peer = 1, .bytes = 7};
    pthread_barrier_wait(&self->world->barrier); /* no creation sees the failure */
    if (self->rank == 0) {
        CHECK_STATUS(DPT_EINVAL, dpt_comm_exchange(comm, &x, 1, &op, &self->err), &self->err);
        CHECK(strstr(self->err.text, "a LEND without staging") != NULL);
    } else {
        CHECK(dpt_comm_relay(comm) == DPT_EPEER);
    }
    pthread_barrier_wait(&self->world->barrier);
    dpt_comm_destroy(&comm);
}

static void missing_staging(void **state)
{
    (void)state;
    run_world(6, ALONE, lend_without_staging, NULL);
}

static int64_t comm_bytes(const struct dpt_account *account)
{
    struct dpt_memory_use use;
    dpt_account_read(account, &use);
    return use.tag[DPT_MEMORY_COMM];
}

/* The account has the bytes of the formula. */
static void count_memory(struct rank *self)
{
    const int size = self->world->size;
    struct dpt_account account = {.log = NULL};
    dpt_comm_listener_set_account(self->listener, &account);
    const int64_t alone = comm_bytes(&account);
    struct dpt_comm *comm = world_comm(self, 1);
    const enum dpt_encrypt encrypt = world_encrypt(self->world);
    const size_t bytes = dpt_comm_own_bytes(size, 1, encrypt);
    CHECK(comm_bytes(&account) - alone ==
          (int64_t)bytes - (int64_t)dpt_comm_own_bytes(1, 1, encrypt));
    CHECK(encrypt != DPT_ENCRYPT_NONE || bytes > dpt_comm_own_bytes(size, 0, encrypt));
    pthread_barrier_wait(&self->world->barrier);
    dpt_comm_destroy(&comm);
    CHECK(comm_bytes(&account) == alone);
    dpt_comm_listener_set_account(self->listener, NULL);
}

static void memory_is_counted(void **state)
{
    (void)state;
    run_world(9, PAIRS, count_memory, NULL);
}

static void open_and_close(struct rank *self)
{
    for (uint64_t generation = 1; generation <= 3; generation++) {
        struct dpt_comm *comm = world_comm(self, generation);
        pthread_barrier_wait(&self->world->barrier);
        dpt_comm_destroy(&comm);
        pthread_barrier_wait(&self->world->barrier);
    }
}

/* Of sockets and mappings. */
static void nothing_is_left_open(void **state)
{
    (void)state;
    run_world(6, PAIRS, open_and_close, NULL); /* what the first world keeps open */
    const int fds = count_fds(), maps = count_maps();
    run_world(6, PAIRS, open_and_close, NULL);
    assert_int_equal(count_fds(), fds);
    assert_int_equal(count_maps(), maps);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_gathers_of_every_world),
        cmocka_unit_test(exchanges_of_every_world),
        cmocka_unit_test(many_transfers_keep_their_order),
        cmocka_unit_test(ranks_without_work_relay),
        cmocka_unit_test(abort_of_a_rank_without_work),
        cmocka_unit_test(unequal_lengths),
        cmocka_unit_test(missing_staging),
        cmocka_unit_test(memory_is_counted),
        cmocka_unit_test(nothing_is_left_open),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
