/* The data plane between GPUs: one rank's NCCL communicators of a generation. The ranks agree over
 * the `control`, a dpt_comm of the same ranks.
 *
 * NCCL is not a third kind of link (conn.h), for three reasons. A group of sends and receives is
 * one kernel in a stream and matches the peers' groups in order, while a link matches single
 * transfers. A peer cannot map device memory. After an NCCL abort no rank knows which rank received
 * which bytes, so NCCL cannot carry the all-gather that commits a step.
 *
 * Therefore gradients and weights use NCCL; sizes, ids, losses, flags and the commit use the
 * control. The control shows a death at once (EOF of a socket), where NCCL would wait.
 * dpt_comm_abort on the control aborts the NCCL communicators too: one thread owns both, and its
 * next poll here sees the abort.
 *
 * Life: the owner's thread creates it once, on the CUDA device that is current in this thread. The
 * owner opens it for a generation, closes it (orderly) or quits it (after a failure), and opens it
 * again. After a quit nothing writes into any buffer. No memory is allocated after creation. */
#ifndef DPT_WORKER_COMM_NCCL_COMM_H
#define DPT_WORKER_COMM_NCCL_COMM_H

#include "worker/comm/nccl_form.h"
#include "worker/comm/nccl_machine.h"
#include "worker/trace/span.h"

enum {
    DPT_NCCL_GROUPS_MAX = 1 + DPT_NCCL_SPLITS_MAX, /* group 0 is the world */
    DPT_NCCL_QUEUE_MAX = 64,                       /* operations of a group posted and not done */
    DPT_NCCL_PIECES_MAX = 2 * DPT_COMM_WORLD_MAX   /* pieces of an operation */
};

struct dpt_nccl_comm;

/* Also starts the watch over calls that do not return (nccl_guard.h). `calls` and `ctx` are
 * borrowed. timeout_ms: the silence after which a peer is lost. Below, create_ms is the larger of
 * timeout_ms and create_ms_min, and stop_ms the larger of timeout_ms and stop_ms_min
 * (nccl_calls.h). */
DPT_MUST_USE enum dpt_status dpt_nccl_comm_create(const struct dpt_nccl_calls *calls, void *ctx,
                                                  int timeout_ms, struct dpt_nccl_comm **ret,
                                                  struct dpt_err *err);
/* To be called after close or quit. Frees the communicator that was kept for a shrink, too. Accepts
 * a pointer to NULL. */
void dpt_nccl_comm_destroy(struct dpt_nccl_comm **comm);

struct dpt_nccl_comm_spec {
    struct dpt_comm *control; /* same ranks, at least two; borrowed until close or quit */
    uint64_t generation;
    uint8_t nonce[DPT_COMM_NONCE_BYTES];                  /* nonce of the plan */
    int n_splits;                                         /* equal on every rank */
    struct dpt_nccl_split_of splits[DPT_NCCL_SPLITS_MAX]; /* split s is group s + 1 */
};

/* Creates the communicators, together with all ranks of the control. This takes at most create_ms
 * per communicator; after a failed shrink it takes the time of a stop and the same time again. If
 * one rank fails, all ranks fail and free everything. DPT_EPEER: the control lost a peer
 * (dpt_comm_suspect names the peer), or another rank failed. DPT_EABORTED: the control was aborted.
 * DPT_ETIMEOUT: a creation took too long. DPT_EDEVICE: this rank is at fault; only one rank at a
 * time gets this error. */
DPT_MUST_USE enum dpt_status dpt_nccl_comm_open(struct dpt_nccl_comm *comm,
                                                const struct dpt_nccl_comm_spec *spec,
                                                struct dpt_err *err);

/* Posts an operation. It starts in the group's stream when all earlier operations of the group are
 * done and op->event has happened. The stream that made the bytes records op->event; the operation
 * reads the event when it starts. A piece's `peer` is a rank of the run that is in the group. `op`
 * is copied. Its pieces are borrowed until the operation is done, and their memory must not change
 * until then. Every rank of the group posts its part of the same operations in the same order, and
 * omits operations in which it has no part. In the k-th operation that two ranks share, the
 * receives of one match the sends of the other. *ret_ticket names the operation. DPT_EINVAL: the
 * operation is ill-formed. DPT_EOVERFLOW: too many operations are posted. After either error
 * nothing is posted. */
DPT_MUST_USE enum dpt_status dpt_nccl_comm_post(struct dpt_nccl_comm *comm, int group,
                                                const struct dpt_nccl_op *op, uint64_t *ret_ticket,
                                                struct dpt_err *err);
/* The same. Traces the operation as `span`, on the owner's thread, from its launch until it is
 * done; borrowed until then. NULL: it is not traced. */
DPT_MUST_USE enum dpt_status dpt_nccl_comm_post_traced(struct dpt_nccl_comm *comm, int group,
                                                       const struct dpt_nccl_op *op,
                                                       const struct dpt_trace_span *span,
                                                       uint64_t *ret_ticket, struct dpt_err *err);

/* Moves everything here and in the control. DPT_OK: the operation is done, its bytes have arrived
 * and its sends are read. DPT_INPROGRESS: wait_ms has passed (0: one look, -1: no limit), or
 * dpt_comm_wake was called on the control. Any other status is the failure; after that only quit is
 * legal. */
DPT_MUST_USE enum dpt_status dpt_nccl_comm_poll(struct dpt_nccl_comm *comm, int group,
                                                uint64_t ticket, int wait_ms, struct dpt_err *err);

/* Like dpt_nccl_comm_poll, but returns DPT_OK as soon as any operation was done since the last
 * DPT_OK of this function. The owner then finds the operation with dpt_nccl_comm_done. If nothing
 * is posted, it returns when woken, after wait_ms, or on failure. */
DPT_MUST_USE enum dpt_status dpt_nccl_comm_poll_any(struct dpt_nccl_comm *comm, int wait_ms,
                                                    struct dpt_err *err);
/* After a poll. */
bool dpt_nccl_comm_done(const struct dpt_nccl_comm *comm, int group, uint64_t ticket);

/* Payload sent to other ranks since creation (dpt_nccl_piece_bytes_sent). */
uint64_t dpt_nccl_comm_bytes_sent(const struct dpt_nccl_comm *comm);

/* Closes in an orderly way, together with all ranks. All posted operations must be done. Waits at
 * most stop_ms for all ranks, and then at most stop_ms for the end. If a peer does not follow, the
 * close becomes a quit. No effect if nothing is open. */
void dpt_nccl_comm_close(struct dpt_nccl_comm *comm);
/* Ends everything after a failure or an abort, in any state. Blocks for at most stop_ms, at worst
 * for twice that; if a call takes longer, the process is lost (nccl_guard.h). If the world's
 * communicator comes to rest, it is kept for a shrink in the next open. */
void dpt_nccl_comm_quit(struct dpt_nccl_comm *comm);

#endif
