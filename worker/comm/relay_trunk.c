/* A trunk: frames on one TCP connection, for this rank and to be passed on (relay.h). */
#include "worker/comm/protected_records.h"
#include "worker/comm/relay.h"
#include "worker/comm/tcp_held_up.h"

#include "base/clock.h"
#include "base/cursor.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { READS_MAX = 16 };

static struct trunk *trunk_of(struct dpt_conn *link)
{
    return (struct trunk *)link;
}

static void encode_head(uint8_t ret[RELAY_HEAD_BYTES], const struct relay_head *head)
{
    struct dpt_writer writer;
    dpt_writer_init(&writer, ret, RELAY_HEAD_BYTES);
    dpt_writer_u16(&writer, head->type);
    dpt_writer_u16(&writer, head->hops);
    dpt_writer_u32(&writer, head->from);
    dpt_writer_u32(&writer, head->to);
    dpt_writer_u32(&writer, head->bytes);
    dpt_writer_u64(&writer, head->value);
}

static struct relay_head decode_head(const uint8_t bytes[RELAY_HEAD_BYTES])
{
    struct dpt_reader reader;
    struct relay_head head;
    dpt_reader_init(&reader, bytes, RELAY_HEAD_BYTES);
    head.type = dpt_reader_u16(&reader);
    head.hops = dpt_reader_u16(&reader);
    head.from = dpt_reader_u32(&reader);
    head.to = dpt_reader_u32(&reader);
    head.bytes = dpt_reader_u32(&reader);
    head.value = dpt_reader_u64(&reader);
    return head;
}

/* Sending. */

static size_t trunk_room(const struct trunk *trunk)
{
    const size_t left = RELAY_BUFFER_BYTES - trunk->out_bytes;
    return left < RELAY_HEAD_BYTES ? 0 : left - RELAY_HEAD_BYTES;
}

static void put_frame(struct trunk *trunk, const struct relay_head *head, const uint8_t *payload)
{
    encode_head(trunk->out + trunk->out_bytes, head);
    trunk->out_bytes += RELAY_HEAD_BYTES;
    if (payload != NULL) {
        memcpy(trunk->out + trunk->out_bytes, payload, head->bytes);
        trunk->out_bytes += head->bytes;
    }
}

static void put_credits(struct trunk *trunk)
{
    for (int c = 0; c < trunk->router->n_classes; c++) {
        if (trunk->owed[c] == 0 || trunk_room(trunk) == 0)
            continue;
        put_frame(trunk,
                  &(struct relay_head){.type = RELAY_CREDIT,
                                       .hops = (uint16_t)c,
                                       .from = (uint32_t)trunk->link.comm->rank,
                                       .to = (uint32_t)trunk->link.rank,
                                       .value = (uint64_t)trunk->owed[c]},
                  NULL);
        trunk->owed[c] = 0;
    }
}

/* The slot has been passed on. */
static void free_slot(struct relay_slot *slot, int class)
{
    slot->next = slot->in->slots[class];
    slot->in->slots[class] = slot;
    slot->in->owed[class]++;
    dpt_trunk_touch(slot->in);
}

/* Takes the credit that a frame for `to` needs to be of class `class` at the peer. */
static bool take_credit(struct trunk *trunk, uint32_t to, int class)
{
    if (to == (uint32_t)trunk->link.rank)
        return true;
    if (class >= trunk->router->n_classes || trunk->credits[class] == 0)
        return false;
    trunk->credits[class]--;
    return true;
}

/* Frames of other ranks. Those that have come farthest are first. */
static void put_passed(struct trunk *trunk)
{
    for (int c = trunk->router->n_classes - 1; c >= 0; c--) {
        struct relay_queue *queue = &trunk->waiting[c];
        for (struct relay_slot *slot; (slot = queue->first) != NULL;) {
            if (trunk_room(trunk) < slot->head.bytes || trunk_room(trunk) == 0 ||
                !take_credit(trunk, slot->head.to, c + 1))
                break;
            slot->head.hops++;
            put_frame(trunk, &slot->head, slot->payload);
            queue->first = slot->next;
            free_slot(slot, c);
        }
    }
}

static struct flow *pop_flow(struct trunk *trunk)
{
    struct flow *flow = trunk->first;
    trunk->first = flow->next;
    return flow;
}

static void push_flow(struct trunk *trunk, struct flow *flow)
{
    flow->next = NULL;
    if (trunk->first == NULL)
        trunk->first = flow;
    else
        trunk->last->next = flow;
    trunk->last = flow;
}

/* This rank's own frames: one of each flow in turn. */
static void put_own(struct trunk *trunk)
{
    int passed_over = 0, n = 0;
    for (const struct flow *flow = trunk->first; flow != NULL; flow = flow->next)
        n++;
    while (trunk->first != NULL && passed_over < n && trunk_room(trunk) >= RELAY_PAYLOAD_BYTES) {
        struct flow *flow = pop_flow(trunk);
        struct relay_head head;
        const uint8_t *payload = NULL;
        if (!dpt_flow_next(flow, &head, &payload)) {
            flow->queued = false;
            continue;
        }
        if (take_credit(trunk, head.to, 0)) {
            put_frame(trunk, &head, payload);
            dpt_flow_sent(flow, &head);
            passed_over = 0;
        } else {
            passed_over++;
        }
        push_flow(trunk, flow);
    }
}

bool dpt_trunk_has_work(const struct trunk *trunk)
{
    for (int c = 0; c < trunk->router->n_classes; c++)
        if (trunk->waiting[c].first != NULL)
            return true;
    for (const struct flow *flow = trunk->first; flow != NULL; flow = flow->next)
        if (dpt_flow_has_work(flow))
            return true;
    return trunk->out_moved < trunk->out_bytes;
}

/* Sends the buffer. True: it is empty. */
static bool flush_trunk(struct trunk *trunk)
{
    while (trunk->out_moved < trunk->out_bytes) {
        const struct iovec iov = {trunk->out + trunk->out_moved,
                                  trunk->out_bytes - trunk->out_moved};
        const ssize_t n = dpt_wire_send(trunk->link.wire, trunk->link.fd, &iov, 1);
        if (n < 0) {
            if (errno == EAGAIN)
                trunk->blocked = true;
            else
                trunk->broken_errno = errno;
            return false;
        }
        trunk->out_moved += (size_t)n;
    }
    trunk->out_bytes = trunk->out_moved = 0;
    return true;
}

static enum dpt_status left_early(struct trunk *trunk, struct dpt_err *err)
{
    return dpt_conn_lost(&trunk->link, -1, err, "it left before it had passed on all transfers");
}

static enum dpt_status trunk_send(struct dpt_conn *link, struct dpt_err *err)
{
    (void)err; /* trunk_receive reports a broken connection, after the frames before its end */
    struct trunk *trunk = trunk_of(link);
    trunk->blocked = link->dirty = false;
    if (link->fd < 0 || link->bye || link->doubtful || trunk->said_bye)
        return DPT_OK;
    while (trunk->broken_errno == 0 && flush_trunk(trunk)) {
        put_credits(trunk);
        put_passed(trunk);
        put_own(trunk);
        if (trunk->out_bytes == 0)
            break;
    }
    if (trunk->broken_errno != 0)
        link->dirty = link->comm->dirty = true;
    return DPT_OK;
}

/* Receiving. */

static enum dpt_status trunk_lost(struct trunk *trunk, int saved_errno, struct dpt_err *err)
{
    if (saved_errno != ECONNRESET && saved_errno != EPIPE)
        return dpt_conn_lost(&trunk->link, -1, err,
                             saved_errno == 0 ? "its process has closed the connection"
                                              : strerror(saved_errno));
    trunk->link.doubtful = true;
    trunk->doubt_ms = dpt_now_ms();
    return DPT_OK;
}

static enum dpt_status malformed_trunk(struct trunk *trunk, struct dpt_err *err)
{
    return dpt_conn_broken(&trunk->link, DPT_EPROTO, err, "a malformed frame");
}

/* Keeps a frame for another rank, to be passed on. */
static enum dpt_status pass_on(struct trunk *trunk, const struct relay_head *head,
                               const uint8_t *payload, struct dpt_err *err)
{
    const struct router *router = trunk->router;
    const int class = head->hops - 1;
    struct trunk *out = router->trunk_to[head->to];
    struct relay_slot *slot = class < router->n_classes ? trunk->slots[class] : NULL;
    const bool last = (uint32_t)out->link.rank == head->to;
    if (slot == NULL || (!last && class + 1 >= router->n_classes))
        return malformed_trunk(trunk, err);
    if (out->link.bye || out->link.gone)
        return left_early(out, err);
    trunk->slots[class] = slot->next;
    slot->head = *head;
    slot->next = NULL;
    memcpy(slot->payload, payload, head->bytes);
    struct relay_queue *queue = &out->waiting[class];
    if (queue->first == NULL)
        queue->first = slot;
    else
        queue->last->next = slot;
    queue->last = slot;
    dpt_trunk_touch(out);
    return DPT_OK;
}

static enum dpt_status take_credits(struct trunk *trunk, const struct relay_head *head,
                                    struct dpt_err *err)
{
    if (head->hops >= trunk->router->n_classes ||
        head->value > (uint64_t)(RELAY_SLOTS - trunk->credits[head->hops]))
        return malformed_trunk(trunk, err);
    trunk->credits[head->hops] += (int)head->value;
    dpt_trunk_touch(trunk);
    return DPT_OK;
}

static enum dpt_status take_goodbye(struct trunk *trunk, const struct relay_head *head,
                                    struct dpt_err *err)
{
    if (head->value != 0)
        return dpt_conn_lost(&trunk->link, dpt_conn_suspect(head->to), err, "it gave up");
    trunk->link.bye = true;
    trunk->router->flows[trunk->link.rank].link.bye = true;
    return DPT_OK;
}

static enum dpt_status take_frame(struct trunk *trunk, const struct relay_head *head,
                                  const uint8_t *payload, struct dpt_err *err)
{
    const struct router *router = trunk->router;
    const uint32_t size = (uint32_t)router->world_size, own = (uint32_t)router->comm->rank;
    if (head->type == RELAY_CREDIT)
        return take_credits(trunk, head, err);
    if (head->type == RELAY_BYE)
        return take_goodbye(trunk, head, err);
    if ((head->type != RELAY_GRANT && head->type != RELAY_DATA) || head->hops < 1 ||
        head->from >= size || head->from == own || head->to >= size)
        return malformed_trunk(trunk, err);
    return head->to == own ? dpt_flow_take(&router->flows[head->from], head, payload, err)
                           : pass_on(trunk, head, payload, err);
}

/* Takes the whole frames of the buffer. */
static enum dpt_status take_frames(struct trunk *trunk, struct dpt_err *err)
{
    size_t at = 0;
    while (trunk->in_got - at >= RELAY_HEAD_BYTES) {
        const struct relay_head head = decode_head(trunk->in + at);
        if (head.bytes > RELAY_PAYLOAD_BYTES)
            return malformed_trunk(trunk, err);
        if (trunk->in_got - at < RELAY_HEAD_BYTES + head.bytes)
            break;
        DPT_TRY(take_frame(trunk, &head, trunk->in + at + RELAY_HEAD_BYTES, err));
        at += RELAY_HEAD_BYTES + head.bytes;
    }
    trunk->in_got -= at;
    memmove(trunk->in, trunk->in + at, trunk->in_got);
    return DPT_OK;
}

static enum dpt_status read_all(struct trunk *trunk, bool *ret_eof, struct dpt_err *err)
{
    struct dpt_wire *wire = trunk->link.wire;
    for (int reads = 0; reads < READS_MAX || dpt_wire_holds_bytes(wire); reads++) {
        if (dpt_comm_aborting(trunk->link.comm))
            return dpt_fail(err, DPT_EABORTED, "communicator aborted");
        const struct iovec iov = {trunk->in + trunk->in_got, RELAY_BUFFER_BYTES - trunk->in_got};
        const ssize_t n = dpt_wire_receive(wire, trunk->link.fd, &iov, 1);
        if (n < 0 && errno == EAGAIN)
            return DPT_OK;
        if (n < 0 && errno == EBADMSG)
            return dpt_conn_broken(&trunk->link, DPT_EPROTO, err,
                                   "its bytes were changed on the way (cluster.encrypt)");
        if (n < 0 && !trunk->link.bye) /* after a goodbye a reset is an ordinary end */
            return trunk_lost(trunk, errno, err);
        *ret_eof = n <= 0;
        if (n <= 0)
            return DPT_OK;
        trunk->in_got += (size_t)n;
        DPT_TRY(take_frames(trunk, err));
    }
    return DPT_OK; /* other links are next; the socket is still readable */
}

static enum dpt_status trunk_receive(struct dpt_conn *link, struct dpt_err *err)
{
    struct trunk *trunk = trunk_of(link);
    bool eof = false;
    if (link->fd < 0 || link->gone || link->doubtful)
        return DPT_OK;
    DPT_TRY(read_all(trunk, &eof, err));
    if (link->doubtful)
        return DPT_OK;
    DPT_TRY(dpt_conn_check_end(link, eof, err));
    if (link->bye) {
        DPT_TRY(dpt_conn_check_end(&trunk->router->flows[link->rank].link, eof, err));
        return dpt_trunk_has_work(trunk) ? left_early(trunk, err) : DPT_OK;
    }
    return trunk->broken_errno != 0 ? trunk_lost(trunk, trunk->broken_errno, err) : DPT_OK;
}

static bool trunk_has_mail(struct dpt_conn *link)
{
    return link->dirty && !trunk_of(link)->blocked;
}

static bool trunk_sends(const struct dpt_conn *link)
{
    return ((const struct trunk *)link)->blocked;
}

static int64_t trunk_held_up_us(const struct dpt_conn *link)
{
    return link->fd < 0 ? 0 : dpt_tcp_held_up_us(link->fd);
}

static uint32_t trunk_interest(const struct dpt_conn *link)
{
    return (uint32_t)EPOLLIN | (trunk_sends(link) ? (uint32_t)EPOLLOUT : 0);
}

static int64_t trunk_deadline_ms(const struct dpt_conn *link)
{
    return link->doubtful ? ((const struct trunk *)link)->doubt_ms + COMM_DOUBT_MS : INT64_MAX;
}

static enum dpt_status trunk_late(struct dpt_conn *link, struct dpt_err *err)
{
    return dpt_conn_lost(link, -1, err, strerror(ECONNRESET));
}

/* The end. */

static void send_goodbye(int fd, struct dpt_wire *wire, int from, bool failed, int suspect)
{
    uint8_t bytes[RELAY_HEAD_BYTES];
    encode_head(bytes, &(struct relay_head){.type = RELAY_BYE,
                                            .from = (uint32_t)from,
                                            .to = dpt_conn_suspect_code(suspect),
                                            .value = failed});
    /* Best effort: the peer sees the end of the connection in any case. */
    dpt_wire_send_last(wire, fd, bytes, sizeof bytes);
}

void dpt_trunk_refuse(int fd, struct dpt_wire *wire, int suspect)
{
    send_goodbye(fd, wire, -1, true, suspect);
    close(fd);
}

/* Sends the buffer, so that a failed goodbye can follow. The peers read meanwhile: they have not
 * failed yet, or need not be told. All trunks together wait for RELAY_LAST_WORDS_MS at most. */
static bool flush_last(struct trunk *trunk)
{
    struct router *router = trunk->router;
    if (router->last_words_ms == 0)
        router->last_words_ms = dpt_now_ms();
    while (!flush_trunk(trunk)) {
        const int64_t left = router->last_words_ms + RELAY_LAST_WORDS_MS - dpt_now_ms();
        struct pollfd pollfd = {.fd = trunk->link.fd, .events = POLLOUT};
        if (trunk->broken_errno != 0 || left <= 0 || poll(&pollfd, 1, (int)left) <= 0)
            return false;
    }
    return true;
}

static void say_goodbye(struct trunk *trunk, bool failed, int suspect)
{
    struct dpt_conn *link = &trunk->link;
    if (link->fd < 0 || trunk->said_bye || link->gone || link->doubtful || link->lost ||
        trunk->broken_errno != 0 || !(failed ? flush_last(trunk) : flush_trunk(trunk)))
        return;
    send_goodbye(link->fd, link->wire, link->comm->rank, failed, suspect);
    trunk->said_bye = true;
}

/* A failure is told at once, because the peer has to tell others. */
static bool trunk_shut(struct dpt_conn *link)
{
    if (link->comm->failure.status != DPT_OK)
        say_goodbye(trunk_of(link), true, link->comm->suspect);
    return true;
}

static void trunk_destroy(struct dpt_conn *link, enum link_goodbye goodbye, int suspect)
{
    struct trunk *trunk = trunk_of(link);
    if (link->fd < 0)
        return;
    say_goodbye(trunk, goodbye == GOODBYE_FAILED, suspect);
    if (!trunk->said_bye) { /* within a frame */
        const struct linger reset = {.l_onoff = 1, .l_linger = 0};
        (void)!setsockopt(link->fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
    }
    close(link->fd);
    link->fd = -1;
}

static const struct dpt_conn_ops trunk_ops = {
    .send = trunk_send,
    .receive = trunk_receive,
    .has_mail = trunk_has_mail,
    .shut = trunk_shut,
    .sends = trunk_sends,
    .held_up_us = trunk_held_up_us,
    .interest = trunk_interest,
    .deadline_ms = trunk_deadline_ms,
    .late = trunk_late,
    .destroy = trunk_destroy,
};

void dpt_trunk_init(struct trunk *trunk, struct router *router, int rank)
{
    trunk->router = router;
    trunk->link =
        (struct dpt_conn){.ops = &trunk_ops, .comm = router->comm, .rank = rank, .fd = -1};
    for (int c = 0; c < router->n_classes; c++)
        trunk->credits[c] = RELAY_SLOTS;
}
