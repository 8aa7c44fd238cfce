/* The assignment of an evaluation's samples. */
#include "worker/plan/eval_batches.h"

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t parts(int64_t n, int64_t of)
{
    return (n + of - 1) / of;
}

int64_t dpt_eval_batches_samples(int64_t samples, int64_t positions, int64_t tokens_max)
{
    int64_t most = tokens_max / positions;
    return least(samples, most > 0 ? most : 1);
}

int64_t dpt_eval_batches_count(int64_t samples, int micro_batch)
{
    return parts(samples, micro_batch);
}

int64_t dpt_eval_batches_rounds(int64_t samples, int micro_batch, int64_t done, int world)
{
    return parts(parts(samples, micro_batch) - done, world);
}

struct dpt_sample_range dpt_eval_batches_of_rank(int64_t samples, int micro_batch, int64_t done,
                                                 int world, int64_t round, int rank)
{
    int64_t first = least((done + round * world + rank) * micro_batch, samples);
    return (struct dpt_sample_range){first, least(first + micro_batch, samples)};
}
