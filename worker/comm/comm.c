/* The communicator: operations, their records and pools, and the loop that moves the links (comm.h,
 * internal.h). */
#include "worker/comm/internal.h"

#include "base/log.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* Queues and records. */

void dpt_queue_push(struct rec_queue *queue, struct dpt_rec *rec)
{
    rec->next = NULL;
    if (queue->first == NULL)
        queue->first = rec;
    else
        queue->last->next = rec;
    queue->last = rec;
}

struct dpt_rec *dpt_queue_pop(struct rec_queue *queue)
{
    struct dpt_rec *rec = queue->first;
    if (rec != NULL) {
        queue->first = rec->next;
        rec->next = NULL;
    }
    return rec;
}

uint32_t dpt_rec_index(const struct dpt_rec *rec)
{
    return (uint32_t)(rec - rec->link->comm->recs);
}

uint8_t *dpt_small_take(struct dpt_comm *comm)
{
    uint8_t *slot = comm->smalls_free;
    DPT_ASSERT(slot != NULL);
    memcpy(&comm->smalls_free, slot, sizeof slot);
    comm->smalls_left--;
    return slot;
}

static void small_give(struct dpt_comm *comm, uint8_t *slot)
{
    memcpy(slot, &comm->smalls_free, sizeof slot);
    comm->smalls_free = slot;
    comm->smalls_left++;
}

struct dpt_rec *dpt_rec_take(struct dpt_comm *comm)
{
    struct dpt_rec *rec = comm->recs_free;
    DPT_ASSERT(rec != NULL && rec->state == REC_FREE);
    comm->recs_free = rec->next;
    comm->recs_left--;
    memset(rec, 0, sizeof *rec);
    return rec;
}

void dpt_rec_free(struct dpt_rec *rec)
{
    struct dpt_comm *comm = rec->link->comm;
    if (rec->small != NULL)
        small_give(comm, rec->small);
    rec->small = NULL;
    rec->state = REC_FREE;
    rec->next = comm->recs_free;
    comm->recs_free = rec;
    comm->recs_left++;
}

bool dpt_op_done(const struct dpt_comm_op *op)
{
    return op->sends_left == 0 && op->recvs_left == 0;
}

void dpt_op_give(struct dpt_comm_op *op)
{
    op->used = false;
    op->next = op->comm->ops_free;
    op->comm->ops_free = op;
}

void dpt_rec_complete(struct dpt_rec *rec)
{
    struct dpt_comm_op *op = rec->op;
    rec->link->pending--;
    if (rec->dir == DPT_COMM_SEND) {
        op->sends_left--;
        rec->link->comm->bytes_sent += rec->bytes;
    } else {
        op->recvs_left--;
    }
    if (!dpt_op_done(op))
        return;
    op->comm->ops_in_flight--;
    op->comm->news = true;
    if (op->freed)
        dpt_op_give(op);
}

void dpt_rec_lend(struct dpt_rec *rec, const void *data, void *writable)
{
    rec->xfer->lent = data;
    rec->xfer->lent_write = writable;
    rec->state = REC_LENT;
    rec->next = rec->op->lends;
    rec->op->lends = rec;
    dpt_rec_complete(rec);
}

enum dpt_status dpt_link_copy(struct dpt_link *link, void *to, const void *from, size_t bytes,
                              struct dpt_err *err)
{
    for (size_t at = 0; at < bytes; at += COMM_COPY_CHUNK_BYTES) {
        if (dpt_comm_aborting(link->comm))
            return dpt_fail(err, DPT_EABORTED, "communicator aborted");
        const size_t n = bytes - at < COMM_COPY_CHUNK_BYTES ? bytes - at : COMM_COPY_CHUNK_BYTES;
        memcpy((uint8_t *)to + at, (const uint8_t *)from + at, n);
    }
    return DPT_OK;
}

/* Failures. */

enum dpt_status dpt_link_lost(struct dpt_link *link, int suspect, struct dpt_err *err,
                              const char *how)
{
    link->lost = true;
    if (suspect >= 0 && suspect < link->comm->world_size && suspect != link->comm->rank) {
        link->comm->suspect = suspect;
        return dpt_fail(err, DPT_EPEER, "rank %d gave up because of rank %d", link->rank, suspect);
    }
    link->comm->suspect = link->rank;
    return dpt_fail(err, DPT_EPEER, "rank %d is lost: %s", link->rank, how);
}

uint32_t dpt_link_suspect_code(int suspect)
{
    return (uint32_t)(suspect + 1);
}

int dpt_link_suspect(uint32_t code)
{
    return code <= DPT_COMM_WORLD_MAX ? (int)code - 1 : -1;
}

enum dpt_status dpt_link_broken(struct dpt_link *link, enum dpt_status status, struct dpt_err *err,
                                const char *how)
{
    link->lost = true;
    link->comm->suspect = link->rank;
    return dpt_fail(err, status, "transfer with rank %d: %s", link->rank, how);
}

enum dpt_status dpt_link_left(struct dpt_link *link, struct dpt_err *err)
{
    link->gone = true;
    if (link->pending > 0)
        return dpt_link_lost(link, -1, err, "it left before its last transfers");
    return DPT_OK;
}

/* Takes from all peers what was lent for writing; bounded. */
static void shut_links(struct dpt_comm *comm)
{
    bool ended = true;
    if (comm->shut)
        return;
    comm->shut = true;
    for (int i = 0; i < comm->n_links; i++)
        if (comm->links[i]->ops->shut != NULL)
            ended = comm->links[i]->ops->shut(comm->links[i]) && ended;
    for (int i = 0; !ended && i < COMM_REGIONS; i++) {
        struct dpt_comm_mem *mem = comm->listener->mems[i];
        struct dpt_err err;
        if (mem != NULL && mem->open && dpt_comm_mem_exchange(mem, &err) != DPT_OK) {
            dpt_log(DPT_LOG_ERROR,
                    "a peer that stands still may write into this rank's memory, and it cannot be "
                    "exchanged: %s; this process ends and counts as lost",
                    err.text);
            abort();
        }
    }
}

enum dpt_status dpt_comm_keep_failure(struct dpt_comm *comm, enum dpt_status status,
                                      const struct dpt_err *failure, struct dpt_err *err)
{
    if (comm->status == DPT_OK) {
        comm->status = status;
        comm->failure = *failure;
        shut_links(comm);
    }
    if (err != NULL)
        *err = comm->failure;
    return comm->status;
}

/* Creation and destruction of the common part. */

static int inline_slots(int n_peers)
{
    return n_peers * 4 > COMM_INLINE_SLOTS_MIN ? n_peers * 4 : COMM_INLINE_SLOTS_MIN;
}

static size_t pool_bytes(int n_peers, int world_size)
{
    return sizeof(struct dpt_comm) + COMM_RECORDS_MAX * sizeof(struct dpt_rec) +
           (size_t)inline_slots(n_peers) * DPT_COMM_BUF_BYTES_MAX +
           2 * (size_t)world_size * sizeof(struct dpt_comm_xfer);
}

size_t dpt_comm_own_bytes(int world_size)
{
    return COMM_STAGING_BYTES + (world_size > 1 ? pool_bytes(world_size - 1, world_size) : 0);
}

static enum dpt_status alloc_pools(struct dpt_comm *comm, int n_peers, struct dpt_err *err)
{
    const int smalls = inline_slots(n_peers);
    comm->links = calloc((size_t)n_peers + 1, sizeof(struct dpt_link *));
    comm->link_of = calloc((size_t)comm->world_size, sizeof(struct dpt_link *));
    comm->recs = calloc(COMM_RECORDS_MAX, sizeof *comm->recs);
    comm->smalls = calloc((size_t)smalls, DPT_COMM_BUF_BYTES_MAX);
    comm->xfers = calloc(2 * (size_t)comm->world_size, sizeof *comm->xfers);
    comm->pool_bytes = pool_bytes(n_peers, comm->world_size);
    dpt_account_add(comm->listener->account, DPT_MEMORY_COMM, comm->pool_bytes, comm->pool_bytes);
    if (comm->links == NULL || comm->link_of == NULL || comm->recs == NULL ||
        comm->smalls == NULL || comm->xfers == NULL)
        return dpt_fail(err, DPT_ENOMEM, "memory for a communicator of %d ranks", comm->world_size);
    for (int i = COMM_RECORDS_MAX - 1; i >= 0; i--) {
        comm->recs[i].next = comm->recs_free;
        comm->recs_free = &comm->recs[i];
    }
    comm->recs_left = COMM_RECORDS_MAX;
    for (int i = smalls - 1; i >= 0; i--)
        small_give(comm, comm->smalls + (size_t)i * DPT_COMM_BUF_BYTES_MAX);
    for (int i = DPT_COMM_OPS_MAX - 1; i >= 0; i--) {
        comm->ops[i].comm = comm;
        dpt_op_give(&comm->ops[i]);
    }
    return DPT_OK;
}

enum dpt_status dpt_comm_alloc(struct dpt_comm_listener *listener, const struct dpt_comm_spec *spec,
                               struct dpt_comm **ret, struct dpt_err *err)
{
    struct dpt_comm *comm = calloc(1, sizeof *comm);
    if (comm == NULL)
        return dpt_fail(err, DPT_ENOMEM, "memory for a communicator");
    comm->listener = listener;
    listener->comms++;
    for (int i = 0; i < COMM_REGIONS; i++)
        if (listener->mems[i] != NULL)
            listener->mems[i]->withdrawn = false;
    memcpy(comm->run, spec->run, sizeof comm->run);
    comm->generation = spec->generation;
    comm->rank = spec->rank;
    comm->world_size = spec->world_size;
    comm->timeout_ms = spec->timeout_ms;
    comm->suspect = -1;
    atomic_init(&comm->abort_asked, false);
    atomic_init(&comm->wake_asked, false);
    atomic_init(&comm->spin_allowed, false);
    comm->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    comm->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    enum dpt_status status = alloc_pools(comm, spec->n_peers, err);
    if (status == DPT_OK && (comm->epoll_fd < 0 || comm->wake_fd < 0))
        status = dpt_fail_errno(err, errno, "descriptors of a communicator");
    if (status == DPT_OK) {
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
        if (epoll_ctl(comm->epoll_fd, EPOLL_CTL_ADD, comm->wake_fd, &event) != 0)
            status = dpt_fail_errno(err, errno, "watch a communicator's wake descriptor");
    }
    if (status != DPT_OK) {
        dpt_comm_destroy(&comm);
        return status;
    }
    *ret = comm;
    return DPT_OK;
}

void dpt_comm_add_link(struct dpt_comm *comm, struct dpt_link *link)
{
    DPT_ASSERT(comm->link_of[link->rank] == NULL);
    comm->links[comm->n_links++] = link;
    comm->link_of[link->rank] = link;
}

enum dpt_status dpt_link_watch(struct dpt_link *link, struct dpt_err *err)
{
    const bool ended = link->gone || link->doubtful || link->lost;
    if (link->fd < 0 || (ended && !link->watched))
        return DPT_OK;
    struct epoll_event event = {.events = link->ops->interest(link), .data.ptr = link};
    if (link->watched && !ended && event.events == link->watched_events)
        return DPT_OK;
    /* A closed connection would be reported as hung up for ever: it is taken out. */
    const int op = ended ? EPOLL_CTL_DEL : link->watched ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;
    if (epoll_ctl(link->comm->epoll_fd, op, link->fd, &event) != 0)
        return dpt_fail_errno(err, errno, "watch the connection to rank %d", link->rank);
    link->watched = !ended;
    link->watched_events = event.events;
    return DPT_OK;
}

enum dpt_status dpt_comm_watch(struct dpt_comm *comm, struct dpt_err *err)
{
    for (int i = 0; i < comm->n_links; i++)
        DPT_TRY(dpt_link_watch(comm->links[i], err));
    return DPT_OK;
}

/* What was borrowed to be written is not given back as it was. */
static bool owes_writing(const struct dpt_comm_op *op)
{
    for (const struct dpt_rec *rec = op->lends; rec != NULL; rec = rec->next)
        if (rec->write)
            return true;
    return false;
}

void dpt_comm_destroy(struct dpt_comm **comm_p)
{
    struct dpt_comm *comm = *comm_p;
    *comm_p = NULL;
    if (comm == NULL)
        return;
    /* An abort with nothing in flight harms nobody: who still talks to others may go on. */
    const bool failed =
        comm->status != DPT_OK || (atomic_load(&comm->abort_asked) && comm->ops_in_flight > 0);
    if (!failed)
        for (int i = 0; i < DPT_COMM_OPS_MAX; i++) {
            struct dpt_comm_op *op = &comm->ops[i];
            if (op->used && !op->freed && op->recvs_left == 0 && !owes_writing(op))
                dpt_comm_op_free(comm, &op);
        }
    shut_links(comm);
    for (int i = 0; i < comm->n_links; i++) {
        struct dpt_link *link = comm->links[i];
        DPT_ASSERT(link != NULL);
        link->ops->destroy(link, failed ? GOODBYE_FAILED : GOODBYE_ORDERLY, comm->suspect);
    }
    if (comm->network != NULL)
        comm->network->forget(comm);
    if (comm->epoll_fd >= 0)
        close(comm->epoll_fd);
    if (comm->wake_fd >= 0)
        close(comm->wake_fd);
    free(comm->links);
    free(comm->link_of);
    free(comm->recs);
    free(comm->smalls);
    free(comm->xfers);
    dpt_account_sub(comm->listener->account, DPT_MEMORY_COMM, comm->pool_bytes, comm->pool_bytes);
    comm->listener->comms--;
    free(comm);
}

static void wake(struct dpt_comm *comm)
{
    const uint64_t one = 1;
    const ssize_t n = write(comm->wake_fd, &one, sizeof one);
    DPT_ASSERT(n == (ssize_t)sizeof one || errno == EAGAIN); /* EAGAIN: it is awake already */
}

void dpt_comm_abort(struct dpt_comm *comm)
{
    atomic_store(&comm->abort_asked, true);
    wake(comm);
}

void dpt_comm_wake(struct dpt_comm *comm)
{
    atomic_store(&comm->wake_asked, true);
    wake(comm);
}

void dpt_comm_allow_spin(struct dpt_comm *comm, bool allowed)
{
    atomic_store_explicit(&comm->spin_allowed, allowed, memory_order_relaxed);
}

int dpt_comm_rank(const struct dpt_comm *comm)
{
    return comm->rank;
}

int dpt_comm_world_size(const struct dpt_comm *comm)
{
    return comm->world_size;
}

int dpt_comm_suspect(const struct dpt_comm *comm)
{
    return comm->suspect;
}

uint64_t dpt_comm_bytes_sent(const struct dpt_comm *comm)
{
    return comm->bytes_sent;
}
