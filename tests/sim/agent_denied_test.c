/* The agent's state machine with a server that does not take this machine's keys. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/sim/agent_bench.h"

#include <string.h>

enum { JOIN_MS = 12 * 5000 };

static void server_denies(struct bench *b, const char *text)
{
    bench_server_goes(b);
    bench_step(b, (struct dpt_agent_event){.kind = DPT_AGENT_EVENT_SERVER_DENIES, .text = text});
}

/* Such a server is no reason to wait without limit: the steps are saved. */
static void test_denied_node_saves_its_steps(void **state)
{
    struct bench *b = *state;
    bench_wait_with_steps(b);
    server_denies(b, "the key is denied");
    bench_wait_in(b, RANK(QUIESCED), 2, JOIN_MS - 5000);
    assert_int_not_equal(b->command[0], COMMAND(RESCUE));
    bench_wait_in(b, RANK(QUIESCED), 2, 5500);
    assert_int_equal(b->command[0], COMMAND(RESCUE));
    assert_non_null(strstr(b->warning, "does not take this machine's keys"));
    bench_rescues(b);
    assert_int_equal(b->exit_code, DPT_EXIT_DENIED);
    assert_string_equal(b->exit_text, "the key is denied");
    assert_int_equal(b->unsaved, 0);
    assert_non_null(
        strstr(b->warning, "is saved here; the other nodes of the run may have gone on"));
}

static void test_denied_node_that_computes_goes_on(void **state)
{
    struct bench *b = *state;
    bench_run(b);
    server_denies(b, "the key is denied");
    bench_wait_in(b, RANK(RUNNING), 1, 3 * JOIN_MS);
    assert_false(b->ended);
    assert_int_equal(b->command[0], COMMAND(GO));
}

/* The peers have gone on without the node: its generation has failed, and no order comes. */
static void test_denied_node_that_has_lost_its_peers(void **state)
{
    struct bench *b = *state;
    bench_run(b);
    server_denies(b, "the key is denied");
    b->rank.failed_generation = 1;
    bench_wait_in(b, RANK(RUNNING), 1, JOIN_MS + 500);
    assert_int_equal(b->command[0], COMMAND(RESCUE));
    bench_rescues(b);
    assert_int_equal(b->exit_code, DPT_EXIT_DENIED);
}

/* The cause becomes known after the first failures. */
static void test_newest_cause_is_in_the_closing_line(void **state)
{
    struct bench *b = *state;
    bench_configure(b);
    server_denies(b, "another key, or busy");
    bench_pass(b, JOIN_MS - 5000);
    server_denies(b, "the server has no keys");
    bench_pass(b, 5500);
    assert_int_equal(b->exit_code, DPT_EXIT_DENIED);
    assert_string_equal(b->exit_text, "the server has no keys");
}

/* A server that comes back after a long time may be overloaded, which looks alike at first. */
static void test_denial_after_an_outage_has_its_own_time(void **state)
{
    struct bench *b = *state;
    bench_wait_with_steps(b);
    bench_server_goes(b);
    bench_wait_in(b, RANK(QUIESCED), 2, 3 * JOIN_MS);
    bench_step(b, (struct dpt_agent_event){.kind = DPT_AGENT_EVENT_SERVER_DENIES, .text = "busy?"});
    bench_wait_in(b, RANK(QUIESCED), 2, JOIN_MS - 5000);
    assert_int_not_equal(b->command[0], COMMAND(RESCUE));
    bench_wait_in(b, RANK(QUIESCED), 2, 5500);
    assert_int_equal(b->command[0], COMMAND(RESCUE));
}

static void test_denial_that_ends_is_forgotten(void **state)
{
    struct bench *b = *state;
    bench_wait_with_steps(b);
    server_denies(b, "the key is denied");
    bench_wait_in(b, RANK(QUIESCED), 2, JOIN_MS / 2);
    server_denies(b, "");
    bench_wait_in(b, RANK(QUIESCED), 2, 3 * JOIN_MS);
    assert_false(b->ended);
    assert_int_not_equal(b->command[0], COMMAND(RESCUE));
}

static void test_denied_node_that_never_joined(void **state)
{
    struct bench *b = *state;
    bench_configure(b);
    server_denies(b, "the server has another key");
    bench_pass(b, JOIN_MS - 5000);
    assert_false(b->ended);
    bench_pass(b, 5500);
    assert_true(b->ended);
    assert_int_equal(b->exit_code, DPT_EXIT_DENIED);
    assert_string_equal(b->exit_text, "the server has another key");
}

int main(void)
{
#define T(test) cmocka_unit_test_setup_teardown(test, bench_open, bench_close)
    const struct CMUnitTest tests[] = {
        T(test_denied_node_saves_its_steps),
        T(test_denied_node_that_computes_goes_on),
        T(test_denial_after_an_outage_has_its_own_time),
        T(test_denied_node_that_has_lost_its_peers),
        T(test_denial_that_ends_is_forgotten),
        T(test_denied_node_that_never_joined),
        T(test_newest_cause_is_in_the_closing_line),
    };
    return cmocka_run_group_tests_name("agent denied", tests, NULL, NULL);
}
