/* A server that hears no node: cut off, or starved of the processor. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/rendezvous/core/fake_operator.h"

#include <string.h>

static void break_all(void)
{
    for (int i = 0; i < 2; i++)
        stage_step(&stage,
                   (struct dpt_rdzv_event){.kind = DPT_RDZV_EVENT_BROKEN, .conn = two[i]->conn});
}

/* If no node is heard, the server is cut off or starved. When all are back, none was lost. */
static void test_server_hears_no_node(void **state)
{
    (void)state;
    trio_start();
    trio_step_to(3);
    stage_pass(&stage, 2000);
    break_all();
    stage_pass(&stage, 5000);
    assert_int_equal(stage.view.phase, DPT_RDZV_RUNNING);
    assert_int_equal(stage.view.nodes, 2);
    a.conn = 3000;
    fake_say(&a, &stage);
    stage_pass_speaking(&stage, two, 1, 200); /* b has its grace from now on */
    assert_int_equal(stage.view.nodes, 2);
    b.conn = 3001;
    fake_say(&b, &stage);
    stage_pass_speaking(&stage, two, 2, 5000);
    assert_int_equal(stage.view.phase, DPT_RDZV_RUNNING);
    assert_int_equal(stage.view.generation, 1);
    stage_pass_speaking(&stage, two, 1, 4600); /* and leases are as ever */
    assert_int_equal(stage.view.nodes, 1);
}

/* Messages that were sent before the connections broke may be read after the break, and before its
 * event. */
static void test_last_words_of_broken_connections(void **state)
{
    (void)state;
    trio_start();
    trio_step_to(3);
    break_all();
    for (int i = 0; i < 3; i++) {
        stage_pass(&stage, 1);
        fake_say(&a, &stage);
        stage_step(&stage, (struct dpt_rdzv_event){.kind = DPT_RDZV_EVENT_BROKEN, .conn = a.conn});
        stage_pass(&stage, 1);
        fake_say(&b, &stage);
        stage_step(&stage, (struct dpt_rdzv_event){.kind = DPT_RDZV_EVENT_BROKEN, .conn = b.conn});
    }
    stage_pass(&stage, 3000);
    assert_int_equal(stage.view.nodes, 2);
    a.conn = 3000;
    b.conn = 3001;
    stage_pass_speaking(&stage, two, 2, 5000);
    assert_int_equal(stage.view.phase, DPT_RDZV_RUNNING);
    assert_int_equal(stage.view.generation, 1);
}

/* No node is lost, however long it takes: none could go on without them. */
static void test_hears_no_node_for_long(void **state)
{
    (void)state;
    trio_start();
    trio_step_to(3);
    break_all();
    stage_pass(&stage, 60000);
    assert_int_equal(stage.view.nodes, 2);
    fake_say(&b, &stage);
    stage_pass_speaking(&stage, two + 1, 1, 200);
    fake_say(&a, &stage);
    stage_pass_speaking(&stage, two, 2, 5000);
    assert_int_equal(stage.view.phase, DPT_RDZV_RUNNING);
    assert_int_equal(stage.view.generation, 1);
}

/* Nor has the run stalled: steps that were made meanwhile were not heard of. */
static void test_hearing_no_node_is_no_stall(void **state)
{
    (void)state;
    trio_start();
    a.ranks[0].step_ms_median = b.ranks[0].step_ms_median = 100;
    trio_step_to(3);
    stage_pass(&stage, 60000);
    fake_say(&b, &stage); /* still of step 3 */
    stage_pass_speaking(&stage, two, 2, 4000);
    assert_int_equal(stage.view.phase, DPT_RDZV_RUNNING);
    assert_int_equal(stage.view.generation, 1);
    stage_pass_speaking(&stage, two, 2,
                        2000); /* a run without steps whose nodes are heard has stalled */
    assert_string_equal(stage.view.cause_kind, "stalled");
}

/* Nor because they have not reported that they quiesced. */
static void test_hears_no_node_while_forming(void **state)
{
    (void)state;
    trio_start();
    a.ranks[0].phase = DPT__RANK_PHASE__RANK_DEAD;
    fake_say(&a, &stage);
    assert_int_equal(stage.view.phase, DPT_RDZV_PREPARING);
    stage_pass(&stage, 20000);
    assert_int_equal(stage.view.nodes, 2);
    fakes_settle(&stage, two, 2);
    stage_pass_speaking(&stage, two, 2, 1000);
    assert_int_equal(stage.view.phase, DPT_RDZV_RUNNING);
    assert_int_equal(stage.view.nodes, 2);
}

/* The quiesce deadline of a node begins when it can hear PREPARE. */
static void test_hears_no_node_while_a_rank_quiesces(void **state)
{
    (void)state;
    trio_start();
    a.ranks[0].failed_generation = a.generation;
    fake_say(&a, &stage);
    assert_int_equal(stage.view.phase, DPT_RDZV_PREPARING);
    fake_obey(&a);
    stage_pass(&stage, 20000);
    stage_pass_speaking(&stage, two, 2, 5000); /* b says that it computes */
    assert_int_equal(stage.view.nodes, 2);
    stage_pass_speaking(&stage, two, 2, 1000);
    assert_int_equal(stage.view.nodes, 1);
    assert_int_equal(b.phase, DPT__SERVER_PHASE__SERVER_EXPELLED);
}

/* Nor for a connection that broke together with its peers' connections. */
static void test_hears_no_node_after_a_node_died(void **state)
{
    (void)state;
    a.spec.timeout_ms = b.spec.timeout_ms = 2000; /* the gap is shorter than the grace */
    trio_start();
    stage_step(&stage, (struct dpt_rdzv_event){.kind = DPT_RDZV_EVENT_BROKEN, .conn = b.conn});
    stage_pass(&stage, 10);
    fake_loses(&a, &b);
    fake_say(&a, &stage);
    assert_int_equal(stage.view.phase, DPT_RDZV_PREPARING);
    fake_obey(&a);
    stage_pass(&stage, 10000);
    assert_int_equal(stage.view.nodes, 2);
    fake_say(&a, &stage);
    stage_pass_speaking(&stage, two, 1, 400);
    assert_int_equal(stage.view.nodes, 1);
}

/* Nor before the server hears no node, if the gap is longer than the grace. */
static void test_all_break_within_a_gap(void **state)
{
    (void)state;
    a.spec.timeout_ms = b.spec.timeout_ms = 60000;
    a.spec.max_nodes = b.spec.max_nodes = 2; /* no last call */
    trio_start();
    fake_loses(&a, &b);
    fake_say(&a, &stage);
    assert_int_equal(stage.view.phase, DPT_RDZV_PREPARING);
    break_all();
    stage_pass(&stage, 5000);
    assert_int_equal(stage.view.nodes, 2);
    stage_pass_speaking(&stage, two, 1, 400);
    assert_int_equal(stage.view.nodes, 1);
}

/* All nodes are really gone: the server notices it when a node comes. */
static void test_hears_no_node_for_good(void **state)
{
    (void)state;
    struct fake *const comes[1] = {&c};
    trio_start();
    break_all();
    stage_pass(&stage, 20000);
    assert_int_equal(stage.view.nodes, 2);
    stage_pass_speaking(&stage, comes, 1, 3900);
    assert_int_equal(stage.view.nodes, 3); /* they may speak yet */
    stage_pass_speaking(&stage, comes, 1, 400);
    assert_int_equal(stage.view.nodes, 1);
}

/* One node is dead and the other always late: the dead one is lost in the end. */
static void test_hears_no_node_now_and_then(void **state)
{
    (void)state;
    for (int broken = 0; broken < 2; broken++) {
        if (broken) {
            stage_close(&stage);
            assert_int_equal(trio_setup(NULL), 0);
        }
        trio_start();
        if (broken)
            stage_step(&stage,
                       (struct dpt_rdzv_event){.kind = DPT_RDZV_EVENT_BROKEN, .conn = b.conn});
        int64_t start_ms = stage.now_ms;
        while (stage.view.nodes == 2 && stage.now_ms - start_ms < 30000) {
            stage_pass(&stage, 600);
            fake_say(&a, &stage);
        }
        assert_int_equal(stage.view.nodes, 1);
        assert_in_range(stage.now_ms - start_ms, 0, 2 * 4500 + 1200);
    }
}

/* c is another run, with a timeout of ten minutes, and runs. */
static void start_slow_run(void)
{
    struct fake *const alone[] = {&c};
    c.stamp.run = "slow";
    c.spec.timeout_ms = 600000;
    c.spec.max_nodes = 1; /* no last call */
    fake_say(&c, &stage);
    stage_pass_speaking(&stage, alone, 1, 600000);
    fakes_settle(&stage, alone, 1);
    assert_int_equal(c.phase, DPT__SERVER_PHASE__SERVER_RUNNING);
}

static struct dpt_rdzv_run_view view_of(const char *run)
{
    struct dpt_rdzv_run_view view = {0};
    for (size_t i = 0; i < dpt_rdzv_runs(stage.core); i++) {
        dpt_rdzv_run_view(stage.core, i, &view);
        if (strcmp(view.run, run) == 0)
            return view;
    }
    fail_msg("no run %s", run);
    return view;
}

static void start_both(void)
{
    start_slow_run();
    fake_say(&a, &stage);
    fake_say(&b, &stage);
    stage_pass_speaking(&stage, (struct fake *[]){&a, &b, &c}, 3, 1100);
    fakes_settle(&stage, two, 2);
    assert_int_equal(view_of("demo").phase, DPT_RDZV_RUNNING);
}

/* A minute of silence is short for the slow run. The nodes of the quick run do not count as silent
 * while the server hears no node. */
static void test_hears_no_node_beside_a_slow_run(void **state)
{
    (void)state;
    start_both();
    stage_pass(&stage, 10000);
    assert_int_equal(view_of("demo").nodes, 2);
    stage_pass_speaking(&stage, (struct fake *[]){&c, &a, &b}, 3, 5000);
    assert_int_equal(view_of("demo").nodes, 2);
    assert_int_equal(view_of("demo").phase, DPT_RDZV_RUNNING);
    assert_int_equal(a.generation, 1);
}

/* Nor does the slow run hide a dead node of the quick run, whether other nodes of the quick run are
 * heard or only the slow run. */
static void test_dead_beside_a_slow_run(void **state)
{
    (void)state;
    start_both();
    stage_pass_speaking(&stage, (struct fake *[]){&a, &c}, 2, 4400);
    assert_int_equal(view_of("demo").nodes, 2);
    stage_pass_speaking(&stage, (struct fake *[]){&a, &c}, 2, 200);
    assert_int_equal(view_of("demo").nodes, 1);
    assert_int_equal(view_of("slow").nodes, 1);
    stage_pass_speaking(&stage, (struct fake *[]){&c}, 1, 4600);
    assert_int_equal(view_of("demo").nodes, 0);
    assert_int_equal(view_of("slow").phase, DPT_RDZV_RUNNING);
}

/* A process that is refused, or asks for the config, is no sign that the nodes could be heard. */
static void test_hears_only_strangers(void **state)
{
    (void)state;
    trio_start();
    trio_step_to(3);
    c.spec.user = "bob";
    for (int i = 0; i < 60; i++) {
        if (i == 30)
            c.state.spec = NULL;
        stage_pass(&stage, 100);
        fake_say(&c, &stage);
    }
    assert_int_equal(c.phase, DPT__SERVER_PHASE__SERVER_WAITING);
    assert_int_equal(stage.view.nodes, 2);
    stage_pass(&stage, 1000);
    fake_say(&a, &stage);
    stage_pass_speaking(&stage, two, 2, 5000);
    assert_int_equal(stage.view.phase, DPT_RDZV_RUNNING);
    assert_int_equal(stage.view.generation, 1);
}

/* Nor are two that come one after the other. */
static void test_hears_no_node_between_two_strangers(void **state)
{
    (void)state;
    trio_start();
    c.spec.user = "bob";
    stage_pass(&stage, 1000);
    fake_say(&c, &stage);
    stage_pass(&stage, 11000);
    fake_say(&c, &stage);
    fake_say(&a, &stage);
    stage_pass_speaking(&stage, two, 1, 1000);
    assert_int_equal(stage.view.nodes, 2);
    fake_say(&b, &stage);
    assert_int_equal(stage.view.phase, DPT_RDZV_RUNNING);
    assert_int_equal(stage.view.generation, 1);
}

/* In the long run it is: the nodes are gone, and the next run of that name comes in. */
static void test_dead_among_strangers(void **state)
{
    (void)state;
    trio_start();
    break_all();
    c.spec.config_digest = "another";
    for (int i = 0; i < 250 && c.counter_seen == 0; i++) {
        stage_pass(&stage, 100);
        fake_say(&c, &stage);
        assert_true(i > 90 || stage.view.nodes == 2);
    }
    assert_true(c.counter_seen > 0);
    assert_int_equal(stage.view.nodes, 1);
}

/* ---- what an operator is told ---- */

/* One line, and one more when nodes were heard in between. */
static void test_hearing_no_node_is_told_once(void **state)
{
    (void)state;
    stage_pass(&stage, 20000); /* no node has come yet */
    assert_int_equal(stage.n_logs, 0);
    trio_start();
    for (int i = 0; i < 2; i++) {
        const size_t before = stage.n_logs;
        stage_pass(&stage, 4400);
        assert_int_equal(stage.n_logs, before);
        stage_backlog(&stage, 400); /* a node may have sent what is unread */
        assert_int_equal(stage.n_logs, before);
        stage_pass(&stage, 60000);
        assert_int_equal(stage.n_logs, before + 1);
        assert_non_null(strstr(stage.log, "no node is heard for "));
        stage_pass_speaking(&stage, two, 2, 1000);
        assert_int_equal(stage.n_logs, before + 2);
        assert_non_null(strstr(stage.log, "node a is heard, the first for 6"));
    }
    assert_int_equal(stage.view.generation, 1);
}

/* The server hears another run, so it judges the silence itself. */
static void test_one_silent_run_is_judged(void **state)
{
    (void)state;
    start_both();
    const size_t before = stage.n_logs;
    stage_pass(&stage, 3000); /* of which a gap counts */
    stage_pass_speaking(&stage, (struct fake *[]){&c}, 1, 2000);
    assert_int_equal(view_of("demo").nodes, 2);
    assert_int_equal(stage.n_logs, before);
    stage_pass_speaking(&stage, (struct fake *[]){&c}, 1, 2600);
    assert_int_equal(view_of("demo").nodes, 0);
}

static void expect_silence(Dpt__ControlOutcome outcome, bool told)
{
    goes_on(outcome);
    assert_int_equal(
        strstr(reply_text, "; but no node of the run is heard for more than 4.5 s") != NULL, told);
    assert_int_equal(run_info.unheard, told);
}

static void test_operator_is_told_of_silence(void **state)
{
    (void)state;
    start_trio_at_9();
    stage_pass(&stage, 4400);
    expect_silence(order(VERB(SAVE), ""), false);
    assert_int_equal(run_info.heard_ms_ago, 4400 + 40);
    stage_pass(&stage, 1000);
    expect_silence(order(VERB(SAVE), ""), true);
    assert_int_equal(run_info.heard_ms_ago, 5400 + 2 * 40);
    expect_silence(order(VERB(DRAIN), "b"), true);
    expect_silence(order(VERB(PAUSE), ""), true);
    expect_silence(order(VERB(STOP), ""), true);
    fake_say(&a, &stage);
    expect_silence(again(VERB(STOP), ""), false);
    assert_int_equal(run_info.heard_ms_ago, 40);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_server_hears_no_node, trio_setup, trio_teardown),
        cmocka_unit_test_setup_teardown(test_last_words_of_broken_connections, trio_setup,
                                        trio_teardown),
        cmocka_unit_test_setup_teardown(test_hears_no_node_for_long, trio_setup, trio_teardown),
        cmocka_unit_test_setup_teardown(test_hearing_no_node_is_no_stall, trio_setup,
                                        trio_teardown),
        cmocka_unit_test_setup_teardown(test_hears_no_node_while_forming, trio_setup,
                                        trio_teardown),
        cmocka_unit_test_setup_teardown(test_hears_no_node_while_a_rank_quiesces, trio_setup,
                                        trio_teardown),
        cmocka_unit_test_setup_teardown(test_hears_no_node_after_a_node_died, trio_setup,
                                        trio_teardown),
        cmocka_unit_test_setup_teardown(test_all_break_within_a_gap, trio_setup, trio_teardown),
        cmocka_unit_test_setup_teardown(test_hears_no_node_for_good, trio_setup, trio_teardown),
        cmocka_unit_test_setup_teardown(test_hears_no_node_now_and_then, trio_setup, trio_teardown),
        cmocka_unit_test_setup_teardown(test_hears_no_node_beside_a_slow_run, trio_setup,
                                        trio_teardown),
        cmocka_unit_test_setup_teardown(test_dead_beside_a_slow_run, trio_setup, trio_teardown),
        cmocka_unit_test_setup_teardown(test_hears_only_strangers, trio_setup, trio_teardown),
        cmocka_unit_test_setup_teardown(test_hears_no_node_between_two_strangers, trio_setup,
                                        trio_teardown),
        cmocka_unit_test_setup_teardown(test_dead_among_strangers, trio_setup, trio_teardown),
        cmocka_unit_test_setup_teardown(test_hearing_no_node_is_told_once, trio_setup,
                                        trio_teardown),
        cmocka_unit_test_setup_teardown(test_one_silent_run_is_judged, trio_setup, trio_teardown),
        cmocka_unit_test_setup_teardown(test_operator_is_told_of_silence, trio_setup,
                                        trio_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
