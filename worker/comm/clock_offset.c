/* Offsets of clocks (clock_offset.h). */
#include "worker/comm/clock_offset.h"

#include <stdlib.h>

enum { CLIENTS_MAX = 32 /* ranks that rank 0 answers at a time */ };

/* What each rank tells the others, in the byte order of the host. */
struct introduction {
    uint64_t clock;
    int64_t epoch_ns;
    int64_t wanted;
};

struct measured {
    int64_t offset_ns, error_ns;
};

/* The lowest rank that reads the clock of `rank`. */
static int first_of_clock(const struct introduction *ranks, int rank)
{
    int first = 0;
    while (first < rank && (ranks[rank].clock == 0 || ranks[first].clock != ranks[rank].clock))
        first++;
    return first;
}

static enum dpt_status await_op(struct dpt_comm *comm, struct dpt_comm_op *op, struct dpt_err *err)
{
    enum dpt_status status;
    do
        status = dpt_comm_poll(comm, op, -1, err);
    while (status == DPT_INPROGRESS); /* dpt_comm_wake ends a wait, not the work */
    return status;
}

/* ---- a rank with another clock ---- */

static enum dpt_status ask_once(struct dpt_comm *comm, const struct dpt_clock_spec *spec,
                                struct measured *best, struct dpt_err *err)
{
    uint8_t ping = 0;
    int64_t theirs = 0;
    struct dpt_comm_xfer xfers[] = {
        {.dir = DPT_COMM_SEND, .peer = 0, .buf = &ping, .bytes = sizeof ping},
        {.dir = DPT_COMM_RECV, .peer = 0, .buf = &theirs, .bytes = sizeof theirs}};
    struct dpt_comm_op *op;
    const int64_t asked_ns = spec->now_ns(spec->ctx);
    DPT_TRY(dpt_comm_exchange(comm, xfers, 2, &op, err));
    DPT_TRY(await_op(comm, op, err));
    const int64_t trip_ns = spec->now_ns(spec->ctx) - asked_ns;
    dpt_comm_op_free(comm, &op);
    if ((trip_ns + 1) / 2 < best->error_ns)
        *best = (struct measured){theirs - (asked_ns + trip_ns / 2), (trip_ns + 1) / 2};
    return DPT_OK;
}

static enum dpt_status ask_for_times(struct dpt_comm *comm, const struct dpt_clock_spec *spec,
                                     struct measured *ret, struct dpt_err *err)
{
    *ret = (struct measured){0, INT64_MAX};
    for (int round = 0; round < DPT_CLOCK_ROUNDS; round++)
        DPT_TRY(ask_once(comm, spec, ret, err));
    return DPT_OK;
}

/* ---- rank 0 ---- */

struct client {
    int rank, rounds;
    uint8_t ping;
    struct dpt_comm_xfer receive;
    struct dpt_comm_op *op; /* the receive; NULL: the client has all answers */
};

static enum dpt_status await_ping(struct dpt_comm *comm, struct client *client, struct dpt_err *err)
{
    client->receive = (struct dpt_comm_xfer){.dir = DPT_COMM_RECV,
                                             .peer = client->rank,
                                             .buf = &client->ping,
                                             .bytes = sizeof client->ping};
    return dpt_comm_exchange(comm, &client->receive, 1, &client->op, err);
}

/* Answers the ping that has arrived, and waits for the next one. */
static enum dpt_status answer_ping(struct dpt_comm *comm, const struct dpt_clock_spec *spec,
                                   struct client *client, struct dpt_err *err)
{
    int64_t now_ns = spec->now_ns(spec->ctx);
    struct dpt_comm_xfer send = {
        .dir = DPT_COMM_SEND, .peer = client->rank, .buf = &now_ns, .bytes = sizeof now_ns};
    struct dpt_comm_op *sent;
    DPT_TRY(dpt_comm_exchange(comm, &send, 1, &sent, err));
    dpt_comm_op_free(comm, &sent);
    dpt_comm_op_free(comm, &client->op);
    return ++client->rounds < DPT_CLOCK_ROUNDS ? await_ping(comm, client, err) : DPT_OK;
}

/* Answers all pings of these clients. */
static enum dpt_status answer_clients(struct dpt_comm *comm, const struct dpt_clock_spec *spec,
                                      struct client *clients, int n, struct dpt_err *err)
{
    int left = n;
    for (int i = 0; i < n; i++)
        DPT_TRY(await_ping(comm, &clients[i], err));
    while (left > 0) {
        bool answered = false;
        for (int i = 0; i < n; i++) {
            if (!clients[i].op || !dpt_comm_op_received(clients[i].op))
                continue;
            DPT_TRY(answer_ping(comm, spec, &clients[i], err));
            left -= clients[i].op == NULL;
            answered = true;
        }
        if (answered)
            continue;
        const enum dpt_status status = dpt_comm_poll_any(comm, -1, err);
        if (status != DPT_OK && status != DPT_INPROGRESS)
            return status;
    }
    return DPT_OK;
}

static enum dpt_status answer_all(struct dpt_comm *comm, const struct dpt_clock_spec *spec,
                                  const struct introduction *ranks, struct dpt_err *err)
{
    const int size = dpt_comm_world_size(comm);
    for (int rank = 1; rank < size;) {
        struct client clients[CLIENTS_MAX];
        int n = 0;
        for (; rank < size && n < CLIENTS_MAX; rank++)
            if (first_of_clock(ranks, rank) == rank)
                clients[n++] = (struct client){.rank = rank};
        DPT_TRY(answer_clients(comm, spec, clients, n, err));
    }
    return DPT_OK;
}

/* ---- all ranks ---- */

static enum dpt_status measure_offsets(struct dpt_comm *comm, const struct dpt_clock_spec *spec,
                                       const struct introduction *ranks, struct measured *all,
                                       struct dpt_err *err)
{
    const int own = dpt_comm_rank(comm);
    struct measured mine = {0, 0};
    if (own == 0)
        DPT_TRY(answer_all(comm, spec, ranks, err));
    else if (first_of_clock(ranks, own) == own)
        DPT_TRY(ask_for_times(comm, spec, &mine, err));
    return dpt_comm_small_all_gather(comm, &mine, sizeof mine, all, err);
}

static enum dpt_status offset_among(struct dpt_comm *comm, const struct dpt_clock_spec *spec,
                                    struct introduction *ranks, struct measured *all,
                                    struct dpt_clock_offset *ret, struct dpt_err *err)
{
    const struct introduction mine = {spec->clock, spec->epoch_ns, spec->wanted};
    bool wanted = false, differ = false;
    DPT_TRY(dpt_comm_small_all_gather(comm, &mine, sizeof mine, ranks, err));
    for (int i = 0; i < dpt_comm_world_size(comm); i++) {
        wanted = wanted || ranks[i].wanted;
        differ = differ || first_of_clock(ranks, i) != 0;
    }
    *ret = (struct dpt_clock_offset){.epoch_ns = wanted ? ranks[0].epoch_ns : spec->epoch_ns};
    if (!wanted || !differ)
        return DPT_OK;
    DPT_TRY(measure_offsets(comm, spec, ranks, all, err));
    const struct measured *of_clock = &all[first_of_clock(ranks, dpt_comm_rank(comm))];
    ret->offset_ns = of_clock->offset_ns;
    ret->error_ns = of_clock->error_ns;
    return DPT_OK;
}

enum dpt_status dpt_comm_clock_offset(struct dpt_comm *comm, const struct dpt_clock_spec *spec,
                                      struct dpt_clock_offset *ret, struct dpt_err *err)
{
    const size_t size = (size_t)dpt_comm_world_size(comm);
    struct introduction *ranks = calloc(size, sizeof *ranks);
    struct measured *all = calloc(size, sizeof *all);
    const enum dpt_status status = ranks && all ? offset_among(comm, spec, ranks, all, ret, err)
                                                : dpt_fail_nomem(err, "clocks of %zu ranks", size);
    free(ranks);
    free(all);
    return status;
}
