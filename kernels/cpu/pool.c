/* The pool (pool.h).
 *
 * One 32-bit word, `state`, holds the number of workers inside the current loop (low byte), a bit
 * for "open to more workers", a bit for the end of the pool, a bit for "the caller sleeps", and the
 * loop's number. A worker enters an open loop by a compare-and-swap on that word. When no item is
 * left, the caller closes the loop and waits until the number of workers is zero. A worker that
 * wakes late finds the loop closed and sleeps again, so a worker without a core costs the caller
 * nothing.
 *
 * Workers that take no part are parked: they sleep on the same word, but other bits of the futex
 * wake them, so loops do not disturb them. dpt_pool_set_threads also changes the word, so that no
 * worker falls asleep with the old number of threads. */
#include "kernels/cpu/pool.h"

#include "base/cores.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    COUNT_MASK = 0xff,
    OPEN = 0x100,
    END = 0x200,
    CALLER_SLEEPS = 0x400,
    EPOCH_SHIFT = 11,
    /* A few microseconds: longer than the gap between two ops, shorter than a time slice. */
    SPINS = 1000,
    WAKE_WORKERS = 1,
    WAKE_CALLER = 2,
    WAKE_PARKED = 4
};

struct worker {
    struct dpt_pool *pool;
    pthread_t thread;
    int index;
};

struct dpt_pool {
    _Alignas(64) _Atomic uint32_t state;
    _Atomic int sleepers;
    _Alignas(64) _Atomic int64_t next;
    _Alignas(64) int64_t items;
    dpt_pool_fn *fn;
    void *ctx;
    atomic_int threads; /* threads that take part in loops */
    int threads_max, started;
    struct dpt_pool_hooks hooks;
    sem_t begun;
    struct worker workers[DPT_POOL_THREADS_MAX];
};

/* The threads of all pools in this process that have workers. Pools spin only while dpt_cores_spare
 * finds enough cores for them. */
static atomic_int threads_total;

static int spins_max(void)
{
    return dpt_cores_spare(atomic_load_explicit(&threads_total, memory_order_relaxed)) ? SPINS : 0;
}

static int counted_threads(int threads)
{
    return threads > 1 ? threads : 0; /* a pool of one thread never spins */
}

static void pause_core(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}

static void futex_wait(_Atomic uint32_t *word, uint32_t value, uint32_t who)
{
    syscall(SYS_futex, word, FUTEX_WAIT_BITSET_PRIVATE, value, NULL, NULL, who);
}

static void futex_wake(_Atomic uint32_t *word, int n, uint32_t who)
{
    syscall(SYS_futex, word, FUTEX_WAKE_BITSET_PRIVATE, n, NULL, NULL, who);
}

static void run_items(struct dpt_pool *pool, int thread)
{
    const int64_t items = pool->items;
    for (int64_t i = atomic_fetch_add(&pool->next, 1); i < items;
         i = atomic_fetch_add(&pool->next, 1))
        pool->fn(pool->ctx, i, thread);
}

/* Whether this worker takes part in loops now. */
static bool takes_part(const struct worker *w)
{
    return w->index < atomic_load(&w->pool->threads);
}

/* Waits until a loop other than `seen` is open for this worker, or the pool ends. Returns the state
 * that it found. */
static uint32_t wait_for_loop(const struct worker *w, uint32_t seen)
{
    struct dpt_pool *pool = w->pool;
    int left = spins_max();
    for (;;) {
        uint32_t s = atomic_load(&pool->state);
        if (s & END)
            return s;
        if (!takes_part(w)) { /* asked after `state` was read (dpt_pool_set_threads) */
            futex_wait(&pool->state, s, WAKE_PARKED);
            continue;
        }
        if ((s & OPEN) && (s >> EPOCH_SHIFT) != seen)
            return s;
        if (left-- > 0) {
            pause_core();
            continue;
        }
        atomic_fetch_add(&pool->sleepers, 1);
        /* The caller changes the word before it looks for sleepers. So either it sees this worker,
         * or futex_wait returns at once. */
        futex_wait(&pool->state, s, WAKE_WORKERS);
        atomic_fetch_sub(&pool->sleepers, 1);
    }
}

static void leave_loop(struct dpt_pool *pool)
{
    uint32_t before = atomic_fetch_sub(&pool->state, 1);
    if ((before & COUNT_MASK) == 1 && (before & CALLER_SLEEPS))
        futex_wake(&pool->state, 1, WAKE_CALLER);
}

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    struct dpt_pool *pool = w->pool;
    uint32_t seen = 0;
    if (pool->hooks.thread_begin)
        pool->hooks.thread_begin();
    sem_post(&pool->begun);
    for (;;) {
        uint32_t s = wait_for_loop(w, seen);
        if (s & END)
            break;
        if (!atomic_compare_exchange_strong(&pool->state, &s, s + 1))
            continue;
        seen = s >> EPOCH_SHIFT;
        /* False if the loop's number has wrapped around to the value that this worker read. */
        if (takes_part(w))
            run_items(pool, w->index);
        leave_loop(pool);
    }
    if (pool->hooks.thread_end)
        pool->hooks.thread_end();
    return NULL;
}

enum dpt_status dpt_pool_create(int threads, struct dpt_pool_hooks hooks, struct dpt_pool **ret,
                                struct dpt_err *err)
{
    if (threads < 1 || threads > DPT_POOL_THREADS_MAX)
        return dpt_fail(err, DPT_EINVAL, "a stream takes 1 to %d threads, not %d",
                        DPT_POOL_THREADS_MAX, threads);
    struct dpt_pool *pool = aligned_alloc(64, sizeof *pool);
    if (!pool)
        return dpt_fail_nomem(err, "thread pool");
    memset(pool, 0, sizeof *pool);
    atomic_init(&pool->threads, threads);
    pool->threads_max = threads;
    pool->hooks = hooks;
    sem_init(&pool->begun, 0, 0);
    /* Counts the cores before the first wait needs the count: counting opens files and
     * allocates. */
    (void)dpt_cores();
    atomic_fetch_add(&threads_total, counted_threads(threads));

    /* The program's threads handle signals, so the workers block them. */
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int failed = 0;
    for (int i = 1; i < threads && !failed; i++) {
        struct worker *w = &pool->workers[i];
        *w = (struct worker){.pool = pool, .index = i};
        failed = pthread_create(&w->thread, NULL, worker_main, w);
        pool->started += !failed;
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    for (int i = 0; i < pool->started; i++)
        while (sem_wait(&pool->begun) != 0 && errno == EINTR) {
        }
    if (failed) {
        dpt_pool_destroy(&pool);
        return dpt_fail_errno(err, failed, "start %d threads", threads - 1);
    }
    *ret = pool;
    return DPT_OK;
}

void dpt_pool_destroy(struct dpt_pool **pool_p)
{
    struct dpt_pool *pool = *pool_p;
    if (!pool)
        return;
    atomic_fetch_or(&pool->state, END);
    futex_wake(&pool->state, INT_MAX, WAKE_WORKERS | WAKE_PARKED);
    for (int i = 1; i <= pool->started; i++)
        pthread_join(pool->workers[i].thread, NULL);
    atomic_fetch_sub(&threads_total, counted_threads(dpt_pool_threads(pool)));
    sem_destroy(&pool->begun);
    free(pool);
    *pool_p = NULL;
}

void dpt_pool_set_threads(struct dpt_pool *pool, int threads)
{
    DPT_ASSERT(threads >= 1 && threads <= pool->threads_max);
    const int before = atomic_exchange(&pool->threads, threads);
    atomic_fetch_add(&threads_total, counted_threads(threads) - counted_threads(before));
    const uint32_t epoch = (atomic_load(&pool->state) >> EPOCH_SHIFT) + 1;
    atomic_store(&pool->state, epoch << EPOCH_SHIFT);
    futex_wake(&pool->state, INT_MAX, WAKE_WORKERS | WAKE_PARKED);
}

int dpt_pool_threads(const struct dpt_pool *pool)
{
    return atomic_load_explicit(&pool->threads, memory_order_relaxed);
}

/* Waits until all workers have left the loop, which is closed. */
static void wait_for_workers(struct dpt_pool *pool)
{
    int left = spins_max();
    for (;;) {
        uint32_t s = atomic_load(&pool->state);
        if (!(s & COUNT_MASK))
            return;
        if (left-- > 0) {
            pause_core();
            continue;
        }
        if (!(s & CALLER_SLEEPS)) {
            atomic_fetch_or(&pool->state, CALLER_SLEEPS);
            continue;
        }
        futex_wait(&pool->state, s, WAKE_CALLER);
    }
}

void dpt_pool_run(struct dpt_pool *pool, int64_t items, dpt_pool_fn *fn, void *ctx)
{
    if (items <= 1 || dpt_pool_threads(pool) == 1) {
        for (int64_t i = 0; i < items; i++)
            fn(ctx, i, 0);
        return;
    }
    pool->fn = fn;
    pool->ctx = ctx;
    pool->items = items;
    atomic_store(&pool->next, 0);
    uint32_t epoch = (atomic_load(&pool->state) >> EPOCH_SHIFT) + 1;
    atomic_store(&pool->state, (epoch << EPOCH_SHIFT) | OPEN);
    if (atomic_load(&pool->sleepers) > 0) {
        int64_t wanted = items - 1;
        futex_wake(&pool->state, wanted < INT_MAX ? (int)wanted : INT_MAX, WAKE_WORKERS);
    }
    run_items(pool, 0);
    atomic_fetch_and(&pool->state, ~(uint32_t)OPEN);
    wait_for_workers(pool);
}
