/* The ranks whose addresses a plan gives to a rank. Pure.
 *
 * A world of at most DPT_MESH_MAX ranks is a mesh: its plan has the addresses of all ranks. In a
 * larger world a rank has links to its two neighbours in the ring of positions, for ring
 * algorithms, and to its parent and its two children in the binary tree of positions, for trees.
 * The children of position p are 2p + 1 and 2p + 2. The data plane has no such worlds yet. In a
 * mesh of addresses it chooses its connections itself (worker/comm/route.h). */
#ifndef DPT_RENDEZVOUS_PROTO_LINKS_H
#define DPT_RENDEZVOUS_PROTO_LINKS_H

#include "base/world_limits.h"

#include <stdbool.h>
#include <stdint.h>

enum { DPT_LINKS_MAX = 5 }; /* of one rank, unless the world is a mesh */

static inline bool dpt_links_are_mesh(uint32_t world_size)
{
    return world_size <= DPT_MESH_MAX;
}

/* Fills `ret` with the positions to which `position` has links. A position may be there twice. The
 * world has at least two ranks. Returns their number. */
int dpt_links_of(uint32_t world_size, uint32_t position, uint32_t ret[DPT_LINKS_MAX]);

#endif
