/* Exchange between ranks as threads, over shared memory, TCP, both, and the simulator: contents,
 * order, lending, limits, collectives. */
#include "comm_world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

enum {
    STEPS = 24,
    DEPTH = 3,        /* ops in flight a rank */
    PER_PAIR_MAX = 5, /* transfers of one step from one rank to another */
    BYTES_MAX = 24 * 1024,
    SLOT_BYTES = RANKS_MAX * PER_PAIR_MAX * BYTES_MAX
};

/* Layouts of hosts: all shared memory, all TCP, mixed. */
static const int one_host[RANKS_MAX] = {0}, every_host[RANKS_MAX] = {0, 1, 2, 3, 4, 5, 6, 7},
                 mixed[RANKS_MAX] = {0, 0, 1, 1, 1, 2};

static uint64_t hash(uint64_t a, uint64_t b, uint64_t c, uint64_t d)
{
    uint64_t x =
        a * 0x9e3779b97f4a7c15u + b * 0xbf58476d1ce4e5b9u + c * 0x94d049bb133111ebu + d + 1;
    for (int i = 0; i < 3; i++)
        x = (x ^ x >> 29) * 0xbf58476d1ce4e5b9u;
    return x ^ x >> 32;
}

/* The traffic of a step is a function of the seed, so both sides know it. */
static int transfers(uint64_t seed, int step, int from, int to)
{
    return (int)(hash(seed, (uint64_t)step, (uint64_t)from, (uint64_t)to) % (PER_PAIR_MAX + 1));
}

static size_t transfer_bytes(uint64_t seed, int step, int from, int to, int i)
{
    const uint64_t h = hash(seed + 1, (uint64_t)(step * 100 + i), (uint64_t)from, (uint64_t)to);
    static const size_t limits[] = {1, 16, 1024, 5000, BYTES_MAX + 1};
    return h / 8 % limits[h % 5];
}

static bool transfer_is_small(uint64_t seed, int step, int from, int to, int i)
{
    return transfer_bytes(seed, step, from, to, i) <= DPT_COMM_BUF_BYTES_MAX &&
           hash(seed + 2, (uint64_t)(step * 100 + i), (uint64_t)from, (uint64_t)to) % 2 == 0;
}

static uint8_t pattern(int step, int from, int to, int i, size_t at)
{
    return (uint8_t)(at * 7 + at / 256 + (size_t)(step * 31 + from * 17 + to * 5 + i * 3));
}

/* Sends and receives are two ops: what was lent goes back before the own sends are waited for. */
struct step {
    int step;
    int n_sends, n_recvs;
    struct dpt_comm_op *send_op, *recv_op;
    struct dpt_comm_xfer sends[RANKS_MAX * PER_PAIR_MAX], recvs[RANKS_MAX * PER_PAIR_MAX];
    int number[RANKS_MAX * PER_PAIR_MAX]; /* of the receives, within their pair */
};

struct traffic {
    struct rank *self;
    struct dpt_comm *comm;
    struct dpt_comm_mem *out[DEPTH], *in[DEPTH];
    struct step steps[DEPTH];
    uint64_t random;
};

static void fill(uint8_t *data, size_t bytes, int step, int from, int to, int i)
{
    for (size_t at = 0; at < bytes; at++)
        data[at] = pattern(step, from, to, i, at);
}

static void check_content(const uint8_t *data, size_t bytes, int step, int from, int to, int i)
{
    for (size_t at = 0; at < bytes; at++)
        CHECK(data[at] == pattern(step, from, to, i, at));
}

static size_t slot_offset(int peer, int i)
{
    return (size_t)(peer * PER_PAIR_MAX + i) * BYTES_MAX;
}

static void add_sends(struct traffic *t, struct step *s, int peer)
{
    const uint64_t seed = t->self->world->seed;
    const int me = t->self->rank, slot = s->step % DEPTH;
    for (int i = 0; i < transfers(seed, s->step, me, peer); i++) {
        const size_t bytes = transfer_bytes(seed, s->step, me, peer, i);
        struct dpt_comm_xfer x = {.dir = DPT_COMM_SEND, .peer = peer, .bytes = bytes};
        uint8_t *data = (uint8_t *)dpt_comm_mem_data(t->out[slot]) + slot_offset(peer, i);
        fill(data, bytes, s->step, me, peer, i);
        if (transfer_is_small(seed, s->step, me, peer, i)) {
            x.buf = data;
        } else {
            x.mem = t->out[slot];
            x.offset = slot_offset(peer, i);
        }
        s->sends[s->n_sends++] = x;
    }
}

static void add_recvs(struct traffic *t, struct step *s, int peer)
{
    const uint64_t seed = t->self->world->seed;
    const int me = t->self->rank, slot = s->step % DEPTH;
    for (int i = 0; i < transfers(seed, s->step, peer, me); i++) {
        struct dpt_comm_xfer x = {.dir =
                                      next_random(&t->random) % 2 ? DPT_COMM_RECV : DPT_COMM_LEND,
                                  .peer = peer,
                                  .mem = t->in[slot],
                                  .offset = slot_offset(peer, i),
                                  .bytes = transfer_bytes(seed, s->step, peer, me, i)};
        if (next_random(&t->random) % 3 == 0) { /* the same place by pointer */
            x.buf = (uint8_t *)dpt_comm_mem_data(t->in[slot]) + x.offset;
            x.mem = NULL;
        }
        s->number[s->n_recvs] = i;
        s->recvs[s->n_recvs++] = x;
    }
}

/* Peers in another order each step, but each pair's transfers in theirs. */
static void post(struct traffic *t, int step)
{
    const struct world *w = t->self->world;
    struct dpt_err *err = &t->self->err;
    const int me = t->self->rank;
    struct step *s = &t->steps[step % DEPTH];
    *s = (struct step){.step = step};
    for (int k = 0; k < w->size; k++) {
        const int peer = (k + step * 3 + me) % w->size;
        if (peer == me)
            continue;
        add_sends(t, s, peer);
        add_recvs(t, s, peer);
    }
    const bool sends_first = next_random(&t->random) % 2 == 0;
    if (sends_first)
        CHECK_OK(dpt_comm_exchange(t->comm, s->sends, s->n_sends, &s->send_op, err), err);
    CHECK_OK(dpt_comm_exchange(t->comm, s->recvs, s->n_recvs, &s->recv_op, err), err);
    if (!sends_first)
        CHECK_OK(dpt_comm_exchange(t->comm, s->sends, s->n_sends, &s->send_op, err), err);
    for (int i = 0; i < s->n_sends; i++) /* a small send was copied when posted */
        if (s->sends[i].mem == NULL)
            memset(s->sends[i].buf, 0xee, s->sends[i].bytes);
}

static void check_received(struct traffic *t, const struct step *s)
{
    for (int i = 0; i < s->n_recvs; i++) {
        const struct dpt_comm_xfer *x = &s->recvs[i];
        const uint8_t *data = x->buf;
        if (x->dir == DPT_COMM_LEND)
            data = x->lent;
        else if (x->mem != NULL)
            data = (const uint8_t *)dpt_comm_mem_data(x->mem) + x->offset;
        CHECK(data != NULL);
        check_content(data, x->bytes, s->step, x->peer, t->self->rank, s->number[i]);
    }
}

static void wait_done(struct traffic *t, struct dpt_comm_op *op)
{
    enum dpt_status status;
    do
        status =
            dpt_comm_poll(t->comm, op, next_random(&t->random) % 4 == 0 ? 0 : 100, &t->self->err);
    while (status == DPT_INPROGRESS);
    CHECK_OK(status, &t->self->err);
}

/* Ends a step: its receives are right, and stay so while lent; its sends' memory is spoilt as soon
 * as they are done. */
static void finish(struct traffic *t, struct step *s)
{
    wait_done(t, s->recv_op);
    CHECK(dpt_comm_op_received(s->recv_op));
    check_received(t, s);
    for (uint64_t i = next_random(&t->random) % 3; i > 0; i--) {
        const enum dpt_status status = dpt_comm_poll(t->comm, NULL, 0, &t->self->err);
        CHECK(status == DPT_OK || status == DPT_INPROGRESS);
        check_received(t, s);
    }
    dpt_comm_op_free(t->comm, &s->recv_op);
    CHECK(s->recv_op == NULL);
    wait_done(t, s->send_op);
    for (int i = 0; i < s->n_sends; i++)
        if (s->sends[i].mem != NULL)
            memset((uint8_t *)dpt_comm_mem_data(s->sends[i].mem) + s->sends[i].offset, 0xdd,
                   s->sends[i].bytes);
    dpt_comm_op_free(t->comm, &s->send_op);
}

static void random_traffic(struct rank *self)
{
    static _Thread_local struct traffic t;
    t = (struct traffic){.self = self,
                         .random = hash(self->world->seed, 99, (uint64_t)self->rank, 0) | 1};
    for (int i = 0; i < DEPTH; i++) {
        CHECK_OK(dpt_comm_mem_create(self->listener, SLOT_BYTES, &t.out[i], &self->err),
                 &self->err);
        CHECK_OK(dpt_comm_mem_create(self->listener, SLOT_BYTES, &t.in[i], &self->err), &self->err);
    }
    for (uint64_t generation = 1; generation <= 2; generation++) {
        t.comm = world_comm(self, generation);
        CHECK(dpt_comm_rank(t.comm) == self->rank);
        CHECK(dpt_comm_world_size(t.comm) == self->world->size);
        for (int step = 0; step < STEPS; step++) {
            if (step >= DEPTH)
                finish(&t, &t.steps[step % DEPTH]);
            post(&t, step);
        }
        for (int step = STEPS - DEPTH; step < STEPS; step++)
            finish(&t, &t.steps[step % DEPTH]);
        wait_done(&t, NULL);
        dpt_comm_destroy(&t.comm);
        CHECK(t.comm == NULL);
    }
    for (int i = 0; i < DEPTH; i++) {
        dpt_comm_mem_destroy(&t.out[i]);
        dpt_comm_mem_destroy(&t.in[i]);
    }
}

static void run_traffic(const int *hosts, const char *address, bool sim)
{
    for (int size = 1; size <= 6; size += size < 4 ? 1 : 2) {
        struct world world = {.size = size, .address = address, .seed = (uint64_t)size * 1000 + 7};
        struct dpt_err err;
        memcpy(world.hosts, hosts, sizeof world.hosts);
        if (sim)
            assert_int_equal(dpt_sim_net_create(&world.sim, &err), DPT_OK);
        world_run_threads(&world, random_traffic);
        if (sim)
            dpt_sim_net_destroy(&world.sim);
    }
}

static void traffic_in_one_host(void **state)
{
    (void)state;
    run_traffic(one_host, "127.0.0.1", false);
}

static void traffic_between_hosts(void **state)
{
    (void)state;
    run_traffic(every_host, "127.0.0.1", false);
}

static void traffic_mixed(void **state)
{
    (void)state;
    run_traffic(mixed, "127.0.0.1", false);
}

static void traffic_ipv6(void **state)
{
    (void)state;
    struct dpt_comm_listener *listener;
    if (dpt_comm_listener_create("::1", &listener, NULL) != DPT_OK)
        skip(); /* a machine without IPv6 */
    dpt_comm_listener_destroy(&listener);
    run_traffic(mixed, "::1", false);
}

static void traffic_simulated(void **state)
{
    (void)state;
    run_traffic(one_host, NULL, true);
}

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
    for (int i = 0; i < AHEAD; i++) { /* large and small in turn, to and fro */
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
        /* Nothing is posted there: nothing of size is done here. */
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

static void all_collectives(struct rank *self)
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
        CHECK_OK(dpt_comm_all_gather_v(comm, mem, offsets, bytes, &self->err), &self->err);
        for (int r = 0; r < n; r++)
            for (size_t i = 0; i < PART; i++)
                CHECK(data[offsets[r] + i] == (i < bytes[r] ? r + 1 : 0));

        const int root = round % n;
        memset(data, self->rank == root ? 77 + round : 0, RANKS_MAX * PART);
        CHECK_OK(dpt_comm_broadcast(comm, mem, 100, 20000, root, &self->err), &self->err);
        CHECK(data[100] == 77 + round && data[20099] == 77 + round);
        CHECK(self->rank == root || (data[99] == 0 && data[20100] == 0));

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
    CHECK_STATUS(DPT_EINVAL, dpt_comm_broadcast(comm, mem, 0, 1, n, &self->err), &self->err);
    dpt_comm_destroy(&comm);
    dpt_comm_mem_destroy(&mem);
}

static void collectives(void **state)
{
    (void)state;
    for (int size = 1; size <= 6; size++) {
        struct world shm = {.size = size}, tcp = {.size = size}, both = {.size = size},
                     sim = {.size = size};
        memcpy(tcp.hosts, every_host, sizeof tcp.hosts);
        memcpy(both.hosts, mixed, sizeof both.hosts);
        world_run_threads(&shm, all_collectives);
        world_run_threads(&tcp, all_collectives);
        world_run_threads(&both, all_collectives);
        assert_int_equal(dpt_sim_net_create(&sim.sim, NULL), DPT_OK);
        world_run_threads(&sim, all_collectives);
        dpt_sim_net_destroy(&sim.sim);
    }
}

/* One leaves in good order while the others still talk; nobody who needs nothing of it minds. */
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
        /* But who then wants something of it is told. */
        x = (struct dpt_comm_xfer){.dir = DPT_COMM_RECV, .peer = 2, .buf = buf, .bytes = 4};
        CHECK_OK(dpt_comm_exchange(comm, &x, 1, &op, &self->err), &self->err);
        CHECK_STATUS(DPT_EPEER, dpt_comm_poll(comm, op, -1, &self->err), &self->err);
        CHECK(dpt_comm_suspect(comm) == 2);
        pthread_barrier_wait(&self->world->barrier);
        dpt_comm_destroy(&comm);
    } else {
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
        cmocka_unit_test(a_world_of_one),
        cmocka_unit_test(traffic_in_one_host),
        cmocka_unit_test(traffic_between_hosts),
        cmocka_unit_test(traffic_mixed),
        cmocka_unit_test(traffic_ipv6),
        cmocka_unit_test(traffic_simulated),
        cmocka_unit_test(sender_runs_ahead),
        cmocka_unit_test(lent_memory_is_held),
        cmocka_unit_test(ill_formed_transfers_are_refused),
        cmocka_unit_test(lengths_must_agree),
        cmocka_unit_test(collectives),
        cmocka_unit_test(orderly_leave_is_no_death),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
