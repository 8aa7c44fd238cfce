/* Counts heap allocations and mappings of this program, its libraries included: the program's own
 * malloc, calloc, realloc, the aligned ones and mmap come first in symbol lookup. Under sanitizers,
 * which own the allocator, the count stays 0. */
#ifndef DPT_WORKER_BENCH_ALLOC_COUNT_H
#define DPT_WORKER_BENCH_ALLOC_COUNT_H

#include <stdint.h>

/* Allocations so far, on all threads except those that call this function. A calling thread is left
 * out from its first call on. */
int64_t dpt_alloc_count_others(void);

#endif
