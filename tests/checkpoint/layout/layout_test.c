/* Index math of layouts: dealing, pieces, owners, overlaps. */
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

/* The smallest possible largest run, by trying every way to cut. */
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

static void dealing(void **state)
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
        const int runs = dpt_layout_deal(bytes, n, writers, first);
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
    assert_int_equal(dpt_layout_deal(NULL, 0, 2, first), 0);
    assert_int_equal(first[0], 0);
    assert_int_equal(first[2], 0);
}

static void pieces(void **state)
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

/* From any cut of a range to any other: each element once, from who has it to who needs it. */
static void resharding(void **state)
{
    (void)state;
    enum { NUMEL = 103, N_MAX = 8 };
    for (int a = 1; a <= N_MAX; a++)
        for (int b = 1; b <= N_MAX; b++) {
            struct dpt_interval have[N_MAX], need[N_MAX];
            struct dpt_overlap overlaps[2 * N_MAX];
            for (int i = 0; i < a; i++)
                have[i] = dpt_layout_piece(NUMEL, 4, a, i);
            for (int i = 0; i < b; i++)
                need[i] = dpt_layout_piece(NUMEL, 7, b, i);
            const int n = dpt_layout_overlaps(have, a, need, b, overlaps, 2 * N_MAX);
            assert_int_equal(n, dpt_layout_overlaps(have, a, need, b, NULL, 0));
            assert_true(n <= a + b - 1);
            int64_t at = 0;
            for (int i = 0; i < n; i++) {
                const struct dpt_interval range = overlaps[i].range;
                assert_int_equal(range.first, at);
                assert_true(range.end > range.first);
                assert_true(have[overlaps[i].have].first <= range.first &&
                            range.end <= have[overlaps[i].have].end);
                assert_true(need[overlaps[i].need].first <= range.first &&
                            range.end <= need[overlaps[i].need].end);
                at = range.end;
            }
            assert_int_equal(at, NUMEL);
        }
}

static void overlaps_with_holes(void **state)
{
    (void)state;
    const struct dpt_interval have[] = {{0, 5}, {5, 5}, {10, 20}, {30, 31}};
    const struct dpt_interval need[] = {{3, 12}, {19, 40}, {50, 60}};
    struct dpt_overlap got[8];
    assert_int_equal(dpt_layout_overlaps(have, 4, need, 3, got, 8), 4);
    static const struct dpt_overlap expected[] = {
        {0, 0, {3, 5}}, {2, 0, {10, 12}}, {2, 1, {19, 20}}, {3, 1, {30, 31}}};
    for (int i = 0; i < 4; i++) {
        assert_int_equal(got[i].have, expected[i].have);
        assert_int_equal(got[i].need, expected[i].need);
        assert_int_equal(got[i].range.first, expected[i].range.first);
        assert_int_equal(got[i].range.end, expected[i].range.end);
    }
    const struct dpt_interval none =
        dpt_interval_intersect((struct dpt_interval){0, 3}, (struct dpt_interval){3, 9});
    assert_int_equal(none.first, none.end);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(dealing), cmocka_unit_test(nothing_to_deal),
                                       cmocka_unit_test(pieces), cmocka_unit_test(resharding),
                                       cmocka_unit_test(overlaps_with_holes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
