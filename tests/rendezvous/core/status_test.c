/* The status of a run, for a process that asks and is no worker. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "rendezvous/core/run_state.h"
#include "tests/rendezvous/core/trio.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static Dpt__ServerState *answer;
static size_t answer_bytes;

/* Asks for the status of `run`. Returns the number of answers, which are valid until the next
 * step. */
static size_t send_question(const char *run, struct dpt_rdzv_output *ret)
{
    Dpt__Stamp stamp = DPT__STAMP__INIT;
    Dpt__AgentState question = DPT__AGENT_STATE__INIT;
    struct dpt_err err;
    stamp.run = (char *)run;
    stamp.node = (char *)"dpt-doctor";
    stamp.incarnation = 1;
    question.version = DPT_PROTO_VERSION;
    question.software = (char *)"test";
    question.stamp = &stamp;
    question.counter = 1;
    question.asks_status = true;
    const struct dpt_rdzv_event event = {
        .kind = DPT_RDZV_EVENT_MESSAGE, .now_ms = stage.now_ms, .conn = 999, .message = &question};
    assert_int_equal(dpt_rdzv_step(stage.core, &event, ret, &err), DPT_OK);
    return ret->n_sends;
}

/* Asks for the status of `run`; the answer goes through its encoding and its checks. */
static const Dpt__RunStatus *ask(const char *run)
{
    struct dpt_rdzv_output output;
    struct dpt_err err;
    assert_int_equal(send_question(run, &output), 1);
    assert_int_equal(output.sends[0].conn, 999);
    size_t bytes = dpt_message_bytes(&output.sends[0].message->base);
    answer_bytes = bytes;
    void *data = malloc(bytes);
    assert_non_null(data);
    assert_int_equal(dpt_message_encode(&output.sends[0].message->base, data, bytes, &bytes, &err),
                     DPT_OK);
    dpt_message_free_server_state(&answer);
    assert_int_equal(dpt_message_decode_server_state(data, bytes, &answer, &err), DPT_OK);
    free(data);
    return answer->status;
}

static int close_stage(void **state)
{
    dpt_message_free_server_state(&answer);
    return trio_teardown(state);
}

static void members_come_by_rank(void **state)
{
    (void)state;
    trio_start();
    trio_step_to(7);
    const Dpt__RunStatus *status = ask(a.stamp.run);
    assert_non_null(status);
    assert_string_equal(status->run, a.stamp.run);
    assert_int_equal(answer->phase, DPT__SERVER_PHASE__SERVER_RUNNING);
    assert_int_equal(status->generation, 1);
    assert_int_equal(status->world_size, 2);
    assert_int_equal(status->n_ranks, 2);
    assert_int_equal(status->ranks_left_out, 0);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(status->ranks[i]->plan_rank, i);
        assert_int_equal(status->ranks[i]->step_applied, 7);
        assert_int_equal(status->ranks[i]->phase, DPT__RANK_PHASE__RANK_RUNNING);
        assert_true(status->ranks[i]->connected);
        assert_null(status->ranks[i]->activity); /* these ranks do not tell what they do */
    }
    assert_int_equal(status->limit_ms, 0); /* the first step of this run may take any time */
    assert_int_equal(status->heartbeat_ms, 100);
}

static void spares_come_last(void **state)
{
    (void)state;
    a.spec.max_world = b.spec.max_world = c.spec.max_world = 2;
    trio_start();
    fake_say(&c, &stage);
    const Dpt__RunStatus *status = ask(a.stamp.run);
    assert_int_equal(status->n_ranks, 3);
    assert_string_equal(status->ranks[2]->node, "c");
    assert_int_equal(status->ranks[2]->plan_rank, -1);
}

/* The work and its time come from the rank; the time since its report is added. */
static void work_goes_on_after_the_report(void **state)
{
    (void)state;
    Dpt__RankActivity activity = DPT__RANK_ACTIVITY__INIT;
    trio_start();
    activity.main = DPT__RANK_WORK__WORK_BACKWARD;
    activity.main_unit = 4;
    activity.main_slot = 2;
    activity.main_ms = 250;
    activity.comm = DPT__RANK_WORK__WORK_ALL_REDUCE;
    activity.comm_unit = 3;
    activity.comm_ms = 100;
    b.ranks[0].activity = &activity;
    b.ranks[0].silent_ms = 50;
    fake_say(&b, &stage);
    stage_tick(&stage, 100);
    const Dpt__RunStatus *status = ask(a.stamp.run);
    const Dpt__RankStatus *rank = status->ranks[fake_place(&b)->rank];
    assert_string_equal(rank->node, "b");
    assert_int_equal(rank->heard_ms_ago, 150);
    assert_int_equal(rank->node_ms_ago, 100);
    assert_int_equal(rank->activity->main, DPT__RANK_WORK__WORK_BACKWARD);
    assert_int_equal(rank->activity->main_unit, 4);
    assert_int_equal(rank->activity->main_slot, 2);
    assert_int_equal(rank->activity->main_ms, 400);
    assert_int_equal(rank->activity->comm, DPT__RANK_WORK__WORK_ALL_REDUCE);
    assert_int_equal(rank->activity->comm_unit, 3);
    assert_int_equal(rank->activity->comm_ms, 250);
    b.ranks[0].activity = NULL; /* a later report without it */
    fake_say(&b, &stage);
    status = ask(a.stamp.run);
    assert_null(status->ranks[fake_place(&b)->rank]->activity);
}

static void time_without_a_step_is_told(void **state)
{
    (void)state;
    trio_start();
    a.ranks[0].step_ms_median = b.ranks[0].step_ms_median = 20;
    trio_step_to(3);
    stage_pass_speaking(&stage, two, 2, 1500);
    const Dpt__RunStatus *status = ask(a.stamp.run);
    assert_true(status->still_ms >= 1400 && status->still_ms <= 1700);
    assert_int_equal(status->step_ms_median, 20);
    assert_true(status->limit_ms > status->still_ms);
}

static void silence_of_all_nodes_is_told(void **state)
{
    (void)state;
    trio_start();
    stage_pass(&stage, 4400);
    assert_false(ask(a.stamp.run)->unheard);
    stage_pass(&stage, 600);
    const Dpt__RunStatus *status = ask(a.stamp.run);
    assert_true(status->unheard);
    assert_int_equal(status->heard_ms_ago, 5000);
}

/* An unknown name is the only run; with two runs the answer lists them. */
static void run_is_found_by_name_or_alone(void **state)
{
    (void)state;
    assert_null(ask("-"));
    assert_non_null(strstr(answer->text, "no run '-' is here; the server has no run"));
    trio_start();
    assert_non_null(ask("-"));
    c.stamp.run = (char *)"second";
    fake_say(&c, &stage);
    assert_null(ask("-"));
    assert_non_null(strstr(answer->text, "second"));
    assert_non_null(strstr(answer->text, a.stamp.run));
    assert_string_equal(ask("second")->run, "second");
}

/* A process that asks is not a sign that the network works, and no member. */
static void question_changes_nothing(void **state)
{
    (void)state;
    trio_start();
    stage_tick(&stage, 50);
    const struct hearing before = stage.core->hearing;
    const struct dpt_rdzv_run_view view = stage.view;
    (void)ask(a.stamp.run);
    assert_memory_equal(&stage.core->hearing, &before, sizeof before);
    assert_int_equal(stage.core->runs[0]->n_nodes, 2);
    assert_int_equal(stage.core->n_runs, 1);
    stage_tick(&stage, 0);
    assert_int_equal(stage.view.phase, view.phase);
    (void)ask("no-such-run-before"); /* creates none */
    assert_int_equal(stage.core->n_runs, 1);
}

static void failed_run_tells_its_error(void **state)
{
    (void)state;
    trio_start();
    for (int i = 0; i < 2; i++) {
        two[i]->state.fatal = true;
        two[i]->state.first_error = (char *)"rank process 0: bad data";
        fake_say(two[i], &stage);
    }
    assert_non_null(ask(a.stamp.run));
    assert_int_equal(answer->phase, DPT__SERVER_PHASE__SERVER_FAILED);
    assert_non_null(strstr(answer->text, "bad data"));
}

/* A large run: each node has its longest names and two ranks. */
static void answer_for_a_large_run_is_bounded(void **state)
{
    (void)state;
    static struct fake node;
    Dpt__RankActivity activity = DPT__RANK_ACTIVITY__INIT;
    char host[DPT_PROTO_NAME_BYTES];
    struct dpt_rdzv_output output;
    struct dpt_err err;
    memset(host, 'h', sizeof host - 1);
    host[sizeof host - 1] = '\0';
    activity.main = activity.comm = DPT__RANK_WORK__WORK_AWAIT_OWN;
    activity.main_unit = activity.main_slot = activity.comm_unit = INT32_MAX;
    activity.main_ms = activity.comm_ms = DPT_PROTO_TOLD_MS;
    enum { NODES = 1000 };
    for (int i = 0; i < NODES; i++) {
        char id[DPT_PROTO_NAME_BYTES];
        (void)snprintf(id, sizeof id, "%063d", i);
        fake_reset(&node, id);
        node.stamp.run = (char *)"big";
        node.spec.max_nodes = NODES;
        node.spec.max_world = DPT_PROTO_WORLD_MAX;
        node.state.n_ranks = 2;
        node.state.host_name = host;
        node.ranks[0].activity = node.ranks[1].activity = &activity;
        fake_prepare(&node);
        const struct dpt_rdzv_event event = {.kind = DPT_RDZV_EVENT_MESSAGE,
                                             .now_ms = stage.now_ms,
                                             .conn = 5000 + (uint64_t)i,
                                             .message = &node.state};
        assert_int_equal(dpt_rdzv_step(stage.core, &event, &output, &err), DPT_OK);
    }
    const Dpt__RunStatus *status = ask("big");
    assert_int_equal(stage.core->runs[0]->n_nodes, NODES);
    assert_int_equal(status->n_ranks, DPT_PROTO_STATUS_RANKS_MAX);
    assert_int_equal(status->ranks_left_out, 2 * NODES - DPT_PROTO_STATUS_RANKS_MAX);
    assert_string_equal(status->ranks[DPT_PROTO_STATUS_RANKS_MAX - 1]->host_name, host);
    assert_true(answer_bytes < 512 * 1024);
}

/* A sender that asks without a pause gets a few answers in each second. */
static void flood_of_questions_is_not_answered(void **state)
{
    (void)state;
    struct dpt_rdzv_output output;
    size_t answers = 0;
    trio_start();
    for (int i = 0; i < 1000; i++)
        answers += send_question(a.stamp.run, &output);
    assert_true(answers > 0 && answers <= 64);
    assert_int_equal(send_question(a.stamp.run, &output), 0);
    stage_tick(&stage, 1000);
    assert_non_null(ask(a.stamp.run));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, trio_setup, close_stage)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(members_come_by_rank),
        TEST(spares_come_last),
        TEST(work_goes_on_after_the_report),
        TEST(time_without_a_step_is_told),
        TEST(silence_of_all_nodes_is_told),
        TEST(run_is_found_by_name_or_alone),
        TEST(question_changes_nothing),
        TEST(failed_run_tells_its_error),
        TEST(answer_for_a_large_run_is_bounded),
        TEST(flood_of_questions_is_not_answered),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
