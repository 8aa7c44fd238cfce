/* The inside of the machine of NCCL communicators, for nccl_machine.c and nccl_stop.c. */
#ifndef DPT_WORKER_COMM_NCCL_MACHINE_STATE_H
#define DPT_WORKER_COMM_NCCL_MACHINE_STATE_H

#include "worker/comm/nccl_machine.h"

#include <pthread.h>
#include <stdatomic.h>

enum nccl_phase { PHASE_WORKING, PHASE_CLOSING, PHASE_REVOKING, PHASE_FREEING };

struct nccl_comm {
    enum dpt_nccl_state state;
    struct dpt_nccl_place place; /* of the handle; the library writes it until READY */
    struct dpt_nccl_stream *stream;
    int parent;       /* CREATING by split or shrink: index of the parent; else -1 */
    bool has_child;   /* it is the parent of a creation: only async_error and abort are legal */
    int64_t until_ms; /* deadline of CREATING and DRAINING */
};

struct dpt_nccl_machine {
    const struct dpt_nccl_calls *calls;
    void *ctx;
    struct dpt_nccl_guard *guard;
    int create_ms, revoke_ms, stop_ms;
    pthread_t owner;
    enum nccl_phase phase;
    int keep;               /* the communicator that stays REVOKED after the stop; -1: none */
    int64_t phase_until_ms; /* deadline of CLOSING and REVOKING */
    int64_t stop_until_ms;  /* deadline of REVOKING and FREEING together */
    struct dpt_err failure; /* the first failure; DPT_OK: none */
    struct nccl_comm comms[DPT_NCCL_COMMS_MAX];
};

static inline void dpt_nccl_assert_owner(const struct dpt_nccl_machine *n)
{
    DPT_ASSERT(pthread_equal(pthread_self(), n->owner));
}

/* NULL: the communicator has no handle, or not yet. */
static inline struct dpt_nccl_handle *dpt_nccl_handle_of(const struct nccl_comm *c)
{
    return atomic_load(&c->place.handle);
}

static inline int dpt_nccl_index(const struct dpt_nccl_machine *n, const struct nccl_comm *c)
{
    return (int)(c - n->comms);
}

/* The library has accepted the call: the call has succeeded, or has begun. */
static inline bool dpt_nccl_accepted(enum dpt_nccl_result result)
{
    return result == DPT_NCCL_OK || result == DPT_NCCL_INPROGRESS;
}

/* This call is under the guard, as every call is, because a driver can hang in any call. */
static inline enum dpt_nccl_result dpt_nccl_query_error(struct dpt_nccl_machine *n,
                                                        struct dpt_nccl_handle *handle)
{
    dpt_nccl_guard_enter(n->guard, "ncclCommGetAsyncError", n->calls->now_ms(n->ctx) + n->stop_ms);
    const enum dpt_nccl_result result = n->calls->async_error(n->ctx, handle);
    dpt_nccl_guard_leave(n->guard);
    return result;
}

static inline enum dpt_nccl_result dpt_nccl_query_stream(struct dpt_nccl_machine *n,
                                                         struct dpt_nccl_stream *stream)
{
    dpt_nccl_guard_enter(n->guard, "cudaStreamQuery", n->calls->now_ms(n->ctx) + n->stop_ms);
    const enum dpt_nccl_result result = n->calls->stream_query(n->ctx, stream);
    dpt_nccl_guard_leave(n->guard);
    return result;
}

/* nccl_stop.c: frees the communicator (destroy if FINALIZED, else abort) and makes it DRAINING. If
 * the library's call does not return before until_ms, the process is lost. */
void dpt_nccl_machine_free_comm(struct dpt_nccl_machine *n, struct nccl_comm *c, int64_t until_ms);
/* Destroys the idle stream of a communicator and makes the communicator FREE. */
void dpt_nccl_machine_drop_stream(struct dpt_nccl_machine *n, struct nccl_comm *c);
/* Makes a DRAINING communicator FREE if its stream is idle. */
void dpt_nccl_machine_drain(struct dpt_nccl_machine *n, struct nccl_comm *c);
/* dpt_nccl_machine_step during a close or a stop. */
enum dpt_status dpt_nccl_machine_step_end(struct dpt_nccl_machine *n);

#endif
