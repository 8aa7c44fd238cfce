/* Which messages of a node the server answers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/rendezvous/core/trio.h"

static size_t answers_to(struct fake *fake)
{
    fake_say(fake, &stage);
    return stage.n_sends;
}

enum { PAUSE_MS = 2 * 100 }; /* of an overloaded server, with a timeout of 5 s */

/* While a generation of a server that wants long pauses forms, the next order answers what a node
 * reports within half of a pause. */
static void test_reports_of_a_formation_have_no_answer(void **state)
{
    (void)state;
    trio_start();
    stage_backlog(&stage, 0);
    assert_int_equal(answers_to(&b), 1);
    assert_int_equal(b.heartbeat_ms, PAUSE_MS);
    assert_int_equal(answers_to(&b), 1); /* RUNNING */
    assert_int_equal(answers_to(&b), 1);
    fake_breaks_off(&a, &stage);
    assert_int_equal(stage.view.phase, DPT_RDZV_PREPARING);
    assert_int_equal(stage.n_sends, 2);
    assert_int_equal(answers_to(&b), 0);
    b.conn += 100; /* what was sent over the old connection may be lost */
    assert_int_equal(answers_to(&b), 1);
    assert_int_equal(answers_to(&b), 0);
    stage_tick(&stage, PAUSE_MS / 2);
    assert_int_equal(answers_to(&b), 1);
    assert_int_equal(answers_to(&b), 0);
    b.state.leaving = true; /* it must know whether it has a server */
    assert_int_equal(answers_to(&b), 1);
    assert_int_equal(answers_to(&b), 1);
    b.state.leaving = false;
    fakes_settle(&stage, two, 2);
    assert_int_equal(stage.view.phase, DPT_RDZV_RUNNING);
    assert_int_equal(answers_to(&b), 1);
}

/* A rank that has heard GO reports it; only when all have done so is each message answered. */
static void test_first_reports_of_a_generation_have_no_answer(void **state)
{
    (void)state;
    trio_start();
    fake_breaks_off(&a, &stage);
    stage_backlog(&stage, 0);
    for (int i = 0; stage.view.phase != DPT_RDZV_RUNNING; i++) {
        assert_true(i < 100);
        stage_tick(&stage, 10);
        fake_obey(&a);
        fake_say(&a, &stage);
        fake_obey(&b);
        fake_say(&b, &stage);
    }
    assert_int_equal(stage.n_sends, 2); /* GO */
    fake_obey(&a);
    assert_int_equal(answers_to(&a), 0);
    fake_obey(&b);
    assert_int_equal(answers_to(&b), 1);
    assert_int_equal(answers_to(&a), 1);
}

/* A server of few nodes answers each message. */
static void test_few_nodes_are_always_answered(void **state)
{
    (void)state;
    trio_start();
    fake_breaks_off(&a, &stage);
    assert_int_equal(answers_to(&b), 1);
    assert_int_equal(answers_to(&b), 1);
}

int main(void)
{
#define CASE(function) cmocka_unit_test_setup_teardown(function, trio_setup, trio_teardown)
    const struct CMUnitTest tests[] = {
        CASE(test_reports_of_a_formation_have_no_answer),
        CASE(test_first_reports_of_a_generation_have_no_answer),
        CASE(test_few_nodes_are_always_answered),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
