/* Sets of shards that are a whole (shard.h). */
#include "base/shard.h"

#include "base/err.h"

#include <stdint.h>
#include <string.h>

bool dpt_shard_is_among(const struct dpt_shard *shards, int n, struct dpt_shard wanted)
{
    for (int i = 0; i < n; i++)
        if (dpt_shard_equal(shards[i], wanted))
            return true;
    return false;
}

/* The shards of one division. */
struct division {
    int found;   /* number of different shards */
    int missing; /* lowest index of a shard that is not there; < 0: none */
};

static struct division look_at_division(const struct dpt_shard *shards, int n, int of)
{
    enum { BITS = 64 };
    uint64_t seen[DPT_WORLD_MAX / BITS + 1];
    struct division ret = {.missing = -1};
    DPT_ASSERT(of > 0 && of <= DPT_WORLD_MAX);
    memset(seen, 0, (size_t)(of / BITS + 1) * sizeof seen[0]);
    for (int i = 0; i < n; i++) {
        const int index = shards[i].index;
        if (shards[i].of != of || index < 0 || index >= of ||
            (seen[index / BITS] >> (index % BITS) & 1) != 0)
            continue;
        seen[index / BITS] |= UINT64_C(1) << (index % BITS);
        ret.found++;
    }
    for (int index = 0; ret.found < of && ret.missing < 0; index++)
        if ((seen[index / BITS] >> (index % BITS) & 1) == 0)
            ret.missing = index;
    return ret;
}

int dpt_shards_whole(const struct dpt_shard *shards, int n)
{
    for (int i = 0; i < n; i++) {
        /* Every whole state has a shard with index 0. */
        if (shards[i].of == 0 || shards[i].index != 0 || shards[i].of > n ||
            dpt_shard_is_among(shards, i, shards[i]))
            continue;
        if (look_at_division(shards, n, shards[i].of).found == shards[i].of)
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
        if (of == 0 || dpt_shard_is_empty(shards[i]) || of_is_among(shards, i, of))
            continue;
        const struct division division = look_at_division(shards, n, of);
        if (division.missing < 0)
            return (struct dpt_shard){0, 0};
        if ((long)division.found * best.of > (long)best_found * of || best.of == 0) {
            best = (struct dpt_shard){division.missing, of};
            best_found = division.found;
        }
    }
    const bool only_empty = best.of == 0 && dpt_shard_is_among(shards, n, DPT_SHARD_EMPTY);
    return only_empty ? (struct dpt_shard){0, 1} : best;
}
