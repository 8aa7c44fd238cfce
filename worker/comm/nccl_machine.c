/* The state machine of NCCL communicators (nccl_machine.h): creation, operations, failures.
 * nccl_stop.c has the ends. */
#include "worker/comm/nccl_machine_state.h"

#include <stdlib.h>

enum dpt_status dpt_nccl_machine_create(const struct dpt_nccl_calls *calls, void *ctx,
                                        struct dpt_nccl_guard *guard, int timeout_ms,
                                        struct dpt_nccl_machine **ret, struct dpt_err *err)
{
    DPT_ASSERT(timeout_ms > 0 && guard->limit_ms >= timeout_ms);
    struct dpt_nccl_machine *n = calloc(1, sizeof *n);
    if (n == NULL)
        return dpt_fail_nomem(err, "the GPU's communicators");
    n->calls = calls;
    n->ctx = ctx;
    n->guard = guard;
    n->revoke_ms = timeout_ms / 2;
    n->stop_ms = guard->limit_ms;
    n->create_ms = n->stop_ms > calls->create_ms_min ? n->stop_ms : calls->create_ms_min;
    n->owner = pthread_self();
    n->phase = PHASE_WORKING;
    for (int i = 0; i < DPT_NCCL_COMMS_MAX; i++)
        n->comms[i].parent = -1;
    *ret = n;
    return DPT_OK;
}

void dpt_nccl_machine_destroy(struct dpt_nccl_machine **nccl_p)
{
    struct dpt_nccl_machine *n = *nccl_p;
    *nccl_p = NULL;
    if (n == NULL)
        return;
    DPT_ASSERT(n->phase == PHASE_WORKING);
    for (int i = 0; i < DPT_NCCL_COMMS_MAX; i++)
        DPT_ASSERT(n->comms[i].state == DPT_NCCL_FREE);
    free(n);
}

enum dpt_nccl_state dpt_nccl_state(const struct dpt_nccl_machine *n, int comm)
{
    return n->comms[comm].state;
}

bool dpt_nccl_machine_can_shrink(const struct dpt_nccl_machine *n)
{
    return n->calls->shrink != NULL && n->calls->revoke != NULL;
}

/* The library often reports a peer's death as a failed system call or an internal error. On a
 * communicator that was READY such an error counts as a peer's death, so that the survivors go on.
 * If this process is at fault after all, its next creation fails. During a creation such an error
 * may be a peer's death or a fault of this process. */
static enum dpt_status status_of(const struct nccl_comm *c, enum dpt_nccl_result result)
{
    switch (result) {
    case DPT_NCCL_EUSAGE:
        return DPT_EINVAL;
    case DPT_NCCL_EREMOTE:
        return DPT_EPEER;
    case DPT_NCCL_ESYSTEM:
    case DPT_NCCL_EINTERNAL:
        return c->state == DPT_NCCL_READY || c->state == DPT_NCCL_LAUNCHING ||
                       c->state == DPT_NCCL_RUNNING
                   ? DPT_EPEER
                   : DPT_EIO;
    default:
        return DPT_EDEVICE;
    }
}

static enum dpt_status machine_fail(struct dpt_nccl_machine *n, const struct nccl_comm *c,
                                    const char *what, enum dpt_nccl_result result,
                                    struct dpt_err *err)
{
    (void)dpt_fail(&n->failure, status_of(c, result), "%s of the GPU's communicator %d: %s", what,
                   dpt_nccl_index(n, c), n->calls->last_error(n->ctx, dpt_nccl_handle_of(c)));
    return dpt_pass(err, &n->failure);
}

static enum dpt_status check_working(struct dpt_nccl_machine *n, struct dpt_err *err)
{
    dpt_nccl_assert_owner(n);
    DPT_ASSERT(n->phase == PHASE_WORKING);
    return n->failure.status == DPT_OK ? DPT_OK : dpt_pass(err, &n->failure);
}

static int64_t call_limit(const struct dpt_nccl_machine *n)
{
    return n->calls->now_ms(n->ctx) + n->stop_ms;
}

/* Creation. */

/* Prepares a creation and enters the guard. The caller next makes the library's call `what` and
 * then creation_returned, which leaves the guard. */
static enum dpt_status begin_creation(struct dpt_nccl_machine *n, int comm, int parent,
                                      const char *what, struct dpt_err *err)
{
    DPT_TRY(check_working(n, err));
    DPT_ASSERT(comm >= 0 && comm < DPT_NCCL_COMMS_MAX && comm != parent);
    struct nccl_comm *c = &n->comms[comm];
    DPT_ASSERT(c->state == DPT_NCCL_FREE);
    c->parent = parent;
    c->has_child = false;
    atomic_store(&c->place.handle, NULL);
    dpt_nccl_guard_enter(n->guard, "cudaStreamCreate", call_limit(n));
    const enum dpt_nccl_result result = n->calls->stream_create(n->ctx, &c->stream);
    dpt_nccl_guard_leave(n->guard);
    if (result != DPT_NCCL_OK)
        return machine_fail(n, c, "the stream", result, err);
    c->until_ms = n->calls->now_ms(n->ctx) + n->create_ms;
    c->state = DPT_NCCL_CREATING;
    dpt_nccl_guard_enter(n->guard, what, c->until_ms);
    return DPT_OK;
}

/* To be called when the library's call has returned. If the library refused it, the communicator
 * has no handle, and its stream is destroyed here; or it has a handle, and only a stop may free
 * both. */
static enum dpt_status creation_returned(struct dpt_nccl_machine *n, struct nccl_comm *c,
                                         enum dpt_nccl_result result, struct dpt_err *err)
{
    dpt_nccl_guard_leave(n->guard);
    if (dpt_nccl_accepted(result)) {
        if (c->parent >= 0)
            n->comms[c->parent].has_child = true;
        return DPT_OK;
    }
    const enum dpt_status status = machine_fail(n, c, "the creation", result, err);
    if (dpt_nccl_handle_of(c) == NULL)
        dpt_nccl_machine_drop_stream(n, c);
    return status;
}

enum dpt_status dpt_nccl_machine_init(struct dpt_nccl_machine *n, int comm, int size, int rank,
                                      const uint8_t id[DPT_NCCL_ID_BYTES], struct dpt_err *err)
{
    DPT_ASSERT(size > 0 && rank >= 0 && rank < size);
    DPT_TRY(begin_creation(n, comm, -1, "ncclCommInitRankConfig", err));
    struct nccl_comm *c = &n->comms[comm];
    return creation_returned(n, c, n->calls->init(n->ctx, size, id, rank, &c->place), err);
}

enum dpt_status dpt_nccl_machine_split(struct dpt_nccl_machine *n, int comm, int parent, int color,
                                       int key, struct dpt_err *err)
{
    const struct nccl_comm *p = &n->comms[parent];
    DPT_ASSERT(p->state == DPT_NCCL_READY && !p->has_child);
    DPT_TRY(begin_creation(n, comm, parent, "ncclCommSplit", err));
    struct nccl_comm *c = &n->comms[comm];
    return creation_returned(
        n, c, n->calls->split(n->ctx, dpt_nccl_handle_of(p), color, key, &c->place), err);
}

enum dpt_status dpt_nccl_machine_shrink(struct dpt_nccl_machine *n, int comm, int parent,
                                        const int *excluded, int n_excluded, struct dpt_err *err)
{
    const struct nccl_comm *p = &n->comms[parent];
    DPT_ASSERT(p->state == DPT_NCCL_REVOKED && !p->has_child && n_excluded > 0);
    DPT_ASSERT(dpt_nccl_machine_can_shrink(n));
    DPT_TRY(begin_creation(n, comm, parent, "ncclCommShrink", err));
    struct nccl_comm *c = &n->comms[comm];
    return creation_returned(
        n, c, n->calls->shrink(n->ctx, dpt_nccl_handle_of(p), excluded, n_excluded, &c->place),
        err);
}

/* Returns the state of a creation. At first the parent reports that state, later the child does. */
static enum dpt_nccl_result look_at_creation(struct dpt_nccl_machine *n, struct nccl_comm *c)
{
    if (c->parent >= 0) {
        const enum dpt_nccl_result result =
            dpt_nccl_query_error(n, dpt_nccl_handle_of(&n->comms[c->parent]));
        if (result != DPT_NCCL_OK)
            return result;
    }
    struct dpt_nccl_handle *handle = dpt_nccl_handle_of(c);
    return handle != NULL ? dpt_nccl_query_error(n, handle) : DPT_NCCL_EINTERNAL;
}

static enum dpt_status step_creating(struct dpt_nccl_machine *n, struct nccl_comm *c,
                                     struct dpt_err *err)
{
    const enum dpt_nccl_result result = look_at_creation(n, c);
    if (result == DPT_NCCL_INPROGRESS && n->calls->now_ms(n->ctx) < c->until_ms)
        return DPT_OK;
    if (result == DPT_NCCL_INPROGRESS) {
        (void)dpt_fail(&n->failure, DPT_ETIMEOUT,
                       "the GPU's communicator %d was not created within %d ms: a rank of it "
                       "did not start its creation, or cannot reach the others' network",
                       dpt_nccl_index(n, c), n->create_ms);
        return dpt_pass(err, &n->failure);
    }
    if (result != DPT_NCCL_OK)
        return machine_fail(n, c, "the creation", result, err);
    c->state = DPT_NCCL_READY;
    if (c->parent >= 0) {
        n->comms[c->parent].has_child = false;
        c->parent = -1;
    }
    return DPT_OK;
}

void dpt_nccl_machine_release(struct dpt_nccl_machine *n, int comm)
{
    struct nccl_comm *c = &n->comms[comm];
    dpt_nccl_assert_owner(n);
    DPT_ASSERT(n->phase == PHASE_WORKING && c->state == DPT_NCCL_REVOKED && !c->has_child);
    dpt_nccl_machine_free_comm(n, c, call_limit(n));
}

/* Operations. */

static enum dpt_nccl_result post_group(struct dpt_nccl_machine *n, const struct nccl_comm *c,
                                       const struct dpt_nccl_op *op)
{
    enum dpt_nccl_result result = DPT_NCCL_OK;
    if (op->event != NULL)
        result = n->calls->stream_after(n->ctx, c->stream, op->event);
    if (result == DPT_NCCL_OK)
        result = n->calls->group_start(n->ctx);
    if (result != DPT_NCCL_OK) /* these two never return INPROGRESS */
        return dpt_nccl_accepted(result) ? DPT_NCCL_EINTERNAL : result;
    for (int i = 0; i < op->n_pieces && dpt_nccl_accepted(result); i++)
        result = n->calls->post(n->ctx, dpt_nccl_handle_of(c), &op->pieces[i], c->stream);
    /* A group that was begun must be ended, also after a failure. */
    const enum dpt_nccl_result ended = n->calls->group_end(n->ctx);
    return dpt_nccl_accepted(result) ? ended : result;
}

enum dpt_status dpt_nccl_machine_launch(struct dpt_nccl_machine *n, int comm,
                                        const struct dpt_nccl_op *op, struct dpt_err *err)
{
    DPT_TRY(check_working(n, err));
    struct nccl_comm *c = &n->comms[comm];
    if (c->state != DPT_NCCL_READY || c->has_child)
        return dpt_fail(err, DPT_EINVAL,
                        "an operation on the GPU's communicator %d, which is not free for one",
                        comm);
    dpt_nccl_guard_enter(n->guard, "the launch of a group of NCCL's", call_limit(n));
    const enum dpt_nccl_result result = post_group(n, c, op);
    dpt_nccl_guard_leave(n->guard);
    c->state = DPT_NCCL_LAUNCHING;
    return dpt_nccl_accepted(result) ? DPT_OK : machine_fail(n, c, "an operation", result, err);
}

static enum dpt_status step_operation(struct dpt_nccl_machine *n, struct nccl_comm *c,
                                      struct dpt_err *err)
{
    /* The stream is checked before the error, so that an error between the two checks is seen.
       While the library is launching, an idle stream means nothing. */
    enum dpt_nccl_result device = DPT_NCCL_INPROGRESS;
    if (c->state == DPT_NCCL_RUNNING)
        device = dpt_nccl_query_stream(n, c->stream);
    const enum dpt_nccl_result result = dpt_nccl_query_error(n, dpt_nccl_handle_of(c));
    if (!dpt_nccl_accepted(result))
        return machine_fail(n, c, "an operation", result, err);
    if (!dpt_nccl_accepted(device))
        return machine_fail(n, c, "the stream", device, err);
    if (result == DPT_NCCL_OK && c->state == DPT_NCCL_LAUNCHING)
        c->state = DPT_NCCL_RUNNING;
    else if (result == DPT_NCCL_OK && device == DPT_NCCL_OK)
        c->state = DPT_NCCL_READY;
    return DPT_OK;
}

static enum dpt_status step_ready(struct dpt_nccl_machine *n, struct nccl_comm *c,
                                  struct dpt_err *err)
{
    if (c->has_child) /* async_error reports the creation instead */
        return DPT_OK;
    const enum dpt_nccl_result result = dpt_nccl_query_error(n, dpt_nccl_handle_of(c));
    return dpt_nccl_accepted(result) ? DPT_OK : machine_fail(n, c, "the state", result, err);
}

static enum dpt_status step_working(struct dpt_nccl_machine *n, struct dpt_err *err)
{
    bool under_way = false;
    DPT_TRY(check_working(n, err));
    for (int i = 0; i < DPT_NCCL_COMMS_MAX; i++) {
        struct nccl_comm *c = &n->comms[i];
        switch (c->state) {
        case DPT_NCCL_CREATING:
            DPT_TRY(step_creating(n, c, err));
            break;
        case DPT_NCCL_READY:
            DPT_TRY(step_ready(n, c, err));
            break;
        case DPT_NCCL_LAUNCHING:
        case DPT_NCCL_RUNNING:
            DPT_TRY(step_operation(n, c, err));
            break;
        case DPT_NCCL_DRAINING:
            dpt_nccl_machine_drain(n, c);
            break;
        default:
            break;
        }
    }
    for (int i = 0; i < DPT_NCCL_COMMS_MAX; i++) {
        const enum dpt_nccl_state state = n->comms[i].state;
        under_way |= state != DPT_NCCL_FREE && state != DPT_NCCL_READY && state != DPT_NCCL_REVOKED;
    }
    return under_way ? DPT_INPROGRESS : DPT_OK;
}

enum dpt_status dpt_nccl_machine_step(struct dpt_nccl_machine *n, struct dpt_err *err)
{
    dpt_nccl_assert_owner(n);
    return n->phase == PHASE_WORKING ? step_working(n, err) : dpt_nccl_machine_step_end(n);
}
