/* Moving transfers and waiting for them (comm.h). */
#include "worker/comm/relay.h"

#include "base/clock.h"
#include "base/cores.h"

#include <errno.h>
#include <poll.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

static const int64_t NS_A_MS = 1000 * 1000;

enum {
    EVENTS_MAX = 64,
    SPIN_NS = 100 * 1000, /* before sleeping: a few times the cost of waking a sleeper */
    CHECKS_PER_CLOCK = 64 /* looks for mail between two readings of the clock */
};

static bool is_connected(const struct dpt_conn *link)
{
    return !link->lost && !link->gone && !link->doubtful;
}

static enum dpt_status move_link(struct dpt_conn *link, struct dpt_err *err)
{
    link->dirty = false;
    DPT_TRY(link->ops->receive(link, err));
    link->readable = false;
    if (!link->gone)
        DPT_TRY(link->ops->send(link, err));
    return dpt_conn_watch(link, err);
}

static enum dpt_status move_dirty(struct dpt_comm *comm, struct dpt_err *err)
{
    if (!comm->dirty)
        return DPT_OK;
    comm->dirty = false;
    for (int i = 0; i < comm->n_links; i++)
        if (comm->links[i]->dirty)
            DPT_TRY(move_link(comm->links[i], err));
    return DPT_OK;
}

static void drain_wake(struct dpt_comm *comm)
{
    uint64_t count;
    const ssize_t n = read(comm->wake_fd, &count, sizeof count);
    DPT_ASSERT(n == (ssize_t)sizeof count || errno == EAGAIN);
    for (int i = 0; comm->listener->network != NULL && i < comm->n_links; i++)
        comm->links[i]->dirty = comm->dirty = true; /* its wake may concern any link */
}

static bool has_mail(struct dpt_conn *link)
{
    return link->ops->has_mail != NULL && is_connected(link) && link->ops->has_mail(link);
}

static bool any_mail(const struct dpt_comm *comm)
{
    for (int i = 0; i < comm->n_links; i++)
        if (has_mail(comm->links[i]))
            return true;
    return false;
}

static void tell_links_of_rest(struct dpt_comm *comm, bool sleeps)
{
    for (int i = 0; i < comm->n_links; i++)
        if (comm->links[i]->ops->rest != NULL)
            comm->links[i]->ops->rest(comm->links[i], sleeps);
}

static bool may_spin(const struct dpt_comm *comm)
{
    if (!atomic_load_explicit(&comm->spin_allowed, memory_order_relaxed) ||
        !dpt_cores_known_spare())
        return false;
    for (int i = 0; i < comm->n_links; i++)
        if (comm->links[i]->ops->has_mail == NULL)
            return false; /* this link's messages arrive only through its socket */
    return comm->n_links > 0;
}

/* Checks for mail for SPIN_NS. True: there is mail, an abort or a wake. */
static bool spin_for_mail(struct dpt_comm *comm)
{
    if (!may_spin(comm))
        return false;
    dpt_peer_wait_begin(comm);
    const int64_t end = dpt_now_ns() + SPIN_NS;
    do {
        for (int i = 0; i < CHECKS_PER_CLOCK; i++) {
            if (any_mail(comm) || atomic_load_explicit(&comm->abort_asked, memory_order_relaxed) ||
                atomic_load_explicit(&comm->wake_asked, memory_order_relaxed))
                return true;
#if defined(__x86_64__) || defined(__i386__)
            __builtin_ia32_pause();
#endif
        }
    } while (dpt_now_ns() < end);
    return false;
}

/* epoll_wait with nanoseconds; may return earlier. */
static int wait_epoll(int epoll_fd, struct epoll_event *events, int64_t wait_ns)
{
    const int64_t ms = wait_ns / NS_A_MS;
    if (wait_ns <= 0 || ms > 0)
        return epoll_wait(epoll_fd, events, EVENTS_MAX,
                          wait_ns < 0      ? -1
                          : ms > INT32_MAX ? INT32_MAX
                                           : (int)ms);
    struct pollfd fd = {.fd = epoll_fd, .events = POLLIN};
    const struct timespec wait = {.tv_nsec = wait_ns};
    const int ready = ppoll(&fd, 1, &wait, NULL);
    return ready > 0 ? epoll_wait(epoll_fd, events, EVENTS_MAX, 0) : ready;
}

/* Waits for descriptors for at most wait_ns (-1: no limit) and marks the links that are ready. */
static enum dpt_status wait_events(struct dpt_comm *comm, int64_t wait_ns, struct dpt_err *err)
{
    struct epoll_event events[EVENTS_MAX];
    if (wait_ns != 0) {
        tell_links_of_rest(comm, true);
        if (any_mail(comm)) /* sent before the peer could see that this rank sleeps */
            wait_ns = 0;
    }
    const int n = wait_epoll(comm->epoll_fd, events, wait_ns);
    const int saved_errno = errno;
    tell_links_of_rest(comm, false);
    if (n < 0 && saved_errno != EINTR)
        return dpt_fail_errno(err, saved_errno, "wait for peers");
    for (int i = 0; i < n; i++) {
        struct dpt_conn *link = events[i].data.ptr;
        if (link == NULL)
            drain_wake(comm);
        else
            link->readable = true;
    }
    return DPT_OK;
}

/* Moves the links whose descriptor is ready or that have mail. */
static enum dpt_status move_ready(struct dpt_comm *comm, struct dpt_err *err)
{
    for (int i = 0; i < comm->n_links; i++)
        if (comm->links[i]->readable || has_mail(comm->links[i]))
            DPT_TRY(move_link(comm->links[i], err));
    return DPT_OK;
}

enum dpt_status dpt_comm_check_deadlines(struct dpt_comm *comm, int64_t now, int64_t *ret_next,
                                         struct dpt_err *err)
{
    int64_t next = INT64_MAX;
    for (int i = 0; i < comm->n_links; i++) {
        struct dpt_conn *link = comm->links[i];
        if (link->ops->deadline_ms == NULL)
            continue;
        const int64_t deadline = link->ops->deadline_ms(link);
        if (deadline <= now)
            return link->ops->late(link, err);
        next = deadline < next ? deadline : next;
    }
    *ret_next = next;
    return DPT_OK;
}

/* Nanoseconds until the earlier of `end_ns` and `deadline_ms`; -1: there is neither. */
static int64_t wait_until(int64_t now_ns, int64_t end_ns, int64_t deadline_ms)
{
    const int64_t deadline_ns = deadline_ms == INT64_MAX ? INT64_MAX : deadline_ms * NS_A_MS;
    const int64_t until = end_ns < deadline_ns ? end_ns : deadline_ns;
    if (until == INT64_MAX)
        return -1;
    return until < now_ns ? 0 : until - now_ns;
}

static bool nothing_moves(const struct dpt_comm *comm)
{
    return comm->ops_in_flight == 0 && (comm->router == NULL || dpt_router_is_idle(comm->router));
}

/* The goal of a poll. Errors, the end of the wait time and dpt_comm_wake end the poll earlier. */
enum until { UNTIL_DONE, UNTIL_RECEIVED, UNTIL_ANY, UNTIL_WOKEN };

static bool poll_goal_reached(const struct dpt_comm *comm, const struct dpt_comm_op *op,
                              enum until until, bool looked)
{
    switch (until) {
    case UNTIL_DONE:
        return op != NULL ? dpt_comm_op_done(op) : looked && nothing_moves(comm);
    case UNTIL_RECEIVED:
        return dpt_comm_op_received(op);
    case UNTIL_ANY:
        return comm->news;
    case UNTIL_WOKEN:
        break;
    }
    return false;
}

static enum dpt_status poll_until(struct dpt_comm *comm, struct dpt_comm_op *op, enum until until,
                                  int64_t wait_ns, struct dpt_err *err)
{
    int64_t now = dpt_now_ns();
    const int64_t end = wait_ns < 0 ? INT64_MAX : now + wait_ns;
    /* While the owner did not poll, nothing could move. So after a long pause the deadlines of
       begun transfers count from now. */
    if (now / NS_A_MS - comm->last_poll_ms > comm->timeout_ms / 4)
        comm->polling_since_ms = now / NS_A_MS;
    comm->peer_wait.wanted = until != UNTIL_WOKEN;
    for (bool looked = false;; looked = true) {
        dpt_peer_wait_wake(comm);
        if (atomic_load_explicit(&comm->abort_asked, memory_order_acquire))
            return dpt_fail(err, DPT_EABORTED, "communicator aborted");
        DPT_TRY(move_dirty(comm, err));
        DPT_TRY(move_ready(comm, err));
        if (poll_goal_reached(comm, op, until, looked))
            return DPT_OK;
        comm->woken = looked && atomic_exchange(&comm->wake_asked, false);
        if (comm->woken)
            return DPT_INPROGRESS;
        const bool may_be_long = wait_ns < 0 || wait_ns > SPIN_NS;
        if (may_be_long && spin_for_mail(comm))
            continue;
        now = dpt_now_ns();
        if (looked && now >= end)
            return DPT_INPROGRESS;
        int64_t deadline = INT64_MAX;
        if (looked) {
            DPT_TRY(dpt_comm_check_deadlines(comm, now / NS_A_MS, &deadline, err));
            dpt_peer_wait_begin(comm);
        }
        DPT_TRY(wait_events(comm, looked ? wait_until(now, end, deadline) : 0, err));
    }
}

static enum dpt_status poll_comm(struct dpt_comm *comm, struct dpt_comm_op *op, enum until until,
                                 int64_t wait_ns, struct dpt_err *err)
{
    struct dpt_err failure = {0};
    enum dpt_status status = comm->failure.status;
    if (status == DPT_OK && comm->listener->network != NULL)
        status = comm->listener->network->call(comm, &failure);
    if (status == DPT_OK)
        status = poll_until(comm, op, until, wait_ns, &failure);
    dpt_peer_wait_end(comm);
    comm->last_poll_ms = dpt_now_ms();
    if (status == DPT_OK || status == DPT_INPROGRESS)
        return status;
    return dpt_comm_keep_failure(comm, &failure, err);
}

enum dpt_status dpt_comm_relay(struct dpt_comm *comm)
{
    struct dpt_err failure = {0};
    if (comm->failure.status != DPT_OK)
        return comm->failure.status;
    const enum dpt_status status = poll_until(comm, NULL, UNTIL_WOKEN, -1, &failure);
    comm->last_poll_ms = dpt_now_ms();
    if (status == DPT_INPROGRESS || (status == DPT_EABORTED && comm->ops_in_flight == 0))
        return status;
    return dpt_comm_keep_failure(comm, &failure, NULL);
}

/* Settling. */

/* Receives and sends on every link that is neither lost nor gone. */
static void move_all_links(struct dpt_comm *comm)
{
    for (int i = 0; i < comm->n_links; i++) {
        struct dpt_conn *link = comm->links[i];
        struct dpt_err ignored; /* the first failure is the one that is reported */
        link->readable = true;
        if (is_connected(link) && link->ops->receive(link, &ignored) != DPT_OK)
            link->lost = true;
        if (is_connected(link) && link->ops->send(link, &ignored) != DPT_OK)
            link->lost = true;
        if (dpt_conn_watch(link, &ignored) != DPT_OK)
            link->lost = true;
    }
}

/* True when `op` still receives from a peer that is lost or gone. */
static bool waits_for_lost(const struct dpt_comm *comm, const struct dpt_comm_op *op)
{
    for (int i = 0; i < comm->n_links; i++) {
        if (is_connected(comm->links[i]))
            continue;
        for (const struct dpt_rec *rec = comm->links[i]->recvs.first; rec != NULL; rec = rec->next)
            if (rec->op == op)
                return true;
    }
    return false;
}

static bool settle_op(struct dpt_comm *comm, const struct dpt_comm_op *op)
{
    const int64_t end = dpt_now_ms() + COMM_DOUBT_MS;
    for (bool last = false;;) {
        last = last || atomic_load(&comm->abort_asked);
        move_all_links(comm);
        if (dpt_comm_op_received(op))
            return true;
        const int64_t now = dpt_now_ms();
        if (last || now >= end || waits_for_lost(comm, op))
            return false;
        struct dpt_err ignored;
        if (wait_events(comm, (end - now) * NS_A_MS, &ignored) != DPT_OK)
            return false;
    }
}

bool dpt_comm_settle(struct dpt_comm *comm, struct dpt_comm_op *op)
{
    const bool aborted = comm->failure.status == DPT_EABORTED && atomic_load(&comm->abort_asked);
    struct dpt_err ignored;
    if (comm->failure.status != DPT_EPEER && !aborted)
        return false;
    if (comm->listener->network != NULL && comm->listener->network->call(comm, &ignored) != DPT_OK)
        return false;
    const int suspect = comm->suspect;
    comm->settling = true;
    const bool received = settle_op(comm, op);
    comm->settling = false;
    comm->suspect = suspect;
    return received;
}

enum dpt_status dpt_comm_poll(struct dpt_comm *comm, struct dpt_comm_op *op, int wait_ms,
                              struct dpt_err *err)
{
    return poll_comm(comm, op, UNTIL_DONE, wait_ms * NS_A_MS, err);
}

enum dpt_status dpt_comm_poll_received(struct dpt_comm *comm, struct dpt_comm_op *op, int wait_ms,
                                       struct dpt_err *err)
{
    return poll_comm(comm, op, UNTIL_RECEIVED, wait_ms * NS_A_MS, err);
}

enum dpt_status dpt_comm_poll_woken(struct dpt_comm *comm, int64_t wait_ns, struct dpt_err *err)
{
    return poll_comm(comm, NULL, UNTIL_WOKEN, wait_ns, err);
}

enum dpt_status dpt_comm_poll_any(struct dpt_comm *comm, int wait_ms, struct dpt_err *err)
{
    const enum dpt_status status = poll_comm(comm, NULL, UNTIL_ANY, wait_ms * NS_A_MS, err);
    if (status == DPT_OK)
        comm->news = false;
    return status;
}
