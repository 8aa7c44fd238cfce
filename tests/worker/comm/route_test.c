/* The links of worlds that are no mesh, and the ways over them. */
#include "worker/comm/route.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { SMALL_WORLDS = 130 };
static const int large_worlds[] = {255, 256, 257, 511, 683, 1000, DPT_MESH_MAX - 1, DPT_MESH_MAX};
enum { LARGE_WORLDS = sizeof large_worlds / sizeof large_worlds[0] };

static int log2_up(int n)
{
    int log = 0;
    while (1 << log < n)
        log++;
    return log;
}

static bool is_among(int n, const int *list, int wanted)
{
    for (int i = 0; i < n; i++)
        if (list[i] == wanted)
            return true;
    return false;
}

/* Each rank has its links once, few, with both neighbours; links are mutual. */
static void check_links(int world)
{
    int links[DPT_ROUTE_LINKS_MAX], back[DPT_ROUTE_LINKS_MAX];
    for (int r = 0; r < world; r++) {
        const int n = dpt_route_links(world, r, links);
        assert_true(n <= 2 * log2_up(world) && n < world);
        assert_true(is_among(n, links, (r + 1) % world));
        assert_true(is_among(n, links, (r + world - 1) % world));
        for (int i = 0; i < n; i++) {
            assert_false(is_among(i, links, links[i]));
            assert_true(is_among(dpt_route_links(world, links[i], back), back, r));
        }
        for (int to = 0; to < world; to++)
            assert_int_equal(dpt_route_is_link(world, r, to), is_among(n, links, to));
    }
}

/* Each way goes over links and ends, after the same hops as from rank 0. */
static void check_ways(int world, int from, int hops_max)
{
    for (int to = 0; to < world; to++) {
        int hops = 0;
        for (int at = from; at != to; hops++) {
            const int next = dpt_route_next(world, at, to);
            assert_true(dpt_route_is_link(world, at, next));
            assert_true(hops < hops_max);
            at = next;
        }
    }
}

static void check_world(int world)
{
    const int hops = dpt_route_hops(world);
    check_links(world);
    assert_in_range(hops, 1, DPT_ROUTE_HOPS_MAX);
    for (int from = 0; from<world; from += world> SMALL_WORLDS ? world / 3 : 1)
        check_ways(world, from, hops);
}

static void few_links_and_short_ways(void **state)
{
    (void)state;
    for (int world = 2; world <= SMALL_WORLDS; world++)
        check_world(world);
    for (int i = 0; i < LARGE_WORLDS; i++)
        check_world(large_worlds[i]);
}

/* The rounds of an all-gather use links only: distances of 2^k in both directions. */
static void rounds_use_links(void **state)
{
    (void)state;
    for (int world = 2; world <= SMALL_WORLDS; world++)
        for (int far = 1; far < world; far *= 2) {
            assert_true(dpt_route_is_link(world, 0, far));
            assert_true(dpt_route_is_link(world, far, 0));
        }
}

/* An exchange of all with all passes the same number of messages over each rank. */
static void relays_have_equal_shares(void **state)
{
    (void)state;
    enum { WORLD = 64 };
    int passed[WORLD] = {0};
    for (int from = 0; from < WORLD; from++)
        for (int to = 0; to < WORLD; to++)
            for (int at = from; at != to; at = dpt_route_next(WORLD, at, to))
                passed[at]++;
    for (int r = 1; r < WORLD; r++)
        assert_int_equal(passed[r], passed[0]);
    assert_in_range(passed[0], WORLD - 1, 3 * (WORLD - 1)); /* frames that a rank sends */
}

static void threshold_of_a_mesh(void **state)
{
    (void)state;
    assert_true(dpt_route_is_mesh(8, 8));
    assert_false(dpt_route_is_mesh(9, 8));
    assert_true(dpt_route_is_mesh(DPT_MESH_MAX, 0));
    assert_true(dpt_route_is_mesh(1, 1));
    assert_false(dpt_route_is_mesh(2, 1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(few_links_and_short_ways),
        cmocka_unit_test(rounds_use_links),
        cmocka_unit_test(relays_have_equal_shares),
        cmocka_unit_test(threshold_of_a_mesh),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
