/* Index math of layouts: division of tensors, pieces, owners, intersections. */
#include "checkpoint/layout/layout.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

enum { ITEMS_MAX = 9, WRITERS_MAX = 12 };

static int64_t run_bytes(const int64_t *bytes, int first, int end)
{
    int64_t sum = 0;
    for (int i = first; i < end; i++)
        sum += bytes[i];
    return sum;
}

/* The smallest possible largest run, by trying all cuts. */
static int64_t best(const int64_t *bytes, int n, int runs)
{
    if (runs == 1)
        return run_bytes(bytes, 0, n);
    int64_t least = INT64_MAX;
    for (int last = runs - 1; last < n; last++) {
        const int64_t left = best(bytes, last, runs - 1), right = run_bytes(bytes, last, n);
        const int64_t most = left > right ? left : right;
        least = most < least ? most : least;
    }
    return least;
}

static void test_divide_is_even(void **state)
{
    (void)state;
    uint32_t x = 7;
    for (int round = 0; round < 2000; round++) {
        int64_t bytes[ITEMS_MAX];
        int first[WRITERS_MAX + 1];
        x = x * 1664525u + 1013904223u;
        const int n = 1 + (int)(x >> 16) % ITEMS_MAX;
        for (int i = 0; i < n; i++) {
            x = x * 1664525u + 1013904223u;
            bytes[i] = x >> 30 ? (int64_t)(x >> 20) : 0; /* empty ones too */
        }
        const int writers = 1 + (int)(x >> 8) % WRITERS_MAX;
        const int runs = dpt_layout_divide(bytes, n, writers, first);
        assert_int_equal(runs, n < writers ? n : writers);
        assert_int_equal(first[0], 0);
        int64_t most = 0;
        for (int run = 0; run < runs; run++) {
            assert_true(first[run] < first[run + 1]);
            const int64_t sum = run_bytes(bytes, first[run], first[run + 1]);
            most = sum > most ? sum : most;
        }
        for (int run = runs; run <= writers; run++)
            assert_int_equal(first[run], n);
        assert_int_equal(most, best(bytes, n, runs));
    }
}

static void nothing_to_deal(void **state)
{
    (void)state;
    int first[3];
    assert_int_equal(dpt_layout_divide(NULL, 0, 2, first), 0);
    assert_int_equal(first[0], 0);
    assert_int_equal(first[2], 0);
}

static void test_pieces_tile_range(void **state)
{
    (void)state;
    for (int64_t numel = 0; numel < 70; numel++)
        for (int64_t block = 1; block < 12; block += 5)
            for (int n = 1; n < 10; n++) {
                int64_t at = 0, least = INT64_MAX, most = 0;
                for (int i = 0; i < n; i++) {
                    const struct dpt_interval piece = dpt_layout_piece(numel, block, n, i);
                    assert_int_equal(piece.first, at);
                    assert_true(piece.end >= piece.first);
                    assert_true(piece.end % block == 0 || piece.end == numel);
                    const int64_t blocks = (piece.end - piece.first + block - 1) / block;
                    least = blocks < least ? blocks : least;
                    most = blocks > most ? blocks : most;
                    for (int64_t x = piece.first; x < piece.end; x++)
                        assert_int_equal(dpt_layout_owner(numel, block, n, x), i);
                    at = piece.end;
                }
                assert_int_equal(at, numel);
                assert_true(most - least <= 1);
            }
}

static void test_intersections(void **state)
{
    (void)state;
    static const struct {
        struct dpt_interval a, b, both;
    } cases[] = {{{0, 5}, {3, 12}, {3, 5}},      {{10, 20}, {3, 12}, {10, 12}},
                 {{30, 31}, {19, 40}, {30, 31}}, {{5, 5}, {3, 12}, {0, 0}},
                 {{0, 3}, {3, 9}, {0, 0}},       {{7, 9}, {0, 2}, {0, 0}}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct dpt_interval one = dpt_interval_intersect(cases[i].a, cases[i].b),
                                  other = dpt_interval_intersect(cases[i].b, cases[i].a);
        assert_int_equal(one.first, cases[i].both.first);
        assert_int_equal(one.end, cases[i].both.end);
        assert_int_equal(other.first, one.first);
        assert_int_equal(other.end, one.end);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_divide_is_even), cmocka_unit_test(nothing_to_deal),
        cmocka_unit_test(test_pieces_tile_range), cmocka_unit_test(test_intersections)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
