/* The link to a peer of the same host (comm.h).
 *
 * Both hold one end of a Unix SOCK_SEQPACKET connection. After the handshake each passes its
 * registered memory over it (REGION with the memfd, then READY) and maps the peer's read-only. A
 * send is an OFFER of a place in the sender's memory; the receiver copies from there or lends it to
 * its caller, and says DONE when it reads no more. Small sends travel in the message (SMALL).
 * Nobody writes into another's memory.
 *
 * The receiver keeps offers that it has not yet posted for in a ring of WINDOW entries; the sender
 * holds a credit an entry, and gets credits back with any message. So a sender that runs ahead
 * waits in its own queue, and DONE and credits never stand behind offers that nobody takes. */
#include "worker/comm/internal.h"

#include "base/cursor.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

enum { WINDOW = 32, HEADER_BYTES = 32, PACKET_BYTES = HEADER_BYTES + DPT_COMM_BUF_BYTES_MAX };

enum message_type {
    MESSAGE_REGION = 1, /* region, bytes; the memfd rides along */
    MESSAGE_READY,      /* all regions passed */
    MESSAGE_OFFER,      /* record, region, offset, bytes */
    MESSAGE_SMALL,      /* bytes; then the payload */
    MESSAGE_DONE,       /* record, of the one that is told */
    MESSAGE_CREDIT,
    MESSAGE_BYE /* record: suspect + 1; region: 1 if the peer failed */
};

struct message {
    enum message_type type;
    uint16_t credits;
    uint32_t record, region;
    uint64_t offset, bytes;
};

struct offer {
    enum message_type type; /* OFFER or SMALL */
    uint32_t record, region;
    uint64_t offset, bytes;
    uint8_t payload[DPT_COMM_BUF_BYTES_MAX];
};

struct shm_link {
    struct dpt_link link; /* first */
    struct {
        uint8_t *data; /* NULL: not passed */
        size_t bytes;
    } regions[COMM_REGIONS];
    int next_region; /* of ours, to be passed; COMM_REGIONS: READY; beyond: all done */
    bool peer_ready;
    bool blocked;               /* the socket took no more */
    bool broken;                /* a send failed: its EOF will say why */
    bool gave_up;               /* the peer failed, because of */
    int gave_up_suspect;        /* this rank; -1: unknown */
    unsigned credits;           /* offers the peer still has room for */
    unsigned owed;              /* credits to give back */
    struct rec_queue give_back; /* DONE to be said */
    unsigned ring_first, ring_n;
    struct offer ring[WINDOW];
};

static struct shm_link *shm_of(struct dpt_link *link)
{
    return (struct shm_link *)link;
}

/* Sends one message, with a descriptor (fd >= 0) or a payload. False: not now, or never (`blocked`,
 * `broken`). */
static bool send_message(struct shm_link *shm, struct message message, const void *payload, int fd)
{
    uint8_t header[HEADER_BYTES];
    struct dpt_writer writer;
    dpt_writer_init(&writer, header, sizeof header);
    dpt_writer_u16(&writer, (uint16_t)message.type);
    dpt_writer_u16(&writer, (uint16_t)shm->owed);
    dpt_writer_u32(&writer, message.record);
    dpt_writer_u32(&writer, message.region);
    dpt_writer_u32(&writer, 0);
    dpt_writer_u64(&writer, message.offset);
    dpt_writer_u64(&writer, message.bytes);
    struct iovec iov[2] = {{header, sizeof header},
                           {(void *)(uintptr_t)payload, (size_t)message.bytes}};
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control = {0};
    struct msghdr msg = {.msg_iov = iov, .msg_iovlen = payload != NULL ? 2 : 1};
    if (fd >= 0) {
        msg.msg_control = control.bytes;
        msg.msg_controllen = sizeof control.bytes;
        struct cmsghdr *cmsg = CMSG_FIRSTHDR(&msg);
        cmsg->cmsg_level = SOL_SOCKET;
        cmsg->cmsg_type = SCM_RIGHTS;
        cmsg->cmsg_len = CMSG_LEN(sizeof fd);
        memcpy(CMSG_DATA(cmsg), &fd, sizeof fd);
    }
    ssize_t n;
    do
        n = sendmsg(shm->link.fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL);
    while (n < 0 && errno == EINTR);
    if (n < 0) {
        if (errno == EAGAIN || errno == ENOBUFS)
            shm->blocked = true;
        else
            shm->broken = true;
        return false;
    }
    shm->owed = 0;
    return true;
}

/* Passes the own regions, then READY; true when all is passed. */
static bool pass_regions(struct shm_link *shm)
{
    for (; shm->next_region <= COMM_REGIONS; shm->next_region++) {
        struct message message = {.type = MESSAGE_READY};
        int fd = -1;
        if (shm->next_region < COMM_REGIONS) {
            const struct dpt_comm_mem *mem = shm->link.comm->listener->mems[shm->next_region];
            if (mem == NULL)
                continue;
            message = (struct message){
                .type = MESSAGE_REGION, .region = (uint32_t)mem->region, .bytes = mem->bytes};
            fd = mem->fd;
        }
        if (!send_message(shm, message, NULL, fd))
            return false;
    }
    return true;
}

static bool send_transfer(struct shm_link *shm, struct dpt_rec *rec)
{
    if (rec->small != NULL)
        return send_message(shm, (struct message){.type = MESSAGE_SMALL, .bytes = rec->bytes},
                            rec->small, -1);
    return send_message(shm,
                        (struct message){.type = MESSAGE_OFFER,
                                         .record = dpt_rec_index(rec),
                                         .region = rec->region,
                                         .offset = rec->offset,
                                         .bytes = rec->bytes},
                        NULL, -1);
}

static void send_queued(struct shm_link *shm)
{
    for (struct dpt_rec *rec; (rec = shm->give_back.first) != NULL;) {
        if (!send_message(shm, (struct message){.type = MESSAGE_DONE, .record = rec->remote}, NULL,
                          -1))
            return;
        dpt_queue_pop(&shm->give_back);
        dpt_rec_free(rec);
    }
    for (struct dpt_rec *rec; (rec = shm->link.sends.first) != NULL && shm->credits > 0;) {
        if (!send_transfer(shm, rec))
            return;
        shm->credits--;
        dpt_queue_pop(&shm->link.sends);
        if (rec->small != NULL) {
            dpt_rec_complete(rec);
            dpt_rec_free(rec);
        } else {
            rec->state = REC_OFFERED;
        }
    }
    if (shm->owed >= WINDOW / 2)
        (void)send_message(shm, (struct message){.type = MESSAGE_CREDIT}, NULL, -1);
}

static enum dpt_status shm_send(struct dpt_link *link, struct dpt_err *err)
{
    (void)err; /* a broken connection is reported where its EOF, and what came before it, is read */
    struct shm_link *shm = shm_of(link);
    shm->blocked = false;
    if (!shm->broken && !link->bye && pass_regions(shm))
        send_queued(shm);
    link->ready = shm->peer_ready && shm->next_region > COMM_REGIONS;
    if (shm->broken)
        link->dirty = link->comm->dirty = true;
    return DPT_OK;
}

/* Maps a region that the peer passed; consumes fd. */
static enum dpt_status map_region(struct shm_link *shm, const struct message *message, int fd,
                                  struct dpt_err *err)
{
    enum dpt_status status = DPT_EPROTO;
    struct stat st;
    const char *why = "it passed a region without its memory";
    if (fd < 0)
        goto out;
    why = "it passed an unsealed or ill-sized region";
    const int seals = fcntl(fd, F_GET_SEALS);
    if (message->region >= COMM_REGIONS || shm->regions[message->region].data != NULL ||
        message->bytes == 0 || fstat(fd, &st) != 0 || (uint64_t)st.st_size < message->bytes ||
        seals < 0 || (seals & F_SEAL_SHRINK) == 0)
        goto out;
    why = "cannot map its memory";
    status = DPT_ENOMEM;
    void *data = mmap(NULL, (size_t)message->bytes, PROT_READ, MAP_SHARED, fd, 0);
    if (data == MAP_FAILED)
        goto out;
    shm->regions[message->region].data = data;
    shm->regions[message->region].bytes = (size_t)message->bytes;
    status = DPT_OK;
out:
    if (fd >= 0)
        close(fd);
    return status == DPT_OK ? status : dpt_link_broken(&shm->link, status, err, why);
}

/* The peer reads our bytes no more. */
static enum dpt_status take_done(struct shm_link *shm, uint32_t record, struct dpt_err *err)
{
    struct dpt_comm *comm = shm->link.comm;
    struct dpt_rec *rec = record < COMM_RECORDS_MAX ? &comm->recs[record] : NULL;
    if (rec == NULL || rec->state != REC_OFFERED || rec->link != &shm->link)
        return dpt_link_broken(&shm->link, DPT_EPROTO, err, "it returned what it did not have");
    dpt_rec_complete(rec);
    dpt_rec_free(rec);
    return DPT_OK;
}

static enum dpt_status take_offer(struct shm_link *shm, const struct message *message,
                                  const uint8_t *payload, size_t payload_bytes, struct dpt_err *err)
{
    if (shm->ring_n == WINDOW)
        return dpt_link_broken(&shm->link, DPT_EPROTO, err, "it offers more than it may");
    struct offer *offer = &shm->ring[(shm->ring_first + shm->ring_n) % WINDOW];
    offer->type = message->type;
    offer->record = message->record;
    offer->region = message->region;
    offer->offset = message->offset;
    offer->bytes = message->bytes;
    if (message->type == MESSAGE_SMALL) {
        if (message->bytes != payload_bytes)
            return dpt_link_broken(&shm->link, DPT_EPROTO, err, "a message of the wrong length");
        memcpy(offer->payload, payload, payload_bytes);
    } else if (message->region >= COMM_REGIONS || shm->regions[message->region].data == NULL ||
               message->offset > shm->regions[message->region].bytes ||
               message->bytes > shm->regions[message->region].bytes - message->offset) {
        return dpt_link_broken(&shm->link, DPT_EPROTO, err, "it offers memory that it has not");
    }
    shm->ring_n++;
    return DPT_OK;
}

static enum dpt_status take_message(struct shm_link *shm, const uint8_t *packet, size_t bytes,
                                    int fd, struct dpt_err *err)
{
    struct dpt_reader reader;
    dpt_reader_init(&reader, packet, bytes);
    struct message message = {.type = dpt_reader_u16(&reader)};
    message.credits = dpt_reader_u16(&reader);
    message.record = dpt_reader_u32(&reader);
    message.region = dpt_reader_u32(&reader);
    (void)dpt_reader_u32(&reader);
    message.offset = dpt_reader_u64(&reader);
    message.bytes = dpt_reader_u64(&reader);
    enum dpt_status status = dpt_reader_status(&reader, "message", NULL);
    if (status == DPT_OK && (fd >= 0) == (message.type == MESSAGE_REGION))
        shm->credits += message.credits;
    else
        message.type = 0;
    if (shm->credits > WINDOW)
        message.type = 0;
    if (message.type == MESSAGE_REGION && !shm->peer_ready)
        return map_region(shm, &message, fd, err);
    if (fd >= 0)
        close(fd);
    switch (message.type) {
    case MESSAGE_READY:
        shm->peer_ready = true;
        return DPT_OK;
    case MESSAGE_OFFER:
    case MESSAGE_SMALL:
        return take_offer(shm, &message, packet + HEADER_BYTES, bytes - HEADER_BYTES, err);
    case MESSAGE_DONE:
        return take_done(shm, message.record, err);
    case MESSAGE_CREDIT:
        return DPT_OK;
    case MESSAGE_BYE:
        shm->gave_up = message.region != 0;
        shm->gave_up_suspect = dpt_link_suspect(message.record);
        shm->link.bye = !shm->gave_up;
        return DPT_OK;
    case MESSAGE_REGION:
        break;
    }
    return dpt_link_broken(&shm->link, DPT_EPROTO, err, "a malformed message");
}

/* One packet and the descriptor that came with it, if one did. The kernel drops what the control
 * buffer has no room for. */
static ssize_t receive_packet(struct shm_link *shm, uint8_t *packet, int *ret_fd)
{
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control;
    struct iovec iov = {packet, PACKET_BYTES};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    if (!shm->peer_ready) { /* only then descriptors are expected */
        msg.msg_control = control.bytes;
        msg.msg_controllen = sizeof control.bytes;
    }
    ssize_t n;
    do
        n = recvmsg(shm->link.fd, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    while (n < 0 &&
           (errno == EINTR || errno == ECONNRESET)); /* a reset is told once; EOF follows */
    *ret_fd = -1;
    if (n < 0)
        return n;
    const struct cmsghdr *cmsg = CMSG_FIRSTHDR(&msg);
    if (cmsg != NULL && cmsg->cmsg_level == SOL_SOCKET && cmsg->cmsg_type == SCM_RIGHTS &&
        cmsg->cmsg_len == CMSG_LEN(sizeof *ret_fd))
        memcpy(ret_fd, CMSG_DATA(cmsg), sizeof *ret_fd);
    return n;
}

/* Gives an offer to the receive that was posted for it. */
static enum dpt_status match_one(struct shm_link *shm, struct dpt_err *err)
{
    struct dpt_link *link = &shm->link;
    const struct offer *offer = &shm->ring[shm->ring_first];
    struct dpt_rec *rec = link->recvs.first;
    if (rec->bytes != offer->bytes)
        return dpt_link_broken(link, DPT_EPROTO, err, "it sends another length than is expected");
    const bool in_place = offer->type == MESSAGE_OFFER;
    if (in_place && shm->gave_up)
        return dpt_link_lost(link, shm->gave_up_suspect, err, "it gave up");
    if (in_place && link->bye)
        return dpt_link_lost(link, -1, err, "it left before its memory was read");
    const uint8_t *from =
        in_place ? shm->regions[offer->region].data + offer->offset : offer->payload;
    const bool lend = rec->dir == DPT_COMM_LEND;
    if (!(lend && in_place)) {
        if (rec->data == NULL && rec->bytes > 0)
            return dpt_link_broken(link, DPT_EINVAL, err,
                                   "lent without staging, sent from no region");
        DPT_TRY(dpt_link_copy(link, rec->data, from, rec->bytes, err));
    }
    dpt_queue_pop(&link->recvs);
    rec->remote = offer->record;
    shm->ring_first = (shm->ring_first + 1) % WINDOW;
    shm->ring_n--;
    shm->owed++;
    if (lend && in_place) {
        dpt_rec_lend(rec, from);
        return DPT_OK;
    }
    if (lend)
        rec->xfer->lent = rec->data;
    dpt_rec_complete(rec);
    if (in_place) {
        rec->state = REC_GIVING_BACK;
        dpt_queue_push(&shm->give_back, rec);
    } else {
        dpt_rec_free(rec);
    }
    return DPT_OK;
}

static enum dpt_status shm_receive(struct dpt_link *link, struct dpt_err *err)
{
    struct shm_link *shm = shm_of(link);
    uint8_t packet[PACKET_BYTES];
    bool eof = false;
    while (!eof && !link->gone && !shm->gave_up) {
        int fd;
        const ssize_t n = receive_packet(shm, packet, &fd);
        if (n < 0 && errno == EAGAIN)
            break;
        if (n < 0)
            return dpt_link_lost(link, -1, err, strerror(errno));
        eof = n == 0;
        if (!eof)
            DPT_TRY(take_message(shm, packet, (size_t)n, fd, err));
    }
    while (shm->ring_n > 0 && link->recvs.first != NULL)
        DPT_TRY(match_one(shm, err));
    if (shm->gave_up)
        return dpt_link_lost(link, shm->gave_up_suspect, err, "it gave up");
    if (eof && !link->bye)
        return dpt_link_lost(link, -1, err, "its process has closed the connection");
    if (eof)
        return dpt_link_left(link, err);
    if ((link->bye || link->gone) && link->pending > 0)
        return dpt_link_lost(link, -1, err, "it left before its last transfers");
    if (shm->broken && !link->bye)
        return dpt_link_lost(link, -1, err, "its connection is broken");
    return DPT_OK;
}

static void shm_give_back(struct dpt_link *link, struct dpt_rec *rec)
{
    rec->state = REC_GIVING_BACK;
    dpt_queue_push(&shm_of(link)->give_back, rec);
}

static uint32_t shm_interest(const struct dpt_link *link)
{
    const struct shm_link *shm = (const struct shm_link *)link;
    return EPOLLIN | (shm->blocked ? (uint32_t)EPOLLOUT : 0);
}

static int64_t shm_deadline_ms(const struct dpt_link *link)
{
    (void)link; /* in one host a begun transfer is a memory copy */
    return INT64_MAX;
}

static void shm_destroy(struct dpt_link *link, enum link_goodbye goodbye, int suspect)
{
    struct shm_link *shm = shm_of(link);
    if (!shm->broken && !link->gone) {
        if (goodbye == GOODBYE_ORDERLY)
            send_queued(shm);
        const struct message bye = {.type = MESSAGE_BYE,
                                    .record = dpt_link_suspect_code(suspect),
                                    .region = goodbye == GOODBYE_FAILED};
        (void)send_message(shm, bye, NULL, -1); /* without it the EOF says enough */
    }
    close(link->fd);
    for (int i = 0; i < COMM_REGIONS; i++)
        if (shm->regions[i].data != NULL)
            munmap(shm->regions[i].data, shm->regions[i].bytes);
    free(shm);
}

static const struct dpt_link_ops shm_ops = {
    .send = shm_send,
    .receive = shm_receive,
    .give_back = shm_give_back,
    .interest = shm_interest,
    .deadline_ms = shm_deadline_ms,
    .late = NULL,
    .destroy = shm_destroy,
};

struct dpt_link *dpt_shm_link_create(struct dpt_comm *comm, int rank, int fd, struct dpt_err *err)
{
    struct shm_link *shm = calloc(1, sizeof *shm);
    if (shm == NULL) {
        (void)dpt_fail(err, DPT_ENOMEM, "memory for the link to rank %d", rank);
        return NULL;
    }
    shm->link.ops = &shm_ops;
    shm->link.comm = comm;
    shm->link.rank = rank;
    shm->link.fd = fd;
    shm->credits = WINDOW;
    return &shm->link;
}
