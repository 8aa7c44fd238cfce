/* Creation of communicators: missing, dead, strange, early and late peers; abort from every state;
 * nothing left behind. */
#include "tests/worker/comm/comm_world.h"

#include "base/clock.h"
#include "worker/comm/handshake.h"
#include "worker/comm/socket_address.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

enum { QUICK_MS = 5000 /* "at once": long before the deadline, on a busy machine, too */ };

/* Two listeners of this thread, and specs between them. */
struct pair {
    struct dpt_comm_listener *listeners[2];
    struct dpt_comm_peer peers[2];
    struct dpt_err err;
};

static void pair_open(struct pair *p)
{
    for (int i = 0; i < 2; i++) {
        CHECK_OK(dpt_comm_listener_create("127.0.0.1", &p->listeners[i], &p->err), &p->err);
        p->peers[i].rank = i;
        set_text(p->peers[i].shm_addr, sizeof p->peers[i].shm_addr,
                 dpt_comm_listener_shm_addr(p->listeners[i]));
        set_text(p->peers[i].tcp_addr, sizeof p->peers[i].tcp_addr,
                 dpt_comm_listener_tcp_addr(p->listeners[i]));
    }
}

static void pair_close(struct pair *p)
{
    dpt_comm_listener_destroy(&p->listeners[0]);
    dpt_comm_listener_destroy(&p->listeners[1]);
}

static struct dpt_comm_spec pair_spec(struct pair *p, int rank, bool tcp, int timeout_ms)
{
    p->peers[1 - rank].host = tcp ? 1 : 0;
    return (struct dpt_comm_spec){.run = "pair",
                                  .generation = 5,
                                  .nonce = {1, 2, 3},
                                  .rank = rank,
                                  .world_size = 2,
                                  .host = 0,
                                  .peers = &p->peers[1 - rank],
                                  .n_peers = 1,
                                  .timeout_ms = timeout_ms};
}

static void silent_peer_is_named_at_the_deadline(void **state)
{
    (void)state;
    for (int c = 0; c < 4; c++) {
        struct pair p = {0};
        struct dpt_comm *comm = NULL;
        int suspect = -7;
        const int rank = c % 2;
        pair_open(&p);
        const struct dpt_comm_spec spec = pair_spec(&p, rank, c / 2 == 1, 150);
        const int64_t start = dpt_now_ms();
        CHECK_STATUS(DPT_ETIMEOUT,
                     dpt_comm_create(p.listeners[rank], &spec, -1, &comm, &suspect, &p.err),
                     &p.err);
        CHECK(dpt_now_ms() - start >= 150 && dpt_now_ms() - start < 150 + QUICK_MS);
        CHECK(suspect == 1 - rank && comm == NULL);
        CHECK(strstr(p.err.text, rank == 0 ? "rank 1" : "rank 0") != NULL);
        pair_close(&p);
    }
}

static void dead_peer_is_named_at_once(void **state)
{
    (void)state;
    for (int c = 0; c < 4; c++) {
        struct pair p = {0};
        struct dpt_comm *comm = NULL;
        int suspect = -7;
        const int rank = c % 2;
        pair_open(&p);
        const struct dpt_comm_spec spec = pair_spec(&p, rank, c / 2 == 1, 10000);
        dpt_comm_listener_destroy(&p.listeners[1 - rank]);
        const int64_t start = dpt_now_ms();
        CHECK_STATUS(DPT_EPEER,
                     dpt_comm_create(p.listeners[rank], &spec, -1, &comm, &suspect, &p.err),
                     &p.err);
        CHECK(dpt_now_ms() - start < QUICK_MS);
        CHECK(suspect == 1 - rank);
        pair_close(&p);
    }
}

static void bad_specs_are_refused(void **state)
{
    (void)state;
    struct pair p = {0};
    struct dpt_comm *comm = NULL;
    struct dpt_comm_listener *none = NULL;
    pair_open(&p);
    const struct dpt_comm_spec good = pair_spec(&p, 0, true, 100);
    struct dpt_comm_spec bad[] = {good, good, good, good, good, good};
    bad[0].world_size = 0;
    bad[1].rank = 2;
    bad[2].rank = 1; /* its own peer */
    bad[3].n_peers = 2;
    bad[4].timeout_ms = 0;
    memset(bad[5].run, 'x', sizeof bad[5].run);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        CHECK_STATUS(DPT_EINVAL, dpt_comm_create(p.listeners[0], &bad[i], -1, &comm, NULL, &p.err),
                     &p.err);
    static const char *const addresses[] = {"",    "localhost:1", "1.2.3.4",
                                            "::1", "[::1]",       "1.2.3.4:x"};
    for (size_t i = 0; i < sizeof addresses / sizeof addresses[0]; i++) {
        set_text(p.peers[1].tcp_addr, sizeof p.peers[1].tcp_addr, addresses[i]);
        CHECK_STATUS(DPT_EINVAL, dpt_comm_create(p.listeners[0], &good, -1, &comm, NULL, &p.err),
                     &p.err);
    }
    CHECK_STATUS(DPT_EINVAL, dpt_comm_listener_create("example.com", &none, &p.err), &p.err);
    CHECK_STATUS(DPT_EIO, dpt_comm_listener_create("192.0.2.1", &none, &p.err),
                 &p.err); /* not ours */
    CHECK(comm == NULL && none == NULL);
    pair_close(&p);
}

/* Strangers. */

static int dial(const char *text)
{
    struct dpt_address address;
    CHECK_OK(dpt_address_parse(text, &address, NULL), (struct dpt_err *)NULL);
    const int fd = socket(address.addr.ss_family,
                          (text[0] == '@' ? SOCK_SEQPACKET : SOCK_STREAM) | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0);
    CHECK(connect(fd, (struct sockaddr *)&address.addr, address.len) == 0);
    return fd;
}

static bool is_closed(int fd)
{
    char byte;
    const struct timeval patience = {.tv_sec = 10};
    CHECK(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience) == 0);
    return recv(fd, &byte, 1, 0) <= 0;
}

enum { STRANGERS = 12, SILENT = 150 };

struct strangers {
    int liars[2 * STRANGERS], silent[SILENT];
};

/* All kinds of wrong hellos to rank 0 of `spec`, sent in the name of rank 1. */
static void send_strangers(struct strangers *s, struct dpt_comm_spec spec, const char *shm,
                           const char *tcp)
{
    static const uint8_t salt[DPT_HANDSHAKE_SALT_BYTES] = {1};
    spec.rank = 1;
    for (int i = 0; i < 2 * STRANGERS; i++) {
        struct dpt_comm_spec liar = spec;
        uint8_t hello[2 * DPT_HANDSHAKE_BYTES] = {0};
        size_t bytes = DPT_HANDSHAKE_BYTES;
        switch (i % STRANGERS) {
        case 0:
            liar.nonce[15] ^= 1;
            break;
        case 1:
            liar.generation--;
            break;
        case 2:
            liar.generation++;
            break;
        case 3:
            liar.world_size++;
            break;
        case 4:
            set_text(liar.run, sizeof liar.run, "another");
            break;
        case 5:
            liar.rank = 0; /* the acceptor itself */
            break;
        case 6:
            liar.rank = 1000;
            break;
        default:
            break;
        }
        dpt_handshake_encode(&liar,
                             i % STRANGERS == 7 ? DPT_HANDSHAKE_WELCOME : DPT_HANDSHAKE_DIALER,
                             i % STRANGERS == 8 ? 1 : 0, salt, hello);
        if (i % STRANGERS == 9)
            hello[8]++; /* version */
        if (i % STRANGERS == 10)
            memset(hello, 0xff, sizeof hello);
        if (i % STRANGERS == 11) {
            memset(hello, 'G', sizeof hello);
            bytes = sizeof hello;
        }
        s->liars[i] = dial(i < STRANGERS ? shm : tcp);
        CHECK(send(s->liars[i], hello, bytes, MSG_NOSIGNAL) == (ssize_t)bytes);
    }
    for (int i = 0; i < SILENT; i++) { /* more than are kept; some say half a hello */
        s->silent[i] = dial(i % 2 ? tcp : shm);
        if (i % 4 == 1)
            CHECK(send(s->silent[i], "dptcomm", 8, MSG_NOSIGNAL) == 8);
    }
}

static void small_round(struct dpt_comm *comm, struct dpt_err *err)
{
    int all[RANKS_MAX], mine = dpt_comm_rank(comm) + 40;
    CHECK_OK(dpt_comm_small_all_gather(comm, &mine, sizeof mine, all, err), err);
    for (int r = 0; r < dpt_comm_world_size(comm); r++)
        CHECK(all[r] == r + 40);
}

static void create_among_strangers(struct rank *self)
{
    const struct dpt_comm_spec spec = world_spec(self, 9);
    struct strangers s;
    struct dpt_comm *comm;
    if (self->rank == 0)
        send_strangers(&s, spec, self->world->shm_addr[0], self->world->tcp_addr[0]);
    pthread_barrier_wait(&self->world->barrier);
    CHECK_OK(dpt_comm_create(self->listener, &spec, -1, &comm, NULL, &self->err), &self->err);
    small_round(comm, &self->err);
    for (int i = 0; self->rank == 0 && i < 2 * STRANGERS; i++) {
        CHECK(is_closed(s.liars[i]));
        close(s.liars[i]);
    }
    for (int i = 0; self->rank == 0 && i < SILENT; i++) {
        CHECK(is_closed(s.silent[i]));
        close(s.silent[i]);
    }
    small_round(comm, &self->err);
    dpt_comm_destroy(&comm);
}

static void strangers_are_closed_and_ignored(void **state)
{
    (void)state;
    struct world shm = {.size = 2}, tcp = {.size = 3, .hosts = {0, 1, 2}};
    world_run_threads(&shm, create_among_strangers);
    world_run_threads(&tcp, create_among_strangers);
}

/* Rank 1 is a generation ahead: it dials in vain until rank 0 comes too. */
static void create_early(struct rank *self)
{
    struct dpt_comm *comm = NULL;
    if (self->rank == 0) {
        struct dpt_comm_spec old = world_spec(self, 1);
        old.timeout_ms = 100;
        CHECK_STATUS(DPT_ETIMEOUT,
                     dpt_comm_create(self->listener, &old, -1, &comm, NULL, &self->err),
                     &self->err);
    }
    comm = world_comm(self, 2);
    small_round(comm, &self->err);
    dpt_comm_destroy(&comm);
}

static void peer_of_a_later_generation_waits(void **state)
{
    (void)state;
    struct world shm = {.size = 2}, tcp = {.size = 2, .hosts = {0, 1}};
    world_run_threads(&shm, create_early);
    world_run_threads(&tcp, create_early);
}

/* Aborts. */

struct aborter {
    int fd;
    struct dpt_comm *comm;
    uint64_t delay_us;
    int64_t aborted_ms;
};

static void *abort_later(void *arg)
{
    struct aborter *a = arg;
    let_pass_us(a->delay_us); /* the delay makes the moment random; it orders nothing */
    a->aborted_ms = dpt_now_ms();
    const uint64_t one = 1;
    if (a->comm != NULL)
        dpt_comm_abort(a->comm);
    else
        CHECK(write(a->fd, &one, sizeof one) == sizeof one);
    return NULL;
}

static void abort_in_creation(void **state)
{
    (void)state;
    uint64_t random = 12345;
    for (int c = 0; c < 40; c++) {
        struct pair p = {0};
        struct dpt_comm *comm = NULL;
        const int rank = c % 2;
        struct aborter a = {.fd = eventfd(0, EFD_CLOEXEC),
                            .delay_us = next_random(&random) % 30000};
        pthread_t thread;
        CHECK(a.fd >= 0);
        pair_open(&p);
        const struct dpt_comm_spec spec = pair_spec(&p, rank, c / 2 % 2 == 1, 20000);
        CHECK(pthread_create(&thread, NULL, abort_later, &a) == 0);
        CHECK_STATUS(DPT_EABORTED,
                     dpt_comm_create(p.listeners[rank], &spec, a.fd, &comm, NULL, &p.err), &p.err);
        const int64_t end = dpt_now_ms();
        CHECK(pthread_join(thread, NULL) == 0);
        CHECK(end - a.aborted_ms < QUICK_MS && comm == NULL);
        close(a.fd);
        pair_close(&p);
    }
}

enum { ABORT_BYTES = 8 << 20 };

/* Endless traffic, cut at a random moment by another thread. */
static void abort_in_traffic(struct rank *self)
{
    struct dpt_comm_mem *mem;
    CHECK_OK(dpt_comm_mem_create(self->listener, 2 * ABORT_BYTES, &mem, &self->err), &self->err);
    uint8_t *data = dpt_comm_mem_data(mem), *copy = malloc(ABORT_BYTES);
    CHECK(copy != NULL);
    uint64_t random = self->world->seed * 77 + 1;
    for (int round = 0; round < 6; round++) {
        struct dpt_comm *comm = world_comm(self, (uint64_t)round + 1);
        struct aborter a = {.comm = comm, .delay_us = next_random(&random) % 20000};
        pthread_t thread;
        if (self->rank == 0)
            CHECK(pthread_create(&thread, NULL, abort_later, &a) == 0);
        enum dpt_status status;
        do {
            struct dpt_comm_op *op;
            struct dpt_comm_xfer xfers[] = {
                {.dir = DPT_COMM_SEND, .peer = 1 - self->rank, .mem = mem, .bytes = ABORT_BYTES},
                {.dir = DPT_COMM_RECV,
                 .peer = 1 - self->rank,
                 .mem = mem,
                 .offset = ABORT_BYTES,
                 .bytes = ABORT_BYTES}};
            status = dpt_comm_exchange(comm, xfers, 2, &op, &self->err);
            if (status == DPT_OK) {
                status = dpt_comm_poll(comm, op, -1, &self->err);
                dpt_comm_op_free(comm, &op);
            }
        } while (status == DPT_OK);
        if (self->rank == 0) {
            /* From here nothing writes any more, though the peer may go on sending. */
            memcpy(copy, data + ABORT_BYTES, ABORT_BYTES);
            CHECK_STATUS(DPT_EABORTED, status, &self->err);
            CHECK(pthread_join(thread, NULL) == 0);
            CHECK(dpt_now_ms() - a.aborted_ms < QUICK_MS);
            CHECK_STATUS(DPT_EABORTED, dpt_comm_poll(comm, NULL, -1, &self->err), &self->err);
        } else {
            CHECK_STATUS(DPT_EPEER, status, &self->err);
            CHECK(dpt_comm_suspect(comm) == 0);
        }
        dpt_comm_destroy(&comm);
        pthread_barrier_wait(&self->world->barrier);
        if (self->rank == 0)
            CHECK(memcmp(copy, data + ABORT_BYTES, ABORT_BYTES) == 0);
        pthread_barrier_wait(&self->world->barrier);
    }
    free(copy);
    dpt_comm_mem_destroy(&mem);
}

static void abort_while_talking(void **state)
{
    (void)state;
    struct world shm = {.size = 2, .seed = 1}, tcp = {.size = 2, .hosts = {0, 1}, .seed = 2};
    world_run_threads(&shm, abort_in_traffic);
    world_run_threads(&tcp, abort_in_traffic);
}

/* Nothing is left of 100 communicators, ended in every way. */
enum { CYCLES = 100 };

static void cycle(struct rank *self)
{
    struct dpt_comm_mem *mem;
    CHECK_OK(dpt_comm_mem_create(self->listener, 1 << 16, &mem, &self->err), &self->err);
    int fds = 0, maps = 0;
    for (int i = 0; i < CYCLES; i++) {
        struct dpt_comm_spec spec = world_spec(self, (uint64_t)i + 1);
        struct dpt_comm *comm = NULL;
        if (i % 4 == 1)
            spec.timeout_ms = 20; /* the others wait in vain for rank 1, which is aborted */
        const int abort_fd = eventfd(i % 4 == 1 && self->rank == 1, EFD_CLOEXEC);
        enum dpt_status status =
            dpt_comm_create(self->listener, &spec, abort_fd, &comm, NULL, &self->err);
        if (i % 2 == 0) /* else another's abort may end the creation */
            CHECK_OK(status, &self->err);
        if (i % 4 == 2)
            small_round(comm, &self->err);
        if (status == DPT_OK && i % 4 == 3) {
            struct dpt_comm_xfer x = {.dir = DPT_COMM_SEND,
                                      .peer = (self->rank + 1) % self->world->size,
                                      .mem = mem,
                                      .bytes = 1 << 16};
            struct dpt_comm_op *op;
            if (dpt_comm_exchange(comm, &x, 1, &op, &self->err) == DPT_OK)
                dpt_comm_abort(comm);
        }
        dpt_comm_destroy(&comm);
        close(abort_fd);
        pthread_barrier_wait(&self->world->barrier);
        if (self->rank == 0 && i == 3) {
            fds = count_fds();
            maps = count_maps();
        }
        if (self->rank == 0 && i == CYCLES - 1) {
            CHECK(count_fds() == fds);
            CHECK(count_maps() == maps);
        }
        pthread_barrier_wait(&self->world->barrier);
    }
    dpt_comm_mem_destroy(&mem);
}

static void nothing_is_left_behind(void **state)
{
    (void)state;
    const int fds = count_fds(), maps = count_maps();
    struct world world = {.size = 4, .hosts = {0, 0, 1, 1}};
    world_run_threads(&world, cycle);
    assert_int_equal(count_fds(), fds);
    assert_int_equal(count_maps(), maps);
}

static void regions_have_a_limit(void **state)
{
    (void)state;
    struct dpt_err err;
    struct dpt_comm_listener *listener;
    struct dpt_comm_mem *mems[DPT_COMM_REGIONS_MAX], *more = NULL;
    CHECK_OK(dpt_comm_listener_create("127.0.0.1", &listener, &err), &err);
    for (int i = 0; i < DPT_COMM_REGIONS_MAX; i++)
        CHECK_OK(dpt_comm_mem_create(listener, 100, &mems[i], &err), &err);
    CHECK_STATUS(DPT_EOVERFLOW, dpt_comm_mem_create(listener, 100, &more, &err), &err);
    dpt_comm_mem_destroy(&mems[10]);
    CHECK_OK(dpt_comm_mem_create(listener, 100, &mems[10], &err), &err);
    CHECK(((uint8_t *)dpt_comm_mem_data(mems[10]))[99] == 0);
    for (int i = 0; i < DPT_COMM_REGIONS_MAX; i++)
        dpt_comm_mem_destroy(&mems[i]);
    CHECK_STATUS(DPT_EINVAL, dpt_comm_mem_create(listener, 0, &more, &err), &err);
    CHECK_STATUS(DPT_ENOMEM, dpt_comm_mem_create(listener, (size_t)1 << 60, &more, &err), &err);
    dpt_comm_listener_destroy(&listener);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(silent_peer_is_named_at_the_deadline),
        cmocka_unit_test(dead_peer_is_named_at_once),
        cmocka_unit_test(bad_specs_are_refused),
        cmocka_unit_test(strangers_are_closed_and_ignored),
        cmocka_unit_test(peer_of_a_later_generation_waits),
        cmocka_unit_test(abort_in_creation),
        cmocka_unit_test(abort_while_talking),
        cmocka_unit_test(nothing_is_left_behind),
        cmocka_unit_test(regions_have_a_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
