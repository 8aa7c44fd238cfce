/* The links of a world whose ranks do not connect each with every other, and the way of a message
 * over them. Pure.
 *
 * Rank r has links to the ranks r + 2^k and r - 2^k modulo the world size, for every 2^k below the
 * world size. These are at most 2 log2 W links, the two neighbours in the ring of ranks among
 * them. They are the fingers of Chord (Stoica et al., SIGCOMM 2001) in both directions. A
 * message goes over the link that brings it nearest to its destination, counted along the ring. A
 * hop leaves at most a third of the distance, so no way has more than log3(W / 2) + 1 hops, and all
 * links carry equal shares of an exchange of all ranks with all. */
#ifndef DPT_WORKER_COMM_ROUTE_H
#define DPT_WORKER_COMM_ROUTE_H

#include "base/world_limits.h"

#include <stdbool.h>

enum {
    DPT_ROUTE_ROUNDS_MAX = 10, /* log2 of the largest world */
    DPT_ROUTE_LINKS_MAX = 2 * DPT_ROUTE_ROUNDS_MAX,
    DPT_ROUTE_HOPS_MAX = 6
};
_Static_assert(1 << DPT_ROUTE_ROUNDS_MAX == (int)DPT_MESH_MAX, "log2 of the largest world");

/* Fills `ret` with the ranks to which `rank` has links, each once. Returns their number. */
int dpt_route_links(int world_size, int rank, int ret[DPT_ROUTE_LINKS_MAX]);

/* Whether a world of this size is a mesh (mesh_max of comm.h). */
bool dpt_route_is_mesh(int world_size, int mesh_max);

bool dpt_route_is_link(int world_size, int a, int b);

/* The rank to which `rank` passes a message for `to`, another rank. */
int dpt_route_next(int world_size, int rank, int to);

/* The largest number of hops between two ranks of the world: at most DPT_ROUTE_HOPS_MAX. */
int dpt_route_hops(int world_size);

#endif
