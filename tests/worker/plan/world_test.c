/* Nodes, hosts and racks of a world, and the places of shards' shadows. */
#include "worker/plan/world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdbool.h>

enum { RANKS_MAX = 10, EVERY_MAX = 9 };

struct layout {
    struct dpt_world world;
    int host[RANKS_MAX], node[RANKS_MAX], rack[RANKS_MAX];
};

/* Nodes of these sizes; node i is on host on_host[i]. */
static void make_layout(struct layout *l, const int *sizes, const int *on_host, int n)
{
    int size = 0;
    for (int i = 0; i < n; i++)
        for (int k = 0; k < sizes[i]; k++, size++) {
            l->node[size] = i;
            l->host[size] = on_host[i];
        }
    l->world = (struct dpt_world){
        .lanes = RANKS_MAX, .size = size, .host_of_position = l->host, .node_of_position = l->node};
}

static int largest(const struct layout *l, const int *of_position)
{
    int most = 0;
    for (int i = 0; i < l->world.size; i++) {
        int n = 0;
        for (int k = 0; k < l->world.size; k++)
            n += of_position[k] == of_position[i];
        most = n > most ? n : most;
    }
    return most;
}

/* No rank holds two shadows, and none one of its own node; as many shards as possible have a
 * shadow, if all hosts permit it on another host. */
static void check_shadows(const struct layout *l)
{
    const struct dpt_world *w = &l->world;
    const int shift = dpt_shadow_shift(w), half = w->size - largest(l, l->node);
    int covered = 0, elsewhere = 0;
    bool covers[RANKS_MAX] = {false};
    for (int p = 0; p < w->size; p++) {
        const int holder = dpt_shadow_holder(w, shift, p);
        if (holder < 0)
            continue;
        assert_int_not_equal(l->node[holder], l->node[p]);
        assert_int_equal(dpt_shadow_source(w, shift, holder), p);
        assert_false(covers[holder]);
        covers[holder] = true;
        covered++;
        elsewhere += l->host[holder] != l->host[p];
    }
    for (int p = 0; p < w->size; p++)
        assert_int_equal(dpt_shadow_source(w, shift, p) >= 0, covers[p]);
    assert_int_equal(covered, 2 * half < w->size ? 2 * half : w->size);
    if (2 * largest(l, l->host) <= w->size)
        assert_int_equal(elsewhere, w->size);
}

/* Every world of up to ten ranks on up to four nodes on one to four hosts. */
static void shadows_are_elsewhere(void **state)
{
    (void)state;
    static const int hosts[][4] = {{0, 0, 0, 0}, {0, 0, 0, 1}, {0, 1, 1, 1}, {0, 0, 1, 1},
                                   {0, 0, 1, 2}, {0, 1, 1, 2}, {0, 1, 2, 3}};
    for (size_t h = 0; h < sizeof hosts / sizeof hosts[0]; h++)
        for (int sizes = 0; sizes < 256; sizes++) {
            int size[4], n = 0, ranks = 0;
            for (int i = 0; i < 4; i++) {
                size[i] = (sizes >> (2 * i)) % 4 + (i == 0);
                ranks += size[i];
            }
            int sized[4], on_host[4];
            for (int i = 0; i < 4; i++)
                if (size[i] > 0) {
                    sized[n] = size[i];
                    on_host[n++] = hosts[h][i];
                }
            if (ranks > RANKS_MAX)
                continue;
            struct layout l;
            make_layout(&l, sized, on_host, n);
            check_shadows(&l);
        }
}

/* World number `number` of `size` ranks. Between two positions begins nothing, a node, a host or a
 * rack. */
static void make_numbered(struct layout *l, int size, int number)
{
    l->node[0] = l->host[0] = l->rack[0] = 0;
    for (int p = 1; p < size; p++, number /= 4) {
        l->node[p] = l->node[p - 1] + (number % 4 >= 1);
        l->host[p] = l->host[p - 1] + (number % 4 >= 2);
        l->rack[p] = l->rack[p - 1] + (number % 4 == 3);
    }
    l->world = (struct dpt_world){.lanes = RANKS_MAX,
                                  .size = size,
                                  .host_of_position = l->host,
                                  .node_of_position = l->node,
                                  .rack_of_position = l->rack};
}

static int shadows_elsewhere(const struct layout *l, int shift, const int *of_position)
{
    int n = 0;
    for (int p = 0; p < l->world.size; p++)
        n += of_position[p] != of_position[(p + shift) % l->world.size];
    return n;
}

/* Each rack of at most half of the ranks may be lost: all of its shards have shadows outside. As
 * many shadows as possible are in another rack, and on another host. */
static void check_racks(const struct layout *l)
{
    const int *const kinds[] = {l->node, l->host, l->rack};
    const int size = l->world.size, shift = dpt_shadow_shift(&l->world);
    for (int kind = 0; kind < 3; kind++) {
        const int most = 2 * (size - largest(l, kinds[kind]));
        assert_int_equal(shadows_elsewhere(l, shift, kinds[kind]), most < size ? most : size);
    }
    for (int p = 0; p < size; p++) {
        int in_rack = 0;
        for (int k = 0; k < size; k++)
            in_rack += l->rack[k] == l->rack[p];
        const int holder = dpt_shadow_holder(&l->world, shift, p);
        if (2 * in_rack <= size)
            assert_true(holder >= 0 && l->rack[holder] != l->rack[p]);
    }
}

/* Without racks: the first distance with the most nodes changed, of these the most hosts. */
static void check_one_rack(struct layout *l)
{
    int best = 0, nodes = 0, hosts = 0;
    for (int shift = 1; shift < l->world.size; shift++) {
        const int n = shadows_elsewhere(l, shift, l->node),
                  h = shadows_elsewhere(l, shift, l->host);
        if (n > nodes || (n == nodes && h > hosts)) {
            best = shift;
            nodes = n;
            hosts = h;
        }
    }
    l->world.rack_of_position = NULL;
    assert_int_equal(dpt_shadow_shift(&l->world), best);
    for (int p = 0; p < l->world.size; p++)
        l->rack[p] = 0;
    l->world.rack_of_position = l->rack;
    assert_int_equal(dpt_shadow_shift(&l->world), best);
}

static void every_world_survives_a_rack(void **state)
{
    (void)state;
    for (int size = 1, worlds = 1; size <= EVERY_MAX; size++, worlds *= 4)
        for (int number = 0; number < worlds; number++) {
            struct layout l;
            make_numbered(&l, size, number);
            check_racks(&l);
            check_one_rack(&l);
        }
}

/* Two racks of two hosts: the smallest distance between hosts, 1, stays in the rack. */
static void shadows_leave_the_rack(void **state)
{
    (void)state;
    struct layout l;
    make_numbered(&l, 4, 2 + 4 * 3 + 16 * 2);
    assert_int_equal(dpt_shadow_shift(&l.world), 2);
    l.world.rack_of_position = NULL;
    assert_int_equal(dpt_shadow_shift(&l.world), 1);
}

static void one_node_has_no_shadows(void **state)
{
    (void)state;
    struct layout l;
    make_layout(&l, (int[]){3}, (int[]){0}, 1);
    const int shift = dpt_shadow_shift(&l.world);
    assert_int_equal(shift, 0);
    for (int p = 0; p < 3; p++) {
        assert_int_equal(dpt_shadow_holder(&l.world, shift, p), -1);
        assert_int_equal(dpt_shadow_source(&l.world, shift, p), -1);
    }
}

/* Three nodes of one host beside one of another: two of four shadows cross, all change the node. */
static void nodes_come_before_hosts(void **state)
{
    (void)state;
    struct layout l;
    make_layout(&l, (int[]){1, 1, 1, 1}, (int[]){0, 0, 0, 1}, 4);
    const int shift = dpt_shadow_shift(&l.world);
    int elsewhere = 0;
    for (int p = 0; p < 4; p++) {
        const int holder = dpt_shadow_holder(&l.world, shift, p);
        assert_true(holder >= 0);
        elsewhere += l.host[holder] != l.host[p];
    }
    assert_int_equal(elsewhere, 2);
}

static void nodes_and_hosts_are_runs(void **state)
{
    (void)state;
    struct layout l;
    make_layout(&l, (int[]){1, 3, 2}, (int[]){0, 0, 1}, 3);
    static const int node_first[] = {0, 1, 1, 1, 4, 4}, node_end[] = {1, 4, 4, 4, 6, 6};
    for (int p = 0; p < 6; p++) {
        const struct dpt_range node = dpt_world_node(&l.world, p),
                               host = dpt_world_host(&l.world, p);
        assert_int_equal(node.first, node_first[p]);
        assert_int_equal(node.end, node_end[p]);
        assert_int_equal(host.first, p < 4 ? 0 : 4);
        assert_int_equal(host.end, p < 4 ? 4 : 6);
    }
    l.world.lanes = 8; /* of 2, 2, 1, 1, 1, 1 */
    const struct dpt_range lanes = dpt_world_lanes(&l.world, dpt_world_node(&l.world, 2));
    assert_int_equal(lanes.first, 2);
    assert_int_equal(lanes.end, 6);
    l.world.node_of_position = NULL; /* then hosts are nodes */
    assert_int_equal(dpt_world_node(&l.world, 0).end, 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shadows_are_elsewhere),   cmocka_unit_test(every_world_survives_a_rack),
        cmocka_unit_test(shadows_leave_the_rack),  cmocka_unit_test(one_node_has_no_shadows),
        cmocka_unit_test(nodes_come_before_hosts), cmocka_unit_test(nodes_and_hosts_are_runs),
    };
    return cmocka_run_group_tests_name("world", tests, NULL, NULL);
}
