/* Packing and folding of an evaluation's rounds. */
#include "worker/train/state/eval_shares.h"

#include "base/cursor.h"

#include <string.h>

void dpt_evaluation_begin(struct dpt_evaluation *e, const struct dpt_eval_part *from,
                          int64_t samples, int micro_batch, int world)
{
    *e = (struct dpt_evaluation){.step = from->step,
                                 .samples = samples,
                                 .micro_batch = micro_batch,
                                 .world = world,
                                 .done = from->batches,
                                 .rounds =
                                     dpt_eval_rounds(samples, micro_batch, from->batches, world),
                                 .sum = from->sum,
                                 .right = from->right};
}

struct dpt_eval_part dpt_evaluation_part(const struct dpt_evaluation *e)
{
    const int64_t all = dpt_eval_batches(e->samples, e->micro_batch),
                  batches = e->done + e->round * e->world;
    return (struct dpt_eval_part){.step = e->step,
                                  .batches = batches < all ? batches : all,
                                  .sum = e->sum,
                                  .right = e->right};
}

struct dpt_sample_range dpt_evaluation_batch(const struct dpt_evaluation *e, int rank)
{
    return dpt_eval_batch(e->samples, e->micro_batch, e->done, e->world, e->round, rank);
}

void dpt_eval_share_pack(const struct dpt_eval_share *share, uint8_t buf[DPT_EVAL_SHARE_BYTES])
{
    struct dpt_writer w;
    uint64_t sum;
    memcpy(&sum, &share->sum, sizeof sum);
    dpt_writer_init(&w, buf, DPT_EVAL_SHARE_BYTES);
    dpt_writer_u64(&w, (uint64_t)share->step);
    dpt_writer_u64(&w, (uint64_t)share->round);
    dpt_writer_u32(&w, share->reform);
    dpt_writer_u32(&w, share->leaving);
    dpt_writer_u64(&w, (uint64_t)share->first);
    dpt_writer_u64(&w, sum);
    dpt_writer_u64(&w, (uint64_t)share->right);
    DPT_ASSERT(!w.failed && w.at == w.bytes);
}

/* What rank `rank` says. */
static struct dpt_eval_share share_of(const uint8_t *all, int rank)
{
    struct dpt_eval_share share = {0};
    struct dpt_reader r;
    dpt_reader_init(&r, all + (size_t)rank * DPT_EVAL_SHARE_BYTES, DPT_EVAL_SHARE_BYTES);
    share.step = (int64_t)dpt_reader_u64(&r);
    share.round = (int64_t)dpt_reader_u64(&r);
    share.reform = dpt_reader_u32(&r);
    share.leaving = dpt_reader_u32(&r);
    share.first = (int64_t)dpt_reader_u64(&r);
    uint64_t sum = dpt_reader_u64(&r);
    memcpy(&share.sum, &sum, sizeof sum);
    share.right = (int64_t)dpt_reader_u64(&r);
    return share;
}

static enum dpt_status check(const struct dpt_evaluation *e, const uint8_t *all,
                             struct dpt_err *err)
{
    for (int rank = 0; rank < e->world; rank++) {
        const struct dpt_eval_share s = share_of(all, rank);
        if (s.step != e->step || s.round != e->round)
            return dpt_fail(err, DPT_EPROTO,
                            "rank %d is in round %lld of the evaluation at step %lld, this rank in "
                            "round %lld of the one at step %lld",
                            rank, (long long)s.round, (long long)s.step, (long long)e->round,
                            (long long)e->step);
        const struct dpt_sample_range batch = dpt_evaluation_batch(e, rank);
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

enum dpt_status dpt_evaluation_fold(struct dpt_evaluation *e, const uint8_t *all,
                                    struct dpt_err *err)
{
    DPT_TRY(check(e, all, err));
    int leaving = 0;
    for (int rank = 0; rank < e->world; rank++) {
        const struct dpt_eval_share s = share_of(all, rank);
        e->reform = e->reform || s.reform;
        leaving += s.leaving != 0;
        e->sum += s.sum;
        e->right += s.right;
    }
    e->all_leave = leaving == e->world;
    e->round++;
    return DPT_OK;
}
