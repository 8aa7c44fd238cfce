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

/* While a generation forms, the next order answers what a node reports within a heartbeat of the
 * last order. */
static void test_reports_of_a_formation_have_no_answer(void **state)
{
    (void)state;
    trio_start();
    assert_int_equal(answers_to(&b), 1); /* RUNNING */
    assert_int_equal(answers_to(&b), 1);
    fake_breaks_off(&a, &stage);
    assert_int_equal(stage.view.phase, DPT_RDZV_PREPARING);
    assert_int_equal(stage.n_sends, 2);
    assert_int_equal(answers_to(&b), 0);
    b.conn += 100; /* what was sent over the old connection may be lost */
    assert_int_equal(answers_to(&b), 1);
    assert_int_equal(answers_to(&b), 0);
    stage_tick(&stage, dpt_timing_from(5000, 0).heartbeat_ms);
    assert_int_equal(answers_to(&b), 1);
    assert_int_equal(answers_to(&b), 0);
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

int main(void)
{
#define CASE(function) cmocka_unit_test_setup_teardown(function, trio_setup, trio_teardown)
    const struct CMUnitTest tests[] = {
        CASE(test_reports_of_a_formation_have_no_answer),
        CASE(test_first_reports_of_a_generation_have_no_answer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
