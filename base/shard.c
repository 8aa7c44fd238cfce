/* Sets of shards that are a whole (shard.h). */
#include "base/shard.h"

bool dpt_shard_is_among(const struct dpt_shard *shards, int n, struct dpt_shard wanted)
{
    for (int i = 0; i < n; i++)
        if (dpt_shard_equal(shards[i], wanted))
            return true;
    return false;
}

int dpt_shards_whole(const struct dpt_shard *shards, int n)
{
    for (int i = 0; i < n; i++) {
        /* Every whole state has a shard with index 0. */
        if (shards[i].of == 0 || shards[i].index != 0 || dpt_shard_is_among(shards, i, shards[i]))
            continue;
        int index = 1;
        while (index < shards[i].of &&
               dpt_shard_is_among(shards, n, (struct dpt_shard){index, shards[i].of}))
            index++;
        if (index == shards[i].of)
            return shards[i].of;
    }
    return 0;
}

bool dpt_shards_cover(const struct dpt_shard *shards, int n)
{
    return dpt_shards_whole(shards, n) > 0;
}

static bool of_is_among(const struct dpt_shard *shards, int n, int of)
{
    for (int i = 0; i < n; i++)
        if (shards[i].of == of)
            return true;
    return false;
}

struct dpt_shard dpt_shards_missing(const struct dpt_shard *shards, int n)
{
    struct dpt_shard best = {0, 0};
    int best_found = 0;
    for (int i = 0; i < n; i++) {
        const int of = shards[i].of;
        int found = 0, missing = -1;
        if (of == 0 || dpt_shard_is_empty(shards[i]) || of_is_among(shards, i, of))
            continue;
        for (int index = of - 1; index >= 0; index--)
            if (dpt_shard_is_among(shards, n, (struct dpt_shard){index, of}))
                found++;
            else
                missing = index;
        if (missing < 0)
            return (struct dpt_shard){0, 0};
        if ((long)found * best.of > (long)best_found * of || best.of == 0) {
            best = (struct dpt_shard){missing, of};
            best_found = found;
        }
    }
    const bool only_empty = best.of == 0 && dpt_shard_is_among(shards, n, DPT_SHARD_EMPTY);
    return only_empty ? (struct dpt_shard){0, 1} : best;
}
