/* Errors that no restart can repair: they end a node or the run. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/rendezvous/core/trio.h"

static void test_fatal_to_a_member(void **state)
{
    (void)state;
    a.spec.min_nodes = 2;
    trio_start();
    b.state.fatal = true;
    b.state.first_error = "rank process 0: shard 'x.bin' is truncated";
    fake_say(&b, &stage);
    assert_int_equal(a.phase, DPT__SERVER_PHASE__SERVER_FAILED);
    assert_string_equal(a.text, "node b: rank process 0: shard 'x.bin' is truncated");
}

/* The run has its minimum without that member, and goes on with the state of the others. */
static void test_fatal_to_a_dispensable_member(void **state)
{
    (void)state;
    trio_start();
    trio_step_to(3);
    b.ranks[0].phase = DPT__RANK_PHASE__RANK_DEAD;
    b.state.fatal = true;
    b.state.first_error = "rank process 0: shard 'x.bin' is truncated";
    fake_say(&b, &stage);
    assert_int_equal(b.phase, DPT__SERVER_PHASE__SERVER_EXPELLED);
    assert_string_equal(b.text, "it cannot take part: rank process 0: shard 'x.bin' is truncated");
    assert_int_equal(b.world_step, 3);
    fakes_settle(&stage, two, 1);
    assert_int_equal(stage.view.phase, DPT_RDZV_RUNNING);
    assert_int_equal(stage.view.generation, 2);
    assert_int_equal(stage.view.nodes, 1);
    assert_int_equal(a.plan->resume_step, 3);
    assert_int_equal(stage.view.restarts_left, 99); /* like any loss of a member */
}

/* A newcomer has a place in the plan that is being carried out when its disk fails. */
static void test_fatal_to_a_joiner_in_formation(void **state)
{
    (void)state;
    a.spec.min_nodes = 2;
    trio_start();
    trio_step_to(3);
    fake_say(&c, &stage);
    struct fake *const all[] = {&a, &b, &c};
    for (int round = 0; round < 8 && stage.view.phase != DPT_RDZV_PLANNED; round++)
        for (int i = 0; i < 3; i++) {
            fake_obey(all[i]);
            fake_say(all[i], &stage);
        }
    assert_int_equal(stage.view.phase, DPT_RDZV_PLANNED);
    assert_int_equal(stage.view.world_size, 3);
    c.ranks[0].phase = DPT__RANK_PHASE__RANK_DEAD;
    c.state.fatal = true;
    c.state.first_error = "rank process 0: checkpoint of step 3 cannot be read";
    fake_say(&c, &stage);
    assert_int_equal(c.phase, DPT__SERVER_PHASE__SERVER_EXPELLED);
    fakes_settle(&stage, two, 2);
    assert_int_equal(stage.view.phase, DPT_RDZV_RUNNING);
    assert_int_equal(stage.view.world_size, 2);
    assert_int_equal(a.plan->resume_step, 3);
}

/* A node without a place cannot end the run of the others. */
static void test_fatal_to_a_spare(void **state)
{
    (void)state;
    trio_start();
    trio_step_to(3);
    c.ranks[0].phase = DPT__RANK_PHASE__RANK_STARTING;
    fake_say(&c, &stage);
    assert_int_equal(stage.view.nodes, 3);
    c.ranks[0].phase = DPT__RANK_PHASE__RANK_DEAD;
    c.state.fatal = true;
    c.state.first_error = "rank process 0: no such device";
    fake_say(&c, &stage);
    assert_int_equal(c.phase, DPT__SERVER_PHASE__SERVER_EXPELLED);
    assert_string_equal(c.text, "it cannot take part: rank process 0: no such device");
    assert_int_equal(stage.view.nodes, 2);
    assert_int_equal(stage.view.phase, DPT_RDZV_RUNNING);
    assert_int_equal(stage.view.generation, 1);
    assert_int_equal(stage.view.restarts_left, 100);
    fake_say(&c, &stage); /* and says it again */
    assert_int_equal(c.phase, DPT__SERVER_PHASE__SERVER_EXPELLED);
    assert_int_equal(stage.view.phase, DPT_RDZV_RUNNING);
}

/* A node whose process ended has no place after the others have formed again. */
static void test_fatal_after_a_death(void **state)
{
    (void)state;
    trio_start();
    b.ranks[0].phase = DPT__RANK_PHASE__RANK_DEAD;
    fake_say(&b, &stage);
    fakes_settle(&stage, two, 1);
    assert_int_equal(stage.view.generation, 2);
    b.state.fatal = true;
    b.state.first_error = "rank process 0: 10 processes in a row ended";
    fake_say(&b, &stage);
    assert_int_equal(b.phase, DPT__SERVER_PHASE__SERVER_EXPELLED);
    assert_int_equal(stage.view.phase, DPT_RDZV_RUNNING);
    /* No other node is left to train, so the run ends. */
    a.ranks[0].phase = DPT__RANK_PHASE__RANK_DEAD;
    a.state.fatal = true;
    a.state.first_error = "rank process 0: 10 processes in a row ended";
    fake_say(&a, &stage);
    assert_int_equal(a.phase, DPT__SERVER_PHASE__SERVER_FAILED);
}

static void test_fatal_at_first(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        two[i]->ranks[0].phase = DPT__RANK_PHASE__RANK_STARTING;
        fake_say(two[i], &stage);
    }
    b.state.fatal = true;
    b.state.first_error = "rank process 0: no such device";
    fake_say(&b, &stage);
    assert_int_equal(b.phase, DPT__SERVER_PHASE__SERVER_EXPELLED);
    assert_int_equal(stage.view.nodes, 1);
    /* An error of all nodes ends the run when the last node reports it. */
    a.state.fatal = true;
    a.state.first_error = b.state.first_error;
    fake_say(&a, &stage);
    assert_int_equal(a.phase, DPT__SERVER_PHASE__SERVER_FAILED);
    assert_string_equal(a.text, "node a: rank process 0: no such device");
    assert_int_equal(stage.view.phase, DPT_RDZV_FAILED);
}

/* Too few would be left: the run does not wait for others, which may have the same fault. */
static void test_fatal_below_min(void **state)
{
    (void)state;
    a.spec.min_nodes = 2;
    for (int i = 0; i < 2; i++) {
        two[i]->ranks[0].phase = DPT__RANK_PHASE__RANK_STARTING;
        fake_say(two[i], &stage);
    }
    b.state.fatal = true;
    b.state.first_error = "rank process 0: no such device";
    fake_say(&b, &stage);
    assert_int_equal(b.phase, DPT__SERVER_PHASE__SERVER_FAILED);
    assert_int_equal(a.phase, DPT__SERVER_PHASE__SERVER_FAILED);
}

/* A restarted server has not heard the nodes that train. It waits for them. */
static void test_fatal_after_a_restart(void **state)
{
    (void)state;
    trio_start();
    trio_step_to(3);
    trio_restart_server();
    c.ranks[0].phase = DPT__RANK_PHASE__RANK_DEAD;
    c.state.fatal = true;
    c.state.first_error = "rank process 0: no such device";
    fake_say(&c, &stage);
    assert_int_not_equal(c.phase, DPT__SERVER_PHASE__SERVER_FAILED);
    fake_say(&a, &stage);
    fake_say(&c, &stage); /* one of them is here: nothing is adopted yet */
    assert_int_equal(c.phase, DPT__SERVER_PHASE__SERVER_EXPELLED);
    a.generation = 1; /* it has received nothing else */
    fake_say(&b, &stage);
    assert_int_equal(stage.view.phase, DPT_RDZV_RUNNING);
    assert_int_equal(stage.view.generation, 1);
}

/* No node comes back, so the run ends. */
static void test_fatal_on_a_young_server(void **state)
{
    (void)state;
    stage_restart(&stage, 2);
    c.ranks[0].phase = DPT__RANK_PHASE__RANK_STARTING;
    fake_say(&c, &stage);
    c.state.fatal = true;
    c.state.first_error = "rank process 0: no such device";
    fake_say(&c, &stage);
    assert_int_not_equal(c.phase, DPT__SERVER_PHASE__SERVER_FAILED);
    struct fake *const only[] = {&c};
    stage_pass_speaking(&stage, only, 1, 4600);
    assert_int_equal(c.phase, DPT__SERVER_PHASE__SERVER_FAILED);
    assert_string_equal(c.text, "node c: rank process 0: no such device");
}

/* All processes of the nodes that trained are new ones: they have no place, and they hold the run.
 */
static void test_fatal_while_others_begin_anew(void **state)
{
    (void)state;
    trio_start();
    trio_step_to(3);
    for (int i = 0; i < 2; i++) {
        two[i]->ranks[0].phase = DPT__RANK_PHASE__RANK_STARTING;
        two[i]->ranks[0].spawn = 2;
        two[i]->ranks[0].step_applied = -1;
        fake_say(two[i], &stage);
    }
    c.ranks[0].phase = DPT__RANK_PHASE__RANK_DEAD;
    c.state.fatal = true;
    c.state.first_error = "rank process 0: no such device";
    fake_say(&c, &stage);
    assert_int_equal(c.phase, DPT__SERVER_PHASE__SERVER_EXPELLED);
    assert_int_not_equal(stage.view.phase, DPT_RDZV_FAILED);
}

int main(void)
{
#define T(test) cmocka_unit_test_setup_teardown(test, trio_setup, trio_teardown)
    const struct CMUnitTest tests[] = {
        T(test_fatal_to_a_member),
        T(test_fatal_to_a_dispensable_member),
        T(test_fatal_to_a_joiner_in_formation),
        T(test_fatal_to_a_spare),
        T(test_fatal_after_a_death),
        T(test_fatal_at_first),
        T(test_fatal_below_min),
        T(test_fatal_after_a_restart),
        T(test_fatal_on_a_young_server),
        T(test_fatal_while_others_begin_anew),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
