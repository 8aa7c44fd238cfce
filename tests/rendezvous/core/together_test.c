/* Nodes that die together, of which the peers that are left name only one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/rendezvous/core/trio.h"

enum { GRACE_MS = 250, LEASE_MS = 4500 };

static struct fake *const three[] = {&a, &b, &c}, *const rest[] = {&a};

static void connection_breaks(const struct fake *fake)
{
    stage_step(&stage, (struct dpt_rdzv_event){.kind = DPT_RDZV_EVENT_BROKEN, .conn = fake->conn});
}

/* All three are at step 3. Then the connections of b and c break, and a, which goes on speaking,
 * names b. */
static void lose_both(void)
{
    fakes_start(&stage, three, 3);
    a.ranks[0].step_applied = b.ranks[0].step_applied = c.ranks[0].step_applied = 3;
    for (int i = 0; i < 3; i++)
        fake_say(three[i], &stage);
    connection_breaks(&b);
    connection_breaks(&c);
    fake_loses(&a, &b);
    fake_say(&a, &stage);
    fake_obey(&a);
}

static void test_both_are_lost(void **state)
{
    (void)state;
    lose_both();
    stage_pass_speaking(&stage, rest, 1, GRACE_MS + 10);
    assert_int_equal(stage.view.nodes, 2); /* without b */
    stage_pass_speaking(&stage, rest, 1, GRACE_MS - 20);
    assert_int_equal(stage.view.nodes, 2);
    stage_pass_speaking(&stage, rest, 1, 20);
    assert_int_equal(stage.view.nodes, 1);
    fakes_settle(&stage, rest, 1);
    assert_int_equal(stage.view.phase, DPT_RDZV_RUNNING);
    assert_int_equal(a.plan->resume_step, 3);
    assert_int_equal(stage.view.restarts_left, 99); /* one incident */
}

static void test_one_that_comes_back_stays(void **state)
{
    (void)state;
    lose_both();
    stage_pass_speaking(&stage, rest, 1, 2 * GRACE_MS - 20);
    c.conn = 3000;
    fake_say(&c, &stage);
    stage_pass_speaking(&stage, rest, 1, 1000);
    assert_int_equal(stage.view.nodes, 2);
    fakes_settle(&stage, (struct fake *const[]){&a, &c}, 2);
    assert_int_equal(stage.view.phase, DPT_RDZV_RUNNING);
    assert_int_equal(stage.view.world_size, 2);
}

/* It may be alive, and no other has its step. */
static void test_newest_step_is_waited_for(void **state)
{
    (void)state;
    fakes_start(&stage, three, 3);
    a.ranks[0].step_applied = b.ranks[0].step_applied = 3;
    c.ranks[0].step_applied = 4;
    for (int i = 0; i < 3; i++)
        fake_say(three[i], &stage);
    connection_breaks(&c);
    a.ranks[0].failed_generation = b.ranks[0].failed_generation = a.generation;
    a.ranks[0].suspect = b.ranks[0].suspect = -1;
    for (int i = 0; i < 2; i++) {
        fake_say(three[i], &stage);
        fake_obey(three[i]);
    }
    stage_pass_speaking(&stage, two, 2, LEASE_MS - 200);
    assert_int_equal(stage.view.nodes, 3);
    stage_pass_speaking(&stage, two, 2, 300);
    assert_int_equal(stage.view.nodes, 2);
}

/* Of its two ranks one has stopped at step 4, which no other node has. */
static void test_half_a_report_is_no_state_of_the_others(void **state)
{
    (void)state;
    c.state.n_ranks = 2;
    fakes_start(&stage, three, 3);
    a.ranks[0].step_applied = b.ranks[0].step_applied = 3;
    c.ranks[0].step_applied = c.ranks[1].step_applied = 3;
    for (int i = 0; i < 3; i++)
        fake_say(three[i], &stage);
    for (int i = 0; i < 2; i++) {
        three[i]->ranks[0].failed_generation = a.generation;
        three[i]->ranks[0].suspect = -1;
        fake_say(three[i], &stage);
        fake_obey(three[i]);
    }
    c.ranks[0].step_applied = 4;
    c.ranks[0].phase = DPT__RANK_PHASE__RANK_QUIESCED;
    c.ranks[0].generation = c.generation;
    fake_say(&c, &stage);
    connection_breaks(&c);
    stage_pass_speaking(&stage, two, 2, LEASE_MS - 200);
    assert_int_equal(stage.view.nodes, 3);
    stage_pass_speaking(&stage, two, 2, 300);
    assert_int_equal(stage.view.nodes, 2);
}

/* Without it the run would have to wait in any case. */
static void test_needed_node_is_waited_for(void **state)
{
    (void)state;
    a.spec.min_nodes = b.spec.min_nodes = c.spec.min_nodes = 2;
    lose_both();
    stage_pass_speaking(&stage, rest, 1, LEASE_MS - 200);
    assert_int_equal(stage.view.nodes, 2);
    c.conn = 3000;
    fakes_settle(&stage, (struct fake *const[]){&a, &c}, 2);
    assert_int_equal(stage.view.phase, DPT_RDZV_RUNNING);
    assert_int_equal(stage.view.world_size, 2);
}

/* The others take longer to stop: only then it is known whether they hold the newest step. */
static void test_others_must_have_reported(void **state)
{
    (void)state;
    fakes_start(&stage, three, 3);
    connection_breaks(&c);
    a.ranks[0].failed_generation = a.generation;
    a.ranks[0].suspect = -1;
    fake_say(&a, &stage);
    fake_obey(&a);
    stage_pass_speaking(&stage, two, 2, 4 * GRACE_MS);
    assert_int_equal(stage.view.nodes, 3);
    fake_obey(&b);
    stage_pass_speaking(&stage, two, 2, 20);
    assert_int_equal(stage.view.nodes, 2);
}

int main(void)
{
#define T(test) cmocka_unit_test_setup_teardown(test, trio_setup, trio_teardown)
    const struct CMUnitTest tests[] = {
        T(test_both_are_lost),
        T(test_one_that_comes_back_stays),
        T(test_newest_step_is_waited_for),
        T(test_half_a_report_is_no_state_of_the_others),
        T(test_needed_node_is_waited_for),
        T(test_others_must_have_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
