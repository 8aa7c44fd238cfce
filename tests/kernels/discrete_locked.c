/* Page-locked memory of devices of discrete.h: memory of the host that is in a list, and the copies
 * from and to other memory. */
#include "tests/kernels/discrete.h"
#include "tests/kernels/discrete_ops.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

enum { LOCKED_MAX = 1024 };

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct locked {
    const char *base; /* NULL: free */
    size_t bytes;
} list[LOCKED_MAX];
static _Atomic size_t pageable_most; /* bytes of a copy */

static void lock(void)
{
    if (pthread_mutex_lock(&mutex) != 0)
        abort();
}

static void unlock(void)
{
    if (pthread_mutex_unlock(&mutex) != 0)
        abort();
}

/* Puts `new` where `old` is in the list. */
static void enlist(const void *old, const void *new, size_t bytes)
{
    int i = 0;
    lock();
    while (i < LOCKED_MAX && list[i].base != (const char *)old)
        i++;
    if (i == LOCKED_MAX)
        abort();
    list[i] = (struct locked){new, bytes};
    unlock();
}

enum dpt_status discrete_alloc_host(struct dpt_device *dev, size_t bytes, void **ret,
                                    struct dpt_err *err)
{
    void *p = calloc(1, bytes ? bytes : 1);
    (void)dev;
    if (!p)
        return dpt_fail(err, DPT_ENOMEM, "%zu bytes of the host", bytes);
    enlist(NULL, p, bytes);
    *ret = p;
    return DPT_OK;
}

void discrete_free_host(struct dpt_device *dev, void *ptr, size_t bytes)
{
    (void)dev;
    (void)bytes;
    enlist(ptr, NULL, 0);
    free(ptr);
}

bool discrete_is_locked(const void *p)
{
    const char *at = p;
    bool found = false;
    lock();
    for (int i = 0; i < LOCKED_MAX; i++)
        found |= list[i].base && at >= list[i].base && at < list[i].base + list[i].bytes;
    unlock();
    return found;
}

void discrete_note_pageable(size_t bytes)
{
    size_t most = atomic_load(&pageable_most);
    while (bytes > most && !atomic_compare_exchange_weak(&pageable_most, &most, bytes))
        continue;
}

size_t dpt_device_discrete_pageable(void)
{
    return atomic_exchange(&pageable_most, 0);
}
