/* A generation's ranks, host by host and node by node, and the holders of shadows. Pure. */
#ifndef DPT_WORKER_PLAN_WORLD_H
#define DPT_WORKER_PLAN_WORLD_H

#include "worker/plan/lanes.h"

/* Plan positions are host by host, on a host node by node: the ranks of a node, as those of a host,
 * stand together. */
struct dpt_world {
    int lanes, size;
    const int *rank_of_position; /* [size] */
    const int *host_of_position; /* [size] */
    const int *node_of_position; /* [size]; NULL: each host is one node */
};

/* The position of a rank of the world. */
int dpt_world_position(const struct dpt_world *world, int rank);

/* The positions of the node, of the host at position `position`. */
struct dpt_range dpt_world_node(const struct dpt_world *world, int position);
struct dpt_range dpt_world_host(const struct dpt_world *world, int position);

/* The lanes that positions in a row own together. */
struct dpt_range dpt_world_lanes(const struct dpt_world *world, struct dpt_range positions);

/* The distance in positions, cyclically, from a shard to its shadow, if that position is on another
 * node: the distance that gives most shards a shadow and, of these, one that puts most shadows on
 * another host. All shards have one where no node has more than half of the ranks; else the shards
 * outside the largest node, and as many on it. 0: one node has all ranks. */
int dpt_shadow_shift(const struct dpt_world *world);

/* The position that holds the shadow of `position`'s shard; the position whose shadow `position`
 * holds; -1: none. `shift` is dpt_shadow_shift of the world. */
int dpt_shadow_holder(const struct dpt_world *world, int shift, int position);
int dpt_shadow_source(const struct dpt_world *world, int shift, int position);

#endif
