/* Where the newest checkpoint is: what an operator hears of it, and a run that starts without it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/rendezvous/core/fake_operator.h"

#include <string.h>

/* ---- the answer ---- */

static void is_at_a(int64_t step)
{
    assert_int_equal(run_info.saved_step, step);
    assert_string_equal(reply_saved_node, "a");
    assert_string_equal(reply_saved_host, "gpu7");
}

static void save_names_the_first_node_that_has_it(void **state)
{
    (void)state;
    a.state.host_name = "gpu7";
    b.state.host_name = "gpu8";
    start_trio_at_9();
    goes_on(order(VERB(SAVE), ""));
    assert_string_equal(reply_saved_node, "");
    trio_step_to(10);
    a.ranks[0].checkpoint_step = 10;
    fake_say(&a, &stage);
    b.ranks[0].checkpoint_step = 10; /* the folder is shared */
    fake_say(&b, &stage);
    done(again(VERB(SAVE), ""));
    is_at_a(10);
    stage_restart_with_journal(&stage, 99);
    stage_tick(&stage, 0);
    order(VERB(SHOW), "");
    is_at_a(10);
}

static void stop_at_9(void)
{
    a.state.host_name = "gpu7";
    start_trio_at_9();
    goes_on(order(VERB(STOP), ""));
    fakes_settle(&stage, two, 2);
    stage_step(&stage, (struct dpt_rdzv_event){.kind = DPT_RDZV_EVENT_BROKEN, .conn = a.conn});
    stage_step(&stage, (struct dpt_rdzv_event){.kind = DPT_RDZV_EVENT_BROKEN, .conn = b.conn});
    stage_pass(&stage, 300);
    done(again(VERB(STOP), ""));
}

static void stop_names_the_step_and_the_node(void **state)
{
    (void)state;
    stop_at_9();
    assert_string_equal(reply_text, "run demo is stopped; step 9 is saved");
    assert_int_equal(reply.step, 9);
    is_at_a(9);
}

static void stop_before_the_first_step_names_none(void **state)
{
    (void)state;
    fake_say(&a, &stage);
    goes_on(order(VERB(STOP), ""));
    fake_say(&a, &stage);
    stage_step(&stage, (struct dpt_rdzv_event){.kind = DPT_RDZV_EVENT_BROKEN, .conn = a.conn});
    stage_pass(&stage, 300);
    done(again(VERB(STOP), ""));
    assert_string_equal(reply_text, "run demo is stopped");
    assert_int_equal(reply.step, -1);
}

static void stop_of_a_forgotten_run_names_the_step(void **state)
{
    (void)state;
    Dpt__Control control = DPT__CONTROL__INIT;
    stop_at_9();
    stage_pass(&stage, 20000);
    assert_int_equal(dpt_rdzv_runs(stage.core), 0);
    control.verb = VERB(STOP);
    control.run = "demo";
    control.step = -1;
    done(send_control(&control));
    assert_string_equal(reply_text, "run demo is stopped; step 9 is saved");
    assert_int_equal(reply.step, 9);
}

/* ---- a start without it ---- */

/* Node c starts the run again; its folder has the checkpoint of `step`. */
static void start_c_at(int64_t step)
{
    static struct fake *const only_c[] = {&c};
    stage_pass(&stage, 20000);
    assert_int_equal(dpt_rdzv_runs(stage.core), 0);
    stage.warning[0] = '\0';
    c.ranks[0].checkpoint_step = step;
    fakes_start(&stage, only_c, 1);
    IS(c, RUNNING);
}

static void start_below_the_saved_step_is_a_warning(void **state)
{
    (void)state;
    stop_at_9();
    stage_restart_with_journal(&stage, 99);
    start_c_at(5);
    assert_int_equal(c.plan->resume_step, 5);
    assert_non_null(strstr(stage.warning, "goes on from step 5, below its saved step 9 of node a "
                                          "on host gpu7: no folder here has that checkpoint"));
}

static void start_at_the_saved_step_is_none(void **state)
{
    (void)state;
    stop_at_9();
    start_c_at(9);
    assert_int_equal(c.plan->resume_step, 9);
    assert_string_equal(stage.warning, "");
}

/* The others go on from their memory. */
static void loss_of_the_writer_is_none(void **state)
{
    (void)state;
    trio_start();
    trio_step_to(8);
    a.ranks[0].step_applied = a.ranks[0].checkpoint_step = 9;
    fake_say(&a, &stage);
    fake_dies(&a, &b, &stage);
    stage_pass_speaking(&stage, &two[1], 1, 600);
    stage.warning[0] = '\0';
    fakes_settle(&stage, &two[1], 1);
    IS(b, RUNNING);
    assert_string_equal(stage.warning, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, trio_setup, trio_teardown)
        TEST(save_names_the_first_node_that_has_it),
        TEST(stop_names_the_step_and_the_node),
        TEST(stop_before_the_first_step_names_none),
        TEST(stop_of_a_forgotten_run_names_the_step),
        TEST(start_below_the_saved_step_is_a_warning),
        TEST(start_at_the_saved_step_is_none),
        TEST(loss_of_the_writer_is_none),
#undef TEST
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
