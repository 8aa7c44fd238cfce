/* Nodes with a health check: refused with a fault, else admitted and listed with their figures. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "rendezvous/core/kept.h"
#include "tests/rendezvous/core/fake_operator.h"

#include <string.h>

static Dpt__NodeHealth health;

static void set_health(struct fake *fake, const char *fault)
{
    dpt__node_health__init(&health);
    health.fault = (char *)fault;
    health.check_us = 7000;
    health.memory_bytes = INT64_C(1) << 33;
    health.cores = 4;
    health.mflops = 31000;
    health.round_trip_us = 210;
    fake->state.health = &health;
}

static const struct dpt_rdzv_record *newest_record(void)
{
    return kept_record_at(stage.journal, kept_records_count(stage.journal) - 1);
}

/* The first node of a run defines no run. The same process is recorded once, a later one again. */
static void fault_is_refused_and_recorded(void **state)
{
    (void)state;
    set_health(&a, "core 3 computes wrong values");
    fake_refused(&a, &stage,
                 "the health check of this machine has failed: core 3 computes wrong values");
    assert_int_equal(stage.view.nodes, 0);
    assert_int_equal(stage.records[DPT_RDZV_RECORD_RUN], 0);
    assert_int_equal(stage.records[DPT_RDZV_RECORD_UNHEALTHY], 1);
    const struct dpt_rdzv_record *record = newest_record();
    assert_string_equal(record->text, "core 3 computes wrong values");
    assert_string_equal(record->node, "a");
    assert_string_equal(record->cause, a.stamp.run);
    assert_int_equal(record->health.mflops, 31000);
    fake_refused(&a, &stage, "has failed");
    assert_int_equal(stage.records[DPT_RDZV_RECORD_UNHEALTHY], 1);
    a.stamp.incarnation++;
    fake_refused(&a, &stage, "has failed");
    assert_int_equal(stage.records[DPT_RDZV_RECORD_UNHEALTHY], 2);
}

/* A node that was refused does not disturb those that train, and may come back mended. */
static void mended_node_joins(void **state)
{
    (void)state;
    start_trio_at_9();
    set_health(&c, "core 0 computes wrong values");
    fake_refused(&c, &stage, "core 0");
    IS(a, RUNNING);
    assert_int_equal(stage.view.nodes, 2);
    set_health(&c, "");
    c.stamp.incarnation++;
    c.counter = 0;
    fake_say(&c, &stage);
    assert_true(c.counter_seen > 0);
    assert_int_equal(stage.view.nodes, 3);
}

static int with_health, without_health;

static void count_health(const Dpt__ServerState *message)
{
    with_health = without_health = 0;
    for (size_t i = 0; i < message->reply->n_nodes; i++) {
        const Dpt__NodeInfo *node = message->reply->nodes[i];
        if (node->health == NULL) {
            without_health++;
            continue;
        }
        with_health++;
        assert_string_equal(node->node, "a");
        assert_int_equal(node->health->check_us, 7000);
        assert_int_equal(node->health->memory_bytes, INT64_C(1) << 33);
        assert_int_equal(node->health->cores, 4);
        assert_int_equal(node->health->mflops, 31000);
        assert_int_equal(node->health->round_trip_us, 210);
    }
}

static void list_nodes(void)
{
    Dpt__AgentState question = DPT__AGENT_STATE__INIT;
    Dpt__Control control = DPT__CONTROL__INIT;
    control.verb = VERB(NODES);
    control.step = -1;
    question.version = DPT_PROTO_VERSION;
    question.stamp = &a.stamp;
    question.control = &control;
    stage.on_reply = count_health;
    stage_step(&stage, (struct dpt_rdzv_event){
                           .kind = DPT_RDZV_EVENT_MESSAGE, .conn = 4711, .message = &question});
    stage.on_reply = NULL;
}

/* Also those of a member that is not back since the restart of the server. */
static void figures_are_listed(void **state)
{
    (void)state;
    set_health(&a, "");
    trio_start();
    list_nodes();
    assert_int_equal(with_health, 1);
    assert_int_equal(without_health, 1);
    stage_restart_with_journal(&stage, 99);
    stage_tick(&stage, 0);
    with_health = 0;
    list_nodes();
    assert_int_equal(with_health, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, trio_setup, trio_teardown)
        TEST(fault_is_refused_and_recorded),
        TEST(mended_node_joins),
        TEST(figures_are_listed),
#undef TEST
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
