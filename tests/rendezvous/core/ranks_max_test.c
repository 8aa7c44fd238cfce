/* A server that takes fewer ranks (dpt-rdzv --max-ranks) than hold the state of a run. The limit
 * bounds the ranks that train: no part of the state is left out, and no run that trains is
 * disturbed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/rendezvous/core/fake_agent.h"

#include <stdio.h>
#include <string.h>

#define IS(fake, what) assert_int_equal((fake).phase, DPT__SERVER_PHASE__SERVER_##what)

static struct stage stage;
static struct fake a, b, c, d;
static struct fake *const all[] = {&a, &b, &c, &d};

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

/* The first `n_holders` nodes train and have applied step 9, of which each holds a shard. The
 * others, of `n_nodes`, are spares: the server takes `world_max` ranks. */
static void start(uint32_t world_max, size_t n_holders, size_t n_nodes)
{
    stage.world_max = world_max;
    stage.fresh = true;
    stage_restart(&stage, 78);
    for (size_t i = 0; i < n_nodes; i++)
        all[i]->spec.sharded = n_holders > 1;
    fakes_start(&stage, all, n_nodes);
    for (size_t i = 0; i < n_holders; i++) {
        IS(*all[i], RUNNING);
        all[i]->ranks[0].step_applied = 9;
        if (n_holders > 1)
            fake_part(all[i], (uint32_t)i, (uint32_t)n_holders, false);
    }
    for (size_t i = 0; i < n_nodes; i++)
        fake_say(all[i], &stage);
    assert_int_equal(stage.view.world_size, n_holders);
}

/* The server is started again with a lower limit. */
static void restart_with_limit(uint32_t world_max, bool has_journal)
{
    stage.world_max = world_max;
    stage.fresh = false;
    (has_journal ? stage_restart_with_journal : stage_restart)(&stage, 79);
    for (size_t i = 0; i < 4; i++)
        all[i]->ranks[0].plan_rank = (int32_t)fake_place(all[i])->rank;
    for (size_t i = 0; i < 4; i++)
        fake_say(all[i], &stage);
}

/* All nodes have quiesced and have the plan, in which `handover_ranks` of `world_size` ranks hand
 * their shards over. */
static void report_and_plan(size_t n, uint32_t world_size, uint32_t handover_ranks)
{
    for (size_t i = 0; i < n; i++) {
        fake_say(all[i], &stage);
        fake_obey(all[i]);
    }
    stage_pass_speaking(&stage, all, n, 500); /* a pause follows a failure */
    for (size_t i = 0; i < n; i++)
        IS(*all[i], PLAN);
    assert_int_equal(a.plan->world_size, world_size);
    assert_int_equal(a.plan->handover_ranks, handover_ranks);
    assert_int_equal(a.plan->resume_step, 9);
    assert_int_equal(a.plan->load_checkpoint, -1);
}

static void leave(size_t n)
{
    for (size_t i = 0; i < n; i++)
        all[i]->state.leaving = true;
}

/* The ranks with a place for training have the state, divided among `of`, when they are READY. */
static void take_over(uint32_t of)
{
    for (size_t i = 0; i < 4; i++) {
        const Dpt__PlanRank *place = fake_place(all[i]);
        if (place == NULL || place->rank >= of)
            continue;
        all[i]->ranks[0].pending_generation = all[i]->plan->generation;
        if (of > 1)
            fake_part(all[i], place->rank, of, true);
    }
}

static void only_holder_hands_over_to_a_spare(void **state)
{
    (void)state;
    start(1, 1, 2);
    IS(b, SPARE);
    leave(1);
    report_and_plan(2, 2, 1);
    assert_int_equal(fake_place(&a)->rank, 1);
    assert_true(fake_place(&b)->takes_state);
    fakes_settle(&stage, all, 2);
    IS(a, RELEASED);
    assert_false(a.last_holder);
    IS(b, RUNNING);
    assert_int_equal(b.plan->world_size, 1);
    assert_int_equal(b.plan->handover_ranks, 0);
    assert_int_equal(b.plan->resume_step, 9);
}

static void holders_of_all_shards_leave_together(void **state)
{
    (void)state;
    start(2, 2, 4);
    IS(c, SPARE);
    IS(d, SPARE);
    leave(2);
    report_and_plan(4, 4, 2);
    take_over(2);
    fakes_settle(&stage, all, 4);
    IS(a, RELEASED);
    IS(b, RELEASED);
    assert_false(a.last_holder);
    IS(c, RUNNING);
    assert_int_equal(c.plan->world_size, 2);
    assert_int_equal(c.plan->resume_step, 9);
}

/* The generation goes on. The next one has as many ranks as the server takes now, and the others
 * hand their shards over. */
static void check_lower_limit(bool has_journal)
{
    start(0, 4, 4);
    const uint64_t generation = stage.view.generation;
    restart_with_limit(2, has_journal);
    assert_int_equal(stage.view.phase, DPT_RDZV_RUNNING);
    assert_int_equal(stage.view.generation, generation);
    assert_int_equal(stage.view.world_size, 4);
    stage_pass_speaking(&stage, all, 4, 3000);
    assert_int_equal(stage.view.generation, generation);
    fake_breaks_off(&a, &stage);
    report_and_plan(4, 4, 2);
    take_over(2);
    fakes_settle(&stage, all, 4);
    assert_int_equal(stage.view.phase, DPT_RDZV_RUNNING);
    assert_int_equal(stage.view.world_size, 2);
    assert_int_equal(a.plan->handover_ranks, 0);
    assert_int_equal(a.plan->resume_step, 9);
    IS(d, SPARE);
    assert_int_equal(stage.view.restarts_left, 100);
}

static void lower_limit_disturbs_no_run_of_the_journal(void **state)
{
    (void)state;
    check_lower_limit(true);
}

static void lower_limit_disturbs_no_run_without_a_journal(void **state)
{
    (void)state;
    check_lower_limit(false);
}

/* Nobody takes the shards over: all are saved. */
static void final_save_has_all_shards(void **state)
{
    (void)state;
    start(0, 4, 4);
    restart_with_limit(2, true);
    leave(4);
    report_and_plan(4, 4, 0);
    assert_true(a.plan->final_save);
}

/* ---- the largest mesh ---- */

enum { LARGE_HOLDERS = DPT_MESH_MAX / DPT_PROTO_RANKS_MAX };

/* What the nodes of a large run say. */
struct large {
    int n_nodes;
    bool leave, can_save; /* the holders leave; there is a checkpoint folder */
};

/* Plans and releases that a message to the server has caused. */
struct told {
    uint32_t world_size, handover_ranks, n_released;
    uint64_t prepared; /* generation of PREPARE */
    bool final_save, warned;
};

static struct told step_large(struct dpt_rdzv_event event)
{
    struct dpt_rdzv_output output;
    struct dpt_err err;
    struct told told = {0};
    event.now_ms = stage.now_ms;
    assert_int_equal(dpt_rdzv_step(stage.core, &event, &output, &err), DPT_OK);
    for (size_t k = 0; k < output.n_sends; k++) {
        const Dpt__ServerState *message = output.sends[k].message;
        told.n_released += message->phase == DPT__SERVER_PHASE__SERVER_RELEASED;
        if (message->phase == DPT__SERVER_PHASE__SERVER_PREPARE)
            told.prepared = message->stamp->generation;
        if (message->plan == NULL)
            continue;
        told.world_size = message->plan->world_size;
        told.handover_ranks = message->plan->handover_ranks;
        told.final_save = message->plan->final_save;
    }
    for (size_t k = 0; k < output.n_logs; k++)
        told.warned =
            told.warned ||
            strstr(output.logs[k].text, "has no room for them and a rank that takes it") != NULL;
    stage.deadline_ms = output.deadline_ms;
    return told;
}

/* Node `i` says that its ranks are in STANDBY, or (`generation` > 0) have quiesced. Each rank of
 * the first LARGE_HOLDERS nodes holds a shard of step 7 that no other rank holds; without `leave`
 * each rank of all nodes. */
static struct told large_node_says(const struct large *large, int i, uint64_t generation)
{
    static struct fake node;
    static Dpt__RankState ranks[DPT_PROTO_RANKS_MAX], *list[DPT_PROTO_RANKS_MAX];
    static Dpt__Shard shards[DPT_PROTO_RANKS_MAX], *held[DPT_PROTO_RANKS_MAX];
    static uint64_t counter;
    const int n_holders = large->leave ? LARGE_HOLDERS : large->n_nodes;
    char id[DPT_PROTO_NAME_BYTES];
    (void)snprintf(id, sizeof id, "n%d", i);
    fake_reset(&node, id);
    node.stamp.run = (char *)"large";
    node.stamp.generation = generation;
    node.stamp.epoch = 77;
    node.spec.max_nodes = (uint32_t)large->n_nodes;
    node.spec.max_world = DPT_MESH_MAX;
    node.spec.sharded = true;
    for (uint32_t k = 0; k < DPT_PROTO_RANKS_MAX; k++) {
        dpt__shard__init(&shards[k]);
        shards[k].index = (uint32_t)i * DPT_PROTO_RANKS_MAX + k;
        shards[k].of = (uint32_t)n_holders * DPT_PROTO_RANKS_MAX;
        held[k] = &shards[k];
        ranks[k] = node.ranks[0];
        ranks[k].local_rank = k;
        ranks[k].generation = generation;
        if (generation > 0)
            ranks[k].phase = DPT__RANK_PHASE__RANK_QUIESCED;
        if (i < n_holders) {
            ranks[k].step_applied = 7;
            ranks[k].shards = &held[k];
            ranks[k].n_shards = 1;
        }
        list[k] = &ranks[k];
    }
    node.state.ranks = list;
    node.state.n_ranks = DPT_PROTO_RANKS_MAX;
    node.state.counter = ++counter;
    node.state.leaving = large->leave && i < n_holders && generation > 0;
    if (!large->can_save)
        node.state.checkpoint_dir_id = "";
    return step_large((struct dpt_rdzv_event){
        .kind = DPT_RDZV_EVENT_MESSAGE, .conn = 5000 + (uint64_t)i, .message = &node.state});
}

/* All nodes have joined and have reported for the first generation. */
static struct told large_nodes_report(const struct large *large)
{
    struct told told = {0};
    for (int i = 0; i < large->n_nodes; i++)
        told = large_node_says(large, i, 0);
    for (int i = 0; i < large->n_nodes; i++) {
        assert_int_equal(told.world_size, 0);
        told = large_node_says(large, i, 1);
    }
    assert_true(told.warned);
    return told;
}

/* The ranks of a mesh connect each with every other, handover ranks included. So all its ranks
 * cannot hand over to another one, and save the state. */
static void full_mesh_that_leaves_is_saved(void **state)
{
    (void)state;
    const struct told told = large_nodes_report(
        &(struct large){.n_nodes = LARGE_HOLDERS + 1, .leave = true, .can_save = true});
    assert_int_equal(told.world_size, DPT_MESH_MAX);
    assert_int_equal(told.handover_ranks, 0);
    assert_true(told.final_save);
}

/* They write rescues, and the others go on without them. */
static void full_mesh_that_cannot_save_is_released(void **state)
{
    (void)state;
    const struct large large = {.n_nodes = LARGE_HOLDERS + 1, .leave = true};
    struct told told = large_nodes_report(&large);
    assert_int_equal(told.world_size, 0);
    assert_int_equal(told.n_released, LARGE_HOLDERS);
    assert_int_equal(told.prepared, 2);
    const int64_t planned_ms = stage.now_ms + dpt_timing_from(5000, 0).lease_ms;
    while (told.world_size == 0 && stage.now_ms < planned_ms) {
        told = large_node_says(&large, LARGE_HOLDERS, 2);
        assert_int_equal(told.world_size, 0);
        stage.now_ms = stage.deadline_ms;
        told = step_large((struct dpt_rdzv_event){.kind = DPT_RDZV_EVENT_TICK});
    }
    assert_true(stage.now_ms >= planned_ms);
    assert_int_equal(told.world_size, DPT_PROTO_RANKS_MAX);
    assert_int_equal(told.handover_ranks, 0);
}

/* No run has more shards than ranks. Reports that say so cause no plan without a part of them, and
 * a generation in a lease. */
static void more_shards_than_a_plan_has_ranks(void **state)
{
    (void)state;
    const struct large large = {.n_nodes = LARGE_HOLDERS + 1, .can_save = true};
    struct told told = large_nodes_report(&large);
    assert_int_equal(told.world_size, 0);
    assert_int_equal(told.n_released, 0);
    assert_int_equal(told.prepared, 2);
    for (int i = 0; i < large.n_nodes; i++) {
        told = large_node_says(&large, i, 2);
        assert_int_equal(told.world_size, 0);
        assert_false(told.warned);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        TEST(only_holder_hands_over_to_a_spare),
        TEST(holders_of_all_shards_leave_together),
        TEST(lower_limit_disturbs_no_run_of_the_journal),
        TEST(lower_limit_disturbs_no_run_without_a_journal),
        TEST(final_save_has_all_shards),
        TEST(full_mesh_that_leaves_is_saved),
        TEST(full_mesh_that_cannot_save_is_released),
        TEST(more_shards_than_a_plan_has_ranks),
#undef TEST
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
