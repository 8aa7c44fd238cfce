/* The deal of an evaluation's sequences. */
#include "worker/plan/evaluation.h"

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t parts(int64_t n, int64_t of)
{
    return (n + of - 1) / of;
}

int64_t dpt_eval_sequences(int64_t samples, int seq_len, int64_t tokens_max)
{
    int64_t most = tokens_max / seq_len;
    return least(samples, most > 0 ? most : 1);
}

int64_t dpt_eval_batches(int64_t sequences, int micro_batch)
{
    return parts(sequences, micro_batch);
}

int64_t dpt_eval_rounds(int64_t sequences, int micro_batch, int64_t done, int world)
{
    return parts(parts(sequences, micro_batch) - done, world);
}

struct dpt_sequences dpt_eval_batch(int64_t sequences, int micro_batch, int64_t done, int world,
                                    int64_t round, int rank)
{
    int64_t first = least((done + round * world + rank) * micro_batch, sequences);
    return (struct dpt_sequences){first, least(first + micro_batch, sequences)};
}
