/* Compares the weights and moments that several ranks hold (train.verify_every). */
#include "base/log.h"
#include "base/strategy_traits.h"
#include "worker/train/save/state_hash.h"
#include "worker/train/step/replica_hashes.h"
#include "worker/train/step/step.h"

enum dpt_status rank_verify(struct dpt_rank *r, struct dpt_err *err)
{
    const struct dpt_strategy_state *state = dpt_strategy_held(r->strategy);
    const struct dpt_state_part *const parts[DPT_REPLICA_PARTS] = {&state->own, &state->shadow};
    struct dpt_replica_hashes mine = {.step = r->state.step};
    if (r->gen.world_size == 1)
        return DPT_OK;
    DPT_TRY(dpt_strategy_fetch_state(r->strategy, err));
    for (int i = 0; i < DPT_REPLICA_PARTS; i++) {
        if (dpt_shard_is_none(parts[i]->shard) || dpt_shard_is_empty(parts[i]->shard))
            continue;
        mine.part[i].shard = parts[i]->shard;
        mine.part[i].hash =
            dpt_state_part_hash(parts[i], &r->grid, dpt_strategy_vectors(r->config));
    }
    DPT_TRY(generation_all_gather(&r->gen, r->comm_thread, &mine, sizeof mine, err));
    return dpt_replica_hashes_compare(r->gen.gathered, r->gen.world_size, r->state.step, err);
}

void rank_warn_of_unverified(const struct dpt_rank *r)
{
    const struct dpt_config *c = r->config;
    const int n = r->gen.n_trainers;
    int alone = 0;
    if (c->train.verify_every == 0 || c->train.eval_only || n == 1 || r->gen.rank != 0 ||
        dpt_strategy_traits(c).shadow) /* warn_of_single_copies warns in this case */
        return;
    for (int i = 0; i < n; i++) {
        int holders = 0;
        for (int k = 0; k < n; k++)
            holders += dpt_shard_equal(r->gen.shards[k], r->gen.shards[i]);
        alone += holders == 1 || dpt_shard_is_empty(r->gen.shards[i]);
    }
    if (alone == n)
        dpt_log(DPT_LOG_WARN,
                "train.verify_every compares nothing: no two of the %d ranks hold the same part of "
                "the weights, as they would with strategy.redundancy: shadow or on two nodes of "
                "hybrid_shard",
                n);
    else if (alone > 0)
        dpt_log(
            DPT_LOG_WARN,
            "train.verify_every compares nothing of %d of %d ranks: these ranks have no replica "
            "with the same sharding",
            alone, n);
}
