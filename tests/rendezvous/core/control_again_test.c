/* A run that was stopped and started again before the operator's program asked again. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/rendezvous/core/fake_operator.h"

#include <string.h>

/* A STOP of the run 'demo', repeated with what an earlier reply said. */
static Dpt__ControlOutcome stop_again(int64_t step, uint64_t number)
{
    Dpt__Control control = DPT__CONTROL__INIT;
    control.verb = VERB(STOP);
    control.run = "demo";
    control.step = step;
    control.number = number;
    return send_control(&control);
}

static void start_c_again(void)
{
    const uint64_t incarnation = c.stamp.incarnation, conn = c.conn;
    fake_fini(&c);
    fake_reset(&c, "c");
    c.conn = conn + 100;
    c.stamp.incarnation = incarnation + 1;
}

/* The number of the STOP of a run that is over. */
static uint64_t stop_trio_and_forget(void)
{
    start_trio_at_9();
    goes_on(order(VERB(STOP), ""));
    const uint64_t number = reply.number;
    fakes_settle(&stage, two, 2);
    goes_on(again(VERB(STOP), "")); /* the nodes have not ended yet */
    assert_int_equal(reply.number, number);
    stage_pass(&stage, 20000);
    assert_int_equal(dpt_rdzv_runs(stage.core), 0);
    done(stop_again(0, number));
    return number;
}

/* The new run of the name is not stopped by the repeated command. */
static void stop_is_done_though_the_run_was_started_again(void **state)
{
    (void)state;
    const uint64_t number = stop_trio_and_forget();
    fake_say(&c, &stage);
    assert_int_equal(dpt_rdzv_runs(stage.core), 1);
    done(stop_again(0, number));
    assert_string_equal(reply_text, "run demo was stopped, and was started again since");
    assert_false(run_info.stopping);
    stage_restart_with_journal(&stage, 99);
    done(stop_again(0, number));
    refused(stop_again(0, 0), "it was started again"); /* an operator who keeps no number */
    assert_false(run_info.stopping);
}

/* Neither run has formed a generation, and yet they have two numbers. */
static void stop_before_the_first_generation_has_a_number(void **state)
{
    (void)state;
    uint64_t before = 0;
    for (int i = 0; i < 3; i++) {
        fake_say(&c, &stage);
        assert_int_equal(stage.view.generation, 0);
        if (before != 0)
            done(stop_again(0, before));
        goes_on(order(VERB(STOP), ""));
        assert_true(reply.number > before);
        before = reply.number;
        stage_pass(&stage, 20000);
        assert_int_equal(dpt_rdzv_runs(stage.core), 0);
        start_c_again();
    }
}

/* The run is the same: an operator has taken the stop back. */
static void stop_that_was_taken_back_is_refused(void **state)
{
    (void)state;
    start_trio_at_9();
    goes_on(order(VERB(STOP), ""));
    const uint64_t number = reply.number;
    done(order(VERB(RESUME), ""));
    fakes_settle(&stage, two, 2);
    refused(stop_again(0, number), "an operator has resumed it");
    IS(a, RUNNING);
}

/* The run has ended by an error, and was started again. */
static void stop_of_a_run_that_failed_is_refused(void **state)
{
    (void)state;
    a.spec.min_nodes = b.spec.min_nodes = 2;
    start_trio_at_9();
    goes_on(order(VERB(STOP), ""));
    const uint64_t number = reply.number;
    a.state.fatal = true;
    a.state.first_error = "rank process 0: shard 'x.bin' is truncated";
    fake_say(&a, &stage);
    IS(a, FAILED);
    stage_pass(&stage, 60000);
    assert_int_equal(dpt_rdzv_runs(stage.core), 0);
    refused(stop_again(0, number), "no run 'demo' is here");
    fake_say(&c, &stage);
    refused(stop_again(0, number), "ended before it was stopped");
}

/* The server was suspended, and reads all copies at once: a node joins between two of them. */
static void copy_of_a_refused_question_is_refused(void **state)
{
    (void)state;
    start_trio_at_9();
    refused(order(VERB(EVICT), "c"), "no run here has a node 'c'");
    fake_say(&c, &stage);
    assert_true(c.counter_seen > 0);
    refused(copy(), "no run here has a node 'c'");
    fake_say(&c, &stage);
    assert_true(c.counter_seen > 0);
    done(order(VERB(EVICT), "c"));
    IS(c, EXPELLED);
    done(copy());
}

/* The answer is lost with its connection: no copy of a STOP ends the run without its steps. */
static void copy_of_a_refused_stop_gives_up_no_step(void **state)
{
    (void)state;
    start_trio_at_9();
    done(order(VERB(EVICT), "a"));
    done(order(VERB(EVICT), "b"));
    refused(order(VERB(STOP), ""), "no node here holds it");
    refused(copy(), "no node here holds it");
    refused(copy(), "no node here holds it");
    assert_int_equal(stage.view.phase, DPT_RDZV_WAITING);
    done(order(VERB(STOP), ""));
    assert_int_equal(stage.view.phase, DPT_RDZV_DONE);
}

/* The first message is answered; then both nodes are cut off with step 9, while the server hears
 * another run, of node c. */
static void stop_and_lose_the_holders(void)
{
    static struct fake *const beside[] = {&c};
    start_trio_at_9();
    c.stamp.run = "other";
    fake_say(&c, &stage);
    goes_on(stop_again(-1, 0));
    stage_pass_speaking(&stage, beside, 1, 20000);
    assert_int_equal(stage.view.nodes, 0);
}

/* The first message was on its way for long: the operator's program has asked again meanwhile, was
 * refused and has ended. */
static void late_copy_of_a_stop_is_no_second_one(void **state)
{
    (void)state;
    stop_and_lose_the_holders();
    refused(stop_again(0, reply.number), "no node here holds it");
    refused(copy_before_last(), "no node here holds it");
    assert_int_equal(stage.view.phase, DPT_RDZV_WAITING);
    done(stop_again(-1, 0));
}

/* The holders were lost after the first message, and its answer did not arrive: the operator has
 * not heard of it, so the copy is refused. */
static void copy_of_a_stop_is_no_second_one(void **state)
{
    (void)state;
    stop_and_lose_the_holders();
    refused(copy(), "no node here holds it");
    assert_int_equal(stage.view.phase, DPT_RDZV_WAITING);
    done(stop_again(-1, 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, trio_setup, trio_teardown)
        TEST(stop_is_done_though_the_run_was_started_again),
        TEST(stop_before_the_first_generation_has_a_number),
        TEST(stop_that_was_taken_back_is_refused),
        TEST(stop_of_a_run_that_failed_is_refused),
        TEST(copy_of_a_refused_question_is_refused),
        TEST(copy_of_a_refused_stop_gives_up_no_step),
        TEST(copy_of_a_stop_is_no_second_one),
        TEST(late_copy_of_a_stop_is_no_second_one),
#undef TEST
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
