/* The samples of an evaluation, their order, and their assignment to ranks. Pure.
 *
 * Validation data is read from its start, in its own order: samples 0 … n-1, in batches of
 * micro_batch (the last one may be short). A world of W ranks that begins when `done` batches are
 * done computes in its round k, by rank r, batch done + k * W + r. What a batch holds depends on
 * the config alone, so its loss has the same bits whichever rank computes it. */
#ifndef DPT_WORKER_PLAN_EVALUATION_H
#define DPT_WORKER_PLAN_EVALUATION_H

#include <stdint.h>

/* Sequences [first, end); empty: first == end. */
struct dpt_sample_range {
    int64_t first, end;
};

/* How many samples an evaluation reads of `samples` that there are, of `positions` positions each,
 * when it may read tokens_max positions; 1 at least. samples, positions >= 1. */
int64_t dpt_eval_samples(int64_t samples, int64_t positions, int64_t tokens_max);

/* Batches that they make. */
int64_t dpt_eval_batches(int64_t samples, int micro_batch);

/* Rounds in which a world of `world` ranks computes those that are left. */
int64_t dpt_eval_rounds(int64_t samples, int micro_batch, int64_t done, int world);

/* What rank `rank` computes in round `round`: at most micro_batch samples, none when the batches
 * have come to their end before it. */
struct dpt_sample_range dpt_eval_batch(int64_t samples, int micro_batch, int64_t done, int world,
                                       int64_t round, int rank);

#endif
