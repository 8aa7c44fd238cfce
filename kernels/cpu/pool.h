/* A pool of threads that runs one parallel loop at a time, for the thread that calls it.
 *
 * Work is a number of items, cut by shape by the caller; which thread runs which item is left to
 * chance, so an item's result must not depend on it. The caller works too; workers spin for a few
 * microseconds, then sleep on a futex, and never hold the caller up: it waits only for workers that
 * have begun an item.
 *
 * A pool computes with all its threads or with the first of them: the others keep asleep, whatever
 * loops run, until they are wanted again. */
#ifndef DPT_KERNELS_CPU_POOL_H
#define DPT_KERNELS_CPU_POOL_H

#include "base/err.h"
#include "kernels/device.h"

#include <stdint.h>

struct dpt_pool;

enum { DPT_POOL_THREADS_MAX = DPT_STREAM_THREADS_MAX };

/* `item` in [0, items), `thread` in [0, threads): 0 is the caller. */
typedef void dpt_pool_fn(void *ctx, int64_t item, int thread);

/* Each worker calls thread_begin first, before dpt_pool_create returns, and thread_end last. Either
 * may be NULL. */
struct dpt_pool_hooks {
    void (*thread_begin)(void);
    void (*thread_end)(void);
};

/* `threads` counts the caller: threads-1 are started. DPT_EINVAL outside [1, DPT_POOL_THREADS_MAX].
 */
DPT_MUST_USE enum dpt_status dpt_pool_create(int threads, struct dpt_pool_hooks hooks,
                                             struct dpt_pool **ret, struct dpt_err *err);
/* Joins the workers. Not while a loop runs. */
void dpt_pool_destroy(struct dpt_pool **pool);

/* From the next loop on `threads` take part, the caller counted: 1 up to what the pool was created
 * for. By the thread that runs loops, between two of them; allocates nothing and ends no thread. */
void dpt_pool_set_threads(struct dpt_pool *pool, int threads);

/* How many take part now. */
int dpt_pool_threads(const struct dpt_pool *pool);

/* Runs fn for every item and returns when all are done. One caller at a time; fn must not call it.
 */
void dpt_pool_run(struct dpt_pool *pool, int64_t items, dpt_pool_fn *fn, void *ctx);

#endif
