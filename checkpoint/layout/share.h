/* Who writes what of a state that ranks hold in shards, some perhaps several times: every element
 * by one of its holders, evenly. Pure. */
#ifndef DPT_CHECKPOINT_LAYOUT_SHARE_H
#define DPT_CHECKPOINT_LAYOUT_SHARE_H

#include "checkpoint/layout/shard.h"

/* What writers with the same shard share: intervals of the flat vector, which they deal among
 * themselves (dpt_checkpoint_deal). */
struct dpt_share {
    int replica, n_replicas; /* which of them this writer is */
    int n;                   /* intervals, ascending, none empty */
    struct dpt_interval *interval;
};

/* The share of writer `writer` of `n`, who hold the shards `shards` [n]. Shards of one `of` that
 * are all there make a cover; where there are covers of several `of` each takes as much of any part
 * of the vector as it has writers. A writer in no cover gets nothing. `max` intervals have room in
 * ret->interval (0: only counted). */
void dpt_writer_share(const struct dpt_grid *grid, const struct dpt_shard *shards, int n,
                      int writer, struct dpt_share *ret, int max);

#endif
