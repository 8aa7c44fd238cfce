/* Who owns which bytes: intervals, block grids, and the dealing of tensors over writers. The same
 * index math serves files and shards in memory: resharding is always "intersect what I need with
 * who has it". Pure. */
#ifndef DPT_CHECKPOINT_LAYOUT_LAYOUT_H
#define DPT_CHECKPOINT_LAYOUT_LAYOUT_H

#include <stdint.h>

/* [first, end) of elements or bytes; empty when end <= first. */
struct dpt_interval {
    int64_t first, end;
};

/* What a and b have in common; {0, 0} when nothing. */
struct dpt_interval dpt_interval_intersect(struct dpt_interval a, struct dpt_interval b);

/* Deals items of `bytes[i]` >= 0 to writers in contiguous runs, in order, so that files are
 * sequential in the model's order. Among all such dealings the largest run is as small as possible;
 * no run is empty. Returns the number of runs, min(n_items, n_writers); run w is the items
 * [ret_first[w], ret_first[w + 1]), so `ret_first` holds n_writers + 1 numbers. */
int dpt_layout_deal(const int64_t *bytes, int n_items, int n_writers, int *ret_first);

/* Piece `i` of `n` of a range of `numel` elements cut on a grid of `block` elements: whole blocks,
 * piece sizes differ by at most one block, the larger ones first; the last block may be short. */
struct dpt_interval dpt_layout_piece(int64_t numel, int64_t block, int n, int i);

/* Which piece holds element `x` of [0, numel). */
int dpt_layout_owner(int64_t numel, int64_t block, int n, int64_t x);

#endif
