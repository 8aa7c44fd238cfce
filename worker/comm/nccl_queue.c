/* Operations between GPUs: the queues of a generation's groups, and the waits (nccl_comm.h). */
#include "worker/comm/nccl_comm_state.h"

#include "base/clock.h"
#include "base/cores.h"
#include "worker/comm/comm_state.h"

enum { SPIN_NS = 200 * 1000 };

uint64_t dpt_nccl_comm_bytes_sent(const struct dpt_nccl_comm *c)
{
    return c->bytes_sent;
}

size_t dpt_nccl_piece_bytes_sent(const struct dpt_nccl_piece *piece, int size)
{
    static const size_t element_bytes[] = {
        [DPT_NCCL_F32] = 4, [DPT_NCCL_BF16] = 2, [DPT_NCCL_F16] = 2, [DPT_NCCL_BYTES] = 1};
    const size_t bytes = piece->count * element_bytes[piece->dtype], others = (size_t)size - 1;
    switch (piece->kind) {
    case DPT_NCCL_SEND:
        return piece->count;
    case DPT_NCCL_ALL_REDUCE:
        return 2 * others * bytes / (size_t)size;
    case DPT_NCCL_REDUCE_SCATTER:
    case DPT_NCCL_ALL_GATHER:
        return others * bytes;
    default:
        return 0;
    }
}

static bool names_peer(const struct dpt_nccl_piece *p)
{
    return p->kind == DPT_NCCL_SEND || p->kind == DPT_NCCL_RECV;
}

static enum dpt_status check_pieces(const struct dpt_nccl_comm *c, const struct nccl_group *g,
                                    const struct dpt_nccl_op *op, struct dpt_err *err)
{
    if (op->n_pieces < 1 || op->n_pieces > DPT_NCCL_PIECES_MAX)
        return dpt_fail(err, DPT_EINVAL, "an operation of %d pieces (1 to %d)", op->n_pieces,
                        DPT_NCCL_PIECES_MAX);
    for (int i = 0; i < op->n_pieces; i++) {
        const struct dpt_nccl_piece *p = &op->pieces[i];
        if (names_peer(p) && (p->peer < 0 || p->peer >= dpt_comm_world_size(c->control) ||
                              g->order[p->peer] < 0 || p->peer == dpt_comm_rank(c->control)))
            return dpt_fail(err, DPT_EINVAL, "a transfer with rank %d, which is no peer here",
                            p->peer);
        if ((p->kind != DPT_NCCL_RECV && p->from == NULL && p->count > 0) ||
            (p->kind != DPT_NCCL_SEND && p->to == NULL && p->count > 0))
            return dpt_fail(err, DPT_EINVAL, "a transfer of %zu without memory", p->count);
    }
    return DPT_OK;
}

/* Launches the next operation of the group unless one is running. */
static enum dpt_status start_next(struct dpt_nccl_comm *c, int group, struct dpt_err *err)
{
    struct nccl_group *g = &c->groups[group];
    if (g->started == g->posted || g->started != g->done)
        return DPT_OK;
    struct dpt_nccl_op op = g->queue[g->started % DPT_NCCL_QUEUE_MAX];
    for (int i = 0; i < op.n_pieces; i++) {
        c->scratch[i] = op.pieces[i];
        if (names_peer(&op.pieces[i]))
            c->scratch[i].peer = g->order[op.pieces[i].peer];
    }
    op.pieces = c->scratch;
    g->began_ns = g->span[g->started % DPT_NCCL_QUEUE_MAX] ? dpt_trace_begin() : 0;
    g->started++;
    return dpt_nccl_machine_launch(c->machine, dpt_nccl_comm_at(c, group), &op, err);
}

enum dpt_status dpt_nccl_comm_post(struct dpt_nccl_comm *c, int group, const struct dpt_nccl_op *op,
                                   uint64_t *ret_ticket, struct dpt_err *err)
{
    return dpt_nccl_comm_post_traced(c, group, op, NULL, ret_ticket, err);
}

enum dpt_status dpt_nccl_comm_post_traced(struct dpt_nccl_comm *c, int group,
                                          const struct dpt_nccl_op *op,
                                          const struct dpt_trace_span *span, uint64_t *ret_ticket,
                                          struct dpt_err *err)
{
    DPT_ASSERT(c->built);
    if (group < 0 || group > c->n_splits || c->groups[group].size == 0)
        return dpt_fail(err, DPT_EINVAL, "there is no group %d of GPUs", group);
    struct nccl_group *g = &c->groups[group];
    DPT_TRY(check_pieces(c, g, op, err));
    if (g->posted - g->done == DPT_NCCL_QUEUE_MAX)
        return dpt_fail(err, DPT_EOVERFLOW, "more than %d operations posted between GPUs",
                        DPT_NCCL_QUEUE_MAX);
    g->queue[g->posted % DPT_NCCL_QUEUE_MAX] = *op;
    g->span[g->posted % DPT_NCCL_QUEUE_MAX] = span;
    g->posted++;
    const uint64_t ticket = g->posted;
    DPT_TRY(start_next(c, group, err));
    *ret_ticket = ticket;
    return DPT_OK;
}

static void finish_op(struct dpt_nccl_comm *c, struct nccl_group *g)
{
    const struct dpt_nccl_op *op = &g->queue[g->done % DPT_NCCL_QUEUE_MAX];
    for (int i = 0; i < op->n_pieces; i++)
        c->bytes_sent += dpt_nccl_piece_bytes_sent(&op->pieces[i], g->size);
    if (g->began_ns != 0)
        dpt_trace_end(g->began_ns, g->span[g->done % DPT_NCCL_QUEUE_MAX]);
    g->done++;
    c->n_done++;
}

enum dpt_status dpt_nccl_comm_move(struct dpt_nccl_comm *c, struct dpt_err *err)
{
    const enum dpt_status status = dpt_nccl_machine_step(c->machine, err);
    if (status != DPT_OK && status != DPT_INPROGRESS)
        return status;
    for (int i = 0; c->built && i <= c->n_splits; i++) {
        struct nccl_group *g = &c->groups[i];
        if (g->started != g->done &&
            dpt_nccl_state(c->machine, dpt_nccl_comm_at(c, i)) == DPT_NCCL_READY)
            finish_op(c, g);
        DPT_TRY(start_next(c, i, err));
    }
    return status;
}

enum dpt_status dpt_nccl_comm_poll_control(struct dpt_nccl_comm *c, int64_t wait_ns,
                                           bool *ret_woken, struct dpt_err *err)
{
    const enum dpt_status status = dpt_comm_poll_woken(c->control, wait_ns, err);
    *ret_woken = c->control->woken;
    return status == DPT_INPROGRESS ? DPT_OK : status;
}

bool dpt_nccl_comm_done(const struct dpt_nccl_comm *c, int group, uint64_t ticket)
{
    return c->groups[group].done >= ticket;
}

/* Ticket 0: any operation that was not reported. */
static bool operation_arrived(const struct dpt_nccl_comm *c, int group, uint64_t ticket)
{
    return ticket > 0 ? dpt_nccl_comm_done(c, group, ticket) : c->n_done > c->n_reported;
}

static bool is_idle(const struct dpt_nccl_comm *c)
{
    for (int g = 0; g <= c->n_splits; g++)
        if (c->groups[g].done < c->groups[g].posted)
            return false;
    return true;
}

static enum dpt_status await_operation(struct dpt_nccl_comm *c, int group, uint64_t ticket,
                                       int wait_ms, struct dpt_err *err)
{
    const int64_t start_ns = dpt_now_ns();
    const int64_t end = wait_ms < 0 ? INT64_MAX : dpt_now_ms() + wait_ms;
    for (bool woken = false;;) {
        const enum dpt_status status = dpt_nccl_comm_move(c, err);
        if (status != DPT_OK && status != DPT_INPROGRESS)
            return status;
        /* An operation that is done counts, even if the control has failed since. */
        if (operation_arrived(c, group, ticket))
            return DPT_OK;
        if (woken || dpt_now_ms() >= end)
            return DPT_INPROGRESS;
        const bool spin = dpt_now_ns() - start_ns < SPIN_NS && dpt_cores_known_spare();
        DPT_TRY(
            dpt_nccl_comm_poll_control(c, spin || wait_ms == 0 ? 0 : DPT_NCCL_NAP_NS, &woken, err));
        if (wait_ms == 0)
            return DPT_INPROGRESS;
    }
}

enum dpt_status dpt_nccl_comm_poll(struct dpt_nccl_comm *c, int group, uint64_t ticket, int wait_ms,
                                   struct dpt_err *err)
{
    DPT_ASSERT(ticket > 0 && ticket <= c->groups[group].posted);
    return await_operation(c, group, ticket, wait_ms, err);
}

enum dpt_status dpt_nccl_comm_poll_any(struct dpt_nccl_comm *c, int wait_ms, struct dpt_err *err)
{
    if (is_idle(c) && c->n_done == c->n_reported)
        return dpt_comm_poll_woken(c->control, wait_ms < 0 ? -1 : wait_ms * 1000000LL, err);
    const enum dpt_status status = await_operation(c, 0, 0, wait_ms, err);
    if (status == DPT_OK)
        c->n_reported = c->n_done;
    return status;
}

void dpt_nccl_comm_stop(struct dpt_nccl_comm *c, int keep)
{
    dpt_nccl_machine_stop(c->machine, keep);
    /* While stopping, a step cannot fail. */
    while (dpt_nccl_machine_step(c->machine, NULL) == DPT_INPROGRESS)
        c->calls->pause(c->ctx);
    if (keep < 0 || dpt_nccl_state(c->machine, keep) != DPT_NCCL_REVOKED)
        c->kept = 0;
}

void dpt_nccl_comm_reset(struct dpt_nccl_comm *c)
{
    c->control = NULL;
    for (int g = 0; g < DPT_NCCL_GROUPS_MAX; g++)
        c->groups[g] = (struct nccl_group){.posted = c->groups[g].posted,
                                           .started = c->groups[g].posted,
                                           .done = c->groups[g].posted};
}
