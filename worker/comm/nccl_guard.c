/* The watchdog for calls that may never return (nccl_guard.h). */
#include "worker/comm/nccl_guard.h"

#include "base/clock.h"
#include "base/log.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { CHECKS_PER_LIMIT = 8 };

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
    int stop_fd; /* readable: the thread ends */
};

static void *watch_guard(void *arg)
{
    const struct dpt_nccl_watch *watch = arg;
    struct pollfd stop = {.fd = watch->stop_fd, .events = POLLIN};
    const int period_ms = watch->guard->limit_ms / CHECKS_PER_LIMIT;
    const char *what;
    do {
        if (dpt_nccl_guard_expired(watch->guard, dpt_now_ms(), &what)) {
            dpt_nccl_guard_lost(watch->guard, what);
            break;
        }
    } while (poll(&stop, 1, period_ms > 0 ? period_ms : 1) <= 0);
    return NULL;
}

enum dpt_status dpt_nccl_watch_create(struct dpt_nccl_guard *guard, struct dpt_nccl_watch **ret,
                                      struct dpt_err *err)
{
    struct dpt_nccl_watch *watch = calloc(1, sizeof *watch);
    if (watch == NULL)
        return dpt_fail_nomem(err, "the watch over the GPU's communicators");
    watch->guard = guard;
    watch->stop_fd = eventfd(0, EFD_CLOEXEC);
    const int failed =
        watch->stop_fd < 0 ? errno : pthread_create(&watch->thread, NULL, watch_guard, watch);
    if (failed != 0) {
        if (watch->stop_fd >= 0)
            close(watch->stop_fd);
        free(watch);
        return dpt_fail_errno(err, failed, "start the watch over the GPU's communicators");
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
    (void)eventfd_write(watch->stop_fd, 1);
    (void)pthread_join(watch->thread, NULL);
    close(watch->stop_fd);
    free(watch);
}
