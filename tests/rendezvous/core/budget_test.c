/* The restart budget: its use and its refill. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/rendezvous/core/trio.h"

#include <stdio.h>
#include <string.h>

enum { MANY = 8 };

static void test_crash_over_budget_fails_run(void **state)
{
    (void)state;
    a.spec.max_restarts = b.spec.max_restarts = 2;
    trio_start();
    trio_step_to(1);
    b.state.first_error = "rank process 0: illegal instruction";
    b.state.first_error_ms_ago = 300;
    b.state.crashes = 2;
    fake_say(&b, &stage);
    assert_int_equal(stage.view.restarts_left, 0);
    fakes_settle(&stage, two, 2);
    trio_step_to(11); /* ten steps give one back */
    assert_int_equal(stage.view.restarts_left, 1);
    trio_step_to(20);
    assert_int_equal(stage.view.restarts_left, 1);
    a.state.first_error = "rank process 0: later";
    a.state.first_error_ms_ago = 0;
    a.state.crashes = 1;
    fake_say(&a, &stage);
    assert_int_not_equal(stage.view.phase, DPT_RDZV_FAILED);
    a.state.crashes = 2;
    fake_say(&a, &stage);
    assert_int_equal(stage.view.phase, DPT_RDZV_FAILED);
    assert_int_equal(a.phase, DPT__SERVER_PHASE__SERVER_FAILED);
    assert_non_null(strstr(a.text, "node b: rank process 0: illegal instruction"));
    assert_int_equal(stage.records[DPT_RDZV_RECORD_CRASH],
                     3); /* crashes in one report are one record */
}

/* Any number of reported losses is counted at once, up to the budget's own size. */
static void test_budget_by_one_message(void **state)
{
    (void)state;
    a.spec.max_restarts = b.spec.max_restarts = UINT32_MAX;
    trio_start();
    b.state.crashes = UINT32_MAX - 1;
    fake_say(&b, &stage);
    assert_int_equal(stage.view.restarts_left, 1);
    fakes_settle(&stage, two, 2);
    trio_step_to(9); /* as many steps as one wants give back as many, likewise at once */
    assert_int_equal(stage.view.restarts_left, 1);
    trio_step_to(10 + INT64_C(10) * 1000000000);
    assert_int_equal(stage.view.restarts_left, 1000000002);
    trio_step_to(DPT_PROTO_TOLD_STEPS);
    assert_int_equal(stage.view.restarts_left, UINT32_MAX);
    a.state.crashes = UINT32_MAX;
    fake_say(&a, &stage);
    assert_int_equal(stage.view.restarts_left, 0);
    assert_int_equal(stage.records[DPT_RDZV_RECORD_CRASH], 2);
}

static struct fake many[MANY];
static struct fake *all[MANY];

/* Many nodes train together; none of their losses is made good by steps. */
static void start_many(void)
{
    for (int i = 0; i < MANY; i++) {
        char id[32];
        (void)snprintf(id, sizeof id, "n%d", i);
        all[i] = &many[i];
        fake_init(all[i], &stage, id);
        all[i]->spec.min_nodes = 1;
        all[i]->spec.max_nodes = MANY;
        all[i]->spec.max_restarts = 2;
    }
    fakes_start(&stage, all, MANY);
    assert_int_equal(stage.view.world_size, MANY);
}

/* A switch fails and takes all nodes but one: that is one incident, though their leases end one
 * after another. */
static void test_many_nodes_are_one_incident(void **state)
{
    (void)state;
    start_many();
    for (size_t left = MANY; left > 1; left--)
        stage_pass_speaking(&stage, all, left - 1, 100);
    stage_pass_speaking(&stage, all, 1, 6000);
    assert_int_equal(stage.view.nodes, 1);
    assert_int_equal(stage.view.restarts_left, 1);
    fakes_settle(&stage, all, 1);
    assert_int_equal(stage.view.phase, DPT_RDZV_RUNNING);
}

/* So are processes of many nodes that end in one generation, and nodes that follow them. */
static void test_many_ranks_are_one_incident(void **state)
{
    (void)state;
    start_many();
    for (int i = 1; i < MANY - 1; i++) {
        all[i]->ranks[0].phase = DPT__RANK_PHASE__RANK_DEAD;
        all[i]->state.crashes = 1;
        all[i]->state.first_error = "rank process 0: illegal instruction";
        fake_say(all[i], &stage);
    }
    stage_pass_speaking(&stage, all, MANY - 1, 5000); /* the last is silent */
    assert_int_equal(stage.view.nodes, MANY - 1);
    assert_int_equal(stage.view.restarts_left, 1);
}

/* A failure of the next generation is another incident, and so is each end of a process without a
 * place, so a crash loop ends. */
static void test_later_losses_are_others(void **state)
{
    (void)state;
    start_many();
    for (uint32_t round = 1; round <= 2; round++) {
        struct fake *victim = all[round];
        victim->ranks[0].phase = DPT__RANK_PHASE__RANK_DEAD;
        victim->state.crashes = 1;
        victim->state.first_error = "rank process 0: out of memory";
        fake_say(victim, &stage);
        fakes_settle(&stage, all, 1);
        for (int i = 0; i < MANY; i++)
            if (all[i]->ranks[0].phase != DPT__RANK_PHASE__RANK_DEAD)
                fake_obey(all[i]);
        fakes_settle(&stage, all, MANY);
        assert_int_equal(stage.view.phase, DPT_RDZV_RUNNING);
        assert_int_equal(stage.view.restarts_left, 2 - round);
    }
    all[1]->ranks[0].spawn = 2; /* its successor is a spare and ends before any plan */
    all[1]->state.crashes = 2;
    fake_say(all[1], &stage);
    assert_int_equal(stage.view.phase, DPT_RDZV_FAILED);
}

int main(void)
{
#define T(test) cmocka_unit_test_setup_teardown(test, trio_setup, trio_teardown)
    const struct CMUnitTest tests[] = {
        T(test_crash_over_budget_fails_run), T(test_budget_by_one_message),
        T(test_many_nodes_are_one_incident), T(test_many_ranks_are_one_incident),
        T(test_later_losses_are_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
