/* The members of a plan when more ranks hold the state of its step than fit: an earlier generation
 * left spares at the step that a later one has reached. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/rendezvous/core/fake_agent.h"

enum { STEP = 7 };

static struct stage stage;
static struct fake a, b, c, d;
static struct fake *const all[] = {&a, &b, &c, &d};
static struct fake *const rest[] = {&a, &c, &d};

static int setup(void **state)
{
    (void)state;
    stage_open(&stage);
    fake_init(&a, &stage, "a");
    fake_init(&b, &stage, "b");
    fake_init(&c, &stage, "c");
    fake_init(&d, &stage, "d");
    for (size_t i = 0; i < 4; i++)
        all[i]->spec.sharded = true;
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    stage_close(&stage);
    return 0;
}

static void holds(struct fake *fake, uint32_t index, uint32_t of)
{
    fake->ranks[0].step_applied = STEP;
    fake_no_parts(fake);
    fake_part(fake, index, of, false);
}

static void second_holds(struct fake *fake, uint32_t index, uint32_t of)
{
    Dpt__Shard *shard = &fake->shards[1][0];
    dpt__shard__init(shard);
    shard->index = index;
    shard->of = of;
    fake->shard_list[1][0] = shard;
    fake->ranks[1].n_shards = 1;
    fake->ranks[1].step_applied = STEP;
}

static void all_fakes_report(struct fake *const *fakes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        fake_say(fakes[i], &stage);
}

static void all_fakes_obey(struct fake *const *fakes, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        fake_obey(fakes[i]);
        fake_say(fakes[i], &stage);
    }
}

/* Of two that hold one half the second is of no use. */
static void those_are_in_who_are_whole_together(void **state)
{
    (void)state;
    struct fake *three[] = {&a, &b, &c};
    for (size_t i = 0; i < 3; i++)
        three[i]->spec.max_world = 2;
    holds(&a, 0, 2);
    holds(&b, 0, 2);
    holds(&c, 1, 2);
    fakes_start(&stage, three, 3);
    assert_int_equal(b.phase, DPT__SERVER_PHASE__SERVER_SPARE);
    assert_non_null(fake_place(&c));
    assert_int_equal(a.plan->world_size, 2);
    assert_int_equal(a.plan->handover_ranks, 0);
    assert_int_equal(a.plan->resume_step, STEP);
    assert_false(fake_place(&a)->takes_state);
    assert_false(fake_place(&c)->takes_state);
}

/* A rank that holds a shard and the shadow of another covers both. */
static void a_shadow_is_no_reason_to_go_in(void **state)
{
    (void)state;
    struct fake *three[] = {&a, &b, &c};
    for (size_t i = 0; i < 3; i++)
        three[i]->spec.max_world = 2;
    holds(&a, 1, 2);
    holds(&b, 1, 2);
    fake_part(&b, 0, 2, false);
    holds(&c, 0, 2);
    fakes_start(&stage, three, 3);
    assert_int_equal(c.phase, DPT__SERVER_PHASE__SERVER_SPARE);
    assert_non_null(fake_place(&b));
    assert_int_equal(a.plan->resume_step, STEP);
}

/* Its second process has died, and the next one is a spare. */
static void second_begins_anew(struct fake *fake)
{
    Dpt__RankState *rank = &fake->ranks[1];
    rank->spawn++;
    rank->phase = DPT__RANK_PHASE__RANK_STANDBY;
    rank->generation = 0;
    rank->step_applied = rank->plan_rank = -1;
    rank->n_shards = 0;
}

/* c and d join first; a and b train (the run has at most two nodes). Then b is lost, and a process
 * of a, of which the other one shadows a quarter. c and d hold a quarter each of the step that
 * these have reached. */
static void lose_b(uint32_t min_nodes)
{
    struct fake *two[] = {&a, &b}, *spares[] = {&c, &d};
    for (size_t i = 0; i < 4; i++) {
        all[i]->spec.min_nodes = min_nodes;
        all[i]->spec.max_nodes = 2;
        all[i]->spec.max_world = 4;
    }
    a.state.n_ranks = b.state.n_ranks = c.state.n_ranks = 2;
    fakes_start(&stage, two, 2);
    stage_restart(&stage, 99);
    for (int i = 0; i < 2; i++)
        fake_phase(spares[i], DPT__RANK_PHASE__RANK_STARTING, 0);
    all_fakes_report(spares, 2);
    for (int i = 0; i < 2; i++) {
        two[i]->ranks[0].plan_rank = 2 * i;
        two[i]->ranks[1].plan_rank = 2 * i + 1;
        holds(two[i], (uint32_t)(2 * i), 4);
        second_holds(two[i], (uint32_t)(2 * i + 1), 4);
    }
    all_fakes_report(two, 2);
    assert_int_equal(stage.view.phase, DPT_RDZV_RUNNING);
    assert_int_equal(stage.view.nodes, 4);
    assert_int_equal(stage.view.world_size, 4);
    for (int i = 0; i < 2; i++) {
        fake_phase(spares[i], DPT__RANK_PHASE__RANK_STANDBY, 0);
        holds(spares[i], 2 + (uint32_t)i, 4);
    }
    all_fakes_report(spares, 2);
    fake_part(&a, 1, 4, false);
    second_begins_anew(&a);
    fake_dies(&b, &a, &stage);
    stage_pass_speaking(&stage, rest, 3, 300);
}

/* Only c fits beside a. The state of d is handed over, and one generation later d is out, though it
 * joined before the others. */
static void a_node_too_many_only_hands_over(void **state)
{
    (void)state;
    lose_b(1);
    all_fakes_obey(rest, 3);
    assert_int_equal(a.phase, DPT__SERVER_PHASE__SERVER_PLAN);
    const uint64_t handover = a.plan->generation;
    assert_int_equal(a.plan->resume_step, STEP);
    assert_int_equal(a.plan->world_size, 5);
    assert_int_equal(a.plan->handover_ranks, 1);
    assert_int_equal(fake_place(&d)->rank, 4);
    assert_false(fake_place(&d)->takes_state);
    assert_int_equal(fake_place(&c)->rank, 1);
    c.ranks[0].pending_generation = handover;
    fake_part(&c, 1, 4, true);
    second_holds(&c, 2, 4);
    second_holds(&a, 3, 4);
    all_fakes_obey(rest, 3);
    assert_int_equal(a.phase, DPT__SERVER_PHASE__SERVER_PREPARE);
    all_fakes_obey(rest, 3);
    assert_int_equal(a.phase, DPT__SERVER_PHASE__SERVER_PLAN);
    assert_int_equal(d.phase, DPT__SERVER_PHASE__SERVER_SPARE);
    assert_int_equal(a.plan->generation, handover + 1);
    assert_int_equal(a.plan->resume_step, STEP);
    assert_int_equal(a.plan->world_size, 4);
    assert_int_equal(a.plan->handover_ranks, 0);
    fakes_settle(&stage, rest, 3);
    assert_int_equal(stage.view.phase, DPT_RDZV_RUNNING);
    assert_int_equal(stage.view.restarts_left, 99); /* of b */
}

/* A final save has no handover ranks; it saves all. */
static void a_final_save_may_have_a_node_too_many(void **state)
{
    (void)state;
    lose_b(2);
    c.state.leaving = d.state.leaving = true;
    all_fakes_report(rest, 3);
    all_fakes_obey(rest, 3);
    assert_int_equal(a.phase, DPT__SERVER_PHASE__SERVER_PLAN);
    assert_true(a.plan->final_save);
    assert_int_equal(a.plan->resume_step, STEP);
    assert_int_equal(a.plan->world_size, 3);
    assert_int_equal(a.plan->n_nodes, 3);
    assert_int_equal(a.plan->handover_ranks, 0);
}

/* a cannot reach c in two formations. a, b and d run without c. */
static void exclude_c(void)
{
    for (size_t i = 0; i < 4; i++)
        all[i]->spec.min_nodes = 2;
    fakes_start(&stage, all, 4);
    for (int formation = 0; formation < 2; formation++) {
        fake_loses(&a, &c);
        fake_say(&a, &stage);
        fakes_settle(&stage, all, 4);
        stage_pass_speaking(&stage, all, 4, 1000);
        fakes_settle(&stage, all, 4);
    }
    assert_int_equal(c.phase, DPT__SERVER_PHASE__SERVER_SPARE);
    assert_int_equal(stage.view.phase, DPT_RDZV_RUNNING);
    assert_int_equal(stage.view.world_size, 3);
}

/* d leaves: it is a handover rank of the next plan, and of no other. */
static void d_hands_over(uint32_t members)
{
    d.state.leaving = true;
    all_fakes_report(all, 4);
    all_fakes_obey(all, 4);
    assert_int_equal(d.phase, DPT__SERVER_PHASE__SERVER_PLAN);
    assert_int_equal(d.plan->resume_step, STEP);
    assert_int_equal(d.plan->handover_ranks, 1);
    assert_int_equal(d.plan->world_size, members + 1);
    for (uint32_t i = 0; i < members; i++)
        holds(all[i], i, members);
    all_fakes_obey(all, 4);
    assert_int_equal(d.phase, DPT__SERVER_PHASE__SERVER_PREPARE);
    all_fakes_obey(all, 4);
    assert_int_equal(d.phase, DPT__SERVER_PHASE__SERVER_SPARE);
    assert_int_equal(a.plan->handover_ranks, 0);
    assert_int_equal(a.plan->world_size, members);
    fakes_settle(&stage, all, 4);
    assert_int_equal(stage.view.phase, DPT_RDZV_RUNNING);
    assert_int_equal(d.phase, DPT__SERVER_PHASE__SERVER_RELEASED);
}

/* c has no state, and a plan with c would fail. */
static void a_leaving_node_admits_no_excluded_node(void **state)
{
    (void)state;
    exclude_c();
    holds(&a, 0, 3);
    holds(&b, 1, 3);
    holds(&d, 2, 3);
    d_hands_over(2);
    assert_int_equal(c.phase, DPT__SERVER_PHASE__SERVER_SPARE);
}

/* Both hold the missing shard: d hands it over, and c is not needed. */
static void a_leaving_node_is_preferred_to_an_excluded_node(void **state)
{
    (void)state;
    exclude_c();
    holds(&a, 0, 3);
    holds(&b, 1, 3);
    holds(&c, 2, 3);
    holds(&d, 2, 3);
    d_hands_over(2);
    assert_int_equal(c.phase, DPT__SERVER_PHASE__SERVER_SPARE);
}

/* c holds a shard that no other node holds, before and after d has handed its own over. */
static void an_excluded_holder_is_a_member(void **state)
{
    (void)state;
    exclude_c();
    for (uint32_t i = 0; i < 4; i++)
        holds(all[i], i, 4);
    d_hands_over(3);
    assert_int_equal(c.phase, DPT__SERVER_PHASE__SERVER_RUNNING);
}

/* A checkpoint was completed after the ranks of b had looked, and b's connection is broken. The
 * older checkpoint is not loaded: b is back before its lease ends, and has seen the newest one. */
static void old_view_of_a_suspect_does_not_count(void **state)
{
    (void)state;
    struct fake *const two[] = {&a, &b};
    fakes_start(&stage, two, 2);
    for (size_t i = 0; i < 2; i++) { /* nothing is in memory */
        two[i]->ranks[0].step_applied = -1;
        two[i]->ranks[0].checkpoint_step = 23;
    }
    fake_breaks_off(&b, &stage);
    fake_phase(&b, DPT__RANK_PHASE__RANK_QUIESCED, b.generation);
    fake_say(&b, &stage);
    stage_step(&stage, (struct dpt_rdzv_event){.kind = DPT_RDZV_EVENT_BROKEN, .conn = b.conn});
    fake_say(&a, &stage);
    fake_phase(&a, DPT__RANK_PHASE__RANK_QUIESCED, a.generation);
    a.ranks[0].checkpoint_step = 53;
    stage_pass_speaking(&stage, two, 1, 2000);
    assert_int_equal(a.phase, DPT__SERVER_PHASE__SERVER_PREPARE);
    b.conn += 100;
    b.ranks[0].checkpoint_step = 53;
    fake_say(&b, &stage);
    fake_say(&a, &stage);
    assert_int_equal(a.phase, DPT__SERVER_PHASE__SERVER_PLAN);
    assert_int_equal(a.plan->world_size, 2);
    assert_int_equal(a.plan->load_checkpoint, 53);
}

int main(void)
{
#define T(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(those_are_in_who_are_whole_together),
        T(a_shadow_is_no_reason_to_go_in),
        T(a_node_too_many_only_hands_over),
        T(a_final_save_may_have_a_node_too_many),
        T(a_leaving_node_admits_no_excluded_node),
        T(a_leaving_node_is_preferred_to_an_excluded_node),
        T(an_excluded_holder_is_a_member),
        T(old_view_of_a_suspect_does_not_count),
    };
    return cmocka_run_group_tests_name("test_rendezvous_core_holders", tests, NULL, NULL);
}
