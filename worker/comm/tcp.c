/* The link to a peer of another host (comm.h): one TCP connection, on which each direction is a
 * sequence of frames, a header of 16 bytes and the payload.
 *
 * The receiver reads one header ahead. It leaves a payload without a posted receive in the socket,
 * so TCP's window stops a sender that is ahead. A payload goes from the socket into the caller's
 * memory without another copy. A send is done when the kernel has taken all of it. If the
 * connection has ended while a payload waits in the socket, the link looks for a goodbye as the
 * last frame. With a goodbye, the waiting frames may still be read. Without it, the peer is dead.
 *
 * A rank that gives up sends a BYE frame, or resets the connection if it is inside another frame.
 * When a process is killed, the kernel closes its connections, or resets those with unread data. So
 * an end without BYE is a death, and a reset may be a death or a rank that gave up. After a reset
 * the other links have COMM_DOUBT_MS to show which rank failed, before this peer is named.
 *
 * A receive that has begun must keep moving (deadline_ms). A send has no deadline, because its peer
 * may compute for any time before it posts the receive. The rendezvous server detects the loss of
 * the peer's machine. */
#include "worker/comm/comm_state.h"
#include "worker/comm/protected_records.h"
#include "worker/comm/tcp_held_up.h"

#include "base/clock.h"
#include "base/cursor.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

enum { HEADER_BYTES = 16, GATHER_MAX = 8, READS_MAX = 64, READ_BYTES_MAX = 4 << 20 };

enum frame_type {
    FRAME_DATA = 0x4450, /* number: of the frame in its direction; bytes: of the payload */
    FRAME_BYE            /* number: suspect + 1; bytes: 1 if the sender failed */
};

struct tcp_link {
    struct dpt_conn link;       /* first */
    uint8_t head[HEADER_BYTES]; /* header of the frame that is being received */
    size_t head_got;
    bool in_frame;        /* the frame's header is complete */
    uint64_t frame_bytes; /* bytes of the frame's payload */
    uint32_t frames_sent, frames_received;
    int64_t moved_ms; /* when the begun receive last moved */
    bool active;      /* a receive has begun */
    int64_t doubt_ms; /* when the link became doubtful */
    bool blocked;     /* the socket had no room for the last send */
    bool half_closed; /* the peer has closed; earlier frames are still being read */
    int broken_errno; /* errno of a send that failed; 0: none */
};

static struct tcp_link *tcp_of(struct dpt_conn *link)
{
    return (struct tcp_link *)link;
}

static void encode_header(uint8_t head[HEADER_BYTES], enum frame_type type, uint32_t number,
                          uint64_t bytes)
{
    struct dpt_writer writer;
    dpt_writer_init(&writer, head, HEADER_BYTES);
    dpt_writer_u32(&writer, type);
    dpt_writer_u32(&writer, number);
    dpt_writer_u64(&writer, bytes);
}

/* Gathers the unsent rest of the first queued sends. */
static size_t gather_unsent(struct tcp_link *tcp, struct iovec iov[2 * GATHER_MAX])
{
    size_t n = 0;
    struct dpt_rec *rec = tcp->link.sends.first;
    for (int i = 0; i < GATHER_MAX && rec != NULL; i++, rec = rec->next) {
        if (rec->state == REC_QUEUED) { /* it has no header yet */
            encode_header(rec->head, FRAME_DATA, tcp->frames_sent++, rec->bytes);
            rec->state = REC_OFFERED;
        }
        if (rec->head_moved < HEADER_BYTES)
            iov[n++] = (struct iovec){rec->head + rec->head_moved, HEADER_BYTES - rec->head_moved};
        if (rec->moved < rec->bytes)
            iov[n++] = (struct iovec){rec->data + rec->moved, rec->bytes - rec->moved};
    }
    return n;
}

/* Notes that the socket has taken `sent` more bytes. */
static void advance_sends(struct tcp_link *tcp, size_t sent)
{
    for (struct dpt_rec *rec; (rec = tcp->link.sends.first) != NULL;) {
        const size_t head_left = HEADER_BYTES - rec->head_moved;
        const size_t head = sent < head_left ? sent : head_left;
        rec->head_moved += head;
        sent -= head;
        const size_t left = rec->bytes - rec->moved;
        const size_t payload = sent < left ? sent : left;
        rec->moved += payload;
        sent -= payload;
        if (rec->head_moved < HEADER_BYTES || rec->moved < rec->bytes)
            break;
        dpt_conn_queue_pop(&tcp->link.sends);
        dpt_conn_complete_rec(rec);
        dpt_conn_free_rec(rec);
    }
    DPT_ASSERT(sent == 0);
}

static void send_queued(struct tcp_link *tcp)
{
    while (tcp->link.sends.first != NULL) {
        struct iovec iov[2 * GATHER_MAX];
        const int n_iov = (int)gather_unsent(tcp, iov);
        const ssize_t n = dpt_wire_send(tcp->link.wire, tcp->link.fd, iov, n_iov);
        if (n < 0) {
            if (errno == EAGAIN)
                tcp->blocked = true;
            else
                tcp->broken_errno = errno;
            return;
        }
        advance_sends(tcp, (size_t)n);
    }
}

static enum dpt_status tcp_send(struct dpt_conn *link, struct dpt_err *err)
{
    (void)err; /* tcp_receive reports a broken connection, after the frames before its end */
    struct tcp_link *tcp = tcp_of(link);
    tcp->blocked = false;
    if (tcp->broken_errno == 0 && !link->bye && !link->doubtful)
        send_queued(tcp);
    if (tcp->broken_errno != 0 && !link->doubtful)
        link->dirty = link->comm->dirty = true;
    return DPT_OK;
}

static enum dpt_status tcp_lost(struct tcp_link *tcp, int saved_errno, struct dpt_err *err)
{
    if (saved_errno != ECONNRESET && saved_errno != EPIPE)
        return dpt_conn_lost(&tcp->link, -1, err,
                             saved_errno == 0 ? "its process has closed the connection"
                                              : strerror(saved_errno));
    tcp->link.doubtful = true;
    tcp->doubt_ms = dpt_now_ms();
    return DPT_OK;
}

static enum dpt_status take_header(struct tcp_link *tcp, struct dpt_err *err)
{
    struct dpt_reader reader;
    dpt_reader_init(&reader, tcp->head, sizeof tcp->head);
    const uint32_t type = dpt_reader_u32(&reader);
    const uint32_t number = dpt_reader_u32(&reader);
    tcp->frame_bytes = dpt_reader_u64(&reader);
    tcp->head_got = 0;
    if (type == FRAME_BYE && tcp->frame_bytes != 0)
        return dpt_conn_lost(&tcp->link, dpt_conn_suspect(number), err, "it gave up");
    if (type == FRAME_BYE) {
        tcp->link.bye = true;
        return DPT_OK;
    }
    if (type != FRAME_DATA || number != tcp->frames_received)
        return dpt_conn_broken(&tcp->link, DPT_EPROTO, err, "a malformed frame");
    tcp->frames_received++;
    tcp->in_frame = true;
    return DPT_OK;
}

static void finish_receive(struct tcp_link *tcp)
{
    struct dpt_rec *rec = dpt_conn_queue_pop(&tcp->link.recvs);
    tcp->in_frame = false;
    if (rec->dir == DPT_COMM_LEND)
        rec->xfer->lent = rec->data;
    dpt_conn_complete_rec(rec);
    dpt_conn_free_rec(rec);
}

/* Reads once: the rest of the payload if a frame is open, and the rest of the next header. Returns
 * the result of readv. */
static ssize_t read_some(struct tcp_link *tcp)
{
    struct iovec iov[2];
    int n_iov = 0;
    size_t left = 0;
    struct dpt_rec *rec = tcp->in_frame ? tcp->link.recvs.first : NULL;
    if (rec != NULL) {
        left = rec->bytes - rec->moved;
        iov[n_iov++] =
            (struct iovec){rec->data + rec->moved, left < READ_BYTES_MAX ? left : READ_BYTES_MAX};
    }
    if (left <= READ_BYTES_MAX)
        iov[n_iov++] = (struct iovec){tcp->head + tcp->head_got, HEADER_BYTES - tcp->head_got};
    struct dpt_wire *wire = tcp->link.wire;
    const uint64_t before = wire != NULL ? wire->received : 0;
    const ssize_t n = dpt_wire_receive(wire, tcp->link.fd, iov, n_iov);
    if (n > 0 || (wire != NULL && wire->received != before))
        tcp->moved_ms = dpt_now_ms();
    if (n <= 0)
        return n;
    const size_t payload = (size_t)n < left ? (size_t)n : left;
    tcp->head_got += (size_t)n - payload;
    if (rec != NULL) {
        rec->moved += payload;
        if (rec->moved == rec->bytes)
            finish_receive(tcp);
    }
    return n;
}

/* *ret_waits: the frame that has begun waits for a posted receive. Fails if the posted receive has
 * another size. */
static enum dpt_status check_frame(struct tcp_link *tcp, bool *ret_waits, struct dpt_err *err)
{
    const struct dpt_rec *rec = tcp->link.recvs.first;
    *ret_waits = tcp->in_frame && rec == NULL;
    if (!tcp->in_frame || rec == NULL)
        return DPT_OK;
    if (rec->bytes != tcp->frame_bytes)
        return dpt_conn_broken(&tcp->link, DPT_EPROTO, err,
                               "it sends another length than is expected");
    if (rec->data == NULL && rec->bytes > 0)
        return dpt_conn_broken(&tcp->link, DPT_EINVAL, err, "a LEND without staging");
    dpt_peer_arrived(&tcp->link);
    if (rec->bytes == 0)
        finish_receive(tcp);
    return DPT_OK;
}

/* To be called when the peer has closed the connection, so that all its frames have arrived. True:
 * the last frame is a goodbye. */
static bool ends_with_goodbye(const struct tcp_link *tcp)
{
    uint8_t head[HEADER_BYTES];
    if (tcp->link.wire != NULL)
        return dpt_wire_ends_in_order(tcp->link.wire, tcp->link.fd, HEADER_BYTES);
    if (!dpt_wire_peek(tcp->link.fd, head, sizeof head))
        return false;
    struct dpt_reader reader;
    dpt_reader_init(&reader, head, sizeof head);
    return dpt_reader_u32(&reader) == FRAME_BYE;
}

/* While a payload waits for its receive: checks whether the connection has broken or ended. */
static enum dpt_status check_waiting_connection(struct tcp_link *tcp, struct dpt_err *err)
{
    struct pollfd pollfd = {.fd = tcp->link.fd, .events = POLLRDHUP};
    if (poll(&pollfd, 1, 0) <= 0)
        return DPT_OK;
    if ((pollfd.revents & (POLLERR | POLLHUP)) != 0)
        return tcp_lost(tcp, ECONNRESET, err);
    if (!ends_with_goodbye(tcp))
        return tcp_lost(tcp, 0, err);
    tcp->half_closed = true;
    return DPT_OK;
}

static enum dpt_status tcp_read_all(struct tcp_link *tcp, bool *ret_eof, struct dpt_err *err)
{
    const struct dpt_wire *wire = tcp->link.wire;
    for (int reads = 0; reads < READS_MAX || dpt_wire_holds_bytes(wire); reads++) {
        if (dpt_comm_aborting(tcp->link.comm))
            return dpt_fail(err, DPT_EABORTED, "communicator aborted");
        bool waits;
        DPT_TRY(check_frame(tcp, &waits, err));
        if (waits)
            return check_waiting_connection(tcp, err);
        const ssize_t n = read_some(tcp);
        if (n < 0 && errno == EAGAIN)
            return DPT_OK;
        if (n < 0 && errno == EBADMSG)
            return dpt_conn_broken(&tcp->link, DPT_EPROTO, err,
                                   "its bytes were changed on the way (cluster.encrypt)");
        if (n < 0 && !tcp->link.bye) /* after a goodbye a reset is an ordinary end */
            return tcp_lost(tcp, errno, err);
        *ret_eof = n <= 0;
        if (n <= 0)
            return DPT_OK;
        if (!tcp->in_frame && tcp->head_got == HEADER_BYTES)
            DPT_TRY(take_header(tcp, err));
    }
    return DPT_OK; /* other links are next; the socket is still readable */
}

static enum dpt_status tcp_receive(struct dpt_conn *link, struct dpt_err *err)
{
    struct tcp_link *tcp = tcp_of(link);
    bool eof = false;
    if (!link->gone && !link->doubtful)
        DPT_TRY(tcp_read_all(tcp, &eof, err));
    if (link->doubtful)
        return DPT_OK;
    DPT_TRY(dpt_conn_check_end(link, eof, err));
    if (eof)
        return DPT_OK;
    if (tcp->broken_errno != 0 && !link->bye)
        return tcp_lost(tcp, tcp->broken_errno, err);
    const bool active = (tcp->in_frame && link->recvs.first != NULL) || tcp->head_got > 0 ||
                        (!tcp->in_frame && dpt_wire_is_amid(link->wire));
    if (active && !tcp->active)
        tcp->moved_ms = dpt_now_ms();
    tcp->active = active;
    return DPT_OK;
}

static bool tcp_receives(const struct dpt_conn *link)
{
    return ((const struct tcp_link *)link)->active;
}

static bool tcp_sends(const struct dpt_conn *link)
{
    return ((const struct tcp_link *)link)->blocked;
}

static int64_t tcp_held_up_us(const struct dpt_conn *link)
{
    return dpt_tcp_held_up_us(link->fd);
}

static uint32_t tcp_interest(const struct dpt_conn *link)
{
    const struct tcp_link *tcp = (const struct tcp_link *)link;
    const bool waits = tcp->in_frame && link->recvs.first == NULL;
    return (waits ? 0 : (uint32_t)EPOLLIN) | (tcp->half_closed ? 0 : (uint32_t)EPOLLRDHUP) |
           (tcp->blocked ? (uint32_t)EPOLLOUT : 0);
}

static int64_t tcp_deadline_ms(const struct dpt_conn *link)
{
    const struct tcp_link *tcp = (const struct tcp_link *)link;
    if (link->doubtful)
        return tcp->doubt_ms + COMM_DOUBT_MS;
    if (!tcp->active)
        return INT64_MAX;
    const int64_t since =
        tcp->moved_ms > link->comm->polling_since_ms ? tcp->moved_ms : link->comm->polling_since_ms;
    return since + link->comm->timeout_ms;
}

static enum dpt_status tcp_late(struct dpt_conn *link, struct dpt_err *err)
{
    if (link->doubtful)
        return dpt_conn_lost(link, -1, err, strerror(ECONNRESET));
    return dpt_conn_broken(link, DPT_ETIMEOUT, err, "it has begun and does not move");
}

static void tcp_destroy(struct dpt_conn *link, enum link_goodbye goodbye, int suspect)
{
    struct tcp_link *tcp = tcp_of(link);
    if (tcp->broken_errno == 0 && !link->gone && !link->doubtful) {
        if (goodbye == GOODBYE_ORDERLY)
            send_queued(tcp);
        const struct dpt_rec *rec = link->sends.first;
        if ((rec == NULL || rec->head_moved == 0) && /* between two frames */
            dpt_wire_is_between_records(link->wire)) {
            uint8_t head[HEADER_BYTES];
            encode_header(head, FRAME_BYE, dpt_conn_suspect_code(suspect),
                          goodbye == GOODBYE_FAILED);
            /* Best effort: the peer sees the end of the connection in any case. */
            dpt_wire_send_last(link->wire, link->fd, head, sizeof head);
        } else {
            const struct linger reset = {.l_onoff = 1, .l_linger = 0};
            (void)!setsockopt(link->fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
        }
    }
    close(link->fd);
    free(tcp);
}

static const struct dpt_conn_ops tcp_ops = {
    .send = tcp_send,
    .receive = tcp_receive,
    .receives = tcp_receives,
    .sends = tcp_sends,
    .held_up_us = tcp_held_up_us,
    .interest = tcp_interest,
    .deadline_ms = tcp_deadline_ms,
    .late = tcp_late,
    .destroy = tcp_destroy,
};

int dpt_tcp_set_options(int fd, int timeout_ms)
{
    const int on = 1, probes = 3;
    const int idle_s = timeout_ms / 1000 > 0 ? timeout_ms / 1000 : 1;
    return setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) |
           setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on) |
           setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s) |
           setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &idle_s, sizeof idle_s) |
           setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
}

struct dpt_conn *dpt_tcp_link_create(struct dpt_comm *comm, int rank, int fd, struct dpt_err *err)
{
    if (dpt_tcp_set_options(fd, comm->timeout_ms) != 0) {
        (void)dpt_fail_errno(err, errno, "options of the connection to rank %d", rank);
        return NULL;
    }
    struct tcp_link *tcp = calloc(1, sizeof *tcp);
    if (tcp == NULL) {
        (void)dpt_fail_nomem(err, "link to rank %d", rank);
        return NULL;
    }
    tcp->link =
        (struct dpt_conn){.ops = &tcp_ops, .comm = comm, .rank = rank, .fd = fd, .ready = true};
    return &tcp->link;
}
