/* A box: the way of small messages from one rank to another of its host, without a system call.
 *
 * It is memory that its owner writes and the other only reads (a sealed memfd, like all that ranks
 * pass to each other). In it stand a ring of messages to the other, how many the owner has read
 * from the other's box, and whether the owner sleeps. Two ranks hold a box each:
 *
 *     put: slot's message, then its number ──────────► get: a slot with the number awaited
 *     room: below `read` of the other's box + SLOTS ◄── read: counted up
 *     rest: sleeping? then the other must be woken  ◄── set before the last look into the ring
 *
 * Who puts looks at the other's `rest` afterwards, who goes to sleep sets `rest` and looks into the
 * ring again; all four are sequentially consistent, so one of the two sees what the other did
 * (Dekker). How a sleeper is woken is not the box's matter. One thread uses a box pair.
 *
 * A box also says whether the other may write into memory that was lent to it for that (`shut`),
 * and whether the owner is writing into the other's (`writing`), by the same rule: who writes says
 * so first and then looks at `shut`; who shuts does so first and then waits for `writing` to end.
 */
#ifndef DPT_WORKER_COMM_BOX_H
#define DPT_WORKER_COMM_BOX_H

#include "worker/comm/comm.h"

#include <stdatomic.h>

enum {
    BOX_SLOTS = 256,
    BOX_PAYLOADS = 32 /* messages with a payload that are under way at once: the user's promise */
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
    _Alignas(64) _Atomic uint32_t rest; /* BOX_*: the flags and how often it has slept */
    _Alignas(64) _Atomic uint32_t shut; /* 1: nothing may be written any more */
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
    uint32_t other_read;   /* what `other` had read when last looked at */
    uint32_t woken;        /* the `rest` that the other was last woken from */
    bool did_put, did_get; /* since dpt_box_must_wake */
};

/* Makes the own half. */
DPT_MUST_USE enum dpt_status dpt_box_create(struct box *box, struct dpt_err *err);
void dpt_box_destroy(struct box *box);

/* Maps the other's half; does not take `fd`. DPT_EPROTO: it is no box, or there is one already. */
DPT_MUST_USE enum dpt_status dpt_box_attach(struct box *box, int fd, struct dpt_err *err);

/* Puts a message, with message->bytes bytes of payload unless NULL. False: the ring is full. */
bool dpt_box_put(struct box *box, const struct box_message *message, const void *payload);

/* True when there is a message. */
bool dpt_box_has_mail(const struct box *box);

/* The next message (false: none), copied, so that it can be checked before it is believed. A
 * message of type `payload_type` has a payload of message->bytes bytes (at most
 * DPT_COMM_BUF_BYTES_MAX are copied to ret_payload). */
bool dpt_box_get(struct box *box, uint16_t payload_type, struct box_message *ret,
                 uint8_t ret_payload[DPT_COMM_BUF_BYTES_MAX]);

/* True when a message can be put. */
bool dpt_box_has_room(struct box *box);

/* Tells the other that the owner will sleep now (and whether it waits for room, too), or that it is
 * awake. Between the two it must look for mail, and for room, once more. */
void dpt_box_sleep(struct box *box, bool wants_room);
void dpt_box_awake(struct box *box);

/* After putting or getting: true when the other sleeps, waits for what was done, and was not woken
 * from that sleep yet; the caller does. */
bool dpt_box_must_wake(struct box *box);

/* Begins to write into what the other lent. False: it has shut it, and nothing may be written. */
bool dpt_box_write_begin(struct box *box);
void dpt_box_write_end(struct box *box);

/* Shuts what was lent to the other, for ever. */
void dpt_box_shut(struct box *box);
/* True while the other may still be writing into it. After dpt_box_shut. */
bool dpt_box_is_written(const struct box *box);

#endif
