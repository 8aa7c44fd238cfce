/* Commands of an operator about a run: pause, resume, save, stop. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/rendezvous/core/fake_operator.h"

static void pause_all(void)
{
    goes_on(order(VERB(PAUSE), ""));
    IS(a, PREPARE);
    assert_true(a.soft);
    fakes_settle(&stage, two, 2);
    done(again(VERB(PAUSE), ""));
}

/* ---- pause, resume ---- */

static void pause_stops_at_a_boundary_and_resume_goes_on(void **state)
{
    (void)state;
    start_trio_at_9();
    pause_all();
    IS(a, WAITING);
    IS(b, WAITING);
    assert_true(run_info.paused && run_info.held);
    stage_pass_speaking(&stage, two, 2, 600000); /* no lease ends, nothing is a stall */
    IS(a, WAITING);
    assert_int_equal(stage.view.nodes, 2);
    assert_int_equal(stage.view.restarts_left, 100);
    done(order(VERB(RESUME), ""));
    fakes_settle(&stage, two, 2);
    IS(a, RUNNING);
    assert_int_equal(a.plan->resume_step, 9);
    assert_string_equal(a.plan->cause, "an operator resumes the run");
    assert_int_equal(stage.records[DPT_RDZV_RECORD_PAUSED], 2);
}

/* The time of a pause is not that of a wait for nodes. */
static void pause_is_no_wait_for_nodes(void **state)
{
    (void)state;
    a.spec.wait_ms = b.spec.wait_ms = 20000;
    start_trio_at_9();
    pause_all();
    stage_pass_speaking(&stage, two, 2, 60000);
    IS(a, WAITING);
    assert_false(stage.view.phase == DPT_RDZV_FAILED);
}

static void pause_before_the_first_generation(void **state)
{
    (void)state;
    fake_say(&a, &stage);
    done(order(VERB(PAUSE), ""));
    fake_say(&b, &stage);
    stage_pass_speaking(&stage, two, 2, 20000);
    IS(a, WAITING);
    assert_int_equal(stage.view.generation, 0);
    done(order(VERB(RESUME), ""));
    stage_pass_speaking(&stage, two, 2, 1200);
    fakes_settle(&stage, two, 2);
    IS(a, RUNNING);
}

/* Another operator resumes the run while this one still repeats PAUSE. */
static void repeated_pause_does_not_pause_again(void **state)
{
    (void)state;
    start_trio_at_9();
    goes_on(order(VERB(PAUSE), ""));
    const int64_t step = reply.step;
    done(order(VERB(RESUME), ""));
    reply.step = step;
    refused(again(VERB(PAUSE), ""), "goes on: an operator has resumed it");
    fakes_settle(&stage, two, 2);
    IS(a, RUNNING);
}

static void rank_lost_in_a_pause_comes_back(void **state)
{
    (void)state;
    start_trio_at_9();
    pause_all();
    b.ranks[0].phase = DPT__RANK_PHASE__RANK_DEAD;
    fake_say(&b, &stage);
    IS(a, WAITING);
    b.ranks[0].spawn = 2;
    b.ranks[0].phase = DPT__RANK_PHASE__RANK_STANDBY;
    b.ranks[0].step_applied = -1;
    fakes_settle(&stage, two, 2);
    IS(a, WAITING);
    done(order(VERB(RESUME), ""));
    fakes_settle(&stage, two, 2);
    IS(b, RUNNING);
    assert_int_equal(b.plan->resume_step, 9);
}

static void restarted_server_keeps_the_pause(void **state)
{
    (void)state;
    start_trio_at_9();
    goes_on(order(VERB(PAUSE), "")); /* durable, and no rank has stopped */
    stage_restart_with_journal(&stage, 99);
    stage_tick(&stage, 0);
    goes_on(again(VERB(PAUSE), "")); /* nobody is back, so ranks may train */
    assert_false(run_info.held);
    a.conn += 100;
    b.conn += 100;
    a.ranks[0].plan_rank = (int32_t)fake_place(&a)->rank;
    b.ranks[0].plan_rank = (int32_t)fake_place(&b)->rank;
    fakes_settle(&stage, two, 2);
    IS(a, WAITING);
    done(again(VERB(PAUSE), ""));
    assert_true(run_info.held);
    done(order(VERB(RESUME), ""));
    fakes_settle(&stage, two, 2);
    IS(a, RUNNING);
    assert_int_equal(a.plan->resume_step, 9);
}

/* The ranks train until they hear of it. */
static void pause_before_the_members_are_back(void **state)
{
    (void)state;
    start_trio_at_9();
    stage_restart_with_journal(&stage, 99);
    stage_tick(&stage, 0);
    goes_on(order(VERB(PAUSE), ""));
    assert_true(run_info.paused && !run_info.held);
    a.conn += 100;
    b.conn += 100;
    a.ranks[0].plan_rank = (int32_t)fake_place(&a)->rank;
    b.ranks[0].plan_rank = (int32_t)fake_place(&b)->rank;
    fakes_settle(&stage, two, 2);
    IS(a, WAITING);
    done(again(VERB(PAUSE), ""));
    assert_true(run_info.held);
}

static void node_that_leaves_in_a_pause_is_the_cause(void **state)
{
    (void)state;
    start_trio_at_9();
    pause_all();
    b.state.leaving = true;
    fakes_settle(&stage, two, 2);
    IS(b, RELEASED);
    assert_true(b.plan->final_save);
    assert_string_equal(b.plan->cause, "a node leaves with steps that no checkpoint has");
}

/* ---- save ---- */

static void save_is_done_when_committed(void **state)
{
    (void)state;
    start_trio_at_9();
    goes_on(order(VERB(SAVE), ""));
    assert_int_equal(reply.step, 10);
    assert_int_equal(a.save_from, 10);
    a.ranks[0].checkpoint_step = 9; /* an older one is not enough */
    fake_say(&a, &stage);
    goes_on(again(VERB(SAVE), ""));
    a.ranks[0].checkpoint_step = 12;
    fake_say(&a, &stage);
    assert_int_equal(a.save_from, 0);
    done(again(VERB(SAVE), ""));
    assert_int_equal(run_info.saved_step, 12);
    IS(a, RUNNING); /* without a new generation */
    assert_int_equal(stage.view.generation, 1);
}

static void request_for_a_checkpoint_ends_if_nobody_repeats_it(void **state)
{
    (void)state;
    start_trio_at_9();
    goes_on(order(VERB(SAVE), ""));
    stage_pass_speaking(&stage, two, 2, 11000);
    assert_int_equal(a.save_from, 0);
}

/* The ranks have quiesced: they make a final save, and wait again. */
static void save_in_a_pause(void **state)
{
    (void)state;
    start_trio_at_9();
    pause_all();
    goes_on(order(VERB(SAVE), ""));
    assert_int_equal(reply.step, 9);
    fakes_settle(&stage, two, 2);
    assert_true(a.plan->final_save);
    done(again(VERB(SAVE), ""));
    IS(a, WAITING);
    done(again(VERB(SAVE), ""));
    done(order(VERB(RESUME), ""));
    fakes_settle(&stage, two, 2);
    IS(a, RUNNING);
    assert_false(a.plan->final_save);
}

static void save_without_a_folder_is_refused(void **state)
{
    (void)state;
    a.state.checkpoint_dir_id = b.state.checkpoint_dir_id = "";
    start_trio_at_9();
    refused(order(VERB(SAVE), ""), "has no checkpoint.dir");
    refused(order(VERB(STOP), ""), "has no checkpoint.dir");
    IS(a, RUNNING);
}

static void save_of_a_failed_run_is_refused(void **state)
{
    (void)state;
    a.spec.max_restarts = b.spec.max_restarts = 0;
    start_trio_at_9();
    a.ranks[0].checkpoint_step = 5;
    fake_say(&a, &stage);
    goes_on(order(VERB(SAVE), ""));
    assert_int_equal(reply.step, 10);
    b.state.crashes = 1;
    fake_say(&b, &stage);
    assert_int_equal(stage.view.phase, DPT_RDZV_FAILED);
    refused(again(VERB(SAVE), ""), "its newest checkpoint has step 5");
    refused(order(VERB(SAVE), ""), "its newest checkpoint has step 5");
    reply.step = 5; /* the checkpoint came before the failure */
    done(again(VERB(SAVE), ""));
}

/* The server does not know how old the newest checkpoint is. */
static void save_after_a_restart_waits_for_the_step(void **state)
{
    (void)state;
    start_trio_at_9();
    a.ranks[0].checkpoint_step = 5;
    fake_say(&a, &stage);
    stage_restart_with_journal(&stage, 99);
    stage_tick(&stage, 0);
    goes_on(order(VERB(SAVE), ""));
    assert_int_equal(reply.step, -1);
    a.conn += 100;
    b.conn += 100;
    a.ranks[0].plan_rank = (int32_t)fake_place(&a)->rank;
    b.ranks[0].plan_rank = (int32_t)fake_place(&b)->rank;
    fakes_settle(&stage, two, 2);
    goes_on(again(VERB(SAVE), ""));
    assert_int_equal(reply.step, 10);
}

/* ---- stop ---- */

static void stop_saves_and_ends(void **state)
{
    (void)state;
    start_trio_at_9();
    goes_on(order(VERB(STOP), ""));
    fakes_settle(&stage, two, 2);
    IS(a, DONE);
    IS(b, DONE);
    assert_true(a.last_holder); /* it shall report steps that nobody has saved */
    assert_int_equal(stage.records[DPT_RDZV_RECORD_SAVED], 1);
    goes_on(again(VERB(STOP), ""));
    /* A worker that is started now belongs to the next run. */
    fake_say(&c, &stage);
    IS(c, WAITING);
    stage_step(&stage, (struct dpt_rdzv_event){.kind = DPT_RDZV_EVENT_BROKEN, .conn = a.conn});
    stage_step(&stage, (struct dpt_rdzv_event){.kind = DPT_RDZV_EVENT_BROKEN, .conn = b.conn});
    stage_pass(&stage, 300);
    done(again(VERB(STOP), ""));
    stage_pass(&stage, 300);
    assert_int_equal(dpt_rdzv_runs(stage.core), 0);
    refused(order(VERB(PAUSE), ""), "the server has no run");
    fake_say(&c, &stage);
    assert_int_equal(dpt_rdzv_runs(stage.core), 1);
    assert_true(c.counter_seen > 0);
}

static void stop_of_a_forgotten_run_is_done(void **state)
{
    (void)state;
    Dpt__Control control = DPT__CONTROL__INIT;
    start_trio_at_9();
    goes_on(order(VERB(STOP), ""));
    fakes_settle(&stage, two, 2);
    stage_pass(&stage, 20000);
    assert_int_equal(dpt_rdzv_runs(stage.core), 0);
    control.verb = VERB(STOP);
    control.run = "demo";
    done(send_control(&control));
    stage_restart_with_journal(&stage, 99);
    stage_tick(&stage, 0);
    done(send_control(&control));
    control.run = "other";
    refused(send_control(&control), "no run 'other' is here");
}

/* A node that was away hears that its steps are saved, so it does not report them as lost. */
static void late_node_of_a_forgotten_stop_hears_what_is_saved(void **state)
{
    (void)state;
    start_trio_at_9();
    goes_on(order(VERB(STOP), ""));
    fakes_settle(&stage, two, 2);
    stage_pass(&stage, 20000);
    assert_int_equal(dpt_rdzv_runs(stage.core), 0);
    for (int i = 0; i < 2; i++) {
        b.saved_step = 0;
        b.conn += 100;
        fake_say(&b, &stage);
        IS(b, DONE);
        assert_true(b.last_holder);
        assert_int_equal(b.saved_step, 9);
        stage_restart_with_journal(&stage, 99);
        stage_tick(&stage, 0);
    }
}

static void stop_waits_for_nodes_after_a_restart(void **state)
{
    (void)state;
    Dpt__Control control = DPT__CONTROL__INIT;
    control.verb = VERB(STOP);
    control.run = "demo";
    start_trio_at_9();
    goes_on(order(VERB(STOP), ""));
    fakes_settle(&stage, two, 2);
    IS(a, DONE);
    stage_restart_with_journal(&stage, 99);
    stage_tick(&stage, 0);
    goes_on(send_control(&control));
    stage_pass(&stage, 20000);
    done(send_control(&control));
}

static void stop_that_cannot_save_holds_the_run(void **state)
{
    (void)state;
    a.cannot_save = b.cannot_save = true;
    start_trio_at_9();
    goes_on(order(VERB(STOP), ""));
    fakes_settle(&stage, two, 2);
    IS(a, WAITING);
    refused(again(VERB(STOP), ""), "could not be saved");
    stage_pass_speaking(&stage, two, 2, 60000);
    IS(a, WAITING);
    a.cannot_save = b.cannot_save = false;
    goes_on(order(VERB(STOP), ""));
    fakes_settle(&stage, two, 2);
    IS(a, DONE);
}

/* Both nodes are cut off with step 9: the server hears another run alone, of node c. */
static void cut_off_both(void)
{
    static struct fake *const beside[] = {&c};
    start_trio_at_9();
    c.stamp.run = "other";
    fake_say(&c, &stage);
    stage_pass_speaking(&stage, beside, 1, 10000);
    assert_int_equal(stage.view.nodes, 0);
}

static Dpt__ControlOutcome stop_demo(int64_t step)
{
    Dpt__Control control = DPT__CONTROL__INIT;
    control.verb = VERB(STOP);
    control.run = "demo";
    control.step = step;
    return send_control(&control);
}

/* The run is held, and ends when a holder is back. */
static void stop_waits_for_holders_that_are_cut_off(void **state)
{
    (void)state;
    cut_off_both();
    refused(stop_demo(-1), "step 9 is not saved, and no node here holds it");
    refused(stop_demo(0), "step 9 is not saved");
    assert_int_equal(stage.view.phase, DPT_RDZV_WAITING);
    a.conn = 3000;
    for (int i = 0; i < 10; i++) { /* b may hold parts that a lacks: it is waited for */
        fakes_settle(&stage, two, 1);
        stage_pass_speaking(&stage, two, 1, 1000);
    }
    IS(a, DONE);
    assert_int_equal(a.ranks[0].checkpoint_step, 9);
    assert_int_equal(a.saved_step, 9);
}

/* The holders do not come back: the same command again ends the run, and says what is lost. */
static void second_stop_ends_without_the_lost_steps(void **state)
{
    (void)state;
    cut_off_both();
    refused(stop_demo(-1), "Stop it again");
    done(stop_demo(-1));
    assert_string_equal(reply_text, "run demo is stopped; step 9 is not saved");
    done(stop_demo(0));
}

static void resume_takes_a_stop_back(void **state)
{
    (void)state;
    a.cannot_save = b.cannot_save = true;
    start_trio_at_9();
    goes_on(order(VERB(STOP), ""));
    refused(order(VERB(PAUSE), ""), "is being stopped");
    fakes_settle(&stage, two, 2);
    done(order(VERB(RESUME), ""));
    fakes_settle(&stage, two, 2);
    IS(a, RUNNING);
    assert_int_equal(a.plan->resume_step, 9);
}

static void restarted_server_goes_on_with_the_stop(void **state)
{
    (void)state;
    start_trio_at_9();
    goes_on(order(VERB(STOP), ""));
    fake_obey(&a);
    fake_say(&a, &stage);
    stage_restart_with_journal(&stage, 99);
    stage_tick(&stage, 0);
    a.conn += 100;
    b.conn += 100;
    fakes_settle(&stage, two, 2);
    IS(a, DONE);
    IS(b, DONE);
    assert_int_equal(a.ranks[0].checkpoint_step, 9);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, trio_setup, trio_teardown)
        TEST(pause_stops_at_a_boundary_and_resume_goes_on),
        TEST(pause_is_no_wait_for_nodes),
        TEST(pause_before_the_first_generation),
        TEST(repeated_pause_does_not_pause_again),
        TEST(rank_lost_in_a_pause_comes_back),
        TEST(restarted_server_keeps_the_pause),
        TEST(pause_before_the_members_are_back),
        TEST(node_that_leaves_in_a_pause_is_the_cause),
        TEST(save_is_done_when_committed),
        TEST(request_for_a_checkpoint_ends_if_nobody_repeats_it),
        TEST(save_in_a_pause),
        TEST(save_without_a_folder_is_refused),
        TEST(save_of_a_failed_run_is_refused),
        TEST(save_after_a_restart_waits_for_the_step),
        TEST(stop_saves_and_ends),
        TEST(stop_of_a_forgotten_run_is_done),
        TEST(late_node_of_a_forgotten_stop_hears_what_is_saved),
        TEST(stop_waits_for_nodes_after_a_restart),
        TEST(stop_that_cannot_save_holds_the_run),
        TEST(stop_waits_for_holders_that_are_cut_off),
        TEST(second_stop_ends_without_the_lost_steps),
        TEST(resume_takes_a_stop_back),
        TEST(restarted_server_goes_on_with_the_stop),
#undef TEST
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
