/* A loss in the run's last moments, how long before it was noticed the lost one had spoken, and
 * what a silence says about the network. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/rendezvous/core/trio.h"

#include <string.h>

/* Writer 0 dies while it saves the last checkpoint. The others have said that their part is
 * written, which does not say that the whole is committed: they go through the end again. */
static void finish_with_loss(bool node_dies, bool others_finish_late)
{
    trio_start();
    trio_step_to(3);
    struct fake *writer = fake_place(&a)->rank == 0 ? &a : &b, *other = writer == &a ? &b : &a;
    if (!others_finish_late) {
        fake_phase(other, DPT__RANK_PHASE__RANK_FINISHED, 1);
        fake_say(other, &stage);
        assert_int_equal(stage.view.phase, DPT_RDZV_DRAINING);
    }
    if (node_dies) {
        stage_pass_speaking(&stage, &other, 1, 4600);
        assert_int_equal(stage.view.nodes, 1);
    } else {
        writer->ranks[0].phase = DPT__RANK_PHASE__RANK_DEAD;
        writer->state.crashes = 1;
        writer->state.first_error = "killed";
        fake_say(writer, &stage);
    }
    assert_int_equal(stage.view.phase, DPT_RDZV_PREPARING);
    assert_int_equal(stage.view.generation, 2);
    assert_int_equal(other->phase, DPT__SERVER_PHASE__SERVER_PREPARE);
    fakes_settle(&stage, &other, 1); /* answers from FINISHED, too */
    assert_int_equal(stage.view.phase, DPT_RDZV_RUNNING);
    assert_int_equal(other->plan->resume_step, 3);
    fake_phase(other, DPT__RANK_PHASE__RANK_FINISHED, 1); /* an old word says nothing */
    fake_say(other, &stage);
    assert_int_equal(stage.view.phase, DPT_RDZV_RUNNING);
    fake_phase(other, DPT__RANK_PHASE__RANK_FINISHED, 2);
    fake_say(other, &stage);
    assert_int_equal(other->phase, DPT__SERVER_PHASE__SERVER_DONE);
}

static void test_finish_rank_lost(void **state)
{
    (void)state;
    finish_with_loss(false, false);
}

static void test_finish_node_lost(void **state)
{
    (void)state;
    finish_with_loss(true, false);
}

static void test_finish_lost_before_all(void **state)
{
    (void)state;
    finish_with_loss(false, true);
}

/* A rank that has reported FINISHED may go: its report still counts. */
static void test_finished_then_gone(void **state)
{
    (void)state;
    trio_start();
    trio_step_to(3);
    fake_phase(&a, DPT__RANK_PHASE__RANK_FINISHED, 1);
    fake_say(&a, &stage);
    struct fake *const alone[] = {&b};
    stage_pass_speaking(&stage, alone, 1, 4600);
    assert_int_equal(stage.view.nodes, 1);
    assert_int_equal(stage.view.phase, DPT_RDZV_DRAINING);
    fake_phase(&b, DPT__RANK_PHASE__RANK_FINISHED, 1);
    fake_say(&b, &stage);
    assert_int_equal(b.phase, DPT__SERVER_PHASE__SERVER_DONE);
}

/* The time to notice a loss begins with the last message of the process, not of its agent. */
static void test_detect_rank_lost(void **state)
{
    (void)state;
    trio_start();
    trio_step_to(3);
    stage_pass_speaking(&stage, two, 2, 1000);
    b.ranks[0].phase = DPT__RANK_PHASE__RANK_DEAD;
    b.ranks[0].silent_ms = 1800;
    fake_say(&b, &stage);
    fakes_settle(&stage, two, 1);
    assert_string_equal(a.plan->cause_kind, "rank_lost");
    assert_int_equal(a.plan->detect_ms, 1800);
}

/* The peers notice first; that its agent ends it later is not when it was noticed. */
static void test_detect_comm_error(void **state)
{
    (void)state;
    trio_start();
    trio_step_to(3);
    int32_t frozen = (int32_t)fake_place(&b)->rank;
    b.ranks[0].silent_ms = 1800;
    fake_say(&b, &stage);
    a.ranks[0].failed_generation = 1;
    a.ranks[0].suspect = frozen;
    stage_tick(&stage, 30);
    fake_say(&a, &stage);
    assert_string_equal(stage.view.cause_kind, "comm_error");
    stage_tick(&stage, 70);
    b.ranks[0].phase = DPT__RANK_PHASE__RANK_DEAD;
    b.ranks[0].silent_ms = 1900;
    fake_say(&b, &stage);
    fakes_settle(&stage, two, 1);
    assert_string_equal(a.plan->cause_kind, "rank_lost");
    assert_int_equal(a.plan->detect_ms, 1830);
}

/* Without a suspect the time begins with the member that has been silent longest. */
static void test_detect_unknown(void **state)
{
    (void)state;
    trio_start();
    trio_step_to(3);
    b.ranks[0].silent_ms = 900;
    fake_say(&b, &stage);
    a.ranks[0].failed_generation = 1;
    fake_say(&a, &stage);
    b.ranks[0].silent_ms = 0;
    fakes_settle(&stage, two, 2);
    assert_string_equal(a.plan->cause_kind, "comm_error");
    assert_int_equal(a.plan->detect_ms, 900);
}

/* a speaks until the lease of b ends. Each 200 ms it has completed one step more, until
 * `last_step`. */
static void pass_without_b(int64_t last_step)
{
    struct fake *const alone[] = {&a};
    trio_start();
    a.ranks[0].step_ms_median = b.ranks[0].step_ms_median = 200;
    trio_step_to(3);
    for (int64_t step = 4; step < 4 + 4600 / 200; step++) {
        a.ranks[0].step_applied = step < last_step ? step : last_step;
        stage_pass_speaking(&stage, alone, 1, 200);
    }
    assert_int_equal(stage.view.nodes, 1);
    assert_string_equal(stage.view.cause_kind, "node_lost");
    assert_non_null(strstr(stage.view.text, "lost: silent for 4."));
}

static void test_silent_node_that_trains_is_cut_from_server(void **state)
{
    (void)state;
    pass_without_b(100);
    assert_non_null(strstr(stage.view.text, "s; peers reach it: cut from the server"));
}

/* b may be dead: its last steps were completed shortly after its last message. */
static void test_silent_node_without_steps_may_be_dead(void **state)
{
    (void)state;
    pass_without_b(12);
    assert_null(strstr(stage.view.text, "peers reach it"));
}

int main(void)
{
#define T(test) cmocka_unit_test_setup_teardown(test, trio_setup, trio_teardown)
    const struct CMUnitTest tests[] = {
        T(test_finish_rank_lost),
        T(test_finish_node_lost),
        T(test_finish_lost_before_all),
        T(test_finished_then_gone),
        T(test_detect_rank_lost),
        T(test_detect_comm_error),
        T(test_detect_unknown),
        T(test_silent_node_that_trains_is_cut_from_server),
        T(test_silent_node_without_steps_may_be_dead),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
