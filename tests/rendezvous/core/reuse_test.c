/* A run's name that is used again: generations of the earlier run stay used. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/rendezvous/core/trio.h"

#include <stdio.h>
#include <string.h>

static struct fake *const three[] = {&a, &b, &c};

/* More names than the server remembers one by one. */
enum { NAMES = 100 };

static void forget_all(void)
{
    stage_pass(&stage, 60000);
    stage_step(&stage, (struct dpt_rdzv_event){.kind = DPT_RDZV_EVENT_BROKEN, .conn = a.conn});
    stage_step(&stage, (struct dpt_rdzv_event){.kind = DPT_RDZV_EVENT_BROKEN, .conn = b.conn});
    fake_say(&c, &stage); /* the server hears c: a and b are silent */
    stage_pass_speaking(&stage, &(struct fake *){&c}, 1, 30000);
    assert_int_equal(dpt_rdzv_runs(stage.core), 1);
}

static void start_again(struct fake *fake)
{
    const uint64_t incarnation = fake->stamp.incarnation, conn = fake->conn;
    char id[DPT_PROTO_NAME_BYTES];
    (void)snprintf(id, sizeof id, "%s", fake->id);
    fake_fini(fake);
    fake_reset(fake, id);
    fake->conn = conn + 100;
    fake->stamp.incarnation = incarnation + 1;
}

/* a and b finish their run as the server's only one. */
static void run_to_the_end(void)
{
    trio_start();
    trio_step_to(3);
    fake_phase(&a, DPT__RANK_PHASE__RANK_FINISHED, a.generation);
    fake_phase(&b, DPT__RANK_PHASE__RANK_FINISHED, b.generation);
    fake_say(&a, &stage);
    fake_say(&b, &stage);
    assert_int_equal(stage.view.phase, DPT_RDZV_DONE);
}

static void test_generations_grow_over_runs(void **state)
{
    (void)state;
    uint64_t newest = 0;
    uint8_t nonces[3][DPT_PROTO_NONCE_BYTES];
    for (int i = 0; i < 3; i++) {
        run_to_the_end();
        assert_true(a.generation > newest);
        newest = a.generation;
        memcpy(nonces[i], a.plan->nonce.data, sizeof nonces[i]);
        for (int k = 0; k < i; k++)
            assert_memory_not_equal(nonces[k], nonces[i], sizeof nonces[i]);
        stage_pass(&stage, 11000);
        assert_int_equal(dpt_rdzv_runs(stage.core), 0);
        start_again(&a);
        start_again(&b);
    }
}

/* No process saw its end: all nodes left it. */
static void test_a_run_that_was_left(void **state)
{
    (void)state;
    c.stamp.run = "other";
    trio_start();
    const uint64_t newest = a.generation;
    forget_all();
    start_again(&a);
    start_again(&b);
    fake_say(&a, &stage);
    fake_say(&b, &stage);
    stage_pass_speaking(&stage, two, 2, 1100);
    fakes_settle(&stage, two, 2);
    assert_int_equal(a.phase, DPT__SERVER_PHASE__SERVER_RUNNING);
    assert_true(a.generation > newest);
}

/* Both nodes are told to leave. The next process of their user may bring another config at once; a
 * process of another user may not. */
static void test_a_run_that_was_stopped(void **state)
{
    (void)state;
    trio_start();
    const uint64_t newest = a.generation;
    for (int i = 0; i < 2; i++) {
        two[i]->state.leaving = true;
        fake_say(two[i], &stage);
    }
    fakes_settle(&stage, two, 2);
    assert_int_equal(a.phase, DPT__SERVER_PHASE__SERVER_RELEASED);
    assert_int_equal(b.phase, DPT__SERVER_PHASE__SERVER_RELEASED);
    start_again(&a);
    start_again(&b);
    a.spec.config_digest = b.spec.config_digest = "another";
    a.spec.user = "bob";
    fake_refused(&a, &stage, "belongs to user");
    a.spec.user = b.spec.user;
    assert_int_equal(stage.records[DPT_RDZV_RECORD_FORGET], 0);
    trio_start();
    assert_int_equal(stage.records[DPT_RDZV_RECORD_FORGET], 1);
    assert_int_equal(a.phase, DPT__SERVER_PHASE__SERVER_RUNNING);
    assert_true(a.generation > newest);
}

/* The last node was lost, not released: it may come back, so the run keeps its config. */
static void test_a_run_that_was_lost(void **state)
{
    (void)state;
    trio_start();
    a.state.leaving = true;
    fake_say(&a, &stage);
    fakes_settle(&stage, two, 2);
    assert_int_equal(a.phase, DPT__SERVER_PHASE__SERVER_RELEASED);
    stage_step(&stage, (struct dpt_rdzv_event){.kind = DPT_RDZV_EVENT_BROKEN, .conn = b.conn});
    c.spec.config_digest = "another";
    for (int i = 0; i < 300 && stage.view.nodes > 0; i++)
        stage_pass_speaking(&stage, &(struct fake *){&c}, 1, 100);
    assert_int_equal(stage.view.nodes, 0);
    fake_refused(&c, &stage, "config differs");
    stage_pass(&stage, 11000);
    fake_say(&c, &stage);
    assert_int_equal(c.phase, DPT__SERVER_PHASE__SERVER_SETTLING);
}

/* b says again what it said before it was released. */
static void say_as_before(uint64_t generation)
{
    b.conn += 100;
    b.generation = generation;
    b.phase = DPT__SERVER_PHASE__SERVER_WAITING;
    fake_say(&b, &stage);
}

/* b has left, and its connection broke before it heard so. Meanwhile a worker with another config
 * has begun the next run of the name. b still hears that it may go, and whether its steps are
 * saved. */
static void test_a_node_that_left_the_run_before(void **state)
{
    (void)state;
    trio_start();
    trio_step_to(3);
    a.state.leaving = b.state.leaving = true;
    fake_say(&a, &stage);
    fake_say(&b, &stage);
    fakes_settle(&stage, two, 2);
    assert_int_equal(b.phase, DPT__SERVER_PHASE__SERVER_RELEASED);
    const uint64_t generation = b.plan->generation;
    c.spec.config_digest = "another";
    fake_say(&c, &stage);
    assert_int_equal(stage.records[DPT_RDZV_RECORD_FORGET], 1);
    b.ranks[0].ran_generation = generation; /* it would be refused for its config */
    say_as_before(generation);
    assert_int_equal(b.phase, DPT__SERVER_PHASE__SERVER_RELEASED);
    assert_false(b.last_holder);
    stage_restart_with_journal(&stage, 99);
    stage_tick(&stage, 0);
    say_as_before(generation);
    assert_int_equal(b.phase, DPT__SERVER_PHASE__SERVER_RELEASED);
    assert_false(b.last_holder);

    c.conn += 100;
    for (int i = 0; i < 40 && stage.view.phase != DPT_RDZV_RUNNING; i++) {
        stage_pass_speaking(&stage, &(struct fake *){&c}, 1, 500);
        fakes_settle(&stage, &(struct fake *){&c}, 1);
    }
    assert_int_equal(stage.view.phase, DPT_RDZV_RUNNING); /* other lost nodes are now expelled */
    b.ranks[0].step_applied = 4;
    say_as_before(generation);
    assert_int_equal(b.phase, DPT__SERVER_PHASE__SERVER_RELEASED);
    assert_true(b.last_holder);
    b.state.leaving = false;
    say_as_before(generation);
    assert_int_equal(b.phase, DPT__SERVER_PHASE__SERVER_EXPELLED);
}

/* Enough names that the first is no longer remembered separately. */
static void test_many_names(void **state)
{
    (void)state;
    run_to_the_end();
    const uint64_t newest = a.generation;
    stage_pass(&stage, 11000);
    for (int i = 0; i < NAMES; i++) {
        char name[32];
        (void)snprintf(name, sizeof name, "run-%d", i);
        fake_fini(&c);
        fake_reset(&c, "c");
        c.conn = 5000 + (uint64_t)i;
        c.stamp.run = name;
        fake_say(&c, &stage);
        c.state.leaving = true;
        fake_say(&c, &stage);
        assert_int_equal(c.phase, DPT__SERVER_PHASE__SERVER_RELEASED);
        stage_pass(&stage, 11000);
        assert_int_equal(dpt_rdzv_runs(stage.core), 0);
    }
    start_again(&a);
    start_again(&b);
    trio_start();
    assert_true(a.generation > newest);
}

/* An agent that was away for a server's life comes with a number that the name has used since: its
 * generation is not taken for that one. */
static void test_a_used_number_is_not_adopted(void **state)
{
    (void)state;
    run_to_the_end();
    stage_pass(&stage, 11000);
    start_again(&a);
    a.epoch = 55; /* an earlier server's */
    a.generation = 1;
    a.ranks[0].phase = DPT__RANK_PHASE__RANK_RUNNING;
    a.ranks[0].generation = 1;
    a.ranks[0].plan_rank = 0;
    a.ranks[0].step_applied = 7;
    a.state.plan_digest = "of an earlier server";
    a.state.plan_world = 1;
    fake_say(&a, &stage);
    assert_int_equal(stage.view.phase, DPT_RDZV_WAITING);
    for (int i = 0; i < 50 && stage.view.generation == 0; i++) {
        a.epoch = 55;
        a.generation = 1;
        stage_pass_speaking(&stage, two, 1, 100);
    }
    assert_int_equal(stage.view.generation, 2);
    fakes_settle(&stage, two, 1);
    assert_int_equal(stage.view.phase, DPT_RDZV_RUNNING);
    assert_int_equal(a.plan->resume_step, 7);
}

/* A node tells the highest generation that the server believes, and the run goes on after it. */
static void test_told_generation_leaves_room(void **state)
{
    (void)state;
    trio_start();
    c.epoch = a.epoch + 1; /* as if from another server */
    c.generation = DPT_PROTO_TOLD_GENERATION + 1;
    fake_refused(&c, &stage, "this node says that generation 1000000000001 has been formed");
    start_again(&c);
    c.epoch = a.epoch + 1;
    c.generation = DPT_PROTO_TOLD_GENERATION;
    fake_say(&c, &stage);
    for (uint64_t i = 0; i < 3; i++) {
        fakes_settle(&stage, three, 3);
        stage_pass_speaking(&stage, three, 3, 2000);
        fakes_settle(&stage, three, 3);
        assert_int_equal(stage.view.phase, DPT_RDZV_RUNNING);
        assert_int_equal(stage.view.nodes, 3);
        assert_int_equal(a.generation, DPT_PROTO_TOLD_GENERATION + 1 + i);
        fake_breaks_off(&a, &stage);
    }
}

int main(void)
{
#define T(test) cmocka_unit_test_setup_teardown(test, trio_setup, trio_teardown)
    const struct CMUnitTest tests[] = {
        T(test_generations_grow_over_runs),      T(test_a_run_that_was_left),
        T(test_a_run_that_was_stopped),          T(test_a_run_that_was_lost),
        T(test_a_node_that_left_the_run_before), T(test_many_names),
        T(test_a_used_number_is_not_adopted),    T(test_told_generation_leaves_room),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
