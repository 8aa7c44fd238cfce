/* The agent's state machine step by step: leaving, ending, being expelled, and the permission to
 * write. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/sim/agent_bench.h"

#include <string.h>

/* ---- leaving and ending ---- */

static void test_leave_while_waiting(void **state)
{
    struct bench *b = *state;
    bench_join(b);
    bench_signal(b);
    assert_true(b->said && b->leaving); /* goodbye, so that it is no crash */
    assert_int_equal(b->command[0], COMMAND(EXIT));
    bench_rank_exits(b, 0, 0);
    bench_rank_exits(b, 1, 0);
    assert_true(b->ended);
    assert_int_equal(b->exit_code, DPT_EXIT_DONE);
}

static void test_leave_before_anything(void **state)
{
    struct bench *b = *state;
    bench_signal(b);
    assert_true(b->ended);
    assert_int_equal(b->exit_code, DPT_EXIT_DONE);
}

static void test_leave_and_released(void **state)
{
    struct bench *b = *state;
    bench_run(b);
    bench_signal(b);
    assert_true(b->said && b->leaving && !b->ended);
    assert_int_equal(b->command[0], COMMAND(GO));
    b->server.soft = true;
    bench_server(b, SERVER(PREPARE), 2);
    b->server.soft = false;
    assert_int_equal(b->command[0], COMMAND(PREPARE_SOFT));
    bench_ranks(b, RANK(QUIESCED), 2);
    bench_server(b, SERVER(RELEASED), 2);
    assert_int_equal(b->command[0], COMMAND(EXIT));
    bench_pass(b, 1100); /* they do not exit: killed */
    assert_int_equal(b->kills[0] + b->kills[1], 2);
    bench_rank_exits(b, 0, -9);
    bench_rank_exits(b, 1, -9);
    assert_int_equal(b->exit_code, DPT_EXIT_DONE);
    assert_true(b->ended);
}

/* Who goes while too few are here lets the server have its steps saved … */
static void test_leave_and_save(void **state)
{
    struct bench *b = *state;
    bench_wait_with_steps(b);
    bench_signal(b);
    assert_true(b->said && b->leaving && !b->ended);
    bench_server(b, SERVER(PREPARE), 3);
    b->rank.checkpoint_step = 3;
    bench_ranks(b, RANK(QUIESCED), 3);
    bench_server(b, SERVER(RELEASED), 3);
    assert_int_equal(b->command[0], COMMAND(EXIT));
    assert_int_equal(b->unsaved, 0);
}

/* … and the steps that could not be saved are lost with it: it says so. */
static void test_leave_unsaved(void **state)
{
    struct bench *b = *state;
    bench_wait_with_steps(b);
    bench_signal(b);
    b->server.last_holder = true;
    bench_server(b, SERVER(RELEASED), 2);
    assert_int_equal(b->command[0], COMMAND(EXIT));
    assert_int_equal(b->unsaved, 1);
}

static void test_released_unsaved(void **state)
{
    struct bench *b = *state;
    bench_run(b);
    bench_signal(b);
    bench_server(b, SERVER(PREPARE), 2);
    bench_ranks(b, RANK(QUIESCED), 2);
    b->server.last_holder = true;
    bench_server(b, SERVER(RELEASED), 2);
    assert_int_equal(b->unsaved, 1);
}

static void test_released_saved(void **state)
{
    struct bench *b = *state;
    bench_run(b);
    bench_signal(b);
    bench_server(b, SERVER(PREPARE), 2);
    b->rank.checkpoint_step = 3;
    bench_ranks(b, RANK(QUIESCED), 2);
    b->server.last_holder = true;
    bench_server(b, SERVER(RELEASED), 2);
    assert_int_equal(b->unsaved, 0);
}

static void leave_without_drain(struct bench *b, int64_t limit_ms)
{
    int64_t from_ms = b->now_ms;
    while (!b->ended && b->now_ms - from_ms < 20000) {
        bench_pass(b, 100);
        if (b->kills[0] == 0)
            bench_ranks(b, RANK(RUNNING), 1);
    }
    assert_true(b->ended);
    assert_int_equal(b->exit_code, DPT_EXIT_EXPELLED);
    assert_true(b->now_ms - from_ms <= limit_ms);
}

/* Nobody answers and even the killed are not reaped: gone within ten seconds all the same. */
static void test_leave_does_not_drain(void **state)
{
    struct bench *b = *state;
    bench_run(b);
    bench_signal(b);
    leave_without_drain(b, 10000);
}

/* A process that waits for the run's folders is not silent: it has not been started. */
static void test_waiting_for_folders(void **state)
{
    struct bench *b = *state;
    bench_configure(b);
    bench_step(b, (struct dpt_agent_event){.kind = DPT_AGENT_EVENT_SERVER_UP});
    bench_server(b, SERVER(WAITING), 0);
    assert_int_equal(b->spawns[0], 1);
    for (int i = 0; i < 300; i++) {
        for (uint32_t local = 0; local < RANKS; local++)
            bench_step(b, (struct dpt_agent_event){.kind = DPT_AGENT_EVENT_RANK_WAITS,
                                                   .local_rank = local,
                                                   .spawn = b->spawns[local]});
        bench_server(b, SERVER(WAITING), 0);
        bench_pass(b, 100);
    }
    assert_int_equal(b->kills[0] + b->kills[1], 0);
    for (int i = 0; i < 100; i++) {
        bench_server(b, SERVER(WAITING), 0);
        bench_pass(b, 100);
    }
    assert_int_equal(b->kills[0], 1);
    assert_int_equal(b->kills[1], 1);
}

static void test_second_signal(void **state)
{
    struct bench *b = *state;
    bench_run(b);
    bench_signal(b);
    bench_signal(b);
    assert_int_equal(b->kills[0] + b->kills[1], 2);
    assert_int_equal(b->unsaved, 1); /* no node is known to have taken them over */
    leave_without_drain(b, 2000);
}

/* No server has answered since: no node is known to have taken over the ranks' steps. */
static void test_two_signals_after_standing_still(void **state)
{
    struct bench *b = *state;
    bench_run(b);
    b->now_ms += 10000;
    bench_signal(b);
    bench_signal(b);
    assert_int_equal(b->unsaved, 1);
    leave_without_drain(b, 2000);
}

static void test_finished_run_ends_agent(void **state)
{
    struct bench *b = *state;
    bench_run(b);
    bench_ranks(b, RANK(FINISHED), 1);
    bench_server(b, SERVER(DRAINING), 1);
    assert_false(b->ended);
    bench_server(b, SERVER(DONE), 1);
    assert_int_equal(b->command[1], COMMAND(EXIT));
    assert_false(b->ended);
    bench_rank_exits(b, 0, 0);
    bench_rank_exits(b, 1, 0);
    assert_true(b->ended);
    assert_int_equal(b->exit_code, DPT_EXIT_DONE);
    bench_step(b, (struct dpt_agent_event){.kind = DPT_AGENT_EVENT_TICK}); /* ignored from now on */
    assert_int_equal(b->out.n_actions, 0);
}

/* A loop that was suspended while its ranks were told to exit: it ends, and sends nothing
 * afterwards. */
static void test_done_late(void **state)
{
    struct bench *b = *state;
    bench_run(b);
    bench_server(b, SERVER(DONE), 1);
    b->now_ms += 20000;
    bench_step(b, (struct dpt_agent_event){.kind = DPT_AGENT_EVENT_TICK});
    assert_true(b->ended);
    assert_int_equal(b->out.n_to_ranks, 0);
}

/* The agent itself lacks a resource that a process needs: it does not try again. */
static void test_no_process_can_be_started(void **state)
{
    struct bench *b = *state;
    bench_configure(b);
    bench_step(b, (struct dpt_agent_event){.kind = DPT_AGENT_EVENT_SERVER_UP});
    bench_server(b, SERVER(WAITING), 0);
    for (uint32_t i = 0; i < RANKS; i++)
        bench_step(b, (struct dpt_agent_event){.kind = DPT_AGENT_EVENT_RANK_EXITED,
                                               .local_rank = i,
                                               .spawn = 1,
                                               .exit_code = 127,
                                               .is_final = true,
                                               .text = "all 20 files are in use"});
    bench_pass(b, 1000);
    assert_int_equal(b->spawns[0] + b->spawns[1], 2);
    bench_server(b, SERVER(WAITING), 0);
    assert_true(b->ended);
    assert_int_equal(b->exit_code, DPT_EXIT_FAILED);
    assert_string_equal(b->exit_text, "rank process 1: all 20 files are in use");
}

/* ---- expelled, and the permission to write ---- */

static void test_expelled_agent_counts_unsaved_steps(void **state)
{
    struct bench *b = *state;
    bench_run(b);
    b->server.text = "this incarnation was lost";
    bench_server(b, SERVER(EXPELLED), 2);
    assert_int_equal(b->unsaved, 1); /* no node is known to have its steps */
    assert_int_equal(b->kills[0] + b->kills[1], 2);
    assert_false(b->said); /* nothing more is said in its name */
    bench_rank_exits(b, 0, -9);
    bench_rank_exits(b, 1, -9);
    assert_true(b->said && b->has_spec);
    assert_int_equal(b->said_epoch, 0);
    assert_int_equal(b->said_generation, 0);
    assert_int_equal(b->crashes, 0);
    b->stamp.incarnation = 6;
    b->server_counter = 0;
    bench_server(b, SERVER(SPARE), 2);
    assert_int_equal(b->spawns[0], 2);
    assert_int_equal(b->incarnation, 6);
}

/* The world that continued has its steps: they are not reported as lost; nor are steps in a
 * checkpoint. */
static void test_expelled_from_a_newer_world(void **state)
{
    struct bench *b = *state;
    bench_run(b);
    b->server.world_step = 3;
    bench_server(b, SERVER(EXPELLED), 2);
    assert_int_equal(b->unsaved, 0);
    assert_int_equal(b->kills[0] + b->kills[1], 2);
}

/* Its newest step came after the last message of the others to the server. */
static void test_expelled_ahead_of_the_server(void **state)
{
    struct bench *b = *state;
    bool told = false;
    bench_run(b);
    b->server.world_step = 2;
    bench_server(b, SERVER(EXPELLED), 2);
    for (size_t i = 0; i < b->out.n_logs; i++)
        told = told || strstr(b->out.logs[i].text, "the last 1 steps here (after step 2, up to 3) "
                                                   "are newer than what the server has") != NULL;
    assert_true(told);
}

static void test_expelled_with_a_saved_step(void **state)
{
    struct bench *b = *state;
    bench_run(b);
    b->server.saved_step = 3;
    bench_server(b, SERVER(EXPELLED), 2);
    assert_int_equal(b->unsaved, 0);
}

/* Another worker has taken its folders: its memory is given up at once, and the steps are
 * counted. */
static void test_disowned_agent_discards_state(void **state)
{
    struct bench *b = *state;
    bench_run(b);
    bench_step(b, (struct dpt_agent_event){.kind = DPT_AGENT_EVENT_DISOWNED,
                                           .text = "log.dir was taken over"});
    assert_int_equal(b->unsaved, 1);
    assert_int_equal(b->kills[0] + b->kills[1], 2);
    bench_rank_exits(b, 0, -9);
    bench_rank_exits(b, 1, -9);
    assert_true(b->ended);
    assert_int_equal(b->exit_code, DPT_EXIT_EXPELLED);
    assert_string_equal(b->exit_text, "log.dir was taken over");
}

/* A node that was suspended learns that the run is over: the run has its steps. */
static void test_done_after_standing_still(void **state)
{
    struct bench *b = *state;
    bench_run(b);
    const uint64_t counter = b->agent_counter;
    b->now_ms += 20000;
    bench_step(b, (struct dpt_agent_event){.kind = DPT_AGENT_EVENT_TICK});
    b->agent_counter = counter; /* sent before that */
    bench_server(b, SERVER(DONE), 1);
    assert_int_equal(b->unsaved, 0);
    bench_rank_exits(b, 0, 0);
    bench_rank_exits(b, 1, 0);
    assert_int_equal(b->exit_code, DPT_EXIT_DONE);
}

static void test_expelled_again_and_again(void **state)
{
    struct bench *b = *state;
    bench_join(b);
    for (int i = 0; i < 20 && !b->ended; i++) {
        bench_server(b, SERVER(EXPELLED), 0);
        bench_rank_exits(b, 0, -9);
        bench_rank_exits(b, 1, -9);
        b->stamp.incarnation++;
        bench_server(b, SERVER(WAITING), 0);
    }
    assert_true(b->ended);
    assert_int_equal(b->exit_code, DPT_EXIT_EXPELLED);
}

static void test_lease_allows_writing(void **state)
{
    struct bench *b = *state;
    bench_run(b);
    bench_pass(b, 200);
    assert_true(b->lease_ms[0] > b->now_ms);
    /* The server goes away: training goes on, and so does the log. */
    bench_step(b, (struct dpt_agent_event){.kind = DPT_AGENT_EVENT_SERVER_DOWN});
    for (int i = 0; i < 300; i++) {
        bench_pass(b, 100);
        bench_ranks(b, RANK(RUNNING), 1);
    }
    assert_true(b->lease_ms[0] > b->now_ms);
    assert_false(b->ended);
    bench_step(b, (struct dpt_agent_event){.kind = DPT_AGENT_EVENT_SERVER_UP});
    bench_pass(b, 100);
    /* This node is stopped for longer than a lease: its permission has ended, and it gets none
     * before the server has answered a message that was sent afterwards. */
    int64_t given_ms = b->lease_ms[0];
    uint64_t counter = b->agent_counter;
    b->now_ms += 6000;
    assert_true(given_ms < b->now_ms);
    bench_step(b, (struct dpt_agent_event){.kind = DPT_AGENT_EVENT_TICK});
    assert_true(b->said); /* asks at once */
    assert_true(b->lease_ms[0] < b->now_ms);
    bench_ranks(b, RANK(RUNNING), 1);
    b->agent_counter = counter;
    bench_server(b, SERVER(RUNNING), 1); /* an answer to an earlier one does not count */
    bench_pass(b, 300);
    assert_true(b->lease_ms[0] < b->now_ms);
    bench_server(b, SERVER(RUNNING), 1);
    bench_pass(b, 200);
    assert_true(b->lease_ms[0] > b->now_ms);
}

static void wait_for_ranks(struct bench *b, int64_t ms)
{
    for (const int64_t until_ms = b->now_ms + ms; b->now_ms < until_ms;) {
        bench_pass(b, 50);
        bench_server(b, SERVER(WAITING), 0);
    }
}

/* A process has five seconds to its first report, however short the lease is. */
static void test_first_report(void **state)
{
    struct bench *b = *state;
    Dpt__RunSpec spec = bench_spec();
    spec.timeout_ms = 300;
    const struct dpt_agent_facts facts = {.spec = &spec, .n_ranks = RANKS};
    bench_step(b, (struct dpt_agent_event){.kind = DPT_AGENT_EVENT_CONFIGURED, .facts = &facts});
    bench_step(b, (struct dpt_agent_event){.kind = DPT_AGENT_EVENT_SERVER_UP});
    bench_server(b, SERVER(WAITING), 0);
    wait_for_ranks(b, 4900);
    assert_int_equal(b->kills[0] + b->kills[1], 0);
    bench_rank(b, 0, RANK(STARTING), 0);
    wait_for_ranks(b, 200);
    assert_int_equal(b->kills[0], 0);
    assert_int_equal(b->kills[1], 1);
    wait_for_ranks(b, 200);
    assert_int_equal(b->kills[0], 1);
}

static void test_memory_of_a_gap(void **state)
{
    struct bench *b = *state;
    bench_run(b);
    b->now_ms += 20000; /* the ranks were not heard because the agent was suspended */
    bench_step(b, (struct dpt_agent_event){.kind = DPT_AGENT_EVENT_TICK});
    assert_int_equal(b->kills[0] + b->kills[1], 0);
    assert_false(b->ended);
}

/* The result of the health check goes with the config, until the server has both. */
static void test_health_goes_with_the_config(void **state)
{
    struct bench *b = *state;
    const Dpt__RunSpec spec = bench_spec();
    const struct dpt_agent_facts facts = {.spec = &spec,
                                          .n_ranks = RANKS,
                                          .health = {.checked = true, .cores = 8, .mflops = 30000},
                                          .health_fault = "core 3"};
    bench_step(b, (struct dpt_agent_event){.kind = DPT_AGENT_EVENT_CONFIGURED, .facts = &facts});
    bench_step(b, (struct dpt_agent_event){.kind = DPT_AGENT_EVENT_SERVER_UP, .round_trip_us = 70});
    const Dpt__NodeHealth *health = b->out.to_server->health;
    assert_non_null(health);
    assert_int_equal(health->cores, 8);
    assert_int_equal(health->mflops, 30000);
    assert_int_equal(health->round_trip_us, 70);
    assert_string_equal(health->fault, "core 3");
    bench_server(b, SERVER(WAITING), 0);
    bench_ranks(b, RANK(STANDBY), 0);
    assert_true(b->said);
    assert_null(b->out.to_server->health);
}

int main(void)
{
#define T(test) cmocka_unit_test_setup_teardown(test, bench_open, bench_close)
    const struct CMUnitTest tests[] = {
        T(test_leave_while_waiting),
        T(test_leave_before_anything),
        T(test_leave_and_released),
        T(test_leave_and_save),
        T(test_leave_unsaved),
        T(test_released_unsaved),
        T(test_released_saved),
        T(test_leave_does_not_drain),
        T(test_waiting_for_folders),
        T(test_second_signal),
        T(test_two_signals_after_standing_still),
        T(test_finished_run_ends_agent),
        T(test_done_late),
        T(test_no_process_can_be_started),
        T(test_expelled_from_a_newer_world),
        T(test_expelled_ahead_of_the_server),
        T(test_expelled_with_a_saved_step),
        T(test_disowned_agent_discards_state),
        T(test_done_after_standing_still),
        T(test_expelled_agent_counts_unsaved_steps),
        T(test_expelled_again_and_again),
        T(test_lease_allows_writing),
        T(test_first_report),
        T(test_memory_of_a_gap),
        T(test_health_goes_with_the_config),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
