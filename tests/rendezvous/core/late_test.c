/* A server that is late: its loop was suspended, or it reads slower than messages come. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/rendezvous/core/trio.h"

enum { PAUSE_MS = 60000 }; /* longer than every period that it could cut short */

static void stand_still(void)
{
    stage_tick(&stage, PAUSE_MS);
}

/* The server itself was suspended: the silence of the nodes proves nothing. */
static void test_own_gap(void **state)
{
    (void)state;
    trio_start();
    stage_tick(&stage, 20000);
    assert_int_equal(stage.view.nodes, 2);
    assert_int_equal(stage.view.phase, DPT_RDZV_RUNNING);
    stage_pass_speaking(&stage, two, 1, 5000);
    assert_int_equal(stage.view.nodes, 1);
}

/* The pause after which a generation of an earlier server's nodes may be planned. */
static void test_a_pause_moves_the_plan(void **state)
{
    (void)state;
    trio_start();
    trio_step_to(5);
    trio_restart_server();
    fake_phase(&a, DPT__RANK_PHASE__RANK_READY, 1); /* nothing that could be adopted */
    fake_say(&a, &stage);
    assert_int_equal(stage.view.phase, DPT_RDZV_PREPARING);
    stand_still();
    fakes_settle(&stage, two, 1);
    assert_int_equal(stage.view.phase, DPT_RDZV_PREPARING); /* b may come yet */
    fakes_settle(&stage, two, 2);
    stage_pass_speaking(&stage, two, 2, 4600);
    assert_int_equal(stage.view.world_size, 2);
}

/* A young server's: nodes of an earlier one may come for so long. */
static void test_a_pause_moves_the_hold(void **state)
{
    (void)state;
    stage_restart(&stage, 99);
    stage_tick(&stage, 0);
    fake_say(&a, &stage);
    assert_int_equal(stage.view.phase, DPT_RDZV_SETTLING);
    stage_pass_speaking(&stage, two, 1, 1500); /* the last call is over */
    stand_still();
    stage_pass_speaking(&stage, two, 1, 2800);
    assert_int_equal(stage.view.phase, DPT_RDZV_SETTLING);
    stage_pass_speaking(&stage, two, 1, 400);
    assert_int_equal(stage.view.phase, DPT_RDZV_PREPARING);
}

static void test_a_pause_moves_the_exclusion(void **state)
{
    (void)state;
    struct fake *const all[] = {&a, &b, &c};
    fakes_start(&stage, all, 3);
    for (int formation = 0; formation < 2; formation++) {
        a.ranks[0].failed_generation = b.ranks[0].failed_generation = a.generation;
        a.ranks[0].suspect = (int32_t)fake_place(&b)->rank;
        b.ranks[0].suspect = (int32_t)fake_place(&a)->rank;
        fake_say(&a, &stage);
        fake_say(&b, &stage);
        fakes_settle(&stage, all, 3);
        stage_pass_speaking(&stage, all, 3, 1000);
        fakes_settle(&stage, all, 3);
    }
    assert_int_equal(b.phase, DPT__SERVER_PHASE__SERVER_SPARE);
    const uint64_t without = stage.view.generation;
    stand_still();
    stage_pass_speaking(&stage, all, 3, 20000);
    assert_int_equal(stage.view.generation, without);
    stage_pass_speaking(&stage, all, 3, 10000);
    assert_int_equal(stage.view.generation, without + 1);
}

/* The time that a node's slower ranks have to start. */
static void test_a_pause_moves_the_start_of_ranks(void **state)
{
    (void)state;
    struct fake *const joins[] = {&a, &b, &c};
    trio_start();
    c.state.n_ranks = 2;
    c.ranks[1].phase = DPT__RANK_PHASE__RANK_STARTING;
    fake_say(&c, &stage);
    stand_still();
    stage_pass_speaking(&stage, joins, 3, 4500);
    assert_int_equal(stage.view.phase, DPT_RDZV_RUNNING);
    stage_pass_speaking(&stage, joins, 3, 600);
    assert_int_equal(stage.view.phase, DPT_RDZV_PREPARING);
}

static void test_a_pause_moves_the_end_of_an_empty_run(void **state)
{
    (void)state;
    fake_say(&a, &stage);
    a.state.leaving = true;
    fake_say(&a, &stage);
    assert_int_equal(a.phase, DPT__SERVER_PHASE__SERVER_RELEASED);
    assert_int_equal(stage.view.nodes, 0);
    stand_still();
    stage_pass(&stage, 9000);
    assert_int_equal(dpt_rdzv_runs(stage.core), 1);
    stage_pass(&stage, 1200);
    assert_int_equal(dpt_rdzv_runs(stage.core), 0);
}

/* Only a is read for far longer than a lease; the messages of b wait in the queue meanwhile. */
static void test_a_backlog_expels_nobody(void **state)
{
    (void)state;
    trio_start();
    trio_step_to(3);
    for (int i = 0; i < 300; i++) {
        fake_say(&a, &stage);
        stage_backlog(&stage, 100);
    }
    assert_int_equal(stage.view.nodes, 2);
    assert_int_equal(stage.view.phase, DPT_RDZV_RUNNING);
    fake_say(&b, &stage); /* now it is read, and nothing waits any more */
    stage_pass_speaking(&stage, two, 1, 4400);
    assert_int_equal(stage.view.nodes, 2);
    assert_int_equal(stage.view.generation, 1);
    stage_pass_speaking(&stage, two, 1, 200);
    assert_int_equal(stage.view.nodes, 1); /* leases are as ever */
}

int main(void)
{
#define T(test) cmocka_unit_test_setup_teardown(test, trio_setup, trio_teardown)
    const struct CMUnitTest tests[] = {
        T(test_own_gap),
        T(test_a_pause_moves_the_plan),
        T(test_a_pause_moves_the_hold),
        T(test_a_pause_moves_the_exclusion),
        T(test_a_pause_moves_the_start_of_ranks),
        T(test_a_pause_moves_the_end_of_an_empty_run),
        T(test_a_backlog_expels_nobody),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
