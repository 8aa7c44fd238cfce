/* Compares the ranks' hashes (replica_hashes.h). */
#include "worker/train/step/replica_hashes.h"

#include <stdbool.h>

static enum dpt_status check_verify_shares(const struct dpt_replica_hashes *all, int world,
                                           int64_t step, struct dpt_err *err)
{
    for (int rank = 0; rank < world; rank++) {
        const struct dpt_replica_hashes s = all[rank];
        if (s.step != step)
            return dpt_fail(err, DPT_EPROTO,
                            "rank %d compares its weights after step %lld, this rank after step "
                            "%lld",
                            rank, (long long)s.step, (long long)step);
        for (int i = 0; i < DPT_REPLICA_PARTS; i++) {
            const struct dpt_shard shard = s.part[i].shard;
            if (shard.of < 0 || shard.of > world ||
                (shard.of > 0 && (shard.index < 0 || shard.index >= shard.of)))
                return dpt_fail(err, DPT_EPROTO, "rank %d holds shard %d of %d in a world of %d",
                                rank, shard.index, shard.of, world);
        }
    }
    return DPT_OK;
}

/* Part `i` of the parts of all ranks, counted in the order of ranks. */
static struct dpt_replica_hash part_of(const struct dpt_replica_hashes *all, int i)
{
    return all[i / DPT_REPLICA_PARTS].part[i % DPT_REPLICA_PARTS];
}

static bool same_hash(struct dpt_hash128 a, struct dpt_hash128 b)
{
    return a.hi == b.hi && a.lo == b.lo;
}

/* How many of the n parts are of a given shard, and how many of these have a given hash. */
struct count {
    int holders, agree;
};

static struct count count_holders(const struct dpt_replica_hashes *all, int n,
                                  const struct dpt_replica_hash *with)
{
    struct count c = {0, 0};
    for (int i = 0; i < n; i++) {
        const struct dpt_replica_hash part = part_of(all, i);
        if (!dpt_shard_equal(part.shard, with->shard))
            continue;
        c.holders++;
        c.agree += same_hash(part.hash, with->hash);
    }
    return c;
}

/* Fails with the name of the rank at fault, because the holders of the shard do not agree. */
static enum dpt_status blame_rank(const struct dpt_replica_hashes *all, int n,
                                  struct dpt_shard shard, int64_t step, struct dpt_err *err)
{
    /* Lowest part with the most frequent hash; lowest part with another hash. */
    int best = -1, odd = -1;
    struct count most = {0, 0};
    for (int i = 0; i < n; i++) {
        const struct dpt_replica_hash part = part_of(all, i);
        const struct count c = count_holders(all, n, &part);
        if (dpt_shard_equal(part.shard, shard) && c.agree > most.agree) {
            best = i;
            most = c;
        }
    }
    const struct dpt_hash128 right = part_of(all, best).hash;
    for (int i = n - 1; i >= 0; i--) {
        const struct dpt_replica_hash part = part_of(all, i);
        if (dpt_shard_equal(part.shard, shard) && !same_hash(part.hash, right))
            odd = i;
    }
    odd /= DPT_REPLICA_PARTS;
    best /= DPT_REPLICA_PARTS;
    if (2 * most.agree > most.holders)
        return dpt_fail(
            err, DPT_ECORRUPT,
            "rank %d holds other weights or moments after step %lld than rank %d and %d of the %d "
            "that hold them: its memory or its arithmetic is at fault; take its "
            "machine out of the run and continue from the last checkpoint",
            odd, (long long)step, best, most.agree, most.holders);
    return dpt_fail(
        err, DPT_ECORRUPT,
        "rank %d holds other weights or moments after step %lld than rank %d, and too few hold "
        "them to tell which of the two is at fault; continue from the last checkpoint, on "
        "other machines or on more of them",
        odd, (long long)step, best);
}

enum dpt_status dpt_replica_hashes_compare(const struct dpt_replica_hashes *all, int world,
                                           int64_t step, struct dpt_err *err)
{
    const int n = world * DPT_REPLICA_PARTS;
    DPT_TRY(check_verify_shares(all, world, step, err));
    for (int i = 0; i < n; i++) {
        const struct dpt_replica_hash part = part_of(all, i);
        if (dpt_shard_is_none(part.shard))
            continue;
        /* The first holder of the shard. All other holders must agree with it. */
        int first = 0;
        while (!dpt_shard_equal(part_of(all, first).shard, part.shard))
            first++;
        if (!same_hash(part_of(all, first).hash, part.hash))
            return blame_rank(all, n, part.shard, step, err);
    }
    return DPT_OK;
}
