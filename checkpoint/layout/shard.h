/* Shards: which part of the flat vectors a rank holds at rest.
 *
 * The flat vector is a row of units, each padded to whole blocks (worker/model/model.h). Shard
 * `index` of `of` is piece `index` of every unit, cut in whole blocks, nearly equal
 * (dpt_layout_piece); a unit of fewer blocks than `of` leaves some pieces empty. Shards of one `of`
 * are disjoint and cover everything. Pure. */
#ifndef DPT_CHECKPOINT_LAYOUT_SHARD_H
#define DPT_CHECKPOINT_LAYOUT_SHARD_H

#include "base/shard.h"
#include "checkpoint/layout/layout.h"

/* The units of a flat vector: unit u is [offset[u], offset[u + 1]). */
struct dpt_grid {
    const int64_t *offset; /* [n_units + 1], ascending multiples of block; borrowed */
    int n_units;
    int64_t block;
};

/* What the shard has of unit `unit`, as elements of the flat vector; perhaps empty. */
struct dpt_interval dpt_shard_piece(const struct dpt_grid *grid, struct dpt_shard shard, int unit);

/* A shard kept compactly: its pieces in the order of the units, without gaps. Its length, and where
 * unit `unit`'s piece begins in it. O(n_units). */
int64_t dpt_shard_numel(const struct dpt_grid *grid, struct dpt_shard shard);
int64_t dpt_shard_offset(const struct dpt_grid *grid, struct dpt_shard shard, int unit);

#endif
