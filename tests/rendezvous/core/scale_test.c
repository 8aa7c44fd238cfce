/* Many nodes: joins answer the newcomer alone, an overloaded server lengthens the pause of its
 * agents, and its limits are options. tests/rendezvous/scale measures. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/rendezvous/core/fake_agent.h"

static struct stage stage;
static struct fake a, b, c;

static int setup(void **state)
{
    (void)state;
    stage_open(&stage);
    fake_init(&a, &stage, "a");
    fake_init(&b, &stage, "b");
    fake_init(&c, &stage, "c");
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    stage_close(&stage);
    return 0;
}

static void test_join_answers_the_newcomer_alone(void **state)
{
    (void)state;
    fake_say(&a, &stage);
    fake_say(&b, &stage);
    assert_int_equal(stage.n_sends, 1);
    assert_true(b.told && !a.told);
    fake_say(&a, &stage);
    assert_int_equal(a.n_nodes, 2); /* the others learn of it with their next message */
}

/* Nodes that are lost one after the other while a generation is prepared are one change. */
static void test_second_loss_is_told_to_nobody(void **state)
{
    (void)state;
    struct fake *all[] = {&a, &b, &c};
    fakes_start(&stage, all, 3);
    stage_step(&stage, (struct dpt_rdzv_event){.kind = DPT_RDZV_EVENT_BROKEN, .conn = b.conn});
    stage_step(&stage, (struct dpt_rdzv_event){.kind = DPT_RDZV_EVENT_BROKEN, .conn = c.conn});
    const int32_t rank_of_c = (int32_t)fake_place(&c)->rank;
    stage_tick(&stage, 1);
    fake_loses(&a, &b);
    fake_say(&a, &stage);
    const uint64_t generation = stage.view.generation;
    for (int i = 0; i < 30; i++) {
        stage_tick(&stage, 10);
        assert_int_equal(stage.n_sends, 0);
        fake_say(&a, &stage);
    }
    assert_int_equal(stage.view.nodes, 2); /* nobody accuses c yet */
    a.ranks[0].suspect = rank_of_c;        /* of the generation that has failed */
    for (int i = 0; i < 100 && stage.view.nodes > 1; i++) {
        fake_say(&a, &stage);
        stage_tick(&stage, 10);
    }
    assert_int_equal(stage.view.nodes, 1);
    assert_int_equal(stage.view.generation, generation);
}

static void test_backlog_lengthens_the_pause(void **state)
{
    (void)state;
    struct fake *both[] = {&a, &b};
    fakes_start(&stage, both, 2);
    assert_int_equal(a.heartbeat_ms, 100);
    stage_backlog(&stage, 1);
    fake_say(&a, &stage);
    assert_int_equal(a.heartbeat_ms, 200);
    stage_backlog(&stage, 1);
    fake_say(&a, &stage);
    assert_int_equal(a.heartbeat_ms, 200); /* agents have had no time to follow */
    for (int i = 0; i < 40; i++) {
        stage_backlog(&stage, 400);
        fake_say(&a, &stage);
        fake_say(&b, &stage);
    }
    assert_int_equal(a.heartbeat_ms, dpt_timing_from(5000, 0).drain_ms / 8);
    assert_int_equal(stage.view.nodes, 2);
    assert_int_equal(stage.view.phase, DPT_RDZV_RUNNING);
    stage_pass_speaking(&stage, both, 2, 20000);
    assert_int_equal(a.heartbeat_ms, 100);
}

static void test_number_of_nodes_is_limited(void **state)
{
    (void)state;
    stage.nodes_max = 2;
    stage_restart(&stage, 78);
    fake_say(&a, &stage);
    fake_say(&b, &stage);
    fake_refused(&c, &stage, "2 nodes, the most that this server takes (dpt-rdzv --max-nodes)");
}

static void test_a_single_node_is_the_limit(void **state)
{
    (void)state;
    stage.nodes_max = 1;
    stage_restart(&stage, 78);
    fake_say(&a, &stage);
    fake_refused(&b, &stage, "has 1 node, the most that this server takes (dpt-rdzv --max-nodes)");
}

/* Members of the journal come back though the server takes fewer nodes now; a newcomer does not. */
static void test_members_come_back_to_a_server_with_a_lower_limit(void **state)
{
    (void)state;
    struct fake *both[] = {&a, &b};
    fakes_start(&stage, both, 2);
    stage.nodes_max = 1;
    stage_restart_with_journal(&stage, 78);
    for (size_t i = 0; i < 2; i++) {
        both[i]->ranks[0].plan_rank = (int32_t)fake_place(both[i])->rank;
        fake_say(both[i], &stage);
    }
    assert_int_equal(stage.view.nodes, 2);
    assert_int_equal(stage.view.phase, DPT_RDZV_RUNNING);
    fake_refused(&c, &stage, "2 nodes, the most that this server takes (dpt-rdzv --max-nodes)");
}

/* The world has its largest size, and the rest are spares. */
static void test_number_of_ranks_is_limited(void **state)
{
    (void)state;
    struct fake *all[] = {&a, &b, &c};
    stage.world_max = 2;
    stage.fresh = true;
    stage_restart(&stage, 78);
    fakes_start(&stage, all, 3);
    assert_int_equal(stage.view.world_size, 2);
    assert_int_equal(c.phase, DPT__SERVER_PHASE__SERVER_SPARE);
    stage_pass_speaking(&stage, all, 3, 3000);
    assert_int_equal(stage.view.phase, DPT_RDZV_RUNNING); /* the spare causes no generation */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_join_answers_the_newcomer_alone, setup, teardown),
        cmocka_unit_test_setup_teardown(test_second_loss_is_told_to_nobody, setup, teardown),
        cmocka_unit_test_setup_teardown(test_backlog_lengthens_the_pause, setup, teardown),
        cmocka_unit_test_setup_teardown(test_number_of_nodes_is_limited, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_single_node_is_the_limit, setup, teardown),
        cmocka_unit_test_setup_teardown(test_members_come_back_to_a_server_with_a_lower_limit,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(test_number_of_ranks_is_limited, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
