/* The agent's messages in a run of many nodes: their pause, and one outcome for all ranks of a
 * node. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/sim/agent_bench.h"

#include <string.h>

enum { SECONDS = 8, HEARTBEATS_A_SECOND = 10 };

/* A later generation of both ranks begins. */
static void run_again(struct bench *b, uint64_t generation)
{
    b->rank.failed_generation = 0;
    bench_server(b, SERVER(PREPARE), generation);
    bench_ranks(b, RANK(QUIESCED), generation);
    bench_plan_of(b, generation, 1);
    bench_ranks(b, RANK(READY), generation);
    bench_server(b, SERVER(RUNNING), generation);
    bench_ranks(b, RANK(RUNNING), generation);
}

/* The number of messages to the server in SECONDS, in which the ranks report steadily. */
static uint64_t messages_in_peace(struct bench *b)
{
    const uint64_t before = b->agent_counter;
    for (int i = 0; i < SECONDS; i++) {
        bench_pass(b, 1000);
        bench_ranks(b, RANK(RUNNING), 1);
    }
    return b->agent_counter - before;
}

static void test_server_sets_the_pause(void **state)
{
    struct bench *b = *state;
    bench_run(b);
    const uint64_t usual = messages_in_peace(b);
    assert_in_range(usual, HEARTBEATS_A_SECOND * SECONDS - 2, HEARTBEATS_A_SECOND * SECONDS + 2);
    b->server.heartbeat_ms = 1000;
    bench_server(b, SERVER(RUNNING), 1);
    assert_in_range(messages_in_peace(b), SECONDS - 1, SECONDS + 1);
    b->server.heartbeat_ms = 0;
    bench_server(b, SERVER(RUNNING), 1);
    assert_in_range(messages_in_peace(b), usual - 2, usual + 2);
}

/* A newcomer that is not answered: the first questions come with each heartbeat, the later ones a
 * quarter of a lease apart. */
static void test_silent_server_is_asked_less_often(void **state)
{
    struct bench *b = *state;
    bench_step(b, (struct dpt_agent_event){.kind = DPT_AGENT_EVENT_SERVER_UP});
    const uint64_t before = b->agent_counter;
    bench_pass(b, 300);
    assert_in_range(b->agent_counter - before, 2, 4);
    bench_pass(b, 1000 * SECONDS);
    assert_in_range(b->agent_counter - before, SECONDS, 2 * SECONDS + 4);
}

/* A server cannot make a node so silent that its lease ends. */
static void test_pause_is_at_most_a_quarter_of_the_lease(void **state)
{
    struct bench *b = *state;
    bench_run(b);
    b->server.heartbeat_ms = DPT_PROTO_TIMEOUT_MS_MAX;
    bench_server(b, SERVER(RUNNING), 1);
    assert_in_range(messages_in_peace(b), SECONDS - 2, SECONDS);
}

static void test_news_do_not_wait_for_the_pause(void **state)
{
    struct bench *b = *state;
    bench_run(b);
    b->server.heartbeat_ms = 1000;
    bench_server(b, SERVER(RUNNING), 1);
    bench_pass(b, 1);
    b->rank.failed_generation = 1;
    bench_rank(b, 0, RANK(RUNNING), 1);
    assert_true(b->said);
}

/* A node that leaves must know whether it has a server: no heartbeat is left out. */
static void test_leaving_node_asks_steadily(void **state)
{
    struct bench *b = *state;
    bench_run(b);
    b->server.heartbeat_ms = 1000;
    bench_server(b, SERVER(RUNNING), 1);
    bench_pass(b, 1100);
    uint64_t before = b->agent_counter;
    while (b->agent_counter == before)
        bench_pass(b, 100);
    bench_pass(b, 700);
    bench_signal(b); /* and says that it leaves, shortly before its next heartbeat */
    before = b->agent_counter;
    bench_pass(b, 400);
    assert_int_equal(b->agent_counter, before + 1);
}

/* The first rank's word ends the generation. */
static void test_one_rank_reports_the_failure(void **state)
{
    struct bench *b = *state;
    bench_run(b);
    b->rank.failed_generation = 1;
    bench_rank(b, 0, RANK(RUNNING), 1);
    assert_true(b->said);
    bench_rank(b, 1, RANK(RUNNING), 1);
    assert_false(b->said);
    bench_server(b, SERVER(PREPARE), 2);
    assert_false(b->said); /* the ranks will say that they have stopped */
    bench_ranks(b, RANK(QUIESCED), 2);
    assert_true(b->said);
    assert_int_equal(b->out.to_server->ranks[1]->failed_generation, 1);
}

/* A failure of which the node only hears from others: a server of many nodes is told with the
 * heartbeat, another one at once. A rank that has a link to the broken one does not wait. */
static void test_hearsay_waits_for_the_pause_of_many_nodes(void **state)
{
    enum { FAR = 7 }; /* no rank of the plan that this node was sent */
    struct bench *b = *state;
    bench_run(b);
    b->rank.failed_generation = 1;
    b->rank.suspect = FAR;
    b->rank.text = (char *)"the connection ended";
    bench_rank(b, 0, RANK(RUNNING), 1);
    assert_true(b->said);
    run_again(b, 2);
    b->server.heartbeat_ms = 1000;
    bench_server(b, SERVER(RUNNING), 2);
    b->rank.failed_generation = 2;
    bench_rank(b, 0, RANK(RUNNING), 2);
    assert_false(b->said);
    const uint64_t before = b->agent_counter;
    bench_pass(b, 1500);
    assert_int_equal(b->agent_counter, before + 1);
    assert_string_equal(b->text[0], "the connection ended");
    b->rank.suspect = 0;
    bench_rank(b, 1, RANK(RUNNING), 2);
    assert_true(b->said);
    b->rank.suspect = -1; /* unknown: it may be its own failure */
    run_again(b, 3);
    b->rank.failed_generation = 3;
    bench_rank(b, 0, RANK(RUNNING), 3);
    assert_true(b->said);
}

/* A server of many nodes hears with the heartbeat that the ranks run, another one at once. */
static void test_go_waits_for_the_pause_of_many_nodes(void **state)
{
    struct bench *b = *state;
    for (int64_t pause_ms = 0; pause_ms <= 1000; pause_ms += 1000) {
        const uint64_t generation = pause_ms == 0 ? 2 : 3;
        if (pause_ms == 0)
            bench_run(b);
        b->server.heartbeat_ms = (uint32_t)pause_ms;
        bench_server(b, SERVER(PREPARE), generation);
        bench_ranks(b, RANK(QUIESCED), generation);
        bench_plan_of(b, generation, 1);
        bench_ranks(b, RANK(READY), generation);
        assert_true(b->said);
        bench_server(b, SERVER(RUNNING), generation);
        bench_ranks(b, RANK(RUNNING), generation);
        assert_int_equal(b->said, pause_ms == 0);
    }
    bench_pass(b, 2000);
    assert_int_equal(b->phase[0], RANK(RUNNING));
    assert_int_equal(b->phase[1], RANK(RUNNING));
}

/* The heartbeat after a report is left out; the one after that comes at its time. */
static void test_report_replaces_the_next_heartbeat(void **state)
{
    struct bench *b = *state;
    bench_run(b);
    b->server.heartbeat_ms = 1000;
    bench_server(b, SERVER(RUNNING), 1);
    bench_pass(b, 1100); /* a heartbeat, and the next one comes within a second */
    uint64_t before = b->agent_counter;
    for (int passed_ms = 0; b->agent_counter == before; passed_ms += 100) {
        assert_true(passed_ms <= 1000);
        bench_pass(b, 100);
    }
    bench_ranks(b, RANK(RUNNING), 1);
    bench_pass(b, 700);
    before = b->agent_counter;
    b->rank.busy = true;
    bench_rank(b, 0, RANK(RUNNING), 1);
    assert_int_equal(b->agent_counter, before + 1);
    bench_pass(b, 900);
    assert_int_equal(b->agent_counter, before + 1);
    bench_pass(b, 600);
    assert_int_equal(b->agent_counter, before + 2);
}

/* The last rank that moves reports for all; a heartbeat reports the moves of those that wait for a
 * late one. */
static void test_ranks_of_a_node_report_together(void **state)
{
    struct bench *b = *state;
    bench_run(b);
    b->server.heartbeat_ms = 500;
    bench_server(b, SERVER(PREPARE), 2);
    const uint64_t before = b->agent_counter;
    bench_rank(b, 0, RANK(QUIESCED), 2);
    assert_false(b->said);
    bench_rank(b, 1, RANK(QUIESCED), 2);
    assert_true(b->said);
    assert_int_equal(b->phase[0], RANK(QUIESCED));
    assert_int_equal(b->phase[1], RANK(QUIESCED));
    assert_int_equal(b->agent_counter, before + 1);
    bench_server(b, SERVER(PREPARE), 3);
    bench_rank(b, 0, RANK(QUIESCED), 3);
    assert_false(b->said);
    bench_pass(b, 600);
    assert_true(b->agent_counter > before + 1);
    bench_server(b, SERVER(PREPARE), 4);
    bench_rank(b, 1, RANK(QUIESCED), 4); /* rank 0 is in generation 3, rank 1 was in 2 */
    assert_true(b->said);
}

/* One rank of the node has died: the move of the other one is reported at once. */
static void test_dead_rank_does_not_follow(void **state)
{
    struct bench *b = *state;
    bench_run(b);
    bench_server(b, SERVER(PREPARE), 2);
    bench_rank_exits(b, 0, 1);
    assert_true(b->said);
    bench_rank(b, 1, RANK(QUIESCED), 2);
    assert_true(b->said);
}

static size_t outcome_bytes(const struct bench *b, size_t local)
{
    return b->out.to_server->ranks[local]->outcome.len;
}

/* An outcome may have 64 KiB, and all ranks of a node have the same one. */
static void test_one_rank_reports_the_outcome(void **state)
{
    struct bench *b = *state;
    uint8_t outcome[32] = {7};
    bench_run(b);
    bench_server(b, SERVER(PREPARE), 2);
    b->rank.outcome_step = 4;
    b->rank.outcome = (ProtobufCBinaryData){sizeof outcome, outcome};
    bench_ranks(b, RANK(QUIESCED), 2);
    assert_true(b->said);
    assert_int_equal(outcome_bytes(b, 0), sizeof outcome);
    assert_int_equal(outcome_bytes(b, 1), 0);
    assert_int_equal(b->out.to_server->ranks[1]->outcome_step, 4);
    bench_rank_exits(b, 0, 1); /* now the other one reports it */
    assert_true(b->said);
    assert_int_equal(b->phase[0], RANK(DEAD));
    assert_int_equal(outcome_bytes(b, 1), sizeof outcome);
}

/* Ranks that broke off for the same reason: only the first has its text. */
static void test_one_rank_reports_the_text(void **state)
{
    struct bench *b = *state;
    bench_run(b);
    b->rank.failed_generation = 1;
    b->rank.text = (char *)"the connection ended";
    bench_ranks(b, RANK(RUNNING), 1);
    bench_pass(b, 100);
    assert_string_equal(b->text[0], "the connection ended");
    assert_string_equal(b->text[1], "");
    b->rank.text = (char *)"another reason";
    bench_rank(b, 1, RANK(RUNNING), 1);
    bench_pass(b, 100);
    assert_string_equal(b->text[1], "another reason");
}

static void test_other_outcome_is_reported_too(void **state)
{
    struct bench *b = *state;
    uint8_t outcome[32] = {7};
    bench_run(b);
    bench_server(b, SERVER(PREPARE), 2);
    b->rank.outcome = (ProtobufCBinaryData){sizeof outcome, outcome};
    b->rank.outcome_step = 3;
    bench_rank(b, 0, RANK(QUIESCED), 2);
    b->rank.outcome_step = 4;
    bench_rank(b, 1, RANK(QUIESCED), 2);
    assert_int_equal(outcome_bytes(b, 0), sizeof outcome);
    assert_int_equal(outcome_bytes(b, 1), sizeof outcome);
}

int main(void)
{
#define CASE(function) cmocka_unit_test_setup_teardown(function, bench_open, bench_close)
    const struct CMUnitTest tests[] = {
        CASE(test_server_sets_the_pause),
        CASE(test_silent_server_is_asked_less_often),
        CASE(test_pause_is_at_most_a_quarter_of_the_lease),
        CASE(test_news_do_not_wait_for_the_pause),
        CASE(test_leaving_node_asks_steadily),
        CASE(test_one_rank_reports_the_failure),
        CASE(test_hearsay_waits_for_the_pause_of_many_nodes),
        CASE(test_go_waits_for_the_pause_of_many_nodes),
        CASE(test_report_replaces_the_next_heartbeat),
        CASE(test_ranks_of_a_node_report_together),
        CASE(test_dead_rank_does_not_follow),
        CASE(test_one_rank_reports_the_outcome),
        CASE(test_one_rank_reports_the_text),
        CASE(test_other_outcome_is_reported_too),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
