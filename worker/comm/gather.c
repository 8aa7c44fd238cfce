/* The small all-gather by direct exchange (comm.h): every rank sends its part to every other at
 * once. Each link carries each byte once, which is the least that an all-gather must move.
 * Receivers of one host copy in parallel. */
#include "worker/comm/comm_state.h"

#include <string.h>

/* Posts the first n of comm->xfers and waits until they are done. If a failure comes during the
 * wait but every receive is complete, this call succeeds and the next call fails. */
static enum dpt_status exchange_and_settle(struct dpt_comm *comm, int n, struct dpt_err *err)
{
    struct dpt_comm_op *op;
    DPT_TRY(dpt_comm_exchange(comm, comm->xfers, n, &op, err));
    enum dpt_status status;
    do
        status = dpt_comm_poll(comm, op, -1, err); /* dpt_comm_wake ends a wait, not the work */
    while (status == DPT_INPROGRESS);
    if (status != DPT_OK && dpt_comm_settle(comm, op))
        status = DPT_OK;
    dpt_comm_op_free(comm, &op);
    return status;
}

enum dpt_status dpt_comm_small_all_gather(struct dpt_comm *comm, const void *mine, size_t bytes,
                                          void *ret_all, struct dpt_err *err)
{
    if (bytes > DPT_COMM_SMALL_BYTES_MAX)
        return dpt_fail(err, DPT_EINVAL, "a small all-gather of %zu bytes", bytes);
    uint8_t *all = ret_all;
    const bool inline_send = bytes <= DPT_COMM_BUF_BYTES_MAX;
    struct dpt_comm_mem *staging = comm->listener->staging;
    if (!inline_send)
        memcpy(staging->data, mine, bytes);
    int n = 0;
    /* Each rank starts with its successor, so that not all send to rank 0 first. */
    for (int i = 1; i < comm->world_size; i++) {
        const int to = (comm->rank + i) % comm->world_size;
        const int from = (comm->rank + comm->world_size - i) % comm->world_size;
        comm->xfers[n++] = (struct dpt_comm_xfer){.dir = DPT_COMM_SEND,
                                                  .peer = to,
                                                  .mem = inline_send ? NULL : staging,
                                                  .bytes = bytes,
                                                  .buf = (void *)(uintptr_t)mine};
        comm->xfers[n++] = (struct dpt_comm_xfer){
            .dir = DPT_COMM_RECV, .peer = from, .bytes = bytes, .buf = all + (size_t)from * bytes};
    }
    memmove(all + (size_t)comm->rank * bytes, mine, bytes);
    return exchange_and_settle(comm, n, err);
}
