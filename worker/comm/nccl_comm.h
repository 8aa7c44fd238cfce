/* The data plane between GPUs: one rank's NCCL communicators of a generation, beside the dpt_comm
 * of the same ranks, which stays what all agreement goes through.
 *
 * Why beside it and no third kind of link in it: NCCL moves nothing between two ranks alone. A
 * group of sends and receives is one kernel in a stream, and it matches what the peers launch at
 * the same place of theirs; a link matches transfer by transfer. Device memory is no memfd that a
 * peer maps. And what must survive a death, the small all-gather by which a step is committed, is
 * not NCCL's to carry: an abort there leaves it open who got what.
 *
 * So: gradients and weights go through here; sizes, ids, losses, flags and the commit go through
 * dpt_comm, the `control` of what follows. A death shows there at once (the end of a socket), where
 * NCCL would wait. dpt_comm_abort on the control aborts this too: its owner, one and the same
 * thread, finds out in its next poll here.
 *
 * Life: created once in the owner's thread, on the CUDA device that is current there; opened for a
 * generation, closed (orderly) or quit (after a failure), opened again. After a quit nothing writes
 * into anybody's buffers. Nothing is allocated after creation. */
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

/* Starts the watch over calls that do not return, too. `calls` and `ctx` are borrowed. timeout_ms
 * says how soon a peer is missed; a library may name more for its own work: create_ms and stop_ms
 * below are the larger of the two (nccl_calls.h). */
DPT_MUST_USE enum dpt_status dpt_nccl_comm_create(const struct dpt_nccl_calls *calls, void *ctx,
                                                  int timeout_ms, struct dpt_nccl_comm **ret,
                                                  struct dpt_err *err);
/* After close or quit; gives back what was kept for a shrink. Accepts a pointer to NULL. */
void dpt_nccl_comm_destroy(struct dpt_nccl_comm **comm);

struct dpt_nccl_comm_spec {
    struct dpt_comm *control; /* of the same ranks, two at least; borrowed until close or quit */
    uint64_t generation;
    uint8_t nonce[DPT_COMM_NONCE_BYTES];                  /* the plan's */
    int n_splits;                                         /* equal on every rank */
    struct dpt_nccl_split_of splits[DPT_NCCL_SPLITS_MAX]; /* split s is group s + 1 */
};

/* Builds the communicators, with all ranks of the control, in bounded time: create_ms for each
 * communicator, and where a shrink fails as long again, with what clearing it away takes. DPT_EPEER
 * and DPT_EABORTED as the control says (dpt_comm_suspect names the peer), DPT_EPEER also where
 * another rank failed, DPT_ETIMEOUT, DPT_EDEVICE: this rank is at fault, one at a time; when it
 * fails on one rank it fails on all, and nothing is left of it. */
DPT_MUST_USE enum dpt_status dpt_nccl_comm_open(struct dpt_nccl_comm *comm,
                                                const struct dpt_nccl_comm_spec *spec,
                                                struct dpt_err *err);

/* Posts an operation: pieces that go at once, in the group's own stream, when `event` (a
 * cudaEvent_t, recorded by the stream that made the bytes; NULL: now) has come and all that was
 * posted in the group before is done. The event is looked at when the operation starts. `peer` is a
 * rank of the run and in the group. The pieces are borrowed and the memory they name must stay as
 * it is until the operation is done. Every rank of the group posts its part of the same operations
 * in the same order, and none of those in which it has no part: what one sends in the k-th that two
 * ranks have in common the other receives in that. *ret_ticket names it. DPT_EINVAL: ill-formed;
 * DPT_EOVERFLOW: too many posted; nothing is posted then. */
DPT_MUST_USE enum dpt_status dpt_nccl_comm_post(struct dpt_nccl_comm *comm, int group,
                                                const struct dpt_nccl_op *op, uint64_t *ret_ticket,
                                                struct dpt_err *err);

/* Moves everything here and in the control. DPT_OK when the operation is done: its bytes are in
 * place and its sends are read; DPT_INPROGRESS after wait_ms (0: after one look, -1: never) or when
 * dpt_comm_wake was called on the control; else the failure, after which only quit is legal. */
DPT_MUST_USE enum dpt_status dpt_nccl_comm_poll(struct dpt_nccl_comm *comm, int group,
                                                uint64_t ticket, int wait_ms, struct dpt_err *err);

/* The same for an owner with many under way: DPT_OK as soon as any operation is done that was not
 * when this last returned so; who then looks which (dpt_nccl_comm_done). With nothing posted it
 * returns when woken, at its end, or on failure. */
DPT_MUST_USE enum dpt_status dpt_nccl_comm_poll_any(struct dpt_nccl_comm *comm, int wait_ms,
                                                    struct dpt_err *err);
/* After a poll. */
bool dpt_nccl_comm_done(const struct dpt_nccl_comm *comm, int group, uint64_t ticket);

/* Payload sent to other ranks since creation (dpt_nccl_piece_bytes_sent). */
uint64_t dpt_nccl_comm_bytes_sent(const struct dpt_nccl_comm *comm);

/* The orderly end, with all ranks: everything posted must be done. Blocks for stop_ms until all are
 * here and as long again; a peer that does not follow makes it a quit. No effect when nothing is
 * open. */
void dpt_nccl_comm_close(struct dpt_nccl_comm *comm);
/* The end after a failure or an abort, from any state; blocks for stop_ms, twice that at worst, or
 * the process is lost (nccl_guard.h). What can be brought to rest of the world's communicator is
 * kept, for the next open to shrink. */
void dpt_nccl_comm_quit(struct dpt_nccl_comm *comm);

#endif
