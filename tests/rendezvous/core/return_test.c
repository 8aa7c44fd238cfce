/* Nodes that were removed for silence alone and come back: with their state if no generation ran
 * without them, else expelled. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/rendezvous/core/trio.h"

#include <string.h>

enum { LEASE_MS = 4500 };

/* c is another run, which goes on sending. */
static struct fake *const beside[] = {&c};

static struct dpt_rdzv_run_view demo(void)
{
    struct dpt_rdzv_run_view view = {0};
    for (size_t i = 0; i < dpt_rdzv_runs(stage.core); i++) {
        dpt_rdzv_run_view(stage.core, i, &view);
        if (strcmp(view.run, "demo") == 0)
            return view;
    }
    return (struct dpt_rdzv_run_view){0};
}

/* At step 7 both nodes of the run are cut off, and the server hears the other run alone. */
static void lose_both(void)
{
    trio_start();
    trio_step_to(7);
    c.stamp.run = "other";
    fake_say(&c, &stage);
    stage_pass_speaking(&stage, beside, 1, LEASE_MS + 200);
    assert_int_equal(demo().nodes, 0);
    assert_int_equal(demo().phase, DPT_RDZV_WAITING);
}

static void returns(struct fake *fake, uint64_t conn)
{
    fake->conn = conn;
    fake_say(fake, &stage);
}

static void test_all_come_back(void **state)
{
    (void)state;
    lose_both();
    returns(&a, 3000);
    assert_int_equal(a.counter_seen, a.counter);
    assert_int_equal(a.phase, DPT__SERVER_PHASE__SERVER_PREPARE);
    fake_obey(&a);
    fake_say(&a, &stage);
    stage_pass_speaking(&stage, two, 1, 1000); /* b may hold parts that a lacks */
    assert_int_equal(demo().phase, DPT_RDZV_PREPARING);
    returns(&b, 3001);
    fakes_settle(&stage, two, 2);
    assert_int_equal(demo().phase, DPT_RDZV_RUNNING);
    assert_int_equal(demo().nodes, 2);
    assert_int_equal(a.plan->resume_step, 7);
    assert_int_equal(b.plan->resume_step, 7);
    assert_int_equal(a.stamp.incarnation, 1);
}

/* The other one is dead: it is waited for as long as it could come. */
static void test_one_of_two_comes_back(void **state)
{
    (void)state;
    lose_both();
    returns(&a, 3000);
    fake_obey(&a);
    stage_pass_speaking(&stage, two, 1, LEASE_MS + 100);
    fakes_settle(&stage, two, 1);
    assert_int_equal(demo().phase, DPT_RDZV_RUNNING);
    assert_int_equal(a.plan->resume_step, 7);
}

/* An agent whose spec the server knew does not send it: the server requests it, and does not expel
 * the agent. */
static void test_back_without_its_spec(void **state)
{
    (void)state;
    lose_both();
    a.state.spec = NULL;
    returns(&a, 3000);
    assert_int_equal(a.phase, DPT__SERVER_PHASE__SERVER_WAITING);
    assert_int_equal(a.counter_seen, 0);
    a.state.spec = &a.spec;
    fake_say(&a, &stage);
    assert_int_equal(a.counter_seen, a.counter);
}

static void test_run_was_forgotten(void **state)
{
    (void)state;
    lose_both();
    stage_pass_speaking(&stage, beside, 1, 11000);
    assert_int_equal(dpt_rdzv_runs(stage.core), 1);
    returns(&a, 3000);
    assert_int_equal(a.counter_seen, a.counter);
    returns(&b, 3001);
    stage_pass_speaking(&stage, two, 2, LEASE_MS + 100);
    fakes_settle(&stage, two, 2);
    assert_int_equal(demo().phase, DPT_RDZV_RUNNING);
    assert_true(a.generation > 1);
    assert_int_equal(a.plan->resume_step, 7);
}

/* Others trained under the name meanwhile: the first world is over, also when they are forgotten.
 */
static void test_name_was_used_meanwhile(void **state)
{
    (void)state;
    static struct fake d;
    struct fake *const other[] = {&d};
    lose_both();
    fake_init(&d, &stage, "d");
    d.spec.max_nodes = 1;
    stage_pass_speaking(&stage, beside, 1, 11000);
    fakes_settle(&stage, other, 1);
    assert_int_equal(demo().phase, DPT_RDZV_RUNNING);
    returns(&a, 3000);
    assert_int_equal(a.phase, DPT__SERVER_PHASE__SERVER_EXPELLED);
    stage_pass_speaking(&stage, beside, 1, LEASE_MS + 15000);
    assert_int_equal(dpt_rdzv_runs(stage.core), 1);
    returns(&b, 3001);
    assert_int_equal(b.phase, DPT__SERVER_PHASE__SERVER_EXPELLED);
}

static void lose_b(void)
{
    trio_start();
    trio_step_to(7);
    stage_pass_speaking(&stage, two, 1, LEASE_MS + 100);
    assert_int_equal(stage.view.nodes, 1);
    assert_int_equal(stage.view.phase, DPT_RDZV_PREPARING);
}

/* It is expelled, and learns the step of the others. */
static void test_others_went_on(void **state)
{
    (void)state;
    lose_b();
    fakes_settle(&stage, two, 1);
    a.ranks[0].step_applied = 12;
    fake_say(&a, &stage);
    returns(&b, 3001);
    assert_int_equal(b.phase, DPT__SERVER_PHASE__SERVER_EXPELLED);
    assert_int_equal(b.world_step, 12);
    assert_int_equal(stage.view.nodes, 1);
}

/* Before the others have reported it is waited for like them. */
static void test_back_while_preparing(void **state)
{
    (void)state;
    lose_b();
    returns(&b, 3001);
    fake_obey(&a);
    fake_say(&a, &stage);
    assert_int_equal(stage.view.phase, DPT_RDZV_PREPARING);
    fakes_settle(&stage, two, 2);
    assert_int_equal(stage.view.world_size, 2);
    assert_int_equal(stage.view.generation, 2);
}

/* A plan that was made without it has not been sent off. */
static void test_back_while_planned(void **state)
{
    (void)state;
    lose_b();
    b.ranks[0].step_applied = 8;
    fake_obey(&a);
    fake_say(&a, &stage);
    assert_int_equal(stage.view.phase, DPT_RDZV_PLANNED);
    returns(&b, 3001);
    assert_int_equal(stage.view.phase, DPT_RDZV_PREPARING);
    fakes_settle(&stage, two, 2);
    assert_int_equal(stage.view.phase, DPT_RDZV_RUNNING);
    assert_int_equal(stage.view.world_size, 2);
    assert_int_equal(a.plan->resume_step, 8);
}

/* Two of three are cut off. When one is back, the other may hold parts that both lack: for a lease
 * no plan is made without it. */
static void test_first_back_waits_for_the_rest(void **state)
{
    static struct fake *const three[] = {&a, &b, &c};
    (void)state;
    for (int i = 0; i < 3; i++)
        three[i]->spec.min_nodes = 2;
    fakes_start(&stage, three, 3);
    for (int i = 0; i < 3; i++) {
        three[i]->ranks[0].step_applied = 7;
        fake_say(three[i], &stage);
    }
    stage_pass_speaking(&stage, three, 1, LEASE_MS + 100);
    fake_obey(&a);
    fake_say(&a, &stage);
    assert_int_equal(stage.view.phase, DPT_RDZV_WAITING);
    returns(&b, 3001);
    fakes_settle(&stage, three, 2);
    assert_int_equal(stage.view.phase, DPT_RDZV_PREPARING);
    stage_pass_speaking(&stage, three, 2, LEASE_MS - 1000);
    assert_int_equal(stage.view.phase, DPT_RDZV_PREPARING);
    returns(&c, 3002);
    fakes_settle(&stage, three, 3);
    assert_int_equal(stage.view.phase, DPT_RDZV_RUNNING);
    assert_int_equal(stage.view.world_size, 3);
    assert_int_equal(c.plan->resume_step, 7);
}

/* Both nodes are cut off, each with one half of step 7 that nothing else has. */
static void lose_both_halves(void)
{
    a.spec.sharded = b.spec.sharded = c.spec.sharded = true;
    trio_start();
    fake_part(&a, 0, 2, false);
    fake_part(&b, 1, 2, false);
    a.ranks[0].ran_generation = b.ranks[0].ran_generation = 1;
    trio_step_to(7);
    c.stamp.run = "other";
    c.spec.max_nodes = 1;
    fakes_settle(&stage, beside, 1);
    stage_pass_speaking(&stage, beside, 1, LEASE_MS + 200);
    assert_int_equal(demo().nodes, 0);
}

static void comes_back(struct fake *fake, uint64_t conn)
{
    returns(fake, conn);
    fake_obey(fake);
    fake_say(fake, &stage);
}

static void assert_both_go_on(struct fake *const *fakes, size_t n)
{
    fakes_settle(&stage, fakes, n);
    assert_int_equal(demo().phase, DPT_RDZV_RUNNING);
    assert_int_equal(a.plan->resume_step, 7);
    assert_int_equal(b.plan->resume_step, 7);
}

/* A new node does not take the place of one that is waited for. */
static void test_newcomer_ends_no_wait(void **state)
{
    static struct fake d;
    static struct fake *const with_new[] = {&a, &d, &b};
    (void)state;
    lose_both_halves();
    fake_init(&d, &stage, "d");
    d.spec.sharded = true;
    comes_back(&a, 3000);
    fake_say(&d, &stage);
    fakes_settle(&stage, with_new, 2);
    assert_int_equal(demo().phase, DPT_RDZV_PREPARING);
    comes_back(&b, 3001);
    assert_both_go_on(with_new, 3);
}

/* One that is back is waited for like any member while its connection is broken. */
static void test_back_and_suspect(void **state)
{
    (void)state;
    lose_both_halves();
    comes_back(&a, 3000);
    returns(&b, 3001);
    stage_step(&stage, (struct dpt_rdzv_event){.kind = DPT_RDZV_EVENT_BROKEN, .conn = b.conn});
    stage_pass_speaking(&stage, two, 1, 300);
    fakes_settle(&stage, two, 1);
    assert_int_equal(demo().phase, DPT_RDZV_PREPARING);
    comes_back(&b, 3002);
    assert_both_go_on(two, 2);
}

/* Cut off again before a generation was sent off, they are waited for again. */
static void test_back_twice(void **state)
{
    static struct fake *const all[] = {&a, &b, &c};
    (void)state;
    lose_both_halves();
    comes_back(&a, 3000);
    comes_back(&b, 3001);
    assert_int_equal(demo().phase, DPT_RDZV_PLANNED);
    stage_pass_speaking(&stage, all, 3, LEASE_MS + 500); /* state is moved */
    stage_pass_speaking(&stage, beside, 1, LEASE_MS + 200);
    assert_int_equal(demo().nodes, 0);
    comes_back(&a, 3010);
    stage_pass_speaking(&stage, two, 1, 1000);
    assert_int_equal(demo().phase, DPT_RDZV_PREPARING);
    comes_back(&b, 3011);
    assert_both_go_on(two, 2);
}

/* A node that leaves keeps its half for one that may come back, but not for all of its time. */
static void test_leaving_node_waits_for_the_other_half(void **state)
{
    (void)state;
    for (int back = 0; back < 2; back++) {
        if (back) {
            (void)trio_teardown(state);
            (void)trio_setup(state);
        }
        lose_both_halves();
        a.state.leaving = true;
        comes_back(&a, 3000);
        assert_int_equal(demo().phase, DPT_RDZV_WAITING);
        stage_pass_speaking(&stage, two, 1, 3000);
        assert_int_equal(demo().nodes, 1);
        if (back) {
            comes_back(&b, 3001);
            fakes_settle(&stage, two, 2);
            assert_int_equal(b.plan->resume_step, 7);
            continue;
        }
        stage_pass_speaking(&stage, two, 1, 4000); /* of 8 s */
        assert_int_equal(a.phase, DPT__SERVER_PHASE__SERVER_RELEASED);
    }
}

/* Its words from before it was lost are no sign of life. */
static void test_old_words(void **state)
{
    (void)state;
    trio_start();
    const uint64_t counter = b.counter;
    stage_step(&stage, (struct dpt_rdzv_event){.kind = DPT_RDZV_EVENT_BROKEN, .conn = b.conn});
    stage_pass_speaking(&stage, two, 1, LEASE_MS + 100);
    b.conn = 3001;
    b.counter = counter - 1;
    fake_say(&b, &stage);
    assert_false(b.told);
    assert_int_equal(stage.view.nodes, 1);
    b.counter = counter + 1;
    fake_say(&b, &stage);
    assert_int_equal(stage.view.nodes, 2);
}

/* A node that speaks and hangs is not taken back: the others would wait for it again. */
static void test_hung_node_stays_out(void **state)
{
    (void)state;
    trio_start();
    trio_step_to(7);
    a.ranks[0].failed_generation = a.generation;
    fake_say(&a, &stage);
    fake_obey(&a);
    stage_pass_speaking(&stage, two, 2, 6000);
    assert_int_equal(stage.view.nodes, 1);
    assert_int_equal(b.phase, DPT__SERVER_PHASE__SERVER_EXPELLED);
}

/* Nor does it hold up the others when its words come with gaps. */
static void test_hung_node_with_gaps(void **state)
{
    (void)state;
    trio_start();
    trio_step_to(7);
    a.ranks[0].failed_generation = a.generation;
    fake_say(&a, &stage);
    fake_obey(&a);
    for (int i = 0; i < 20 && stage.view.nodes == 2; i++) {
        stage_pass_speaking(&stage, two, 1, 600);
        fake_say(&b, &stage);
    }
    assert_int_equal(stage.view.nodes, 1);
}

int main(void)
{
#define T(test) cmocka_unit_test_setup_teardown(test, trio_setup, trio_teardown)
    const struct CMUnitTest tests[] = {
        T(test_all_come_back),
        T(test_one_of_two_comes_back),
        T(test_back_without_its_spec),
        T(test_run_was_forgotten),
        T(test_name_was_used_meanwhile),
        T(test_others_went_on),
        T(test_back_while_preparing),
        T(test_back_while_planned),
        T(test_first_back_waits_for_the_rest),
        T(test_newcomer_ends_no_wait),
        T(test_back_and_suspect),
        T(test_back_twice),
        T(test_leaving_node_waits_for_the_other_half),
        T(test_old_words),
        T(test_hung_node_stays_out),
        T(test_hung_node_with_gaps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
