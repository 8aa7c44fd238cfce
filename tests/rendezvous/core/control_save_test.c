/* A checkpoint that an operator wants and a rank cannot save: the operator hears the reason. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/rendezvous/core/fake_operator.h"

#include <string.h>

/* The rank of the fake reports that it could not save this step in its present generation. */
static void cannot_save(struct fake *fake, int64_t step, const char *why)
{
    Dpt__RankState *rank = &fake->ranks[0];
    rank->plan_rank = (int32_t)fake_place(fake)->rank;
    rank->unsaved_generation = fake->plan->generation;
    rank->unsaved_step = step;
    rank->unsaved_why = (char *)why;
    fake_say(fake, &stage);
}

static void pause_all(void)
{
    goes_on(order(VERB(PAUSE), ""));
    fakes_settle(&stage, two, 2);
    done(again(VERB(PAUSE), ""));
}

static void failed_save_ends_the_command_with_the_reason(void **state)
{
    (void)state;
    b.state.host_name = "gpu7";
    start_trio_at_9();
    goes_on(order(VERB(SAVE), ""));
    trio_step_to(10);
    cannot_save(&b, 10, "write '/c/x': No space left on device");
    const uint64_t number = reply.number;
    refused(again(VERB(SAVE), ""), "run demo could not save step 10, and goes on as before: rank 1 "
                                   "(node b, host gpu7): write '/c/x': No space left on device");
    fake_say(&a, &stage);
    assert_int_equal(a.save_from, 0); /* the ranks do not try again */
    IS(a, RUNNING);
    assert_int_equal(stage.view.generation, 1);
    reply.step = 10; /* the answer was lost */
    reply.number = number;
    refused(again(VERB(SAVE), ""), "No space left on device");
}

/* The first reason is the cause: another writer has only waited for the part of the first one. */
static void first_of_two_reasons_is_told(void **state)
{
    (void)state;
    start_trio_at_9();
    goes_on(order(VERB(SAVE), ""));
    trio_step_to(10);
    cannot_save(&b, 10, "a full disk");
    cannot_save(&a, 10, "writer 1 of 2 has not reported its part in time");
    refused(again(VERB(SAVE), ""), "rank 1 (node b): a full disk");
}

static void later_checkpoint_is_done_in_spite_of_a_failure(void **state)
{
    (void)state;
    start_trio_at_9();
    goes_on(order(VERB(SAVE), ""));
    trio_step_to(12);
    cannot_save(&b, 10, "a full disk");
    a.ranks[0].checkpoint_step = 12; /* of checkpoint.every_steps */
    fake_say(&a, &stage);
    done(again(VERB(SAVE), ""));
}

/* Neither a failure at an earlier step, nor one of an earlier generation after a roll back. */
static void earlier_failure_does_not_end_a_command(void **state)
{
    (void)state;
    start_trio_at_9();
    cannot_save(&a, 9, "a full disk");
    goes_on(order(VERB(SAVE), ""));
    assert_int_equal(reply.step, 10);
    goes_on(again(VERB(SAVE), ""));
    trio_step_to(40);
    cannot_save(&a, 40, "a full disk");
    b.ranks[0].phase = DPT__RANK_PHASE__RANK_DEAD;
    a.ranks[0].step_applied = 5;
    fake_say(&b, &stage);
    fakes_settle(&stage, two, 1);
    b.ranks[0].spawn = 2;
    b.ranks[0].phase = DPT__RANK_PHASE__RANK_STANDBY;
    b.ranks[0].step_applied = -1;
    fakes_settle(&stage, two, 2);
    IS(a, RUNNING);
    assert_int_equal(a.ranks[0].unsaved_step, 40);
    goes_on(order(VERB(SAVE), ""));
    assert_int_equal(reply.step, 6);
    goes_on(again(VERB(SAVE), ""));
    trio_step_to(6);
    cannot_save(&a, 6, "a full disk still");
    refused(again(VERB(SAVE), ""), "could not save step 6, and goes on as before: rank 0 (node a): "
                                   "a full disk still");
}

/* In a pause the ranks make a final save. The same step is tried again by a new command. */
static void failed_save_in_a_pause(void **state)
{
    (void)state;
    a.cannot_save = b.cannot_save = true;
    start_trio_at_9();
    pause_all();
    for (int i = 0; i < 2; i++) {
        goes_on(order(VERB(SAVE), ""));
        assert_int_equal(reply.step, 9);
        goes_on(again(VERB(SAVE), "")); /* the failure before this command does not count */
        fakes_settle(&stage, two, 2);
        assert_true(a.plan->final_save);
        cannot_save(&a, 9, "a full disk");
        refused(again(VERB(SAVE), ""), "could not save step 9");
        stage_pass_speaking(&stage, two, 2, 1000);
        IS(a, WAITING);
        assert_true(run_info.held);
    }
    a.cannot_save = b.cannot_save = false;
    goes_on(order(VERB(SAVE), ""));
    fakes_settle(&stage, two, 2);
    done(again(VERB(SAVE), ""));
    assert_int_equal(run_info.saved_step, 9);
}

static void failed_stop_names_the_reason(void **state)
{
    (void)state;
    a.cannot_save = b.cannot_save = true;
    start_trio_at_9();
    goes_on(order(VERB(STOP), ""));
    fakes_settle(&stage, two, 2);
    refused(again(VERB(STOP), ""), "could not be saved (the ranks' logs say why)");
    cannot_save(&a, 9, "a full disk");
    refused(again(VERB(STOP), ""), "could not be saved (rank 0 (node a): a full disk)");
}

/* A held run is not searched for unsaved steps at each message, but a checkpoint counts at once. */
static void late_save_ends_a_stopped_run(void **state)
{
    (void)state;
    a.cannot_save = b.cannot_save = true;
    start_trio_at_9();
    goes_on(order(VERB(STOP), ""));
    fakes_settle(&stage, two, 2);
    refused(again(VERB(STOP), ""), "could not be saved");
    stage_pass_speaking(&stage, two, 2, 1000);
    IS(a, WAITING);
    b.ranks[0].checkpoint_step = 9; /* its disk was slow, not full */
    fake_say(&b, &stage);
    IS(b, DONE);
    goes_on(again(VERB(STOP), "")); /* the nodes end */
    assert_int_equal(run_info.saved_step, 9);
}

/* All nodes are taken out with steps that no checkpoint has: a stopped run waits for a return
 * without limit, until the operator ends it. */
static void stopped_run_without_nodes_is_kept(void **state)
{
    (void)state;
    start_trio_at_9();
    done(order(VERB(EVICT), "a"));
    done(order(VERB(EVICT), "b"));
    refused(order(VERB(STOP), ""), "no node here holds it");
    stage_pass(&stage, 3600000);
    done(order(VERB(STOP), ""));
    assert_int_equal(stage.view.phase, DPT_RDZV_DONE);
    stage_pass(&stage, 60000);
    refused(order(VERB(STOP), ""), "has no run");
}

/* The nodes repeat their state, so a server without a journal knows the reason, too. */
static void restarted_server_hears_the_reason(void **state)
{
    (void)state;
    start_trio_at_9();
    goes_on(order(VERB(SAVE), ""));
    const uint64_t number = reply.number;
    trio_step_to(10);
    cannot_save(&b, 10, "a full disk");
    trio_restart_server();
    fakes_settle(&stage, two, 2);
    IS(a, RUNNING);
    reply.step = 10;
    reply.number = number;
    refused(again(VERB(SAVE), ""), "rank 1 (node b): a full disk");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, trio_setup, trio_teardown)
        TEST(failed_save_ends_the_command_with_the_reason),
        TEST(first_of_two_reasons_is_told),
        TEST(later_checkpoint_is_done_in_spite_of_a_failure),
        TEST(earlier_failure_does_not_end_a_command),
        TEST(failed_save_in_a_pause),
        TEST(failed_stop_names_the_reason),
        TEST(late_save_ends_a_stopped_run),
        TEST(stopped_run_without_nodes_is_kept),
        TEST(restarted_server_hears_the_reason),
#undef TEST
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
