/* Ranks compare what several of them hold: the weights (train.verify_every), the loss's scale. */
#include "base/log.h"
#include "worker/train/rank_internal.h"
#include "worker/train/save/state_hash.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void rank_damage_weights(struct dpt_rank *r)
{
    const struct dpt_state_part *own = &r->strategy->ops->held(r->strategy)->own;
    struct dpt_err err;
    if (r->gen.rank != r->flip_weight.rank || r->step != r->flip_weight.step ||
        rank_fetch_state(r, &err) != DPT_OK)
        return;
    for (int unit = 0; unit < r->grid.n_units; unit++) {
        const struct dpt_interval piece = dpt_shard_piece(&r->grid, own->shard, unit);
        if (piece.first >= piece.end)
            continue;
        uint32_t bits;
        float *at = dpt_state_at(own, &r->grid, DPT_VECTOR_PARAM, unit);
        memcpy(&bits, at, sizeof bits);
        bits ^= 1;
        memcpy(at, &bits, sizeof bits);
        if (dpt_config_state_on_device(r->config))
            r->strategy->ops->state_changed(r->strategy); /* so that it reaches the device */
        return;
    }
}

static enum dpt_status job_exchange(struct dpt_comm_thread *thread, void *ctx, struct dpt_err *err)
{
    struct dpt_rank *r = ctx;
    return dpt_comm_small_all_gather(dpt_comm_thread_comm(thread), r->verify_share,
                                     DPT_VERIFY_SHARE_BYTES, r->gen.verify_shares, err);
}

enum dpt_status rank_verify(struct dpt_rank *r, struct dpt_err *err)
{
    const struct dpt_strategy_state *state = r->strategy->ops->held(r->strategy);
    const struct dpt_state_part *const parts[DPT_VERIFY_PARTS] = {&state->own, &state->shadow};
    struct dpt_verify_share mine = {.step = r->step};
    if (r->gen.world_size == 1)
        return DPT_OK;
    DPT_TRY(rank_fetch_state(r, err));
    for (int i = 0; i < DPT_VERIFY_PARTS; i++) {
        if (dpt_shard_is_none(parts[i]->shard))
            continue;
        mine.part[i].shard = parts[i]->shard;
        mine.part[i].hash = dpt_state_part_hash(parts[i], &r->grid, dpt_vectors(r->config));
    }
    dpt_verify_share_pack(&mine, r->verify_share);
    DPT_TRY(dpt_comm_thread_run(r->comm_thread, job_exchange, r, err));
    return dpt_verify_fold(r->gen.verify_shares, r->gen.world_size, r->step, err);
}

void rank_warn_of_unverified(const struct dpt_rank *r)
{
    const struct dpt_config *c = r->config;
    const int n = r->gen.n_trainers;
    int alone = 0;
    if (c->train.verify_every == 0 || c->train.eval_only || n == 1 || r->gen.rank != 0 ||
        c->strategy.redundancy == DPT_REDUNDANCY_SHADOW) /* of which the bare are told */
        return;
    for (int i = 0; i < n; i++) {
        int holders = 0;
        for (int k = 0; k < n; k++)
            holders += dpt_shard_equal(r->gen.shards[k], r->gen.shards[i]);
        alone += holders == 1;
    }
    if (alone == n)
        dpt_log(DPT_LOG_WARN,
                "train.verify_every compares nothing: no two of the %d ranks hold the same part of "
                "the weights, as they would with strategy.redundancy: shadow or on two nodes of "
                "hybrid_shard",
                n);
    else if (alone > 0)
        dpt_log(DPT_LOG_WARN,
                "train.verify_every compares nothing of %d of %d ranks: no node but theirs has as "
                "many ranks, so that none is cut alike",
                alone, n);
}

enum dpt_status rank_adopt_scaler(struct dpt_rank *r, int source, const struct dpt_scaler *theirs,
                                  struct dpt_err *err)
{
    if (r->gen.takes_state[r->gen.rank])
        return dpt_scaler_resume(r->config, r->step, theirs, &r->scaler, err);
    if (!dpt_scaler_equal(theirs, &r->scaler))
        return dpt_fail(err, DPT_ECORRUPT,
                        "rank %d goes on from step %lld with the loss scaled by %g and %lld steps "
                        "skipped, rank %d by %g and %lld",
                        source, (long long)r->step, theirs->scale, (long long)theirs->skipped,
                        r->gen.rank, r->scaler.scale, (long long)r->scaler.skipped);
    return DPT_OK;
}

/* A variable left over from a test must not spoil a run in silence. */
static void warn_of_fault(const char *name, const char *text, const char *what)
{
    dpt_log(DPT_LOG_WARN, "%s=%s is set: %s of this run will be damaged on purpose", name, text,
            what);
}

/* RANK:STEP */
static struct flip_place read_flip(const char *name, const char *what)
{
    const char *text = getenv(name);
    struct flip_place place = {.rank = -1};
    long long step;
    if (!text || sscanf(text, "%d:%lld", &place.rank, &step) != 2)
        return (struct flip_place){.rank = -1};
    place.step = step;
    warn_of_fault(name, text, what);
    return place;
}

/* COUNT:FIRST[:FACTOR] */
static struct spoilt_steps read_spoilt(const char *name, const char *what)
{
    const char *text = getenv(name);
    long long n, first;
    double factor = (double)NAN;
    if (!text || sscanf(text, "%lld:%lld:%lf", &n, &first, &factor) < 2)
        return (struct spoilt_steps){.n = 0};
    warn_of_fault(name, text, what);
    return (struct spoilt_steps){.first = first, .n = n, .factor = factor};
}

void rank_read_faults(struct dpt_rank *r)
{
    r->flip_gradient = read_flip("DPT_TEST_FLIP_GRADIENT_BIT", "a gradient");
    r->flip_weight = read_flip("DPT_TEST_FLIP_WEIGHT_BIT", "a weight");
    r->spoilt = read_spoilt("DPT_TEST_SPOIL_STEPS", "steps");
}
