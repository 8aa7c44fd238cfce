/* The agent's state machine step by step: steps that no checkpoint has, and whose processes
 * died. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/sim/agent_bench.h"

#include <string.h>

enum { SERVER_IS_MISSED_MS = 2100, JOIN_MS = 12 * 5000 };

static void ranks_die(struct bench *b)
{
    for (uint32_t i = 0; i < RANKS; i++)
        bench_rank_exits(b, i, -9);
}

/* Both die in step 3, and no server is there. */
static void die_without_server(struct bench *b, uint32_t n_nodes)
{
    b->server.n_nodes = n_nodes;
    bench_run(b);
    bench_step(b, (struct dpt_agent_event){.kind = DPT_AGENT_EVENT_SERVER_DOWN});
    ranks_die(b);
}

/* No generation will report them. */
static void test_death_without_server_is_told_at_once(void **state)
{
    struct bench *b = *state;
    die_without_server(b, 1);
    assert_int_equal(b->lines, 2);
    assert_string_equal(b->warning, "rank process 1 (spawn 1) was killed by signal 9; the steps "
                                    "after 0, up to 3, are lost with it; starting it again in "
                                    "100 ms");
}

/* The line of the next generation reports it. */
static void test_death_with_server_is_told_later(void **state)
{
    struct bench *b = *state;
    b->server.n_nodes = 1;
    bench_run(b);
    ranks_die(b);
    assert_int_equal(b->lines, 0);
}

static void test_death_while_leaving_is_told_at_once(void **state)
{
    struct bench *b = *state;
    b->server.n_nodes = 1;
    bench_run(b);
    bench_signal(b);
    ranks_die(b);
    assert_string_equal(b->warning, "rank process 1 (spawn 1) was killed by signal 9; the steps "
                                    "after 0, up to 3, are lost with it");
}

/* Steps that it had made since its last message are counted, too. */
static void test_death_after_more_steps_than_it_said(void **state)
{
    struct bench *b = *state;
    b->server.n_nodes = 1;
    bench_run(b);
    bench_signal(b);
    b->kept_step = 7;
    ranks_die(b);
    assert_string_equal(b->warning, "rank process 1 (spawn 1) was killed by signal 9; the steps "
                                    "after 0, up to 7, are lost with it");
}

/* All steps in earlier messages are saved; later steps are not. */
static void test_silence_after_more_steps_than_it_said(void **state)
{
    struct bench *b = *state;
    b->server.n_nodes = 1;
    b->rank.checkpoint_step = 3;
    bench_run(b);
    bench_signal(b);
    const int64_t kept[RANKS] = {7, 6};
    bench_step(b, (struct dpt_agent_event){.kind = DPT_AGENT_EVENT_TICK, .steps = kept});
    b->kept_step = 7;
    ranks_die(b);
    assert_string_equal(b->warning, "rank process 1 (spawn 1) was killed by signal 9; the steps "
                                    "after 3, up to 7, are lost with it");
}

/* What it made since its last message is written and named, too. */
static void test_leave_with_more_steps_than_it_said(void **state)
{
    struct bench *b = *state;
    const int64_t kept[RANKS] = {9, 9};
    b->server.n_nodes = 1;
    bench_run(b);
    bench_step(b, (struct dpt_agent_event){.kind = DPT_AGENT_EVENT_SERVER_DOWN});
    bench_pass(b, SERVER_IS_MISSED_MS);
    bench_step(b, (struct dpt_agent_event){.kind = DPT_AGENT_EVENT_TICK, .steps = kept});
    bench_signal(b);
    for (int i = 0; i < 200 && b->kills[1] == 0; i++) /* they are frozen */
        bench_pass(b, 100);
    assert_int_equal(b->kills[1], 1);
    ranks_die(b);
    assert_non_null(strstr(b->warning, "NOT SAVED: the last 9 steps (after step 0, up to 9)"));
    assert_int_equal(b->exit_code, DPT_EXIT_EXPELLED);
}

/* One of two that held the same dies, and neither has said its newest step. */
static void one_of_two_dies(struct bench *b, int64_t survivors_step)
{
    const int64_t kept[RANKS] = {0, survivors_step};
    b->server.n_nodes = 1;
    bench_run(b);
    bench_step(b, (struct dpt_agent_event){.kind = DPT_AGENT_EVENT_SERVER_DOWN});
    bench_step(b, (struct dpt_agent_event){.kind = DPT_AGENT_EVENT_RANK_EXITED,
                                           .spawn = b->spawns[0],
                                           .step = 8,
                                           .steps = kept,
                                           .exit_code = -9});
}

static void test_the_other_rank_has_what_was_not_said(void **state)
{
    struct bench *b = *state;
    one_of_two_dies(b, 8);
    assert_string_equal(b->warning, "rank process 0 (spawn 1) was killed by signal 9; starting it "
                                    "again in 100 ms");
}

static void test_the_other_rank_is_a_step_behind(void **state)
{
    struct bench *b = *state;
    one_of_two_dies(b, 7);
    assert_string_equal(b->warning, "rank process 0 (spawn 1) was killed by signal 9; the steps "
                                    "after 7, up to 8, are lost with it; starting it again in 100 "
                                    "ms");
}

static void ends_with_loss(struct bench *b)
{
    for (int i = 0; i < 50 && !b->ended; i++)
        bench_pass(b, 100);
    for (uint32_t i = 0; i < RANKS && !b->ended; i++)
        bench_rank_exits(b, i, -9);
    assert_true(b->ended);
    assert_int_equal(b->unsaved, 1);
    assert_int_equal(b->exit_code, DPT_EXIT_EXPELLED);
    assert_string_equal(b->exit_text, "left the run, but its last 3 steps are not saved");
}

static void test_leave_without_server(void **state)
{
    struct bench *b = *state;
    die_without_server(b, 1);
    bench_pass(b, SERVER_IS_MISSED_MS);
    bench_signal(b);
    ends_with_loss(b);
}

/* No node is told to end, and the server does not come back. */
static void test_join_time_without_server(void **state)
{
    struct bench *b = *state;
    die_without_server(b, 1);
    b->rank.step_applied = -1;
    for (int64_t until_ms = b->now_ms + JOIN_MS + 2000; b->now_ms < until_ms && b->kills[0] == 0;) {
        bench_pass(b, 500);
        bench_ranks(b, RANK(STANDBY), 0);
    }
    ranks_die(b);
    assert_true(b->ended);
    assert_int_equal(b->unsaved, 1);
    assert_int_equal(b->exit_code, DPT_EXIT_EXPELLED);
    assert_string_equal(b->exit_text, "the rendezvous server has not answered for 60 s, and the "
                                      "last 3 steps died with rank processes here");
}

/* Where each rank holds everything the other node has the same. */
static void test_other_nodes_have_replicas(void **state)
{
    struct bench *b = *state;
    die_without_server(b, 2);
    assert_null(strstr(b->warning, "lost"));
    bench_pass(b, SERVER_IS_MISSED_MS);
    bench_signal(b);
    assert_string_equal(b->warning, "the last 3 steps (after step 0, up to 3) died with rank "
                                    "processes here; no checkpoint has them, but other nodes had "
                                    "the same");
    for (uint32_t i = 0; i < RANKS && !b->ended; i++)
        bench_rank_exits(b, i, 0);
    assert_true(b->ended);
    assert_int_equal(b->unsaved, 0);
    assert_int_equal(b->exit_code, DPT_EXIT_DONE);
}

/* The other node waits without limit, and needs this one. */
static void test_others_keep_the_steps(void **state)
{
    struct bench *b = *state;
    struct dpt_agent_view view;
    die_without_server(b, 2);
    b->rank.step_applied = -1;
    for (int64_t until_ms = b->now_ms + 5 * JOIN_MS; b->now_ms < until_ms && !b->ended;) {
        bench_pass(b, 500);
        bench_ranks(b, RANK(STANDBY), 0);
    }
    assert_false(b->ended);
    dpt_agent_view(b->agent, &view);
    assert_int_equal(view.steps_elsewhere, 3);
    bench_signal(b);
    ranks_die(b);
    assert_true(b->ended);
    assert_int_equal(b->unsaved, 0);
}

/* Each rank holds a half, and a shadow of another where `n` is 2. */
static void hold_parts(struct bench *b, Dpt__Shard shards[2], Dpt__Shard *list[2], size_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        shards[i] = (Dpt__Shard)DPT__SHARD__INIT;
        shards[i].index = i;
        shards[i].of = 4;
        list[i] = &shards[i];
    }
    b->rank.shards = list;
    b->rank.n_shards = n;
}

static void leave_with_parts(struct bench *b, size_t n)
{
    Dpt__Shard shards[2], *list[2];
    hold_parts(b, shards, list, n);
    die_without_server(b, 2);
    bench_pass(b, SERVER_IS_MISSED_MS);
    bench_signal(b);
    b->rank.n_shards = 0;
    for (uint32_t i = 0; i < RANKS && !b->ended; i++)
        bench_rank_exits(b, i, 0);
    assert_true(b->ended);
}

static void test_shards_without_shadow_are_lost(void **state)
{
    struct bench *b = *state;
    leave_with_parts(b, 1);
    assert_int_equal(b->unsaved, 1);
    assert_int_equal(b->exit_code, DPT_EXIT_EXPELLED);
}

static void test_shadows_are_elsewhere(void **state)
{
    struct bench *b = *state;
    leave_with_parts(b, 2);
    assert_int_equal(b->unsaved, 0);
    assert_int_equal(b->exit_code, DPT_EXIT_DONE);
}

/* Step 4 died and is elsewhere, but the other process holds step 3, which goes with the node. */
static void test_living_rank_is_behind(void **state)
{
    struct bench *b = *state;
    Dpt__Shard shards[2], *list[2];
    hold_parts(b, shards, list, 2);
    b->server.n_nodes = 2;
    bench_run(b);
    b->rank.step_applied = 4;
    bench_rank(b, 0, RANK(RUNNING), 1);
    bench_rank_exits(b, 0, -9);
    b->rank.n_shards = 0;
    bench_signal(b);
    bench_pass(b, 200);
    bench_signal(b);
    assert_int_equal(b->unsaved, 1);
    assert_non_null(strstr(b->warning, "up to 3) are in memory only"));
}

/* A process of this node that lives has the same: it writes the rescue. */
static void test_the_other_rank_has_it(void **state)
{
    struct bench *b = *state;
    b->server.n_nodes = 1;
    bench_run(b);
    bench_step(b, (struct dpt_agent_event){.kind = DPT_AGENT_EVENT_SERVER_DOWN});
    bench_rank_exits(b, 0, -9);
    assert_null(strstr(b->warning, "lost"));
    for (int i = 0; i < 30; i++) {
        bench_pass(b, 100);
        bench_rank(b, 1, RANK(QUIESCED), 1);
    }
    bench_signal(b);
    assert_int_equal(b->command[1], COMMAND(RESCUE));
    assert_false(b->ended);
    assert_int_equal(b->unsaved, 0);
}

/* ---- with a server ---- */

static void released(struct bench *b, bool last_holder, uint64_t generation)
{
    assert_false(b->ended);
    b->server.last_holder = last_holder;
    b->server.n_nodes = 0;
    bench_server(b, SERVER(RELEASED), generation);
}

/* Too few are here: the server is asked whether others have the steps. */
static void die_while_waiting(struct bench *b)
{
    b->server.n_nodes = 1;
    bench_wait_with_steps(b);
    ranks_die(b);
    assert_int_equal(b->lines, 2);
    bench_signal(b);
    assert_true(b->said && b->leaving);
}

static void test_leave_while_waiting(void **state)
{
    struct bench *b = *state;
    die_while_waiting(b);
    released(b, true, 2);
    ends_with_loss(b);
}

static void test_leave_while_others_wait_with_it(void **state)
{
    struct bench *b = *state;
    die_while_waiting(b);
    released(b, false, 2);
    for (uint32_t i = 0; i < RANKS && !b->ended; i++)
        bench_rank_exits(b, i, 0);
    assert_true(b->ended);
    assert_int_equal(b->unsaved, 0);
    assert_int_equal(b->exit_code, DPT_EXIT_DONE);
}

/* The word that it may go was lost with its connection, and is said again to a node that the server
 * does not count in any more. */
static void test_released_again(void **state)
{
    struct bench *b = *state;
    bench_run(b);
    bench_signal(b);
    bench_server(b, SERVER(PREPARE), 2);
    bench_ranks(b, RANK(QUIESCED), 2);
    b->server.last_holder = true;
    b->server.n_nodes = 1;
    b->server.phase = SERVER(RELEASED);
    b->server.counter = b->server.counter_seen = b->stamp.generation = 0;
    bench_step(b, (struct dpt_agent_event){.kind = DPT_AGENT_EVENT_SERVER_MESSAGE,
                                           .server_message = &b->server});
    for (uint32_t i = 0; i < RANKS; i++)
        bench_rank_exits(b, i, 0);
    assert_true(b->ended);
    assert_int_equal(b->unsaved, 1);
    assert_int_equal(b->exit_code, DPT_EXIT_EXPELLED);
}

/* The ranks are frozen when the node is told to end, and killed when a lease is over. */
static void freeze_and_leave(struct bench *b, Dpt__ServerPhase phase, uint64_t generation)
{
    bench_signal(b);
    for (int i = 0; i < 60 && b->kills[1] == 0; i++) {
        bench_pass(b, 100);
        bench_server(b, phase, generation);
    }
    assert_int_equal(b->kills[0], 1);
    assert_int_equal(b->kills[1], 1);
    assert_string_equal(b->warning, "rank process 1 (spawn 1) was silent too long and is killed; "
                                    "the steps after 0, up to 3, are lost with it");
    ranks_die(b);
    released(b, true, generation);
    ends_with_loss(b);
}

static void test_frozen_when_told_to_end(void **state)
{
    struct bench *b = *state;
    b->server.n_nodes = 1;
    bench_run(b);
    freeze_and_leave(b, SERVER(RUNNING), 1);
}

static void test_frozen_in_a_final_save(void **state)
{
    struct bench *b = *state;
    b->server.n_nodes = 1;
    bench_wait_with_steps(b);
    freeze_and_leave(b, SERVER(PREPARE), 3);
}

static void test_dead_just_before_the_signal(void **state)
{
    struct bench *b = *state;
    b->server.n_nodes = 1;
    bench_run(b);
    ranks_die(b);
    bench_server(b, SERVER(PREPARE), 2);
    bench_signal(b);
    assert_int_equal(b->lines, 0);
    released(b, true, 2);
    assert_int_equal(b->lines, 2); /* no generation has reported the cause */
    ends_with_loss(b);
}

/* The half that lives is of no use without the other. */
static void test_half_of_the_state(void **state)
{
    struct bench *b = *state;
    Dpt__Shard shards[2], *list[2];
    hold_parts(b, shards, list, 1);
    b->server.n_nodes = 1;
    bench_run(b);
    bench_rank_exits(b, 0, -9);
    bench_signal(b);
    bench_server(b, SERVER(PREPARE), 2);
    bench_rank(b, 1, RANK(QUIESCED), 2);
    released(b, true, 2);
    ends_with_loss(b);
}

/* The next generation reports the loss of the last one: it is not reported again. */
static void test_told_by_the_next_generation(void **state)
{
    struct bench *b = *state;
    b->server.n_nodes = 1;
    bench_run(b);
    ranks_die(b);
    bench_pass(b, 200);
    bench_ranks(b, RANK(STANDBY), 0);
    bench_server(b, SERVER(PREPARE), 2);
    b->rank.step_applied = 0;
    bench_ranks(b, RANK(QUIESCED), 2);
    bench_plan_of(b, 2, 2);
    bench_ranks(b, RANK(READY), 2);
    bench_server(b, SERVER(RUNNING), 2);
    bench_signal(b);
    released(b, false, 2);
    assert_int_equal(b->unsaved, 0);
    assert_int_equal(b->lines, 0);
}

/* Checkpoints are off: the lost steps are reported, and the node has left as commanded. */
static void test_nowhere_to_save(void **state)
{
    struct bench *b = *state;
    b->no_checkpoints = true;
    die_without_server(b, 1);
    bench_pass(b, SERVER_IS_MISSED_MS);
    bench_signal(b);
    for (uint32_t i = 0; i < RANKS && !b->ended; i++)
        bench_rank_exits(b, i, 0);
    assert_true(b->ended);
    assert_int_equal(b->unsaved, 1);
    assert_int_equal(b->exit_code, DPT_EXIT_DONE);
}

int main(void)
{
#define T(test) cmocka_unit_test_setup_teardown(test, bench_open, bench_close)
    const struct CMUnitTest tests[] = {
        T(test_death_without_server_is_told_at_once),
        T(test_death_with_server_is_told_later),
        T(test_death_while_leaving_is_told_at_once),
        T(test_death_after_more_steps_than_it_said),
        T(test_silence_after_more_steps_than_it_said),
        T(test_leave_with_more_steps_than_it_said),
        T(test_the_other_rank_has_what_was_not_said),
        T(test_the_other_rank_is_a_step_behind),
        T(test_leave_without_server),
        T(test_join_time_without_server),
        T(test_other_nodes_have_replicas),
        T(test_others_keep_the_steps),
        T(test_shards_without_shadow_are_lost),
        T(test_shadows_are_elsewhere),
        T(test_living_rank_is_behind),
        T(test_the_other_rank_has_it),
        T(test_leave_while_waiting),
        T(test_leave_while_others_wait_with_it),
        T(test_released_again),
        T(test_frozen_when_told_to_end),
        T(test_frozen_in_a_final_save),
        T(test_dead_just_before_the_signal),
        T(test_half_of_the_state),
        T(test_told_by_the_next_generation),
        T(test_nowhere_to_save),
    };
    return cmocka_run_group_tests_name("agent gone", tests, NULL, NULL);
}
