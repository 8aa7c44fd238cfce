/* A generation's ranks, host by host and node by node; which rank holds whose shadow. Pure. */
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

/* Where a rank of the world stands. */
int dpt_world_position(const struct dpt_world *world, int rank);

/* The positions of the node, of the host at position `position`. */
struct dpt_range dpt_world_node(const struct dpt_world *world, int position);
struct dpt_range dpt_world_host(const struct dpt_world *world, int position);

/* The lanes that positions in a row own together. */
struct dpt_range dpt_world_lanes(const struct dpt_world *world, struct dpt_range positions);

/* How many positions on, cyclically, the shard of position p has its shadow, if that is another
 * node: of all such distances the one that covers most shards, of these one that puts most shadows
 * on another host. All shards are covered where no node has more than half of the ranks; else as
 * many as are outside the largest node, and as many of its own. 0: one node has all. */
int dpt_shadow_shift(const struct dpt_world *world);

/* The position that keeps the shadow of position `position`'s shard, and the one whose shadow it
 * keeps itself; -1: none. `shift` is the world's. */
int dpt_shadow_holder(const struct dpt_world *world, int shift, int position);
int dpt_shadow_source(const struct dpt_world *world, int shift, int position);

#endif
