/* The steps of the weights hash, for readers that have no tensor whole in memory. */
#ifndef DPT_CHECKPOINT_WEIGHTS_HASH_H
#define DPT_CHECKPOINT_WEIGHTS_HASH_H

#include "base/hash.h"

#include <stddef.h>

enum { DPT_WEIGHTS_HASH_BLOCK = 65536 }; /* elements */

/* Joins the next block (at most DPT_WEIGHTS_HASH_BLOCK elements of one tensor) to `so_far`, which
 * is zero at the start. */
struct dpt_hash128 dpt_weights_hash_join(struct dpt_hash128 so_far, const float *block,
                                         size_t numel);

#endif
