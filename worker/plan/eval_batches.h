/* The samples of an evaluation, their order, and their assignment to ranks. Pure.
 *
 * Validation data is read from its start, in stored order: samples 0 … n-1, in batches of
 * micro_batch; the last batch may be short. A world of W ranks begins when `done` batches are done;
 * in round k rank r computes batch done + k * W + r. The samples of a batch depend only on the
 * config, so its loss has the same bits on every rank. */
#ifndef DPT_WORKER_PLAN_EVAL_BATCHES_H
#define DPT_WORKER_PLAN_EVAL_BATCHES_H

#include <stdint.h>

/* Sequences [first, end); empty: first == end. */
struct dpt_sample_range {
    int64_t first, end;
};

/* The number of samples that an evaluation reads: at most `samples`, and at most tokens_max
 * positions in all, where a sample has `positions` positions; at least 1. samples, positions >=
 * 1. */
int64_t dpt_eval_batches_samples(int64_t samples, int64_t positions, int64_t tokens_max);

/* The number of batches of `samples` samples. */
int64_t dpt_eval_batches_count(int64_t samples, int micro_batch);

/* The number of rounds in which a world of `world` ranks computes the batches that are left. */
int64_t dpt_eval_batches_rounds(int64_t samples, int micro_batch, int64_t done, int world);

/* The samples that rank `rank` computes in round `round`: at most micro_batch samples, none if no
 * batch is left for the rank. */
struct dpt_sample_range dpt_eval_batches_of_rank(int64_t samples, int micro_batch, int64_t done,
                                                 int world, int64_t round, int rank);

#endif
