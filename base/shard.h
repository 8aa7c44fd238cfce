/* A shard: one of `of` parts that a state is cut into. Where its elements lie is
 * checkpoint/layout/shard.h's matter; here is what must be known of shards without knowing the
 * state: whether some of them are a whole. Pure. */
#ifndef DPT_BASE_SHARD_H
#define DPT_BASE_SHARD_H

#include <stdbool.h>

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

bool dpt_shard_is_among(const struct dpt_shard *shards, int n, struct dpt_shard wanted);

/* An `of` of which all shards are among `shards`, so that a whole state can be put together of what
 * they hold; 0: there is none. Shards of different `of` are not joined to a whole: where one ends
 * another need not begin. */
int dpt_shards_whole(const struct dpt_shard *shards, int n);

/* True when there is such an `of`. */
bool dpt_shards_cover(const struct dpt_shard *shards, int n);

/* Of the `of` of which the most (as a part of all) are among `shards`: the lowest index that is
 * missing; of 0 when nothing is missing, or `shards` are all none. What a person is told when there
 * is no cover. */
struct dpt_shard dpt_shards_missing(const struct dpt_shard *shards, int n);

#endif
