/* Shares of writers (writer_share.h). */
#include "checkpoint/layout/writer_share.h"

#include "base/err.h"

/* The number of writers whose shards have this `of`; 0: these shards are not a cover. */
static int cover_size(const struct dpt_shard *shards, int n, int of)
{
    int size = 0;
    for (int index = 0; index < of; index++)
        if (!dpt_shard_is_among(shards, n, (struct dpt_shard){index, of}))
            return 0;
    for (int i = 0; i < n; i++)
        size += shards[i].of == of;
    return size;
}

/* True for the first shard of each `of`, so that a loop over shards visits each cover once. */
static bool is_first_of(const struct dpt_shard *shards, int i)
{
    for (int k = 0; k < i; k++)
        if (shards[k].of == shards[i].of)
            return false;
    return shards[i].of > 0;
}

/* Numbers of writers: in the covers before this writer's cover, in its cover, in all covers. */
struct weights {
    int64_t before, own, all;
};

static struct weights weigh_covers(const struct dpt_shard *shards, int n, int of)
{
    struct weights w = {0, 0, 0};
    for (int i = 0; i < n; i++) {
        if (!is_first_of(shards, i))
            continue;
        const int size = cover_size(shards, n, shards[i].of);
        if (shards[i].of == of) {
            w.before = w.all;
            w.own = size;
        }
        w.all += size;
    }
    return w;
}

/* The end of the longest range that starts at `x` and that no cover cuts. */
static int64_t uncut_until(const struct dpt_grid *grid, const struct dpt_shard *shards, int n,
                           int unit, int64_t x)
{
    const int64_t first = grid->offset[unit], numel = grid->offset[unit + 1] - first;
    int64_t end = first + numel;
    for (int i = 0; i < n; i++) {
        if (!is_first_of(shards, i) || cover_size(shards, n, shards[i].of) == 0)
            continue;
        const int owner = dpt_layout_owner(numel, grid->block, shards[i].of, x - first);
        const struct dpt_interval piece = dpt_layout_piece(numel, grid->block, shards[i].of, owner);
        end = first + piece.end < end ? first + piece.end : end;
    }
    return end;
}

void dpt_writer_share(const struct dpt_grid *grid, const struct dpt_shard *shards, int n,
                      int writer, struct dpt_share *ret, int max)
{
    const struct dpt_shard own = shards[writer];
    struct weights w = weigh_covers(shards, n, own.of);
    *ret = (struct dpt_share){.interval = ret->interval};
    if (own.of == 0 || w.own == 0)
        return;
    for (int i = 0; i < n; i++) {
        ret->replica += i < writer && dpt_shard_equal(shards[i], own);
        ret->n_replicas += dpt_shard_equal(shards[i], own);
    }
    for (int unit = 0; unit < grid->n_units; unit++) {
        const struct dpt_interval piece = dpt_shard_piece(grid, own, unit);
        for (int64_t x = piece.first; x < piece.end;) {
            const int64_t end = w.own == w.all ? piece.end : uncut_until(grid, shards, n, unit, x);
            const int64_t blocks = (end - x) / grid->block;
            const struct dpt_interval part = {x + blocks * w.before / w.all * grid->block,
                                              x + blocks * (w.before + w.own) / w.all *
                                                      grid->block};
            if (part.first < part.end && ret->n++ < max)
                ret->interval[ret->n - 1] = part;
            x = end;
        }
    }
}
