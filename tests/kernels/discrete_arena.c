/* The arenas of discrete devices, and the copies between them. */
#include "tests/kernels/discrete_arena.h"

#include "tests/kernels/discrete.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { PAGE = 4096, ARENAS_MAX = 64 };

/* All that there are. */
static pthread_mutex_t list_mutex = PTHREAD_MUTEX_INITIALIZER;
static struct arena *list[ARENAS_MAX];

void discrete_lock(pthread_mutex_t *mutex)
{
    if (pthread_mutex_lock(mutex) != 0)
        abort();
}

void discrete_unlock(pthread_mutex_t *mutex)
{
    if (pthread_mutex_unlock(mutex) != 0)
        abort();
}

/* Puts `new` where `old` is in the list. */
static void list_replace(const struct arena *old, struct arena *new)
{
    int i = 0;
    discrete_lock(&list_mutex);
    while (i < ARENAS_MAX && list[i] != old)
        i++;
    if (i == ARENAS_MAX)
        abort();
    list[i] = new;
    discrete_unlock(&list_mutex);
}

enum dpt_status arena_init(struct arena *arena, size_t bytes, struct dpt_err *err)
{
    void *base = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED)
        return dpt_fail(err, DPT_ENOMEM, "%zu bytes for a discrete device", bytes);
    (void)madvise(base, bytes, MADV_HUGEPAGE); /* opening and closing it takes a time per page */
    *arena = (struct arena){.base = base, .bytes = bytes};
    if (pthread_mutex_init(&arena->gate, NULL) != 0)
        abort();
    list_replace(NULL, arena);
    return DPT_OK;
}

void arena_fini(struct arena *arena)
{
    list_replace(arena, NULL);
    (void)munmap(arena->base, arena->bytes);
    (void)pthread_mutex_destroy(&arena->gate);
}

size_t arena_reserved(size_t bytes)
{
    return (bytes + PAGE) / PAGE * PAGE; /* a page more: an overrun hits no other allocation */
}

enum dpt_status arena_alloc(struct arena *arena, size_t bytes, void **ret, struct dpt_err *err)
{
    const size_t taken = arena_reserved(bytes);
    if (arena->bytes - arena->used < taken)
        return dpt_fail(err, DPT_ENOMEM, "%zu bytes of %zu of a discrete device", bytes,
                        arena->bytes - arena->used);
    *ret = arena->base + arena->used; /* zero, as it comes from the system */
    arena->used += taken;
    return DPT_OK;
}

bool arena_has(const struct arena *arena, const void *p)
{
    const char *at = p;
    return at >= arena->base && at < arena->base + arena->bytes;
}

void arena_open(struct arena *arena)
{
    discrete_lock(&arena->gate);
    if (arena->inside++ == 0 && mprotect(arena->base, arena->bytes, PROT_READ | PROT_WRITE) != 0)
        abort();
    discrete_unlock(&arena->gate);
}

void arena_close(struct arena *arena)
{
    discrete_lock(&arena->gate);
    if (--arena->inside == 0 && mprotect(arena->base, arena->bytes, PROT_NONE) != 0)
        abort();
    discrete_unlock(&arena->gate);
}

bool arena_lock_list(const struct arena *arena)
{
    bool listed = false;
    discrete_lock(&list_mutex);
    for (int i = 0; i < ARENAS_MAX; i++)
        listed = listed || list[i] == arena;
    return listed;
}

void arena_unlock_list(void)
{
    discrete_unlock(&list_mutex);
}

/* NULL: memory of the host. */
static struct arena *arena_with(const void *p)
{
    struct arena *arena = NULL;
    discrete_lock(&list_mutex);
    for (int i = 0; i < ARENAS_MAX; i++)
        if (list[i] && arena_has(list[i], p))
            arena = list[i];
    discrete_unlock(&list_mutex);
    return arena;
}

void dpt_device_discrete_copy(void *to, const void *from, size_t bytes)
{
    struct arena *there = arena_with(to), *here = arena_with(from);
    if (there)
        arena_open(there);
    if (here)
        arena_open(here);
    memcpy(to, from, bytes);
    if (here)
        arena_close(here);
    if (there)
        arena_close(there);
}
