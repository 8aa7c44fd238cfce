/* Divides a state among the ranks that write it. Several ranks may hold the same shard; exactly one
 * of them writes each element, and the work is even. Pure. */
#ifndef DPT_CHECKPOINT_LAYOUT_WRITER_SHARE_H
#define DPT_CHECKPOINT_LAYOUT_WRITER_SHARE_H

#include "checkpoint/layout/shard_piece.h"

/* The intervals of the flat vector that the writers with the same shard write together. They divide
 * the intervals with dpt_checkpoint_divide. */
struct dpt_share {
    int replica, n_replicas; /* this writer among those with its shard */
    int n;                   /* intervals, ascending, none empty */
    struct dpt_interval *interval;
};

/* Computes the share of writer `writer`. The `n` writers hold the shards `shards` [n]. The shards
 * with the same `of` form a cover if none of them is missing. If there are several covers, each
 * cover writes a part of every range, in proportion to its number of writers. A writer whose shard
 * is in no cover writes nothing. ret->interval has room for `max` intervals (0: only counts
 * them). */
void dpt_writer_share(const struct dpt_grid *grid, const struct dpt_shard *shards, int n,
                      int writer, struct dpt_share *ret, int max);

#endif
