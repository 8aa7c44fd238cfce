/* Traces the owner's waits for late peers (comm_state.h): annotations "wait for peers" with the
 * peer whose data ended the wait. So a collective's time without the waits in it is its transfer.
 *
 * A wait is the time that the owner sleeps or spins while a receive is posted whose peer has not
 * begun to send, no receive is under way, and this rank's own sends are not under way either: if
 * they wait, then because the peer does not read. A wait is split where the data of a peer begins
 * to arrive: of three peers that come one after another each has its share, and the latest has the
 * last one. A wait ends when the owner wakes. The time in which the owner then works, and finds
 * further data that came meanwhile, is no wait. Waits never overlap each other or an op of the
 * thread.
 *
 *     owner      ──post──┬─────sleeps─────┬─reads 1─┬────sleeps────┬─reads 2──►
 *     annotation         └ wait, peer 1 ──┘         └ wait, peer 2 ┘          */
#include "worker/comm/comm_state.h"
#include "worker/trace/span.h"

enum { SHOWN_NS = 1000, NS_A_US = 1000 }; /* tools round times to 1 us */

/* A rank that has not begun to send what is posted; -1: none. */
static int find_awaited(const struct dpt_comm *comm)
{
    for (int i = 0; i < comm->n_links; i++)
        if (comm->links[i]->recvs.first != NULL)
            return comm->links[i]->rank;
    return -1;
}

static bool any_receives(const struct dpt_comm *comm)
{
    for (int i = 0; i < comm->n_links; i++)
        if (comm->links[i]->ops->receives != NULL && comm->links[i]->ops->receives(comm->links[i]))
            return true;
    return false;
}

static bool any_sends(const struct dpt_comm *comm)
{
    for (int i = 0; i < comm->n_links; i++)
        if (comm->links[i]->ops->sends != NULL && comm->links[i]->ops->sends(comm->links[i]))
            return true;
    return false;
}

static int64_t sum_held_up_us(const struct dpt_comm *comm)
{
    int64_t sum = 0;
    for (int i = 0; i < comm->n_links; i++)
        if (comm->links[i]->ops->held_up_us != NULL)
            sum += comm->links[i]->ops->held_up_us(comm->links[i]);
    return sum;
}

void dpt_peer_wait_begin(struct dpt_comm *comm)
{
    if (comm->peer_wait.begin_ns != 0 || !comm->peer_wait.wanted)
        return;
    const int64_t now = dpt_trace_begin();
    if (now == 0 || find_awaited(comm) < 0 || any_receives(comm))
        return;
    comm->peer_wait.begin_ns = now;
    comm->peer_wait.held_up_us = any_sends(comm) ? sum_held_up_us(comm) : -1;
}

void dpt_peer_wait_wake(struct dpt_comm *comm)
{
    if (comm->peer_wait.begin_ns != 0)
        comm->peer_wait.end_ns = dpt_trace_begin();
}

/* Whether the sends that waited at the begin were under way most of the time. */
static bool was_sending(const struct dpt_comm *comm)
{
    const struct peer_wait *wait = &comm->peer_wait;
    return wait->held_up_us >= 0 &&
           2 * NS_A_US * (sum_held_up_us(comm) - wait->held_up_us) < wait->end_ns - wait->begin_ns;
}

static void record_wait(struct dpt_comm *comm, int peer)
{
    const struct peer_wait *wait = &comm->peer_wait;
    if (dpt_trace_ring_here && wait->end_ns >= wait->begin_ns + SHOWN_NS && !was_sending(comm))
        dpt_trace_ring_add(
            dpt_trace_ring_here, wait->begin_ns, wait->end_ns,
            &(struct dpt_trace_span){.name = "wait for peers", .key = {"peer"}, .value = {peer}});
    comm->peer_wait.begin_ns = comm->peer_wait.end_ns = 0;
}

void dpt_peer_arrived(struct dpt_conn *link)
{
    if (link->comm->peer_wait.begin_ns != 0)
        record_wait(link->comm, link->rank);
}

void dpt_peer_wait_end(struct dpt_comm *comm)
{
    if (comm->peer_wait.begin_ns == 0)
        return;
    if (comm->peer_wait.end_ns == 0)
        dpt_peer_wait_wake(comm);
    record_wait(comm, find_awaited(comm));
}
