/* The data plane between GPUs: one rank's NCCL communicators of a generation. A dpt_comm of the
 * same ranks, the `control`, carries all agreement.
 *
 * NCCL is no third kind of link, for three reasons. A group of sends and receives is one kernel in
 * a stream and matches the peers' groups in order, while a link matches single transfers. A peer
 * cannot map device memory. After an NCCL abort it is unknown which rank received which bytes, so
 * NCCL cannot carry the all-gather that commits a step.
 *
 * Therefore gradients and weights use NCCL; sizes, ids, losses, flags and the commit use the
 * control. A death shows in the control at once (EOF of a socket), where NCCL would wait.
 * dpt_comm_abort on the control aborts this too: the owner, one thread for both, sees the abort in
 * its next poll here.
 *
 * Life: created once in the owner's thread, on the CUDA device that is current there; opened for a
 * generation, closed (orderly) or quit (after a failure), opened again. After a quit nothing writes
 * into any buffer. Nothing is allocated after creation. */
#ifndef DPT_WORKER_COMM_NCCL_COMM_H
#define DPT_WORKER_COMM_NCCL_COMM_H

#include "worker/comm/nccl_form.h"
#include "worker/comm/nccl_machine.h"

enum {
    DPT_NCCL_GROUPS_MAX = 1 + DPT_NCCL_SPLITS_MAX, /* group 0 is the world */
    DPT_NCCL_QUEUE_MAX = 64,                       /* operations posted and not done, a group */
    DPT_NCCL_PIECES_MAX = 2 * DPT_COMM_WORLD_MAX   /* an operation */
};

struct dpt_nccl_comm;

/* Also starts the watch over calls that do not return. `calls` and `ctx` are borrowed. timeout_ms:
 * the silence after which a peer is lost. create_ms and stop_ms below are the larger of timeout_ms
 * and the library's minimum (nccl_calls.h). */
DPT_MUST_USE enum dpt_status dpt_nccl_comm_create(const struct dpt_nccl_calls *calls, void *ctx,
                                                  int timeout_ms, struct dpt_nccl_comm **ret,
                                                  struct dpt_err *err);
/* After close or quit; frees the communicator kept for a shrink. Accepts a pointer to NULL. */
void dpt_nccl_comm_destroy(struct dpt_nccl_comm **comm);

struct dpt_nccl_comm_spec {
    struct dpt_comm *control; /* of the same ranks, two at least; borrowed until close or quit */
    uint64_t generation;
    uint8_t nonce[DPT_COMM_NONCE_BYTES];                  /* the plan's */
    int n_splits;                                         /* equal on every rank */
    struct dpt_nccl_split_of splits[DPT_NCCL_SPLITS_MAX]; /* split s is group s + 1 */
};

/* Creates the communicators, together with all ranks of the control, in bounded time: create_ms per
 * communicator; after a failed shrink the stop and the same time again. DPT_EPEER and DPT_EABORTED:
 * the control's (dpt_comm_suspect names the peer); DPT_EPEER also when another rank failed.
 * DPT_ETIMEOUT. DPT_EDEVICE: this rank is at fault; one rank at a time gets this. A failure on one
 * rank is a failure on all, and everything is freed. */
DPT_MUST_USE enum dpt_status dpt_nccl_comm_open(struct dpt_nccl_comm *comm,
                                                const struct dpt_nccl_comm_spec *spec,
                                                struct dpt_err *err);

/* Posts an operation, which starts in the group's stream after all earlier operations of the group
 * are done and op->event (recorded by the stream that made the bytes) has happened; the event is
 * read when the operation starts. A piece's `peer` is a rank of the run that is in the group. `op`
 * is copied; its pieces are borrowed, and their memory must not change, until it is done. Every
 * rank of the group posts its part of the same operations in the same order and omits operations
 * without a part. In the k-th operation that two ranks share, the receives of one match the sends
 * of the other. *ret_ticket names the operation. DPT_EINVAL: ill-formed; DPT_EOVERFLOW: too many
 * posted; nothing is posted then. */
DPT_MUST_USE enum dpt_status dpt_nccl_comm_post(struct dpt_nccl_comm *comm, int group,
                                                const struct dpt_nccl_op *op, uint64_t *ret_ticket,
                                                struct dpt_err *err);

/* Moves everything here and in the control. DPT_OK: the operation is done, its bytes have arrived
 * and its sends are read. DPT_INPROGRESS: wait_ms has passed (0: one look, -1: no limit), or
 * dpt_comm_wake was called on the control. Else the failure, after which only quit is legal. */
DPT_MUST_USE enum dpt_status dpt_nccl_comm_poll(struct dpt_nccl_comm *comm, int group,
                                                uint64_t ticket, int wait_ms, struct dpt_err *err);

/* The same, but DPT_OK as soon as any operation is done since the last DPT_OK of this function; the
 * owner then finds out which (dpt_nccl_comm_done). With nothing posted: returns when woken, after
 * wait_ms, or on failure. */
DPT_MUST_USE enum dpt_status dpt_nccl_comm_poll_any(struct dpt_nccl_comm *comm, int wait_ms,
                                                    struct dpt_err *err);
/* After a poll. */
bool dpt_nccl_comm_done(const struct dpt_nccl_comm *comm, int group, uint64_t ticket);

/* Payload sent to other ranks since creation (dpt_nccl_piece_bytes_sent). */
uint64_t dpt_nccl_comm_bytes_sent(const struct dpt_nccl_comm *comm);

/* The orderly end, together with all ranks; everything posted must be done. Waits stop_ms at most
 * for all ranks, and stop_ms at most for the end. A peer that does not follow makes it a quit. No
 * effect when nothing is open. */
void dpt_nccl_comm_close(struct dpt_nccl_comm *comm);
/* The end after a failure or an abort, from any state. Blocks for stop_ms, or twice that at worst,
 * or the process is lost (nccl_guard.h). The world's communicator is kept for a shrink in the next
 * open if it comes to rest. */
void dpt_nccl_comm_quit(struct dpt_nccl_comm *comm);

#endif
