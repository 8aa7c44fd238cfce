/* Intervals, block grids, and the division of tensors among files. Files and shards in memory use
 * the same index math, so resharding intersects the needed intervals with the held ones. Pure. */
#ifndef DPT_CHECKPOINT_LAYOUT_LAYOUT_H
#define DPT_CHECKPOINT_LAYOUT_LAYOUT_H

#include <stdint.h>

/* [first, end) of elements or bytes; empty when end <= first. */
struct dpt_interval {
    int64_t first, end;
};

/* The intersection of a and b; {0, 0} when it is empty. */
struct dpt_interval dpt_interval_intersect(struct dpt_interval a, struct dpt_interval b);

/* Divides items of `bytes[i]` >= 0 into at most `n_runs_max` contiguous runs, in order. The largest
 * run is as small as possible, and no run is empty. Returns the number of runs, min(n_items,
 * n_runs_max). Run r holds the items [ret_first[r], ret_first[r + 1]), so `ret_first` has room for
 * n_runs_max + 1 numbers. */
int dpt_layout_divide(const int64_t *bytes, int n_items, int n_runs_max, int *ret_first);

/* Piece `i` of `n` of a range of `numel` elements on a grid of `block` elements: whole blocks,
 * except that the last block may be short. Piece sizes differ by at most one block, larger pieces
 * first. */
struct dpt_interval dpt_layout_piece(int64_t numel, int64_t block, int n, int i);

/* The number of the piece that holds element `x` of [0, numel). */
int dpt_layout_owner(int64_t numel, int64_t block, int n, int64_t x);

#endif
