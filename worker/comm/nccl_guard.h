/* The watch over calls into a library that may not return.
 *
 * The thread that owns the communicators says before each such call what it is and until when it
 * must be back. A thread of the guard's looks: when that time has passed, the process cannot go on
 * (the owner is stuck, its memory may still be written, nobody else may touch the communicators)
 * and is declared lost: a message, and abort(). Its agent and peers see a death like any other. */
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
    int limit_ms;                  /* of calls without one of their own */
    /* What losing the process means; does not return. A test may put another in its place. */
    void (*lost)(void *ctx, const char *what, int limit_ms);
    void *lost_ctx;
};

void dpt_nccl_guard_init(struct dpt_nccl_guard *guard, int limit_ms);
/* By the owner, round one call; they do not nest. */
void dpt_nccl_guard_enter(struct dpt_nccl_guard *guard, const char *what, int64_t until_ms);
void dpt_nccl_guard_leave(struct dpt_nccl_guard *guard);
/* True when a call is under way that should have returned before `now_ms`; *ret_what is its name.
 * Any thread. */
bool dpt_nccl_guard_expired(struct dpt_nccl_guard *guard, int64_t now_ms, const char **ret_what);

/* Declares the process lost because of `what`. Any thread. */
void dpt_nccl_guard_lost(struct dpt_nccl_guard *guard, const char *what);

struct dpt_nccl_watch;

/* Starts the thread that looks at `guard` (borrowed) eight times in its limit; a call is so at
 * most an eighth late when it is found. Its clock is dpt_now_ms. */
DPT_MUST_USE enum dpt_status dpt_nccl_watch_create(struct dpt_nccl_guard *guard,
                                                   struct dpt_nccl_watch **ret,
                                                   struct dpt_err *err);
/* Ends and joins it. Accepts a pointer to NULL. */
void dpt_nccl_watch_destroy(struct dpt_nccl_watch **watch);

#endif
