/* A pool of threads that runs one parallel loop at a time for the calling thread.
 *
 * A loop has a number of items. The caller cuts the work into items by shape. Any thread may run
 * any item, so an item's result must not depend on its thread. The caller works too. Workers spin
 * for a few microseconds and then sleep on a futex. The caller waits only for workers that have
 * begun an item.
 *
 * A pool computes with all its threads or with the first of them. The other threads sleep, whatever
 * loops run, until they are wanted again. */
#ifndef DPT_KERNELS_CPU_POOL_H
#define DPT_KERNELS_CPU_POOL_H

#include "base/err.h"
#include "kernels/device.h"

#include <stdint.h>

struct dpt_pool;

enum { DPT_POOL_THREADS_MAX = DPT_STREAM_THREADS_MAX };

/* `item` is in [0, items), `thread` in [0, threads). Thread 0 is the caller. */
typedef void dpt_pool_fn(void *ctx, int64_t item, int thread);

/* Each worker calls thread_begin first, before dpt_pool_create returns, and thread_end last. Both
 * may be NULL. */
struct dpt_pool_hooks {
    void (*thread_begin)(void);
    void (*thread_end)(void);
};

/* Starts threads - 1 workers; the caller is the last thread. DPT_EINVAL outside [1,
 * DPT_POOL_THREADS_MAX]. */
DPT_MUST_USE enum dpt_status dpt_pool_create(int threads, struct dpt_pool_hooks hooks,
                                             struct dpt_pool **ret, struct dpt_err *err);
/* Joins the workers. Not called while a loop runs. */
void dpt_pool_destroy(struct dpt_pool **pool);

/* From the next loop on `threads` threads take part, including the caller: 1 up to the number that
 * the pool was created with. Called between two loops by the thread that runs loops. Allocates
 * nothing and ends no thread. */
void dpt_pool_set_threads(struct dpt_pool *pool, int threads);

/* The number of threads that take part now. */
int dpt_pool_threads(const struct dpt_pool *pool);

/* Runs fn for every item and returns when all are done. One thread calls at a time, never from
 * fn. */
void dpt_pool_run(struct dpt_pool *pool, int64_t items, dpt_pool_fn *fn, void *ctx);

#endif
