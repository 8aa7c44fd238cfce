/* Shards: a shard is the part of the flat vectors that a rank stores.
 *
 * The flat vector is a sequence of units, each padded to whole blocks (worker/model/model.h). Each
 * unit is cut into `of` pieces of nearly equal numbers of whole blocks (dpt_layout_piece). Shard
 * `index` of `of` is piece `index` of every unit. In a unit with fewer blocks than `of` some pieces
 * are empty. The shards with the same `of` are disjoint and cover the vector. Pure. */
#ifndef DPT_CHECKPOINT_LAYOUT_SHARD_PIECE_H
#define DPT_CHECKPOINT_LAYOUT_SHARD_PIECE_H

#include "base/shard.h"
#include "checkpoint/layout/layout.h"

/* The units of a flat vector: unit u is [offset[u], offset[u + 1]). */
struct dpt_grid {
    const int64_t *offset; /* [n_units + 1], ascending multiples of block; borrowed */
    int n_units;
    int64_t block;
};

/* The shard's piece of unit `unit`, as elements of the flat vector; may be empty. */
struct dpt_interval dpt_shard_piece(const struct dpt_grid *grid, struct dpt_shard shard, int unit);

/* In memory a shard is its pieces in the order of the units, without gaps. dpt_shard_numel returns
 * its length, dpt_shard_offset the offset of unit `unit`'s piece in it. O(n_units). */
int64_t dpt_shard_numel(const struct dpt_grid *grid, struct dpt_shard shard);
int64_t dpt_shard_offset(const struct dpt_grid *grid, struct dpt_shard shard, int unit);

#endif
