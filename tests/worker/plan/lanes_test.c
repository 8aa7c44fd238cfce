/* Shares and the tree over lanes, against definitions written a second time by brute force. */
#include "worker/plan/lanes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void shares_are_even_and_in_order(void **state)
{
    (void)state;
    for (int total = 0; total <= 40; total++)
        for (int n = 1; n <= 20; n++) {
            int at = 0, last = total;
            for (int i = 0; i < n; i++) {
                const struct dpt_range s = dpt_share(total, n, i);
                assert_int_equal(s.first, at);
                assert_true(s.end - s.first == total / n || s.end - s.first == total / n + 1);
                assert_true(s.end - s.first <= last); /* the larger ones first */
                last = s.end - s.first;
                for (int x = s.first; x < s.end; x++)
                    assert_int_equal(dpt_share_of(total, n, x), i);
                at = s.end;
            }
            assert_int_equal(at, total);
        }
}

/* Marks every node of the tree over [first, end) in is_node[first][end]. */
static bool is_node[65][65];

static void mark(int first, int end)
{
    is_node[first][end] = true;
    if (end - first == 1)
        return;
    const int split = first + (1 << (31 - __builtin_clz((unsigned)(end - first - 1))));
    assert_int_equal(dpt_tree_split((struct dpt_range){first, end}), split);
    mark(first, split);
    mark(split, end);
}

static void tree_by_definition(int lanes)
{
    memset(is_node, 0, sizeof is_node);
    mark(0, lanes);
}

/* A node inside the run is maximal when no other node inside the run holds it. */
static bool is_maximal(int lanes, struct dpt_range run, struct dpt_range node)
{
    for (int a = run.first; a <= node.first; a++)
        for (int b = node.end; b <= run.end; b++)
            if (is_node[a][b] && b - a > node.end - node.first)
                return false;
    return lanes > 0;
}

static void check_run(int lanes, struct dpt_range run)
{
    struct dpt_range cover[DPT_COVER_MAX];
    const int n = dpt_tree_cover(lanes, run, cover);
    int at = run.first;
    for (int i = 0; i < n; i++) { /* in order, disjoint, complete, nodes, maximal */
        assert_int_equal(cover[i].first, at);
        assert_true(is_node[cover[i].first][cover[i].end]);
        assert_true(is_maximal(lanes, run, cover[i]));
        at = cover[i].end;
    }
    assert_int_equal(at, run.end);

    /* The joins, on a stack of ranges, reproduce the cover; their peak is dpt_tree_buffers. */
    struct dpt_range stack[64];
    int height = 0, peak = 0;
    for (int lane = run.first; lane < run.end; lane++) {
        stack[height++] = (struct dpt_range){lane, lane + 1};
        peak = height > peak ? height : peak;
        for (int j = dpt_tree_joins_after(lanes, run, lane); j > 0; j--) {
            assert_true(height >= 2);
            assert_int_equal(stack[height - 2].end, stack[height - 1].first);
            stack[height - 2].end = stack[height - 1].end;
            height--;
            assert_true(is_node[stack[height - 1].first][stack[height - 1].end]);
        }
    }
    assert_int_equal(height, n);
    for (int i = 0; i < n; i++) {
        assert_int_equal(stack[i].first, cover[i].first);
        assert_int_equal(stack[i].end, cover[i].end);
    }
    assert_int_equal(dpt_tree_buffers(lanes, run), peak);
}

static void covers_and_joins_of_every_run(void **state)
{
    (void)state;
    for (int lanes = 1; lanes <= 33; lanes++) {
        tree_by_definition(lanes);
        for (int a = 0; a <= lanes; a++)
            for (int b = a; b <= lanes; b++)
                check_run(lanes, (struct dpt_range){a, b});
    }
    tree_by_definition(64);
    for (int a = 0; a <= 64; a++)
        for (int b = a; b <= 64; b++)
            check_run(64, (struct dpt_range){a, b});
}

static void largest_tree_fits_its_limits(void **state)
{
    (void)state;
    struct dpt_range cover[DPT_COVER_MAX];
    /* All but the first and the last lane: 1 + 2 + … + 1024 twice, the longest cover there is. */
    const struct dpt_range run = {1, DPT_LANES_MAX - 1}, all = {0, DPT_LANES_MAX};
    assert_int_equal(dpt_tree_cover(DPT_LANES_MAX, run, cover), 2 * (DPT_TREE_DEPTH_MAX - 2));
    assert_int_equal(dpt_tree_buffers(DPT_LANES_MAX, all), DPT_TREE_DEPTH_MAX);
}

/* The averages the design was drawn with: sums a rank sends. */
static void sums_sent_on_uneven_worlds(void **state)
{
    (void)state;
    static const struct {
        int lanes, world, total, most;
    } cases[] = {{7, 3, 6, 2}, {8, 3, 5, 2}, {64, 3, 11, 5}, {8, 4, 4, 1}, {16, 2, 2, 1}};
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        int total = 0, most = 0;
        for (int p = 0; p < cases[c].world; p++) {
            struct dpt_range cover[DPT_COVER_MAX];
            const int n = dpt_tree_cover(
                cases[c].lanes, dpt_position_lanes(cases[c].lanes, cases[c].world, p), cover);
            total += n;
            most = n > most ? n : most;
        }
        assert_int_equal(total, cases[c].total);
        assert_int_equal(most, cases[c].most);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shares_are_even_and_in_order),
        cmocka_unit_test(covers_and_joins_of_every_run),
        cmocka_unit_test(largest_tree_fits_its_limits),
        cmocka_unit_test(sums_sent_on_uneven_worlds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
