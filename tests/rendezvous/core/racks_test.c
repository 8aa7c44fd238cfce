/* The order of a plan's positions when nodes say their racks. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/rendezvous/core/fake_agent.h"

#include <string.h>

enum { WORLD = 4 };

static struct stage stage;
static struct fake a, b, c, d, e;

static int setup(void **state)
{
    (void)state;
    stage_open(&stage);
    fake_init(&a, &stage, "a");
    fake_init(&b, &stage, "b");
    fake_init(&c, &stage, "c");
    fake_init(&d, &stage, "d");
    fake_init(&e, &stage, "e");
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    stage_close(&stage);
    return 0;
}

/* `nodes` and `racks`: a letter and a digit for each position of the fake's newest plan. */
static void expect_positions(const struct fake *fake, struct fake *const *fakes, size_t n,
                             const char *nodes, const char *racks)
{
    char node_at[WORLD + 1] = "", rack_at[WORLD + 1] = "";
    assert_int_equal(fake->plan->n_ranks, n);
    for (size_t i = 0; i < n; i++) {
        const Dpt__PlanRank *place = fake->plan->ranks[fake_place(fakes[i])->rank];
        node_at[place->position] = fakes[i]->id[0];
        rack_at[place->position] = (char)('0' + place->rack);
    }
    assert_string_equal(node_at, nodes);
    assert_string_equal(rack_at, racks);
}

/* Nodes of two racks join in turn, one dies, and one joins: ranks keep their numbers, and the
 * positions of a rack stay adjacent. */
static void ranks_of_a_rack_are_adjacent(void **state)
{
    (void)state;
    struct fake *all[] = {&a, &b, &c, &d}, *rest[] = {&b, &c, &d}, *again[] = {&b, &c, &d, &e};
    a.state.rack = c.state.rack = "r1";
    b.state.rack = d.state.rack = e.state.rack = "r2";
    fakes_start(&stage, all, 4);
    expect_positions(&a, all, 4, "acbd", "0011");
    fake_dies(&a, &b, &stage);
    stage_pass_speaking(&stage, rest, 3, 300);
    fakes_settle(&stage, rest, 3);
    assert_int_equal(fake_place(&b)->rank, 1);
    assert_int_equal(fake_place(&c)->rank, 2);
    assert_int_equal(fake_place(&d)->rank, 0);
    expect_positions(&b, rest, 3, "dbc", "001");
    fake_say(&e, &stage);
    fakes_settle(&stage, again, 4);
    assert_int_equal(fake_place(&e)->rank, 3);
    expect_positions(&b, again, 4, "dbec", "0001");
}

static void hosts_are_adjacent_in_a_rack(void **state)
{
    (void)state;
    struct fake *all[] = {&a, &b, &c, &d};
    a.state.rack = c.state.rack = d.state.rack = "r1";
    b.state.rack = "r2";
    a.state.host = d.state.host = "one";
    fakes_start(&stage, all, 4);
    assert_int_equal(a.plan->n_hosts, 3);
    expect_positions(&a, all, 4, "adcb", "0001");
}

/* Racks of one host would make runs of positions that are no runs. */
static void nodes_of_two_racks_share_no_host(void **state)
{
    (void)state;
    struct fake *all[] = {&a, &b, &c, &d};
    a.state.host = b.state.host = c.state.host = d.state.host = "one";
    b.state.rack = d.state.rack = "r2";
    fakes_start(&stage, all, 4);
    assert_int_equal(a.plan->n_hosts, 2);
    expect_positions(&a, all, 4, "acbd", "0011"); /* without a rack: together */
    assert_string_equal(a.plan->ranks[fake_place(&c)->rank]->shm_addr, "shm");
    assert_string_equal(a.plan->ranks[fake_place(&b)->rank]->shm_addr, "");
}

/* Every message has the rack, so a server without a journal knows it, too. */
static void restarted_server_knows_racks(void **state)
{
    (void)state;
    struct fake *all[] = {&a, &b, &c}, *more[] = {&a, &b, &c, &d};
    a.state.rack = c.state.rack = "r1";
    b.state.rack = d.state.rack = "r2";
    fakes_start(&stage, all, 3);
    for (int journal = 0; journal <= 1; journal++) {
        if (journal)
            stage_restart_with_journal(&stage, 98);
        else
            stage_restart(&stage, 99);
        stage_tick(&stage, 0);
        for (size_t i = 0; i < 3; i++) {
            all[i]->conn += 100;
            all[i]->ranks[0].plan_rank = (int32_t)fake_place(all[i])->rank;
        }
        fakes_settle(&stage, all, 3);
    }
    fake_say(&d, &stage);
    fakes_settle(&stage, more, 4);
    expect_positions(&a, more, 4, "acbd", "0011");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(ranks_of_a_rack_are_adjacent, setup, teardown),
        cmocka_unit_test_setup_teardown(hosts_are_adjacent_in_a_rack, setup, teardown),
        cmocka_unit_test_setup_teardown(nodes_of_two_racks_share_no_host, setup, teardown),
        cmocka_unit_test_setup_teardown(restarted_server_knows_racks, setup, teardown),
    };
    return cmocka_run_group_tests_name("racks", tests, NULL, NULL);
}
