/* The router of a communicator: its trunks, flows and slots (relay.h). */
#include "worker/comm/relay.h"

#include <errno.h>
#include <stdlib.h>

static size_t slots_of(int n_trunks, int n_classes)
{
    return (size_t)n_trunks * (size_t)n_classes * RELAY_SLOTS;
}

/* The ranks between two others at most. */
static int classes_of(int world_size)
{
    const int hops = dpt_route_hops(world_size);
    DPT_ASSERT(hops >= 1 && hops <= DPT_ROUTE_HOPS_MAX);
    return hops - 1;
}

size_t dpt_router_bytes(int world_size, int mesh_max)
{
    int peers[DPT_ROUTE_LINKS_MAX];
    if (dpt_route_is_mesh(world_size, mesh_max))
        return 0;
    const int n = dpt_route_links(world_size, 0, peers);
    return sizeof(struct router) +
           (size_t)n * (sizeof(struct trunk) + 2 * (size_t)RELAY_BUFFER_BYTES) +
           (size_t)world_size * (sizeof(struct flow) + sizeof(struct trunk *)) +
           slots_of(n, classes_of(world_size)) * (sizeof(struct relay_slot) + RELAY_PAYLOAD_BYTES);
}

static bool alloc_router(struct router *router)
{
    const size_t world = (size_t)router->world_size, n = (size_t)router->n_trunks,
                 slots = slots_of(router->n_trunks, router->n_classes);
    router->trunks = calloc(n, sizeof *router->trunks);
    router->trunk_to = calloc(world, sizeof(struct trunk *));
    router->flows = calloc(world, sizeof *router->flows);
    router->slots = calloc(slots + 1, sizeof *router->slots);
    router->buffers = malloc(n * 2 * RELAY_BUFFER_BYTES + slots * RELAY_PAYLOAD_BYTES);
    return router->trunks != NULL && router->trunk_to != NULL && router->flows != NULL &&
           router->slots != NULL && router->buffers != NULL;
}

/* Gives each trunk its buffers and its free slots. */
static void share_memory(struct router *router)
{
    uint8_t *at = router->buffers;
    struct relay_slot *slot = router->slots;
    for (int i = 0; i < router->n_trunks; i++) {
        struct trunk *trunk = &router->trunks[i];
        trunk->in = at;
        trunk->out = at + RELAY_BUFFER_BYTES;
        at += 2 * (size_t)RELAY_BUFFER_BYTES;
        for (int c = 0; c < router->n_classes; c++)
            for (int s = 0; s < RELAY_SLOTS; s++, slot++, at += RELAY_PAYLOAD_BYTES) {
                *slot = (struct relay_slot){.next = trunk->slots[c], .in = trunk, .payload = at};
                trunk->slots[c] = slot;
            }
    }
}

static struct trunk *trunk_with(const struct router *router, int rank)
{
    for (int i = 0; i < router->n_trunks; i++)
        if (router->trunks[i].link.rank == rank)
            return &router->trunks[i];
    DPT_ASSERT(!"a rank to which this rank has a link");
    return NULL;
}

/* Flows come before trunks among the links: they are moved first and fill the trunks' buffers. */
static void add_links(struct router *router)
{
    struct dpt_comm *comm = router->comm;
    for (int rank = 0; rank < router->world_size; rank++) {
        if (rank == comm->rank)
            continue;
        router->trunk_to[rank] =
            trunk_with(router, dpt_route_next(router->world_size, comm->rank, rank));
        dpt_flow_init(&router->flows[rank], router, rank);
        comm->links[comm->n_links++] = &router->flows[rank].link;
        comm->link_of[rank] = &router->flows[rank].link;
    }
    for (int i = 0; i < router->n_trunks; i++)
        comm->links[comm->n_links++] = &router->trunks[i].link;
}

enum dpt_status dpt_router_create(struct dpt_comm *comm, struct router **ret, struct dpt_err *err)
{
    int peers[DPT_ROUTE_LINKS_MAX];
    struct router *router = calloc(1, sizeof *router);
    if (router == NULL)
        return dpt_fail_nomem(err, "relays of a communicator");
    router->comm = comm;
    router->world_size = comm->world_size;
    router->n_trunks = dpt_route_links(comm->world_size, comm->rank, peers);
    router->n_classes = classes_of(comm->world_size);
    if (!alloc_router(router)) {
        dpt_router_destroy(&router);
        return dpt_fail_nomem(err, "relays of a communicator of %d ranks", comm->world_size);
    }
    for (int i = 0; i < router->n_trunks; i++)
        dpt_trunk_init(&router->trunks[i], router, peers[i]);
    share_memory(router);
    add_links(router);
    *ret = router;
    return DPT_OK;
}

void dpt_router_destroy(struct router **router_p)
{
    struct router *router = *router_p;
    *router_p = NULL;
    if (router == NULL)
        return;
    free(router->trunks);
    free(router->trunk_to);
    free(router->flows);
    free(router->slots);
    free(router->buffers);
    free(router);
}

struct dpt_conn *dpt_router_connect(struct router *router, int rank, int fd, struct dpt_err *err)
{
    struct trunk *trunk = trunk_with(router, rank);
    if (dpt_tcp_set_options(fd, router->comm->timeout_ms) != 0) {
        (void)dpt_fail_errno(err, errno, "options of the connection to rank %d", rank);
        return NULL;
    }
    trunk->link.fd = fd;
    trunk->link.ready = true;
    return &trunk->link;
}

bool dpt_router_is_idle(const struct router *router)
{
    for (int i = 0; i < router->n_trunks; i++)
        if (!router->trunks[i].link.bye && !router->trunks[i].link.gone &&
            dpt_trunk_has_work(&router->trunks[i]))
            return false;
    return true;
}
