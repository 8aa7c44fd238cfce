/* Bump allocator over one anonymous mapping. */
#include "base/arena.h"

#include <errno.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <unistd.h>

/* n rounded up to a multiple of the power of two `to`; SIZE_MAX when that does not fit. */
static size_t round_up(size_t n, size_t to)
{
    return n > SIZE_MAX - (to - 1) ? SIZE_MAX : (n + to - 1) & ~(to - 1);
}

enum dpt_status dpt_arena_init(struct dpt_arena *arena, size_t bytes, struct dpt_err *err)
{
    DPT_ASSERT(bytes > 0);
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    bool huge = bytes >= DPT_ARENA_HUGE_BYTES;
    size_t size = round_up(bytes, huge ? DPT_ARENA_HUGE_BYTES : page);
    size_t slack = huge ? DPT_ARENA_HUGE_BYTES : 0;
    if (size > SIZE_MAX / 2)
        return dpt_fail(err, DPT_ENOMEM, "arena of %zu bytes is larger than the address space",
                        bytes);
    void *map =
        mmap(NULL, size + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED)
        return dpt_fail_errno(err, errno, "map an arena of %zu bytes", size);
    uintptr_t start = (uintptr_t)map;
    uintptr_t aligned = huge ? round_up(start, DPT_ARENA_HUGE_BYTES) : start;
    if (huge) /* a wish: kernels without transparent huge pages refuse it and small pages serve */
        (void)madvise((void *)aligned, size, MADV_HUGEPAGE);
    *arena = (struct dpt_arena){.base = (uint8_t *)map + (aligned - start),
                                .bytes = size,
                                .map = map,
                                .map_bytes = size + slack};
    return DPT_OK;
}

void dpt_arena_fini(struct dpt_arena *arena)
{
    if (arena->map)
        DPT_ASSERT(munmap(arena->map, arena->map_bytes) == 0);
    *arena = (struct dpt_arena){0};
}

void dpt_arena_touch(struct dpt_arena *arena)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    for (size_t at = 0; at < arena->bytes; at += page) {
        volatile uint8_t *p = arena->base + at;
        *p = *p;
    }
}

void *dpt_arena_alloc(struct dpt_arena *arena, size_t bytes, struct dpt_err *err)
{
    size_t need = round_up(bytes, DPT_ARENA_ALIGN);
    if (need > arena->bytes - arena->used) {
        (void)dpt_fail(err, DPT_EOVERFLOW, "arena of %zu bytes has %zu left, %zu are asked for",
                       arena->bytes, arena->bytes - arena->used, bytes);
        return NULL;
    }
    void *p = arena->base + arena->used;
    arena->used += need;
    if (arena->used > arena->high_water)
        arena->high_water = arena->used;
    return p;
}

void dpt_arena_reset(struct dpt_arena *arena)
{
    arena->used = 0;
}

void dpt_arena_rewind(struct dpt_arena *arena, size_t mark)
{
    DPT_ASSERT(mark <= arena->used && mark % DPT_ARENA_ALIGN == 0);
    arena->used = mark;
}
