/* The agent's state machine without a server: what it waits for, and how it leaves. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/sim/agent_bench.h"

#include <string.h>

enum { JOIN_MS = 12 * 5000 };

/* Steps that no checkpoint holds wait for a server as long as it takes, and go on with it. */
static void test_unsaved_steps_wait_without_limit(void **state)
{
    struct bench *b = *state;
    bench_wait_with_steps(b);
    bench_server_goes(b);
    bench_wait_in(b, RANK(QUIESCED), 2, 10 * JOIN_MS);
    assert_false(b->ended);
    struct dpt_agent_view view;
    dpt_agent_view(b->agent, &view);
    assert_int_equal(view.unsaved_steps, 3);
    assert_false(view.computing);
    b->stamp.epoch = 10;
    b->server_counter = 0;
    bench_step(b, (struct dpt_agent_event){.kind = DPT_AGENT_EVENT_SERVER_UP});
    bench_server(b, SERVER(PREPARE), 3);
    assert_int_equal(b->command[0], COMMAND(PREPARE));
    assert_int_equal(b->kills[0] + b->kills[1], 0);
}

/* Without a server no successor can take its place, and its steps may be nowhere else. */
static void test_silent_rank_without_server(void **state)
{
    struct bench *b = *state;
    bench_run(b);
    for (int i = 0; i < 100; i++) {
        bench_pass(b, 100);
        bench_rank(b, 0, RANK(RUNNING), 1);
    }
    assert_int_equal(b->kills[1], 0);
    bench_server(b, SERVER(RUNNING), 1);
    bench_pass(b, 100);
    assert_int_equal(b->kills[1], 1);
    assert_int_equal(b->kills[0], 0);
}

/* So does a rank that was told to quiesce before the server failed, and does not. */
static void test_stuck_rank_without_server(void **state)
{
    struct bench *b = *state;
    bench_run(b);
    bench_server(b, SERVER(PREPARE), 2);
    bench_server_goes(b);
    for (int i = 0; i < 300; i++)
        bench_pass(b, 100);
    assert_int_equal(b->kills[0] + b->kills[1], 0);
    assert_false(b->ended);
    bench_server(b, SERVER(PREPARE), 2);
    bench_pass(b, 100);
    assert_int_equal(b->kills[0], 1);
    assert_int_equal(b->kills[1], 1);
}

/* The ranks of other nodes save, too: the server commands it. */
static void test_checkpoint_of_another_node(void **state)
{
    struct bench *b = *state;
    bench_run(b);
    b->server.saved_step = 2;
    bench_server(b, SERVER(RUNNING), 1);
    struct dpt_agent_view view;
    dpt_agent_view(b->agent, &view);
    assert_int_equal(view.unsaved_steps, 1);
    b->server.saved_step = 0; /* a restarted server */
    bench_server(b, SERVER(RUNNING), 1);
    dpt_agent_view(b->agent, &view);
    assert_int_equal(view.unsaved_steps, 1);
}

/* What is saved does not: it says so, and nothing is lost. */
static void test_saved_steps_end_at_the_join_time(void **state)
{
    struct bench *b = *state;
    bench_run(b);
    b->rank.checkpoint_step = 3;
    bench_ranks(b, RANK(FINISHED), 1);
    bench_server_goes(b);
    bench_wait_in(b, RANK(FINISHED), 1, JOIN_MS - 5000);
    assert_false(b->ended);
    bench_wait_in(b, RANK(FINISHED), 1, 10000);
    bench_rank_exits(b, 0, -9);
    bench_rank_exits(b, 1, -9);
    assert_true(b->ended);
    assert_int_equal(b->exit_code, DPT_EXIT_SERVER);
    assert_non_null(strstr(b->exit_text, "nothing is lost: step 3, the newest here, is saved"));
    assert_int_equal(b->unsaved, 0);
}

/* A run's end that lacks its last checkpoint's grant waits, too. */
static void test_end_without_its_checkpoint_waits(void **state)
{
    struct bench *b = *state;
    bench_run(b);
    bench_ranks(b, RANK(FINISHED), 1);
    bench_server_goes(b);
    bench_wait_in(b, RANK(FINISHED), 1, 10 * JOIN_MS);
    assert_false(b->ended);
}

/* Told to leave while the server has long been gone: the lowest rank that holds everything writes.
 */
static void begin_rescue(struct bench *b)
{
    bench_wait_with_steps(b);
    bench_server_goes(b);
    bench_wait_in(b, RANK(QUIESCED), 2, 3000);
    bench_signal(b);
    assert_false(b->ended);
    assert_int_equal(b->command[0], COMMAND(RESCUE));
    assert_int_equal(b->command[1], COMMAND(STANDBY));
    assert_int_equal(b->unsaved, 0);
}

static void test_leave_by_rescue(void **state)
{
    struct bench *b = *state;
    begin_rescue(b);
    bench_rescues(b);
    assert_int_equal(b->exit_code, DPT_EXIT_DONE);
    assert_int_equal(b->unsaved, 0);
}

/* The process that writes it dies: another that holds the same does it. */
static void test_rescue_by_another_rank(void **state)
{
    struct bench *b = *state;
    begin_rescue(b);
    bench_rank_exits(b, 0, -9);
    bench_pass(b, 200);
    assert_int_equal(b->command[1], COMMAND(RESCUE));
    b->rank.rescued_step = 3;
    bench_rank(b, 1, RANK(QUIESCED), 2);
    bench_pass(b, 100);
    bench_rank_exits(b, 1, 0);
    assert_true(b->ended);
    assert_int_equal(b->exit_code, DPT_EXIT_DONE);
    assert_int_equal(b->unsaved, 0);
}

/* A rank had begun to apply the next step when it was told to end: that step is rescued, too. */
static void test_rescue_of_a_newer_step(void **state)
{
    struct bench *b = *state;
    begin_rescue(b);
    b->rank.step_applied = 4;
    bench_rank(b, 1, RANK(QUIESCED), 2);
    b->rank.step_applied = 3;
    b->rank.rescued_step = 3;
    bench_rank(b, 0, RANK(QUIESCED), 2);
    bench_pass(b, 100);
    assert_int_equal(b->command[0], COMMAND(STANDBY));
    assert_int_equal(b->command[1], COMMAND(RESCUE));
    b->rank.step_applied = b->rank.rescued_step = 4;
    bench_rank(b, 1, RANK(QUIESCED), 2);
    bench_pass(b, 100);
    assert_int_equal(b->command[1], COMMAND(EXIT));
    bench_ranks_are_gone(b);
    assert_int_equal(b->exit_code, DPT_EXIT_DONE);
    assert_int_equal(b->unsaved, 0);
}

/* All that held the steps are gone: they are counted. */
static void test_rescue_without_a_holder(void **state)
{
    struct bench *b = *state;
    begin_rescue(b);
    bench_rank_exits(b, 0, -9);
    bench_rank_exits(b, 1, -9);
    bench_pass(b, 200);
    assert_true(b->ended);
    assert_int_equal(b->exit_code, DPT_EXIT_EXPELLED);
    assert_int_equal(b->unsaved, 1);
}

/* Parts: every rank writes its own. A failing disk is reported, with the number of steps. */
static void test_rescue_that_fails(void **state)
{
    struct bench *b = *state;
    Dpt__Shard shard = DPT__SHARD__INIT, *list[] = {&shard};
    shard.of = 4;
    b->rank.shards = list;
    b->rank.n_shards = 1;
    bench_wait_with_steps(b);
    bench_server_goes(b);
    bench_wait_in(b, RANK(QUIESCED), 2, 3000);
    bench_signal(b);
    assert_int_equal(b->command[0], COMMAND(RESCUE));
    assert_int_equal(b->command[1], COMMAND(RESCUE));
    b->rank.rescue_failed = true;
    b->rank.text = "no space left on device";
    bench_rank(b, 0, RANK(QUIESCED), 2);
    bench_pass(b, 200);
    assert_int_equal(b->unsaved, 0);
    bench_rank(b, 1, RANK(QUIESCED), 2);
    bench_pass(b, 200);
    assert_int_equal(b->unsaved, 1);
    bench_ranks_are_gone(b);
    assert_int_equal(b->exit_code, DPT_EXIT_EXPELLED);
    assert_non_null(strstr(b->exit_text, "no space left"));
}

/* Parts of other nodes do not come: at the drain's end the lost steps are counted. */
static void test_rescue_that_is_late(void **state)
{
    struct bench *b = *state;
    begin_rescue(b);
    const int64_t from_ms = b->now_ms;
    bench_wait_in(b, RANK(QUIESCED), 2, 9000);
    assert_int_equal(b->unsaved, 1);
    bench_ranks_are_gone(b);
    assert_true(b->now_ms - from_ms <= 9000);
    assert_int_equal(b->exit_code, DPT_EXIT_EXPELLED);
}

/* A server speaks again, of a newer checkpoint of others: nothing is lost with this node. */
static void test_rescue_that_others_saved_meanwhile(void **state)
{
    struct bench *b = *state;
    begin_rescue(b);
    b->server.saved_step = 51;
    bench_server(b, SERVER(RUNNING), 3);
    bench_wait_in(b, RANK(QUIESCED), 2, 9000);
    bench_ranks_are_gone(b);
    assert_int_equal(b->unsaved, 0);
    assert_int_equal(b->exit_code, DPT_EXIT_DONE);
}

/* The process that must write it is suspended: another with the same state writes. */
static void test_rescue_for_a_silent_rank(void **state)
{
    struct bench *b = *state;
    begin_rescue(b);
    for (int i = 0; i < 60 && b->command[1] != COMMAND(RESCUE); i++) {
        bench_pass(b, 100);
        bench_rank(b, 1, RANK(QUIESCED), 2);
    }
    assert_int_equal(b->command[1], COMMAND(RESCUE));
    assert_int_equal(b->kills[0], 0);
    b->rank.rescued_step = 3;
    bench_rank(b, 1, RANK(QUIESCED), 2);
    bench_pass(b, 100);
    bench_rank_exits(b, 0, -9);
    bench_rank_exits(b, 1, 0);
    assert_int_equal(b->exit_code, DPT_EXIT_DONE);
    assert_int_equal(b->unsaved, 0);
}

/* The rank reports an error that no restart repairs. */
static void fatal_error(struct bench *b, uint32_t rank, uint32_t exit_code)
{
    Dpt__RankToAgent message = DPT__RANK_TO_AGENT__INIT;
    b->rank.local_rank = rank;
    b->rank.spawn = b->spawns[rank];
    b->rank.text = "no such device";
    message.state = &b->rank;
    message.fatal = true;
    message.exit_code = exit_code;
    bench_step(b, (struct dpt_agent_event){.kind = DPT_AGENT_EVENT_RANK_MESSAGE,
                                           .local_rank = rank,
                                           .spawn = b->spawns[rank],
                                           .rank_message = &message});
    b->rank.text = "";
}

/* Another rank's fatal error does not interrupt it, and is the error with which the node ends. */
static void test_fatal_error_in_a_rescue(void **state)
{
    struct bench *b = *state;
    begin_rescue(b);
    fatal_error(b, 1, DPT_EXIT_FAILED);
    for (int i = 0; i < 70; i++) {
        bench_pass(b, 100);
        bench_rank(b, 0, RANK(QUIESCED), 2);
    }
    assert_int_equal(b->kills[0], 0);
    b->rank.rescued_step = 3;
    bench_rank(b, 0, RANK(QUIESCED), 2);
    bench_pass(b, 100);
    bench_ranks_are_gone(b);
    assert_int_equal(b->exit_code, DPT_EXIT_FAILED);
    assert_non_null(strstr(b->exit_text, "no such device"));
    assert_int_equal(b->unsaved, 0);
}

/* No server learns of it: the other rank writes its state before the node ends. */
static void test_fatal_error_in_an_outage(void **state)
{
    struct bench *b = *state;
    bench_wait_with_steps(b);
    bench_server_goes(b);
    bench_wait_in(b, RANK(QUIESCED), 2, 3000);
    fatal_error(b, 0, DPT_EXIT_CONFIG);
    bench_rank_exits(b, 0, DPT_EXIT_CONFIG);
    for (int i = 0; i < 60 && b->command[1] != COMMAND(RESCUE); i++) {
        bench_pass(b, 100);
        bench_rank(b, 1, RANK(QUIESCED), 2);
    }
    assert_int_equal(b->command[1], COMMAND(RESCUE));
    assert_int_equal(b->kills[1], 0);
    b->rank.rescued_step = 3;
    bench_rank(b, 1, RANK(QUIESCED), 2);
    bench_pass(b, 100);
    bench_rank_exits(b, 1, 0);
    assert_true(b->ended);
    assert_int_equal(b->exit_code, DPT_EXIT_CONFIG);
    assert_non_null(strstr(b->exit_text, "no such device"));
    assert_int_equal(b->unsaved, 0);
}

/* It cannot: the steps are counted, and the exit code is that of the error. */
static void test_fatal_error_without_a_rescue(void **state)
{
    struct bench *b = *state;
    bench_wait_with_steps(b);
    bench_server_goes(b);
    bench_wait_in(b, RANK(QUIESCED), 2, 3000);
    fatal_error(b, 0, DPT_EXIT_CONFIG);
    bench_rank_exits(b, 0, DPT_EXIT_CONFIG);
    for (int i = 0; i < 150 && !b->ended && b->kills[1] == 0; i++) {
        bench_pass(b, 100);
        bench_rank(b, 1, RANK(QUIESCED), 2);
    }
    assert_int_equal(b->kills[1], 1); /* the drain is over */
    bench_rank_exits(b, 1, -9);
    assert_int_equal(b->exit_code, DPT_EXIT_CONFIG);
    assert_int_equal(b->unsaved, 1);
}

/* A spare node that has the state of the time when it was a member. */
static void test_spare_with_steps(void **state)
{
    struct bench *b = *state;
    bench_run(b);
    bench_server(b, SERVER(SPARE), 2);
    bench_wait_in(b, RANK(QUIESCED), 1, 3000);
    bench_signal(b);
    assert_int_equal(b->command[0], COMMAND(RESCUE));
    assert_int_equal(b->unsaved, 0);
}

/* The node waits for a server that is suspended for a moment, but not for one that fails while the
 * node drains. Later messages of that server come too late. */
static void test_server_goes_while_leaving(void **state)
{
    struct bench *b = *state;
    bench_run(b);
    bench_signal(b);
    bench_wait_in(b, RANK(RUNNING), 1, 1500);
    assert_int_equal(b->command[0], COMMAND(GO));
    bench_wait_in(b, RANK(RUNNING), 1, 1000);
    assert_int_equal(b->command[0], COMMAND(RESCUE));
    bench_server(b, SERVER(PREPARE), 2);
    bench_pass(b, 200);
    assert_int_equal(b->command[0], COMMAND(RESCUE));
    assert_false(b->said);
}

/* Without a folder there is nowhere to write to: the first signal means now. */
static void test_leave_without_a_folder(void **state)
{
    struct bench *b = *state;
    b->no_checkpoints = true;
    bench_wait_with_steps(b);
    bench_server_goes(b);
    bench_wait_in(b, RANK(QUIESCED), 2, 3000);
    bench_signal(b);
    assert_int_equal(b->command[0], COMMAND(EXIT));
    assert_int_equal(b->unsaved, 1);
}

/* ---- confirmations of the server ---- */

/* The time of the newest message that the server answered while it counted this node in. Set at
 * once, whatever it answers later; an expulsion confirms nothing. */
static void test_confirmation_keeps_newest_answer(void **state)
{
    struct bench *b = *state;
    bench_run(b);
    do
        bench_pass(b, 1);
    while (!b->said);
    const int64_t sent_ms = b->now_ms;
    const uint64_t counter = b->agent_counter;
    b->now_ms += 7;
    bench_server(b, SERVER(RUNNING), 1);
    assert_int_equal(b->confirmed_ms[0], sent_ms);
    assert_int_equal(b->confirmed_ms[1], sent_ms);
    /* Silence confirms nothing, and neither does a repeated answer. */
    bench_wait_in(b, RANK(RUNNING), 1, 1000);
    assert_int_equal(b->confirmed_ms[0], sent_ms);
    b->agent_counter = counter;
    bench_server(b, SERVER(RUNNING), 1);
    assert_int_equal(b->confirmed_ms[0], sent_ms);
    /* A word on a message of long ago is not dated. */
    bench_pass(b, 20000);
    b->agent_counter = counter + 1;
    bench_server(b, SERVER(RUNNING), 1);
    assert_int_equal(b->confirmed_ms[0], sent_ms);
}

/* A restarted server that has not got this node in a generation yet may not know of a newer one,
 * and confirms nothing; then it does. */
static void test_restarted_server_confirms_late(void **state)
{
    struct bench *b = *state;
    bench_run(b);
    bench_pass(b, 100);
    const int64_t confirmed_ms = b->confirmed_ms[0];
    b->stamp.epoch++;
    b->server_counter = 0;
    bench_server(b, SERVER(WAITING), 0);
    bench_pass(b, 100);
    bench_server(b, SERVER(WAITING), 0);
    assert_int_equal(b->confirmed_ms[0], confirmed_ms);
    bench_server(b, SERVER(RUNNING), 1); /* adopted */
    assert_true(b->confirmed_ms[0] > confirmed_ms);
    const int64_t adopted_ms = b->confirmed_ms[0];
    bench_pass(b, 100);
    bench_server(b, SERVER(PREPARE), 2);
    assert_true(b->confirmed_ms[0] > adopted_ms);
}

static void test_expulsion_confirms_nothing(void **state)
{
    struct bench *b = *state;
    bench_run(b);
    bench_pass(b, 100);
    const int64_t confirmed_ms = b->confirmed_ms[0];
    bench_server(b, SERVER(EXPELLED), 1);
    assert_int_equal(b->confirmed_ms[0], confirmed_ms);
    assert_int_equal(b->kills[0] + b->kills[1], 2);
}

int main(void)
{
#define T(test) cmocka_unit_test_setup_teardown(test, bench_open, bench_close)
    const struct CMUnitTest tests[] = {
        T(test_unsaved_steps_wait_without_limit),
        T(test_saved_steps_end_at_the_join_time),
        T(test_end_without_its_checkpoint_waits),
        T(test_silent_rank_without_server),
        T(test_stuck_rank_without_server),
        T(test_rescue_for_a_silent_rank),
        T(test_fatal_error_in_a_rescue),
        T(test_checkpoint_of_another_node),
        T(test_leave_by_rescue),
        T(test_rescue_by_another_rank),
        T(test_rescue_of_a_newer_step),
        T(test_rescue_without_a_holder),
        T(test_rescue_that_fails),
        T(test_rescue_that_is_late),
        T(test_rescue_that_others_saved_meanwhile),
        T(test_server_goes_while_leaving),
        T(test_leave_without_a_folder),
        T(test_fatal_error_in_an_outage),
        T(test_fatal_error_without_a_rescue),
        T(test_spare_with_steps),
        T(test_confirmation_keeps_newest_answer),
        T(test_restarted_server_confirms_late),
        T(test_expulsion_confirms_nothing),
    };
    return cmocka_run_group_tests_name("agent outage", tests, NULL, NULL);
}
