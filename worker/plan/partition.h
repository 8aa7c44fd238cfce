/* Which rank holds, adds and applies which part of the state and of the gradient in a world: one
 * answer for strategies and for the memory formulas. Pure. */
#ifndef DPT_WORKER_PLAN_PARTITION_H
#define DPT_WORKER_PLAN_PARTITION_H

#include "base/strategy_traits.h"
#include "checkpoint/layout/shard.h"
#include "worker/plan/waves.h"
#include "worker/plan/world.h"

enum { DPT_STAGING_TURNS = 2 }; /* parts under way that need staging */

struct dpt_partition {
    struct dpt_strategy_traits traits;
    const struct dpt_world *world; /* borrowed */
    int rank, position;
    struct dpt_range host;    /* positions of this rank's host */
    struct dpt_range group;   /* positions whose shards are one whole state */
    struct dpt_range members; /* positions that add slots together: all, or by_node the node's */
    struct dpt_waves waves;   /* of the members */
    bool crosses;             /* sums of nodes go between them: by_node, with several nodes */
    int shadow_shift;         /* worker/plan/world.h; 0: no shard has a shadow */
    int shadow_holder;        /* position that holds a shadow of this rank's shard; -1: none */
    int shadow_source;        /* position whose shadow this rank holds; -1: none */
};

/* Of `rank` in `world`; both config and world are only read. */
struct dpt_partition dpt_partition_of(const struct dpt_config *config,
                                      const struct dpt_world *world, int rank);

/* What the rank at a position holds of the state; */
struct dpt_shard dpt_partition_held(const struct dpt_partition *p, int position);
/* what it adds of the slots of its members; */
struct dpt_shard dpt_partition_added(const struct dpt_partition *p, int position);
/* and which N-th of the sums of all nodes it adds (where it crosses): ranks are taken in the order
 * of where their shards lie, so that both pieces meet as far as they can. O(world size). */
struct dpt_shard dpt_partition_crossed(const struct dpt_partition *p, int position);

/* Pieces go round in parts, cut alike on all ranks: by the largest piece. How many bytes a part has
 * that goes between `ranks` ranks at once, of which each may be staged from all others: many on a
 * device, where each is an operation of NCCL's. */
int64_t dpt_partition_part_bytes(const struct dpt_partition *p, int ranks);
/* Into how many parts the members' pieces of a range are cut, and part `part` of `n` of a piece, in
 * whole blocks. */
int dpt_partition_parts(const struct dpt_partition *p, const struct dpt_grid *ranges, int range);
struct dpt_interval dpt_part_of(struct dpt_interval piece, int64_t block, int part, int n);
/* The same of the pieces of a unit that cross between nodes; and what the rank at position `from`
 * has added of the part that the owner of `crossed` adds. */
int dpt_partition_cross_parts(const struct dpt_partition *p, const struct dpt_grid *grid, int unit);
struct dpt_interval dpt_partition_crossing(const struct dpt_partition *p,
                                           const struct dpt_grid *grid, int from,
                                           struct dpt_shard crossed, int unit, int part);
/* The subtrees of the lanes' tree that the node of a position has sums of. */
int dpt_partition_node_sums(const struct dpt_partition *p, int position,
                            struct dpt_range ret[DPT_COVER_MAX]);

/* What the rank at a position sends comes into this rank's memory: it is of another host, or it
 * comes from a device. */
bool dpt_partition_is_far(const struct dpt_partition *p, int position);
bool dpt_partition_is_staged(const struct dpt_partition *p, int position);

/* The slots that the rank at a position computes in a step. */
struct dpt_assignment dpt_partition_assign(const struct dpt_config *config,
                                           const struct dpt_world *world, int position);

#endif
