/* A node leaves while an operator holds the run, and no checkpoint can be written: it hands its
 * part of the state over, and no step is made. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/rendezvous/core/fake_operator.h"

#include <string.h>

/* a and b hold a half each of step 9 and are paused. */
static void pause_halves(uint32_t min_nodes)
{
    struct fake *const all[] = {&a, &b, &c};
    for (size_t i = 0; i < 3; i++) {
        all[i]->spec.sharded = true;
        all[i]->spec.min_nodes = min_nodes;
        all[i]->state.checkpoint_dir_id = "";
    }
    start_trio_at_9();
    fake_part(&a, 0, 2, false);
    fake_part(&b, 1, 2, false);
    goes_on(order(VERB(PAUSE), ""));
    fakes_settle(&stage, two, 2);
    done(again(VERB(PAUSE), ""));
}

/* Its agent obeys the DRAIN. */
static void drain_b(void)
{
    goes_on(order(VERB(DRAIN), "b"));
    b.state.leaving = true;
    fake_say(&b, &stage);
}

static void obey_both(void)
{
    for (int i = 0; i < 2; i++) {
        fake_obey(two[i]);
        fake_say(two[i], &stage);
    }
}

/* Quiesced again, both have the plan in which b is a handover rank. */
static void plan_handover(void)
{
    IS(a, PREPARE);
    assert_false(a.soft);
    obey_both();
    fake_say(&a, &stage);
    IS(a, PLAN);
    IS(b, PLAN);
    assert_false(a.plan->final_save);
    assert_int_equal(a.plan->world_size, 2);
    assert_int_equal(a.plan->handover_ranks, 1);
    assert_int_equal(a.plan->resume_step, 9);
    assert_int_equal(fake_place(&a)->rank, 0);
    assert_string_equal(a.plan->cause, "a node leaves and hands its state over");
}

/* They obey until each has a plan. */
static void fakes_until_planned(struct fake *const *fakes, size_t n)
{
    size_t planned = 0;
    for (int round = 0; round < 10 && planned < n; round++) {
        planned = 0;
        for (size_t i = 0; i < n; i++) {
            if (fakes[i]->phase != DPT__SERVER_PHASE__SERVER_PLAN)
                fake_obey(fakes[i]);
            fake_say(fakes[i], &stage);
            planned += fakes[i]->phase == DPT__SERVER_PHASE__SERVER_PLAN;
        }
        stage_pass(&stage, 20);
    }
    assert_int_equal(planned, n);
}

/* a has filled the other half. */
static void take_over(void)
{
    a.ranks[0].pending_generation = a.plan->generation;
    fake_part(&a, 0, 1, true);
}

static void drained_node_hands_over_in_a_pause(void **state)
{
    (void)state;
    pause_halves(1);
    drain_b();
    plan_handover();
    take_over();
    obey_both(); /* READY */
    IS(a, PREPARE);
    obey_both();
    IS(b, RELEASED);
    assert_false(b.last_holder);
    fake_say(&a, &stage);
    IS(a, WAITING);
    assert_int_equal(a.ranks[0].phase, DPT__RANK_PHASE__RANK_QUIESCED);
    done(again(VERB(DRAIN), "b"));
    const uint64_t handover = a.plan->generation;
    stage_pass_speaking(&stage, two, 1, 60000); /* the run is paused as before */
    IS(a, WAITING);
    assert_true(a.plan->generation == handover);
    done(order(VERB(RESUME), ""));
    fakes_settle(&stage, two, 1);
    IS(a, RUNNING);
    assert_int_equal(a.plan->resume_step, 9);
    assert_int_equal(a.plan->world_size, 1);
    assert_int_equal(a.plan->handover_ranks, 0);
    assert_true(a.plan->state_generation >= handover);
    assert_false(fake_place(&a)->takes_state);
    assert_string_equal(a.plan->cause, "an operator resumes the run");
    assert_int_equal(stage.view.restarts_left, 100);
}

/* The operator resumes the run before the part is handed over. */
static void resume_during_a_handover(void **state)
{
    (void)state;
    pause_halves(1);
    drain_b();
    plan_handover();
    done(order(VERB(RESUME), ""));
    take_over();
    fakes_settle(&stage, two, 2);
    IS(b, RELEASED);
    assert_false(b.last_holder);
    IS(a, RUNNING);
    assert_int_equal(a.plan->resume_step, 9);
    assert_int_equal(a.plan->world_size, 1);
}

/* Too few nodes would stay: nobody can take the part over. */
static void node_below_the_minimum_is_the_last_holder(void **state)
{
    (void)state;
    pause_halves(2);
    drain_b();
    IS(b, RELEASED);
    assert_true(b.last_holder);
    IS(a, WAITING);
    assert_int_equal(a.plan->generation, 1);
}

/* The node that stays dies during the handover, and does not come back. */
static void handover_to_a_node_that_dies(void **state)
{
    (void)state;
    pause_halves(1);
    drain_b();
    plan_handover();
    stage_step(&stage, (struct dpt_rdzv_event){.kind = DPT_RDZV_EVENT_BROKEN, .conn = a.conn});
    for (int i = 0; i < 20; i++) {
        stage_pass_speaking(&stage, two + 1, 1, 500);
        fake_obey(&b);
    }
    IS(b, RELEASED);
    assert_int_equal(stage.view.nodes, 0);
}

/* A handover that does not come to its end does not keep the node for ever, nor is it begun again
 * and again. */
static void handover_takes_no_longer_than_a_drain(void **state)
{
    (void)state;
    const struct dpt_timing timing = dpt_timing_from(5000, 0);
    pause_halves(1);
    drain_b();
    plan_handover();
    for (int64_t ms = 0; ms < timing.drain_ms; ms += 100) { /* their connection fails each time */
        fake_loses(&a, &b);
        fake_obey(&b);
        stage_pass_speaking(&stage, two, 2, 100);
        if (a.phase == DPT__SERVER_PHASE__SERVER_PREPARE)
            fake_obey(&a);
    }
    IS(b, RELEASED);
    assert_true(b.last_holder);
    assert_true(stage.view.generation < 20);
}

static struct fake *const all[] = {&a, &b, &c};

/* c has joined in the pause, without state; b leaves, and all have the plan of the handover. */
static void pause_with_c_and_drain_b(void)
{
    pause_halves(1);
    fakes_settle(&stage, all, 3);
    drain_b();
    fakes_until_planned(all, 3);
}

/* a begins to leave while b still does, and has its own time: a handover that fails late is planned
 * again, for both parts. */
static void each_leaving_node_has_its_own_time(void **state)
{
    (void)state;
    const struct dpt_timing timing = dpt_timing_from(5000, 0);
    pause_with_c_and_drain_b();
    stage_pass_speaking(&stage, all, 3, timing.drain_ms / 2);
    a.state.leaving = true;
    stage_pass_speaking(&stage, all, 3, timing.drain_ms / 4);
    fake_loses(&a, &b);
    fake_say(&a, &stage);
    IS(a, PREPARE);
    fakes_until_planned(all, 3);
    assert_int_equal(c.plan->handover_ranks, 2);
    assert_int_equal(c.plan->resume_step, 9);
    assert_true(fake_place(&c)->takes_state);
}

/* A leaving node whose time is nearly over is released, although another node leaves and although
 * formations pause after failures: the node must still write a rescue. */
static void late_leaver_keeps_no_other(void **state)
{
    (void)state;
    const struct dpt_timing timing = dpt_timing_from(5000, 0);
    pause_with_c_and_drain_b();
    for (int64_t ms = 0; ms < timing.drain_ms - 500; ms += 100) { /* it fails each time */
        a.state.leaving = ms >= timing.drain_ms * 7 / 10;
        fake_loses(&c, &b);
        stage_pass_speaking(&stage, all, 3, 100);
        for (size_t i = 0; i < 3; i++)
            if (all[i]->phase == DPT__SERVER_PHASE__SERVER_PREPARE)
                fake_obey(all[i]);
    }
    IS(b, RELEASED);
    assert_true(b.last_holder);
}

/* It has joined in the pause, and has no state yet. */
static void newcomer_takes_the_state_of_the_only_holder(void **state)
{
    (void)state;
    struct fake *const one[] = {&a};
    a.state.checkpoint_dir_id = b.state.checkpoint_dir_id = "";
    fakes_start(&stage, one, 1);
    a.ranks[0].step_applied = 9;
    fake_say(&a, &stage);
    goes_on(order(VERB(PAUSE), ""));
    fakes_settle(&stage, one, 1);
    done(again(VERB(PAUSE), ""));
    fakes_settle(&stage, two, 2);
    a.state.leaving = true;
    fakes_settle(&stage, two, 2);
    IS(a, RELEASED);
    assert_false(a.last_holder);
    IS(b, WAITING);
    assert_int_equal(b.plan->handover_ranks, 1);
    assert_true(fake_place(&b)->takes_state);
    done(order(VERB(RESUME), ""));
    fakes_settle(&stage, two + 1, 1);
    IS(b, RUNNING);
    assert_int_equal(b.plan->resume_step, 9);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, trio_setup, trio_teardown)
        TEST(drained_node_hands_over_in_a_pause),
        TEST(resume_during_a_handover),
        TEST(node_below_the_minimum_is_the_last_holder),
        TEST(handover_to_a_node_that_dies),
        TEST(handover_takes_no_longer_than_a_drain),
        TEST(each_leaving_node_has_its_own_time),
        TEST(late_leaver_keeps_no_other),
        TEST(newcomer_takes_the_state_of_the_only_holder),
#undef TEST
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
