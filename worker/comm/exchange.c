/* Posting transfers and moving them: exchange, poll, op_free (comm.h). */
#include "worker/comm/internal.h"

#include "base/clock.h"
#include "base/cores.h"

#include <errno.h>
#include <poll.h>
#include <stdint.h>
#include <string.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

static const int64_t NS_A_MS = 1000 * 1000;

enum {
    EVENTS_MAX = 64,
    SPIN_NS = 100 * 1000, /* before going to sleep: a few times what waking a sleeper takes */
    LOOKS = 64            /* between two looks at the clock */
};

/* Posting. */

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
        return dpt_fail(err, DPT_EINVAL,
                        "a transfer with rank %d to be written in place, which takes a SEND from "
                        "open memory and a LEND without staging in one host",
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

static void queue_xfer(struct dpt_comm *comm, struct dpt_comm_op *op, struct dpt_comm_xfer *x)
{
    struct dpt_rec *rec = dpt_rec_take(comm);
    struct dpt_link *link = comm->link_of[x->peer];
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
    } else if (x->dir == DPT_COMM_SEND) {
        rec->data = rec->small = dpt_small_take(comm);
        if (x->bytes > 0)
            memcpy(rec->small, x->buf, x->bytes);
    } else {
        rec->data = x->buf;
    }
    if (x->dir == DPT_COMM_SEND) {
        op->sends_left++;
        dpt_queue_push(&link->sends, rec);
    } else {
        x->lent = x->lent_write = NULL;
        rec->xfer = x;
        op->recvs_left++;
        dpt_queue_push(&link->recvs, rec);
    }
    link->pending++;
    link->dirty = comm->dirty = true;
}

static enum dpt_status send_now(struct dpt_comm *comm, struct dpt_err *err)
{
    for (int i = 0; i < comm->n_links; i++) {
        struct dpt_link *link = comm->links[i];
        if (!link->dirty || link->gone)
            continue;
        DPT_TRY(link->ops->send(link, err));
        DPT_TRY(dpt_link_watch(link, err));
    }
    return DPT_OK;
}

enum dpt_status dpt_comm_exchange(struct dpt_comm *comm, struct dpt_comm_xfer *xfers, int n,
                                  struct dpt_comm_op **ret, struct dpt_err *err)
{
    struct dpt_err failure = {0};
    enum dpt_status status = comm->status;
    if (status == DPT_OK && comm->network != NULL)
        status = comm->network->call(comm, &failure);
    if (status != DPT_OK)
        return dpt_comm_keep_failure(comm, status, &failure, err);
    if (n < 0 || n > DPT_COMM_XFERS_MAX)
        return dpt_fail(err, DPT_EINVAL, "an exchange of %d transfers (at most %d)", n,
                        DPT_COMM_XFERS_MAX);
    int smalls = 0;
    for (int i = 0; i < n; i++) {
        DPT_TRY(check_xfer(comm, &xfers[i], err));
        smalls += xfers[i].mem == NULL && xfers[i].dir == DPT_COMM_SEND;
    }
    if (comm->ops_free == NULL || n > comm->recs_left || smalls > comm->smalls_left)
        return dpt_fail(err, DPT_EOVERFLOW, "too many transfers in flight");

    struct dpt_comm_op *op = comm->ops_free;
    comm->ops_free = op->next;
    *op = (struct dpt_comm_op){.comm = comm, .used = true};
    for (int i = 0; i < n; i++)
        queue_xfer(comm, op, &xfers[i]);
    if (n > 0)
        comm->ops_in_flight++;
    status = send_now(comm, &failure);
    if (status != DPT_OK)
        return dpt_comm_keep_failure(comm, status, &failure, err);
    *ret = op;
    return DPT_OK;
}

bool dpt_comm_op_received(const struct dpt_comm_op *op)
{
    return op->recvs_left == 0;
}

bool dpt_comm_op_done(const struct dpt_comm_op *op)
{
    return dpt_op_done(op);
}

void dpt_comm_op_free(struct dpt_comm *comm, struct dpt_comm_op **op_p)
{
    struct dpt_comm_op *op = *op_p;
    *op_p = NULL;
    if (op == NULL || comm->status != DPT_OK)
        return; /* after a failure nothing moves any more, and destroy ends all */
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
    if (dpt_op_done(op))
        dpt_op_give(op);
    struct dpt_err failure;
    const enum dpt_status status = send_now(comm, &failure);
    if (status != DPT_OK)
        (void)dpt_comm_keep_failure(comm, status, &failure, NULL); /* for the next poll */
}

void dpt_comm_withdraw(struct dpt_comm *comm, struct dpt_comm_mem *mem)
{
    DPT_ASSERT(mem->listener == comm->listener && !mem->withdrawn);
    for (int i = 0; i < COMM_RECORDS_MAX; i++) {
        const struct dpt_rec *rec = &comm->recs[i];
        DPT_ASSERT(comm->status != DPT_OK || rec->state == REC_FREE || rec->dir != DPT_COMM_SEND ||
                   rec->small != NULL || rec->region != (uint32_t)mem->region);
    }
    mem->withdrawn = true;
    if (comm->status != DPT_OK)
        return; /* destroy is all that follows */
    for (int i = 0; i < comm->n_links; i++)
        if (comm->links[i]->ops->withdraw != NULL) {
            comm->links[i]->ops->withdraw(comm->links[i], mem->region);
            comm->links[i]->dirty = comm->dirty = true;
        }
    struct dpt_err failure;
    const enum dpt_status status = send_now(comm, &failure);
    if (status != DPT_OK)
        (void)dpt_comm_keep_failure(comm, status, &failure, NULL); /* for the next poll */
}

/* Writing what was lent. */

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
    bool shut = comm->status != DPT_OK;
    for (const struct dpt_rec *rec = op->lends; !shut && rec != NULL; rec = rec->next)
        if (rec->write && !rec->link->writing) {
            rec->link->writing = rec->link->ops->write_begin(rec->link);
            shut = !rec->link->writing;
        }
    if (!shut)
        return DPT_OK;
    dpt_comm_write_end(comm);
    enum dpt_status status; /* who shuts its memory leaves, and says or shows why */
    do
        status = dpt_comm_poll_woken(comm, -1, err);
    while (status == DPT_INPROGRESS);
    return status;
}

/* Moving. */

static bool still_talks(const struct dpt_link *link)
{
    return !link->lost && !link->gone && !link->doubtful;
}

static enum dpt_status move_link(struct dpt_link *link, struct dpt_err *err)
{
    link->dirty = false;
    DPT_TRY(link->ops->receive(link, err));
    link->readable = false;
    if (!link->gone)
        DPT_TRY(link->ops->send(link, err));
    return dpt_link_watch(link, err);
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
    for (int i = 0; comm->network != NULL && i < comm->n_links; i++)
        comm->links[i]->dirty = comm->dirty = true; /* its wake means any link */
}

static bool has_mail(struct dpt_link *link)
{
    return link->ops->has_mail != NULL && still_talks(link) && link->ops->has_mail(link);
}

static bool any_mail(const struct dpt_comm *comm)
{
    for (int i = 0; i < comm->n_links; i++)
        if (has_mail(comm->links[i]))
            return true;
    return false;
}

static void rest(struct dpt_comm *comm, bool sleeps)
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
            return false; /* its socket would not be looked at */
    return comm->n_links > 0;
}

/* Looks for mail for a moment. True: there is some, or an abort or a wake has come. */
static bool spin(const struct dpt_comm *comm)
{
    if (!may_spin(comm))
        return false;
    const int64_t end = dpt_now_ns() + SPIN_NS;
    do {
        for (int i = 0; i < LOOKS; i++) {
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

/* As epoll_wait, which knows no time below a millisecond; may return earlier. */
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

/* Waits for descriptors at most wait_ns (-1: for ever), marks the links that are ready. */
static enum dpt_status wait_events(struct dpt_comm *comm, int64_t wait_ns, struct dpt_err *err)
{
    struct epoll_event events[EVENTS_MAX];
    if (wait_ns != 0) {
        rest(comm, true);
        if (any_mail(comm)) /* it came before the peers knew that they must wake this side */
            wait_ns = 0;
    }
    const int n = wait_epoll(comm->epoll_fd, events, wait_ns);
    const int saved_errno = errno;
    rest(comm, false);
    if (n < 0 && saved_errno != EINTR)
        return dpt_fail_errno(err, saved_errno, "wait for peers");
    for (int i = 0; i < n; i++) {
        struct dpt_link *link = events[i].data.ptr;
        if (link == NULL)
            drain_wake(comm);
        else
            link->readable = true;
    }
    return DPT_OK;
}

/* Moves the links of which a descriptor or their mail says that they can. */
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
        const int64_t deadline = comm->links[i]->ops->deadline_ms(comm->links[i]);
        if (deadline <= now)
            return comm->links[i]->ops->late(comm->links[i], err);
        next = deadline < next ? deadline : next;
    }
    *ret_next = next;
    return DPT_OK;
}

/* Nanoseconds to the earlier of the two; -1: there is none. */
static int64_t wait_until(int64_t now_ns, int64_t end_ns, int64_t deadline_ms)
{
    const int64_t deadline_ns = deadline_ms == INT64_MAX ? INT64_MAX : deadline_ms * NS_A_MS;
    const int64_t until = end_ns < deadline_ns ? end_ns : deadline_ns;
    if (until == INT64_MAX)
        return -1;
    return until < now_ns ? 0 : until - now_ns;
}

/* What a poll waits for, beside errors, its deadline and dpt_comm_wake. */
enum until { UNTIL_DONE, UNTIL_RECEIVED, UNTIL_ANY, UNTIL_WOKEN };

static bool reached(const struct dpt_comm *comm, const struct dpt_comm_op *op, enum until until,
                    bool looked)
{
    switch (until) {
    case UNTIL_DONE:
        return op != NULL ? dpt_op_done(op) : looked && comm->ops_in_flight == 0;
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
    /* While the owner was away nothing of this side moved: a pause of its own starts the clocks
       of begun transfers anew. */
    if (now / NS_A_MS - comm->last_poll_ms > comm->timeout_ms / 4)
        comm->polling_since_ms = now / NS_A_MS;
    for (bool looked = false;; looked = true) {
        if (atomic_load_explicit(&comm->abort_asked, memory_order_acquire))
            return dpt_fail(err, DPT_EABORTED, "communicator aborted");
        DPT_TRY(move_dirty(comm, err));
        DPT_TRY(move_ready(comm, err));
        if (reached(comm, op, until, looked))
            return DPT_OK;
        comm->woken = looked && atomic_exchange(&comm->wake_asked, false);
        if (comm->woken)
            return DPT_INPROGRESS;
        const bool may_be_long = wait_ns < 0 || wait_ns > SPIN_NS;
        if (may_be_long && spin(comm))
            continue;
        now = dpt_now_ns();
        if (looked && now >= end)
            return DPT_INPROGRESS;
        int64_t deadline = INT64_MAX;
        if (looked)
            DPT_TRY(dpt_comm_check_deadlines(comm, now / NS_A_MS, &deadline, err));
        DPT_TRY(wait_events(comm, looked ? wait_until(now, end, deadline) : 0, err));
    }
}

static enum dpt_status poll_comm(struct dpt_comm *comm, struct dpt_comm_op *op, enum until until,
                                 int64_t wait_ns, struct dpt_err *err)
{
    struct dpt_err failure = {0};
    enum dpt_status status = comm->status;
    if (status == DPT_OK && comm->network != NULL)
        status = comm->network->call(comm, &failure);
    if (status == DPT_OK)
        status = poll_until(comm, op, until, wait_ns, &failure);
    comm->last_poll_ms = dpt_now_ms();
    if (status == DPT_OK || status == DPT_INPROGRESS)
        return status;
    return dpt_comm_keep_failure(comm, status, &failure, err);
}

/* Settling. */

bool dpt_comm_aborting(const struct dpt_comm *comm)
{
    return atomic_load_explicit(&comm->abort_asked, memory_order_relaxed) && !comm->settling;
}

/* Takes what has come on every link that still talks, sends what waits there. */
static void look_at_all(struct dpt_comm *comm)
{
    for (int i = 0; i < comm->n_links; i++) {
        struct dpt_link *link = comm->links[i];
        struct dpt_err ignored; /* the first failure is the one that is reported */
        link->readable = true;
        if (still_talks(link) && link->ops->receive(link, &ignored) != DPT_OK)
            link->lost = true;
        if (still_talks(link) && link->ops->send(link, &ignored) != DPT_OK)
            link->lost = true;
        if (dpt_link_watch(link, &ignored) != DPT_OK)
            link->lost = true;
    }
}

/* True when something that `op` receives would have to come from a peer that talks no more. */
static bool waits_for_lost(const struct dpt_comm *comm, const struct dpt_comm_op *op)
{
    for (int i = 0; i < comm->n_links; i++) {
        if (still_talks(comm->links[i]))
            continue;
        for (const struct dpt_rec *rec = comm->links[i]->recvs.first; rec != NULL; rec = rec->next)
            if (rec->op == op)
                return true;
    }
    return false;
}

static bool settle(struct dpt_comm *comm, const struct dpt_comm_op *op)
{
    const int64_t end = dpt_now_ms() + COMM_DOUBT_MS;
    for (bool last = false;;) {
        last = last || atomic_load(&comm->abort_asked);
        look_at_all(comm);
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
    const bool aborted = comm->status == DPT_EABORTED && atomic_load(&comm->abort_asked);
    struct dpt_err ignored;
    if (comm->status != DPT_EPEER && !aborted)
        return false;
    if (comm->network != NULL && comm->network->call(comm, &ignored) != DPT_OK)
        return false;
    const int suspect = comm->suspect;
    comm->settling = true;
    const bool received = settle(comm, op);
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

enum dpt_status dpt_comm_poll_woken(struct dpt_comm *comm, int wait_ms, struct dpt_err *err)
{
    return poll_comm(comm, NULL, UNTIL_WOKEN, wait_ms * NS_A_MS, err);
}

enum dpt_status dpt_comm_nap(struct dpt_comm *comm, int64_t wait_ns, struct dpt_err *err)
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
