/* The interposed allocator entry points. */
#include "worker/bench/alloc_count.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static _Atomic int64_t allocations;
static _Thread_local bool left_out;

int64_t dpt_alloc_count_others(void)
{
    left_out = true;
    return atomic_load(&allocations);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

static void count_allocation(void)
{
    if (!left_out)
        atomic_fetch_add_explicit(&allocations, 1, memory_order_relaxed);
}

/* glibc's own entry points under other names. */
extern void *__libc_malloc(size_t bytes);
extern void *__libc_calloc(size_t n, size_t bytes);
extern void *__libc_realloc(void *p, size_t bytes);
extern void *__libc_memalign(size_t align, size_t bytes);

void *malloc(size_t bytes)
{
    count_allocation();
    return __libc_malloc(bytes);
}

void *calloc(size_t n, size_t bytes)
{
    count_allocation();
    return __libc_calloc(n, bytes);
}

void *realloc(void *p, size_t bytes)
{
    count_allocation();
    return __libc_realloc(p, bytes);
}

void *memalign(size_t align, size_t bytes);
void *memalign(size_t align, size_t bytes)
{
    count_allocation();
    return __libc_memalign(align, bytes);
}

void *aligned_alloc(size_t align, size_t bytes)
{
    count_allocation();
    return __libc_memalign(align, bytes);
}

int posix_memalign(void **ret, size_t align, size_t bytes)
{
    count_allocation();
    *ret = __libc_memalign(align, bytes);
    return *ret ? 0 : ENOMEM;
}

void *mmap(void *at, size_t bytes, int prot, int flags, int fd, off_t offset)
{
    count_allocation();
    return (void *)syscall(SYS_mmap, at, bytes, prot, flags, fd, offset);
}

#endif
