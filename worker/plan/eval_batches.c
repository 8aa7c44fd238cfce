/* The assignment of an evaluation's samples. */
#include "worker/plan/eval_batches.h"

#include "base/extremes.h"

static int64_t ceil_parts(int64_t n, int64_t of)
{
    return (n + of - 1) / of;
}

int64_t dpt_eval_batches_samples(int64_t samples, int64_t positions, int64_t tokens_max)
{
    int64_t most = tokens_max / positions;
    return dpt_min_i64(samples, most > 0 ? most : 1);
}

int64_t dpt_eval_batches_count(int64_t samples, int micro_batch)
{
    return ceil_parts(samples, micro_batch);
}

int64_t dpt_eval_batches_rounds(int64_t samples, int micro_batch, int64_t done, int world)
{
    return ceil_parts(ceil_parts(samples, micro_batch) - done, world);
}

struct dpt_sample_range dpt_eval_batches_of_rank(int64_t samples, int micro_batch, int64_t done,
                                                 int world, int64_t round, int rank)
{
    int64_t first = dpt_min_i64((done + round * world + rank) * micro_batch, samples);
    return (struct dpt_sample_range){first, dpt_min_i64(first + micro_batch, samples)};
}
