/* The agent's state machine when a run ends, by failure or by agreement, while this node holds
 * steps that are saved nowhere else: they are written as a rescue, with a server present. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/shard.h"
#include "tests/sim/agent_bench.h"

#include <string.h>

/* The run fails while a server answers: healthy ranks still write their state. */
static void test_rescue_of_a_failed_run(void **state)
{
    struct bench *b = *state;
    bench_wait_with_steps(b);
    b->server.text = "it waited 60 s for 2 nodes";
    bench_server(b, SERVER(FAILED), 2);
    assert_int_equal(b->command[0], COMMAND(RESCUE));
    bench_pass(b, 200);
    assert_false(b->said);
    bench_rescues(b);
    assert_int_equal(b->exit_code, DPT_EXIT_FAILED);
    assert_string_equal(b->exit_text, "the run failed: it waited 60 s for 2 nodes");
    assert_int_equal(b->unsaved, 0);
}

/* strategy.name: dp. Rank 0 trains for rank 1, which has the whole state and writes alone. */
static void test_rescue_by_the_rank_with_the_state(void **state)
{
    struct bench *b = *state;
    Dpt__Shard empty = DPT__SHARD__INIT, whole = DPT__SHARD__INIT, *empties[] = {&empty},
               *wholes[] = {&whole};
    empty.index = DPT_SHARD_EMPTY_INDEX;
    empty.of = DPT_SHARD_EMPTY_OF;
    whole.of = 1;
    bench_wait_with_steps(b);
    b->rank.n_shards = 1;
    b->rank.shards = wholes;
    bench_rank(b, 1, RANK(QUIESCED), 2);
    b->rank.shards = empties;
    bench_rank(b, 0, RANK(QUIESCED), 2);
    bench_server(b, SERVER(FAILED), 2);
    assert_int_equal(b->command[0], COMMAND(STANDBY));
    assert_int_equal(b->command[1], COMMAND(RESCUE));
    b->rank.shards = wholes;
    b->rank.rescued_step = 3;
    bench_rank(b, 1, RANK(QUIESCED), 2);
    bench_pass(b, 100);
    bench_ranks_are_gone(b);
    assert_int_equal(b->exit_code, DPT_EXIT_FAILED);
    assert_int_equal(b->unsaved, 0);
}

/* A launcher that ends all since one has ended: one signal is no second one. */
static void test_one_signal_while_a_failed_run_is_rescued(void **state)
{
    struct bench *b = *state;
    bench_wait_with_steps(b);
    b->server.text = "it waited 60 s for 2 nodes";
    bench_server(b, SERVER(FAILED), 2);
    bench_signal(b);
    assert_int_equal(b->command[0], COMMAND(RESCUE));
    assert_int_equal(b->kills[0] + b->kills[1], 0);
    bench_rescues(b);
    assert_int_equal(b->exit_code, DPT_EXIT_FAILED);
    assert_int_equal(b->unsaved, 0);
}

static void test_two_signals_while_a_failed_run_is_rescued(void **state)
{
    struct bench *b = *state;
    bench_wait_with_steps(b);
    bench_server(b, SERVER(FAILED), 2);
    bench_signal(b);
    bench_signal(b);
    assert_int_equal(b->kills[0] + b->kills[1], 2);
    assert_int_equal(b->unsaved, 1);
    bench_ranks_are_gone(b);
    assert_int_equal(b->exit_code, DPT_EXIT_EXPELLED);
}

/* A final save found no room in the one folder that it had: the folder of this node may have. */
static void test_rescue_after_a_final_save(void **state)
{
    struct bench *b = *state;
    bench_wait_with_steps(b);
    bench_signal(b);
    b->server.last_holder = true;
    b->server.n_nodes = 2;
    bench_server(b, SERVER(RELEASED), 2);
    assert_int_equal(b->command[0], COMMAND(RESCUE));
    bench_rescues(b);
    assert_int_equal(b->exit_code, DPT_EXIT_DONE);
    assert_int_equal(b->unsaved, 0);
}

/* Nor has that: the steps are counted, and may be elsewhere. */
static void test_no_rescue_after_a_final_save(void **state)
{
    struct bench *b = *state;
    bench_wait_with_steps(b);
    bench_signal(b);
    b->server.last_holder = true;
    b->server.n_nodes = 2;
    bench_server(b, SERVER(RELEASED), 2);
    b->rank.rescue_failed = true;
    bench_ranks(b, RANK(QUIESCED), 2);
    bench_pass(b, 100);
    assert_int_equal(b->command[0], COMMAND(EXIT));
    assert_int_equal(b->unsaved, 1);
    assert_non_null(strstr(b->warning, "unless another node has them"));
    bench_ranks_are_gone(b);
    assert_int_equal(b->exit_code, DPT_EXIT_EXPELLED);
    assert_string_equal(b->exit_text, "left the run, but its last 3 steps are not saved");
}

static void test_failed_run_without_a_folder(void **state)
{
    struct bench *b = *state;
    b->no_checkpoints = true;
    bench_wait_with_steps(b);
    bench_server(b, SERVER(FAILED), 2);
    assert_int_equal(b->command[0], COMMAND(EXIT));
    assert_int_equal(b->unsaved, 1);
}

int main(void)
{
#define T(test) cmocka_unit_test_setup_teardown(test, bench_open, bench_close)
    const struct CMUnitTest tests[] = {
        T(test_rescue_of_a_failed_run),
        T(test_rescue_by_the_rank_with_the_state),
        T(test_one_signal_while_a_failed_run_is_rescued),
        T(test_two_signals_while_a_failed_run_is_rescued),
        T(test_rescue_after_a_final_save),
        T(test_no_rescue_after_a_final_save),
        T(test_failed_run_without_a_folder),
    };
    return cmocka_run_group_tests_name("agent failed", tests, NULL, NULL);
}
