/* Creation and destruction of a communicator, without its connections (create.c), and its abort
 * (comm.h). */
#include "worker/comm/protected_records.h"
#include "worker/comm/relay.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* The bytes that the account counts for struct dpt_comm. They are a constant, so that a new member
 * does not change the counted memory. */
enum { COMM_COUNTED_BYTES = 11528 };
_Static_assert(sizeof(struct dpt_comm) <= COMM_COUNTED_BYTES, "the account covers the struct");

static int inline_slots(int n_peers)
{
    return n_peers * 4 > COMM_INLINE_SLOTS_MIN ? n_peers * 4 : COMM_INLINE_SLOTS_MIN;
}

/* The connections between hosts at most; 0: they are not protected. */
static int wires_max(int n_peers, int world_size, int mesh_max, enum dpt_encrypt encrypt)
{
    if (encrypt == DPT_ENCRYPT_NONE)
        return 0;
    return dpt_route_is_mesh(world_size, mesh_max) ? n_peers : DPT_ROUTE_LINKS_MAX;
}

static size_t pool_bytes(int n_peers, int world_size, int mesh_max, enum dpt_encrypt encrypt)
{
    /* Not counted: the contexts of libcrypto, some hundred bytes for each connection. */
    const size_t wires = (size_t)wires_max(n_peers, world_size, mesh_max, encrypt);
    return wires * sizeof(struct dpt_wire) + COMM_COUNTED_BYTES +
           COMM_RECORDS_MAX * sizeof(struct dpt_rec) +
           (size_t)inline_slots(n_peers) * DPT_COMM_BUF_BYTES_MAX +
           2 * (size_t)world_size * sizeof(struct dpt_comm_xfer) +
           dpt_router_bytes(world_size, mesh_max);
}

size_t dpt_comm_own_bytes(int world_size, int mesh_max, enum dpt_encrypt encrypt)
{
    return COMM_STAGING_BYTES +
           (world_size > 1 ? pool_bytes(world_size - 1, world_size, mesh_max, encrypt) : 0);
}

static enum dpt_status alloc_pools(struct dpt_comm *comm, const struct dpt_comm_spec *spec,
                                   struct dpt_err *err)
{
    const int n_peers = spec->n_peers, smalls = inline_slots(n_peers);
    const bool routes = !dpt_route_is_mesh(spec->world_size, spec->mesh_max);
    /* With relays a peer of this host has two links, and a peer with a trunk one more. */
    const int n_links = routes ? 2 * n_peers + DPT_ROUTE_LINKS_MAX : n_peers;
    comm->links = calloc((size_t)n_links + 1, sizeof(struct dpt_conn *));
    comm->link_of = calloc((size_t)comm->world_size, sizeof(struct dpt_conn *));
    comm->pool.recs = calloc(COMM_RECORDS_MAX, sizeof *comm->pool.recs);
    comm->pool.smalls = calloc((size_t)smalls, DPT_COMM_BUF_BYTES_MAX);
    comm->xfers = calloc(2 * (size_t)comm->world_size, sizeof *comm->xfers);
    comm->wires_max = wires_max(n_peers, spec->world_size, spec->mesh_max, spec->encrypt);
    comm->wires = calloc((size_t)comm->wires_max + 1, sizeof *comm->wires);
    comm->pool.bytes = pool_bytes(n_peers, comm->world_size, spec->mesh_max, spec->encrypt);
    dpt_account_add(comm->listener->account, DPT_MEMORY_COMM, NULL, comm->pool.bytes,
                    comm->pool.bytes);
    if (comm->links == NULL || comm->link_of == NULL || comm->pool.recs == NULL ||
        comm->pool.smalls == NULL || comm->xfers == NULL || comm->wires == NULL)
        return dpt_fail_nomem(err, "communicator of %d ranks", comm->world_size);
    for (int i = COMM_RECORDS_MAX - 1; i >= 0; i--) {
        comm->pool.recs[i].next = comm->pool.recs_free;
        comm->pool.recs_free = &comm->pool.recs[i];
    }
    comm->pool.recs_left = COMM_RECORDS_MAX;
    for (int i = smalls - 1; i >= 0; i--)
        dpt_comm_give_small(comm, comm->pool.smalls + (size_t)i * DPT_COMM_BUF_BYTES_MAX);
    for (int i = DPT_COMM_OPS_MAX - 1; i >= 0; i--) {
        comm->pool.ops[i].comm = comm;
        dpt_comm_give_op(&comm->pool.ops[i]);
    }
    return routes ? dpt_router_create(comm, &comm->router, err) : DPT_OK;
}

enum dpt_status dpt_comm_alloc(struct dpt_comm_listener *listener, const struct dpt_comm_spec *spec,
                               struct dpt_comm **ret, struct dpt_err *err)
{
    struct dpt_comm *comm = calloc(1, sizeof *comm);
    if (comm == NULL)
        return dpt_fail_nomem(err, "communicator");
    comm->listener = listener;
    listener->comms++;
    for (int i = 0; i < COMM_REGIONS; i++)
        if (listener->mems[i] != NULL)
            listener->mems[i]->withdrawn = false;
    comm->rank = spec->rank;
    comm->world_size = spec->world_size;
    comm->timeout_ms = spec->timeout_ms;
    comm->suspect = -1;
    atomic_init(&comm->abort_asked, false);
    atomic_init(&comm->wake_asked, false);
    atomic_init(&comm->spin_allowed, false);
    comm->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    comm->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    enum dpt_status status = alloc_pools(comm, spec, err);
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

void dpt_comm_add_link(struct dpt_comm *comm, struct dpt_conn *link)
{
    DPT_ASSERT(comm->link_of[link->rank] == NULL || comm->router != NULL);
    comm->links[comm->n_links++] = link;
    comm->link_of[link->rank] = link;
}

enum dpt_status dpt_comm_protect(struct dpt_comm *comm, const struct dpt_comm_spec *spec,
                                 const uint8_t *sent, const uint8_t *got, struct dpt_wire **ret,
                                 struct dpt_err *err)
{
    *ret = NULL;
    if (spec->encrypt == DPT_ENCRYPT_NONE)
        return DPT_OK;
    DPT_ASSERT(comm->n_wires < comm->wires_max);
    struct dpt_wire *wire = &comm->wires[comm->n_wires++];
    DPT_TRY(dpt_wire_open(wire, spec, sent, got, err));
    *ret = wire;
    return DPT_OK;
}

/* The op has borrowed memory that the caller still has to write. */
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
    /* If the abort came while nothing was in flight, the peers can go on with each other. */
    const bool failed = comm->failure.status != DPT_OK ||
                        (atomic_load(&comm->abort_asked) && comm->ops_in_flight > 0);
    if (!failed)
        for (int i = 0; i < DPT_COMM_OPS_MAX; i++) {
            struct dpt_comm_op *op = &comm->pool.ops[i];
            if (op->used && !op->freed && op->recvs_left == 0 && !owes_writing(op))
                dpt_comm_op_free(comm, &op);
        }
    dpt_comm_shut_links(comm);
    for (int i = 0; i < comm->n_links; i++) {
        struct dpt_conn *link = comm->links[i];
        DPT_ASSERT(link != NULL);
        link->ops->destroy(link, failed ? GOODBYE_FAILED : GOODBYE_ORDERLY, comm->suspect);
    }
    dpt_router_destroy(&comm->router);
    for (int i = 0; i < comm->n_wires; i++)
        dpt_wire_close(&comm->wires[i]);
    if (comm->listener->network != NULL)
        comm->listener->network->forget(comm);
    if (comm->epoll_fd >= 0)
        close(comm->epoll_fd);
    if (comm->wake_fd >= 0)
        close(comm->wake_fd);
    free(comm->links);
    free(comm->link_of);
    free(comm->pool.recs);
    free(comm->pool.smalls);
    free(comm->xfers);
    free(comm->wires);
    dpt_account_sub(comm->listener->account, DPT_MEMORY_COMM, NULL, comm->pool.bytes,
                    comm->pool.bytes);
    comm->listener->comms--;
    free(comm);
}

static void wake_owner(struct dpt_comm *comm)
{
    const uint64_t one = 1;
    const ssize_t n = write(comm->wake_fd, &one, sizeof one);
    DPT_ASSERT(n == (ssize_t)sizeof one || errno == EAGAIN); /* EAGAIN: already awake */
}

void dpt_comm_abort(struct dpt_comm *comm)
{
    atomic_store(&comm->abort_asked, true);
    wake_owner(comm);
}

void dpt_comm_wake(struct dpt_comm *comm)
{
    atomic_store(&comm->wake_asked, true);
    wake_owner(comm);
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

bool dpt_comm_relays(const struct dpt_comm *comm)
{
    return comm->router != NULL;
}

uint64_t dpt_comm_bytes_sent(const struct dpt_comm *comm)
{
    return comm->bytes_sent;
}
