/* Too few nodes stay to train: the state is saved before a leaving node may go. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "rendezvous/core/timing.h"
#include "tests/rendezvous/core/fake_agent.h"

#define IS(fake, what) assert_int_equal((fake).phase, DPT__SERVER_PHASE__SERVER_##what)

static struct stage stage;
static struct fake a, b, c, d;
static struct fake *const both[] = {&a, &b};

static int setup(void **state)
{
    (void)state;
    stage_open(&stage);
    fake_init(&a, &stage, "a");
    fake_init(&b, &stage, "b");
    fake_init(&c, &stage, "c");
    fake_init(&d, &stage, "d");
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    stage_close(&stage);
    return 0;
}

/* Both train, and have applied step 9. */
static void start(uint32_t min_nodes)
{
    a.spec.min_nodes = b.spec.min_nodes = c.spec.min_nodes = d.spec.min_nodes = min_nodes;
    fakes_start(&stage, both, 2);
    a.ranks[0].step_applied = b.ranks[0].step_applied = 9;
    fake_say(&a, &stage);
    fake_say(&b, &stage);
}

static void leave(struct fake *fake)
{
    fake->state.leaving = true;
    fake_say(fake, &stage);
}

static void fake_obeys(struct fake *fake)
{
    fake_obey(fake);
    fake_say(fake, &stage);
}

static void obey_both(void)
{
    fake_obeys(&a);
    fake_obeys(&b);
}

/* a dies, and b quiesces. */
static void lose_a(void)
{
    fake_dies(&a, &b, &stage);
    stage_pass_speaking(&stage, both + 1, 1, 300);
    IS(b, PREPARE);
    fake_obeys(&b);
    IS(b, WAITING);
}

/* Its rank dies. */
static void dies(struct fake *fake)
{
    fake->ranks[0].phase = DPT__RANK_PHASE__RANK_DEAD;
    fake_say(fake, &stage);
}

/* It may leave; `last_holder`: it learns that it takes the last copy of steps with it. */
static void released(const struct fake *fake, bool last_holder)
{
    IS(*fake, RELEASED);
    assert_int_equal(fake->last_holder, last_holder);
}

/* Told to quiesce they do, are given the plan of a final save, build, and save. */
static void save_together(void)
{
    obey_both();
    for (int i = 0; i < 2; i++) {
        IS(*both[i], PLAN);
        assert_true(both[i]->plan->final_save);
        assert_int_equal(both[i]->plan->handover_ranks, 0);
        assert_int_equal(both[i]->plan->world_size, 2);
        assert_int_equal(both[i]->plan->resume_step, 9);
        assert_int_equal(both[i]->plan->checkpoint_writers, 2);
    }
    obey_both();
    IS(a, RUNNING);
    IS(b, RUNNING);
    obey_both();
    IS(a, PREPARE);
    assert_true(a.soft && b.soft);
}

/* They have quiesced, and nothing is lost with them. */
static void both_go(void)
{
    obey_both();
    released(&a, false);
    released(&b, false);
}

/* The signal reaches the nodes one after another, the last when the others have quiesced. */
static void test_all_leave_within_one_formation(void **state)
{
    (void)state;
    start(1);
    leave(&a);
    IS(b, PREPARE);
    leave(&b);
    save_together();
    both_go();
    assert_int_equal(stage.view.restarts_left, 100);
}

/* The remaining node has the state in memory, so the leaving one may go at once. */
static void test_too_few_stay(void **state)
{
    (void)state;
    start(2);
    leave(&a);
    save_together();
    obey_both();
    IS(a, RELEASED);
    IS(b, WAITING);
    leave(&b);
    released(&b, false);
}

/* Each node has another folder: the node that did not write does not learn that it is the last
 * holder of the saved state. */
static void test_saved_elsewhere(void **state)
{
    (void)state;
    b.state.checkpoint_dir_id = "of b";
    start(2);
    leave(&a);
    obey_both();
    assert_int_equal(a.plan->checkpoint_writers, 1);
    obey_both();
    fake_obeys(&a);
    b.cannot_save = true;
    fake_obeys(&b);
    obey_both();
    IS(a, RELEASED);
    leave(&b);
    released(&b, false);
}

/* Its peer died, and it waited for another. */
static void test_the_last_of_those_who_wait(void **state)
{
    (void)state;
    start(2);
    lose_a();
    leave(&b);
    IS(b, PREPARE);
    fake_obeys(&b);
    IS(b, PLAN);
    assert_true(b.plan->final_save);
    assert_int_equal(b.plan->world_size, 1);
    for (int i = 0; i < 3; i++)
        fake_obeys(&b);
    released(&b, false);
}

/* A node that waits leaves in the moment in which enough others are there: they take over. */
static void test_enough_others(void **state)
{
    (void)state;
    struct fake *all[] = {&b, &c};
    start(2);
    lose_a();
    fake_phase(&d, DPT__RANK_PHASE__RANK_STARTING, 0);
    fake_say(&c, &stage);
    fake_say(&d, &stage);
    IS(b, PREPARE); /* b and c are enough */
    fake_phase(&d, DPT__RANK_PHASE__RANK_STANDBY, 0);
    fake_say(&d, &stage);
    leave(&b);
    fakes_settle(&stage, all, 2);
    fakes_settle(&stage, (struct fake *[]){&b, &c, &d}, 3);
    IS(b, RELEASED);
    assert_int_equal(stage.view.world_size, 2);
    assert_int_equal(c.plan->resume_step, 9);
    assert_false(c.plan->final_save);
}

/* All leave in a step that takes longer than their time: the step is given up, and the state before
 * it is saved. */
static void test_a_long_step(void **state)
{
    (void)state;
    const struct dpt_timing timing = dpt_timing_from(5000, 0);
    start(1);
    leave(&a);
    leave(&b);
    stage_pass_speaking(&stage, both, 2, timing.boundary_ms - 2 * timing.heartbeat_ms);
    assert_true(a.soft && b.soft);
    stage_pass_speaking(&stage, both, 2, 4 * timing.heartbeat_ms);
    IS(a, PREPARE);
    assert_false(a.soft || b.soft);
    save_together();
    both_go();
}

/* The step came to its end, and they are saving that: it is not given up. */
static void test_a_long_save(void **state)
{
    (void)state;
    start(1);
    leave(&a);
    leave(&b);
    a.ranks[0].busy = true;
    fake_say(&a, &stage);
    stage_pass_speaking(&stage, both, 2, 2 * dpt_timing_from(5000, 0).boundary_ms);
    IS(a, PREPARE);
    assert_true(a.soft && b.soft);
}

/* A rank that quiesces before the first writer has committed does not see the checkpoint yet. */
static void test_who_looked_too_early(void **state)
{
    (void)state;
    a.spec.sharded = b.spec.sharded = true;
    start(1);
    leave(&a);
    leave(&b);
    b.ranks[0].checkpoint_step = 9;
    both_go();
}

/* Halves that cannot be saved: the first node that leaves would destroy both. */
static void test_unsaved_halves_leave_together(void **state)
{
    (void)state;
    a.spec.sharded = b.spec.sharded = true;
    a.state.checkpoint_dir_id = b.state.checkpoint_dir_id = "";
    start(2);
    fake_part(&a, 0, 2, false);
    fake_part(&b, 1, 2, false);
    leave(&a);
    obey_both();
    IS(a, RELEASED);
    IS(b, WAITING);
    assert_true(a.last_holder);
    leave(&b);
    released(&b, false);
}

/* The only rank of the leaving node dies: the state of the others is saved all the same. */
static void test_the_leaving_rank_dies(void **state)
{
    (void)state;
    start(2);
    leave(&a);
    dies(&a);
    fake_obeys(&b);
    IS(b, PLAN);
    assert_true(b.plan->final_save);
    assert_int_equal(b.plan->world_size, 1);
    for (int i = 0; i < 3; i++)
        fake_obeys(&b);
    fake_say(&a, &stage);
    released(&a, false);
    IS(b, WAITING);
    assert_int_equal(b.ranks[0].checkpoint_step, 9);
}

/* The peer died, and then the only process that had the steps: the leaving node hears that no node
 * has them. */
static void test_what_died_is_told(void **state)
{
    (void)state;
    start(2);
    lose_a();
    dies(&b);
    leave(&b);
    released(&b, true);
}

/* A checkpoint has them. */
static void test_what_died_was_saved(void **state)
{
    (void)state;
    b.ranks[0].checkpoint_step = 9;
    start(2);
    lose_a();
    dies(&b);
    leave(&b);
    released(&b, false);
}

/* It leaves, and its rank dies before the step ends. */
static void test_the_last_rank_dies(void **state)
{
    (void)state;
    a.spec.min_nodes = 1;
    fakes_start(&stage, both, 1);
    a.ranks[0].step_applied = 9;
    fake_say(&a, &stage);
    leave(&a);
    dies(&a);
    released(&a, true);
}

/* The half that is left is useless, but its holder did not lose the steps. */
static void test_a_half_dies(void **state)
{
    (void)state;
    a.spec.sharded = b.spec.sharded = true;
    start(2);
    fake_part(&a, 0, 2, false);
    fake_part(&b, 1, 2, false);
    fake_say(&a, &stage);
    fake_say(&b, &stage);
    dies(&a);
    fake_obeys(&b);
    leave(&a);
    released(&a, true);
    leave(&b);
    released(&b, false);
}

/* The state that the others must save is not sent to a newcomer first. */
static void test_no_newcomers(void **state)
{
    (void)state;
    start(2);
    fake_phase(&c, DPT__RANK_PHASE__RANK_STARTING, 0);
    c.spec.min_nodes = 2;
    fake_say(&c, &stage);
    leave(&a);
    leave(&b);
    fake_phase(&c, DPT__RANK_PHASE__RANK_STANDBY, 0);
    fake_say(&c, &stage);
    fake_obeys(&c);
    save_together();
}

/* Both leave, and the folder of rank 0 is full: each is told to save its state. */
static void leave_together_unsaved(void)
{
    leave(&a);
    leave(&b);
    save_together();
    obey_both();
    released(&a, true);
    released(&b, true);
    assert_int_equal(a.n_nodes, 2);
    assert_int_equal(b.n_nodes, 2);
}

static void test_what_cannot_be_saved(void **state)
{
    (void)state;
    a.cannot_save = b.cannot_save = true;
    start(1);
    leave_together_unsaved();
}

/* A node that did not receive the command receives it again. */
static void test_release_that_is_lost(void **state)
{
    (void)state;
    a.cannot_save = b.cannot_save = true;
    start(1);
    leave_together_unsaved();
    a.last_holder = false;
    a.n_nodes = 0;
    a.phase = DPT__SERVER_PHASE__SERVER_PREPARE;
    a.conn += 100;
    fake_say(&a, &stage);
    released(&a, true);
    assert_int_equal(a.n_nodes, 2);
}

/* So it is with shards, of which no node holds a whole state. */
static void test_shards_that_cannot_be_saved(void **state)
{
    (void)state;
    a.spec.sharded = b.spec.sharded = true;
    a.cannot_save = b.cannot_save = true;
    start(1);
    fake_part(&a, 0, 2, false);
    fake_part(&b, 1, 2, false);
    fake_say(&a, &stage);
    fake_say(&b, &stage);
    leave_together_unsaved();
}

/* A node that stays has it in memory. */
static void test_what_cannot_be_saved_stays(void **state)
{
    (void)state;
    a.cannot_save = b.cannot_save = true;
    start(2);
    leave(&a);
    save_together();
    obey_both();
    IS(a, RELEASED);
    IS(b, WAITING);
    assert_false(a.last_holder);
}

/* A rank dies while they save: the remaining ranks try again. */
static void test_broken_final_save(void **state)
{
    (void)state;
    start(1);
    leave(&a);
    leave(&b);
    save_together();
    dies(&a);
    IS(b, PREPARE);
    assert_false(b.soft);
    b.ranks[0].phase = DPT__RANK_PHASE__RANK_QUIESCED; /* gave the save up */
    b.ranks[0].generation = b.generation;
    fake_say(&b, &stage);
    IS(b, PLAN);
    assert_true(b.plan->final_save);
    assert_int_equal(b.plan->world_size, 1);
    for (int i = 0; i < 3; i++)
        fake_obeys(&b);
    released(&b, false);
}

/* A node that joins meanwhile takes the state over from memory. */
static void test_join_while_they_save(void **state)
{
    (void)state;
    start(2);
    leave(&a);
    save_together();
    fake_say(&c, &stage);
    obey_both();
    fake_obeys(&c);
    IS(a, SPARE);
    fakes_settle(&stage, (struct fake *[]){&b, &c}, 2);
    assert_int_equal(stage.view.phase, DPT_RDZV_RUNNING);
    IS(a, RELEASED);
    assert_int_equal(c.plan->resume_step, 9);
    assert_false(c.plan->final_save);
}

/* No step was made since the newest checkpoint: no node is kept. */
static void test_all_is_saved(void **state)
{
    (void)state;
    start(1);
    a.ranks[0].checkpoint_step = b.ranks[0].checkpoint_step = 9;
    leave(&a);
    leave(&b);
    both_go();
}

int main(void)
{
#define T(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(test_all_leave_within_one_formation),
        T(test_too_few_stay),
        T(test_saved_elsewhere),
        T(test_the_last_of_those_who_wait),
        T(test_enough_others),
        T(test_a_long_step),
        T(test_a_long_save),
        T(test_who_looked_too_early),
        T(test_unsaved_halves_leave_together),
        T(test_the_leaving_rank_dies),
        T(test_what_died_is_told),
        T(test_what_died_was_saved),
        T(test_the_last_rank_dies),
        T(test_a_half_dies),
        T(test_no_newcomers),
        T(test_what_cannot_be_saved),
        T(test_release_that_is_lost),
        T(test_shards_that_cannot_be_saved),
        T(test_what_cannot_be_saved_stays),
        T(test_broken_final_save),
        T(test_join_while_they_save),
        T(test_all_is_saved),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
