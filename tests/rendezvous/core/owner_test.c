/* Keys as owners: of node ids, and of the right to define a run; keys that are denied. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "rendezvous/core/run_state.h"
#include "tests/rendezvous/core/fake_agent.h"

#include <string.h>

#define PHASE(name) DPT__SERVER_PHASE__SERVER_##name

static struct fake a, b, other;

static int setup(void **state)
{
    static struct stage stage;
    stage_open(&stage);
    *state = &stage;
    return 0;
}

static int teardown(void **state)
{
    stage_close(*state);
    return 0;
}

static void fake_with_key(struct fake *fake, struct stage *stage, const char *id, uint8_t key)
{
    fake_init(fake, stage, id);
    memset(fake->key, key, sizeof fake->key);
}

/* Node b dies, and a goes on alone. */
static void lose_b(struct stage *stage)
{
    fake_dies(&b, &a, stage);
    stage_pass_speaking(stage, (struct fake *const[]){&a}, 1, 600);
    fakes_settle(stage, (struct fake *const[]){&a}, 1);
    assert_int_equal(stage->view.phase, DPT_RDZV_RUNNING);
}

/* Another key cannot take the id of a node, even if its process knows the node's secret and has a
 * later incarnation. */
static void test_other_key_does_not_get_id_of_member(void **state)
{
    struct stage *stage = *state;
    fake_with_key(&a, stage, "a", 1);
    fake_with_key(&b, stage, "b", 2);
    fakes_start(stage, (struct fake *const[]){&a, &b}, 2);
    fake_with_key(&other, stage, "b", 3);
    other.stamp.incarnation = b.stamp.incarnation + 7;
    other.state.secret = b.state.secret;
    fake_refused(&other, stage,
                 "belongs to the machine with key 02020202, and this machine has "
                 "key 03030303");
    assert_int_equal(stage->n_sends, 1);
    assert_int_equal(stage->view.phase, DPT_RDZV_RUNNING);
    assert_int_equal(stage->view.nodes, 2);
    other.stamp.incarnation = b.stamp.incarnation; /* it speaks as the member itself */
    other.state.leaving = true;
    fake_refused(&other, stage, "belongs to the machine");
    fake_say(&b, stage);
    assert_int_equal(b.phase, PHASE(RUNNING));
}

/* The id stays with its key after the node is lost; the same key gets it again. */
static void test_id_of_lost_node_stays_with_its_key(void **state)
{
    struct stage *stage = *state;
    fake_with_key(&a, stage, "a", 1);
    fake_with_key(&b, stage, "b", 2);
    fakes_start(stage, (struct fake *const[]){&a, &b}, 2);
    lose_b(stage);
    assert_int_equal(stage->view.nodes, 1);
    fake_with_key(&other, stage, "b", 3);
    other.stamp.incarnation = 99;
    fake_refused(&other, stage, "belongs to the machine");
    memset(other.key, 2, sizeof other.key);
    fake_say(&other, stage);
    assert_int_not_equal(other.phase, PHASE(REFUSED));
    assert_int_equal(stage->view.nodes, 2);
}

/* A server that is started again with the journal knows the owners of ids, of nodes that were
 * removed and of nodes that are not back, and the machine that has defined the run. */
static void test_owners_survive_a_restart(void **state)
{
    struct stage *stage = *state;
    fake_with_key(&a, stage, "a", 1);
    fake_with_key(&b, stage, "b", 2);
    fakes_start(stage, (struct fake *const[]){&a, &b}, 2);
    lose_b(stage);
    for (uint64_t epoch = 101; epoch < 103; epoch++) { /* twice: the second reads no new record */
        stage_restart_with_journal(stage, epoch);
        stage_tick(stage, 0);
        fake_with_key(&other, stage, "a", 3);
        other.stamp.incarnation = a.stamp.incarnation;
        other.state.secret = a.state.secret;
        fake_refused(&other, stage, "belongs to the machine with key 01010101");
        fake_with_key(&other, stage, "b", 3);
        fake_refused(&other, stage, "belongs to the machine with key 02020202");
    }
    const struct run *run = dpt_rdzv_find_run(stage->core, a.stamp.run);
    assert_memory_equal(run->kept.definer, a.key, sizeof a.key);
    a.conn += 100;
    a.ranks[0].plan_rank = (int32_t)fake_place(&a)->rank;
    fake_say(&a, stage);
    assert_int_equal(stage->view.phase, DPT_RDZV_RUNNING);
    memset(other.key, 2, sizeof other.key);
    other.stamp.incarnation = 99;
    fake_say(&other, stage);
    assert_int_equal(stage->view.nodes, 2);
}

/* a and b train; the server drops a message of b, whose key was denied. */
static void deny_b(struct stage *stage)
{
    fake_with_key(&a, stage, "a", 1);
    fake_with_key(&b, stage, "b", 2);
    fakes_start(stage, (struct fake *const[]){&a, &b}, 2);
    stage_step(stage, (struct dpt_rdzv_event){.kind = DPT_RDZV_EVENT_DENIED, .conn = b.conn});
}

/* It keeps its lease; then it is lost for its key, which is no error and costs no restart. */
static void test_denied_node_is_lost_for_its_key(void **state)
{
    struct stage *stage = *state;
    deny_b(stage);
    const size_t n_logs = stage->n_logs;
    for (int i = 0; i < 4; i++) { /* it goes on sending */
        stage_step(stage, (struct dpt_rdzv_event){.kind = DPT_RDZV_EVENT_DENIED, .conn = b.conn});
        stage_pass_speaking(stage, (struct fake *const[]){&a}, 1, 1000);
    }
    assert_int_equal(stage->n_logs, n_logs); /* the line is not repeated */
    assert_int_equal(stage->view.nodes, 2);
    stage_pass_speaking(stage, (struct fake *const[]){&a}, 1, 600);
    assert_int_equal(stage->view.nodes, 1);
    assert_string_equal(stage->view.text, "node b lost: its key was denied");
    assert_int_equal(stage->view.restarts_left, 100);
    assert_int_equal(stage->records[DPT_RDZV_RECORD_ERROR], 0);
    fakes_settle(stage, (struct fake *const[]){&a}, 1);
    assert_int_equal(stage->view.phase, DPT_RDZV_RUNNING);
    assert_string_equal(a.plan->cause, "node b lost: its key was denied");
}

/* So is the only node of a server: the server is not deaf, it refuses what it hears. */
static void test_denied_lone_node_is_lost(void **state)
{
    struct stage *stage = *state;
    fake_with_key(&b, stage, "b", 2);
    fakes_start(stage, (struct fake *const[]){&b}, 1);
    stage_step(stage, (struct dpt_rdzv_event){.kind = DPT_RDZV_EVENT_DENIED, .conn = b.conn});
    stage_pass(stage, 4400);
    assert_int_equal(stage->view.nodes, 1);
    stage_pass(stage, 600);
    assert_int_equal(stage->view.nodes, 0);
    assert_string_equal(stage->view.text, "node b lost: its key was denied");
}

/* So it is beside a node that died before, which is not judged: no other node is heard. */
static void test_denied_node_beside_a_dead_one(void **state)
{
    struct stage *stage = *state;
    fake_with_key(&a, stage, "a", 1);
    fake_with_key(&b, stage, "b", 2);
    fakes_start(stage, (struct fake *const[]){&a, &b}, 2);
    stage_pass_speaking(stage, (struct fake *const[]){&b}, 1, 1000);
    stage_step(stage, (struct dpt_rdzv_event){.kind = DPT_RDZV_EVENT_DENIED, .conn = b.conn});
    stage_pass(stage, 4400);
    assert_int_equal(stage->view.nodes, 2);
    stage_pass(stage, 600);
    assert_int_equal(stage->view.nodes, 1);
    assert_string_equal(stage->view.text, "node b lost: its key was denied");
}

/* So it is if its worker ends before the lease. */
static void test_denied_node_that_ends(void **state)
{
    struct stage *stage = *state;
    deny_b(stage);
    fake_dies(&b, &a, stage);
    stage_pass_speaking(stage, (struct fake *const[]){&a}, 1, 600);
    assert_string_equal(stage->view.text, "node b lost: its key was denied");
    assert_int_equal(stage->view.restarts_left, 100);
}

/* A node that is let in again before its lease ends stays; a later loss has a cause of its own. */
static void test_node_is_let_in_again(void **state)
{
    struct stage *stage = *state;
    deny_b(stage);
    stage_pass_speaking(stage, (struct fake *const[]){&a}, 1, 2000);
    stage_pass_speaking(stage, (struct fake *const[]){&a, &b}, 2, 6000);
    assert_int_equal(stage->view.nodes, 2);
    assert_int_equal(stage->view.generation, 1);
    stage_step(stage, (struct dpt_rdzv_event){.kind = DPT_RDZV_EVENT_DENIED, .conn = other.conn});
    stage_pass_speaking(stage, (struct fake *const[]){&a}, 1, 4600);
    assert_int_equal(stage->view.nodes, 1);
    assert_non_null(strstr(stage->view.text, "node b lost: silent for 4."));
    assert_int_equal(stage->view.restarts_left, 99);
}

/* A server without keys takes the journal of one with keys, and the other way round: there is no
 * key to compare with. */
static void test_nodes_of_a_time_without_keys_keep_their_ids(void **state)
{
    struct stage *stage = *state;
    fake_with_key(&a, stage, "a", 0);
    fake_with_key(&b, stage, "b", 2);
    fakes_start(stage, (struct fake *const[]){&a, &b}, 2);
    memset(a.key, 1, sizeof a.key);
    memset(b.key, 0, sizeof b.key);
    for (int i = 0; i < 2; i++) {
        fake_say(&a, stage);
        assert_int_equal(a.phase, PHASE(RUNNING));
        fake_say(&b, stage);
        assert_int_equal(b.phase, PHASE(RUNNING));
    }
}

/* Several nodes of one key are allowed: machines may share a home folder. */
static void test_one_key_has_several_ids(void **state)
{
    struct stage *stage = *state;
    fake_with_key(&a, stage, "a", 1);
    fake_with_key(&b, stage, "b", 1);
    fakes_start(stage, (struct fake *const[]){&a, &b}, 2);
    assert_int_equal(stage->view.nodes, 2);
}

/* A key for another run joins no other, nor reads its config or status. */
static void test_key_of_another_run_is_refused(void **state)
{
    struct stage *stage = *state;
    fake_with_key(&a, stage, "a", 1);
    fake_with_key(&b, stage, "b", 2);
    a.limited_to = a.stamp.run;
    fakes_start(stage, (struct fake *const[]){&a}, 1);
    b.limited_to = "other";
    fake_refused(&b, stage, "may take part in run 'other' only");
    b.state.spec = NULL;
    fake_refused(&b, stage, "give --rdzv-id other");
    assert_false(b.has_spec);
    b.state.asks_status = true; /* dpt-doctor, which has no --rdzv-id */
    fake_refused(&b, stage,
                 "may take part in run 'other' only, and run 'demo' was asked for: give "
                 "--run other");
    b.state.asks_status = false;
    b.state.secret = a.state.secret;
    b.state.leaving = true;
    fake_refused(&b, stage, "key 02020202");
    assert_int_equal(stage->view.nodes, 1);
    assert_int_equal(stage->view.phase, DPT_RDZV_RUNNING);
}

/* Who asks for the status of any run ("-") is told that of the only one that it may see. */
static void test_status_of_the_only_run_of_a_key(void **state)
{
    struct stage *stage = *state;
    fake_with_key(&a, stage, "a", 1);
    fakes_start(stage, (struct fake *const[]){&a}, 1);
    fake_with_key(&other, stage, "o", 3);
    other.stamp.run = "second";
    fake_say(&other, stage);
    fake_with_key(&b, stage, "b", 2);
    b.stamp.run = "-";
    b.state.asks_status = true;
    b.limited_to = "demo";
    fake_say(&b, stage);
    assert_int_equal(b.phase, PHASE(RUNNING));
    assert_int_equal(b.n_nodes, 1);
    b.limited_to = "third";
    fake_say(&b, stage);
    assert_int_equal(b.phase, PHASE(WAITING));
    assert_string_equal(b.text, "no run 'third' is here");
}

static void test_join_only_key_defines_no_run(void **state)
{
    struct stage *stage = *state;
    fake_with_key(&a, stage, "a", 1);
    fake_with_key(&b, stage, "b", 2);
    b.join_only = true;
    fake_refused(&b, stage, "may join runs but not define one");
    assert_int_equal(dpt_rdzv_runs(stage->core), 0);
    fake_say(&a, stage);
    assert_int_equal(stage->view.nodes, 1);
    fake_say(&b, stage); /* the run exists now */
    assert_int_equal(stage->view.nodes, 2);
}

/* After a restart of the server a node that trains waits for a machine that may define the run, and
 * is not refused. */
static void test_join_only_node_waits_for_definer(void **state)
{
    struct stage *stage = *state;
    fake_with_key(&a, stage, "a", 1);
    fake_with_key(&b, stage, "b", 2);
    b.join_only = true;
    fakes_start(stage, (struct fake *const[]){&a, &b}, 2);
    stage_restart(stage, 78);
    stage_tick(stage, 1);
    fake_say(&b, stage);
    assert_int_equal(b.phase, PHASE(WAITING));
    assert_non_null(strstr(b.text, "may join runs but not define one"));
    assert_int_equal(dpt_rdzv_runs(stage->core), 0);
    fake_say(&a, stage);
    fake_say(&b, stage);
    assert_int_equal(stage->view.nodes, 2);
}

int main(void)
{
#define CASE(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        CASE(test_other_key_does_not_get_id_of_member),
        CASE(test_id_of_lost_node_stays_with_its_key),
        CASE(test_owners_survive_a_restart),
        CASE(test_denied_node_is_lost_for_its_key),
        CASE(test_denied_lone_node_is_lost),
        CASE(test_denied_node_beside_a_dead_one),
        CASE(test_denied_node_that_ends),
        CASE(test_node_is_let_in_again),
        CASE(test_nodes_of_a_time_without_keys_keep_their_ids),
        CASE(test_one_key_has_several_ids),
        CASE(test_key_of_another_run_is_refused),
        CASE(test_status_of_the_only_run_of_a_key),
        CASE(test_join_only_key_defines_no_run),
        CASE(test_join_only_node_waits_for_definer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
