/* Arena: one mapping made at start, handed out from its beginning to its end and reset as a whole.
 *
 * Memory is allocated at start and at a generation's start, never in the step: what a step needs
 * for a while comes from arenas. Not thread safe: one arena has one user at a time. */
#ifndef DPT_BASE_ARENA_H
#define DPT_BASE_ARENA_H

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

enum { DPT_ARENA_ALIGN = 64, DPT_ARENA_HUGE_BYTES = 2 * 1024 * 1024 };

struct dpt_arena {
    uint8_t *base; /* 64-byte aligned; 2 MiB-aligned when `bytes` >= 2 MiB */
    size_t bytes, used;
    size_t high_water; /* the most ever in use, for sizing and reports */
    void *map;         /* the mapping, with its slack before `base` */
    size_t map_bytes;
};

/* Maps `bytes` (> 0, rounded up to pages) of zeroed memory, asking for huge pages when it is 2 MiB
 * or more. The pages appear when first touched (dpt_arena_touch). DPT_ENOMEM names the size. */
DPT_MUST_USE enum dpt_status dpt_arena_init(struct dpt_arena *arena, size_t bytes,
                                            struct dpt_err *err);

/* Unmaps; accepts a zeroed or already released arena. */
void dpt_arena_fini(struct dpt_arena *arena);

/* Writes every page once, so that the step never waits for the kernel to find memory. Keeps the
 * contents. */
void dpt_arena_touch(struct dpt_arena *arena);

/* The next `bytes` bytes, 64-byte aligned, contents whatever was there last; NULL with
 * DPT_EOVERFLOW in *err when the arena is too small. Valid until reset, rewind below it, or fini.
 */
DPT_MUST_USE void *dpt_arena_alloc(struct dpt_arena *arena, size_t bytes, struct dpt_err *err);

/* Gives back everything, or everything handed out since `mark` (a former value of `used`). */
void dpt_arena_reset(struct dpt_arena *arena);
void dpt_arena_rewind(struct dpt_arena *arena, size_t mark);

#endif
