/* What one machine may take of the server: answers to questions, lines of the log, records. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "rendezvous/core/run_state.h"
#include "tests/rendezvous/core/fake_operator.h"

#include <stdio.h>
#include <string.h>

static size_t n_answers;

static void count_answer(const Dpt__ServerState *message)
{
    n_answers += message->reply != NULL;
}

/* A machine asks for the list of runs `n` times. Returns how many answers it gets. */
static size_t ask(uint8_t key, const char *only_run, int n)
{
    Dpt__Stamp stamp = DPT__STAMP__INIT;
    Dpt__AgentState state = DPT__AGENT_STATE__INIT;
    Dpt__Control control = DPT__CONTROL__INIT;
    control.verb = VERB(RUNS);
    control.step = -1;
    stamp.run = (char *)(only_run != NULL ? only_run : "-");
    stamp.node = (char *)"dpt-ctl";
    stamp.incarnation = 1;
    state.version = DPT_PROTO_VERSION;
    state.software = (char *)"test";
    state.stamp = &stamp;
    state.counter = 1;
    state.control = &control;
    stage.on_reply = count_answer;
    n_answers = 0;
    for (int i = 0; i < n; i++) {
        struct dpt_rdzv_event event = {
            .kind = DPT_RDZV_EVENT_MESSAGE, .conn = 999, .message = &state, .only_run = only_run};
        memset(event.key, key, sizeof event.key);
        stage_step(&stage, event);
    }
    return n_answers;
}

static void one_machine_takes_half_of_the_answers(void **state)
{
    (void)state;
    trio_start();
    assert_int_equal(ask(1, NULL, 100), 16);
    assert_int_equal(ask(2, NULL, 5), 5);
    assert_int_equal(ask(3, NULL, 100), 11);
    assert_int_equal(ask(4, NULL, 1), 0);
    stage_pass(&stage, 1000);
    assert_int_equal(ask(4, NULL, 1), 1);
}

/* Without keys the server cannot tell one machine from another. */
static void without_keys_all_are_one_machine(void **state)
{
    (void)state;
    trio_start();
    assert_int_equal(ask(0, NULL, 100), 32);
}

static void machines_of_one_run_take_no_answer_of_others(void **state)
{
    (void)state;
    trio_start();
    assert_int_equal(ask(1, "demo", 100), 16);
    assert_int_equal(ask(2, "demo", 100), 16);
    assert_int_equal(ask(3, "demo", 1), 0);
    assert_int_equal(ask(4, NULL, 100), 16);
}

static void unanswered_questions_are_one_line(void **state)
{
    (void)state;
    const size_t before = stage.n_logs;
    for (int i = 0; i < 9; i++) {
        (void)ask(1, NULL, 100);
        stage.now_ms += 1000;
    }
    assert_int_equal(stage.n_logs, before + 1);
}

/* The id belongs to another machine. */
static void refusals_fill_no_log(void **state)
{
    (void)state;
    memset(a.key, 1, sizeof a.key);
    memset(b.key, 2, sizeof b.key);
    trio_start();
    memset(b.key, 3, sizeof b.key);
    size_t before = stage.n_logs;
    for (int i = 0; i < 100; i++)
        fake_refused(&b, &stage, "belongs to the machine with key");
    assert_int_equal(stage.n_logs, before + 32);
    stage_tick(&stage, 10000);
    before = stage.n_logs;
    fake_refused(&b, &stage, "belongs to the machine with key");
    assert_int_equal(stage.n_logs, before + 2); /* one says that 68 were not logged */
}

static unsigned unhealthy_records(uint8_t key, int n)
{
    static int number;
    static Dpt__NodeHealth health;
    const unsigned before = stage.records[DPT_RDZV_RECORD_UNHEALTHY];
    dpt__node_health__init(&health);
    health.fault = (char *)"core 3 computes wrong values";
    c.state.health = &health;
    memset(c.key, key, sizeof c.key);
    for (int i = 0; i < n; i++) {
        (void)snprintf(c.id, sizeof c.id, "c%d", number++);
        fake_refused(&c, &stage, "has failed");
    }
    return stage.records[DPT_RDZV_RECORD_UNHEALTHY] - before;
}

static void failed_checks_fill_no_journal(void **state)
{
    (void)state;
    const size_t before = stage.n_logs;
    assert_int_equal(unhealthy_records(1, 100), 16);
    assert_int_equal(stage.n_logs, before + 17); /* the last: others are left out */
    assert_int_equal(unhealthy_records(2, 1), 1);
    stage_pass(&stage, 60000);
    assert_int_equal(unhealthy_records(1, 100), 16);
    for (uint8_t key = 3; key < 40; key++)
        (void)unhealthy_records(key, 16);
    assert_int_equal(stage.records[DPT_RDZV_RECORD_UNHEALTHY], 17 + 256);
    assert_int_equal(unhealthy_records(40, 1), 0);
}

/* The ranks of one message report different steps: one checkpoint and one grant are recorded. */
static void one_message_is_one_record_of_a_kind(void **state)
{
    (void)state;
    a.state.n_ranks = 2;
    trio_start();
    for (int i = 0; i < 2; i++) {
        a.ranks[i].checkpoint_step = 10 + i;
        a.ranks[i].grant_step = 20 + i;
    }
    fake_say(&a, &stage);
    assert_int_equal(stage.records[DPT_RDZV_RECORD_SAVED], 1);
    assert_int_equal(stage.records[DPT_RDZV_RECORD_GRANT], 1);
    assert_int_equal(a.grant_step, 21);
    const struct run *run = dpt_rdzv_find_run(stage.core, a.stamp.run);
    assert_int_equal(run->progress.saved_step, 11);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, trio_setup, trio_teardown)
        TEST(one_machine_takes_half_of_the_answers),
        TEST(without_keys_all_are_one_machine),
        TEST(machines_of_one_run_take_no_answer_of_others),
        TEST(unanswered_questions_are_one_line),
        TEST(refusals_fill_no_log),
        TEST(failed_checks_fill_no_journal),
        TEST(one_message_is_one_record_of_a_kind),
#undef TEST
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
