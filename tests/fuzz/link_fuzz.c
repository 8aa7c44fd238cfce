/* Fuzz target: a peer of the data plane that sends anything, over shared memory or TCP (first
 * byte). The bytes choose the peer's messages, well-formed or not, with or without a descriptor,
 * and the operations that this side posts meanwhile. For every input no byte beside a buffer is
 * written or read, and a transfer that is done has the bytes that came.
 *
 * One communicator serves all inputs, because creating one takes a hundred times as long as an
 * input. */
#include "base/cursor.h"
#include "tests/fuzz/fuzz.h"
#include "worker/comm/comm_state.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    EVENTS_MAX = 64,
    OPS_MAX = 16,
    BYTES_MAX = 300, /* of a transfer */
    MEM_BYTES = 4096,
    RECORDS = 2 * OPS_MAX /* that can have been taken */
};

struct posted {
    struct dpt_comm_op *op;
    struct dpt_comm_xfer xfer;
    uint8_t *buf; /* owned */
};

struct world {
    struct dpt_comm_listener *listener;
    struct dpt_comm_mem *mem;
    struct dpt_comm *comm;
    int sealed_fd, open_fd; /* memory that the peer may pass */
    int listen_fd;          /* for TCP: ports are few, so a connection serves many inputs */
    struct sockaddr_in address;
    int tcp_fds[2]; /* this side's, the peer's; -1: none */
    /* of one input */
    bool shm, ended; /* by the peer */
    int peer_fd;
    struct posted posted[OPS_MAX];
    int n_posted;
    uint32_t frames; /* that the peer has sent, by its own count */
};

static struct world world;

/* ---- once ---- */

static int memory(int seals)
{
    const int fd = memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    DPT_ASSERT(fd >= 0 && ftruncate(fd, MEM_BYTES) == 0);
    DPT_ASSERT(seals == 0 || fcntl(fd, F_ADD_SEALS, seals) == 0);
    return fd;
}

static void prepare_links(void)
{
    static const struct dpt_comm_peer peer = {.rank = 1, .host = 0};
    const struct dpt_comm_spec spec = {.run = "demo",
                                       .generation = 1,
                                       .rank = 0,
                                       .world_size = 2,
                                       .peers = &peer,
                                       .n_peers = 1,
                                       .timeout_ms = 1000};
    struct dpt_err err;
    socklen_t length = sizeof world.address;
    DPT_ASSERT(dpt_comm_listener_create("127.0.0.1", &world.listener, &err) == DPT_OK);
    DPT_ASSERT(dpt_comm_mem_create(world.listener, MEM_BYTES, &world.mem, &err) == DPT_OK);
    DPT_ASSERT(dpt_comm_alloc(world.listener, &spec, &world.comm, &err) == DPT_OK);
    world.tcp_fds[0] = world.tcp_fds[1] = -1;
    world.sealed_fd = memory(F_SEAL_SHRINK);
    world.open_fd = memory(0);
    world.listen_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    world.address =
        (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct sockaddr *address = (struct sockaddr *)&world.address;
    DPT_ASSERT(world.listen_fd >= 0 && bind(world.listen_fd, address, length) == 0 &&
               listen(world.listen_fd, 8) == 0 &&
               getsockname(world.listen_fd, address, &length) == 0);
}

/* ---- one link ---- */

/* A connection that is reset when it is closed, so that none lingers. False: no port is free. */
static bool connect_tcp(void)
{
    const struct linger reset = {.l_onoff = 1, .l_linger = 0};
    if (world.tcp_fds[0] >= 0)
        return true;
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    DPT_ASSERT(fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset) == 0);
    if (connect(fd, (struct sockaddr *)&world.address, sizeof world.address) != 0) {
        close(fd);
        return false;
    }
    world.tcp_fds[0] = accept4(world.listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    world.tcp_fds[1] = fd;
    DPT_ASSERT(world.tcp_fds[0] >= 0);
    return true;
}

static bool open_link(void)
{
    struct dpt_err err;
    int fds[2];
    if (world.shm) {
        DPT_ASSERT(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds) == 0);
    } else if (connect_tcp()) {
        fds[0] = dup(world.tcp_fds[0]);
        fds[1] = dup(world.tcp_fds[1]);
        DPT_ASSERT(fds[0] >= 0 && fds[1] >= 0);
    } else {
        return false;
    }
    world.peer_fd = fds[1];
    struct dpt_conn *link = world.shm ? dpt_shm_link_create(world.comm, 1, fds[0], &err)
                                      : dpt_tcp_link_create(world.comm, 1, fds[0], &err);
    DPT_ASSERT(link != NULL);
    dpt_comm_add_link(world.comm, link);
    DPT_ASSERT(dpt_conn_watch(link, &err) == DPT_OK);
    return true;
}

/* Unread messages are not for the next input; a connection that ended serves no other input. */
static void tidy_tcp(void)
{
    uint8_t data[4096];
    ssize_t n;
    for (int i = 0; i < 2; i++) {
        while (!world.ended && (n = recv(world.tcp_fds[i], data, sizeof data, MSG_DONTWAIT)) != 0)
            if (n < 0)
                break;
        if (world.ended)
            close(world.tcp_fds[1 - i]); /* the peer's first: it resets */
    }
    if (world.ended)
        world.tcp_fds[0] = world.tcp_fds[1] = -1;
}

/* Takes the link apart and puts the communicator back as it was. */
static void close_link(void)
{
    struct dpt_comm *comm = world.comm;
    struct dpt_conn *link = comm->link_of[1];
    close(world.peer_fd);
    /* A closed duplicate would be watched on. Links that have ended are watched no more. */
    if (!world.shm)
        (void)epoll_ctl(comm->epoll_fd, EPOLL_CTL_DEL, link->fd, NULL);
    link->ops->destroy(link, GOODBYE_FAILED, -1);
    if (!world.shm)
        tidy_tcp();
    for (int i = 0; i < world.n_posted; i++)
        free(world.posted[i].buf);
    comm->link_of[1] = NULL;
    comm->n_links = 0;
    comm->failure.status = DPT_OK;
    comm->suspect = -1;
    comm->ops_in_flight = 0;
    comm->dirty = false;
    comm->pool.ops_free = NULL;
    for (int i = DPT_COMM_OPS_MAX - 1; i >= 0; i--)
        dpt_comm_give_op(&comm->pool.ops[i]);
    /* Records are taken from the front and given back there: no more than these have moved. */
    for (int i = 0; i < RECORDS; i++) {
        comm->pool.recs[i].state = REC_FREE;
        comm->pool.recs[i].next = &comm->pool.recs[i + 1];
    }
    comm->pool.recs_free = comm->pool.recs;
    comm->pool.recs_left = COMM_RECORDS_MAX;
}

/* ---- the peer ---- */

static void send_bytes(const uint8_t *data, size_t bytes, int pass_fd)
{
    struct iovec iov = {(void *)(uintptr_t)data, bytes};
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control = {0};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    if (pass_fd >= 0 && world.shm) {
        msg.msg_control = control.bytes;
        msg.msg_controllen = sizeof control.bytes;
        struct cmsghdr *cmsg = CMSG_FIRSTHDR(&msg);
        cmsg->cmsg_level = SOL_SOCKET;
        cmsg->cmsg_type = SCM_RIGHTS;
        cmsg->cmsg_len = CMSG_LEN(sizeof pass_fd);
        memcpy(CMSG_DATA(cmsg), &pass_fd, sizeof pass_fd);
    }
    /* What does not go (full, closed) is not said. */
    (void)!sendmsg(world.peer_fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL);
}

static void say_raw(struct feed *feed)
{
    uint8_t data[64];
    const uint32_t n = 1 + feed_below(feed, sizeof data);
    for (uint32_t i = 0; i < n; i++)
        data[i] = feed_u8(feed);
    send_bytes(data, n, -1);
}

/* A number that is likely, or any. */
static uint64_t feed_number(struct feed *feed, uint64_t likely)
{
    const uint8_t choice = feed_u8(feed);
    return choice < 200 ? likely + choice % 4 : choice < 240 ? choice : feed_u64(feed);
}

/* A message that is right in form: a header of 32 bytes and a payload, in one packet. */
static void say_packet(struct feed *feed)
{
    uint8_t data[32 + BYTES_MAX] = {0};
    struct dpt_writer w;
    const uint8_t choice = feed_u8(feed);
    const size_t payload = feed_below(feed, 4) == 0 ? feed_u8(feed) : 0;
    dpt_writer_init(&w, data, sizeof data);
    dpt_writer_u16(&w, 1 + choice % 8);
    dpt_writer_u16(&w, (uint16_t)(choice / 8 % 4));
    dpt_writer_u32(&w, (uint32_t)feed_number(feed, 0));
    dpt_writer_u32(&w, (uint32_t)feed_number(feed, 0));
    dpt_writer_u32(&w, 0);
    dpt_writer_u64(&w, feed_number(feed, 0));
    dpt_writer_u64(&w, feed_number(feed, payload));
    const int passed[] = {-1, world.sealed_fd, world.open_fd, world.sealed_fd};
    send_bytes(data, w.at + payload, passed[choice / 32 % 4]);
}

/* A frame that is right in form: a header of 16 bytes, then its payload. */
static void say_frame(struct feed *feed)
{
    uint8_t data[16 + BYTES_MAX] = {0};
    struct dpt_writer w;
    const size_t payload = feed_u8(feed);
    const bool bye = feed_below(feed, 8) == 0;
    dpt_writer_init(&w, data, sizeof data);
    dpt_writer_u32(&w, 0x4450 + bye);
    dpt_writer_u32(&w, (uint32_t)feed_number(feed, bye ? 0 : world.frames));
    dpt_writer_u64(&w, feed_number(feed, bye ? 0 : payload));
    world.frames += !bye;
    send_bytes(data, w.at + payload, -1);
}

/* ---- this side ---- */

static void touch(const void *data, size_t bytes)
{
    static volatile uint8_t sum;
    for (size_t i = 0; i < bytes; i++)
        sum = (uint8_t)(sum + ((const uint8_t *)data)[i]);
}

/* False: the communicator has failed, as it may. */
static bool post_transfer(struct feed *feed, enum dpt_comm_dir dir)
{
    if (world.n_posted == OPS_MAX)
        return true;
    struct posted *posted = &world.posted[world.n_posted];
    struct dpt_err err = {.status = DPT_OK};
    const size_t bytes = feed_u8(feed);
    *posted = (struct posted){.xfer = {.dir = dir, .peer = 1, .bytes = bytes}};
    if (dir == DPT_COMM_SEND) {
        posted->xfer.mem = world.mem;
        posted->xfer.offset = feed_u8(feed);
    } else if (dir == DPT_COMM_RECV || feed_below(feed, 2)) {
        posted->buf = malloc(bytes + 1 - (bytes > 0)); /* exact */
        DPT_ASSERT(posted->buf != NULL);
        posted->xfer.buf = posted->buf;
    }
    world.n_posted++;
    return dpt_comm_exchange(world.comm, &posted->xfer, 1, &posted->op, &err) == DPT_OK;
}

static bool poll_all(void)
{
    struct dpt_err err = {.status = DPT_OK};
    for (int i = 0; i < world.n_posted; i++) {
        struct posted *posted = &world.posted[i];
        if (posted->op == NULL)
            continue;
        const enum dpt_status status = dpt_comm_poll(world.comm, posted->op, 0, &err);
        if (status != DPT_OK && status != DPT_INPROGRESS) {
            DPT_ASSERT(err.text[0] != '\0');
            return false;
        }
        if (status == DPT_INPROGRESS)
            continue;
        if (posted->xfer.dir == DPT_COMM_RECV)
            touch(posted->buf, posted->xfer.bytes);
        if (posted->xfer.dir == DPT_COMM_LEND && posted->xfer.bytes > 0)
            touch(posted->xfer.lent, posted->xfer.bytes);
        dpt_comm_op_free(world.comm, &posted->op);
    }
    const enum dpt_status status = dpt_comm_poll(world.comm, NULL, 0, &err);
    return status == DPT_OK || status == DPT_INPROGRESS;
}

static void drain(void)
{
    uint8_t data[2048];
    for (int i = 0; i < 8 && recv(world.peer_fd, data, sizeof data, MSG_DONTWAIT) > 0; i++)
        ;
}

static bool one_event(struct feed *feed)
{
    switch (feed_below(feed, 12)) {
    case 0:
        say_raw(feed);
        return true;
    case 1:
    case 2:
    case 3:
    case 4:
        if (world.shm)
            say_packet(feed);
        else
            say_frame(feed);
        return true;
    case 5:
        return post_transfer(feed, DPT_COMM_RECV);
    case 6:
        return post_transfer(feed, DPT_COMM_LEND);
    case 7:
        return post_transfer(feed, DPT_COMM_SEND);
    case 8:
        drain();
        return true;
    case 9:
        world.ended = world.ended || world.shm || feed_below(feed, 8) == 0;
        if (world.ended)
            (void)shutdown(world.peer_fd, SHUT_WR);
        return true;
    default:
        return poll_all();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct feed feed = feed_from(data, bytes);
    if (world.comm == NULL)
        prepare_links();
    world.shm = feed_below(&feed, 4) != 0;
    world.ended = false;
    world.n_posted = 0;
    world.frames = 0;
    if (!open_link())
        return 0;
    bool fine = true;
    for (int n = 0; n < EVENTS_MAX && fine && !feed_is_over(&feed); n++)
        fine = one_event(&feed);
    if (fine)
        (void)poll_all();
    close_link();
    return 0;
}
