/* Frames of a trunk, one by one: rank 0 of six is real, the four ranks to which it has links are
 * raw sockets. It passes on what is well-formed; anything else ends the communicator with an error
 * that names the sender. */
#include "tests/worker/comm/comm_world.h"
#include "worker/comm/handshake.h"
#include "worker/comm/relay.h"
#include "worker/comm/socket_address.h"

#include "base/cursor.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

enum { WORLD = 6, FAKES = 4, PAYLOAD = 8 };
static const int fake_ranks[FAKES] = {1, 2, 4, 5};

struct stage {
    struct dpt_comm_listener *listener, *other; /* other: where rank 0 may probe */
    struct dpt_comm_peer peers[WORLD - 1];
    struct dpt_comm_spec spec;
    int fd[WORLD]; /* of the fakes; -1: none */
};

static void send_frame(int fd, struct relay_head head)
{
    uint8_t bytes[RELAY_HEAD_BYTES + PAYLOAD] = {0};
    struct dpt_writer w;
    dpt_writer_init(&w, bytes, sizeof bytes);
    dpt_writer_u16(&w, head.type);
    dpt_writer_u16(&w, head.hops);
    dpt_writer_u32(&w, head.from);
    dpt_writer_u32(&w, head.to);
    dpt_writer_u32(&w, head.bytes);
    dpt_writer_u64(&w, head.value);
    memset(bytes + RELAY_HEAD_BYTES, 'x', PAYLOAD);
    const size_t n = RELAY_HEAD_BYTES + (head.bytes <= PAYLOAD ? head.bytes : 0);
    CHECK(send(fd, bytes, n, MSG_NOSIGNAL) == (ssize_t)n);
}

static struct relay_head read_frame(int fd)
{
    uint8_t bytes[RELAY_HEAD_BYTES + PAYLOAD];
    struct dpt_reader r;
    struct relay_head head;
    CHECK(recv(fd, bytes, RELAY_HEAD_BYTES, MSG_WAITALL) == RELAY_HEAD_BYTES);
    dpt_reader_init(&r, bytes, RELAY_HEAD_BYTES);
    head.type = dpt_reader_u16(&r);
    head.hops = dpt_reader_u16(&r);
    head.from = dpt_reader_u32(&r);
    head.to = dpt_reader_u32(&r);
    head.bytes = dpt_reader_u32(&r);
    head.value = dpt_reader_u64(&r);
    CHECK(head.bytes <= PAYLOAD);
    if (head.bytes > 0)
        CHECK(recv(fd, bytes, head.bytes, MSG_WAITALL) == (ssize_t)head.bytes);
    return head;
}

static void *dial_rank_0(void *arg)
{
    struct stage *s = arg;
    struct dpt_address address;
    CHECK_OK(dpt_address_parse(dpt_comm_listener_tcp_addr(s->listener), &address, NULL),
             (struct dpt_err *)NULL);
    for (int i = 0; i < FAKES; i++) {
        uint8_t hello[DPT_HANDSHAKE_BYTES], sent[DPT_HANDSHAKE_BYTES];
        struct dpt_comm_spec spec = s->spec;
        const int fd = socket(address.addr.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        CHECK(fd >= 0 && connect(fd, (struct sockaddr *)&address.addr, address.len) == 0);
        spec.rank = fake_ranks[i];
        CHECK(dpt_handshake_send(fd, &spec, DPT_HANDSHAKE_DIALER, 0, sent));
        CHECK(recv(fd, hello, sizeof hello, MSG_WAITALL) == (ssize_t)sizeof hello);
        s->fd[fake_ranks[i]] = fd;
    }
    return NULL;
}

static struct dpt_comm *begin(struct stage *s)
{
    struct dpt_err err;
    struct dpt_comm *comm;
    pthread_t thread;
    CHECK_OK(dpt_comm_listener_create("127.0.0.1", &s->listener, &err), &err);
    CHECK_OK(dpt_comm_listener_create("127.0.0.1", &s->other, &err), &err);
    s->spec = (struct dpt_comm_spec){.run = "frames",
                                     .generation = 1,
                                     .world_size = WORLD,
                                     .peers = s->peers,
                                     .n_peers = WORLD - 1,
                                     .timeout_ms = TIMEOUT_MS,
                                     .mesh_max = 2};
    for (int i = 0; i < WORLD - 1; i++) {
        s->peers[i] = (struct dpt_comm_peer){.rank = i + 1, .host = i + 1};
        s->fd[i + 1] = -1;
        set_text(s->peers[i].shm_addr, sizeof s->peers[i].shm_addr,
                 dpt_comm_listener_shm_addr(s->other));
        set_text(s->peers[i].tcp_addr, sizeof s->peers[i].tcp_addr,
                 dpt_comm_listener_tcp_addr(s->other));
    }
    CHECK(pthread_create(&thread, NULL, dial_rank_0, s) == 0);
    CHECK_OK(dpt_comm_create(s->listener, &s->spec, -1, &comm, NULL, &err), &err);
    CHECK(pthread_join(thread, NULL) == 0);
    return comm;
}

static void end(struct stage *s, struct dpt_comm **comm)
{
    dpt_comm_destroy(comm);
    for (int i = 0; i < FAKES; i++)
        close(s->fd[fake_ranks[i]]);
    dpt_comm_listener_destroy(&s->listener);
    dpt_comm_listener_destroy(&s->other);
}

static void poll_a_moment(struct dpt_comm *comm)
{
    struct dpt_err err;
    CHECK_STATUS(DPT_INPROGRESS, dpt_comm_poll_woken(comm, 20 * 1000 * 1000, &err), &err);
}

/* Rank 1 sends to rank 4 over rank 0: a frame goes on, and its slot is given back. */
static void frames_are_passed_on(void **state)
{
    (void)state;
    struct stage s;
    struct dpt_comm *comm = begin(&s);
    for (int i = 0; i < 3 * RELAY_SLOTS; i++) {
        send_frame(s.fd[1], (struct relay_head){RELAY_DATA, 1, 1, 4, PAYLOAD, PAYLOAD});
        poll_a_moment(comm);
        const struct relay_head passed = read_frame(s.fd[4]), credit = read_frame(s.fd[1]);
        assert_int_equal(passed.type, RELAY_DATA);
        assert_int_equal(passed.hops, 2);
        assert_int_equal(passed.from, 1);
        assert_int_equal(passed.to, 4);
        assert_int_equal(passed.bytes, PAYLOAD);
        assert_int_equal(credit.type, RELAY_CREDIT);
        assert_int_equal(credit.hops, 0);
        assert_int_equal(credit.value, 1);
    }
    end(&s, &comm);
}

/* The payload of a send waits for its grant; a posted receive is granted at once. */
static void data_waits_for_its_grant(void **state)
{
    (void)state;
    struct stage s;
    struct dpt_err err;
    struct dpt_comm_op *op;
    uint8_t out[PAYLOAD] = {0}, in[PAYLOAD] = {0};
    struct dpt_comm *comm = begin(&s);
    struct dpt_comm_xfer x[] = {{.dir = DPT_COMM_SEND, .peer = 2, .buf = out, .bytes = sizeof out},
                                {.dir = DPT_COMM_RECV, .peer = 2, .buf = in, .bytes = sizeof in}};
    CHECK_OK(dpt_comm_exchange(comm, x, 2, &op, &err), &err);
    const struct relay_head granted = read_frame(s.fd[2]);
    assert_int_equal(granted.type, RELAY_GRANT);
    assert_int_equal(granted.value, 1);
    poll_a_moment(comm);
    send_frame(s.fd[2], (struct relay_head){RELAY_GRANT, 1, 2, 0, 0, 1});
    send_frame(s.fd[2], (struct relay_head){RELAY_DATA, 1, 2, 0, PAYLOAD, PAYLOAD});
    CHECK_OK(dpt_comm_poll(comm, op, -1, &err), &err);
    assert_int_equal(in[0], 'x');
    const struct relay_head sent = read_frame(s.fd[2]);
    assert_int_equal(sent.type, RELAY_DATA);
    assert_int_equal(sent.value, PAYLOAD);
    dpt_comm_op_free(comm, &op);
    end(&s, &comm);
}

static const struct {
    const char *name;
    struct relay_head head;
} wrong[] = {
    {"type", {99, 1, 1, 0, 0, 1}},
    {"payload", {RELAY_DATA, 1, 1, 4, RELAY_PAYLOAD_BYTES + 1, 1}},
    {"no hop", {RELAY_DATA, 0, 1, 4, PAYLOAD, PAYLOAD}},
    {"from no rank", {RELAY_DATA, 1, WORLD, 4, PAYLOAD, PAYLOAD}},
    {"from the receiver", {RELAY_DATA, 1, 0, 4, PAYLOAD, PAYLOAD}},
    {"to no rank", {RELAY_DATA, 1, 1, WORLD, PAYLOAD, PAYLOAD}},
    {"too many hops", {RELAY_DATA, 2, 1, 4, PAYLOAD, PAYLOAD}},
    {"two hops more", {RELAY_DATA, 1, 1, 3, PAYLOAD, PAYLOAD}},
    {"data without a grant", {RELAY_DATA, 1, 1, 0, PAYLOAD, PAYLOAD}},
    {"too many grants", {RELAY_GRANT, 1, 1, 0, 0, UINT64_MAX}},
    {"a grant with a payload", {RELAY_GRANT, 1, 1, 0, PAYLOAD, 1}},
    {"class of a credit", {RELAY_CREDIT, 1, 1, 0, 0, 1}},
    {"credit for no frame", {RELAY_CREDIT, 0, 1, 0, 0, 1}},
};

static void malformed_frames_name_the_sender(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        struct stage s;
        struct dpt_err err;
        struct dpt_comm *comm = begin(&s);
        send_frame(s.fd[1], wrong[i].head);
        const enum dpt_status status = dpt_comm_poll_woken(comm, -1, &err);
        if (status != DPT_EPROTO || dpt_comm_suspect(comm) != 1)
            fail_msg("%s: %s, suspect %d", wrong[i].name, dpt_status_text(status),
                     dpt_comm_suspect(comm));
        /* The others are told at once who failed. */
        const struct relay_head bye = read_frame(s.fd[2]);
        assert_int_equal(bye.type, RELAY_BYE);
        assert_int_equal(bye.value, 1);
        assert_int_equal(bye.to, dpt_conn_suspect_code(1));
        end(&s, &comm);
    }
}

/* A rank leaves in order while another still sends over it. */
static void leaving_before_others_are_done(void **state)
{
    (void)state;
    struct stage s;
    struct dpt_err err;
    struct dpt_comm *comm = begin(&s);
    send_frame(s.fd[4], (struct relay_head){RELAY_BYE, 0, 4, 0, 0, 0});
    poll_a_moment(comm);
    send_frame(s.fd[1], (struct relay_head){RELAY_DATA, 1, 1, 4, PAYLOAD, PAYLOAD});
    CHECK_STATUS(DPT_EPEER, dpt_comm_poll_woken(comm, -1, &err), &err);
    assert_int_equal(dpt_comm_suspect(comm), 4);
    assert_non_null(strstr(err.text, "it left before it had passed on all transfers"));
    end(&s, &comm);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(frames_are_passed_on),
        cmocka_unit_test(data_waits_for_its_grant),
        cmocka_unit_test(malformed_frames_name_the_sender),
        cmocka_unit_test(leaving_before_others_are_done),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
