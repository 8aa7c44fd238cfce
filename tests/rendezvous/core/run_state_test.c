/* The state from which a generation resumes when ranks hold parts of it: the newest whole step, its
 * holders, and the message when it is lost. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/rendezvous/core/fake_agent.h"

#include <string.h>

static struct stage stage;
static struct fake a, b, c;
static struct fake *const all[] = {&a, &b, &c}, *const both[] = {&a, &b};

static int setup(void **state)
{
    (void)state;
    stage_open(&stage);
    fake_init(&a, &stage, "a");
    fake_init(&b, &stage, "b");
    fake_init(&c, &stage, "c");
    for (size_t i = 0; i < 3; i++)
        all[i]->spec.sharded = true;
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    stage_close(&stage);
    return 0;
}

static void stands(struct fake *fake, int64_t step, bool gradient, int64_t outcome_step)
{
    static uint8_t bytes[8] = "outcome";
    fake->ranks[0].step_applied = step;
    fake->ranks[0].gradient = gradient;
    fake->ranks[0].outcome_step = outcome_step;
    fake->ranks[0].outcome =
        outcome_step < 0 ? (ProtobufCBinaryData){0, NULL} : (ProtobufCBinaryData){8, bytes};
}

/* They run, at step 7, with a third each; with `shadow` also the third of the one before. */
static void run_in_thirds(bool shadow)
{
    fakes_start(&stage, all, 3);
    for (uint32_t i = 0; i < 3; i++) {
        stands(all[i], 7, false, -1);
        all[i]->ranks[0].checkpoint_step = 4;
        all[i]->ranks[0].ran_generation = stage.view.generation;
        fake_part(all[i], i, 3, false);
        if (shadow)
            fake_part(all[i], (i + 2) % 3, 3, false);
        fake_say(all[i], &stage);
    }
}

static void lose(struct fake *fake, struct fake *const *rest, size_t n)
{
    fake_dies(fake, rest[0], &stage);
    stage_pass_speaking(&stage, rest, n, 300);
}

/* c dies, and the others quiesce. */
static void lose_c(void)
{
    lose(&c, both, 2);
    fakes_report(&stage, both, 2);
}

/* As report; formations that fail are not repeated at once. */
static void report_later(struct fake *const *fakes, size_t n)
{
    const uint64_t before = fakes[0]->plan->generation;
    fakes_report(&stage, fakes, n);
    stage_pass_speaking(&stage, fakes, n, 1000);
    assert_true(fakes[0]->plan->generation > before);
}

static void expect_cause(const char *text)
{
    if (strstr(a.plan->cause, text) == NULL)
        fail_msg("%s", a.plan->cause);
}

/* The plan's step, and the checkpoint that is read; -1: none is. */
static void expect_resume(int64_t step, int64_t checkpoint)
{
    assert_int_equal(a.plan->resume_step, step);
    assert_int_equal(a.plan->load_checkpoint, checkpoint);
}

static void a_shadow_covers_a_loss(void **state)
{
    (void)state;
    for (int lost = 0; lost < 3; lost++) {
        if (lost > 0) {
            (void)teardown(state);
            (void)setup(state);
        }
        struct fake *rest[] = {all[lost == 0], all[lost == 2 ? 1 : 2]};
        run_in_thirds(true);
        lose(all[lost], rest, 2);
        fakes_report(&stage, rest, 2);
        assert_int_equal(rest[0]->plan->resume_step, 7);
        assert_int_equal(rest[0]->plan->load_checkpoint, -1);
        assert_false(rest[0]->plan->from_seed);
        assert_false(fake_place(rest[0])->takes_state);
        assert_false(fake_place(rest[1])->takes_state);
        assert_null(strstr(rest[0]->plan->cause, "gone"));
    }
}

/* Two of three, one after the other, before the first loss was repaired. */
static void a_second_loss_goes_back(void **state)
{
    (void)state;
    run_in_thirds(true);
    a.ranks[0].checkpoint_step = 4;
    lose(&c, both, 2);
    lose(&b, both, 1);
    stage_pass_speaking(&stage, both, 1, 4600); /* no peer had a connection to it any more */
    fakes_report(&stage, both, 1);
    expect_resume(4, 4);
    assert_int_equal(a.plan->steps_done_before, 7);
    assert_false(fake_place(&a)->takes_state);
    expect_cause("shard 1 of 3 is lost with node c and its shadow holder node b: going back to "
                 "the checkpoint of step 4, losing 3 steps");
}

static void without_redundancy_a_loss_goes_back(void **state)
{
    (void)state;
    struct fake *rest[] = {&a, &c};
    run_in_thirds(false);
    lose(&b, rest, 2);
    a.ranks[0].checkpoint_step = 6; /* c does not see that one */
    fakes_report(&stage, rest, 2);
    assert_int_equal(a.plan->load_checkpoint, 4);
    expect_cause("shard 1 of 3 is lost with node b: going back to the checkpoint of step 4, "
                 "losing 3 steps");
    assert_false(fake_place(&a)->takes_state);
    assert_false(fake_place(&c)->takes_state);
}

static void without_a_checkpoint_to_the_beginning(void **state)
{
    (void)state;
    struct fake *rest[] = {&a, &c};
    run_in_thirds(false);
    a.ranks[0].checkpoint_step = c.ranks[0].checkpoint_step = -1;
    lose(&b, rest, 2);
    fakes_report(&stage, rest, 2);
    expect_resume(0, -1);
    assert_true(a.plan->from_seed);
    assert_non_null(strstr(a.plan->cause, "going back to the beginning, losing 7 steps"));
}

/* One has applied step 8; the others can, if they hold its gradient. */
static void an_outcome_makes_a_step_whole(void **state)
{
    (void)state;
    run_in_thirds(false);
    stands(&a, 8, false, 8);
    stands(&b, 7, true, -1);
    stands(&c, 7, true, 7);
    fake_breaks_off(&a, &stage);
    fakes_report(&stage, all, 3);
    assert_int_equal(a.plan->resume_step, 8);
    assert_int_equal(a.plan->outcome.len, 0); /* it has applied the step */
    assert_int_equal(b.plan->outcome.len, 8);
    for (size_t i = 0; i < 3; i++)
        assert_false(fake_place(all[i])->takes_state);
}

/* A third that cannot be brought to step 8, and the others not back to 7. */
static void no_mix_of_steps(void **state)
{
    (void)state;
    run_in_thirds(false);
    stands(&a, 8, false, 8);
    stands(&b, 7, true, -1);
    stands(&c, 7, false, -1);
    fake_breaks_off(&a, &stage);
    fakes_report(&stage, all, 3);
    expect_resume(4, 4);
    assert_int_equal(a.plan->outcome.len, 0);
}

/* ... but with shadows two at step 7 are whole without the third. */
static void a_whole_step_wins_over_a_newer_part(void **state)
{
    (void)state;
    run_in_thirds(true);
    stands(&a, 8, false, 8);
    fake_breaks_off(&a, &stage);
    fakes_report(&stage, all, 3);
    expect_resume(7, -1);
    assert_true(fake_place(&a)->takes_state);
    assert_false(fake_place(&b)->takes_state);
}

/* A formation that moved parts failed before GO: the parts before it count. */
static void pending_shards_of_failed_formation_are_dropped(void **state)
{
    (void)state;
    run_in_thirds(true);
    const uint64_t ran = stage.view.generation;
    lose_c();
    for (uint32_t i = 0; i < 2; i++) { /* b is ready, a is not */
        both[i]->ranks[0].pending_generation = i == 1 ? stage.view.generation : 0;
        if (i == 1)
            fake_part(both[i], i, 2, true);
    }
    fake_breaks_off(&a, &stage);
    report_later(both, 2);
    assert_int_equal(a.plan->state_generation, ran);
    expect_resume(7, -1);
}

/* The server does not know that it was sent off, but one of the ranks does. */
static void shards_of_generation_that_got_go_count(void **state)
{
    (void)state;
    run_in_thirds(true);
    lose_c();
    const uint64_t sent_off = stage.view.generation;
    fake_no_parts(&a); /* has heard GO, and has freed the parts before */
    fake_part(&a, 0, 2, false);
    a.ranks[0].ran_generation = sent_off;
    b.ranks[0].pending_generation = sent_off;
    fake_part(&b, 1, 2, true);
    b.ranks[0].gradient = true; /* of the state before: useless now */
    stage_restart(&stage, 99);
    for (int i = 0; i < 2; i++) {
        both[i]->epoch = 0;
        both[i]->counter_seen = 0;
        both[i]->ranks[0].failed_generation = sent_off;
    }
    stage_pass_speaking(&stage, both, 2, 6000);
    fakes_report(&stage, both, 2);
    stage_pass_speaking(&stage, both, 2, 6000);
    assert_int_equal(a.plan->state_generation, sent_off);
    expect_resume(7, -1);
}

/* No rank is known to have got GO, but only the pending parts are whole. */
static void complete_pending_shards_count(void **state)
{
    (void)state;
    run_in_thirds(true);
    lose_c();
    fake_no_parts(&a);
    fake_part(&a, 0, 2, false); /* a joiner, say: it held nothing before */
    fake_part(&b, 1, 2, true);
    b.ranks[0].pending_generation = stage.view.generation;
    const uint64_t formed = stage.view.generation;
    fake_breaks_off(&a, &stage);
    report_later(both, 2);
    assert_int_equal(a.plan->state_generation, formed);
    expect_resume(7, -1);
}

/* A leaving node hands its unique part over, as a handover rank of one generation, and goes. */
static void leaving_node_hands_shard_over(void **state)
{
    (void)state;
    run_in_thirds(false);
    c.state.leaving = true;
    fake_say(&c, &stage);
    fakes_report(&stage, all, 3);
    assert_int_equal(a.plan->world_size, 3);
    assert_int_equal(a.plan->handover_ranks, 1);
    assert_int_equal(a.plan->resume_step, 7);
    assert_int_equal(fake_place(&c)->rank, 2);
    assert_int_equal(fake_place(&c)->checkpoint_slot, -1);
    const uint64_t handover = stage.view.generation;
    for (uint32_t i = 0; i < 3; i++) {
        fake_phase(all[i], DPT__RANK_PHASE__RANK_READY, handover);
        if (all[i] != &c) {
            fake_part(all[i], i, 2, true);
            all[i]->ranks[0].pending_generation = handover;
        }
        fake_say(all[i], &stage);
    }
    fakes_report(&stage, all, 3);
    assert_int_equal(c.phase, DPT__SERVER_PHASE__SERVER_SPARE);
    assert_int_equal(a.plan->generation, handover + 1);
    assert_int_equal(a.plan->world_size, 2);
    assert_int_equal(a.plan->handover_ranks, 0);
    assert_int_equal(a.plan->state_generation, handover);
    assert_int_equal(a.plan->resume_step, 7);
    for (size_t i = 0; i < 2; i++)
        assert_false(fake_place(both[i])->takes_state);
    fakes_settle(&stage, both, 2);
    assert_int_equal(c.phase, DPT__SERVER_PHASE__SERVER_RELEASED);
    assert_int_equal(stage.view.restarts_left, 100);
}

/* As the server sees it: parts on two nodes, on one, and while a generation is formed. */
static void redundancy_is_seen(void **state)
{
    (void)state;
    fakes_start(&stage, both, 2); /* all hold everything */
    assert_int_equal(stage.view.redundancy, DPT_RDZV_REDUNDANCY_WHOLE);
    fake_breaks_off(&a, &stage);
    assert_int_equal(stage.view.redundancy, DPT_RDZV_REDUNDANCY_REBUILDING);
    report_later(both, 2);
    assert_int_equal(stage.view.phase, DPT_RDZV_PLANNED);
    for (uint32_t i = 0; i < 2; i++) {
        fake_part(both[i], i, 2, true);
        both[i]->ranks[0].pending_generation = stage.view.generation;
    }
    fakes_settle(&stage, both, 2);
    assert_int_equal(stage.view.phase, DPT_RDZV_RUNNING);
    assert_int_equal(stage.view.redundancy, DPT_RDZV_REDUNDANCY_NONE);
    fake_breaks_off(&a, &stage);
    report_later(both, 2);
    for (uint32_t i = 0; i < 2; i++) { /* each a shadow of the other's */
        fake_part(both[i], 1 - i, 2, true);
        both[i]->ranks[0].pending_generation = stage.view.generation;
    }
    fakes_settle(&stage, both, 2);
    assert_int_equal(stage.view.redundancy, DPT_RDZV_REDUNDANCY_WHOLE);
    stage_restart(&stage, 99); /* and one that adopts them */
    for (int i = 0; i < 2; i++)
        both[i]->ranks[0].plan_rank = (int32_t)fake_place(both[i])->rank;
    fakes_settle(&stage, both, 2);
    assert_int_equal(stage.view.phase, DPT_RDZV_RUNNING);
    assert_int_equal(stage.view.redundancy, DPT_RDZV_REDUNDANCY_WHOLE);
}

/* Replicas on nodes of different sizes: one of halves, one in one piece. */
static void replicas_cut_differently(void **state)
{
    (void)state;
    struct fake *two[] = {&a, &b};
    a.state.n_ranks = 2;
    fake_part(&a, 0, 2, false);
    a.shards[1][0] = a.shards[0][0];
    a.shards[1][0].index = 1;
    a.shard_list[1][0] = &a.shards[1][0];
    a.ranks[1].n_shards = 1;
    fakes_start(&stage, two, 2);
    assert_int_equal(stage.view.world_size, 3);
    assert_int_equal(stage.view.redundancy, DPT_RDZV_REDUNDANCY_WHOLE);
}

/* Three become two, which have half each and copy the other's while they train. */
static void run_in_halves_rebuilding(void)
{
    run_in_thirds(true);
    lose_c();
    for (uint32_t i = 0; i < 2; i++) {
        both[i]->ranks[0].pending_generation = stage.view.generation;
        both[i]->ranks[0].rebuilding = true;
        fake_no_parts(both[i]);
        fake_part(both[i], i, 2, true);
    }
    fakes_settle(&stage, both, 2);
    assert_int_equal(stage.view.phase, DPT_RDZV_RUNNING);
    assert_int_equal(stage.view.redundancy, DPT_RDZV_REDUNDANCY_REBUILDING);
    for (uint32_t i = 0; i < 2; i++) {
        both[i]->ranks[0].pending_generation = 0;
        fake_no_parts(both[i]);
        fake_part(both[i], i, 2, false);
        stands(both[i], 9, false, -1);
        fake_say(both[i], &stage);
    }
    assert_int_equal(stage.view.redundancy, DPT_RDZV_REDUNDANCY_REBUILDING);
}

/* Another server adopts them while they copy. */
static void copies_become_whole_under_another_server(void **state)
{
    (void)state;
    run_in_halves_rebuilding();
    stage_restart(&stage, 99);
    for (int i = 0; i < 2; i++)
        both[i]->ranks[0].plan_rank = (int32_t)fake_place(both[i])->rank;
    fakes_settle(&stage, both, 2);
    assert_int_equal(stage.view.phase, DPT_RDZV_RUNNING);
    assert_int_equal(stage.view.redundancy, DPT_RDZV_REDUNDANCY_REBUILDING);
    for (uint32_t i = 0; i < 2; i++) {
        both[i]->ranks[0].rebuilding = false;
        fake_part(both[i], 1 - i, 2, false);
        fake_say(both[i], &stage);
    }
    assert_int_equal(stage.view.redundancy, DPT_RDZV_REDUNDANCY_WHOLE);
}

static void copies_are_whole_while_it_trains(void **state)
{
    (void)state;
    run_in_halves_rebuilding();
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(stage.view.redundancy, DPT_RDZV_REDUNDANCY_REBUILDING);
        both[i]->ranks[0].rebuilding = false;
        fake_part(both[i], 1 - i, 2, false);
        fake_say(both[i], &stage);
    }
    assert_int_equal(stage.view.redundancy, DPT_RDZV_REDUNDANCY_WHOLE);
    lose(&b, both, 1);
    fakes_report(&stage, both, 1);
    assert_int_equal(a.plan->resume_step, 9);
    assert_null(strstr(a.plan->cause, "gone"));
}

static void a_loss_before_copies_are_whole_goes_back(void **state)
{
    (void)state;
    run_in_halves_rebuilding();
    lose(&b, both, 1);
    fakes_report(&stage, both, 1);
    assert_int_equal(a.plan->load_checkpoint, 4);
    expect_cause("shard 1 of 2 is lost with node b, before its copy was complete after the last "
                 "loss: going back to the checkpoint of step 4, losing 5 steps");
}

static void leave_thirds(void)
{
    run_in_thirds(true);
    c.state.leaving = true;
    fake_say(&c, &stage);
    fakes_report(&stage, all, 3);
    assert_int_equal(a.plan->world_size, 2);
    assert_int_equal(a.plan->handover_ranks, 0);
    assert_int_equal(a.plan->resume_step, 7);
}

/* With shadows a leaving node has nothing to hand over; it goes when the others run. */
static void covered_leaving_node_is_released_at_running(void **state)
{
    (void)state;
    leave_thirds();
    assert_int_equal(c.phase, DPT__SERVER_PHASE__SERVER_SPARE);
    fakes_settle(&stage, both, 2);
    assert_int_equal(stage.view.phase, DPT_RDZV_RUNNING);
    assert_int_equal(c.phase, DPT__SERVER_PHASE__SERVER_RELEASED);
}

/* Until then it has the copy of the node that dies: one third is held only by it and by b. */
static void leaving_node_covers_node_that_dies_meanwhile(void **state)
{
    (void)state;
    struct fake *rest[] = {&a, &c};
    leave_thirds();
    lose(&b, rest, 2);
    fakes_report(&stage, rest, 2);
    assert_int_equal(a.plan->handover_ranks, 1);
    assert_int_equal(a.plan->world_size, 2);
    expect_resume(7, -1);
    assert_null(strstr(a.plan->cause, "gone"));
}

int main(void)
{
#define T(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(a_shadow_covers_a_loss),
        T(a_second_loss_goes_back),
        T(without_redundancy_a_loss_goes_back),
        T(without_a_checkpoint_to_the_beginning),
        T(an_outcome_makes_a_step_whole),
        T(no_mix_of_steps),
        T(a_whole_step_wins_over_a_newer_part),
        T(pending_shards_of_failed_formation_are_dropped),
        T(shards_of_generation_that_got_go_count),
        T(complete_pending_shards_count),
        T(leaving_node_hands_shard_over),
        T(redundancy_is_seen),
        T(copies_become_whole_under_another_server),
        T(replicas_cut_differently),
        T(copies_are_whole_while_it_trains),
        T(a_loss_before_copies_are_whole_goes_back),
        T(covered_leaving_node_is_released_at_running),
        T(leaving_node_covers_node_that_dies_meanwhile),
    };
    return cmocka_run_group_tests_name("test_rendezvous_core_run_state", tests, NULL, NULL);
}
