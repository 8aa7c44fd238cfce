/* A generation's ranks, rack by rack, host by host and node by node, and the holders of shadows.
 * Pure. */
#ifndef DPT_WORKER_PLAN_WORLD_H
#define DPT_WORKER_PLAN_WORLD_H

#include "worker/plan/lanes.h"

/* Positions are ordered rack by rack, in a rack host by host, and on a host node by node. So the
 * ranks of a rack have adjacent positions, and so have the ranks of a host and those of a node. */
struct dpt_world {
    int lanes, size;
    const int *rank_of_position; /* [size] */
    const int *host_of_position; /* [size] */
    const int *node_of_position; /* [size]; NULL: each host is one node */
    const int *rack_of_position; /* [size]; NULL: all are in one rack */
};

/* The position of a rank of the world. */
int dpt_world_position(const struct dpt_world *world, int rank);

/* The positions on the same node, or on the same host, as `position`. */
struct dpt_range dpt_world_node(const struct dpt_world *world, int position);
struct dpt_range dpt_world_host(const struct dpt_world *world, int position);

/* The lanes that a range of positions owns together. */
struct dpt_range dpt_world_lanes(const struct dpt_world *world, struct dpt_range positions);

/* The cyclic distance in positions from a shard to its shadow. A shard has a shadow if the position
 * at that distance is on another node. With the distance, the smallest of this kind, the most
 * shards have a shadow, the most shadows are in another rack, and the most are on another host. If
 * no node has more than half of the ranks, all shards have a shadow. Otherwise the shards outside
 * the largest node have one, and an equal number of shards on it. The same holds for racks and
 * shadows in other racks, and for hosts. 0: one node has all ranks. */
int dpt_shadow_shift(const struct dpt_world *world);

/* dpt_shadow_holder: the position that holds the shadow of `position`'s shard.
 * dpt_shadow_source: the position whose shadow `position` holds. -1: none. `shift` is
 * dpt_shadow_shift of the world. */
int dpt_shadow_holder(const struct dpt_world *world, int shift, int position);
int dpt_shadow_source(const struct dpt_world *world, int shift, int position);

#endif
