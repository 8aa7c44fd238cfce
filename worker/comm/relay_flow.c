/* A flow: the transfers with one rank, as frames for the trunks (relay.h). */
#include "worker/comm/relay.h"

#include "base/clock.h"

#include <string.h>

static struct flow *flow_of(struct dpt_conn *link)
{
    return (struct flow *)link;
}

/* Sending. */

bool dpt_flow_has_work(const struct flow *flow)
{
    return flow->grants_due > 0 || (flow->granted > 0 && flow->link.sends.first != NULL);
}

/* The flow joins the trunk's flows if it has something to send. */
static void queue_flow(struct flow *flow)
{
    struct trunk *trunk = flow->trunk;
    if (flow->queued || !dpt_flow_has_work(flow))
        return;
    flow->queued = true;
    flow->next = NULL;
    if (trunk->first == NULL)
        trunk->first = flow;
    else
        trunk->last->next = flow;
    trunk->last = flow;
    dpt_trunk_touch(trunk);
}

static enum dpt_status flow_send(struct dpt_conn *link, struct dpt_err *err)
{
    struct flow *flow = flow_of(link);
    link->dirty = false;
    for (struct dpt_rec *rec = link->recvs.first; rec != NULL; rec = rec->next) {
        if (rec->state != REC_QUEUED)
            continue;
        if (rec->data == NULL && rec->bytes > 0)
            return dpt_conn_broken(link, DPT_EINVAL, err, "a LEND without staging");
        rec->state = REC_OFFERED;
        flow->grants_due++;
    }
    if ((flow->trunk->link.bye || flow->trunk->link.gone) && dpt_flow_has_work(flow))
        return dpt_conn_lost(&flow->trunk->link, -1, err, "it left before the last transfers");
    queue_flow(flow);
    return DPT_OK;
}

bool dpt_flow_next(struct flow *flow, struct relay_head *ret, const uint8_t **ret_payload)
{
    const struct dpt_rec *rec = flow->link.sends.first;
    *ret = (struct relay_head){
        .hops = 1, .from = (uint32_t)flow->link.comm->rank, .to = (uint32_t)flow->link.rank};
    if (flow->grants_due > 0) {
        ret->type = RELAY_GRANT;
        ret->value = flow->grants_due;
        return true;
    }
    if (flow->granted == 0 || rec == NULL)
        return false;
    const size_t left = rec->bytes - rec->moved;
    ret->type = RELAY_DATA;
    ret->bytes = left < RELAY_PAYLOAD_BYTES ? (uint32_t)left : (uint32_t)RELAY_PAYLOAD_BYTES;
    ret->value = rec->bytes;
    *ret_payload = rec->data + rec->moved;
    return true;
}

void dpt_flow_sent(struct flow *flow, const struct relay_head *head)
{
    struct dpt_rec *rec = flow->link.sends.first;
    if (head->type == RELAY_GRANT) {
        flow->grants_due = 0;
        return;
    }
    rec->moved += head->bytes;
    if (rec->moved < rec->bytes)
        return;
    flow->granted--;
    (void)dpt_conn_queue_pop(&flow->link.sends);
    dpt_conn_complete_rec(rec);
    dpt_conn_free_rec(rec);
}

/* Receiving. */

static enum dpt_status malformed_flow(struct flow *flow, struct dpt_err *err)
{
    return dpt_conn_broken(&flow->link, DPT_EPROTO, err, "a malformed frame");
}

static enum dpt_status take_data(struct flow *flow, const struct relay_head *head,
                                 const uint8_t *payload, struct dpt_err *err)
{
    struct dpt_rec *rec = flow->link.recvs.first;
    if (rec == NULL || rec->state != REC_OFFERED)
        return malformed_flow(flow, err);
    if (rec->bytes != head->value)
        return dpt_conn_broken(&flow->link, DPT_EPROTO, err,
                               "it sends another length than is expected");
    if (head->bytes > rec->bytes - rec->moved || (head->bytes == 0 && rec->bytes > 0))
        return malformed_flow(flow, err);
    if (rec->moved == 0)
        dpt_peer_arrived(&flow->link);
    if (head->bytes > 0)
        memcpy(rec->data + rec->moved, payload, head->bytes);
    rec->moved += head->bytes;
    flow->moved_ms = dpt_now_ms();
    if (rec->moved < rec->bytes)
        return DPT_OK;
    (void)dpt_conn_queue_pop(&flow->link.recvs);
    if (rec->dir == DPT_COMM_LEND)
        rec->xfer->lent = rec->data;
    dpt_conn_complete_rec(rec);
    dpt_conn_free_rec(rec);
    return DPT_OK;
}

enum dpt_status dpt_flow_take(struct flow *flow, const struct relay_head *head,
                              const uint8_t *payload, struct dpt_err *err)
{
    if (head->type == RELAY_DATA)
        return take_data(flow, head, payload, err);
    if (head->value > COMM_RECORDS_MAX - flow->granted || head->bytes > 0)
        return malformed_flow(flow, err);
    flow->granted += head->value;
    queue_flow(flow);
    return DPT_OK;
}

static enum dpt_status flow_receive(struct dpt_conn *link, struct dpt_err *err)
{
    return dpt_conn_check_end(link, false, err);
}

static bool flow_receives(const struct dpt_conn *link)
{
    return link->recvs.first != NULL && link->recvs.first->moved > 0;
}

static uint32_t no_interest(const struct dpt_conn *link)
{
    (void)link;
    return 0;
}

static int64_t flow_deadline_ms(const struct dpt_conn *link)
{
    const struct flow *flow = (const struct flow *)link;
    if (!flow_receives(link))
        return INT64_MAX;
    const int64_t since = flow->moved_ms > link->comm->polling_since_ms
                              ? flow->moved_ms
                              : link->comm->polling_since_ms;
    return since + link->comm->timeout_ms;
}

static enum dpt_status flow_late(struct dpt_conn *link, struct dpt_err *err)
{
    return dpt_conn_broken(link, DPT_ETIMEOUT, err, "it has begun and does not move");
}

static void flow_destroy(struct dpt_conn *link, enum link_goodbye goodbye, int suspect)
{
    (void)link, (void)goodbye, (void)suspect; /* it has no socket, and the router its memory */
}

static const struct dpt_conn_ops flow_ops = {
    .send = flow_send,
    .receive = flow_receive,
    .receives = flow_receives,
    .interest = no_interest,
    .deadline_ms = flow_deadline_ms,
    .late = flow_late,
    .destroy = flow_destroy,
};

void dpt_flow_init(struct flow *flow, struct router *router, int rank)
{
    flow->trunk = router->trunk_to[rank];
    flow->link = (struct dpt_conn){
        .ops = &flow_ops, .comm = router->comm, .rank = rank, .fd = -1, .ready = true};
}
