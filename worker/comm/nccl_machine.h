/* The state machine of one rank's NCCL communicators: the legal calls in each state, the deadline
 * of each wait, and the ways to end. It uses the calls and the clock of a table (nccl_calls.h). It
 * starts no thread and never waits: dpt_nccl_machine_step checks everything once and returns.
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
 * A stop revokes all communicators before it frees any, except those that are LAUNCHING. In
 * LAUNCHING the library works on the host: it may connect to a peer, and waits until the peer posts
 * too. A revoke does not end that work, so the stop aborts such a communicator, before the others.
 * In RUNNING the device works. Neither state has a deadline, because a peer may compute for any
 * time; abort ends both.
 *
 * Creation takes create_ms at most. Closing and stopping take at most stop_ms each (a stop at worst
 * twice that, because each of its calls may take at least an eighth of stop_ms). Revoking may take
 * half of timeout_ms, because the agent ends the process after timeout_ms. If an abort does not
 * return or a stream does not become idle in time, memory may still be written, so the process is
 * lost (nccl_guard.h).
 *
 * The thread that created the machine owns it and makes all calls. An operation is done when,
 * before any stop, its stream is idle and the communicator has no error. A revoke or an abort ends
 * kernels early; the operations of these kernels are never done. */
#ifndef DPT_WORKER_COMM_NCCL_MACHINE_H
#define DPT_WORKER_COMM_NCCL_MACHINE_H

#include "worker/comm/nccl_calls.h"
#include "worker/comm/nccl_guard.h"

enum { DPT_NCCL_COMMS_MAX = 8 }; /* at a time, including those kept for a shrink */

enum dpt_nccl_state {
    DPT_NCCL_FREE,
    DPT_NCCL_CREATING,
    DPT_NCCL_READY,
    DPT_NCCL_LAUNCHING, /* the library puts an operation into the stream */
    DPT_NCCL_RUNNING,   /* the device runs it */
    DPT_NCCL_REVOKING,
    DPT_NCCL_REVOKED, /* quiet: it writes no memory any more; a shrink may start from it */
    DPT_NCCL_FINALIZING,
    DPT_NCCL_FINALIZED,
    DPT_NCCL_DRAINING, /* the communicator is freed, its stream is not yet idle */
    DPT_NCCL_STATE_COUNT
};

struct dpt_nccl_machine;

/* `calls`, `ctx` and `guard` are borrowed; the guard gets the name and limit of every call that may
 * not return, and its limit is the machine's stop_ms. timeout_ms: the run's. The calling thread
 * becomes the owner. */
DPT_MUST_USE enum dpt_status dpt_nccl_machine_create(const struct dpt_nccl_calls *calls, void *ctx,
                                                     struct dpt_nccl_guard *guard, int timeout_ms,
                                                     struct dpt_nccl_machine **ret,
                                                     struct dpt_err *err);
/* To be called when every communicator is FREE. Accepts a pointer to NULL. */
void dpt_nccl_machine_destroy(struct dpt_nccl_machine **nccl);

enum dpt_nccl_state dpt_nccl_state(const struct dpt_nccl_machine *nccl, int comm);

/* Begin to create communicator `comm` (0 … DPT_NCCL_COMMS_MAX - 1), which must be FREE.
 * dpt_nccl_machine_step reports when it is READY. A failure makes the machine fail; the next call
 * must be dpt_nccl_machine_stop.
 *
 *   init    All `size` ranks call it with the same id.
 *   split   All ranks of the READY `parent` call it. Ranks of one color form a communicator, in the
 *           order of `key`.
 *   shrink  All ranks of the REVOKED `parent` call it, except those in `excluded` (ascending). The
 *           parent stays until it is released or until a stop. */
DPT_MUST_USE enum dpt_status dpt_nccl_machine_init(struct dpt_nccl_machine *nccl, int comm,
                                                   int size, int rank,
                                                   const uint8_t id[DPT_NCCL_ID_BYTES],
                                                   struct dpt_err *err);
DPT_MUST_USE enum dpt_status dpt_nccl_machine_split(struct dpt_nccl_machine *nccl, int comm,
                                                    int parent, int color, int key,
                                                    struct dpt_err *err);
DPT_MUST_USE enum dpt_status dpt_nccl_machine_shrink(struct dpt_nccl_machine *nccl, int comm,
                                                     int parent, const int *excluded,
                                                     int n_excluded, struct dpt_err *err);
/* Begins to free a REVOKED communicator that is not the parent of a creation. dpt_nccl_machine_step
 * reports when it is FREE. The library may wait until other ranks of this host release theirs. */
void dpt_nccl_machine_release(struct dpt_nccl_machine *nccl, int comm);
/* True: the library can shrink and revoke; only a revoked communicator can be shrunk. */
bool dpt_nccl_machine_can_shrink(const struct dpt_nccl_machine *nccl);

/* An operation. Its pieces start together in the communicator's stream, after `event` (a
 * cudaEvent_t; NULL: at once). */
struct dpt_nccl_op {
    const struct dpt_nccl_piece *pieces;
    int n_pieces;
    void *event;
};

/* The bytes that a rank sends for the piece in a communicator of `size` ranks. The library's
 * collectives count as rings. */
size_t dpt_nccl_piece_bytes_sent(const struct dpt_nccl_piece *piece, int size);

/* Launches one operation on a READY communicator, which is READY again when the operation is done.
 * DPT_EINVAL: the communicator is not READY (it has an operation); the library was not called. */
DPT_MUST_USE enum dpt_status dpt_nccl_machine_launch(struct dpt_nccl_machine *nccl, int comm,
                                                     const struct dpt_nccl_op *op,
                                                     struct dpt_err *err);

/* Checks every communicator once and takes the transitions that are due. Never waits.
 * DPT_INPROGRESS: a creation, an operation, a close or a stop is under way. DPT_OK: none is. While
 * WORKING it fails with DPT_ETIMEOUT (a creation took too long), DPT_EPEER (the library lost a
 * peer, or a communicator that was READY), DPT_EDEVICE (the device of this process) or DPT_EIO (a
 * creation failed here or on a peer). The failure stays until dpt_nccl_machine_stop. During a close
 * or a stop this call never fails. */
DPT_MUST_USE enum dpt_status dpt_nccl_machine_step(struct dpt_nccl_machine *nccl,
                                                   struct dpt_err *err);

/* Begins to stop everything, in any state. The caller then calls dpt_nccl_machine_step until
 * DPT_OK. `keep`: a communicator that stays REVOKED for a shrink if it comes to rest; -1: all are
 * freed. A second stop with another `keep` keeps none. */
void dpt_nccl_machine_stop(struct dpt_nccl_machine *nccl, int keep);

/* Begins the orderly end: flushes READY communicators together with their peers and frees them, and
 * frees REVOKED ones. The caller then calls dpt_nccl_machine_step until DPT_OK. The close becomes a
 * stop if a creation or an operation is under way, if something has failed, or if a peer does not
 * follow in time. */
void dpt_nccl_machine_close(struct dpt_nccl_machine *nccl);

#endif
