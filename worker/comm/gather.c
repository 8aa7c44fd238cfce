/* The small all-gather (comm.h).
 *
 * In a mesh by direct exchange: every rank sends its part to every other at once. Each link carries
 * each byte once, which is the least that an all-gather must move. Receivers of one host copy in
 * parallel.
 *
 * Where ranks relay, in ceil(log2 W) rounds (Bruck et al., IEEE TPDS 1997): in round k rank r
 * receives up to 2^k parts from rank r + 2^k and sends as many to rank r - 2^k, both over its own
 * links. Before the round it has the parts of the ranks r to r + 2^k - 1. Each rank sends W - 1
 * parts, as in a mesh. */
#include "worker/comm/relay.h"

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

/* A round's transfers of the parts of ranks first to first + n - 1, modulo the world size. */
static int list_parts(const struct dpt_comm_xfer *like, int world_size, int first, int n,
                      uint8_t *all, struct dpt_comm_xfer ret[2])
{
    const int before_end = first + n <= world_size ? n : world_size - first;
    ret[0] = ret[1] = *like;
    ret[0].buf = all + (size_t)first * like->bytes;
    ret[0].bytes = (size_t)before_end * like->bytes;
    ret[1].buf = all;
    ret[1].bytes = (size_t)(n - before_end) * like->bytes;
    return before_end < n ? 2 : 1;
}

struct rounds {
    int n;
    struct dpt_comm_xfer in[2 * DPT_ROUTE_ROUNDS_MAX], out[2 * DPT_ROUTE_ROUNDS_MAX];
    struct dpt_comm_op *received[DPT_ROUTE_ROUNDS_MAX], *sent[DPT_ROUTE_ROUNDS_MAX];
};

static int round_parts(const struct dpt_comm *comm, int k)
{
    const int had = 1 << k, missing = comm->world_size - had;
    return missing < had ? missing : had;
}

/* Posts the receives of all rounds, so that their peers may send at once. */
static enum dpt_status post_receives(struct dpt_comm *comm, size_t bytes, uint8_t *all,
                                     struct rounds *rounds, struct dpt_err *err)
{
    for (int k = 0; 1 << k < comm->world_size; k++) {
        const int from = (comm->rank + (1 << k)) % comm->world_size;
        const struct dpt_comm_xfer like = {.dir = DPT_COMM_RECV, .peer = from, .bytes = bytes};
        const int n = list_parts(&like, comm->world_size, from, round_parts(comm, k), all,
                                 &rounds->in[2 * k]);
        DPT_TRY(dpt_comm_exchange_routed(comm, &rounds->in[2 * k], n, &rounds->received[k], err));
        rounds->n++;
    }
    return DPT_OK;
}

static enum dpt_status run_rounds(struct dpt_comm *comm, size_t bytes, uint8_t *all,
                                  struct rounds *rounds, struct dpt_err *err)
{
    for (int k = 0; k < rounds->n; k++) {
        const int to = (comm->rank + comm->world_size - (1 << k)) % comm->world_size;
        const struct dpt_comm_xfer like = {.dir = DPT_COMM_SEND, .peer = to, .bytes = bytes};
        const int n = list_parts(&like, comm->world_size, comm->rank, round_parts(comm, k), all,
                                 &rounds->out[2 * k]);
        DPT_TRY(dpt_comm_exchange_routed(comm, &rounds->out[2 * k], n, &rounds->sent[k], err));
        enum dpt_status status;
        do
            status = dpt_comm_poll(comm, rounds->received[k], -1, err);
        while (status == DPT_INPROGRESS);
        DPT_TRY(status);
    }
    for (int k = 0; k < rounds->n; k++) {
        enum dpt_status status;
        do
            status = dpt_comm_poll(comm, rounds->sent[k], -1, err);
        while (status == DPT_INPROGRESS);
        DPT_TRY(status);
        dpt_comm_op_free(comm, &rounds->received[k]);
        dpt_comm_op_free(comm, &rounds->sent[k]);
    }
    return DPT_OK;
}

static enum dpt_status gather_in_rounds(struct dpt_comm *comm, const void *mine, size_t bytes,
                                        uint8_t *all, struct dpt_err *err)
{
    struct rounds rounds = {.n = 0};
    memmove(all + (size_t)comm->rank * bytes, mine, bytes);
    struct dpt_err failure;
    enum dpt_status status = post_receives(comm, bytes, all, &rounds, &failure);
    if (status == DPT_OK)
        status = run_rounds(comm, bytes, all, &rounds, &failure);
    /* Receives that are posted would write into the caller's memory later: nothing may move. */
    return status == DPT_OK ? DPT_OK : dpt_comm_keep_failure(comm, &failure, err);
}

enum dpt_status dpt_comm_small_all_gather(struct dpt_comm *comm, const void *mine, size_t bytes,
                                          void *ret_all, struct dpt_err *err)
{
    if (bytes > DPT_COMM_SMALL_BYTES_MAX)
        return dpt_fail(err, DPT_EINVAL, "a small all-gather of %zu bytes", bytes);
    uint8_t *all = ret_all;
    if (comm->router != NULL)
        return gather_in_rounds(comm, mine, bytes, all, err);
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
