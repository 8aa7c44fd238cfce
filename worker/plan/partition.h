/* The parts of the state and of the gradient that each rank of a world holds, adds and applies, for
 * strategies and for the memory formulas. Pure. */
#ifndef DPT_WORKER_PLAN_PARTITION_H
#define DPT_WORKER_PLAN_PARTITION_H

#include "base/strategy_traits.h"
#include "checkpoint/layout/shard_piece.h"
#include "worker/plan/waves.h"
#include "worker/plan/world.h"

enum { DPT_STAGING_TURNS = 2 }; /* parts under way that need staging */

struct dpt_partition {
    struct dpt_strategy_traits traits;
    const struct dpt_world *world; /* borrowed */
    int rank, position;
    struct dpt_range host;    /* positions of this rank's host */
    struct dpt_range group;   /* positions whose shards are one whole state */
    struct dpt_range members; /* positions that add slots together: all; with by_node the node's */
    struct dpt_waves waves;   /* of the members */
    bool crosses;             /* nodes exchange their sums: by_node, with several nodes */
    bool by_host;             /* sums of lanes are reduced in the host's memory */
    int shadow_shift;         /* worker/plan/world.h; 0: no shard has a shadow */
    int shadow_holder;        /* position that holds a shadow of this rank's shard; -1: none */
    int shadow_source;        /* position whose shadow this rank holds; -1: none */
};

/* The partition as `rank` in `world` sees it. `config` is only read; `world` is borrowed for the
 * partition's life. */
struct dpt_partition dpt_partition_of(const struct dpt_config *config,
                                      const struct dpt_world *world, int rank);

/* The shard of the state that the rank at a position holds. */
struct dpt_shard dpt_partition_held(const struct dpt_partition *p, int position);
/* The shard of the gradient for which the rank at a position adds its members' slots. */
struct dpt_shard dpt_partition_added(const struct dpt_partition *p, int position);
/* The largest of these shards of the members. */
struct dpt_shard dpt_partition_largest_added(const struct dpt_partition *p);
/* The shard for which the rank at a position adds the sums of all nodes, where nodes exchange sums.
 * These shards are numbered in the order of the held shards, so that a rank's two shards overlap as
 * much as possible. O(world size). */
struct dpt_shard dpt_partition_crossed(const struct dpt_partition *p, int position);

/* Pieces are sent in parts. The largest piece decides the number of parts, so it is equal on all
 * ranks. dpt_partition_parts: the number of parts of the members' pieces of a range. dpt_part_of:
 * part `part` of `n` parts of a piece, in whole blocks. */
int dpt_partition_parts(const struct dpt_partition *p, const struct dpt_grid *ranges, int range);
struct dpt_interval dpt_part_of(struct dpt_interval piece, int64_t block, int part, int n);
/* dpt_partition_cross_parts: the number of parts of a unit's pieces that nodes exchange.
 * dpt_partition_crossing: the elements of part `part` of shard `crossed` for which the rank at
 * position `from` has its node's sums. */
int dpt_partition_cross_parts(const struct dpt_partition *p, const struct dpt_grid *grid, int unit);
struct dpt_interval dpt_partition_crossing(const struct dpt_partition *p,
                                           const struct dpt_grid *grid, int from,
                                           struct dpt_shard crossed, int unit, int part);
/* The subtrees of the lanes' tree whose sums the node of a position has. */
int dpt_partition_node_sums(const struct dpt_partition *p, int position,
                            struct dpt_range ret[DPT_COVER_MAX]);

/* is_far: whether the rank at a position is on another host. is_staged: whether data from that rank
 * needs staging memory here, because the rank is on another host or the data is on a device. */
bool dpt_partition_is_far(const struct dpt_partition *p, int position);
bool dpt_partition_is_staged(const struct dpt_partition *p, int position);

/* The slots that the rank at a position computes in a step. */
struct dpt_assignment dpt_partition_assign(const struct dpt_config *config,
                                           const struct dpt_world *world, int position);

#endif
