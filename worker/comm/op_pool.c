/* Records of transfers, operations, and the pools that hold both (comm_state.h). */
#include "worker/comm/comm_state.h"

#include <string.h>

void dpt_conn_queue_push(struct rec_queue *queue, struct dpt_rec *rec)
{
    rec->next = NULL;
    if (queue->first == NULL)
        queue->first = rec;
    else
        queue->last->next = rec;
    queue->last = rec;
}

struct dpt_rec *dpt_conn_queue_pop(struct rec_queue *queue)
{
    struct dpt_rec *rec = queue->first;
    if (rec != NULL) {
        queue->first = rec->next;
        rec->next = NULL;
    }
    return rec;
}

uint32_t dpt_conn_rec_index(const struct dpt_rec *rec)
{
    return (uint32_t)(rec - rec->link->comm->pool.recs);
}

uint8_t *dpt_comm_take_small(struct dpt_comm *comm)
{
    uint8_t *slot = comm->pool.smalls_free;
    DPT_ASSERT(slot != NULL);
    memcpy(&comm->pool.smalls_free, slot, sizeof slot);
    comm->pool.smalls_left--;
    return slot;
}

void dpt_comm_give_small(struct dpt_comm *comm, uint8_t *slot)
{
    memcpy(slot, &comm->pool.smalls_free, sizeof slot);
    comm->pool.smalls_free = slot;
    comm->pool.smalls_left++;
}

struct dpt_rec *dpt_comm_take_rec(struct dpt_comm *comm)
{
    struct dpt_rec *rec = comm->pool.recs_free;
    DPT_ASSERT(rec != NULL && rec->state == REC_FREE);
    comm->pool.recs_free = rec->next;
    comm->pool.recs_left--;
    memset(rec, 0, sizeof *rec);
    return rec;
}

void dpt_conn_free_rec(struct dpt_rec *rec)
{
    struct dpt_comm *comm = rec->link->comm;
    if (rec->small != NULL)
        dpt_comm_give_small(comm, rec->small);
    rec->small = NULL;
    rec->state = REC_FREE;
    rec->next = comm->pool.recs_free;
    comm->pool.recs_free = rec;
    comm->pool.recs_left++;
}

bool dpt_comm_op_received(const struct dpt_comm_op *op)
{
    return op->recvs_left == 0;
}

bool dpt_comm_op_done(const struct dpt_comm_op *op)
{
    return op->sends_left == 0 && op->recvs_left == 0;
}

void dpt_comm_give_op(struct dpt_comm_op *op)
{
    op->used = false;
    op->next = op->comm->pool.ops_free;
    op->comm->pool.ops_free = op;
}

void dpt_conn_complete_rec(struct dpt_rec *rec)
{
    struct dpt_comm_op *op = rec->op;
    rec->link->pending--;
    if (rec->dir == DPT_COMM_SEND) {
        op->sends_left--;
        rec->link->comm->bytes_sent += rec->bytes;
    } else {
        op->recvs_left--;
    }
    if (!dpt_comm_op_done(op))
        return;
    op->comm->ops_in_flight--;
    op->comm->news = true;
    if (op->freed)
        dpt_comm_give_op(op);
}

void dpt_conn_lend_rec(struct dpt_rec *rec, const void *data, void *writable)
{
    rec->xfer->lent = data;
    rec->xfer->lent_write = writable;
    rec->state = REC_LENT;
    rec->next = rec->op->lends;
    rec->op->lends = rec;
    dpt_conn_complete_rec(rec);
}
