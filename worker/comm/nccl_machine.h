/* The life of the NCCL communicators of one rank: which call may be made when, until when each wait
 * lasts, and how everything ends. Logic over a table of calls (nccl_calls.h) and the clock in it;
 * it starts no thread and never waits: dpt_nccl_step looks and moves on.
 *
 * One communicator:
 *
 *   FREE ─init, split, shrink─► CREATING ─► READY ─launch─► LAUNCHING ─► RUNNING ─► READY
 *                                  │          │                 │           │
 *                                  │          ├────── stop ─────┴───────────┘
 *                                  │          ▼
 *                                  │       REVOKING ─quiet─► REVOKED ─shrink─► (another CREATING)
 *                                  │          │ refused, late   │
 *                                  └─ abort ──┴─────────────────┴──► DRAINING ─stream idle─► FREE
 *   READY ─close─► FINALIZING ─all─► FINALIZED ─destroy─► DRAINING
 *
 * All of them together:
 *
 *   WORKING ─close─► CLOSING ─all finalized─► FREEING ─► WORKING
 *      │               │ error, late
 *      └─────stop──────┴─► REVOKING ─all quiet, or half the time─► FREEING ─► WORKING
 *
 * So all are revoked before one is freed, but for one that is LAUNCHING: that is the library's own
 * work (it may connect to the peer, and waits until that posts too), which a revoke leaves under
 * way, so it is aborted, and first. RUNNING is the device's. Both end by abort, not by time:
 * a peer may compute as long as it likes. Creating takes create_ms at most, closing and stopping
 * stop_ms each (a stop at worst twice that: each of its calls has an eighth at least), of which
 * half of timeout_ms is for revoking: after a whole one the agent would end the process. What the
 * library does not give back by then (an abort that does not return, a stream that does not get
 * idle) cannot be left alone, since it may write memory: the process is lost (nccl_guard.h).
 *
 * The thread that made it owns it and calls everything here. An operation counts as done
 * only when its stream is idle and the communicator has no error, before any stop: a revoke or an
 * abort ends kernels early, and nothing that ends so is ever called done.
 */
#ifndef DPT_WORKER_COMM_NCCL_MACHINE_H
#define DPT_WORKER_COMM_NCCL_MACHINE_H

#include "worker/comm/nccl_calls.h"
#include "worker/comm/nccl_guard.h"

enum { DPT_NCCL_COMMS_MAX = 8 }; /* at a time, with those kept for a shrink */

enum dpt_nccl_state {
    DPT_NCCL_FREE,
    DPT_NCCL_CREATING,
    DPT_NCCL_READY,
    DPT_NCCL_LAUNCHING, /* an operation is being put into the stream */
    DPT_NCCL_RUNNING,   /* it is there */
    DPT_NCCL_REVOKING,
    DPT_NCCL_REVOKED, /* quiet: nothing of it writes any more; a shrink may start from it */
    DPT_NCCL_FINALIZING,
    DPT_NCCL_FINALIZED,
    DPT_NCCL_DRAINING, /* the communicator is gone, its stream not yet idle */
    DPT_NCCL_STATE_COUNT
};

struct dpt_nccl;

/* `calls`, `ctx` and `guard` are borrowed; the guard gets the name and limit of every call that may
 * not return, and its limit is the machine's stop_ms. timeout_ms: the run's. The calling thread
 * becomes the owner. */
DPT_MUST_USE enum dpt_status dpt_nccl_create(const struct dpt_nccl_calls *calls, void *ctx,
                                             struct dpt_nccl_guard *guard, int timeout_ms,
                                             struct dpt_nccl **ret, struct dpt_err *err);
/* When every communicator is FREE. Accepts a pointer to NULL. */
void dpt_nccl_destroy(struct dpt_nccl **nccl);

enum dpt_nccl_state dpt_nccl_state(const struct dpt_nccl *nccl, int comm);

/* Begins to create communicator `comm` (0 … DPT_NCCL_COMMS_MAX - 1, FREE); dpt_nccl_step tells when
 * it is READY. A failure is the machine's, and stop follows.
 * init: rank of size, all with the same id. split: of a READY one, by all its ranks; those of one
 * color go together, in the order of `key`. shrink: of a REVOKED one, without the ranks in
 * `excluded` (ascending), by all others; the old one stays until it is released, or a stop. */
DPT_MUST_USE enum dpt_status dpt_nccl_init(struct dpt_nccl *nccl, int comm, int size, int rank,
                                           const uint8_t id[DPT_NCCL_ID_BYTES],
                                           struct dpt_err *err);
DPT_MUST_USE enum dpt_status dpt_nccl_split(struct dpt_nccl *nccl, int comm, int parent, int color,
                                            int key, struct dpt_err *err);
DPT_MUST_USE enum dpt_status dpt_nccl_shrink(struct dpt_nccl *nccl, int comm, int parent,
                                             const int *excluded, int n_excluded,
                                             struct dpt_err *err);
/* Frees a REVOKED one, from which nothing is being made; dpt_nccl_step tells when it is FREE. May
 * wait for others of this host who release theirs. */
void dpt_nccl_release(struct dpt_nccl *nccl, int comm);
/* True: the library can shrink, and revoke, without which nothing is left to shrink. */
bool dpt_nccl_can_shrink(const struct dpt_nccl *nccl);

/* Pieces that start together, in the communicator's stream, after `event` (a cudaEvent_t; NULL: at
 * once). */
struct dpt_nccl_op {
    const struct dpt_nccl_piece *pieces;
    int n_pieces;
    void *event;
};

/* Bytes that a rank sends for the piece in a communicator of `size`. For the library's collectives:
 * the bytes of a ring. */
size_t dpt_nccl_piece_bytes_sent(const struct dpt_nccl_piece *piece, int size);

/* Launches one operation on a READY communicator, which is READY again when the operation is done.
 * DPT_EINVAL: it is not READY (it has an operation), nothing was called. */
DPT_MUST_USE enum dpt_status dpt_nccl_launch(struct dpt_nccl *nccl, int comm,
                                             const struct dpt_nccl_op *op, struct dpt_err *err);

/* Looks at everything and moves it on; never waits. DPT_INPROGRESS: something is being created, in
 * operation or ending. DPT_OK: nothing is. While working it fails with DPT_ETIMEOUT (creation),
 * DPT_EPEER (the library lost a peer, or a communicator that was READY), DPT_EDEVICE (this
 * process's own trouble) or DPT_EIO (creation: its own, or a peer's); that holds until
 * dpt_nccl_stop, after which it fails no more. */
DPT_MUST_USE enum dpt_status dpt_nccl_step(struct dpt_nccl *nccl, struct dpt_err *err);

/* Begins to stop everything, from any state; then dpt_nccl_step until DPT_OK. `keep`: this
 * communicator, if it could be brought to rest, stays as REVOKED, to be shrunk; -1: all are freed.
 * Again while stopping: what was kept may only be given up. */
void dpt_nccl_stop(struct dpt_nccl *nccl, int keep);

/* Begins the orderly end: what is READY is flushed together with its peers and freed, what is
 * REVOKED freed; then dpt_nccl_step until DPT_OK. Where something is being created or in operation,
 * or has failed, or when a peer does not follow in time, it is a stop. */
void dpt_nccl_close(struct dpt_nccl *nccl);

#endif
