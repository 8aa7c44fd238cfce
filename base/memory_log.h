/* A log of allocations for a snapshot of memory: the allocations that exist, and the newest
 * allocations and releases in their order. An account (account.h) that has a log adds to it. All
 * memory is allocated at creation. Thread safe: one mutex; a step allocates nothing, so it waits
 * for none. */
#ifndef DPT_BASE_MEMORY_LOG_H
#define DPT_BASE_MEMORY_LOG_H

#include "base/account.h"
#include "base/err.h"

#include <stdbool.h>

struct dpt_memory_log;

/* An allocation. `at` NULL: no single address is known. */
struct dpt_memory_piece {
    int64_t
        number; /* from 1, in the order of allocation; an allocation keeps it until its release */
    const void *at;
    size_t bytes, reserved;
    enum dpt_memory_tag tag;
};

struct dpt_memory_event {
    struct dpt_memory_piece piece;
    bool released; /* else allocated */
    int64_t at_ns; /* dpt_now_ns */
};

/* Room for `pieces_max` allocations at a time, and for the newest `events_max` events. */
DPT_MUST_USE enum dpt_status dpt_memory_log_create(size_t pieces_max, size_t events_max,
                                                   struct dpt_memory_log **ret,
                                                   struct dpt_err *err);
/* No account has the log any more. */
void dpt_memory_log_destroy(struct dpt_memory_log **log);

/* For account.c. dpt_memory_log_release is called with the numbers of dpt_memory_log_allocate. */
void dpt_memory_log_allocate(struct dpt_memory_log *log, const struct dpt_memory_piece *piece);
void dpt_memory_log_release(struct dpt_memory_log *log, const struct dpt_memory_piece *piece);

/* A copy of the log. */
struct dpt_memory_history {
    struct dpt_memory_piece *piece; /* [n_pieces] that exist now, oldest first */
    size_t n_pieces;
    struct dpt_memory_event *event; /* [n_events], oldest first */
    size_t n_events;
    int64_t dropped; /* pieces and events that had no room */
};
DPT_MUST_USE enum dpt_status dpt_memory_log_read(struct dpt_memory_log *log,
                                                 struct dpt_memory_history *ret,
                                                 struct dpt_err *err);
/* Accepts a zeroed history. */
void dpt_memory_history_fini(struct dpt_memory_history *history);

#endif
