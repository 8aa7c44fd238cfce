/* A peer with the right nonce that then sends malformed messages: each ends the communicator with
 * an error that names it, with any other transfers in flight, and leaves no descriptor behind. */
#include "tests/worker/comm/comm_world.h"

#include "base/cursor.h"
#include "worker/comm/box.h"
#include "worker/comm/handshake.h"
#include "worker/comm/socket_address.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

enum { PACKET_MAX = 4096, REGION_BYTES = 8192 };

enum { PUTS_MAX = 3 };

/* One scene: rank 0 is real, rank 1 is `talk` on a raw socket that has been welcomed; NULL: it is
 * ready, and puts these messages into its box. */
struct scene {
    const char *name;
    bool tcp;
    void (*talk)(int fd);
    enum dpt_status expected;
    struct box_message puts[PUTS_MAX];
};

static void send_all(int fd, const void *data, size_t bytes)
{
    CHECK(send(fd, data, bytes, MSG_NOSIGNAL) == (ssize_t)bytes);
}

/* TCP frames. */

static void frame(int fd, uint32_t type, uint32_t number, uint64_t bytes)
{
    uint8_t head[16];
    struct dpt_writer w;
    dpt_writer_init(&w, head, sizeof head);
    dpt_writer_u32(&w, type);
    dpt_writer_u32(&w, number);
    dpt_writer_u64(&w, bytes);
    send_all(fd, head, sizeof head);
}

enum { DATA = 0x4450, BYE = DATA + 1 };

static void tcp_garbage(int fd)
{
    uint8_t garbage[16];
    memset(garbage, 0xa5, sizeof garbage);
    send_all(fd, garbage, sizeof garbage);
}

static void tcp_wrong_number(int fd)
{
    frame(fd, DATA, 1, 4);
}

static void tcp_wrong_length(int fd)
{
    frame(fd, DATA, 0, UINT64_MAX);
}

static void tcp_half_header(int fd)
{
    send_all(fd, "PD", 2);
    CHECK(shutdown(fd, SHUT_WR) == 0);
}

static void tcp_bye_for_nobody(int fd)
{
    frame(fd, BYE, 0x80000000u, 1);
}

static void tcp_bye_too_early(int fd)
{
    frame(fd, BYE, 0, 0);
}

/* Packets of shared memory. */

struct packet {
    uint16_t type, credits;
    uint32_t record, region;
    uint64_t offset, bytes;
};

enum { REGION = 1, READY, GOODBYE, BELL, OFFER, OFFER_OPEN, SMALL, DONE, CREDIT, WITHDRAW };

/* Returns 0 or the error of the socket. */
static int send_packet(int fd, struct packet p, size_t more, int pass_fd)
{
    uint8_t data[PACKET_MAX] = {0};
    struct dpt_writer w;
    dpt_writer_init(&w, data, sizeof data);
    dpt_writer_u16(&w, p.type);
    dpt_writer_u16(&w, p.credits);
    dpt_writer_u32(&w, p.record);
    dpt_writer_u32(&w, p.region);
    dpt_writer_u32(&w, 0);
    dpt_writer_u64(&w, p.offset);
    dpt_writer_u64(&w, p.bytes);
    struct iovec iov = {data, w.at + more};
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control = {0};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    if (pass_fd >= 0) {
        msg.msg_control = control.bytes;
        msg.msg_controllen = sizeof control.bytes;
        struct cmsghdr *cmsg = CMSG_FIRSTHDR(&msg);
        cmsg->cmsg_level = SOL_SOCKET;
        cmsg->cmsg_type = SCM_RIGHTS;
        cmsg->cmsg_len = CMSG_LEN(sizeof pass_fd);
        memcpy(CMSG_DATA(cmsg), &pass_fd, sizeof pass_fd);
    }
    const ssize_t sent = sendmsg(fd, &msg, MSG_NOSIGNAL);
    CHECK(sent < 0 || sent == (ssize_t)iov.iov_len);
    return sent < 0 ? errno : 0;
}

static void packet(int fd, struct packet p, size_t more, int pass_fd)
{
    CHECK(send_packet(fd, p, more, pass_fd) == 0);
}

static void region(int fd, bool sealed, uint64_t said_bytes, uint32_t index)
{
    const int memfd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    CHECK(memfd >= 0 && ftruncate(memfd, REGION_BYTES) == 0);
    if (sealed)
        CHECK(fcntl(memfd, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
    packet(fd, (struct packet){.type = REGION, .region = index, .bytes = said_bytes}, 0, memfd);
    close(memfd);
}

/* The box of this rank, made by `ready`. Only this half: messages of rank 0 are not read. */
static struct box box = {.fd = -1};

static void ready(int fd)
{
    region(fd, true, REGION_BYTES, 1);
    CHECK_OK(dpt_box_create(&box, NULL), (struct dpt_err *)NULL);
    packet(fd, (struct packet){.type = READY}, 0, box.fd);
}

/* A message in the box, and the bell. Rank 0 may read the box before the bell and close the
 * connection because of the message. */
static void put_message(int fd, struct box_message message, const void *payload)
{
    CHECK(dpt_box_put(&box, &message, payload));
    const int failed = send_packet(fd, (struct packet){.type = BELL}, 0, -1);
    CHECK(failed == 0 || failed == EPIPE || failed == ECONNRESET);
}

static void shm_short(int fd)
{
    ready(fd);
    send_all(fd, "abc", 3);
}

static void shm_long(int fd)
{
    ready(fd);
    packet(fd, (struct packet){.type = BELL}, 1, -1);
}

static void shm_unknown_packet(int fd)
{
    ready(fd);
    packet(fd, (struct packet){.type = 99}, 0, -1);
}

static void shm_message_by_socket(int fd)
{
    ready(fd);
    packet(fd, (struct packet){.type = CREDIT}, 0, -1);
}

static void shm_unsealed(int fd)
{
    region(fd, false, REGION_BYTES, 1);
}

static void shm_region_too_small(int fd)
{
    region(fd, true, REGION_BYTES + 1, 1);
}

static void shm_region_empty(int fd)
{
    region(fd, true, 0, 1);
}

static void shm_region_out_of_table(int fd)
{
    region(fd, true, REGION_BYTES, 100000);
}

static void shm_region_twice(int fd)
{
    region(fd, true, REGION_BYTES, 1);
    region(fd, true, REGION_BYTES, 1);
}

static void shm_region_without_memory(int fd)
{
    packet(fd, (struct packet){.type = REGION, .region = 1, .bytes = REGION_BYTES}, 0, -1);
}

static void shm_region_after_ready(int fd)
{
    ready(fd);
    region(fd, true, REGION_BYTES, 2);
}

static void shm_ready_without_box(int fd)
{
    packet(fd, (struct packet){.type = READY}, 0, -1);
}

/* Memory of a box's size, or nearly, sealed or not. */
static void pass_box(int fd, int missing, bool sealed)
{
    const int memfd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    CHECK(memfd >= 0 && ftruncate(memfd, (off_t)sizeof(struct box_page) - missing) == 0);
    if (sealed)
        CHECK(fcntl(memfd, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
    packet(fd, (struct packet){.type = READY}, 0, memfd);
    close(memfd);
}

static void shm_box_too_small(int fd)
{
    pass_box(fd, 1, true);
}

static void shm_box_unsealed(int fd)
{
    pass_box(fd, 0, false);
}

static void shm_ready_twice(int fd)
{
    ready(fd);
    packet(fd, (struct packet){.type = READY}, 0, box.fd);
}

static void shm_bell_with_memory(int fd)
{
    const int memfd = memfd_create("test", MFD_CLOEXEC);
    packet(fd, (struct packet){.type = BELL}, 0, memfd);
    close(memfd);
}

static void shm_open_region_sealed(int fd)
{
    const int memfd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    CHECK(memfd >= 0 && ftruncate(memfd, REGION_BYTES) == 0);
    CHECK(fcntl(memfd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_WRITE) == 0);
    packet(fd, (struct packet){.type = REGION, .record = 1, .region = 1, .bytes = REGION_BYTES}, 0,
           memfd);
    close(memfd);
}

static void shm_too_many_offers(int fd)
{
    ready(fd);
    for (int i = 0; i < 34; i++) /* one is taken, 32 are kept */
        put_message(fd, (struct box_message){.type = SMALL, .bytes = 4}, "1234");
}

static void shm_bye_for_nobody(int fd)
{
    ready(fd);
    packet(fd, (struct packet){.type = GOODBYE, .record = 0x80000000u, .region = 1}, 0, -1);
}

static void shm_closes(int fd)
{
    ready(fd);
    CHECK(shutdown(fd, SHUT_RDWR) == 0);
}

/* Messages in the box count before the end: the failure is the ill-formed message. */
static void shm_nonsense_then_closes(int fd)
{
    ready(fd);
    CHECK(dpt_box_put(&box, &(struct box_message){.type = 99}, NULL));
    CHECK(shutdown(fd, SHUT_RDWR) == 0);
}

/* Rank 1: dials, is welcomed, talks. */
struct fake {
    const struct scene *scene;
    struct dpt_comm_spec spec; /* rank 0's */
    const char *address;
    int fd;
};

static void *run_fake(void *arg)
{
    struct fake *f = arg;
    struct dpt_address address;
    uint8_t hello[DPT_HANDSHAKE_BYTES];
    f->spec.rank = 1;
    CHECK_OK(dpt_address_parse(f->address, &address, NULL), (struct dpt_err *)NULL);
    f->fd = socket(address.addr.ss_family,
                   (f->scene->tcp ? SOCK_STREAM : SOCK_SEQPACKET) | SOCK_CLOEXEC, 0);
    CHECK(f->fd >= 0 && connect(f->fd, (struct sockaddr *)&address.addr, address.len) == 0);
    CHECK(dpt_handshake_send(f->fd, &f->spec, DPT_HANDSHAKE_DIALER, 0, hello));
    CHECK(recv(f->fd, hello, sizeof hello, MSG_WAITALL) == (ssize_t)sizeof hello);
    if (f->scene->talk != NULL) {
        f->scene->talk(f->fd);
        return NULL;
    }
    ready(f->fd);
    for (int i = 0; i < PUTS_MAX && f->scene->puts[i].type != 0; i++)
        put_message(f->fd, f->scene->puts[i],
                    f->scene->puts[i].type == SMALL && f->scene->puts[i].bytes == 4 ? "1234"
                                                                                    : NULL);
    return NULL;
}

static void play_protocol_scene(const struct scene *scene)
{
    struct dpt_err err;
    struct dpt_comm_listener *listener, *other;
    const int fds = count_fds(), maps = count_maps();
    CHECK_OK(dpt_comm_listener_create("127.0.0.1", &listener, &err), &err);
    CHECK_OK(dpt_comm_listener_create("127.0.0.1", &other, &err),
             &err); /* a listener that rank 0 may probe */
    struct dpt_comm_peer peer = {.rank = 1, .host = scene->tcp};
    set_text(peer.shm_addr, sizeof peer.shm_addr, dpt_comm_listener_shm_addr(other));
    set_text(peer.tcp_addr, sizeof peer.tcp_addr, dpt_comm_listener_tcp_addr(other));
    struct fake fake = {.scene = scene,
                        .spec = {.run = "protocol",
                                 .generation = 3,
                                 .world_size = 2,
                                 .peers = &peer,
                                 .n_peers = 1,
                                 .timeout_ms = TIMEOUT_MS},
                        .address = scene->tcp ? dpt_comm_listener_tcp_addr(listener)
                                              : dpt_comm_listener_shm_addr(listener)};
    const struct dpt_comm_spec spec = fake.spec;
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, run_fake, &fake) == 0);
    struct dpt_comm *comm = NULL;
    int suspect = -1;
    enum dpt_status status = dpt_comm_create(listener, &spec, -1, &comm, &suspect, &err);
    if (status == DPT_OK) {
        uint32_t value;
        struct dpt_comm_xfer x = {.dir = DPT_COMM_RECV, .peer = 1, .buf = &value, .bytes = 4};
        struct dpt_comm_op *op;
        status = dpt_comm_exchange(comm, &x, 1, &op, &err);
        if (status == DPT_OK)
            status = dpt_comm_poll(comm, op, -1, &err);
        if (status == DPT_OK) /* too many offers: the first was fine */
            status = dpt_comm_poll_woken(comm, 10 * 1000 * 1000000LL, &err);
        suspect = dpt_comm_suspect(comm);
    }
    if (status != scene->expected || suspect != 1)
        fail_msg("%s: %s (suspect %d), expected %s", scene->name, dpt_status_text(status), suspect,
                 dpt_status_text(scene->expected));
    CHECK(pthread_join(thread, NULL) == 0);
    dpt_comm_destroy(&comm);
    dpt_box_destroy(&box);
    close(fake.fd);
    dpt_comm_listener_destroy(&listener);
    dpt_comm_listener_destroy(&other);
    CHECK(count_fds() == fds && count_maps() == maps);
}

/* Messages in the box that are malformed, or that the last of them makes so. */
#define MESSAGES(name, ...)                                                                        \
    {                                                                                              \
#name, false, NULL, DPT_EPROTO,                                                            \
        {                                                                                          \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    }
#define SCENE(tcp, talk, status)                                                                   \
    {                                                                                              \
#talk, tcp, talk, status,                                                                  \
        {                                                                                          \
            {                                                                                      \
                0                                                                                  \
            }                                                                                      \
        }                                                                                          \
    }

static void nonsense_is_an_error(void **state)
{
    (void)state;
    static const struct scene scenes[] = {
        SCENE(true, tcp_garbage, DPT_EPROTO),
        SCENE(true, tcp_wrong_number, DPT_EPROTO),
        SCENE(true, tcp_wrong_length, DPT_EPROTO),
        SCENE(true, tcp_half_header, DPT_EPEER),
        SCENE(true, tcp_bye_for_nobody, DPT_EPEER),
        SCENE(true, tcp_bye_too_early, DPT_EPEER),
        SCENE(false, shm_short, DPT_EPROTO),
        SCENE(false, shm_long, DPT_EPROTO),
        SCENE(false, shm_unknown_packet, DPT_EPROTO),
        SCENE(false, shm_message_by_socket, DPT_EPROTO),
        SCENE(false, shm_unsealed, DPT_EPROTO),
        SCENE(false, shm_region_too_small, DPT_EPROTO),
        SCENE(false, shm_region_empty, DPT_EPROTO),
        SCENE(false, shm_region_out_of_table, DPT_EPROTO),
        SCENE(false, shm_region_twice, DPT_EPROTO),
        SCENE(false, shm_region_without_memory, DPT_EPROTO),
        SCENE(false, shm_region_after_ready, DPT_EPROTO),
        SCENE(false, shm_ready_without_box, DPT_EPROTO),
        SCENE(false, shm_box_too_small, DPT_EPROTO),
        SCENE(false, shm_box_unsealed, DPT_EPROTO),
        SCENE(false, shm_ready_twice, DPT_EPROTO),
        SCENE(false, shm_bell_with_memory, DPT_EPROTO),
        SCENE(false, shm_open_region_sealed, DPT_EPROTO),
        SCENE(false, shm_too_many_offers, DPT_EPROTO),
        MESSAGES(shm_unknown_type, {.type = 99}),
        MESSAGES(shm_packet_in_box, {.type = GOODBYE}),
        MESSAGES(shm_offer_beyond_region,
                 {.type = OFFER, .region = 1, .offset = REGION_BYTES - 3, .bytes = 4}),
        MESSAGES(shm_offer_wraps,
                 {.type = OFFER, .region = 1, .offset = 8, .bytes = UINT64_MAX - 4}),
        MESSAGES(shm_offer_of_no_region, {.type = OFFER, .region = 2, .bytes = 4}),
        MESSAGES(shm_open_offer_of_closed_region, {.type = OFFER_OPEN, .region = 1, .bytes = 4}),
        MESSAGES(shm_small_too_long, {.type = SMALL, .bytes = DPT_COMM_BUF_BYTES_MAX + 1}),
        MESSAGES(shm_done_for_nothing, {.type = DONE, .record = 7}),
        MESSAGES(shm_done_out_of_range, {.type = DONE, .record = UINT32_MAX}),
        MESSAGES(shm_too_many_credits, {.type = CREDIT, .credits = 1000}),
        MESSAGES(shm_withdraws_no_region, {.type = WITHDRAW, .region = 2}),
        MESSAGES(shm_withdraws_out_of_table, {.type = WITHDRAW, .region = UINT32_MAX}),
        MESSAGES(shm_offer_of_withdrawn, {.type = WITHDRAW, .region = 1},
                 {.type = OFFER, .region = 1, .bytes = 4}),
        MESSAGES(shm_withdraws_what_it_offers, {.type = SMALL, .bytes = 4},
                 {.type = OFFER, .region = 1, .bytes = 4}, {.type = WITHDRAW, .region = 1}),
        SCENE(false, shm_bye_for_nobody, DPT_EPEER),
        SCENE(false, shm_closes, DPT_EPEER),
        SCENE(false, shm_nonsense_then_closes, DPT_EPROTO),
    };
    for (size_t i = 0; i < sizeof scenes / sizeof scenes[0]; i++)
        play_protocol_scene(&scenes[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(nonsense_is_an_error)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
