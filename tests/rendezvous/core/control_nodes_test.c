/* Commands of an operator about nodes; questions; limits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/rendezvous/core/fake_operator.h"

#include <string.h>

/* ---- nodes ---- */

static void drained_node_leaves(void **state)
{
    (void)state;
    start_trio_at_9();
    refused(order(VERB(DRAIN), "x"), "no run here has a node 'x'");
    goes_on(order(VERB(DRAIN), "b"));
    assert_int_equal(reply.number, 1);
    assert_true(b.drain);
    assert_false(a.drain);
    b.state.leaving = true; /* as its agent does */
    fakes_settle(&stage, two, 2);
    IS(b, RELEASED);
    IS(a, RUNNING);
    done(again(VERB(DRAIN), "b"));
    assert_int_equal(stage.view.restarts_left, 100);
}

/* It was started again after it had left. */
static void later_incarnation_is_not_drained(void **state)
{
    (void)state;
    start_trio_at_9();
    goes_on(order(VERB(DRAIN), "b"));
    const uint64_t number = reply.number;
    b.state.leaving = true;
    fakes_settle(&stage, two, 2);
    b.state.leaving = false;
    b.stamp.incarnation = 2;
    b.counter = 0;
    b.epoch = 0;
    b.ranks[0].phase = DPT__RANK_PHASE__RANK_STANDBY;
    b.ranks[0].generation = 0;
    fake_say(&b, &stage);
    assert_true(b.counter_seen > 0);
    reply.number = number;
    done(again(VERB(DRAIN), "b"));
    assert_false(b.drain);
}

/* The node dies before it has left, and is started again: it was not drained. */
static void drain_of_a_lost_node_is_refused(void **state)
{
    (void)state;
    start_trio_at_9();
    goes_on(order(VERB(DRAIN), "b"));
    const uint64_t number = reply.number;
    fake_dies(&b, &a, &stage);
    for (int i = 0; i < 20; i++) {
        fakes_settle(&stage, two, 1);
        stage_pass_speaking(&stage, two, 1, 1000);
    }
    reply.number = number;
    refused(again(VERB(DRAIN), "b"), "was lost or expelled, and has not left in order");
    refused(order(VERB(DRAIN), "b"), "was lost or expelled, and has not left in order");
    b.conn += 100;
    b.stamp.incarnation = 2;
    b.counter = 0;
    b.epoch = 0;
    b.ranks[0].phase = DPT__RANK_PHASE__RANK_STANDBY;
    b.ranks[0].generation = 0;
    fake_say(&b, &stage);
    assert_true(b.counter_seen > 0);
    reply.number = number;
    refused(again(VERB(DRAIN), "b"), "was lost or expelled, and has not left in order");
    assert_false(b.drain);
}

/* b has left, and a is the only node. */
static void start_a_alone_at_9(void)
{
    start_trio_at_9();
    b.state.leaving = true;
    fakes_settle(&stage, two, 2);
    IS(b, RELEASED);
    a.ranks[0].step_applied = 9;
    fake_say(&a, &stage);
    IS(a, RUNNING);
}

static void drain_of_steps_that_are_not_saved_is_refused(void **state)
{
    (void)state;
    a.cannot_save = true;
    start_a_alone_at_9();
    goes_on(order(VERB(DRAIN), "a"));
    const uint64_t number = reply.number;
    a.state.leaving = true;
    for (int i = 0; i < 60 && a.phase != DPT__SERVER_PHASE__SERVER_RELEASED; i++) {
        fakes_settle(&stage, two, 1);
        stage_pass_speaking(&stage, two, 1, 1000);
    }
    IS(a, RELEASED);
    assert_true(a.last_holder);
    reply.number = number;
    refused(again(VERB(DRAIN), "a"), "node a has left, and no checkpoint and no node here has the "
                                     "steps after 0 up to 9");
}

static void only_memory_of_a_run_is_not_drained(void **state)
{
    (void)state;
    a.state.checkpoint_dir_id = b.state.checkpoint_dir_id = "";
    start_trio_at_9();
    goes_on(order(VERB(DRAIN), "b"));
    b.state.leaving = true;
    fakes_settle(&stage, two, 2);
    done(again(VERB(DRAIN), "b"));
    refused(order(VERB(DRAIN), "a"), "has no checkpoint.dir, and no other node has its steps");
    assert_false(a.drain);
}

/* The node hears that nobody has its steps, and so does the operator. */
static void eviction_of_the_only_node_names_its_steps(void **state)
{
    (void)state;
    start_a_alone_at_9();
    done(order(VERB(EVICT), "a"));
    IS(a, EXPELLED);
    assert_int_equal(a.world_step, 0);
    assert_non_null(strstr(reply_text, "it had the steps after 0 up to 9, which no other node and "
                                       "no checkpoint has"));
}

static void eviction_of_a_shard_names_a_part(void **state)
{
    (void)state;
    a.spec.sharded = b.spec.sharded = true;
    fake_part(&a, 0, 2, false);
    fake_part(&b, 1, 2, false);
    start_trio_at_9();
    done(order(VERB(EVICT), "b"));
    IS(b, EXPELLED);
    static const char said[] = "it had a part of the steps after 0 up to 9, which no other node "
                               "and no checkpoint has";
    assert_non_null(strstr(reply_text, said));
    done(order(VERB(EVICT), "a")); /* the last node has no more than its part */
    assert_non_null(strstr(reply_text, said));
}

static void evicted_node_stays_out(void **state)
{
    (void)state;
    start_trio_at_9();
    done(order(VERB(EVICT), "b"));
    assert_string_equal(reply_text, "run demo: node b is out and denied");
    IS(b, EXPELLED);
    assert_int_equal(b.world_step, 9);
    IS(a, PREPARE);
    done(again(VERB(EVICT), "b"));
    fakes_settle(&stage, two, 1);
    IS(a, RUNNING);
    assert_int_equal(stage.view.restarts_left, 100); /* it costs no restart */
    assert_int_equal(stage.records[DPT_RDZV_RECORD_ERROR], 0);
    b.stamp.incarnation = 2;
    b.counter = 0;
    b.epoch = 0;
    fake_refused(&b, &stage, "an operator has evicted node 'b'");
    stage_restart_with_journal(&stage, 99);
    stage_tick(&stage, 0);
    fake_refused(&b, &stage, "dpt-ctl allow b");
    done(order(VERB(ALLOW), "b"));
    fake_say(&b, &stage);
    assert_true(b.counter_seen > 0);
    assert_int_equal(stage.records[DPT_RDZV_RECORD_DENIED], 2);
}

/* The denial outlives the run. */
static void evicted_node_stays_out_of_the_next_run(void **state)
{
    (void)state;
    start_trio_at_9();
    done(order(VERB(EVICT), "b"));
    fakes_settle(&stage, two, 1);
    goes_on(order(VERB(STOP), ""));
    fakes_settle(&stage, two, 1);
    stage_pass(&stage, 20000);
    assert_int_equal(dpt_rdzv_runs(stage.core), 0);
    fake_say(&c, &stage);
    b.stamp.incarnation = 2;
    b.counter = 0;
    b.epoch = 0;
    fake_refused(&b, &stage, "an operator has evicted node 'b'");
    done(order(VERB(ALLOW), "b"));
    refused(order(VERB(ALLOW), "b"), "no node 'b' is denied");
}

/* A later entry takes the place of the one that leaves the list of denied nodes. */
static void allowed_node_has_its_run_named(void **state)
{
    (void)state;
    Dpt__Control control = DPT__CONTROL__INIT;
    start_trio_at_9();
    c.stamp.run = "other";
    fake_say(&c, &stage);
    done(order(VERB(EVICT), "b"));
    done(order(VERB(EVICT), "c"));
    done(order(VERB(ALLOW), "b"));
    assert_string_equal(reply_text, "run demo: node b may join again");
    assert_string_equal(reply_run, "demo");
    control.verb = VERB(ALLOW);
    control.node = "c";
    control.run = "other";
    done(send_control(&control));
    assert_string_equal(reply_run, "other");
}

/* ---- questions ---- */

static void nodes_list_has_all(void **state)
{
    (void)state;
    a.state.rack = "r1";
    start_trio_at_9();
    done(order(VERB(EVICT), "b"));
    done(order(VERB(NODES), ""));
    assert_int_equal(reply.n_nodes, 2); /* a, and b as denied */
    assert_string_equal(reply_rack, "r1");
    assert_string_equal(reply_address, "10.0.0.1");
    assert_int_equal(reply.nodes_left, 0);
    done(order(VERB(RUNS), ""));
    assert_int_equal(reply.n_runs, 1);
    assert_int_equal(run_info.step, 9);
}

/* Without brackets and port; "" before the ranks of the node have told where they listen. */
static void node_has_the_address_of_its_ranks(void **state)
{
    static const char *const cases[][2] = {
        {"[fd00::7]:4000", "fd00::7"}, {"192.0.2.9:1", "192.0.2.9"}, {"", ""}};
    (void)state;
    start_trio_at_9();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        a.ranks[0].tcp_addr = (char *)cases[i][0];
        fake_say(&a, &stage);
        done(order(VERB(SHOW), ""));
        assert_string_equal(reply_address, cases[i][1]);
    }
}

static Dpt__ControlOutcome ask_for_dump(uint64_t number)
{
    Dpt__Control control = DPT__CONTROL__INIT;
    control.verb = VERB(DUMP);
    control.run = "demo";
    control.number = number;
    return send_control(&control);
}

static void answer_dump(struct fake *fake, uint64_t number)
{
    fake->ranks[0].stacks_of = number;
    fake->ranks[0].stacks = "thread 1 (main): f\n";
    fake_say(fake, &stage);
}

static void two_operators_share_a_dump(void **state)
{
    (void)state;
    start_trio_at_9();
    goes_on(ask_for_dump(11));
    answer_dump(&a, 11);
    goes_on(ask_for_dump(22));
    assert_int_equal(reply.number, 11);
    answer_dump(&b, 11);
    done(ask_for_dump(11));
    done(ask_for_dump(11));    /* the other one */
    goes_on(ask_for_dump(33)); /* stacks of an earlier dump are no answer */
    assert_int_equal(reply.number, 33);
    for (int i = 0; i < 3; i++) { /* no rank answers */
        goes_on(ask_for_dump(33));
        stage_pass_speaking(&stage, two, 2, 1000);
    }
    done(ask_for_dump(33));
}

/* A flood of commands does not delay the runs. */
static void answers_are_limited(void **state)
{
    (void)state;
    start_trio_at_9();
    int answered = 0;
    for (int i = 0; i < 100; i++) {
        stage.now_ms -= 40;
        (void)order(VERB(RUNS), "");
        answered += stage.n_sends > 0;
    }
    assert_in_range(answered, 1, 33);
}

static void machine_without_the_right_only_looks(void **state)
{
    (void)state;
    start_trio_at_9();
    const struct operator_rights join = {.join_only = true}, one = {.only_run = "demo"};
    refused(order_as(&join, VERB(PAUSE), "demo"), "the right 'define'");
    refused(order_as(&join, VERB(STOP), "demo"), "the right 'define'");
    assert_int_equal(stage.records[DPT_RDZV_RECORD_PAUSED], 0);
    done(order_as(&join, VERB(SHOW), "demo"));
    done(order_as(&join, VERB(RUNS), ""));
    refused(order_as(&one, VERB(PAUSE), "other"), "may take part in run 'demo' only: name that");
    goes_on(order_as(&one, VERB(PAUSE), "demo"));
    const struct operator_rights other = {.only_run = "other"};
    const Dpt__ControlOutcome outcome = order_as(&other, VERB(SHOW), "");
    assert_int_equal(outcome, DPT__CONTROL_OUTCOME__CONTROL_UNKNOWN);
    refused(outcome, "no run 'other' is here");
    assert_int_equal(reply.n_runs, 0);
}

/* dpt-ctl need not name the run, and nothing of another run is told. */
static void machine_of_one_run_sees_this_run(void **state)
{
    (void)state;
    start_trio_at_9();
    c.stamp.run = "second";
    fake_say(&c, &stage);
    done(order(VERB(RUNS), ""));
    assert_int_equal(reply.n_runs, 2);
    const struct operator_rights second = {.only_run = "second"}, none = {.only_run = "third"};
    done(order_as(&second, VERB(RUNS), ""));
    assert_int_equal(reply.n_runs, 1);
    assert_int_equal(run_info.generation, 0); /* the other one trains */
    done(order_as(&second, VERB(NODES), ""));
    assert_int_equal(reply.n_nodes, 1);
    assert_string_equal(reply_run, "second");
    done(order_as(&second, VERB(SHOW), ""));
    assert_string_equal(reply_run, "second");
    refused(order_as(&second, VERB(SHOW), "demo"), "may take part in run 'second' only: name that");
    refused(order_as(&second, VERB(RUNS), "demo"), "run, or none");
    assert_int_equal(reply.n_runs, 0);
    done(order_as(&none, VERB(RUNS), ""));
    assert_int_equal(reply.n_runs, 0);
    refused(order_as(&none, VERB(NODES), ""), "no run 'third' is here");
    assert_null(strstr(reply_text, "demo"));
}

static void command_without_a_node_is_refused(void **state)
{
    (void)state;
    start_trio_at_9();
    Dpt__Control control = DPT__CONTROL__INIT;
    control.verb = VERB(EVICT);
    control.run = "demo";
    refused(send_control(&control), "names no node");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, trio_setup, trio_teardown)
        TEST(drained_node_leaves),
        TEST(later_incarnation_is_not_drained),
        TEST(drain_of_a_lost_node_is_refused),
        TEST(drain_of_steps_that_are_not_saved_is_refused),
        TEST(only_memory_of_a_run_is_not_drained),
        TEST(eviction_of_the_only_node_names_its_steps),
        TEST(eviction_of_a_shard_names_a_part),
        TEST(evicted_node_stays_out),
        TEST(evicted_node_stays_out_of_the_next_run),
        TEST(allowed_node_has_its_run_named),
        TEST(nodes_list_has_all),
        TEST(node_has_the_address_of_its_ranks),
        TEST(two_operators_share_a_dump),
        TEST(answers_are_limited),
        TEST(machine_without_the_right_only_looks),
        TEST(machine_of_one_run_sees_this_run),
        TEST(command_without_a_node_is_refused),
#undef TEST
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
