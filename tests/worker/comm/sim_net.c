/* The simulated network (sim_net.h): one mutex, one seat a node, and links that hand offers to each
 * other. */
#include "tests/worker/comm/sim_net.h"

#include "base/clock.h"
#include "worker/comm/comm_state.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct seat {
    struct dpt_comm *comm; /* being created or alive */
    struct dpt_comm_spec spec;
    bool listening, dead;
    bool fault_set;
    enum dpt_sim_fault fault;
    uint64_t fault_call, calls;
};

struct dpt_sim_net {
    pthread_mutex_t mutex;
    struct seat seats[DPT_SIM_NODES_MAX];
    bool stalled[DPT_SIM_NODES_MAX][DPT_SIM_NODES_MAX];
};

struct sim_listener {
    struct dpt_comm_listener base; /* first: dpt_comm_listener_destroy frees it */
    struct dpt_sim_net *net;
    int node;
};

/* A message that a peer has sent and that is not received yet. */
struct sim_offer {
    struct sim_offer *next;
    bool small;
    uint32_t record; /* of the sender, unless small */
    const uint8_t *data;
    size_t bytes;
    uint8_t payload[]; /* small */
};

enum peer_state { PEER_HERE, PEER_LEFT, PEER_FAILED, PEER_DEAD };

struct sim_link {
    struct dpt_conn link; /* first */
    int own_node, peer_node;
    /* Under the mutex. */
    struct sim_link *peer; /* NULL: not yet, or no more, there */
    enum peer_state state;
    int peer_suspect;
    struct sim_offer *inbox, **inbox_end;
    struct rec_queue done; /* own sends that the peer has given back */
};

static struct sim_link *sim_of(struct dpt_conn *link)
{
    return (struct sim_link *)link;
}

static struct sim_listener *listener_of(const struct dpt_comm *comm)
{
    return (struct sim_listener *)comm->listener;
}

static struct dpt_sim_net *net_of(const struct dpt_comm *comm)
{
    return listener_of(comm)->net;
}

static int node_of(const struct dpt_comm *comm)
{
    return listener_of(comm)->node;
}

static void wake_seat(struct seat *seat)
{
    const uint64_t one = 1;
    if (seat->comm != NULL && write(seat->comm->wake_fd, &one, sizeof one) < 0)
        DPT_ASSERT(errno == EAGAIN);
}

static void wake_all(struct dpt_sim_net *net)
{
    for (int i = 0; i < DPT_SIM_NODES_MAX; i++)
        wake_seat(&net->seats[i]);
}

/* The network. */

enum dpt_status dpt_sim_net_create(struct dpt_sim_net **ret, struct dpt_err *err)
{
    struct dpt_sim_net *net = calloc(1, sizeof *net);
    if (net == NULL || pthread_mutex_init(&net->mutex, NULL) != 0) {
        free(net);
        return dpt_fail(err, DPT_ENOMEM, "memory for a simulated network");
    }
    *ret = net;
    return DPT_OK;
}

void dpt_sim_net_destroy(struct dpt_sim_net **net_p)
{
    struct dpt_sim_net *net = *net_p;
    *net_p = NULL;
    if (net == NULL)
        return;
    for (int i = 0; i < DPT_SIM_NODES_MAX; i++)
        DPT_ASSERT(net->seats[i].comm == NULL);
    pthread_mutex_destroy(&net->mutex);
    free(net);
}

/* With the mutex held. */
static void kill_node(struct dpt_sim_net *net, int node)
{
    struct seat *seat = &net->seats[node];
    seat->dead = true;
    for (int i = 0; seat->comm != NULL && i < seat->comm->n_links; i++) {
        struct sim_link *peer = sim_of(seat->comm->links[i])->peer;
        if (peer == NULL)
            continue;
        peer->state = PEER_DEAD;
        peer->peer = NULL;
        sim_of(seat->comm->links[i])->peer = NULL;
    }
    wake_all(net);
}

void dpt_sim_stall(struct dpt_sim_net *net, int from, int to, bool on)
{
    pthread_mutex_lock(&net->mutex);
    net->stalled[from][to] = on;
    wake_seat(&net->seats[to]);
    pthread_mutex_unlock(&net->mutex);
}

void dpt_sim_fault_at(struct dpt_sim_net *net, int node, uint64_t call, enum dpt_sim_fault fault)
{
    pthread_mutex_lock(&net->mutex);
    net->seats[node].fault_set = true;
    net->seats[node].fault = fault;
    net->seats[node].fault_call = call;
    pthread_mutex_unlock(&net->mutex);
}

uint64_t dpt_sim_calls(struct dpt_sim_net *net, int node)
{
    pthread_mutex_lock(&net->mutex);
    const uint64_t calls = net->seats[node].calls;
    pthread_mutex_unlock(&net->mutex);
    return calls;
}

/* Counts the call, and lets the fault happen that was set for it. */
static enum dpt_status sim_call(struct dpt_comm *comm, struct dpt_err *err)
{
    pthread_mutex_lock(&net_of(comm)->mutex);
    struct seat *seat = &net_of(comm)->seats[node_of(comm)];
    if (seat->fault_set && seat->calls == seat->fault_call) {
        seat->fault_set = false;
        if (seat->fault == DPT_SIM_FAULT_KILL)
            kill_node(net_of(comm), node_of(comm));
        else
            atomic_store(&comm->abort_asked, true);
    }
    seat->calls++;
    const bool dead = seat->dead;
    pthread_mutex_unlock(&net_of(comm)->mutex);
    return dead ? dpt_fail(err, DPT_EABORTED, "simulated death") : DPT_OK;
}

/* Links. */

static enum dpt_status offer_one(struct sim_link *sim, struct dpt_rec *rec, struct dpt_err *err)
{
    const size_t payload = rec->small != NULL ? rec->bytes : 0;
    struct sim_offer *offer = calloc(1, sizeof *offer + payload);
    if (offer == NULL)
        return dpt_fail(err, DPT_ENOMEM, "memory for a simulated transfer");
    offer->small = rec->small != NULL;
    offer->record = dpt_conn_rec_index(rec);
    offer->data = rec->data;
    offer->bytes = rec->bytes;
    if (offer->small) {
        memcpy(offer->payload, rec->small, payload);
        offer->data = offer->payload;
    }
    *sim->peer->inbox_end = offer;
    sim->peer->inbox_end = &offer->next;
    return DPT_OK;
}

static enum dpt_status sim_send(struct dpt_conn *link, struct dpt_err *err)
{
    struct sim_link *sim = sim_of(link);
    struct dpt_sim_net *net = net_of(link->comm);
    enum dpt_status status = DPT_OK;
    pthread_mutex_lock(&net->mutex);
    const bool any = sim->peer != NULL && link->sends.first != NULL;
    while (status == DPT_OK && sim->peer != NULL && link->sends.first != NULL) {
        struct dpt_rec *rec = link->sends.first;
        status = offer_one(sim, rec, err);
        if (status != DPT_OK)
            break;
        dpt_conn_queue_pop(&link->sends);
        rec->state = REC_OFFERED;
        if (rec->small != NULL) {
            dpt_conn_complete_rec(rec);
            dpt_conn_free_rec(rec);
        }
    }
    if (any)
        wake_seat(&net->seats[sim->peer_node]);
    pthread_mutex_unlock(&net->mutex);
    return status;
}

/* With the mutex held: the peer's record goes back to it. */
static void return_record(struct sim_link *sim, uint32_t record)
{
    if (sim->peer == NULL)
        return;
    dpt_conn_queue_push(&sim->peer->done, &sim->peer->link.comm->pool.recs[record]);
    wake_seat(&net_of(sim->link.comm)->seats[sim->peer_node]);
}

/* With the mutex held. */
static enum dpt_status match_one(struct sim_link *sim, struct dpt_err *err)
{
    struct dpt_conn *link = &sim->link;
    struct sim_offer *offer = sim->inbox;
    struct dpt_rec *rec = link->recvs.first;
    if (rec->bytes != offer->bytes)
        return dpt_conn_broken(link, DPT_EPROTO, err, "it sends another length than is expected");
    const bool in_place = rec->dir == DPT_COMM_LEND && rec->data == NULL && !offer->small;
    if (!in_place && rec->data == NULL && rec->bytes > 0)
        return dpt_conn_broken(link, DPT_EINVAL, err,
                               "a LEND without staging of bytes that are in no region");
    if (!in_place && rec->bytes > 0)
        memcpy(rec->data, offer->data, rec->bytes);
    dpt_conn_queue_pop(&link->recvs);
    sim->inbox = offer->next;
    if (sim->inbox == NULL)
        sim->inbox_end = &sim->inbox;
    rec->remote = offer->record;
    if (in_place) {
        dpt_conn_lend_rec(rec, offer->data, NULL);
    } else {
        if (rec->dir == DPT_COMM_LEND)
            rec->xfer->lent = rec->data;
        if (!offer->small)
            return_record(sim, offer->record);
        dpt_conn_complete_rec(rec);
        dpt_conn_free_rec(rec);
    }
    free(offer);
    return DPT_OK;
}

static enum dpt_status receive_locked(struct sim_link *sim, struct dpt_err *err)
{
    struct dpt_conn *link = &sim->link;
    for (struct dpt_rec *rec; (rec = dpt_conn_queue_pop(&sim->done)) != NULL;) {
        dpt_conn_complete_rec(rec);
        dpt_conn_free_rec(rec);
    }
    while (sim->inbox != NULL && link->recvs.first != NULL &&
           (sim->inbox->small || sim->peer != NULL) && /* else its memory is gone */
           !net_of(link->comm)->stalled[sim->peer_node][sim->own_node])
        DPT_TRY(match_one(sim, err));
    if (sim->state == PEER_DEAD)
        return dpt_conn_lost(link, -1, err, "it died");
    if (sim->state == PEER_FAILED)
        return dpt_conn_lost(link, sim->peer_suspect, err, "it gave up");
    if (sim->state == PEER_LEFT) {
        link->bye = true;
        return dpt_conn_check_end(link, true, err);
    }
    return DPT_OK;
}

static enum dpt_status sim_receive(struct dpt_conn *link, struct dpt_err *err)
{
    pthread_mutex_lock(&net_of(link->comm)->mutex);
    const enum dpt_status status = receive_locked(sim_of(link), err);
    pthread_mutex_unlock(&net_of(link->comm)->mutex);
    return status;
}

static void sim_give_back(struct dpt_conn *link, struct dpt_rec *rec)
{
    pthread_mutex_lock(&net_of(link->comm)->mutex);
    return_record(sim_of(link), rec->remote);
    pthread_mutex_unlock(&net_of(link->comm)->mutex);
    dpt_conn_free_rec(rec);
}

static void sim_destroy(struct dpt_conn *link, enum link_goodbye goodbye, int suspect)
{
    struct sim_link *sim = sim_of(link);
    struct dpt_sim_net *net = net_of(link->comm);
    pthread_mutex_lock(&net->mutex);
    if (sim->peer != NULL) {
        sim->peer->state = goodbye == GOODBYE_ORDERLY ? PEER_LEFT : PEER_FAILED;
        sim->peer->peer_suspect = suspect;
        sim->peer->peer = NULL;
        wake_seat(&net->seats[sim->peer_node]);
    }
    while (sim->inbox != NULL) {
        struct sim_offer *next = sim->inbox->next;
        free(sim->inbox);
        sim->inbox = next;
    }
    pthread_mutex_unlock(&net->mutex);
    free(sim);
}

/* Without descriptors the interest is unused. */
static const struct dpt_conn_ops sim_ops = {
    .send = sim_send,
    .receive = sim_receive,
    .give_back = sim_give_back,
    .destroy = sim_destroy,
};

/* Creation. */

static enum dpt_status add_links(struct dpt_comm *comm, const struct dpt_comm_spec *spec,
                                 struct dpt_err *err)
{
    for (int i = 0; i < spec->n_peers; i++) {
        struct sim_link *sim = calloc(1, sizeof *sim);
        if (sim == NULL)
            return dpt_fail(err, DPT_ENOMEM, "memory for the link to rank %d", spec->peers[i].rank);
        sim->link = (struct dpt_conn){
            .ops = &sim_ops, .comm = comm, .rank = spec->peers[i].rank, .fd = -1, .ready = true};
        sim->own_node = node_of(comm);
        sim->inbox_end = &sim->inbox;
        dpt_comm_add_link(comm, &sim->link);
        if (sscanf(spec->peers[i].tcp_addr, "sim:%d", &sim->peer_node) != 1 || sim->peer_node < 0 ||
            sim->peer_node >= DPT_SIM_NODES_MAX)
            return dpt_fail(err, DPT_EINVAL, "'%s' is no simulated address",
                            spec->peers[i].tcp_addr);
    }
    return DPT_OK;
}

/* With the mutex held: sits down and ties the links to the peers that are there already. */
static void sit_down(struct dpt_comm *comm, const struct dpt_comm_spec *spec)
{
    struct seat *own = &net_of(comm)->seats[node_of(comm)];
    DPT_ASSERT(own->comm == NULL);
    own->comm = comm;
    own->spec = *spec;
    for (int i = 0; i < comm->n_links; i++) {
        struct sim_link *sim = sim_of(comm->links[i]);
        struct seat *seat = &net_of(comm)->seats[sim->peer_node];
        if (seat->comm == NULL || seat->dead || seat->spec.generation != spec->generation ||
            seat->comm->rank != sim->link.rank ||
            memcmp(seat->spec.nonce, spec->nonce, sizeof spec->nonce) != 0 ||
            strcmp(seat->spec.run, spec->run) != 0 || seat->comm->link_of[comm->rank] == NULL)
            continue;
        sim->peer = sim_of(seat->comm->link_of[comm->rank]);
        sim->peer->peer = sim;
        wake_seat(seat);
    }
}

/* With the mutex held: the first rank that is missing, or -1. */
static enum dpt_status look_round(struct dpt_comm *comm, int *ret_missing, struct dpt_err *err)
{
    int missing = -1;
    for (int i = 0; i < comm->n_links; i++) {
        struct sim_link *sim = sim_of(comm->links[i]);
        const struct seat *seat = &net_of(comm)->seats[sim->peer_node];
        if (sim->state == PEER_FAILED)
            return dpt_conn_lost(&sim->link, sim->peer_suspect, err, "it gave up");
        if (sim->state != PEER_HERE || seat->dead || !seat->listening)
            return dpt_conn_lost(&sim->link, -1, err, "it died");
        if (sim->peer == NULL && missing < 0)
            missing = sim->link.rank;
    }
    *ret_missing = missing;
    return DPT_OK;
}

static enum dpt_status wait_for_peers(struct dpt_comm *comm, int abort_fd, struct dpt_err *err)
{
    const int64_t deadline = dpt_now_ms() + comm->timeout_ms;
    for (;;) {
        DPT_TRY(sim_call(comm, err));
        pthread_mutex_lock(&net_of(comm)->mutex);
        int missing = -1;
        const enum dpt_status status = look_round(comm, &missing, err);
        pthread_mutex_unlock(&net_of(comm)->mutex);
        if (atomic_load(&comm->abort_asked))
            return dpt_fail(err, DPT_EABORTED, "aborted while connecting to peers");
        if (status != DPT_OK || missing < 0)
            return status;
        const int64_t left = deadline - dpt_now_ms();
        if (left <= 0) {
            comm->suspect = missing;
            return dpt_fail(err, DPT_ETIMEOUT, "no connection with rank %d within %d ms", missing,
                            comm->timeout_ms);
        }
        struct pollfd pollfds[] = {{.fd = abort_fd, .events = POLLIN},
                                   {.fd = comm->wake_fd, .events = POLLIN}};
        if (poll(pollfds, 2, (int)left) < 0 && errno != EINTR)
            return dpt_fail_errno(err, errno, "wait for peers");
        if (pollfds[0].revents != 0)
            return dpt_fail(err, DPT_EABORTED, "aborted while connecting to peers");
        uint64_t count;
        if (pollfds[1].revents != 0 && read(comm->wake_fd, &count, sizeof count) < 0)
            DPT_ASSERT(errno == EAGAIN);
    }
}

static enum dpt_status sim_create(struct dpt_comm_listener *listener,
                                  const struct dpt_comm_spec *spec, int abort_fd,
                                  struct dpt_comm **ret, int *ret_suspect, struct dpt_err *err)
{
    struct dpt_comm *comm;
    struct dpt_err failure = {0};
    DPT_TRY(dpt_comm_alloc(listener, spec, &comm, err));
    enum dpt_status status = add_links(comm, spec, &failure);
    if (status == DPT_OK) {
        pthread_mutex_lock(&net_of(comm)->mutex);
        sit_down(comm, spec);
        pthread_mutex_unlock(&net_of(comm)->mutex);
        status = wait_for_peers(comm, abort_fd, &failure);
    }
    if (status != DPT_OK) {
        if (ret_suspect != NULL)
            *ret_suspect = comm->suspect;
        status = dpt_comm_keep_failure(comm, &failure, err);
        dpt_comm_destroy(&comm);
        return status;
    }
    /* Messages that peers sent meanwhile woke the wait above, so the first poll checks every link.
     */
    for (int i = 0; i < comm->n_links; i++)
        comm->links[i]->dirty = comm->dirty = true;
    *ret = comm;
    return DPT_OK;
}

static void sim_forget(struct dpt_comm *comm)
{
    pthread_mutex_lock(&net_of(comm)->mutex);
    struct seat *seat = &net_of(comm)->seats[node_of(comm)];
    if (seat->comm == comm)
        seat->comm = NULL;
    pthread_mutex_unlock(&net_of(comm)->mutex);
}

static void sim_unlisten(struct dpt_comm_listener *base)
{
    const struct sim_listener *listener = (struct sim_listener *)base;
    pthread_mutex_lock(&listener->net->mutex);
    listener->net->seats[listener->node].listening = false;
    wake_all(listener->net);
    pthread_mutex_unlock(&listener->net->mutex);
}

static const struct dpt_comm_network sim_network = {
    .create = sim_create, .call = sim_call, .forget = sim_forget, .unlisten = sim_unlisten};

enum dpt_status dpt_sim_listener_create(struct dpt_sim_net *net, int node,
                                        struct dpt_comm_listener **ret, struct dpt_err *err)
{
    DPT_ASSERT(node >= 0 && node < DPT_SIM_NODES_MAX);
    struct sim_listener *sim = calloc(1, sizeof *sim);
    if (sim == NULL)
        return dpt_fail(err, DPT_ENOMEM, "memory for a listener");
    struct dpt_comm_listener *listener = &sim->base;
    sim->net = net;
    sim->node = node;
    listener->network = &sim_network;
    listener->shm_fd = listener->tcp_fd = -1;
    (void)snprintf(listener->shm_addr, sizeof listener->shm_addr, "sim:%d", node);
    (void)snprintf(listener->tcp_addr, sizeof listener->tcp_addr, "sim:%d", node);
    const enum dpt_status status =
        dpt_comm_mem_create(listener, COMM_STAGING_BYTES, &listener->staging, err);
    if (status != DPT_OK) {
        dpt_comm_listener_destroy(&listener);
        return status;
    }
    pthread_mutex_lock(&net->mutex);
    DPT_ASSERT(!net->seats[node].listening && net->seats[node].comm == NULL);
    net->seats[node] = (struct seat){.listening = true};
    pthread_mutex_unlock(&net->mutex);
    *ret = listener;
    return DPT_OK;
}
