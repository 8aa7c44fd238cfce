/* Shards: which part of the flat vectors a rank holds at rest.
 *
 * The flat vector is a row of units, each padded to whole blocks (worker/model/model.h). Shard
 * `index` of `of` is piece `index` of every unit, cut in whole blocks, nearly equal
 * (dpt_layout_piece); a unit of fewer blocks than `of` leaves some pieces empty. Shards of one `of`
 * are disjoint and cover everything. Pure. */
#ifndef DPT_CHECKPOINT_LAYOUT_SHARD_H
#define DPT_CHECKPOINT_LAYOUT_SHARD_H

#include "checkpoint/layout/layout.h"

#include <stdbool.h>

/* The units of a flat vector: unit u is [offset[u], offset[u + 1]). */
struct dpt_grid {
    const int64_t *offset; /* [n_units + 1], ascending multiples of block; borrowed */
    int n_units;
    int64_t block;
};

struct dpt_shard {
    int index, of; /* of 1: everything; of 0: nothing */
};

static inline bool dpt_shard_is_none(struct dpt_shard shard)
{
    return shard.of == 0;
}

static inline bool dpt_shard_equal(struct dpt_shard a, struct dpt_shard b)
{
    return a.of == b.of && a.index == b.index;
}

/* What the shard has of unit `unit`, as elements of the flat vector; perhaps empty. */
struct dpt_interval dpt_shard_piece(const struct dpt_grid *grid, struct dpt_shard shard, int unit);

/* A shard kept compactly: its pieces in the order of the units, without gaps. Its length, and where
 * unit `unit`'s piece begins in it. O(n_units). */
int64_t dpt_shard_numel(const struct dpt_grid *grid, struct dpt_shard shard);
int64_t dpt_shard_offset(const struct dpt_grid *grid, struct dpt_shard shard, int unit);

/* The largest length of any shard of `of`. */
int64_t dpt_shard_numel_max(const struct dpt_grid *grid, int of);

/* True when the given shards, all of one `of` after those of another are left aside, are everything
 * for some `of`: whether a whole state can be put together of what `shards` hold. */
bool dpt_shards_cover(const struct dpt_shard *shards, int n);

#endif
