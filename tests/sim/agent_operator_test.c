/* The agent and the requests of an operator: drain, save, pause, stop. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/sim/agent_bench.h"

#include <string.h>

static void test_drain_is_a_first_signal(void **state)
{
    struct bench *b = *state;
    bench_run(b);
    b->server.drain = true;
    bench_server(b, SERVER(RUNNING), 1);
    assert_true(b->said && b->leaving);
    bench_server(b, SERVER(RUNNING), 1); /* with each answer */
    assert_false(b->ended);
    bench_server(b, SERVER(RELEASED), 1);
    bench_ranks_are_gone(b);
    assert_true(b->ended);
    assert_int_equal(b->exit_code, 0);
}

/* A launcher stops the machine that an operator drains. */
static void test_first_signal_after_drain_changes_nothing(void **state)
{
    struct bench *b = *state;
    bench_run(b);
    b->server.drain = true;
    bench_server(b, SERVER(RUNNING), 1);
    bench_signal(b);
    assert_false(b->ended);
    assert_int_equal(b->kills[0], 0);
    bench_signal(b);
    assert_int_not_equal(b->kills[0], 0);
    bench_ranks_are_gone(b);
    assert_int_equal(b->exit_code, 75);
}

static int64_t save_from_told(const struct bench *b)
{
    int64_t newest = -1;
    for (size_t i = 0; i < b->out.n_to_ranks; i++)
        newest = b->out.to_ranks[i].message->save_from;
    return newest;
}

/* At once, and until the request ends. */
static void test_save_reaches_the_ranks(void **state)
{
    struct bench *b = *state;
    bench_run(b);
    b->server.save_from = 4;
    bench_server(b, SERVER(RUNNING), 1);
    assert_int_equal(b->out.n_to_ranks, RANKS);
    assert_int_equal(save_from_told(b), 4);
    bench_server(b, SERVER(RUNNING), 1);
    assert_int_equal(b->out.n_to_ranks, 0);
    b->server.save_from = 0;
    bench_server(b, SERVER(RUNNING), 1);
    assert_int_equal(save_from_told(b), 0);
}

static void says_unsaved(struct bench *b, uint64_t generation, int64_t step, char *why)
{
    b->rank.unsaved_generation = generation;
    b->rank.unsaved_step = step;
    b->rank.unsaved_why = why;
    bench_rank(b, 1, RANK(RUNNING), 1);
}

/* At once, so that the operator does not wait for a heartbeat. */
static void test_failed_save_is_told_to_the_server(void **state)
{
    struct bench *b = *state;
    bench_run(b);
    says_unsaved(b, 1, 3, "no space left on device");
    assert_true(b->said);
    assert_int_equal(b->out.to_server->ranks[0]->unsaved_step, 0);
    assert_int_equal(b->out.to_server->ranks[1]->unsaved_step, 3);
    assert_int_equal(b->out.to_server->ranks[1]->unsaved_generation, 1);
    assert_string_equal(b->out.to_server->ranks[1]->unsaved_why, "no space left on device");
    says_unsaved(b, 1, 3, "no space left on device");
    assert_false(b->said);
    says_unsaved(b, 2, 3, "no space left on device"); /* it has tried again */
    assert_true(b->said);
    says_unsaved(b, 0, 0, "");
    assert_true(b->said);
    assert_string_equal(b->out.to_server->ranks[1]->unsaved_why, "");
}

static void test_pause_is_seen(void **state)
{
    struct bench *b = *state;
    struct dpt_agent_view view;
    bench_run(b);
    b->server.paused = true;
    bench_server(b, SERVER(PREPARE), 2);
    bench_ranks(b, RANK(QUIESCED), 2);
    bench_server(b, SERVER(WAITING), 2);
    bench_pass(b, 1000);
    dpt_agent_view(b->agent, &view);
    assert_true(view.paused);
    assert_false(b->ended);
}

/* The run was stopped while this node was away: its steps are reported, and the code says so. */
static void test_stopped_run_reports_unsaved_steps(void **state)
{
    struct bench *b = *state;
    bench_wait_with_steps(b);
    b->server.last_holder = true;
    bench_server(b, SERVER(DONE), 2);
    bench_ranks_are_gone(b);
    assert_int_equal(b->unsaved, 1);
    assert_int_equal(b->exit_code, 75);
}

static void test_stopped_run_ends_with_0_if_all_is_saved(void **state)
{
    struct bench *b = *state;
    bench_wait_with_steps(b);
    b->server.last_holder = true;
    b->server.saved_step = 3;
    bench_server(b, SERVER(DONE), 2);
    bench_ranks_are_gone(b);
    assert_int_equal(b->unsaved, 0);
    assert_int_equal(b->exit_code, 0);
}

/* A supervisor tells a node that an operator took out of the run from a wrong config. */
static void test_evicted_node_ends_with_75(void **state)
{
    struct bench *b = *state;
    bench_run(b);
    bench_server(b, SERVER(EXPELLED), 1);
    assert_int_equal(b->unsaved, 1);
    bench_rank_exits(b, 0, -9);
    bench_rank_exits(b, 1, -9);
    b->stamp.incarnation++;
    bench_server(b, SERVER(REFUSED), 0);
    assert_true(b->ended);
    assert_int_equal(b->exit_code, DPT_EXIT_EXPELLED);
}

/* It was refused before it heard of the eviction: the server was restarted between them. */
static void test_refused_member_ends_with_75(void **state)
{
    struct bench *b = *state;
    bench_run(b);
    b->server.saved_step = 3;
    bench_server(b, SERVER(REFUSED), 1);
    bench_ranks_are_gone(b);
    assert_true(b->ended);
    assert_int_equal(b->unsaved, 0);
    assert_int_equal(b->exit_code, DPT_EXIT_EXPELLED);
}

/* The same node started again: it never gets in. */
static void test_denied_node_ends_with_2(void **state)
{
    struct bench *b = *state;
    bench_configure(b);
    bench_server(b, SERVER(REFUSED), 0);
    assert_true(b->ended);
    assert_int_equal(b->exit_code, DPT_EXIT_CONFIG);
}

/* The code of lost steps goes before that of the other version. */
static void test_other_version_counts_unsaved_steps(void **state)
{
    struct bench *b = *state;
    bench_run(b);
    b->server.version = DPT_PROTO_VERSION + 1;
    bench_server(b, SERVER(RUNNING), 1);
    bench_ranks_are_gone(b);
    assert_int_equal(b->unsaved, 1);
    assert_int_equal(b->exit_code, DPT_EXIT_EXPELLED);
}

int main(void)
{
#define CASE(function) cmocka_unit_test_setup_teardown(function, bench_open, bench_close)
    const struct CMUnitTest tests[] = {
        CASE(test_drain_is_a_first_signal),
        CASE(test_first_signal_after_drain_changes_nothing),
        CASE(test_save_reaches_the_ranks),
        CASE(test_failed_save_is_told_to_the_server),
        CASE(test_pause_is_seen),
        CASE(test_stopped_run_reports_unsaved_steps),
        CASE(test_stopped_run_ends_with_0_if_all_is_saved),
        CASE(test_evicted_node_ends_with_75),
        CASE(test_refused_member_ends_with_75),
        CASE(test_denied_node_ends_with_2),
        CASE(test_other_version_counts_unsaved_steps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
