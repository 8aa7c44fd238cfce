/* The link to a peer of the same host (comm.h).
 *
 * Each rank holds one end of a Unix SOCK_SEQPACKET connection. After the handshake each rank passes
 * its registered memory over the connection (REGION with the memfd, then READY with its message
 * box) and maps the peer's memory read-only. A send is an OFFER of an address in the sender's
 * memory. The receiver copies the bytes from there, or lends them to its caller. It sends DONE when
 * it needs the bytes no more. A small send has its bytes in the message (SMALL).
 *
 * A rank writes into a peer's memory in one case only: the peer offers an address in open memory
 * (OFFER_OPEN). The borrower may write there until it sends DONE. This saves the copy of a sum back
 * into the owner's cache. An owner that gives up first takes its open memory back (`shut`). It
 * waits some microseconds for a writer to finish. If the writer has stopped, the owner leaves the
 * old pages to it and takes new ones (dpt_comm_mem_exchange).
 *
 * After READY, messages go through the boxes (box.h), without a system call while both ranks are
 * awake. The socket then only wakes a sleeping peer (BELL), carries the goodbye (BYE), and shows a
 * death by EOF. This rank reads all messages in the peer's box before it acts on the goodbye or the
 * EOF.
 *
 * The receiver keeps offers without a posted receive in a ring of WINDOW entries. The sender holds
 * one credit per free entry, and every message returns credits. So the sends of a fast sender wait
 * in its own queue, and DONE and credits never wait behind offers. */
#include "worker/comm/shm.h"

#include "base/clock.h"

#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <unistd.h>

static struct shm_link *shm_of(struct dpt_conn *link)
{
    return (struct shm_link *)link;
}

/* Puts one message into the box. The message returns all credits that this rank owes. */
static bool put_message(struct shm_link *shm, struct box_message message, const void *payload)
{
    message.credits = (uint16_t)shm->owed;
    shm->box_full = !dpt_box_put(&shm->box, &message, payload);
    if (!shm->box_full)
        shm->owed = 0;
    return !shm->box_full;
}

static bool send_transfer(struct shm_link *shm, struct dpt_rec *rec)
{
    if (rec->small != NULL)
        return put_message(shm, (struct box_message){.type = MESSAGE_SMALL, .bytes = rec->bytes},
                           rec->small);
    return put_message(shm,
                       (struct box_message){.type = rec->write ? MESSAGE_OFFER_OPEN : MESSAGE_OFFER,
                                            .record = dpt_conn_rec_index(rec),
                                            .region = rec->region,
                                            .offset = rec->offset,
                                            .bytes = rec->bytes},
                       NULL);
}

static void send_withdrawals(struct shm_link *shm)
{
    for (uint32_t i = 0; shm->withdraws && i < COMM_REGIONS; i++) {
        if (shm->withdraw[i] &&
            !put_message(shm, (struct box_message){.type = MESSAGE_WITHDRAW, .region = i}, NULL))
            return;
        shm->withdraw[i] = false;
    }
    shm->withdraws = false;
}

static void send_queued(struct shm_link *shm)
{
    for (struct dpt_rec *rec; (rec = shm->give_back.first) != NULL;) {
        if (!put_message(shm, (struct box_message){.type = MESSAGE_DONE, .record = rec->remote},
                         NULL))
            return;
        dpt_conn_queue_pop(&shm->give_back);
        dpt_conn_free_rec(rec);
    }
    for (struct dpt_rec *rec; (rec = shm->link.sends.first) != NULL && shm->credits > 0;) {
        if (!send_transfer(shm, rec))
            return;
        shm->credits--;
        dpt_conn_queue_pop(&shm->link.sends);
        if (rec->small != NULL) {
            dpt_conn_complete_rec(rec);
            dpt_conn_free_rec(rec);
        } else {
            rec->state = REC_OFFERED;
        }
    }
    send_withdrawals(shm);
    if (shm->owed >= WINDOW / 2)
        (void)put_message(shm, (struct box_message){.type = MESSAGE_CREDIT}, NULL);
}

/* Wakes a sleeping peer once. A full socket already holds messages that wake it. */
static void ring_bell(struct shm_link *shm)
{
    const bool blocked = shm->blocked;
    if (!dpt_box_must_wake(&shm->box))
        return;
    (void)dpt_shm_send_packet(shm, (struct box_message){.type = MESSAGE_BELL}, -1);
    shm->blocked = blocked;
}

static enum dpt_status shm_send(struct dpt_conn *link, struct dpt_err *err)
{
    (void)err; /* shm_receive reports a broken connection, after the messages before its EOF */
    struct shm_link *shm = shm_of(link);
    shm->blocked = shm->box_full = false;
    if (!shm->broken && !link->bye && dpt_shm_pass_regions(shm) && shm->peer_ready) {
        send_queued(shm);
        ring_bell(shm);
    }
    link->ready = shm->peer_ready && shm->next_region > COMM_REGIONS;
    if (shm->broken)
        link->readable = link->dirty = link->comm->dirty = true;
    return DPT_OK;
}

/* The peer has finished reading the bytes. */
static enum dpt_status take_done(struct shm_link *shm, uint32_t record, struct dpt_err *err)
{
    struct dpt_comm *comm = shm->link.comm;
    struct dpt_rec *rec = record < COMM_RECORDS_MAX ? &comm->pool.recs[record] : NULL;
    if (rec == NULL || rec->state != REC_OFFERED || rec->link != &shm->link)
        return dpt_conn_broken(&shm->link, DPT_EPROTO, err,
                               "it returned a transfer that was not offered to it");
    dpt_conn_complete_rec(rec);
    dpt_conn_free_rec(rec);
    return DPT_OK;
}

static enum dpt_status take_offer(struct shm_link *shm, const struct box_message *message,
                                  const uint8_t *payload, struct dpt_err *err)
{
    if (shm->ring_n == WINDOW)
        return dpt_conn_broken(&shm->link, DPT_EPROTO, err,
                               "it sends more offers than it has credits");
    struct offer *offer = &shm->ring[(shm->ring_first + shm->ring_n) % WINDOW];
    offer->message = *message;
    if (message->type == MESSAGE_SMALL) {
        if (message->bytes > DPT_COMM_BUF_BYTES_MAX)
            return dpt_conn_broken(&shm->link, DPT_EPROTO, err, "a message of the wrong length");
        memcpy(offer->payload, payload, (size_t)message->bytes);
    } else if (message->region >= COMM_REGIONS || shm->regions[message->region].data == NULL ||
               message->offset > shm->regions[message->region].bytes ||
               message->bytes > shm->regions[message->region].bytes - message->offset ||
               (message->type == MESSAGE_OFFER_OPEN && !shm->regions[message->region].open)) {
        return dpt_conn_broken(&shm->link, DPT_EPROTO, err,
                               "it offers memory outside of its regions");
    }
    shm->ring_n++;
    return DPT_OK;
}

/* The peer withdraws a region: no transfer from it is offered or lent. */
static enum dpt_status take_withdrawal(struct shm_link *shm, uint32_t region, struct dpt_err *err)
{
    if (region >= COMM_REGIONS || shm->regions[region].data == NULL)
        return dpt_conn_broken(&shm->link, DPT_EPROTO, err,
                               "it withdraws a region that it has not passed");
    for (unsigned i = 0; i < shm->ring_n; i++) {
        const struct offer *offer = &shm->ring[(shm->ring_first + i) % WINDOW];
        if (offer->message.type != MESSAGE_SMALL && offer->message.region == region)
            return dpt_conn_broken(&shm->link, DPT_EPROTO, err,
                                   "it withdraws a region that it still offers");
    }
    munmap(shm->regions[region].data, shm->regions[region].bytes);
    shm->regions[region].data = NULL;
    return DPT_OK;
}

/* A message of the box. */
static enum dpt_status take_message(struct shm_link *shm, const struct box_message *message,
                                    const uint8_t *payload, struct dpt_err *err)
{
    shm->credits += message->credits;
    if (shm->credits > WINDOW)
        return dpt_conn_broken(&shm->link, DPT_EPROTO, err, "it returns more credits than exist");
    switch (message->type) {
    case MESSAGE_OFFER:
    case MESSAGE_OFFER_OPEN:
    case MESSAGE_SMALL:
        return take_offer(shm, message, payload, err);
    case MESSAGE_DONE:
        return take_done(shm, message->record, err);
    case MESSAGE_CREDIT:
        return DPT_OK;
    case MESSAGE_WITHDRAW:
        return take_withdrawal(shm, message->region, err);
    default:
        return dpt_conn_broken(&shm->link, DPT_EPROTO, err, "a malformed message");
    }
}

/* Carries out the first posted receive with the first offer. */
static enum dpt_status match_one(struct shm_link *shm, struct dpt_err *err)
{
    struct dpt_conn *link = &shm->link;
    const struct box_message *offer = &shm->ring[shm->ring_first].message;
    struct dpt_rec *rec = link->recvs.first;
    if (rec->bytes != offer->bytes)
        return dpt_conn_broken(link, DPT_EPROTO, err, "it sends another length than is expected");
    dpt_peer_arrived(link);
    const bool in_place = offer->type != MESSAGE_SMALL, write = offer->type == MESSAGE_OFFER_OPEN;
    if (rec->write != write)
        return dpt_conn_broken(link, DPT_EPROTO, err,
                               "only one side allows the bytes to be written in place");
    if (in_place && shm->gave_up)
        return dpt_conn_lost(link, shm->gave_up_suspect, err, "it gave up");
    if (in_place && link->bye)
        return dpt_conn_lost(link, -1, err, "it left before its memory was read");
    uint8_t *place = in_place ? shm->regions[offer->region].data + offer->offset : NULL;
    const uint8_t *from = in_place ? place : shm->ring[shm->ring_first].payload;
    const bool lend = rec->dir == DPT_COMM_LEND;
    if (!(lend && in_place)) {
        if (rec->data == NULL && rec->bytes > 0)
            return dpt_conn_broken(link, DPT_EINVAL, err,
                                   "a LEND without staging of bytes that are in no region");
        DPT_TRY(dpt_conn_copy(link, rec->data, from, rec->bytes, err));
    }
    dpt_conn_queue_pop(&link->recvs);
    rec->remote = offer->record;
    shm->ring_first = (shm->ring_first + 1) % WINDOW;
    shm->ring_n--;
    shm->owed++;
    if (lend && in_place) {
        dpt_conn_lend_rec(rec, from, write ? place : NULL);
        return DPT_OK;
    }
    if (lend)
        rec->xfer->lent = rec->data;
    dpt_conn_complete_rec(rec);
    if (in_place) {
        rec->state = REC_GIVING_BACK;
        dpt_conn_queue_push(&shm->give_back, rec);
    } else {
        dpt_conn_free_rec(rec);
    }
    return DPT_OK;
}

/* Reads at most one ring of messages, so that no peer occupies the owner without end. */
static enum dpt_status read_box(struct shm_link *shm, struct dpt_err *err)
{
    struct box_message message;
    uint8_t payload[DPT_COMM_BUF_BYTES_MAX];
    for (int i = 0; i < BOX_SLOTS && dpt_box_get(&shm->box, MESSAGE_SMALL, &message, payload); i++)
        DPT_TRY(take_message(shm, &message, payload, err));
    return DPT_OK;
}

static enum dpt_status shm_receive(struct dpt_conn *link, struct dpt_err *err)
{
    struct shm_link *shm = shm_of(link);
    bool eof = false;
    /* The socket is read before the box: all messages that precede its goodbye or EOF are then in
     * the box. */
    if (link->readable || !shm->peer_ready)
        DPT_TRY(dpt_shm_read_socket(shm, &eof, err));
    DPT_TRY(read_box(shm, err));
    while (shm->ring_n > 0 && link->recvs.first != NULL)
        DPT_TRY(match_one(shm, err));
    if (shm->gave_up)
        return dpt_conn_lost(link, shm->gave_up_suspect, err, "it gave up");
    DPT_TRY(dpt_conn_check_end(link, eof, err));
    if (shm->broken && !link->bye)
        return dpt_conn_lost(link, -1, err, "its connection is broken");
    return DPT_OK;
}

static void shm_give_back(struct dpt_conn *link, struct dpt_rec *rec)
{
    rec->state = REC_GIVING_BACK;
    dpt_conn_queue_push(&shm_of(link)->give_back, rec);
}

static bool shm_has_mail(struct dpt_conn *link)
{
    struct shm_link *shm = shm_of(link);
    return dpt_box_has_mail(&shm->box) || (shm->box_full && dpt_box_has_room(&shm->box));
}

static void shm_rest(struct dpt_conn *link, bool sleeps)
{
    struct shm_link *shm = shm_of(link);
    if (sleeps)
        dpt_box_sleep(&shm->box, shm->box_full);
    else
        dpt_box_awake(&shm->box);
}

static bool shm_write_begin(struct dpt_conn *link)
{
    return dpt_box_write_begin(&shm_of(link)->box);
}

static void shm_write_end(struct dpt_conn *link)
{
    dpt_box_write_end(&shm_of(link)->box);
}

/* True: all threads of the peer's process have ended, or the peer has left this communicator. */
static bool has_closed(const struct dpt_conn *link)
{
    struct pollfd fd = {.fd = link->fd};
    return poll(&fd, 1, 0) == 1 && (fd.revents & (POLLHUP | POLLERR)) != 0;
}

static bool shm_shut(struct dpt_conn *link)
{
    struct shm_link *shm = shm_of(link);
    const int64_t end = dpt_now_ms() + COMM_WRITER_MS;
    dpt_box_shut(&shm->box);
    while (dpt_box_is_written(&shm->box) && !has_closed(link)) {
        if (dpt_now_ms() >= end)
            return false;
        (void)sched_yield(); /* the writer needs a core for some microseconds */
    }
    return true;
}

static uint32_t shm_interest(const struct dpt_conn *link)
{
    const struct shm_link *shm = (const struct shm_link *)link;
    return EPOLLIN | (shm->blocked ? (uint32_t)EPOLLOUT : 0);
}

static void shm_destroy(struct dpt_conn *link, enum link_goodbye goodbye, int suspect)
{
    struct shm_link *shm = shm_of(link);
    if (!shm->broken && !link->gone) {
        if (goodbye == GOODBYE_ORDERLY && shm->peer_ready)
            send_queued(shm);
        const struct box_message bye = {.type = MESSAGE_BYE,
                                        .record = dpt_conn_suspect_code(suspect),
                                        .region = goodbye == GOODBYE_FAILED};
        (void)dpt_shm_send_packet(shm, bye, -1); /* if it cannot be sent, the EOF is enough */
    }
    close(link->fd);
    dpt_box_destroy(&shm->box);
    for (int i = 0; i < COMM_REGIONS; i++)
        if (shm->regions[i].data != NULL)
            munmap(shm->regions[i].data, shm->regions[i].bytes);
    free(shm);
}

static void shm_withdraw(struct dpt_conn *link, int region)
{
    struct shm_link *shm = shm_of(link);
    shm->withdraw[region] = shm->withdraws = true;
}

static const struct dpt_conn_ops shm_ops = {
    .send = shm_send,
    .receive = shm_receive,
    .give_back = shm_give_back,
    .write_begin = shm_write_begin,
    .write_end = shm_write_end,
    .withdraw = shm_withdraw,
    .shut = shm_shut,
    .has_mail = shm_has_mail,
    .rest = shm_rest,
    .interest = shm_interest,
    .destroy = shm_destroy,
};

struct dpt_conn *dpt_shm_link_create(struct dpt_comm *comm, int rank, int fd, struct dpt_err *err)
{
    struct shm_link *shm = calloc(1, sizeof *shm);
    if (shm == NULL) {
        (void)dpt_fail_nomem(err, "link to rank %d", rank);
        return NULL;
    }
    if (dpt_box_create(&shm->box, err) != DPT_OK) {
        free(shm);
        return NULL;
    }
    shm->link = (struct dpt_conn){.ops = &shm_ops, .comm = comm, .rank = rank, .fd = fd};
    shm->credits = WINDOW;
    return &shm->link;
}
