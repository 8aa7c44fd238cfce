/* Part of memory.c: what a rank's ops need to multiply. Inside this folder only. */
#ifndef DPT_WORKER_STRATEGY_MEMORY_PRODUCT_WORKSPACE_H
#define DPT_WORKER_STRATEGY_MEMORY_PRODUCT_WORKSPACE_H

#include "worker/strategy/memory/memory_formula.h"

/* The workspace of the stream that a slot is computed on: an upper bound, but for some
 * hundred KiB. `head_meets`: the head's gradient is added to what is there already. */
int64_t dpt_memory_workspace(const struct dpt_memory_spec *spec, bool head_meets);

#endif
