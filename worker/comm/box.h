/* A message box: small messages between two ranks of one host, without a system call.
 *
 * A box is sealed memory that its owner writes and the other rank only reads. A box holds a ring of
 * messages to the other rank, the number of messages that the owner has read from the other rank's
 * box, and whether the owner sleeps. Each of the two ranks has one box:
 *
 *     sender (writes its own box)                      receiver (reads the sender's box)
 *     put: writes a slot's message, then its number ──► get: takes the slot with the next number
 *     has room: `put` < other's `read` + BOX_SLOTS  ◄── `read` of its own box: one more per get
 *     must wake: other's `rest` has BOX_ASLEEP      ◄── `rest`: set before the last check for mail
 *
 * A sender puts its message and then reads the other rank's `rest`. A rank that goes to sleep sets
 * its `rest` and then reads the ring again. All four accesses are sequentially consistent, so at
 * least one of the two ranks sees the other's write (Dekker's algorithm). The box wakes no rank:
 * its user does. In each rank one thread uses the pair of boxes.
 *
 * Writing into lent memory follows the same rule. A writer sets `writing` and then reads the
 * other's `shut`. A lender that gives up sets `shut` and then waits until `writing` is 0. */
#ifndef DPT_WORKER_COMM_BOX_H
#define DPT_WORKER_COMM_BOX_H

#include "worker/comm/comm.h"

#include <stdatomic.h>

enum {
    BOX_SLOTS = 256,
    BOX_PAYLOADS = 32 /* messages with a payload in flight at once; the user keeps this limit */
};

struct box_message {
    uint16_t type, credits;
    uint32_t record, region;
    uint64_t offset, bytes;
};

struct box_slot {
    _Alignas(64) _Atomic uint32_t number; /* number of the message, from 1 */
    struct box_message message;
};

enum { BOX_ASLEEP = 1, BOX_WANTS_ROOM = 2, BOX_SLEEP = 4 /* one more sleep */ };

/* The layout of the shared memory. */
struct box_page {
    _Alignas(64) _Atomic uint32_t read; /* messages taken from the other rank's box */
    _Alignas(64) _Atomic uint32_t rest; /* BOX_*: the flags, and the number of sleeps */
    _Alignas(64) _Atomic uint32_t shut; /* 1: the other rank must not write what it borrowed */
    _Alignas(64) _Atomic uint32_t writing;
    struct box_slot slots[BOX_SLOTS];
    uint8_t payloads[BOX_PAYLOADS][DPT_COMM_BUF_BYTES_MAX];
};

struct box {
    struct box_page *own;
    const struct box_page *other; /* NULL: the other rank has not passed its box yet */
    int fd;                       /* memfd of `own` */
    uint32_t put, payloads_put;   /* messages put; those of them with a payload */
    uint32_t got, payloads_got;
    uint32_t other_read;   /* the last value read of other->read */
    uint32_t woken;        /* the other's `rest` when it was last woken */
    bool did_put, did_get; /* since the last dpt_box_must_wake */
};

/* Creates this rank's box. */
DPT_MUST_USE enum dpt_status dpt_box_create(struct box *box, struct dpt_err *err);
void dpt_box_destroy(struct box *box);

/* Maps the other rank's box. The caller keeps `fd`. DPT_EPROTO: `fd` is not a box, or a box is
 * mapped already. */
DPT_MUST_USE enum dpt_status dpt_box_attach(struct box *box, int fd, struct dpt_err *err);

/* Puts a message and, unless `payload` is NULL, message->bytes bytes of payload. False: the ring is
 * full. */
bool dpt_box_put(struct box *box, const struct box_message *message, const void *payload);

/* True when there is a message. */
bool dpt_box_has_mail(const struct box *box);

/* The next message (false: none). It is a copy, so that the peer cannot change it after a check. A
 * message of type `payload_type` has a payload of message->bytes bytes, of which at most
 * DPT_COMM_BUF_BYTES_MAX are copied to ret_payload. */
bool dpt_box_get(struct box *box, uint16_t payload_type, struct box_message *ret,
                 uint8_t ret_payload[DPT_COMM_BUF_BYTES_MAX]);

/* True when a message can be put. */
bool dpt_box_has_room(struct box *box);

/* dpt_box_sleep tells the other rank that the owner is about to sleep, and whether it waits for
 * room. After that call and before it sleeps, the owner must check once more for mail, and for
 * room. dpt_box_awake tells the other rank that the owner is awake. */
void dpt_box_sleep(struct box *box, bool wants_room);
void dpt_box_awake(struct box *box);

/* To be called after a put or a get. True: the other rank sleeps, waits for that put or get, and
 * was not woken from this sleep yet. The caller then wakes it. */
bool dpt_box_must_wake(struct box *box);

/* Begins to write into memory that the other rank lent. False: the memory is shut and must not be
 * written. */
bool dpt_box_write_begin(struct box *box);
void dpt_box_write_end(struct box *box);

/* Shuts the memory lent to the other rank permanently. */
void dpt_box_shut(struct box *box);
/* To be called after dpt_box_shut. True: the other rank may still be writing into lent memory. */
bool dpt_box_is_written(const struct box *box);

#endif
