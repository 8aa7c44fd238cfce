/* A message box: small messages between two ranks of one host, without a system call.
 *
 * A box is sealed memory that its owner writes and the other rank only reads. It holds a ring of
 * messages to the other, the number of messages that the owner has read from the other's box, and
 * whether the owner sleeps. Two ranks hold a box each:
 *
 *     put: slot's message, then its number ──────────► get: a slot with the number awaited
 *     room: below `read` of the other's box + SLOTS ◄── read: counted up
 *     rest: sleeping? then the other must be woken  ◄── set before the last look into the ring
 *
 * A sender puts its message and then reads the other's `rest`. A rank that goes to sleep sets its
 * `rest` and then reads the ring again. All four accesses are sequentially consistent, so one of
 * the two sees the other's write (Dekker's algorithm). The user of the box wakes a sleeper. One
 * thread uses a pair of boxes.
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
    _Alignas(64) _Atomic uint32_t number; /* of the message, counted from 1 */
    struct box_message message;
};

enum { BOX_ASLEEP = 1, BOX_WANTS_ROOM = 2, BOX_SLEEP = 4 /* one more sleep */ };

/* The layout of the shared memory. */
struct box_page {
    _Alignas(64) _Atomic uint32_t read; /* messages taken from the other's box */
    _Alignas(64) _Atomic uint32_t rest; /* BOX_*: the flags, and the number of sleeps */
    _Alignas(64) _Atomic uint32_t shut; /* 1: the other must not write lent memory */
    _Alignas(64) _Atomic uint32_t writing;
    struct box_slot slots[BOX_SLOTS];
    uint8_t payloads[BOX_PAYLOADS][DPT_COMM_BUF_BYTES_MAX];
};

struct box {
    struct box_page *own;
    const struct box_page *other; /* NULL: not passed yet */
    int fd;                       /* of `own` */
    uint32_t put, payloads_put;   /* messages, and those with a payload */
    uint32_t got, payloads_got;
    uint32_t other_read;   /* the last value read of other->read */
    uint32_t woken;        /* the other's `rest` when it was last woken */
    bool did_put, did_get; /* since dpt_box_must_wake */
};

/* Creates this rank's box. */
DPT_MUST_USE enum dpt_status dpt_box_create(struct box *box, struct dpt_err *err);
void dpt_box_destroy(struct box *box);

/* Maps the other's box; the caller keeps `fd`. DPT_EPROTO: it is no box, or there is one already.
 */
DPT_MUST_USE enum dpt_status dpt_box_attach(struct box *box, int fd, struct dpt_err *err);

/* Puts a message, with message->bytes bytes of payload unless NULL. False: the ring is full. */
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

/* Tells the other that the owner is about to sleep (and whether it waits for room), or is awake. In
 * between the owner must check once more for mail, and for room. */
void dpt_box_sleep(struct box *box, bool wants_room);
void dpt_box_awake(struct box *box);

/* After putting or getting: true when the other sleeps, waits for it, and was not woken from that
 * sleep yet. The caller wakes it. */
bool dpt_box_must_wake(struct box *box);

/* Begins to write into memory that the other lent. False: it is shut, and must not be written. */
bool dpt_box_write_begin(struct box *box);
void dpt_box_write_end(struct box *box);

/* Shuts the memory lent to the other rank permanently. */
void dpt_box_shut(struct box *box);
/* True while the other may still be writing into it. After dpt_box_shut. */
bool dpt_box_is_written(const struct box *box);

#endif
