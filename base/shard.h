/* A shard: one of `of` parts of a state, and whether given shards are a whole state. The elements
 * of a shard are defined in checkpoint/layout/shard_piece.h. Pure. */
#ifndef DPT_BASE_SHARD_H
#define DPT_BASE_SHARD_H

#include "base/world_limits.h"

#include <stdbool.h>

/* 0 <= index < of <= DPT_WORLD_MAX, except for the two special shards. */
struct dpt_shard {
    int index, of; /* `of` 1: the whole state; `of` 0: no shard; see also DPT_SHARD_EMPTY */
};

/* The shard without elements, of a rank that trains while another rank holds the whole state. It is
 * not the same as no shard: a report without shards means the whole state. `of` is larger than any
 * world. */
enum { DPT_SHARD_EMPTY_INDEX = DPT_WORLD_MAX, DPT_SHARD_EMPTY_OF = DPT_WORLD_MAX + 1 };
#define DPT_SHARD_EMPTY ((struct dpt_shard){DPT_SHARD_EMPTY_INDEX, DPT_SHARD_EMPTY_OF})

static inline bool dpt_shard_is_none(struct dpt_shard shard)
{
    return shard.of == 0;
}

static inline bool dpt_shard_equal(struct dpt_shard a, struct dpt_shard b)
{
    return a.of == b.of && a.index == b.index;
}

static inline bool dpt_shard_is_empty(struct dpt_shard shard)
{
    return dpt_shard_equal(shard, DPT_SHARD_EMPTY);
}

bool dpt_shard_is_among(const struct dpt_shard *shards, int n, struct dpt_shard wanted);

/* If `shards` contains a whole state: its number of shards; else 0. Shards of different `of` do not
 * make a whole state, because their boundaries differ. */
int dpt_shards_whole(const struct dpt_shard *shards, int n);

/* Whether dpt_shards_whole is not 0. */
bool dpt_shards_cover(const struct dpt_shard *shards, int n);

/* For messages: a shard that is missing for a whole state. Of the division of which `shards` has
 * the largest part, it is the missing shard with the lowest index; of empty shards alone, the whole
 * state. `of` 0: no shard is missing, or `shards` has none. */
struct dpt_shard dpt_shards_missing(const struct dpt_shard *shards, int n);

#endif
