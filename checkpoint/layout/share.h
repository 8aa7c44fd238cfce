/* Divides a state among the ranks that write it. Several ranks may hold one shard; one of them
 * writes each element, and the work is even. Pure. */
#ifndef DPT_CHECKPOINT_LAYOUT_SHARE_H
#define DPT_CHECKPOINT_LAYOUT_SHARE_H

#include "checkpoint/layout/shard.h"

/* Intervals of the flat vector that the writers with one shard write together; they divide them
 * with dpt_checkpoint_divide. */
struct dpt_share {
    int replica, n_replicas; /* this writer among those with its shard */
    int n;                   /* intervals, ascending, none empty */
    struct dpt_interval *interval;
};

/* The share of writer `writer` of `n`, which hold the shards `shards` [n]. The shards of one `of`
 * are a cover if none is missing. With several covers, each writes a part of every range in
 * proportion to its number of writers. A writer outside of all covers writes nothing. ret->interval
 * has room for `max` intervals (0: counts only). */
void dpt_writer_share(const struct dpt_grid *grid, const struct dpt_shard *shards, int n,
                      int writer, struct dpt_share *ret, int max);

#endif
