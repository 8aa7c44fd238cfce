/* A control connection that breaks, alone or with the data connections of its node. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/rendezvous/core/trio.h"

/* Of a node that dies the data connections end, too. */
static void test_dead_node(void **state)
{
    (void)state;
    trio_start();
    fake_dies(&b, &a, &stage);
    assert_string_equal(stage.view.cause_kind, "comm_error"); /* at once */
    stage_pass_speaking(&stage, two, 1, 200);
    assert_int_equal(stage.view.nodes, 2); /* the grace */
    stage_pass_speaking(&stage, two, 1, 60);
    assert_int_equal(stage.view.phase, DPT_RDZV_PREPARING);
    assert_int_equal(stage.view.nodes, 1);
    assert_string_equal(stage.view.text, "node b lost: control and data connections broken");
    assert_int_equal(stage.view.restarts_left, 99);
}

/* It is known to be suspect for long when its peers lose it. */
static void test_dead_after_a_broken_connection(void **state)
{
    (void)state;
    trio_start();
    stage_step(&stage, (struct dpt_rdzv_event){.kind = DPT_RDZV_EVENT_BROKEN, .conn = b.conn});
    stage_pass_speaking(&stage, two, 1, 2000);
    assert_int_equal(stage.view.phase, DPT_RDZV_RUNNING);
    fake_loses(&a, &b);
    fake_say(&a, &stage);
    stage_pass_speaking(&stage, two, 1, 10);
    assert_int_equal(stage.view.nodes, 1);
}

/* A broken control connection alone costs nothing, as long as the lease lasts. */
static void test_broken_connection(void **state)
{
    (void)state;
    trio_start();
    stage_step(&stage, (struct dpt_rdzv_event){.kind = DPT_RDZV_EVENT_BROKEN, .conn = b.conn});
    stage_pass_speaking(&stage, two, 1, 4400);
    assert_int_equal(stage.view.phase, DPT_RDZV_RUNNING);
    assert_int_equal(stage.view.nodes, 2);
    b.conn = 3000;
    stage_pass_speaking(&stage, two, 2, 5000);
    assert_int_equal(stage.view.phase, DPT_RDZV_RUNNING);
    assert_int_equal(stage.view.generation, 1);
    stage_step(&stage, (struct dpt_rdzv_event){.kind = DPT_RDZV_EVENT_BROKEN, .conn = b.conn});
    stage_pass_speaking(&stage, two, 1, 4600);
    assert_int_equal(stage.view.nodes, 1);
}

/* Nor while the run waits for a step boundary: the node may hold the newest state. */
static void test_broken_before_a_boundary(void **state)
{
    (void)state;
    struct fake *const others[] = {&a, &c};
    trio_start();
    trio_step_to(3);
    stage_step(&stage, (struct dpt_rdzv_event){.kind = DPT_RDZV_EVENT_BROKEN, .conn = b.conn});
    fake_say(&c, &stage);
    assert_true(a.soft);
    fake_obey(&a);
    fake_obey(&c);
    stage_pass_speaking(&stage, others, 2, 1000);
    assert_int_equal(stage.view.phase, DPT_RDZV_PREPARING);
    assert_int_equal(stage.view.nodes, 3);
    b.conn = 3000;
    fakes_settle(&stage, (struct fake *[]){&b}, 1);
    fakes_settle(&stage, (struct fake *[]){&a, &b, &c}, 3);
    assert_int_equal(stage.view.phase, DPT_RDZV_RUNNING);
    assert_int_equal(stage.view.world_size, 3);
    assert_int_equal(stage.view.generation, 2);
}

/* A node dies while the control connection of another is broken: the peers name the dead one, and
 * the other keeps its lease. */
static void beside_another_loss(bool process_alone)
{
    struct fake *const three[] = {&a, &b, &c}, *const rest[] = {&a}, *const back[] = {&a, &b};
    fakes_start(&stage, three, 3);
    stage_step(&stage, (struct dpt_rdzv_event){.kind = DPT_RDZV_EVENT_BROKEN, .conn = b.conn});
    stage_pass_speaking(&stage, (struct fake *const[]){&a, &c}, 2, 1000);
    assert_int_equal(stage.view.phase, DPT_RDZV_RUNNING);
    fake_loses(&a, &c);
    fake_loses(&b, &c);
    if (process_alone) {
        c.ranks[0].phase = DPT__RANK_PHASE__RANK_DEAD;
        fake_say(&c, &stage);
    } else {
        stage_step(&stage, (struct dpt_rdzv_event){.kind = DPT_RDZV_EVENT_BROKEN, .conn = c.conn});
    }
    fake_say(&a, &stage);
    fake_obey(&a);
    stage_pass_speaking(&stage, rest, 1, 300);
    assert_int_equal(stage.view.phase, DPT_RDZV_PREPARING);
    assert_int_equal(stage.view.nodes, process_alone ? 3 : 2); /* b may come back */
    b.conn = 3000;
    fakes_settle(&stage, back, 2);
    assert_int_equal(stage.view.phase, DPT_RDZV_RUNNING);
    assert_int_equal(stage.view.world_size, 2);
    assert_int_equal(b.phase, DPT__SERVER_PHASE__SERVER_RUNNING);
}

static void test_broken_beside_a_dead_node(void **state)
{
    (void)state;
    beside_another_loss(false);
}

static void test_broken_beside_a_dead_rank(void **state)
{
    (void)state;
    beside_another_loss(true);
}

/* Node c falls silent, and the generation fails. Then b names a, and the control connection of a
 * breaks. If a quiesced before, this ended its data connection, and a is lost by its lease only. */
static void named_after_a_loss(bool has_quiesced)
{
    struct fake *const three[] = {&a, &b, &c}, *const rest[] = {&b};
    fakes_start(&stage, three, 3);
    const uint64_t fallen = b.generation;
    stage_pass_speaking(&stage, two, 2, 4700);
    assert_int_equal(stage.view.phase, DPT_RDZV_PREPARING);
    assert_string_equal(stage.view.cause_kind, "node_lost");
    if (has_quiesced) {
        fake_obey(&a);
        fake_say(&a, &stage);
    }
    b.ranks[0].failed_generation = fallen;
    b.ranks[0].suspect = (int32_t)fake_place(&a)->rank;
    fake_say(&b, &stage);
    stage_step(&stage, (struct dpt_rdzv_event){.kind = DPT_RDZV_EVENT_BROKEN, .conn = a.conn});
    stage_pass_speaking(&stage, rest, 1, 1000);
    assert_int_equal(stage.view.phase, DPT_RDZV_PREPARING);
    assert_int_equal(stage.view.nodes, has_quiesced ? 2 : 1);
}

static void test_named_before_it_quiesced(void **state)
{
    (void)state;
    named_after_a_loss(false);
}

static void test_named_for_quiescing(void **state)
{
    (void)state;
    named_after_a_loss(true);
    a.conn = 3000;
    fakes_settle(&stage, two, 2);
    assert_int_equal(stage.view.phase, DPT_RDZV_RUNNING);
    assert_int_equal(stage.view.world_size, 2);
}

/* A peer that does not know the lost rank names none. */
static void test_broken_beside_an_unknown_error(void **state)
{
    (void)state;
    trio_start();
    stage_step(&stage, (struct dpt_rdzv_event){.kind = DPT_RDZV_EVENT_BROKEN, .conn = b.conn});
    stage_pass_speaking(&stage, two, 1, 1000);
    a.ranks[0].failed_generation = a.generation;
    a.ranks[0].suspect = -1;
    fake_say(&a, &stage);
    stage_pass_speaking(&stage, two, 1, 3300);
    assert_int_equal(stage.view.nodes, 2);
    stage_pass_speaking(&stage, two, 1, 300);
    assert_int_equal(stage.view.nodes, 1); /* its lease */
}

/* A node without a place has no peers that would notice its death: the run does not wait for it,
 * and it is lost when its lease ends. */
static void test_broken_newcomer(void **state)
{
    (void)state;
    trio_start();
    fake_say(&c, &stage);
    assert_true(a.soft);
    stage_step(&stage, (struct dpt_rdzv_event){.kind = DPT_RDZV_EVENT_BROKEN, .conn = c.conn});
    fake_obey(&a);
    fake_obey(&b);
    stage_pass_speaking(&stage, two, 2, 300);
    fakes_settle(&stage, two, 2);
    assert_int_equal(stage.view.phase, DPT_RDZV_RUNNING);
    assert_int_equal(stage.view.world_size, 2);
    assert_int_equal(stage.view.nodes, 3);
    stage_pass_speaking(&stage, two, 2, 4300);
    assert_int_equal(stage.view.nodes, 2);
    assert_int_equal(stage.view.generation, 2);
}

/* Below the minimum a broken connection does not cost the state that a waiting node holds. */
static void test_broken_while_waiting(void **state)
{
    (void)state;
    struct fake *const others[] = {&a, &c};
    a.spec.min_nodes = b.spec.min_nodes = c.spec.min_nodes = 2;
    trio_start();
    trio_step_to(4);
    fake_dies(&b, &a, &stage);
    stage_pass_speaking(&stage, others, 1, 300);
    fakes_settle(&stage, others, 1);
    assert_int_equal(stage.view.phase, DPT_RDZV_WAITING);
    fake_say(&c, &stage);
    assert_int_equal(stage.view.phase, DPT_RDZV_PREPARING);
    fake_obey(&c);
    stage_step(&stage, (struct dpt_rdzv_event){.kind = DPT_RDZV_EVENT_BROKEN, .conn = a.conn});
    stage_pass_speaking(&stage, others + 1, 1, 1000);
    assert_int_equal(stage.view.nodes, 2);
    a.conn = 3000;
    fakes_settle(&stage, others, 2);
    fakes_settle(&stage, others, 2);
    assert_int_equal(stage.view.phase, DPT_RDZV_RUNNING);
    assert_int_equal(a.plan->resume_step, 4);
}

static void test_reconnected_in_time(void **state)
{
    (void)state;
    trio_start();
    stage_step(&stage, (struct dpt_rdzv_event){.kind = DPT_RDZV_EVENT_BROKEN, .conn = b.conn});
    stage_pass_speaking(&stage, two, 1, 200);
    uint64_t old = b.conn;
    b.conn = 3000;
    fake_say(&b, &stage);
    /* The old connection's end may be heard after the new one spoke. */
    stage_step(&stage, (struct dpt_rdzv_event){.kind = DPT_RDZV_EVENT_BROKEN, .conn = old});
    stage_pass_speaking(&stage, two, 2, 1000);
    assert_int_equal(stage.view.phase, DPT_RDZV_RUNNING);
    assert_int_equal(stage.view.generation, 1);
}

int main(void)
{
#define T(test) cmocka_unit_test_setup_teardown(test, trio_setup, trio_teardown)
    const struct CMUnitTest tests[] = {
        T(test_dead_node),
        T(test_dead_after_a_broken_connection),
        T(test_broken_connection),
        T(test_broken_before_a_boundary),
        T(test_broken_newcomer),
        T(test_broken_while_waiting),
        T(test_reconnected_in_time),
        T(test_broken_beside_a_dead_node),
        T(test_broken_beside_a_dead_rank),
        T(test_broken_beside_an_unknown_error),
        T(test_named_before_it_quiesced),
        T(test_named_for_quiescing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
