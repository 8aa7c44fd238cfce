/* Arena: alignment, limits, reset, high-water mark. */
#include "base/arena.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static struct dpt_err err;

static void small(void **state)
{
    (void)state;
    struct dpt_arena arena;
    assert_int_equal(dpt_arena_init(&arena, 1000, &err), DPT_OK);
    assert_true(arena.bytes >= 1000);
    uint8_t *a = dpt_arena_alloc(&arena, 1, &err);
    uint8_t *b = dpt_arena_alloc(&arena, 65, &err);
    uint8_t *c = dpt_arena_alloc(&arena, 0, &err);
    assert_non_null(a);
    assert_int_equal(b - a, 64);
    assert_int_equal(c - b, 128);
    assert_int_equal((uintptr_t)a % DPT_ARENA_ALIGN, 0);
    for (int i = 0; i < 65; i++)
        assert_int_equal(b[i], 0);
    b[64] = 9;
    dpt_arena_touch(&arena);
    assert_int_equal(b[64], 9);
    dpt_arena_rewind(&arena, 64);
    assert_ptr_equal(dpt_arena_alloc(&arena, 1, &err), b);
    dpt_arena_reset(&arena);
    assert_int_equal(arena.used, 0);
    assert_int_equal(arena.high_water, 192);
    assert_ptr_equal(dpt_arena_alloc(&arena, 1, &err), a);
    dpt_arena_fini(&arena);
    assert_null(arena.base);
    dpt_arena_fini(&arena);
}

static void to_the_last_byte(void **state)
{
    (void)state;
    struct dpt_arena arena;
    assert_int_equal(dpt_arena_init(&arena, 4096, &err), DPT_OK);
    size_t all = arena.bytes;
    assert_null(dpt_arena_alloc(&arena, all + 1, &err));
    assert_int_equal(err.status, DPT_EOVERFLOW);
    assert_int_equal(arena.used, 0);
    uint8_t *p = dpt_arena_alloc(&arena, all, &err);
    assert_non_null(p);
    memset(p, 1, all);
    assert_null(dpt_arena_alloc(&arena, 1, NULL));
    assert_non_null(dpt_arena_alloc(&arena, 0, &err));
    dpt_arena_reset(&arena);
    assert_null(dpt_arena_alloc(&arena, SIZE_MAX, &err));
    assert_null(dpt_arena_alloc(&arena, SIZE_MAX - 62, &err));
    dpt_arena_fini(&arena);
}

static void large(void **state)
{
    (void)state;
    struct dpt_arena arena;
    assert_int_equal(dpt_arena_init(&arena, 3 * 1024 * 1024, &err), DPT_OK);
    assert_int_equal((uintptr_t)arena.base % DPT_ARENA_HUGE_BYTES, 0);
    assert_int_equal(arena.bytes, 2 * (size_t)DPT_ARENA_HUGE_BYTES);
    dpt_arena_touch(&arena);
    uint8_t *p = dpt_arena_alloc(&arena, arena.bytes, &err);
    p[0] = p[arena.bytes - 1] = 1;
    dpt_arena_fini(&arena);
}

static void impossible(void **state)
{
    (void)state;
    struct dpt_arena arena = {0};
    assert_int_equal(dpt_arena_init(&arena, SIZE_MAX, &err), DPT_ENOMEM);
    assert_int_equal(dpt_arena_init(&arena, SIZE_MAX / 4, &err), DPT_ENOMEM);
    assert_null(arena.map);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(small), cmocka_unit_test(to_the_last_byte),
                                       cmocka_unit_test(large), cmocka_unit_test(impossible)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
