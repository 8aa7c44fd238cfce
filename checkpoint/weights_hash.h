/* The steps of the weights hash, for callers that have no whole tensor in memory: any owner of a
 * whole block can hash it, and joining the hashes of blocks, in order, needs no values. */
#ifndef DPT_CHECKPOINT_WEIGHTS_HASH_H
#define DPT_CHECKPOINT_WEIGHTS_HASH_H

#include "base/hash.h"

enum { DPT_WEIGHTS_HASH_BLOCK = 65536 }; /* elements; each tensor starts a new block */

/* Joins (dpt_hash128_join; zero at the start) the blocks of the next `n` values of a tensor, which
 * begin at a block, to `so_far`. */
struct dpt_hash128 dpt_weights_hash_add(struct dpt_hash128 so_far, const float *values, int64_t n);

#endif
