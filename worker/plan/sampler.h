/* Which samples a slot reads: element (i mod n) of epoch (i div n)'s keyed permutation, found in
 * O(1). Pure. */
#ifndef DPT_WORKER_PLAN_SAMPLER_H
#define DPT_WORKER_PLAN_SAMPLER_H

#include <stdint.h>

/* Index in [0, n) of sample `i` of the run. A permutation of [0, n) for each epoch: a balanced
 * Feistel network keyed by (seed, epoch) with cycle walking (Black & Rogaway 2002). n >= 1. */
int64_t dpt_sample_index(uint64_t seed, int64_t n, int64_t i);

/* Number of the sample `i` of the run for dpt_sample_index that element `at` of step `step` is, in
 * steps of `batch` samples. epoch_steps 0: steps follow each other in the permutations, and one may
 * lie in two epochs. Else the first step of each epoch_steps begins the next permutation: their
 * batches are its first elements, those left over are in no step. epoch_steps * batch <= n. */
int64_t dpt_sample_number(int64_t n, int64_t epoch_steps, int64_t batch, int64_t step, int64_t at);

#endif
