/* Random traffic between ranks as threads, over shared memory, TCP, both, and the simulator: every
 * content is checked, and sent memory is spoilt as soon as that is allowed. */
#include "tests/every.h"
#include "tests/worker/comm/comm_world.h"

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

/* Sends and receives are two ops: borrowed memory is given back before the rank waits for its
 * sends. */
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

static void fill_payload(uint8_t *data, size_t bytes, int step, int from, int to, int i)
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
        fill_payload(data, bytes, s->step, me, peer, i);
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
static void post_step(struct traffic *t, int step)
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
static void finish_step(struct traffic *t, struct step *s)
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
                finish_step(&t, &t.steps[step % DEPTH]);
            post_step(&t, step);
        }
        for (int step = STEPS - DEPTH; step < STEPS; step++)
            finish_step(&t, &t.steps[step % DEPTH]);
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
    for (int size = 1; size <= 6; size += dpt_test_sanitized_every() > 1 || size >= 4 ? 2 : 1) {
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(traffic_in_one_host), cmocka_unit_test(traffic_between_hosts),
        cmocka_unit_test(traffic_mixed),       cmocka_unit_test(traffic_ipv6),
        cmocka_unit_test(traffic_simulated),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
