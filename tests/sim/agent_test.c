/* The agent's machine by hand: joining, stale words, and its rank processes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/sim/agent_bench.h"

#include <string.h>

/* ---- joining ---- */

static void test_no_server(void **state)
{
    struct bench *b = *state;
    bench_configure(b);
    bench_pass(b, 59000);
    assert_false(b->ended);
    bench_pass(b, 2000);
    assert_true(b->ended);
    assert_int_equal(b->exit_code, DPT_EXIT_SERVER);
    assert_non_null(strstr(b->exit_text, "no rendezvous server answered within 60 s"));
    assert_int_equal(b->spawns[0], 0);
}

static void test_config_from_server(void **state)
{
    struct bench *b = *state;
    bench_step(b, (struct dpt_agent_event){.kind = DPT_AGENT_EVENT_SERVER_UP});
    assert_true(b->said && !b->has_spec);
    Dpt__RunSpec spec = bench_spec();
    b->server.spec = &spec;
    b->agent_counter = 0; /* not counted in */
    bench_server(b, SERVER(WAITING), 0);
    assert_true(b->asked_config && b->config_given);
    b->asked_config = false;
    bench_server(b, SERVER(WAITING), 0);
    assert_false(b->asked_config); /* once */
    bench_configure(b);
    assert_true(b->said && b->has_spec);
    assert_int_equal(b->said_epoch, 0);
}

/* It asks for the config without an identity, and joins with the identity beside its logs. */
static void test_identity_comes_with_the_config(void **state)
{
    struct bench *b = *state;
    const Dpt__RunSpec spec = bench_spec();
    struct dpt_agent_facts facts = {.spec = &spec,
                                    .n_ranks = RANKS,
                                    .fingerprint = "cpu",
                                    .host = "host",
                                    .rack = "rack",
                                    .log_dir_id = "logs",
                                    .checkpoint_dir_id = "checkpoints",
                                    .data_digest = "data",
                                    .secret = {4, 5, 6},
                                    .incarnation = 1000};
    bench_step(b, (struct dpt_agent_event){.kind = DPT_AGENT_EVENT_SERVER_UP});
    assert_int_equal(b->out.to_server->stamp->incarnation, 5);
    assert_int_equal(b->out.to_server->secret.len, 0);
    bench_step(b, (struct dpt_agent_event){.kind = DPT_AGENT_EVENT_CONFIGURED, .facts = &facts});
    assert_int_equal(b->out.to_server->stamp->incarnation, 1000);
    assert_string_equal(b->out.to_server->rack, facts.rack);
    assert_int_equal(b->out.to_server->secret.len, sizeof facts.secret);
    assert_memory_equal(b->out.to_server->secret.data, facts.secret, sizeof facts.secret);
}

/* The time that is left is shown as it was when the nodes that are here came, not counted down. */
static void test_last_call_is_told(void **state)
{
    struct bench *b = *state;
    struct dpt_agent_view view;
    bench_configure(b);
    bench_step(b, (struct dpt_agent_event){.kind = DPT_AGENT_EVENT_SERVER_UP});
    b->server.n_nodes = 1;
    b->server.last_call_ms = 4400;
    b->server.text = "the server has just been started";
    bench_server(b, SERVER(SETTLING), 0);
    b->server.last_call_ms = 4300;
    bench_server(b, SERVER(SETTLING), 0);
    dpt_agent_view(b->agent, &view);
    assert_int_equal(view.last_call.length_ms, 4400);
    assert_string_equal(view.last_call.reason, "the server has just been started");
    b->server.n_nodes = 2;
    b->server.last_call_ms = 3000;
    bench_server(b, SERVER(SETTLING), 0);
    dpt_agent_view(b->agent, &view);
    assert_int_equal(view.last_call.length_ms, 3000);
    bench_server(b, SERVER(WAITING), 0);
    dpt_agent_view(b->agent, &view);
    assert_string_equal(view.last_call.reason, "");
}

static void test_config_of_the_demo(void **state)
{
    struct bench *b = *state;
    bench_step(b, (struct dpt_agent_event){.kind = DPT_AGENT_EVENT_SERVER_UP});
    b->agent_counter = 0;
    bench_server(b, SERVER(WAITING), 0);
    assert_true(b->asked_config && !b->config_given);
}

static void test_refused_agent_ends(void **state)
{
    struct bench *b = *state;
    bench_configure(b);
    bench_step(b, (struct dpt_agent_event){.kind = DPT_AGENT_EVENT_SERVER_UP});
    Dpt__RunSpec spec = bench_spec();
    b->server.spec = &spec;
    b->server.text = "the config differs";
    b->agent_counter = 0;
    bench_server(b, SERVER(REFUSED), 0);
    assert_true(b->ended);
    assert_int_equal(b->exit_code, DPT_EXIT_CONFIG);
    assert_true(b->exit_has_spec); /* to name the keys */
    assert_non_null(strstr(b->exit_text, "the config differs"));
}

static void test_server_of_other_version(void **state)
{
    struct bench *b = *state;
    bench_configure(b);
    b->server.version = DPT_PROTO_VERSION + 1;
    bench_server(b, SERVER(WAITING), 0);
    assert_true(b->ended);
    assert_int_equal(b->exit_code, DPT_EXIT_CONFIG);
}

static void test_older_version(void **state)
{
    struct bench *b = *state;
    bench_configure(b);
    b->server.version = 1;
    b->server.text = "this worker speaks protocol 2";
    bench_server(b, SERVER(REFUSED), 0);
    assert_true(b->ended);
    assert_int_equal(b->exit_code, DPT_EXIT_CONFIG);
    assert_non_null(strstr(b->exit_text, "the server speaks protocol 1"));
    assert_non_null(strstr(b->exit_text, "protocol 2"));
}

static void test_not_for_us(void **state)
{
    struct bench *b = *state;
    bench_configure(b);
    bench_step(b, (struct dpt_agent_event){.kind = DPT_AGENT_EVENT_SERVER_UP});
    b->stamp.incarnation = 4; /* to an earlier life */
    bench_server(b, SERVER(EXPELLED), 0);
    b->stamp.incarnation = 5;
    b->stamp.node = "b";
    bench_server(b, SERVER(FAILED), 0);
    b->stamp.node = "a";
    b->stamp.run = "other";
    bench_server(b, SERVER(DONE), 0);
    assert_false(b->ended);
    assert_int_equal(b->spawns[0], 0);
}

/* ---- stale words ---- */

static void test_stale_server(void **state)
{
    struct bench *b = *state;
    bench_run(b);
    b->server_counter = 1; /* an old PREPARE comes again */
    bench_server(b, SERVER(PREPARE), 1);
    assert_int_equal(b->command[0], COMMAND(GO));
    b->server_counter = 100;
    bench_server(b, SERVER(WAITING), 0); /* says nothing about running processes */
    bench_pass(b, 200);
    assert_int_equal(b->command[0], COMMAND(GO));
    bench_server(b, SERVER(PREPARE), 2);
    assert_int_equal(b->command[0], COMMAND(PREPARE));
    assert_int_equal(b->generation[0], 2);
}

static void test_restarted_server(void **state)
{
    struct bench *b = *state;
    bench_run(b);
    bench_server(b, SERVER(RUNNING), 1);
    bench_pass(b, 200);
    assert_false(b->has_spec);
    b->stamp.epoch = 10;
    uint64_t counter = b->agent_counter;
    b->agent_counter = 0; /* it does not know us */
    bench_server(b, SERVER(WAITING), 0);
    assert_true(b->said && b->has_spec);
    assert_int_equal(b->said_epoch, 9);
    assert_int_equal(b->said_generation, 1);
    assert_int_equal(b->command[0], COMMAND(GO)); /* training goes on */
    b->agent_counter = counter + 1;
    b->server_counter = 0;
    bench_server(b, SERVER(RUNNING), 1);
    bench_pass(b, 200);
    assert_int_equal(b->said_epoch, 10);
    /* A late word of the dead server. */
    b->stamp.epoch = 9;
    b->server_counter = 1000;
    b->agent_counter = counter - 1;
    bench_server(b, SERVER(PREPARE), 7);
    assert_int_equal(b->command[0], COMMAND(GO));
}

static void test_stale_spawn(void **state)
{
    struct bench *b = *state;
    bench_run(b);
    bench_rank_exits(b, 0, -9);
    assert_int_equal(b->phase[0], RANK(DEAD));
    bench_pass(b, 150);
    assert_int_equal(b->spawns[0], 2);
    b->spawns[0] = 1;
    bench_rank(b, 0, RANK(RUNNING), 1); /* last words of the dead one */
    b->spawns[0] = 1;
    bench_rank_exits(b, 0, 0);
    bench_pass(b, 100);
    assert_int_equal(b->phase[0], RANK(STARTING));
    assert_int_equal(b->crashes, 1);
}

/* ... not even when it has quiesced for the same generation: the plan was made from the report of
 * the one before it. */
static void test_plan_names_a_process(void **state)
{
    struct bench *b = *state;
    bench_join(b);
    bench_server(b, SERVER(PREPARE), 1);
    bench_ranks(b, RANK(QUIESCED), 1);
    bench_rank_exits(b, 0, -9);
    bench_pass(b, 150);
    bench_rank(b, 0, RANK(STANDBY), 0);
    bench_rank(b, 0, RANK(QUIESCED), 1);
    bench_plan(b);
    assert_int_equal(b->command[0], COMMAND(STANDBY));
    assert_int_equal(b->command[1], COMMAND(PLAN));
}

/* What it had said of a peer is not why it died. */
static void test_why_it_died(void **state)
{
    struct bench *b = *state;
    bench_run(b);
    b->rank.failed_generation = 1;
    b->rank.text = (char[]){"rank 2 is lost"};
    bench_rank(b, 0, RANK(RUNNING), 1);
    bench_rank_exits(b, 0, -9);
    assert_string_equal(b->text[0], "was killed by signal 9");
    assert_non_null(strstr(b->first_error, "was killed by signal 9"));
}

/* A successor is not sent into the generation of its predecessor. */
static void test_successor_is_a_joiner(void **state)
{
    struct bench *b = *state;
    bench_run(b);
    bench_rank_exits(b, 0, 1);
    bench_pass(b, 150);
    bench_rank(b, 0, RANK(STANDBY), 0);
    bench_pass(b, 150);
    assert_int_equal(b->command[0], COMMAND(STANDBY));
    assert_int_equal(b->command[1], COMMAND(GO));
}

/* ---- ranks ---- */

static void test_crashes_back_off(void **state)
{
    struct bench *b = *state;
    bench_run(b);
    int64_t pause_ms = 0;
    for (uint32_t i = 1; i <= 8; i++) {
        bench_rank_exits(b, 1, 1);
        int64_t from_ms = b->now_ms;
        while (b->spawns[1] == i) {
            b->now_ms = b->out.deadline_ms;
            bench_rank(b, 0, RANK(RUNNING), 1);
            bench_step(b, (struct dpt_agent_event){.kind = DPT_AGENT_EVENT_TICK});
        }
        assert_true(b->now_ms - from_ms >= pause_ms);
        assert_true(b->now_ms - from_ms <= 5000);
        pause_ms = b->now_ms - from_ms;
    }
    assert_true(pause_ms >= 4000);
    assert_int_equal(b->crashes, 1); /* the others never stood by */
    assert_string_equal(b->first_error, "rank process 1: exited with status 1");
    b->rank.step_applied = 13; /* ten steps on: overcome */
    bench_rank(b, 0, RANK(RUNNING), 1);
    bench_pass(b, 100);
    assert_string_equal(b->first_error, "");
}

static void test_silent_rank(void **state)
{
    struct bench *b = *state;
    bench_run(b);
    for (int i = 0; i < 44; i++) {
        bench_pass(b, 100);
        bench_server(b, SERVER(RUNNING), 1);
        bench_rank(b, 0, RANK(RUNNING), 1);
    }
    assert_int_equal(b->kills[1], 0);
    bench_pass(b, 300);
    assert_int_equal(b->kills[1], 1);
    assert_int_equal(b->kills[0], 0);
    assert_int_equal(b->phase[1], RANK(DEAD));
    assert_in_range(b->silent_ms[1], 4501, 4700); /* the time until it was noticed */
    bench_rank_exits(b, 1, -9);
    assert_int_equal(b->crashes, 1); /* not counted twice */
    bench_rank(b, 0, RANK(RUNNING), 1);
    bench_pass(b, 30);
    bench_rank_exits(b, 0, -9);
    assert_int_equal(b->phase[0], RANK(DEAD));
    assert_int_equal(b->silent_ms[0], 30);
}

/* How far the node was outlives its processes, until the next generation is sent off. */
static void test_step_high(void **state)
{
    struct bench *b = *state;
    bench_run(b);
    b->rank.step_applied = 7;
    bench_ranks(b, RANK(RUNNING), 1);
    bench_rank_exits(b, 0, -9);
    bench_rank_exits(b, 1, -9);
    b->rank.step_applied = -1;
    bench_pass(b, 1000);
    bench_ranks(b, RANK(STANDBY), 0);
    assert_int_equal(b->step_high, 7);
    bench_server(b, SERVER(PREPARE), 2);
    bench_ranks(b, RANK(QUIESCED), 2);
    bench_plan_of(b, 2, 2);
    assert_int_equal(b->step_high, 7);
    b->rank.step_applied = 0;
    bench_ranks(b, RANK(READY), 2);
    bench_server(b, SERVER(RUNNING), 2);
    bench_pass(b, 200);
    assert_int_equal(b->step_high, 0);
}

static void test_no_quiescence(void **state)
{
    struct bench *b = *state;
    bench_run(b);
    bench_server(b, SERVER(PREPARE), 2);
    bench_rank(b, 0, RANK(QUIESCED), 2);
    for (int i = 0; i < 49; i++) {
        bench_pass(b, 100);
        bench_server(b, SERVER(PREPARE), 2);
        bench_rank(b, 0, RANK(QUIESCED), 2);
        bench_rank(b, 1, RANK(RUNNING), 1); /* lives, but its main thread hangs */
    }
    assert_int_equal(b->kills[1], 0);
    bench_pass(b, 300);
    assert_int_equal(b->kills[1], 1);
    assert_int_equal(b->kills[0], 0);
}

/* The process of a place ends each time as soon as it starts, until no other is started. Returns
 * the number of starts. */
static uint32_t end_every_start(struct bench *b, uint32_t local, bool other_runs)
{
    uint32_t n = 0;
    for (uint32_t seen = 0; b->spawns[local] > seen; n++) {
        seen = b->spawns[local];
        bench_rank_exits(b, local, 1);
        for (int i = 0; i < 60 && b->spawns[local] == seen && !b->fatal; i++) {
            bench_pass(b, 100);
            if (other_runs)
                bench_rank(b, 1 - local, RANK(RUNNING), 1);
        }
    }
    return n;
}

/* A place where no process can start stays empty; a node with only such places ends. */
static void test_nothing_starts(void **state)
{
    struct bench *b = *state;
    bench_run(b);
    assert_int_equal(end_every_start(b, 1, true), 11); /* the first had run */
    assert_int_equal(b->crashes, 1); /* a process that never took part costs the run nothing */
    assert_false(b->fatal);
    const int64_t from_ms = b->now_ms;
    for (int i = 0; i < 20; i++) { /* nothing is due for it: heartbeats alone */
        b->now_ms = b->out.deadline_ms;
        bench_step(b, (struct dpt_agent_event){.kind = DPT_AGENT_EVENT_TICK});
    }
    assert_true(b->now_ms - from_ms >= 19 * 100);
    bench_server(b, SERVER(RUNNING), 1); /* it has been silent for half a minute */
    assert_int_equal(end_every_start(b, 0, false), 11);
    assert_int_equal(b->spawns[1], 11);
    assert_true(b->fatal);
    assert_non_null(strstr(b->first_error, "rank process 0: 10 processes in a row ended before"));
    assert_non_null(strstr(b->first_error, "exited with status 1"));
    bench_server(b, SERVER(FAILED), 1);
    assert_true(b->ended);
    assert_int_equal(b->exit_code, DPT_EXIT_FAILED);
}

/* A rank whose device broke is started again; nothing ends with it. */
static void test_rank_with_broken_device_restarts(void **state)
{
    struct bench *b = *state;
    bench_run(b);
    Dpt__RankToAgent message = DPT__RANK_TO_AGENT__INIT;
    message.broken = true;
    bench_last_words(b, 1, "step 3: the device is gone", &message);
    assert_true(b->said && !b->fatal);
    assert_int_equal(b->kills[1], 1);
    assert_int_equal(b->kills[0], 0);
    assert_int_equal(b->phase[1], RANK(DEAD));
    assert_string_equal(b->text[1], "step 3: the device is gone");
    assert_string_equal(b->first_error, "rank process 1: step 3: the device is gone");
    bench_rank_exits(b, 1, -9);
    assert_int_equal(b->crashes, 1);
    bench_pass(b, 1000);
    assert_int_equal(b->spawns[1], 2);
    assert_int_equal(b->spawns[0], 1);
    assert_false(b->ended);
}

/* Each rank reports the world's rate and loss; a rank that was healed and has made no step knows
 * none. */
static void test_view_is_the_worlds(void **state)
{
    struct bench *b = *state;
    struct dpt_agent_view view;
    bench_run(b);
    b->rank.step_applied = 4;
    b->rank.loss = 2.5f;
    b->tokens_per_s = 100;
    bench_rank(b, 0, RANK(RUNNING), 1);
    b->rank.loss = 0;
    b->tokens_per_s = 0;
    bench_rank(b, 1, RANK(RUNNING), 1);
    dpt_agent_view(b->agent, &view);
    assert_int_equal(view.step, 4);
    assert_float_equal(view.tokens_per_s, 100, 0);
    assert_float_equal(view.loss, 2.5f, 0);
    b->rank.loss = 2.5f;
    b->tokens_per_s = 100;
    bench_rank(b, 1, RANK(RUNNING), 1);
    dpt_agent_view(b->agent, &view);
    assert_float_equal(view.tokens_per_s, 100, 0);
}

int main(void)
{
#define T(test) cmocka_unit_test_setup_teardown(test, bench_open, bench_close)
    const struct CMUnitTest tests[] = {
        T(test_no_server),
        T(test_view_is_the_worlds),
        T(test_config_from_server),
        T(test_identity_comes_with_the_config),
        T(test_last_call_is_told),
        T(test_config_of_the_demo),
        T(test_refused_agent_ends),
        T(test_server_of_other_version),
        T(test_older_version),
        T(test_not_for_us),
        T(test_stale_server),
        T(test_restarted_server),
        T(test_stale_spawn),
        T(test_why_it_died),
        T(test_successor_is_a_joiner),
        T(test_plan_names_a_process),
        T(test_crashes_back_off),
        T(test_silent_rank),
        T(test_step_high),
        T(test_no_quiescence),
        T(test_nothing_starts),
        T(test_rank_with_broken_device_restarts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
