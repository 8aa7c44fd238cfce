/* How long a run waits before it forms, and how long for its first step. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/rendezvous/core/trio.h"

#include <string.h>

enum { WAIT_MS = 3000, HOUR_MS = 3600 * 1000 };

static void wait_at_most(uint32_t wait_ms)
{
    for (int i = 0; i < 2; i++) {
        two[i]->spec.min_nodes = 2;
        two[i]->spec.wait_ms = wait_ms;
    }
}

/* Obeys and speaks each heartbeat while time passes, as an agent does. */
static void live(struct fake *fake, int64_t ms)
{
    const int64_t until_ms = stage.now_ms + ms;
    while (stage.now_ms < until_ms && stage.view.phase != DPT_RDZV_FAILED) {
        fake_obey(fake);
        fake_say(fake, &stage);
        stage_tick(&stage, 50);
    }
}

static void test_too_few_come(void **state)
{
    (void)state;
    wait_at_most(WAIT_MS);
    fake_say(&a, &stage);
    live(&a, WAIT_MS - 100);
    assert_int_equal(stage.view.phase, DPT_RDZV_WAITING);
    live(&a, 200);
    assert_int_equal(a.phase, DPT__SERVER_PHASE__SERVER_FAILED);
    assert_string_equal(a.text,
                        "it waited 3 s (cluster.wait_s) for 2 nodes (cluster.nnodes), and 1 of the "
                        "1 here was ready: start more workers, or change one of these keys");
}

static void test_no_limit(void **state)
{
    (void)state;
    wait_at_most(0);
    fake_say(&a, &stage);
    live(&a, HOUR_MS);
    assert_int_equal(stage.view.phase, DPT_RDZV_WAITING);
}

/* A server that stood still has not waited. */
static void test_own_gap_is_no_wait(void **state)
{
    (void)state;
    wait_at_most(WAIT_MS);
    fake_say(&a, &stage);
    stage_tick(&stage, WAIT_MS + 1000);
    fake_say(&a, &stage);
    assert_int_equal(stage.view.phase, DPT_RDZV_WAITING);
}

/* Each wait counts for itself. */
static void test_nodes_come_in_time(void **state)
{
    (void)state;
    wait_at_most(WAIT_MS);
    fake_say(&a, &stage);
    live(&a, WAIT_MS - 500);
    fakes_start(&stage, two, 2);
    fake_dies(&b, &a, &stage);
    live(&a, WAIT_MS - 500);
    assert_int_equal(stage.view.phase, DPT_RDZV_WAITING);
    live(&a, 2000);
    assert_int_equal(stage.view.phase, DPT_RDZV_FAILED);
}

/* A server that has been started again has waited while it had not adopted the generation. */
static void test_adoption_ends_the_wait(void **state)
{
    (void)state;
    wait_at_most(WAIT_MS);
    trio_start();
    trio_restart_server();
    fake_say(&a, &stage);
    assert_int_equal(stage.view.phase, DPT_RDZV_WAITING);
    fake_say(&b, &stage);
    assert_int_equal(stage.view.phase, DPT_RDZV_RUNNING);
    stage_pass_speaking(&stage, two, 2, 2 * WAIT_MS);
    fake_dies(&b, &a, &stage);
    live(&a, WAIT_MS - 500);
    assert_int_equal(stage.view.phase, DPT_RDZV_WAITING);
    live(&a, 2000);
    assert_int_equal(stage.view.phase, DPT_RDZV_FAILED);
}

static void lose_b_at_step_9(void)
{
    fakes_start(&stage, two, 2);
    trio_step_to(9);
    fake_dies(&b, &a, &stage);
    live(&a, 1000);
    assert_int_equal(stage.view.phase, DPT_RDZV_WAITING);
}

/* The state of the nodes that are here goes into a checkpoint before the run ends. */
static void test_what_is_held_is_saved(void **state)
{
    (void)state;
    wait_at_most(WAIT_MS);
    lose_b_at_step_9();
    live(&a, 2 * WAIT_MS);
    assert_int_equal(stage.view.phase, DPT_RDZV_FAILED);
    assert_true(a.plan->final_save);
    assert_int_equal(a.ranks[0].checkpoint_step, 9);
    assert_null(strstr(a.text, "no checkpoint"));
}

/* A node reports whether it could save alone the state that they could not save together. */
static void test_what_cannot_be_saved(void **state)
{
    (void)state;
    wait_at_most(WAIT_MS);
    a.cannot_save = true;
    lose_b_at_step_9();
    live(&a, 2 * WAIT_MS);
    assert_int_equal(stage.view.phase, DPT_RDZV_FAILED);
    assert_true(a.plan->final_save);
    assert_non_null(strstr(a.text, "cluster.wait_s"));
    assert_null(strstr(a.text, "no checkpoint"));
}

/* Every save fails: it is tried again for the drain time, and then the run ends. */
static void test_saves_that_fail(void **state)
{
    (void)state;
    wait_at_most(WAIT_MS);
    lose_b_at_step_9();
    live(&a, WAIT_MS - 1500);
    assert_int_equal(stage.view.phase, DPT_RDZV_WAITING);
    const int64_t start_ms = stage.now_ms;
    int saves = 0;
    while (stage.view.phase != DPT_RDZV_FAILED && stage.now_ms - start_ms < 60000) {
        if (a.phase == DPT__SERVER_PHASE__SERVER_PLAN) {
            a.ranks[0].failed_generation = a.generation;
            saves++;
        } else {
            fake_obey(&a);
        }
        stage_pass_speaking(&stage, two, 1, 100);
    }
    assert_int_equal(stage.view.phase, DPT_RDZV_FAILED);
    assert_non_null(strstr(a.text, "cluster.wait_s"));
    assert_true(saves > 1);
    assert_in_range(stage.now_ms - start_ms, 8000, 12000);
}

/* The lease of nodes of an earlier server ends after the wait and the drain time. */
static void test_late_save(void **state)
{
    (void)state;
    wait_at_most(1000);
    a.spec.drain_ms = b.spec.drain_ms = DPT_PROTO_DRAIN_MS_MIN;
    trio_start();
    trio_step_to(9);
    trio_restart_server();
    live(&a, 10000);
    assert_int_equal(stage.view.phase, DPT_RDZV_FAILED);
    assert_int_equal(a.ranks[0].checkpoint_step, 9);
}

/* So does the lease of a node that falls silent before the wait ends. */
static void test_late_save_beside_a_silent_node(void **state)
{
    (void)state;
    struct fake *const three[] = {&a, &b, &c};
    for (int i = 0; i < 3; i++) {
        three[i]->spec.min_nodes = 3;
        three[i]->spec.wait_ms = WAIT_MS;
        three[i]->spec.drain_ms = DPT_PROTO_DRAIN_MS_MIN;
    }
    fakes_start(&stage, three, 3);
    trio_step_to(9);
    fake_dies(&c, &a, &stage);
    stage_pass_speaking(&stage, two, 2, 300);
    fakes_settle(&stage, two, 2);
    stage_pass_speaking(&stage, two, 2, WAIT_MS - 1000);
    assert_int_equal(stage.view.phase, DPT_RDZV_WAITING);
    live(&a, 10000);
    assert_int_equal(stage.view.phase, DPT_RDZV_FAILED);
    assert_int_equal(stage.view.nodes, 1);
    assert_int_equal(a.ranks[0].checkpoint_step, 9);
}

static void test_first_step_never_comes(void **state)
{
    (void)state;
    a.spec.first_step_ms = b.spec.first_step_ms = 20 * 1000;
    fakes_start(&stage, two, 2);
    stage_pass_speaking(&stage, two, 2, 19 * 1000);
    assert_int_equal(stage.view.phase, DPT_RDZV_RUNNING);
    stage_pass_speaking(&stage, two, 2, 1500);
    assert_int_equal(stage.view.phase, DPT_RDZV_PREPARING);
    assert_string_equal(stage.view.cause_kind, "stalled");
    assert_non_null(strstr(stage.view.text, "no first step for 20."));
    assert_non_null(strstr(stage.view.text, "cluster.first_step_s"));
    assert_false(a.soft);
}

static void test_first_step_without_limit(void **state)
{
    (void)state;
    fakes_start(&stage, two, 2);
    stage_pass_speaking(&stage, two, 2, HOUR_MS);
    assert_int_equal(stage.view.phase, DPT_RDZV_RUNNING);
    assert_int_equal(stage.view.generation, 1);
}

/* Nodes of an earlier server have a lease to come back, and waiting nodes receive the reason. */
static void test_young_server_says_why(void **state)
{
    (void)state;
    stage_restart(&stage, 78);
    stage_tick(&stage, 10);
    fake_say(&a, &stage);
    assert_int_equal(a.phase, DPT__SERVER_PHASE__SERVER_SETTLING);
    assert_in_range(a.last_call_ms, 4000, 4500);
    assert_non_null(strstr(a.text, "the server has just been started"));
    assert_non_null(strstr(a.text, "--fresh"));
    live(&a, 4000);
    assert_int_equal(stage.view.phase, DPT_RDZV_SETTLING);
}

/* Where there was no earlier server the last call is all. */
static void test_fresh_server(void **state)
{
    (void)state;
    stage.fresh = true;
    stage_restart(&stage, 78);
    stage_tick(&stage, 10);
    fake_say(&a, &stage);
    assert_int_equal(a.phase, DPT__SERVER_PHASE__SERVER_SETTLING);
    assert_in_range(a.last_call_ms, 900, 1000);
    assert_string_equal(a.text, "");
    live(&a, 1100);
    assert_int_equal(a.generation, 1);
}

/* Nor does it wait for others that train when a node cannot. */
static void test_fatal_on_a_fresh_server(void **state)
{
    (void)state;
    stage.fresh = true;
    stage_restart(&stage, 78);
    a.state.fatal = true;
    a.state.first_error = "rank process 0: no such device";
    fake_say(&a, &stage);
    assert_int_equal(a.phase, DPT__SERVER_PHASE__SERVER_FAILED);
}

int main(void)
{
#define T(test) cmocka_unit_test_setup_teardown(test, trio_setup, trio_teardown)
    const struct CMUnitTest tests[] = {
        T(test_too_few_come),
        T(test_no_limit),
        T(test_own_gap_is_no_wait),
        T(test_nodes_come_in_time),
        T(test_adoption_ends_the_wait),
        T(test_what_is_held_is_saved),
        T(test_what_cannot_be_saved),
        T(test_saves_that_fail),
        T(test_late_save),
        T(test_late_save_beside_a_silent_node),
        T(test_first_step_never_comes),
        T(test_first_step_without_limit),
        T(test_young_server_says_why),
        T(test_fresh_server),
        T(test_fatal_on_a_fresh_server),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
