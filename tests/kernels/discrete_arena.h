/* The memory of a discrete device: no thread can read or write it while no op runs. */
#ifndef DPT_TESTS_KERNELS_DISCRETE_ARENA_H
#define DPT_TESTS_KERNELS_DISCRETE_ARENA_H

#include "base/err.h"

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

struct arena {
    char *base;
    size_t bytes, used;
    pthread_mutex_t gate;
    int inside; /* threads that have opened the arena; the gate protects the count */
};

/* Maps `bytes` and adds the arena to the list of all arenas. */
DPT_MUST_USE enum dpt_status arena_init(struct arena *arena, size_t bytes, struct dpt_err *err);
void arena_fini(struct arena *arena);

DPT_MUST_USE enum dpt_status arena_alloc(struct arena *arena, size_t bytes, void **ret,
                                         struct dpt_err *err);
/* The bytes that an allocation of `bytes` takes. */
size_t arena_reserved(size_t bytes);

bool arena_has(const struct arena *arena, const void *p);
/* Locks the list of arenas. Returns whether `arena` (any pointer) is in it, that is, between init
 * and fini. arena_fini waits for arena_unlock_list. */
bool arena_lock_list(const struct arena *arena);
void arena_unlock_list(void);

/* The memory can be read and written between open and close. Pairs may be nested. */
void arena_open(struct arena *arena);
void arena_close(struct arena *arena);

/* Abort on an error. */
void discrete_lock(pthread_mutex_t *mutex);
void discrete_unlock(pthread_mutex_t *mutex);

#endif
