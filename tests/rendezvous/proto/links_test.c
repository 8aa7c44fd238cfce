/* The ranks to which a rank of a large world has links. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "rendezvous/proto/links.h"

static bool has_link(uint32_t world, uint32_t from, uint32_t to)
{
    uint32_t links[DPT_LINKS_MAX];
    const int n = dpt_links_of(world, from, links);
    assert_in_range(n, 2, DPT_LINKS_MAX);
    for (int i = 0; i < n; i++)
        if (links[i] == to)
            return true;
    return false;
}

/* Both ends of a link know of it, and ring and tree reach every position. */
static void test_links_have_two_ends(void **state)
{
    (void)state;
    static const uint32_t worlds[] = {2, 3, 7, 8, 1025, 2048, 80000};
    for (size_t w = 0; w < sizeof worlds / sizeof worlds[0]; w++)
        for (uint32_t p = 0; p < worlds[w]; p += 1 + p / 97) {
            uint32_t links[DPT_LINKS_MAX];
            const int n = dpt_links_of(worlds[w], p, links);
            for (int i = 0; i < n; i++) {
                assert_true(links[i] < worlds[w] && links[i] != p);
                assert_true(has_link(worlds[w], links[i], p));
            }
            assert_true(has_link(worlds[w], p, (p + 1) % worlds[w]));
            if (p > 0)
                assert_true(has_link(worlds[w], p, (p - 1) / 2));
        }
}

static void test_small_worlds_are_meshes(void **state)
{
    (void)state;
    assert_true(dpt_links_are_mesh(1));
    assert_true(dpt_links_are_mesh(DPT_MESH_MAX));
    assert_false(dpt_links_are_mesh(DPT_MESH_MAX + 1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_links_have_two_ends),
        cmocka_unit_test(test_small_worlds_are_meshes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
