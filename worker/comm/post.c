/* Posting transfers, ending operations, and writing into borrowed memory (comm.h). */
#include "worker/comm/relay.h"

#include <string.h>

static enum dpt_status check_xfer(const struct dpt_comm *comm, const struct dpt_comm_xfer *x,
                                  struct dpt_err *err)
{
    if (x->peer < 0 || x->peer >= comm->world_size || comm->link_of[x->peer] == NULL)
        return dpt_fail(err, DPT_EINVAL, "transfer with rank %d, which is no peer of rank %d",
                        x->peer, comm->rank);
    if (x->write &&
        (comm->link_of[x->peer]->ops->write_begin == NULL ||
         (x->dir == DPT_COMM_SEND ? x->mem == NULL || !x->mem->open
                                  : x->dir != DPT_COMM_LEND || x->mem != NULL || x->buf != NULL)))
        return dpt_fail(
            err, DPT_EINVAL,
            "a transfer with rank %d to be written in place: that needs a SEND from open "
            "memory and a LEND without staging, on one host",
            x->peer);
    if (x->mem != NULL && (x->mem->listener != comm->listener || x->offset > x->mem->bytes ||
                           x->bytes > x->mem->bytes - x->offset))
        return dpt_fail(err, DPT_EINVAL,
                        "transfer of %zu bytes at %zu of a registered region of %zu bytes",
                        x->bytes, x->offset, x->mem->bytes);
    if (x->mem != NULL)
        return DPT_OK;
    if (x->dir == DPT_COMM_SEND && x->bytes > DPT_COMM_BUF_BYTES_MAX)
        return dpt_fail(err, DPT_EINVAL, "send of %zu bytes from unregistered memory", x->bytes);
    if (x->dir != DPT_COMM_LEND && x->buf == NULL && x->bytes > 0)
        return dpt_fail(err, DPT_EINVAL, "transfer of %zu bytes without memory", x->bytes);
    return DPT_OK;
}

static void queue_xfer(struct dpt_conn *link, struct dpt_comm_op *op, struct dpt_comm_xfer *x)
{
    struct dpt_comm *comm = link->comm;
    struct dpt_rec *rec = dpt_comm_take_rec(comm);
    rec->op = op;
    rec->link = link;
    rec->state = REC_QUEUED;
    rec->dir = x->dir;
    rec->write = x->write;
    rec->bytes = x->bytes;
    if (x->mem != NULL) {
        rec->data = x->mem->data + x->offset;
        rec->region = (uint32_t)x->mem->region;
        rec->offset = x->offset;
    } else if (x->dir == DPT_COMM_SEND && x->bytes <= DPT_COMM_BUF_BYTES_MAX) {
        rec->data = rec->small = dpt_comm_take_small(comm);
        if (x->bytes > 0)
            memcpy(rec->small, x->buf, x->bytes);
    } else {
        rec->data = x->buf;
    }
    if (x->dir == DPT_COMM_SEND) {
        op->sends_left++;
        dpt_conn_queue_push(&link->sends, rec);
    } else {
        x->lent = x->lent_write = NULL;
        rec->xfer = x;
        op->recvs_left++;
        dpt_conn_queue_push(&link->recvs, rec);
    }
    link->pending++;
    link->dirty = comm->dirty = true;
}

static enum dpt_status send_now(struct dpt_comm *comm, struct dpt_err *err)
{
    for (int i = 0; i < comm->n_links; i++) {
        struct dpt_conn *link = comm->links[i];
        if (!link->dirty || link->gone)
            continue;
        DPT_TRY(link->ops->send(link, err));
        DPT_TRY(dpt_conn_watch(link, err));
    }
    return DPT_OK;
}

static enum dpt_status post_transfers(struct dpt_comm *comm, struct dpt_comm_xfer *xfers, int n,
                                      bool routed, struct dpt_comm_op **ret, struct dpt_err *err)
{
    struct dpt_err failure = {0};
    int smalls = 0;
    for (int i = 0; i < n; i++)
        smalls += xfers[i].mem == NULL && xfers[i].dir == DPT_COMM_SEND &&
                  xfers[i].bytes <= DPT_COMM_BUF_BYTES_MAX;
    if (comm->pool.ops_free == NULL || n > comm->pool.recs_left || smalls > comm->pool.smalls_left)
        return dpt_fail(err, DPT_EOVERFLOW, "too many transfers in flight");

    struct dpt_comm_op *op = comm->pool.ops_free;
    comm->pool.ops_free = op->next;
    *op = (struct dpt_comm_op){.comm = comm, .used = true};
    for (int i = 0; i < n; i++)
        queue_xfer(routed ? &comm->router->flows[xfers[i].peer].link : comm->link_of[xfers[i].peer],
                   op, &xfers[i]);
    if (n > 0)
        comm->ops_in_flight++;
    if (send_now(comm, &failure) != DPT_OK)
        return dpt_comm_keep_failure(comm, &failure, err);
    *ret = op;
    return DPT_OK;
}

enum dpt_status dpt_comm_exchange_routed(struct dpt_comm *comm, struct dpt_comm_xfer *xfers, int n,
                                         struct dpt_comm_op **ret, struct dpt_err *err)
{
    if (comm->failure.status != DPT_OK)
        return dpt_pass(err, &comm->failure);
    return post_transfers(comm, xfers, n, true, ret, err);
}

enum dpt_status dpt_comm_exchange(struct dpt_comm *comm, struct dpt_comm_xfer *xfers, int n,
                                  struct dpt_comm_op **ret, struct dpt_err *err)
{
    struct dpt_err failure = {0};
    enum dpt_status status = comm->failure.status;
    if (status == DPT_OK && comm->listener->network != NULL)
        status = comm->listener->network->call(comm, &failure);
    if (status != DPT_OK)
        return dpt_comm_keep_failure(comm, &failure, err);
    if (n < 0 || n > DPT_COMM_XFERS_MAX)
        return dpt_fail(err, DPT_EINVAL, "an exchange of %d transfers (at most %d)", n,
                        DPT_COMM_XFERS_MAX);
    for (int i = 0; i < n; i++)
        DPT_TRY(check_xfer(comm, &xfers[i], err));
    return post_transfers(comm, xfers, n, false, ret, err);
}

/* Keeps a failure, which the next poll returns. */
static void send_now_keeping_failure(struct dpt_comm *comm)
{
    struct dpt_err failure;
    if (send_now(comm, &failure) != DPT_OK)
        (void)dpt_comm_keep_failure(comm, &failure, NULL);
}

void dpt_comm_op_free(struct dpt_comm *comm, struct dpt_comm_op **op_p)
{
    struct dpt_comm_op *op = *op_p;
    *op_p = NULL;
    if (op == NULL || comm->failure.status != DPT_OK)
        return; /* after a failure nothing moves any more, and destroy frees the op */
    DPT_ASSERT(op->used && !op->freed);
    DPT_ASSERT(op->recvs_left == 0 || atomic_load(&comm->abort_asked));
    while (op->lends != NULL) {
        struct dpt_rec *rec = op->lends;
        op->lends = rec->next;
        rec->link->dirty = comm->dirty = true;
        if (rec->write)
            comm->bytes_sent += rec->bytes;
        rec->link->ops->give_back(rec->link, rec);
    }
    op->freed = true;
    if (dpt_comm_op_done(op))
        dpt_comm_give_op(op);
    send_now_keeping_failure(comm);
}

void dpt_comm_withdraw(struct dpt_comm *comm, struct dpt_comm_mem *mem)
{
    DPT_ASSERT(mem->listener == comm->listener && !mem->withdrawn);
    for (int i = 0; i < COMM_RECORDS_MAX; i++) {
        const struct dpt_rec *rec = &comm->pool.recs[i];
        DPT_ASSERT(comm->failure.status != DPT_OK || rec->state == REC_FREE ||
                   rec->dir != DPT_COMM_SEND || rec->small != NULL ||
                   rec->region != (uint32_t)mem->region);
    }
    mem->withdrawn = true;
    if (comm->failure.status != DPT_OK)
        return; /* only destroy follows */
    for (int i = 0; i < comm->n_links; i++)
        if (comm->links[i]->ops->withdraw != NULL) {
            comm->links[i]->ops->withdraw(comm->links[i], mem->region);
            comm->links[i]->dirty = comm->dirty = true;
        }
    send_now_keeping_failure(comm);
}

/* Writing into lent memory. */

void dpt_comm_write_end(struct dpt_comm *comm)
{
    for (int i = 0; i < comm->n_links; i++)
        if (comm->links[i]->writing) {
            comm->links[i]->ops->write_end(comm->links[i]);
            comm->links[i]->writing = false;
        }
}

enum dpt_status dpt_comm_write_begin(struct dpt_comm *comm, const struct dpt_comm_op *op,
                                     struct dpt_err *err)
{
    bool shut = comm->failure.status != DPT_OK;
    for (const struct dpt_rec *rec = op->lends; !shut && rec != NULL; rec = rec->next)
        if (rec->write && !rec->link->writing) {
            rec->link->writing = rec->link->ops->write_begin(rec->link);
            shut = !rec->link->writing;
        }
    if (!shut)
        return DPT_OK;
    dpt_comm_write_end(comm);
    enum dpt_status status; /* the peer that shut its memory is leaving, so the poll fails */
    do
        status = dpt_comm_poll_woken(comm, -1, err);
    while (status == DPT_INPROGRESS);
    return status;
}
