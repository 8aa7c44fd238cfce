/* The watchdog for calls that may never return (nccl_guard.h). */
#include "worker/comm/nccl_guard.h"

#include "base/clock.h"
#include "base/log.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

enum { LOOKS = 8 }; /* in a limit */

static void end_process(void *ctx, const char *what, int limit_ms)
{
    (void)ctx;
    dpt_log(DPT_LOG_ERROR,
            "%s has not returned within its limit (%.1f s or more): the GPU's memory may "
            "still be written and its communicators cannot be freed; this process ends and counts "
            "as lost",
            what, limit_ms / 1000.0);
    abort();
}

void dpt_nccl_guard_init(struct dpt_nccl_guard *guard, int limit_ms)
{
    atomic_init(&guard->until_ms, INT64_MAX);
    atomic_init(&guard->what, NULL);
    guard->limit_ms = limit_ms;
    guard->lost = end_process;
    guard->lost_ctx = NULL;
}

void dpt_nccl_guard_lost(struct dpt_nccl_guard *guard, const char *what)
{
    guard->lost(guard->lost_ctx, what, guard->limit_ms);
}

void dpt_nccl_guard_enter(struct dpt_nccl_guard *guard, const char *what, int64_t until_ms)
{
    DPT_ASSERT(atomic_load_explicit(&guard->until_ms, memory_order_relaxed) == INT64_MAX);
    atomic_store_explicit(&guard->what, what, memory_order_relaxed);
    atomic_store_explicit(&guard->until_ms, until_ms, memory_order_release);
}

void dpt_nccl_guard_leave(struct dpt_nccl_guard *guard)
{
    atomic_store_explicit(&guard->until_ms, INT64_MAX, memory_order_release);
}

bool dpt_nccl_guard_expired(struct dpt_nccl_guard *guard, int64_t now_ms, const char **ret_what)
{
    if (atomic_load_explicit(&guard->until_ms, memory_order_acquire) >= now_ms)
        return false;
    *ret_what = atomic_load_explicit(&guard->what, memory_order_relaxed);
    return true;
}

struct dpt_nccl_watch {
    struct dpt_nccl_guard *guard;
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t cond;
    bool stop; /* under the mutex */
};

static struct timespec later(int ms)
{
    struct timespec at;
    (void)clock_gettime(CLOCK_MONOTONIC, &at); /* cannot fail: base/clock.c relies on it too */
    const int64_t ns = at.tv_nsec + (int64_t)ms * 1000000;
    at.tv_sec += ns / 1000000000;
    at.tv_nsec = ns % 1000000000;
    return at;
}

static void *watch_guard(void *arg)
{
    struct dpt_nccl_watch *watch = arg;
    const int eighth_ms = watch->guard->limit_ms / LOOKS;
    const int period_ms = eighth_ms > 0 ? eighth_ms : 1;
    const char *what;
    (void)pthread_mutex_lock(&watch->mutex);
    while (!watch->stop) {
        if (dpt_nccl_guard_expired(watch->guard, dpt_now_ms(), &what)) {
            dpt_nccl_guard_lost(watch->guard, what);
            break;
        }
        const struct timespec until = later(period_ms);
        (void)pthread_cond_timedwait(&watch->cond, &watch->mutex, &until);
    }
    (void)pthread_mutex_unlock(&watch->mutex);
    return NULL;
}

enum dpt_status dpt_nccl_watch_create(struct dpt_nccl_guard *guard, struct dpt_nccl_watch **ret,
                                      struct dpt_err *err)
{
    struct dpt_nccl_watch *watch = calloc(1, sizeof *watch);
    if (watch == NULL)
        return dpt_fail_nomem(err, "the watch over the GPU's communicators");
    watch->guard = guard;
    pthread_condattr_t attr;
    (void)pthread_condattr_init(&attr);
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&watch->cond, &attr);
    (void)pthread_condattr_destroy(&attr);
    (void)pthread_mutex_init(&watch->mutex, NULL);
    const int rc = pthread_create(&watch->thread, NULL, watch_guard, watch);
    if (rc != 0) {
        (void)pthread_cond_destroy(&watch->cond);
        (void)pthread_mutex_destroy(&watch->mutex);
        free(watch);
        return dpt_fail_errno(err, rc, "start the watch over the GPU's communicators");
    }
    *ret = watch;
    return DPT_OK;
}

void dpt_nccl_watch_destroy(struct dpt_nccl_watch **watch_p)
{
    struct dpt_nccl_watch *watch = *watch_p;
    *watch_p = NULL;
    if (watch == NULL)
        return;
    (void)pthread_mutex_lock(&watch->mutex);
    watch->stop = true;
    (void)pthread_cond_broadcast(&watch->cond);
    (void)pthread_mutex_unlock(&watch->mutex);
    (void)pthread_join(watch->thread, NULL);
    (void)pthread_cond_destroy(&watch->cond);
    (void)pthread_mutex_destroy(&watch->mutex);
    free(watch);
}
