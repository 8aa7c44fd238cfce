/* Index math of shards (shard_piece.h). */
#include "checkpoint/layout/shard_piece.h"

#include "base/err.h"

struct dpt_interval dpt_shard_piece(const struct dpt_grid *grid, struct dpt_shard shard, int unit)
{
    DPT_ASSERT(unit >= 0 && unit < grid->n_units);
    const int64_t first = grid->offset[unit];
    if (shard.of == 0 || dpt_shard_is_empty(shard))
        return (struct dpt_interval){first, first};
    const struct dpt_interval piece =
        dpt_layout_piece(grid->offset[unit + 1] - first, grid->block, shard.of, shard.index);
    return (struct dpt_interval){first + piece.first, first + piece.end};
}

int64_t dpt_shard_offset(const struct dpt_grid *grid, struct dpt_shard shard, int unit)
{
    int64_t numel = 0;
    for (int u = 0; u < unit; u++) {
        const struct dpt_interval piece = dpt_shard_piece(grid, shard, u);
        numel += piece.end - piece.first;
    }
    return numel;
}

int64_t dpt_shard_numel(const struct dpt_grid *grid, struct dpt_shard shard)
{
    return dpt_shard_offset(grid, shard, grid->n_units);
}
