/* The order of samples: sample i of the run is element (i mod n) of the keyed permutation of epoch
 * (i div n), computed in O(1). Pure. */
#ifndef DPT_WORKER_PLAN_SAMPLER_H
#define DPT_WORKER_PLAN_SAMPLER_H

#include <stdint.h>

/* Index in [0, n) of sample `i` of the run. A permutation of [0, n) for each epoch: a balanced
 * Feistel network keyed by (seed, epoch) with cycle walking (Black & Rogaway 2002). n >= 1. */
int64_t dpt_sampler_index(uint64_t seed, int64_t n, int64_t i);

/* The number `i` for dpt_sampler_index of sample `at` of step `step`; a step has `batch` samples.
 * With epoch_steps 0 steps follow each other through the permutations, and a step may lie in two
 * epochs. Otherwise each epoch has epoch_steps steps, begins with the next permutation and reads
 * its first elements; no step reads the rest. epoch_steps * batch <= n. */
int64_t dpt_sampler_number(int64_t n, int64_t epoch_steps, int64_t batch, int64_t step, int64_t at);

#endif
