/* Code that all links share: copies that an abort interrupts, epoll, and failures (conn.h). */
#include "worker/comm/comm_state.h"

#include "base/log.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

bool dpt_comm_aborting(const struct dpt_comm *comm)
{
    return atomic_load_explicit(&comm->abort_asked, memory_order_relaxed) && !comm->settling;
}

enum dpt_status dpt_conn_copy(struct dpt_conn *link, void *to, const void *from, size_t bytes,
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

enum dpt_status dpt_conn_watch(struct dpt_conn *link, struct dpt_err *err)
{
    const bool ended = link->gone || link->doubtful || link->lost;
    if (link->fd < 0 || (ended && !link->watched))
        return DPT_OK;
    struct epoll_event event = {.events = link->ops->interest(link), .data.ptr = link};
    if (link->watched && !ended && event.events == link->watched_events)
        return DPT_OK;
    /* epoll would report a closed connection as hung up in every wait, so it is removed from the
     * set. */
    const int op = ended ? EPOLL_CTL_DEL : link->watched ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;
    if (epoll_ctl(link->comm->epoll_fd, op, link->fd, &event) != 0)
        return dpt_fail_errno(err, errno, "watch the connection to rank %d", link->rank);
    link->watched = !ended;
    link->watched_events = event.events;
    return DPT_OK;
}

enum dpt_status dpt_conn_lost(struct dpt_conn *link, int suspect, struct dpt_err *err,
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

uint32_t dpt_conn_suspect_code(int suspect)
{
    return (uint32_t)(suspect + 1);
}

int dpt_conn_suspect(uint32_t code)
{
    return code <= DPT_COMM_WORLD_MAX ? (int)code - 1 : -1;
}

enum dpt_status dpt_conn_broken(struct dpt_conn *link, enum dpt_status status, struct dpt_err *err,
                                const char *how)
{
    link->lost = true;
    link->comm->suspect = link->rank;
    return dpt_fail(err, status, "transfer with rank %d: %s", link->rank, how);
}

enum dpt_status dpt_conn_check_end(struct dpt_conn *link, bool eof, struct dpt_err *err)
{
    if (eof && !link->bye)
        return dpt_conn_lost(link, -1, err, "its process has closed the connection");
    link->gone = link->gone || eof;
    if ((link->bye || link->gone) && link->pending > 0)
        return dpt_conn_lost(link, -1, err, "it left before its last transfers");
    return DPT_OK;
}

void dpt_comm_shut_links(struct dpt_comm *comm)
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
            dpt_log(
                DPT_LOG_ERROR,
                "a peer that stopped while writing may still write into this rank's memory, and "
                "the memory cannot be exchanged: %s; this process ends and counts as lost",
                err.text);
            abort();
        }
    }
}

enum dpt_status dpt_comm_keep_failure(struct dpt_comm *comm, const struct dpt_err *failure,
                                      struct dpt_err *err)
{
    if (comm->failure.status == DPT_OK) {
        comm->failure = *failure;
        dpt_comm_shut_links(comm);
    }
    return dpt_pass(err, &comm->failure);
}
