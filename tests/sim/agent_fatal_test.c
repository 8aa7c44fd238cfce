/* The agent's state machine step by step: errors of a rank or of the machine that no restart can
 * repair. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/sim/agent_bench.h"

#include <stdio.h>
#include <string.h>

static void test_fatal_error_of_rank_ends_node(void **state)
{
    struct bench *b = *state;
    bench_run(b);
    Dpt__RankToAgent message = DPT__RANK_TO_AGENT__INIT;
    message.fatal = true;
    message.exit_code = DPT_EXIT_CONFIG;
    bench_last_words(b, 0, "shard is truncated", &message);
    assert_true(b->said && b->fatal);
    assert_string_equal(b->first_error, "rank process 0: shard is truncated");
    b->server.text = "node a: rank process 0: shard is truncated";
    bench_server(b, SERVER(FAILED), 1);
    /* The other rank may be healthy: it writes its state, and is asked first. */
    assert_int_equal(b->kills[0] + b->kills[1], 0);
    assert_int_equal(b->command[1], COMMAND(RESCUE));
    b->rank.rescued_step = 3;
    bench_rank(b, 1, RANK(QUIESCED), 1);
    bench_pass(b, 100);
    assert_int_equal(b->command[1], COMMAND(EXIT));
    bench_rank_exits(b, 0, DPT_EXIT_CONFIG);
    bench_pass(b, 1000);
    assert_int_equal(b->kills[1], 1);
    bench_rank_exits(b, 1, -9);
    assert_true(b->ended);
    assert_int_equal(b->unsaved, 0);
    assert_int_equal(b->exit_code, DPT_EXIT_CONFIG);
    assert_non_null(strstr(b->exit_text, "the run failed: node a: rank process 0"));
}

/* The rank processes have ended before the server's message comes: their steps are reported as not
 * saved. `said` is that message, which the closing line repeats. */
static void fail_after_deaths(struct bench *b, char *error, char *said)
{
    bench_run(b);
    Dpt__RankToAgent message = DPT__RANK_TO_AGENT__INIT;
    message.fatal = true;
    message.exit_code = DPT_EXIT_FAILED;
    bench_last_words(b, 0, error, &message);
    for (uint32_t i = 0; i < RANKS; i++)
        bench_rank_exits(b, i, DPT_EXIT_FAILED);
    b->server.text = said;
    bench_server(b, SERVER(FAILED), 1);
    assert_true(b->ended);
    assert_int_equal(b->exit_code, DPT_EXIT_FAILED);
    assert_int_equal(b->unsaved, 1);
}

static void test_fatal_is_told_once(void **state)
{
    struct bench *b = *state;
    fail_after_deaths(b, "the last checkpoint: no space",
                      "node a: rank process 0: the last checkpoint: no space");
    assert_string_equal(b->exit_text, "the run failed: node a: rank process 0: the last "
                                      "checkpoint: no space");
    assert_int_equal(b->lines, 1);
}

/* The server cuts it, and it is the same. */
static void test_long_fatal_is_told_once(void **state)
{
    struct bench *b = *state;
    char error[1000], said[1000];
    memset(error, 'x', sizeof error - 1);
    error[sizeof error - 1] = '\0';
    (void)snprintf(said, sizeof said, "node a: rank process 0: %.424s", error);
    fail_after_deaths(b, error, said);
    assert_int_equal(b->lines, 1);
}

/* The closing line has the error of another node; the error of this node is a separate line. */
static void test_fatal_beside_another(void **state)
{
    struct bench *b = *state;
    fail_after_deaths(b, "the last checkpoint: no space", "node b: rank process 0: no such file");
    assert_int_equal(b->lines, 2);
    assert_non_null(strstr(b->exit_text, "no such file"));
}

/* Others train: they go on without this node, which ends as if the run had failed. */
static void test_fatal_to_itself(void **state)
{
    struct bench *b = *state;
    bench_join(b);
    Dpt__RankToAgent message = DPT__RANK_TO_AGENT__INIT;
    message.fatal = true;
    message.exit_code = DPT_EXIT_CONFIG;
    bench_last_words(b, 0, "no such device", &message);
    bench_server(b, SERVER(EXPELLED), 1);
    assert_int_equal(b->command[1], COMMAND(EXIT));
    bench_rank_exits(b, 0, DPT_EXIT_CONFIG);
    bench_rank_exits(b, 1, 0);
    assert_true(b->ended);
    assert_int_equal(b->exit_code, DPT_EXIT_CONFIG);
    assert_string_equal(b->exit_text, "rank process 0: no such device");
    assert_int_equal(b->spawns[0] + b->spawns[1], 2);
}

/* The other nodes have its steps. */
static void test_fatal_to_a_member(void **state)
{
    struct bench *b = *state;
    bench_run(b);
    Dpt__RankToAgent message = DPT__RANK_TO_AGENT__INIT;
    message.fatal = true;
    bench_last_words(b, 0, "no such file", &message);
    b->server.world_step = 3;
    bench_server(b, SERVER(EXPELLED), 1);
    assert_int_equal(b->command[1], COMMAND(EXIT));
    assert_int_equal(b->unsaved, 0);
}

/* Nobody else is known to have them. */
static void test_fatal_to_a_member_with_a_shard(void **state)
{
    struct bench *b = *state;
    bench_run(b);
    Dpt__RankToAgent message = DPT__RANK_TO_AGENT__INIT;
    message.fatal = true;
    bench_last_words(b, 0, "no such file", &message);
    bench_server(b, SERVER(EXPELLED), 1);
    assert_int_equal(b->command[1], COMMAND(EXIT));
    assert_int_equal(b->unsaved, 1);
}

/* A young server does not know yet whether others train. The agent does not wait for it. */
static void test_fatal_on_a_young_server(void **state)
{
    struct bench *b = *state;
    bench_join(b);
    Dpt__RankToAgent message = DPT__RANK_TO_AGENT__INIT;
    message.fatal = true;
    message.exit_code = DPT_EXIT_CONFIG;
    const uint64_t before = b->agent_counter;
    bench_last_words(b, 0, "no such file", &message);
    assert_true(b->said && b->fatal);
    const uint64_t told = b->agent_counter;
    bench_rank_exits(b, 0, DPT_EXIT_CONFIG);
    b->agent_counter = before; /* its answer to an earlier message comes late */
    bench_server(b, SERVER(WAITING), 0);
    assert_int_equal(b->command[1], COMMAND(STANDBY));
    b->agent_counter = told;
    bench_server(b, SERVER(WAITING), 0);
    assert_int_equal(b->command[1], COMMAND(EXIT));
    bench_rank_exits(b, 1, 0);
    assert_true(b->ended);
    assert_int_equal(b->exit_code, DPT_EXIT_CONFIG);
    assert_string_equal(b->exit_text, "rank process 0: no such file");
    assert_int_equal(b->lines, 0);
}

/* What a later process of one place lacks is no reason to end while others of the node are at work.
 */
static void test_fatal_in_one_place(void **state)
{
    struct bench *b = *state;
    bench_run(b);
    bench_rank_exits(b, 1, 1);
    for (int i = 0; i < 10 && b->spawns[1] == 1; i++)
        bench_pass(b, 50);
    assert_int_equal(b->spawns[1], 2);
    Dpt__RankToAgent message = DPT__RANK_TO_AGENT__INIT;
    message.fatal = true;
    b->rank.text = "the data were changed";
    b->rank.local_rank = 1;
    b->rank.phase = RANK(STARTING);
    message.state = &b->rank;
    bench_step(b, (struct dpt_agent_event){.kind = DPT_AGENT_EVENT_RANK_MESSAGE,
                                           .local_rank = 1,
                                           .spawn = 2,
                                           .rank_message = &message});
    assert_false(b->fatal);
    bench_rank_exits(b, 1, DPT_EXIT_CONFIG);
    b->rank.text = "";
    for (int i = 0; i < 80; i++) {
        bench_pass(b, 100);
        bench_rank(b, 0, RANK(RUNNING), 1);
    }
    assert_int_equal(b->spawns[1], 2);
    assert_int_equal(b->crashes, 1);
    assert_false(b->fatal);
    assert_false(b->ended);
}

/* A rank that cannot read its data still holds a valid state. It stays to write a rescue. */
static void test_rescue_by_a_rank_with_a_fatal_error(void **state)
{
    struct bench *b = *state;
    bench_wait_with_steps(b);
    Dpt__RankToAgent message = DPT__RANK_TO_AGENT__INIT;
    message.fatal = message.sound = true;
    message.exit_code = DPT_EXIT_FAILED;
    bench_last_words(b, 0, "the text was changed", &message);
    bench_server(b, SERVER(FAILED), 2);
    assert_int_equal(b->command[0], COMMAND(RESCUE));
    message.sound = false; /* another has died of it */
    bench_last_words(b, 0, "the device is gone", &message);
    bench_pass(b, 100);
    assert_int_equal(b->command[0], COMMAND(STANDBY));
}

#define T(test) cmocka_unit_test_setup_teardown(test, bench_open, bench_close)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_fatal_error_of_rank_ends_node),
        T(test_fatal_is_told_once),
        T(test_long_fatal_is_told_once),
        T(test_fatal_beside_another),
        T(test_fatal_to_itself),
        T(test_fatal_to_a_member),
        T(test_fatal_to_a_member_with_a_shard),
        T(test_fatal_on_a_young_server),
        T(test_fatal_in_one_place),
        T(test_rescue_by_a_rank_with_a_fatal_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
