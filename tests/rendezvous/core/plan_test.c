/* The plan: ranks, hosts, writers, and from which state a generation goes on. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/rendezvous/core/fake_agent.h"

#include <string.h>

static struct stage stage;
static struct fake a, b, c, d;

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

static void holds(struct fake *fake, int64_t step, int64_t outcome_step)
{
    static uint8_t bytes[8] = "outcome";
    fake->ranks[0].step_applied = step;
    fake->ranks[0].outcome_step = outcome_step;
    fake->ranks[0].gradient = true;
    fake->ranks[0].outcome =
        outcome_step < 0 ? (ProtobufCBinaryData){0, NULL} : (ProtobufCBinaryData){8, bytes};
}

static void test_first_plan_starts_from_seed(void **state)
{
    (void)state;
    struct fake *all[] = {&a, &b};
    b.state.host = "a"; /* one host */
    fakes_start(&stage, all, 2);
    assert_int_equal(a.plan->world_size, 2);
    assert_int_equal(a.plan->n_hosts, 1);
    assert_int_equal(a.plan->n_nodes, 2);
    assert_int_equal(a.plan->resume_step, 0);
    assert_int_equal(a.plan->load_checkpoint, -1);
    assert_string_equal(a.plan->digest, b.plan->digest);
    assert_string_equal(a.plan->cause_kind, "start");
    assert_true(a.plan->from_seed);
    for (size_t i = 0; i < 2; i++) {
        assert_false(a.plan->ranks[i]->takes_state);
        assert_int_equal(a.plan->ranks[i]->node, i);
        assert_int_equal(a.plan->ranks[i]->writes_log, i == 0); /* one a folder */
        assert_int_equal(a.plan->ranks[i]->checkpoint_slot, i); /* all see one folder */
        assert_string_equal(a.plan->ranks[i]->shm_addr, "shm");
        assert_int_equal(a.plan->ranks[i]->local_rank, i == 0 ? 0 : -1);
        assert_int_equal(b.plan->ranks[i]->local_rank, i == 0 ? -1 : 0);
    }
}

static void test_folders_and_hosts(void **state)
{
    (void)state;
    struct fake *all[] = {&a, &b, &c};
    b.state.log_dir_id = "logs-b";
    c.state.checkpoint_dir_id = "checkpoints-c";
    fakes_start(&stage, all, 3);
    assert_int_equal(a.plan->n_hosts, 3);
    assert_true(a.plan->ranks[0]->writes_log);
    assert_true(a.plan->ranks[1]->writes_log);
    assert_false(a.plan->ranks[2]->writes_log);
    assert_int_equal(a.plan->checkpoint_writers, 2);
    assert_int_equal(a.plan->ranks[2]->checkpoint_slot, -1);
    assert_string_equal(a.plan->ranks[1]->shm_addr, ""); /* not of its host */
    assert_string_equal(a.plan->ranks[1]->tcp_addr, "10.0.0.1:1");
}

static void test_positions_host_by_host(void **state)
{
    (void)state;
    struct fake *all[] = {&a, &b, &c, &d};
    c.state.host = "a";
    fakes_start(&stage, all, 4);
    uint32_t want_position[] = {0, 2, 1, 3}, want_host[] = {0, 1, 0, 2};
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(a.plan->ranks[i]->position, want_position[i]);
        assert_int_equal(a.plan->ranks[i]->host, want_host[i]);
    }
}

/* Two nodes on one host, the first of which has a second rank only after the other's first. */
static void test_positions_node_by_node(void **state)
{
    (void)state;
    struct fake *all[] = {&a, &b};
    b.state.host = "a";
    fakes_start(&stage, all, 2);
    a.state.n_ranks = 2;
    fakes_settle(&stage, all, 2);
    assert_int_equal(stage.view.world_size, 3);
    uint32_t want_position[] = {0, 2, 1}, want_node[] = {0, 1, 0};
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(a.plan->ranks[i]->position, want_position[i]);
        assert_int_equal(a.plan->ranks[i]->node, want_node[i]);
        assert_int_equal(a.plan->ranks[i]->host, 0);
    }
}

static void test_stable_ranks(void **state)
{
    (void)state;
    struct fake *all[] = {&a, &b, &c}, *rest[] = {&a, &c}, *again[] = {&a, &c, &d};
    fakes_start(&stage, all, 3);
    assert_int_equal(fake_place(&c)->rank, 2);
    fake_dies(&b, &a, &stage);
    stage_pass_speaking(&stage, rest, 2, 300);
    fakes_settle(&stage, rest, 2);
    assert_int_equal(stage.view.world_size, 2);
    assert_string_equal(a.plan->cause_kind, "node_lost");
    assert_int_equal(fake_place(&a)->rank, 0);
    assert_int_equal(fake_place(&c)->rank, 1); /* 2 is gone: it fills the hole */
    fake_say(&d, &stage);
    fakes_settle(&stage, again, 3);
    assert_int_equal(stage.view.world_size, 3);
    assert_int_equal(fake_place(&a)->rank, 0);
    assert_int_equal(fake_place(&c)->rank, 1);
    assert_int_equal(fake_place(&d)->rank, 2);
    assert_true(fake_place(&d)->takes_state);
    assert_false(fake_place(&a)->takes_state);
    assert_memory_not_equal(a.plan->nonce.data, "\0\0\0\0\0\0\0", 8);
}

static void test_outcome_is_handed(void **state)
{
    (void)state;
    struct fake *all[] = {&a, &b, &c};
    fakes_start(&stage, all, 3);
    holds(&a, 7, 8); /* saw the all-reduce of step 8 complete */
    holds(&b, 7, 7);
    holds(&c, 7, -1);
    fake_breaks_off(&a, &stage);
    fakes_report(&stage, all, 3);
    assert_int_equal(a.plan->resume_step, 8);
    assert_int_equal(a.plan->outcome.len, 8);
    assert_memory_equal(a.plan->outcome.data, "outcome", 8);
    for (size_t i = 0; i < 3; i++)
        assert_false(a.plan->ranks[i]->takes_state); /* all have the gradients */
    assert_string_equal(a.plan->cause_kind, "comm_error");
}

static void test_nobody_has_the_outcome(void **state)
{
    (void)state;
    struct fake *all[] = {&a, &b};
    fakes_start(&stage, all, 2);
    holds(&a, 7, 7);
    holds(&b, 7, 7);
    fake_breaks_off(&a, &stage);
    fakes_report(&stage, all, 2);
    assert_int_equal(a.plan->resume_step, 7); /* step 8 runs again */
    assert_int_equal(a.plan->outcome.len, 0);
}

/* A rank that is further behind, or was absent, does not have the gradients. */
static void test_behind_is_healed(void **state)
{
    (void)state;
    struct fake *all[] = {&a, &b}, *more[] = {&a, &b, &c};
    fakes_start(&stage, all, 2);
    holds(&a, 8, 8);
    holds(&b, 6, -1);
    fake_say(&c, &stage);
    holds(&c, 7, 7);
    c.ranks[0].gradient = false; /* had no part in the step */
    fake_breaks_off(&a, &stage);
    fakes_report(&stage, more, 3);
    assert_int_equal(a.plan->resume_step, 8);
    assert_false(fake_place(&a)->takes_state);
    assert_true(fake_place(&b)->takes_state);
    assert_true(fake_place(&c)->takes_state);
}

static void test_newest_checkpoint_is_planned(void **state)
{
    (void)state;
    struct fake *all[] = {&a, &b};
    a.ranks[0].checkpoint_step = 50;
    b.ranks[0].checkpoint_step = 40; /* does not see the newest */
    fakes_start(&stage, all, 2);
    assert_int_equal(a.plan->load_checkpoint, 50);
    assert_int_equal(a.plan->resume_step, 50);
    assert_false(fake_place(&a)->takes_state);
    assert_true(fake_place(&b)->takes_state);
}

static void test_memory_against_checkpoint(void **state)
{
    (void)state;
    struct fake *all[] = {&a, &b};
    fakes_start(&stage, all, 2);
    holds(&a, 60, -1);
    holds(&b, 60, -1);
    a.ranks[0].checkpoint_step = b.ranks[0].checkpoint_step = 60;
    fake_breaks_off(&a, &stage);
    fakes_report(&stage, all, 2);
    assert_int_equal(a.plan->load_checkpoint, -1); /* as new as memory: memory wins */
    assert_int_equal(a.plan->resume_step, 60);
    fakes_settle(&stage, all, 2);
    holds(&a, 61, -1);
    holds(&b, 61, -1);
    a.ranks[0].checkpoint_step = b.ranks[0].checkpoint_step =
        80; /* all ranks that wrote it are gone */
    fake_breaks_off(&a, &stage);
    fakes_report(&stage, all, 2);
    assert_int_equal(a.plan->load_checkpoint, 80);
    assert_int_equal(a.plan->resume_step, 80);
}

static void test_node_over_max_world_is_spare(void **state)
{
    (void)state;
    struct fake *all[] = {&a, &b, &c};
    a.spec.max_world = b.spec.max_world = c.spec.max_world = 2;
    fakes_start(&stage, all, 3);
    assert_int_equal(stage.view.world_size, 2);
    assert_int_equal(c.phase, DPT__SERVER_PHASE__SERVER_SPARE);
    struct fake *rest[] = {&b, &c};
    holds(&b, 5, -1);
    fake_say(&b, &stage);
    fake_dies(&a, &b, &stage);
    stage_pass_speaking(&stage, rest, 2, 300);
    fakes_report(&stage, rest, 2);
    assert_int_equal(b.plan->world_size, 2);
    assert_int_equal(fake_place(&b)->rank, 1); /* keeps it */
    assert_int_equal(fake_place(&c)->rank, 0);
    assert_true(fake_place(&c)->takes_state);
}

/* Both have trained. The process of a, the log writer, is replaced; the new one holds `step`. Lines
 * that the old one has not appended are in the memory of b, so b writes. */
static void replace_log_writer(struct fake *const all[2], int64_t step)
{
    a.spec.min_nodes = b.spec.min_nodes = 2;
    fakes_start(&stage, all, 2);
    assert_true(a.plan->ranks[0]->writes_log);
    holds(&b, 5, -1);
    b.ranks[0].ran_generation = b.generation;
    fake_say(&b, &stage);
    a.ranks[0].spawn++;
    holds(&a, step, -1);
    fake_phase(&a, DPT__RANK_PHASE__RANK_STANDBY, 0);
    fake_say(&a, &stage);
    fake_say(&b, &stage);
    fakes_report(&stage, all, 2);
    assert_int_equal(fake_place(&a)->rank, 0);
    assert_int_equal(fake_place(&a)->takes_state, step < 0);
    assert_false(a.plan->ranks[0]->writes_log);
    assert_true(a.plan->ranks[1]->writes_log);
}

static void test_log_writer_has_the_state(void **state)
{
    (void)state;
    struct fake *all[] = {&a, &b};
    replace_log_writer(all, -1);
    fakes_settle(&stage, all, 2);
    holds(&a, 7, -1);
    holds(&b, 7, -1);
    a.ranks[0].ran_generation = b.ranks[0].ran_generation = a.generation;
    fake_breaks_off(&a, &stage);
    fakes_report(&stage, all, 2);
    assert_true(a.plan->ranks[0]->writes_log);
    assert_false(a.plan->ranks[1]->writes_log);
}

/* The new process has the state of a generation that never ran, in which nobody wrote. */
static void test_log_writer_has_trained(void **state)
{
    (void)state;
    struct fake *all[] = {&a, &b};
    replace_log_writer(all, 5);
}

static void test_max_nodes(void **state)
{
    (void)state;
    struct fake *all[] = {&a, &b, &c};
    a.spec.max_nodes = b.spec.max_nodes = c.spec.max_nodes = 2;
    fakes_start(&stage, all, 2);
    fake_say(&c, &stage);
    fakes_settle(&stage, all, 3);
    assert_int_equal(stage.view.generation, 1); /* a surplus node disturbs no member */
    assert_int_equal(c.phase, DPT__SERVER_PHASE__SERVER_SPARE);
}

/* `leaver` is of no plan, and is let go when the others run; `rest` are these. */
static void goes_when_they_run(const struct fake *leaver, struct fake *const *rest, size_t n)
{
    assert_int_equal(stage.view.phase, DPT_RDZV_PLANNED);
    assert_int_equal(leaver->phase, DPT__SERVER_PHASE__SERVER_SPARE);
    fakes_settle(&stage, rest, n);
    assert_int_equal(stage.view.phase, DPT_RDZV_RUNNING);
    assert_int_equal(leaver->phase, DPT__SERVER_PHASE__SERVER_RELEASED);
}

/* a and b run, and have applied step 9; a is told to leave, and knows the outcome of `outcome` (-1:
 * of none). */
static void a_leaves(int64_t outcome)
{
    struct fake *all[] = {&a, &b};
    fakes_start(&stage, all, 2);
    holds(&a, 9, outcome);
    holds(&b, 9, outcome < 0 ? -1 : 9);
    a.state.leaving = true;
    fake_say(&a, &stage);
    assert_int_equal(a.phase, DPT__SERVER_PHASE__SERVER_PREPARE);
    assert_true(a.soft);
}

/* Leaving nodes are released after their unique parts were handed over. */
static void test_leaving_node_hands_over_first(void **state)
{
    (void)state;
    struct fake *all[] = {&a, &b};
    a_leaves(10);
    fakes_report(&stage, all, 2);
    assert_int_equal(b.plan->world_size, 1);
    assert_int_equal(b.plan->resume_step, 10); /* its report counted */
    assert_int_equal(b.plan->outcome.len, 8);
    assert_string_equal(b.plan->cause_kind, "left");
    goes_when_they_run(&a, &all[1], 1);
}

/* The others take long to connect: a leaving node waits no longer than its time allows. */
static void test_leaving_while_they_build(void **state)
{
    (void)state;
    struct fake *all[] = {&a, &b};
    const struct dpt_timing timing = dpt_timing_from(5000, 0);
    a_leaves(-1);
    fakes_report(&stage, all, 2);
    stage_pass_speaking(&stage, all, 2, timing.drain_ms * 3 / 4 - 2 * timing.heartbeat_ms);
    assert_int_equal(a.phase, DPT__SERVER_PHASE__SERVER_SPARE);
    stage_pass_speaking(&stage, all, 2, 4 * timing.heartbeat_ms);
    assert_int_equal(a.phase, DPT__SERVER_PHASE__SERVER_RELEASED);
    assert_int_equal(stage.view.phase, DPT_RDZV_PLANNED);
}

/* The remaining node dies while it connects: the leaving one still has the state, which is saved.
 */
static void test_leaving_from_who_dies(void **state)
{
    (void)state;
    struct fake *all[] = {&a, &b};
    a_leaves(-1);
    fakes_report(&stage, all, 2);
    stage_step(&stage, (struct dpt_rdzv_event){.kind = DPT_RDZV_EVENT_BROKEN, .conn = b.conn});
    stage_pass_speaking(&stage, all, 1, 4600); /* no peer of it builds: its lease decides */
    fakes_report(&stage, all, 1);
    assert_int_equal(a.phase, DPT__SERVER_PHASE__SERVER_PLAN);
    assert_true(a.plan->final_save);
    assert_int_equal(a.plan->resume_step, 9);
}

/* A leaving node cannot wait for the end of a long step: the others give the step up. */
static void test_leaving_in_a_long_step(void **state)
{
    (void)state;
    struct fake *all[] = {&a, &b};
    a_leaves(-1);
    const struct dpt_timing timing = dpt_timing_from(5000, 0);
    stage_pass_speaking(&stage, all, 2, timing.boundary_ms - 2 * timing.heartbeat_ms);
    assert_true(a.soft && b.soft);
    stage_pass_speaking(&stage, all, 2, 4 * timing.heartbeat_ms);
    assert_int_equal(b.phase, DPT__SERVER_PHASE__SERVER_PREPARE);
    assert_false(a.soft || b.soft);
    fakes_report(&stage, all, 2);
    assert_int_equal(b.plan->resume_step, 9);
    assert_string_equal(b.plan->cause_kind, "left");
    goes_when_they_run(&a, &all[1], 1);
    assert_int_equal(stage.view.restarts_left, 100);
}

/* Nodes leave one after another and nothing can be saved: the last hears that it is the last
 * holder. */
static void test_leaving_one_by_one(void **state)
{
    (void)state;
    struct fake *all[] = {&a, &b};
    a.spec.min_nodes = b.spec.min_nodes = 2;
    a.state.checkpoint_dir_id = b.state.checkpoint_dir_id = "";
    fakes_start(&stage, all, 2);
    holds(&a, 9, -1);
    holds(&b, 9, -1);
    a.state.leaving = true;
    fake_say(&a, &stage);
    fakes_report(&stage, all, 2);
    assert_int_equal(a.phase, DPT__SERVER_PHASE__SERVER_RELEASED);
    assert_false(a.last_holder);
    assert_int_equal(b.phase, DPT__SERVER_PHASE__SERVER_WAITING);
    b.state.leaving = true;
    fake_say(&b, &stage);
    assert_int_equal(b.phase, DPT__SERVER_PHASE__SERVER_RELEASED);
    assert_true(b.last_holder);
}

/* A node that leaves, too, is no safe place: both hear that they are last holders. */
static void both_are_last_holders(void)
{
    struct fake *all[] = {&a, &b};
    a.state.checkpoint_dir_id = b.state.checkpoint_dir_id = "";
    fakes_start(&stage, all, 2);
    for (int i = 0; i < 2; i++) {
        holds(all[i], 9, -1);
        all[i]->state.leaving = true;
        fake_say(all[i], &stage);
    }
    fakes_report(&stage, all, 2);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(all[i]->phase, DPT__SERVER_PHASE__SERVER_RELEASED);
        assert_true(all[i]->last_holder);
    }
}

static void test_leaving_together(void **state)
{
    (void)state;
    both_are_last_holders();
}

static void test_halves_leaving_together(void **state)
{
    (void)state;
    a.spec.sharded = b.spec.sharded = true;
    fake_part(&a, 0, 2, false);
    fake_part(&b, 1, 2, false);
    both_are_last_holders();
}

static void test_leaving_holder(void **state)
{
    (void)state;
    struct fake *first[] = {&a}, *both[] = {&a, &b};
    fakes_start(&stage, first, 1);
    holds(&a, 9, -1);
    fake_phase(&b, DPT__RANK_PHASE__RANK_STARTING, 0);
    fake_say(&b, &stage);
    a.state.leaving = true;
    fake_say(&a, &stage);
    fake_phase(&b, DPT__RANK_PHASE__RANK_STANDBY, 0);
    fake_say(&b, &stage);
    fakes_settle(&stage, both, 2); /* b takes a's state, then a goes */
    assert_int_equal(a.phase, DPT__SERVER_PHASE__SERVER_RELEASED);
    assert_int_equal(stage.view.world_size, 1);
    assert_int_equal(b.plan->resume_step, 9);
    assert_int_equal(stage.view.restarts_left, 100);
}

int main(void)
{
#define T(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(test_first_plan_starts_from_seed),
        T(test_folders_and_hosts),
        T(test_positions_host_by_host),
        T(test_positions_node_by_node),
        T(test_stable_ranks),
        T(test_outcome_is_handed),
        T(test_nobody_has_the_outcome),
        T(test_behind_is_healed),
        T(test_newest_checkpoint_is_planned),
        T(test_memory_against_checkpoint),
        T(test_node_over_max_world_is_spare),
        T(test_log_writer_has_the_state),
        T(test_log_writer_has_trained),
        T(test_max_nodes),
        T(test_leaving_node_hands_over_first),
        T(test_leaving_while_they_build),
        T(test_leaving_from_who_dies),
        T(test_leaving_in_a_long_step),
        T(test_leaving_one_by_one),
        T(test_leaving_together),
        T(test_halves_leaving_together),
        T(test_leaving_holder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
