/* A watchdog for library calls that may never return.
 *
 * Before each such call the thread that owns the communicators enters the call's name and deadline.
 * A watch thread checks the deadline. When the deadline has passed, the process cannot continue:
 * the owner is stuck, the library may still write memory, and no other thread may use the
 * communicators. The process is then lost: it logs an error and calls abort(). Its agent and peers
 * see an ordinary death. */
#ifndef DPT_WORKER_COMM_NCCL_GUARD_H
#define DPT_WORKER_COMM_NCCL_GUARD_H

#include "base/err.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* Value type: dpt_nccl_guard_init. */
struct dpt_nccl_guard {
    atomic_int_least64_t until_ms; /* INT64_MAX: no call is under way */
    _Atomic(const char *) what;    /* static text */
    int limit_ms; /* the limit of most calls (the machine's stop_ms), in the error's text */
    /* Ends the process; does not return. A test may replace it. */
    void (*lost)(void *ctx, const char *what, int limit_ms);
    void *lost_ctx;
};

void dpt_nccl_guard_init(struct dpt_nccl_guard *guard, int limit_ms);
/* The owner calls these before and after one call of the library. Calls do not nest. */
void dpt_nccl_guard_enter(struct dpt_nccl_guard *guard, const char *what, int64_t until_ms);
void dpt_nccl_guard_leave(struct dpt_nccl_guard *guard);
/* True when a call is under way that should have returned before `now_ms`; *ret_what is its name.
 * Any thread. */
bool dpt_nccl_guard_expired(struct dpt_nccl_guard *guard, int64_t now_ms, const char **ret_what);

/* Declares the process lost because of `what`. Any thread. */
void dpt_nccl_guard_lost(struct dpt_nccl_guard *guard, const char *what);

struct dpt_nccl_watch;

/* Starts the thread that checks `guard` (borrowed) eight times per limit, so that it finds a late
 * call at most an eighth of the limit after its deadline. Its clock is dpt_now_ms. */
DPT_MUST_USE enum dpt_status dpt_nccl_watch_create(struct dpt_nccl_guard *guard,
                                                   struct dpt_nccl_watch **ret,
                                                   struct dpt_err *err);
/* Ends and joins it. Accepts a pointer to NULL. */
void dpt_nccl_watch_destroy(struct dpt_nccl_watch **watch);

#endif
