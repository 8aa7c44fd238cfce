/* A turn of the server's loop, from one wait to the next. With a journal the records of a turn are
 * committed together at its end, and the messages that the core makes after the first of them wait
 * for that. A turn without records commits nothing, and its messages leave at once.
 *
 * If a commit fails because the disk is full or broken, no message may leave: the held ones are
 * dropped, and so are all later ones until a commit succeeds; it is tried every second. Agents then
 * train on as without a server. A dropped message does no harm, because the next one carries the
 * whole state again. */
#ifndef DPT_RENDEZVOUS_SERVER_TURN_H
#define DPT_RENDEZVOUS_SERVER_TURN_H

#include "base/world_limits.h"
#include "rendezvous/core/journal.h"

#include <zmq.h>

enum {
    DPT_TURN_FULL = 8192, /* records, or messages that wait for their commit: with so many the turn
                             ends early */
    DPT_TURN_FULL_BYTES =
        64 * 1024 * 1024, /* bytes of these messages: with so many the turn ends early */
    DPT_TURN_HELD_MAX = DPT_TURN_FULL + DPT_NODES_MAX, /* a step may answer all nodes of a run */
    DPT_TURN_RETRY_MS = 1000,                          /* after a commit that failed */
    DPT_TURN_REPORT_MS = 15000
};

struct dpt_held {
    uint64_t conn;
    zmq_msg_t frame;
};

/* Initially zeroed but for `journal`. */
struct dpt_turn {
    const struct dpt_journal *journal; /* NULL: none; borrowed */
    size_t n_records;                  /* of this turn, not durable yet */
    bool failing;                      /* the last commit failed */
    int64_t retry_ms, reported_ms;
    uint64_t n_dropped; /* messages since it fails */
    struct dpt_held *held;
    size_t n_held, held_max, held_bytes, n_released;
};
void dpt_turn_fini(struct dpt_turn *turn);

/* Takes the records of a step; to be called before its messages are sent. */
DPT_MUST_USE enum dpt_status dpt_turn_add(struct dpt_turn *turn, const struct dpt_rdzv_output *out,
                                          struct dpt_err *err);
/* True: the message may not leave yet; the turn has taken the frame. */
bool dpt_turn_hold(struct dpt_turn *turn, uint64_t conn, zmq_msg_t *frame);
/* True: the turn should end now, because it holds much. */
bool dpt_turn_is_full(const struct dpt_turn *turn);
/* Commits. A failure that may pass is logged and is DPT_OK. */
DPT_MUST_USE enum dpt_status dpt_turn_end(struct dpt_turn *turn, int64_t now_ms,
                                          struct dpt_err *err);
/* After dpt_turn_end: the next message that may leave, in the order of dpt_turn_hold; the caller
 * gets the frame. False: there is none left. */
bool dpt_turn_release(struct dpt_turn *turn, uint64_t *ret_conn, zmq_msg_t *ret_frame);

#endif
