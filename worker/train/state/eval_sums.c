/* The rounds of an evaluation (eval_sums.h). */
#include "worker/train/state/eval_sums.h"

void dpt_eval_sums_begin(struct dpt_eval_sums *e, const struct dpt_eval_part *from, int64_t samples,
                         int micro_batch, int world)
{
    *e = (struct dpt_eval_sums){
        .step = from->step,
        .samples = samples,
        .micro_batch = micro_batch,
        .world = world,
        .done = from->batches,
        .rounds = dpt_eval_batches_rounds(samples, micro_batch, from->batches, world),
        .sum = from->sum,
        .right = from->right};
}

struct dpt_eval_part dpt_eval_sums_part(const struct dpt_eval_sums *e)
{
    const int64_t all = dpt_eval_batches_count(e->samples, e->micro_batch),
                  batches = e->done + e->round * e->world;
    return (struct dpt_eval_part){.step = e->step,
                                  .batches = batches < all ? batches : all,
                                  .sum = e->sum,
                                  .right = e->right};
}

struct dpt_sample_range dpt_eval_sums_batch(const struct dpt_eval_sums *e, int rank)
{
    return dpt_eval_batches_of_rank(e->samples, e->micro_batch, e->done, e->world, e->round, rank);
}

static enum dpt_status check_eval_shares(const struct dpt_eval_sums *e,
                                         const struct dpt_eval_share *all, struct dpt_err *err)
{
    for (int rank = 0; rank < e->world; rank++) {
        const struct dpt_eval_share s = all[rank];
        if (s.step != e->step || s.round != e->round)
            return dpt_fail(err, DPT_EPROTO,
                            "rank %d is in round %lld of the evaluation at step %lld, this rank in "
                            "round %lld of the one at step %lld",
                            rank, (long long)s.round, (long long)s.step, (long long)e->round,
                            (long long)e->step);
        const struct dpt_sample_range batch = dpt_eval_sums_batch(e, rank);
        if (s.reform > 1 || s.leaving > 1 || s.first != batch.first)
            return dpt_fail(err, DPT_EPROTO,
                            "rank %d evaluated samples from %lld on, with flags %u and %u", rank,
                            (long long)s.first, s.reform, s.leaving);
        if (s.right < 0 || s.right > batch.end - batch.first)
            return dpt_fail(err, DPT_EPROTO, "rank %d predicted %lld labels of %lld samples", rank,
                            (long long)s.right, (long long)(batch.end - batch.first));
    }
    return DPT_OK;
}

enum dpt_status dpt_eval_sums_combine(struct dpt_eval_sums *e, const struct dpt_eval_share *all,
                                      struct dpt_err *err)
{
    DPT_TRY(check_eval_shares(e, all, err));
    int leaving = 0;
    for (int rank = 0; rank < e->world; rank++) {
        e->reform = e->reform || all[rank].reform;
        leaving += all[rank].leaving != 0;
        e->sum += all[rank].sum;
        e->right += all[rank].right;
    }
    e->all_leave = leaving == e->world;
    e->round++;
    return DPT_OK;
}
