/* Which rank or node is lost, and when; stalls; adoption by a restarted server. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/rendezvous/core/trio.h"

#include <string.h>

static void test_silent_node_is_lost_after_lease(void **state)
{
    (void)state;
    trio_start();
    stage_pass_speaking(&stage, two, 1, 4400);
    assert_int_equal(stage.view.nodes, 2);
    stage_pass_speaking(&stage, two, 1, 200);
    assert_int_equal(stage.view.nodes, 1); /* within the timeout */
    assert_string_equal(stage.view.cause_kind, "node_lost");
}

static void test_rank_death(void **state)
{
    (void)state;
    trio_start();
    trio_step_to(3);
    b.ranks[0].phase = DPT__RANK_PHASE__RANK_DEAD;
    b.ranks[0].text = "out of memory";
    b.state.crashes = 1;
    b.state.first_error = "rank process 0: out of memory";
    fake_say(&b, &stage);
    assert_int_equal(stage.view.phase, DPT_RDZV_PREPARING);
    assert_string_equal(stage.view.cause_kind, "rank_lost");
    assert_int_equal(stage.view.restarts_left, 99);
    fake_say(&b, &stage); /* said again: not counted again */
    assert_int_equal(stage.view.restarts_left, 99);
    fakes_settle(&stage, two, 1);
    assert_int_equal(stage.view.phase, DPT_RDZV_RUNNING);
    assert_int_equal(stage.view.world_size, 1);
    assert_int_equal(a.plan->resume_step, 3);
    b.ranks[0].spawn = 2;
    b.ranks[0].step_applied = -1;
    b.ranks[0].phase = DPT__RANK_PHASE__RANK_STARTING;
    fake_say(&b, &stage);
    assert_int_equal(stage.view.generation, 2);
    b.ranks[0].phase = DPT__RANK_PHASE__RANK_STANDBY;
    fake_say(&b, &stage);
    assert_true(a.soft); /* the successor is a joiner */
    fakes_settle(&stage, two, 2);
    assert_int_equal(stage.view.world_size, 2);
    assert_int_equal(fake_place(&b)->rank, 1);
}

/* A loss begins a new generation while the plan is out, and while a step boundary is awaited: the
 * nodes that have answered look for checkpoints again. Once all were told to stop at once, the
 * generation goes on with the nodes that are left. */
static void test_loss_while_forming(void **state)
{
    (void)state;
    trio_start();
    fake_say(&c, &stage);
    assert_true(a.soft);
    fake_phase(&c, DPT__RANK_PHASE__RANK_QUIESCED, 2);
    fake_say(&c, &stage);
    b.ranks[0].phase = DPT__RANK_PHASE__RANK_DEAD;
    fake_say(&b, &stage);
    assert_int_equal(stage.view.generation, 3);
    assert_false(a.soft);
    fake_phase(&a, DPT__RANK_PHASE__RANK_QUIESCED, 3);
    fake_say(&a, &stage);
    assert_int_equal(stage.view.phase, DPT_RDZV_PREPARING); /* c has answered for generation 2 */
    c.ranks[0].checkpoint_step = 5;
    fake_phase(&c, DPT__RANK_PHASE__RANK_QUIESCED, 3);
    fake_say(&c, &stage);
    assert_int_equal(stage.view.phase, DPT_RDZV_PLANNED);
    fake_say(&a, &stage);
    assert_int_equal(a.plan->resume_step, 5);
    c.ranks[0].phase = DPT__RANK_PHASE__RANK_DEAD;
    fake_say(&c, &stage);
    assert_int_equal(stage.view.phase, DPT_RDZV_PREPARING);
    assert_int_equal(stage.view.generation, 4);
    assert_false(a.soft);
    b.ranks[0].spawn = 2;
    fake_phase(&b, DPT__RANK_PHASE__RANK_QUIESCED, 4);
    fake_say(&b, &stage);
    b.ranks[0].phase = DPT__RANK_PHASE__RANK_DEAD;
    fake_say(&b, &stage);
    assert_int_equal(stage.view.generation, 4);
}

static void test_rank_without_progress_is_lost(void **state)
{
    (void)state;
    trio_start();
    stage_pass_speaking(&stage, two, 2, 30000);
    assert_int_equal(stage.view.phase, DPT_RDZV_RUNNING); /* the first step may take any time */
    a.ranks[0].step_ms_median = b.ranks[0].step_ms_median = 700;
    trio_step_to(1);
    stage_pass_speaking(&stage, two, 2, 6800);
    assert_int_equal(stage.view.phase, DPT_RDZV_RUNNING);
    stage_pass_speaking(&stage, two, 2, 400);
    assert_int_equal(stage.view.phase, DPT_RDZV_PREPARING);
    assert_string_equal(stage.view.cause_kind, "stalled");
    assert_int_equal(stage.view.nodes,
                     2); /* the rank that hangs is found because it does not quiesce */
    fake_phase(&a, DPT__RANK_PHASE__RANK_QUIESCED, 2);
    stage_pass_speaking(&stage, two, 2, 5800);
    assert_int_equal(stage.view.nodes, 1);
    assert_int_equal(stage.view.phase, DPT_RDZV_PLANNED);
}

static void crash(struct fake *fake)
{
    fake->ranks[0].phase = DPT__RANK_PHASE__RANK_DEAD;
    fake_say(fake, &stage);
}

static void come_back(struct fake *fake, int64_t checkpoint_step)
{
    Dpt__RankState *rank = &fake->ranks[0];
    rank->spawn++;
    rank->phase = DPT__RANK_PHASE__RANK_STANDBY;
    rank->generation = 0;
    rank->step_applied = rank->outcome_step = -1;
    rank->checkpoint_step = checkpoint_step;
    fake_say(fake, &stage);
}

static void quiesce_until_planned(void)
{
    for (int i = 0; i < 2 && stage.view.phase != DPT_RDZV_PLANNED; i++) {
        for (int k = 0; k < 2; k++)
            if (two[k]->phase == DPT__SERVER_PHASE__SERVER_PREPARE)
                fake_phase(two[k], DPT__RANK_PHASE__RANK_QUIESCED, two[k]->generation);
        fake_say(&a, &stage);
        fake_say(&b, &stage);
    }
    assert_int_equal(stage.view.phase, DPT_RDZV_PLANNED);
}

/* Steps that a generation lost are reported in the plan of the generation that runs in its place,
 * also if others that never ran were formed in between; then they are not reported again. */
static void test_lost_steps_are_carried(void **state)
{
    (void)state;
    trio_start();
    trio_step_to(8);
    b.ranks[0].step_applied = 10; /* its agent's last word of it */
    crash(&b);
    crash(&a);
    come_back(&a, 4);
    come_back(&b, 4);
    quiesce_until_planned();
    assert_int_equal(a.plan->resume_step, 4);
    assert_int_equal(a.plan->steps_done_before, 10);
    uint64_t formed = a.plan->generation;
    crash(&a);
    come_back(&a, 4);
    fakes_settle(&stage, two, 2);
    assert_int_equal(stage.view.phase, DPT_RDZV_RUNNING);
    assert_true(a.plan->generation > formed);
    assert_int_equal(a.plan->resume_step, 4);
    assert_int_equal(a.plan->steps_done_before, 10);
    trio_step_to(6);
    crash(&a);
    crash(&b);
    come_back(&a, 4);
    come_back(&b, 4);
    quiesce_until_planned();
    assert_int_equal(a.plan->resume_step, 4);
    assert_int_equal(a.plan->steps_done_before, 6);
}

static void test_busy_is_no_stall(void **state)
{
    (void)state;
    trio_start();
    a.ranks[0].step_ms_median = 100;
    trio_step_to(1);
    a.ranks[0].busy = true; /* saves */
    stage_pass_speaking(&stage, two, 2, 60000);
    assert_int_equal(stage.view.phase, DPT_RDZV_RUNNING);
    stage_pass_speaking(&stage, two, 2, 241000);
    assert_string_equal(stage.view.cause_kind, "stalled");
}

/* An evaluation may take any time, as long as batch after batch is done. */
static void test_work_is_no_stall(void **state)
{
    (void)state;
    trio_start();
    a.ranks[0].step_ms_median = 100;
    trio_step_to(1);
    a.ranks[0].busy = b.ranks[0].busy = true;
    for (int i = 0; i < 10; i++) {
        stage_pass_speaking(&stage, two, 2, 200000);
        assert_int_equal(stage.view.phase, DPT_RDZV_RUNNING);
        a.ranks[0].work_done++;
        fake_say(&a, &stage);
    }
    stage_pass_speaking(&stage, two, 2, 299000);
    assert_int_equal(stage.view.phase, DPT_RDZV_RUNNING);
    stage_pass_speaking(&stage, two, 2, 2000); /* a hang meanwhile still shows */
    assert_string_equal(stage.view.cause_kind, "stalled");
}

static void test_below_min(void **state)
{
    (void)state;
    a.spec.min_nodes = b.spec.min_nodes = c.spec.min_nodes = 2;
    trio_start();
    trio_step_to(4);
    fake_dies(&b, &a, &stage);
    stage_pass_speaking(&stage, two, 1, 300);
    fakes_settle(&stage, two, 1);
    assert_int_equal(stage.view.phase, DPT_RDZV_WAITING);
    assert_int_equal(a.phase, DPT__SERVER_PHASE__SERVER_WAITING);
    struct fake *both[] = {&a, &c};
    stage_pass_speaking(&stage, both, 1, 20000);
    fake_say(&c, &stage);
    fakes_settle(&stage, both, 2);
    assert_int_equal(stage.view.phase, DPT_RDZV_RUNNING);
    assert_int_equal(a.plan->resume_step, 4); /* the survivor kept its state */
    assert_int_equal(a.plan->steps_done_before, 4);
}

/* The survivor's process dies, too, and with it the steps: the cause names both. */
static void test_later_loss_below_min(void **state)
{
    (void)state;
    a.spec.min_nodes = b.spec.min_nodes = c.spec.min_nodes = 2;
    trio_start();
    trio_step_to(4);
    fake_dies(&b, &a, &stage);
    stage_pass_speaking(&stage, two, 1, 300);
    fakes_settle(&stage, two, 1);
    a.ranks[0].phase = DPT__RANK_PHASE__RANK_DEAD;
    a.ranks[0].text = "was killed by signal 9";
    fake_say(&a, &stage);
    assert_int_equal(stage.view.phase, DPT_RDZV_WAITING);
    assert_string_equal(stage.view.text, "node b lost: control and data connections broken; rank 0 "
                                         "(node a) died: signal 9");
    fake_say(&a, &stage);
    assert_null(strstr(strstr(stage.view.text, "signal 9"), "; ")); /* once */
}

/* One replica dies, another has the same state: the cause of the generation is the loss that cost
 * steps. */
static void test_later_loss_without_steps(void **state)
{
    (void)state;
    struct fake *three[] = {&a, &b, &c};
    a.spec.min_nodes = b.spec.min_nodes = c.spec.min_nodes = 3;
    fakes_start(&stage, three, 3);
    trio_step_to(4);
    c.ranks[0].step_applied = 4;
    fake_say(&c, &stage);
    fake_dies(&b, &a, &stage);
    stage_pass_speaking(&stage, (struct fake *[]){&a, &c}, 2, 300);
    fakes_settle(&stage, (struct fake *[]){&a, &c}, 2);
    a.ranks[0].phase = DPT__RANK_PHASE__RANK_DEAD;
    fake_say(&a, &stage);
    assert_int_equal(stage.view.phase, DPT_RDZV_WAITING);
    assert_null(strstr(stage.view.text, "node a"));
}

/* Only ranks that step can be asked to stop at a step boundary: a joiner waits until all do. */
static void test_soft_waits_for_go(void **state)
{
    (void)state;
    trio_start();
    fake_phase(&b, DPT__RANK_PHASE__RANK_READY, 1); /* has not heard GO yet */
    fake_say(&b, &stage);
    fake_say(&c, &stage);
    assert_int_equal(stage.view.phase, DPT_RDZV_RUNNING);
    fake_phase(&b, DPT__RANK_PHASE__RANK_RUNNING, 1);
    fake_say(&b, &stage);
    assert_int_equal(stage.view.phase, DPT_RDZV_PREPARING);
    assert_true(a.soft);
}

static void test_restarted_server_adopts_run(void **state)
{
    (void)state;
    trio_start();
    trio_step_to(5);
    trio_restart_server();
    a.state.spec = NULL; /* it thinks the server knows */
    fake_say(&a, &stage);
    assert_int_equal(a.counter_seen, 0); /* send everything */
    a.state.spec = &a.spec;
    a.generation = 1;
    fake_say(&a, &stage);
    assert_int_equal(a.phase, DPT__SERVER_PHASE__SERVER_WAITING);
    a.generation = 1;
    fake_say(&b, &stage);
    assert_int_equal(stage.view.phase, DPT_RDZV_RUNNING);
    assert_int_equal(stage.view.generation, 1);
    assert_string_equal(stage.view.plan_digest, a.plan->digest);
    assert_int_equal(b.phase, DPT__SERVER_PHASE__SERVER_RUNNING);
    fake_say(&c, &stage); /* and it goes on as if nothing had been */
    assert_true(a.soft);
    assert_int_equal(a.generation, 2);
}

static void test_adoption_incomplete(void **state)
{
    (void)state;
    trio_start();
    trio_step_to(5);
    trio_restart_server();
    fake_say(&a, &stage);
    for (int i = 0; i < 43; i++) {
        a.generation = 1;
        stage_pass(&stage, 100);
        fake_say(&a, &stage);
        assert_int_equal(stage.view.phase, DPT_RDZV_WAITING);
    }
    stage_pass_speaking(&stage, two, 1, 400);
    assert_int_equal(stage.view.phase, DPT_RDZV_PREPARING);
    assert_int_equal(stage.view.generation, 2);
    assert_string_equal(stage.view.cause_kind, "server_restart");
    fakes_settle(&stage, two, 1);
    assert_int_equal(a.plan->resume_step, 5);
}

/* All processes died while the server was down; their agents know how far they were. */
static void test_lost_steps_over_a_restart(void **state)
{
    (void)state;
    trio_start();
    trio_step_to(9);
    trio_restart_server();
    a.state.step_high = 9;
    b.state.step_high = 8;
    a.generation = b.generation = 1;
    come_back(&a, 5);
    a.generation = b.generation = 1;
    come_back(&b, 5);
    for (int i = 0; i < 50; i++) {
        stage_pass_speaking(&stage, two, 2, 100);
        a.generation = a.generation == 0 ? 1 : a.generation;
        b.generation = b.generation == 0 ? 1 : b.generation;
    }
    fakes_settle(&stage, two, 2);
    assert_int_equal(stage.view.phase, DPT_RDZV_RUNNING);
    assert_int_equal(a.plan->generation, 2);
    assert_int_equal(a.plan->resume_step, 5);
    assert_int_equal(a.plan->steps_done_before, 9);
    crash(&b); /* its agent sends 9 until it has received GO, which is already sent */
    b.state.step_high = 9;
    fake_say(&b, &stage);
    fakes_settle(&stage, two, 1);
    assert_int_equal(a.plan->steps_done_before, 5);
}

/* Two nodes that cannot reach each other do not stop the others. */
static void test_pair_without_contact_does_not_stop_others(void **state)
{
    (void)state;
    struct fake *const all[] = {&a, &b, &c};
    fake_say(&c, &stage);
    fake_say(&a, &stage);
    fake_say(&b, &stage);
    stage_pass_speaking(&stage, all, 3, 1100);
    for (int formation = 0; formation < 3 && stage.view.world_size != 2; formation++) {
        fakes_settle(&stage, all, 3);
        if (stage.view.world_size == 2)
            break;
        a.ranks[0].failed_generation = b.ranks[0].failed_generation = a.generation;
        a.ranks[0].suspect = (int32_t)fake_place(&b)->rank;
        b.ranks[0].suspect = (int32_t)fake_place(&a)->rank;
        fake_say(&a, &stage);
        fake_say(&b, &stage);
        for (size_t i = 0; i < 3; i++)
            fake_phase(all[i], DPT__RANK_PHASE__RANK_QUIESCED, all[i]->generation);
        stage_pass_speaking(&stage, all, 3, 1000);
    }
    fakes_settle(&stage, all, 3);
    assert_int_equal(stage.view.world_size, 2);
    assert_int_equal(b.phase, DPT__SERVER_PHASE__SERVER_SPARE); /* the later of the two */
    assert_int_equal(stage.view.phase, DPT_RDZV_RUNNING);
}

/* A node is not excluded for connections that its dead processes ended in two formations in a row,
 * nor are the peers that gave up because of these. */
static void test_no_pair_beside_the_dead(void **state)
{
    (void)state;
    struct fake *const all[] = {&a, &b, &c};
    fakes_start(&stage, all, 3);
    for (int formation = 0; formation < 3; formation++) {
        assert_int_equal(stage.view.phase, DPT_RDZV_RUNNING);
        assert_int_equal(stage.view.world_size, 3);
        a.ranks[0].failed_generation = c.ranks[0].failed_generation = a.generation;
        a.ranks[0].suspect = (int32_t)fake_place(&b)->rank;
        c.ranks[0].suspect = (int32_t)fake_place(&a)->rank;
        fake_say(&a, &stage);
        fake_say(&c, &stage);
        come_back(&b, -1); /* its first word after its process died */
        fakes_settle(&stage, all, 3);
        stage_pass_speaking(&stage, all, 3, 1000);
        fakes_settle(&stage, all, 3);
        for (int i = 0; i < 3; i++)
            assert_int_not_equal(all[i]->phase, DPT__SERVER_PHASE__SERVER_SPARE);
    }
}

/* `by` reports twice that it cannot reach `peer`, in two formations without a step. */
static void fail_two_formations(struct fake *by, const struct fake *peer, int64_t its_step)
{
    for (int i = 0; i < 2; i++) {
        fake_loses(by, peer);
        by->ranks[0].step_applied = its_step;
        fake_say(by, &stage);
        fakes_settle(&stage, two, 2);
        stage_pass_speaking(&stage, two, 2, 1000);
        fakes_settle(&stage, two, 2);
    }
    assert_int_equal(stage.view.phase, DPT_RDZV_RUNNING);
    assert_int_equal(stage.view.world_size, 1);
}

/* Two nodes cannot reach one another. a trains alone while b is excluded; then b is tried again,
 * and names a, which alone holds the newest state: b is excluded once more. */
static void test_holder_of_the_newest_state_is_not_excluded(void **state)
{
    (void)state;
    trio_start();
    fail_two_formations(&a, &b, 0);
    assert_int_equal(b.phase, DPT__SERVER_PHASE__SERVER_SPARE);
    a.ranks[0].step_applied = 9;
    fake_say(&a, &stage);
    stage_pass_speaking(&stage, two, 2, 31000);
    fakes_settle(&stage, two, 2);
    assert_int_equal(stage.view.world_size, 2);
    fail_two_formations(&b, &a, -1);
    assert_int_equal(b.phase, DPT__SERVER_PHASE__SERVER_SPARE);
    assert_int_equal(a.plan->resume_step, 9);
}

int main(void)
{
#define T(test) cmocka_unit_test_setup_teardown(test, trio_setup, trio_teardown)
    const struct CMUnitTest tests[] = {
        T(test_silent_node_is_lost_after_lease),
        T(test_rank_death),
        T(test_loss_while_forming),
        T(test_rank_without_progress_is_lost),
        T(test_lost_steps_are_carried),
        T(test_lost_steps_over_a_restart),
        T(test_busy_is_no_stall),
        T(test_work_is_no_stall),
        T(test_below_min),
        T(test_later_loss_below_min),
        T(test_later_loss_without_steps),
        T(test_soft_waits_for_go),
        T(test_restarted_server_adopts_run),
        T(test_adoption_incomplete),
        T(test_pair_without_contact_does_not_stop_others),
        T(test_no_pair_beside_the_dead),
        T(test_holder_of_the_newest_state_is_not_excluded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
