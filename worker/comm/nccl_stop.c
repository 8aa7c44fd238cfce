/* The two ways to end NCCL communicators (nccl_machine.h): an orderly close; or a stop, which
 * revokes all communicators and then aborts them. */
#include "base/log.h"
#include "worker/comm/nccl_machine_state.h"

static int64_t machine_now_ms(const struct dpt_nccl_machine *n)
{
    return n->calls->now_ms(n->ctx);
}

/* The deadline of a call that stops or frees: the end of the stop, but at least an eighth of
 * stop_ms from now, which is the watchdog's period, so that every call has some time. */
static int64_t end_limit(const struct dpt_nccl_machine *n)
{
    const int64_t least = machine_now_ms(n) + n->stop_ms / 8;
    return n->stop_until_ms > least ? n->stop_until_ms : least;
}

static bool any_in_state(const struct dpt_nccl_machine *n, enum dpt_nccl_state state)
{
    for (int i = 0; i < DPT_NCCL_COMMS_MAX; i++)
        if (n->comms[i].state == state)
            return true;
    return false;
}

void dpt_nccl_machine_free_comm(struct dpt_nccl_machine *n, struct nccl_comm *c, int64_t until_ms)
{
    struct dpt_nccl_handle *handle = dpt_nccl_handle_of(c);
    if (handle != NULL) {
        const bool destroy = c->state == DPT_NCCL_FINALIZED;
        dpt_nccl_guard_enter(n->guard, destroy ? "ncclCommDestroy" : "ncclCommAbort", until_ms);
        const enum dpt_nccl_result result =
            destroy ? n->calls->destroy(n->ctx, handle) : n->calls->abort(n->ctx, handle);
        dpt_nccl_guard_leave(n->guard);
        if (result != DPT_NCCL_OK) /* the handle is freed anyway */
            dpt_log(DPT_LOG_DEBUG, "the end of a communicator of the GPU: %s",
                    n->calls->last_error(n->ctx, NULL));
    }
    atomic_store(&c->place.handle, NULL);
    c->has_child = false;
    c->parent = -1;
    c->until_ms = until_ms;
    c->state = DPT_NCCL_DRAINING;
}

void dpt_nccl_machine_drop_stream(struct dpt_nccl_machine *n, struct nccl_comm *c)
{
    dpt_nccl_guard_enter(n->guard, "cudaStreamDestroy", machine_now_ms(n) + n->stop_ms);
    n->calls->stream_destroy(n->ctx, c->stream);
    dpt_nccl_guard_leave(n->guard);
    c->stream = NULL;
    c->parent = -1;
    c->state = DPT_NCCL_FREE;
}

void dpt_nccl_machine_drain(struct dpt_nccl_machine *n, struct nccl_comm *c)
{
    const enum dpt_nccl_result result = dpt_nccl_query_stream(n, c->stream);
    if (result == DPT_NCCL_INPROGRESS) {
        if (machine_now_ms(n) > c->until_ms)
            dpt_nccl_guard_lost(n->guard, "a kernel of an aborted communicator");
        return;
    }
    /* After an error of the device nothing runs on it, and the next use of the device reports the
     * error. */
    dpt_nccl_machine_drop_stream(n, c);
}

/* The stop. */

/* A LAUNCHING communicator is not revoked: NCCL's revoke does not end its work, NCCL's abort
 * does. */
static bool may_revoke(const struct dpt_nccl_machine *n, const struct nccl_comm *c)
{
    return n->calls->revoke != NULL && !c->has_child &&
           (c->state == DPT_NCCL_READY || c->state == DPT_NCCL_RUNNING);
}

static void revoke_one(struct dpt_nccl_machine *n, struct nccl_comm *c)
{
    dpt_nccl_guard_enter(n->guard, "ncclCommRevoke", end_limit(n));
    const enum dpt_nccl_result result = n->calls->revoke(n->ctx, dpt_nccl_handle_of(c));
    dpt_nccl_guard_leave(n->guard);
    if (dpt_nccl_accepted(result))
        c->state = DPT_NCCL_REVOKING;
    else
        dpt_log(DPT_LOG_DEBUG, "a communicator of the GPU is aborted as it is, not revoked: %s",
                n->calls->last_error(n->ctx, dpt_nccl_handle_of(c)));
}

void dpt_nccl_machine_stop(struct dpt_nccl_machine *n, int keep)
{
    dpt_nccl_assert_owner(n);
    if (n->phase == PHASE_REVOKING || n->phase == PHASE_FREEING) {
        n->keep = n->keep == keep ? keep : -1;
        return;
    }
    const int64_t now = machine_now_ms(n);
    n->keep = keep;
    n->phase = PHASE_REVOKING;
    n->phase_until_ms = now + n->revoke_ms;
    n->stop_until_ms = now + n->stop_ms;
    for (int i = 0; i < DPT_NCCL_COMMS_MAX; i++) {
        struct nccl_comm *c = &n->comms[i];
        if (may_revoke(n, c))
            revoke_one(n, c);
    }
}

static void step_revoking(struct dpt_nccl_machine *n)
{
    const bool late = machine_now_ms(n) >= n->phase_until_ms;
    for (int i = 0; i < DPT_NCCL_COMMS_MAX; i++) {
        struct nccl_comm *c = &n->comms[i];
        if (c->state != DPT_NCCL_REVOKING)
            continue;
        const enum dpt_nccl_result result = dpt_nccl_query_error(n, dpt_nccl_handle_of(c));
        const enum dpt_nccl_result device = dpt_nccl_query_stream(n, c->stream);
        if (result == DPT_NCCL_OK && device == DPT_NCCL_OK)
            c->state = DPT_NCCL_REVOKED;
        else if (late || !dpt_nccl_accepted(result) || !dpt_nccl_accepted(device))
            c->state = DPT_NCCL_RUNNING; /* it did not come to rest, so abort must end it */
    }
    if (!any_in_state(n, DPT_NCCL_REVOKING))
        n->phase = PHASE_FREEING;
}

static bool is_kept(const struct dpt_nccl_machine *n, const struct nccl_comm *c)
{
    return c->state == DPT_NCCL_REVOKED && !c->has_child && dpt_nccl_index(n, c) == n->keep;
}

/* The order of freeing. Busy communicators come first, because the end of another communicator may
 * wait for them. The parent of a creation comes before the child: the parent's abort ends the
 * creation, and only then is it known whether the child has a handle. */
enum turn { TURN_BUSY, TURN_AT_REST, TURN_CHILDREN, TURN_COUNT };

static enum turn freeing_turn_of(const struct nccl_comm *c)
{
    if (c->state == DPT_NCCL_CREATING && c->parent >= 0)
        return TURN_CHILDREN;
    return c->state == DPT_NCCL_REVOKED || c->state == DPT_NCCL_FINALIZED ? TURN_AT_REST
                                                                          : TURN_BUSY;
}

static void free_comms_of_turn(struct dpt_nccl_machine *n, enum turn turn)
{
    for (int i = 0; i < DPT_NCCL_COMMS_MAX; i++) {
        struct nccl_comm *c = &n->comms[i];
        if (c->state != DPT_NCCL_FREE && c->state != DPT_NCCL_DRAINING && !is_kept(n, c) &&
            freeing_turn_of(c) == turn)
            dpt_nccl_machine_free_comm(n, c, end_limit(n));
    }
}

static enum dpt_status step_freeing(struct dpt_nccl_machine *n)
{
    for (int turn = 0; turn < TURN_COUNT; turn++)
        free_comms_of_turn(n, turn);
    for (int i = 0; i < DPT_NCCL_COMMS_MAX; i++)
        if (n->comms[i].state == DPT_NCCL_DRAINING)
            dpt_nccl_machine_drain(n, &n->comms[i]);
    if (any_in_state(n, DPT_NCCL_DRAINING))
        return DPT_INPROGRESS;
    n->phase = PHASE_WORKING;
    n->failure.status = DPT_OK;
    return DPT_OK;
}

/* The orderly end. */

void dpt_nccl_machine_close(struct dpt_nccl_machine *n)
{
    dpt_nccl_assert_owner(n);
    if (n->phase != PHASE_WORKING)
        return;
    const bool busy = any_in_state(n, DPT_NCCL_CREATING) || any_in_state(n, DPT_NCCL_LAUNCHING) ||
                      any_in_state(n, DPT_NCCL_RUNNING);
    if (busy || n->failure.status != DPT_OK) {
        dpt_nccl_machine_stop(n, -1);
        return;
    }
    n->phase = PHASE_CLOSING;
    n->phase_until_ms = machine_now_ms(n) + n->stop_ms;
    for (int i = 0; i < DPT_NCCL_COMMS_MAX; i++) {
        struct nccl_comm *c = &n->comms[i];
        if (c->state != DPT_NCCL_READY)
            continue;
        dpt_nccl_guard_enter(n->guard, "ncclCommFinalize", n->phase_until_ms);
        const enum dpt_nccl_result result = n->calls->finalize(n->ctx, dpt_nccl_handle_of(c));
        dpt_nccl_guard_leave(n->guard);
        c->state = DPT_NCCL_FINALIZING;
        if (!dpt_nccl_accepted(result)) {
            dpt_nccl_machine_stop(n, -1);
            return;
        }
    }
}

static void step_closing(struct dpt_nccl_machine *n)
{
    bool ends = machine_now_ms(n) >= n->phase_until_ms;
    for (int i = 0; i < DPT_NCCL_COMMS_MAX; i++) {
        struct nccl_comm *c = &n->comms[i];
        if (c->state == DPT_NCCL_DRAINING)
            dpt_nccl_machine_drain(n, c);
        if (c->state != DPT_NCCL_FINALIZING)
            continue;
        const enum dpt_nccl_result result = dpt_nccl_query_error(n, dpt_nccl_handle_of(c));
        if (result == DPT_NCCL_OK)
            c->state = DPT_NCCL_FINALIZED;
        ends |= !dpt_nccl_accepted(result);
    }
    if (!any_in_state(n, DPT_NCCL_FINALIZING)) {
        n->keep = -1;
        n->stop_until_ms = machine_now_ms(n) + n->stop_ms;
        n->phase = PHASE_FREEING;
    } else if (ends) {
        dpt_nccl_machine_stop(n, -1);
    }
}

enum dpt_status dpt_nccl_machine_step_end(struct dpt_nccl_machine *n)
{
    if (n->phase == PHASE_CLOSING)
        step_closing(n);
    if (n->phase == PHASE_REVOKING)
        step_revoking(n);
    return n->phase == PHASE_FREEING ? step_freeing(n) : DPT_INPROGRESS;
}
