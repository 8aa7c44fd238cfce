/* Joining: refusals, the config, the first formation, incarnations; the end of a run. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/rendezvous/core/fake_agent.h"

#include <stdio.h>
#include <string.h>

#define PHASE(name) DPT__SERVER_PHASE__SERVER_##name

static struct fake a, b, late, old;

static int setup(void **state)
{
    static struct stage stage;
    stage_open(&stage);
    *state = &stage;
    return 0;
}

static int teardown(void **state)
{
    stage_close(*state);
    return 0;
}

/* Where every rank writes its part of a checkpoint all see one folder, or none has any. */
static void test_one_checkpoint_folder(void **state)
{
    struct stage *stage = *state;
    fake_init(&a, stage, "a");
    fake_init(&b, stage, "b");
    a.spec.one_checkpoint_dir = b.spec.one_checkpoint_dir = true;
    fake_say(&a, stage);
    b.state.checkpoint_dir_id = "elsewhere";
    fake_refused(&b, stage, "checkpoint.dir of this node is not that of run");
    assert_non_null(strstr(b.text, "or take strategy.name=ddp")); /* the whole of it fits */
    b.state.checkpoint_dir_id = "";
    fake_refused(&b, stage, "The missing checkpoint.dir of this node is not that of run");
    assert_non_null(strstr(b.text, "or take strategy.name=ddp"));
    b.state.checkpoint_dir_id = a.state.checkpoint_dir_id;
    fake_say(&b, stage);
    assert_int_equal(b.phase, PHASE(SETTLING));
}

/* Fields of a newer version are in the message's own memory, which is freed before the spec is
 * sent. */
static void test_spec_of_a_newer_version(void **state)
{
    struct stage *stage = *state;
    ProtobufCMessageUnknownField field = {
        .tag = 100,
        .wire_type = PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED,
        .len = 2,
        .data = (uint8_t *)"\001n",
    };
    fake_init(&a, stage, "a");
    fake_init(&b, stage, "b");
    a.spec.base.n_unknown_fields = 1;
    a.spec.base.unknown_fields = &field;
    fake_say(&a, stage);
    b.spec.config_digest = "another";
    fake_refused(&b, stage, "the config differs");
    assert_true(b.has_spec);
    assert_int_equal(b.unknown_fields, 0);
}

static void test_whole_states_in_many_folders(void **state)
{
    struct stage *stage = *state;
    fake_init(&a, stage, "a");
    fake_init(&b, stage, "b");
    fake_say(&a, stage);
    b.state.checkpoint_dir_id = "elsewhere";
    fake_say(&b, stage);
    assert_int_equal(b.phase, PHASE(SETTLING));
}

static void test_unfit_node_is_refused(void **state)
{
    struct stage *stage = *state;
    fake_init(&a, stage, "a");
    fake_init(&b, stage, "b");
    fake_say(&a, stage);
    assert_int_equal(a.phase, PHASE(SETTLING));
    b.state.version = DPT_PROTO_VERSION + 1;
    fake_refused(&b, stage, "protocol");
    char why[96];
    snprintf(why, sizeof why, "speaks protocol 1, the server protocol %d: install the same version",
             DPT_PROTO_VERSION);
    b.state.version = 1;
    fake_refused(&b, stage, why);
    b.state.version = DPT_PROTO_VERSION;
    b.spec.user = "bob";
    fake_refused(&b, stage, "belongs to user 'alice'");
    b.spec.user = "alice";
    b.spec.config_digest = "other";
    fake_refused(&b, stage, "config differs");
    assert_true(b.has_spec); /* so that the agent can name the keys */
    b.spec.config_digest = "digest";
    b.state.fingerprint = "gpu";
    fake_refused(&b, stage, "has other devices or libraries (gpu) than the run (cpu)");
    b.state.fingerprint = "cpu";
    b.state.data_digest = "else";
    fake_refused(&b, stage, "the data of this node");
    assert_int_equal(stage->view.nodes, 1);
    b.state.data_digest = "data";
    fake_say(&b, stage);
    assert_int_equal(b.phase, PHASE(SETTLING));
    assert_int_equal(stage->view.nodes, 2);
}

static void test_config_question(void **state)
{
    struct stage *stage = *state;
    fake_init(&a, stage, "a");
    a.state.spec = NULL;
    a.state.n_ranks = 0;
    fake_say(&a, stage);
    assert_int_equal(a.phase, PHASE(WAITING));
    assert_false(a.has_spec); /* none here: the demo config */
    assert_int_equal(dpt_rdzv_runs(stage->core), 0);
    fake_init(&b, stage, "b");
    fake_say(&b, stage);
    fake_say(&a, stage);
    assert_true(a.has_spec);
    assert_int_equal(stage->view.nodes, 1);
}

/* A process that asks for the config of an unknown run receives the name of the only run. */
static void test_only_run_is_named(void **state)
{
    struct stage *stage = *state;
    fake_init(&late, stage, "late");
    late.stamp.run = "other";
    late.state.spec = NULL;
    late.state.n_ranks = 0;
    fake_say(&late, stage);
    assert_string_equal(late.only_run, "");
    fake_init(&a, stage, "a");
    fake_say(&a, stage);
    fake_say(&late, stage);
    assert_string_equal(late.only_run, "demo");
    assert_false(late.has_spec);
    fake_init(&b, stage, "b");
    b.stamp.run = "second";
    fake_say(&b, stage);
    fake_say(&late, stage);
    assert_string_equal(late.only_run, ""); /* two: which is meant must be said */
    assert_int_equal(late.n_runs, 2);
    assert_string_equal(late.text, "demo, second");
    late.limited_to = "other"; /* it may take part in neither */
    fake_say(&late, stage);
    assert_int_equal(late.n_runs, 0);
    assert_string_equal(late.text, "");
    late.limited_to = NULL;
    late.stamp.run = "demo";
    fake_say(&late, stage);
    assert_true(late.has_spec);
    assert_string_equal(late.only_run, "");
    assert_int_equal(late.n_runs, 2);
}

/* A run that has ended is not one of those that may be meant, although its node is still here. */
static void test_ended_run_is_not_named(void **state)
{
    struct stage *stage = *state;
    fake_init(&a, stage, "a");
    fakes_start(stage, (struct fake *const[]){&a}, 1);
    fake_init(&b, stage, "b");
    b.stamp.run = "second";
    fake_say(&b, stage);
    fake_phase(&a, DPT__RANK_PHASE__RANK_FINISHED, a.generation);
    fake_say(&a, stage);
    assert_int_equal(dpt_rdzv_runs(stage->core), 2);
    fake_init(&late, stage, "late");
    late.stamp.run = "other";
    late.state.spec = NULL;
    late.state.n_ranks = 0;
    fake_say(&late, stage);
    assert_string_equal(late.only_run, "second");
    assert_int_equal(late.n_runs, 1);
    assert_string_equal(late.text, "");
}

/* Of many runs the answer names some, and has the number of the others. */
static void test_many_runs_are_counted(void **state)
{
    enum { RUNS = 20 };
    static struct fake fakes[RUNS];
    static char names[RUNS][DPT_PROTO_NAME_BYTES];
    struct stage *stage = *state;
    char last[DPT_PROTO_NAME_BYTES + 16];
    for (int i = 0; i < RUNS; i++) {
        fake_reset(&fakes[i], "a");
        fakes[i].conn = 500 + (uint64_t)i;
        memset(names[i], 'a' + i, DPT_PROTO_NAME_BYTES - 1);
        fakes[i].stamp.run = names[i];
        fake_say(&fakes[i], stage);
    }
    fake_init(&late, stage, "late");
    late.stamp.run = "other";
    late.state.spec = NULL;
    late.state.n_ranks = 0;
    fake_say(&late, stage);
    assert_int_equal(late.n_runs, RUNS);
    assert_memory_equal(late.text, names[0], DPT_PROTO_NAME_BYTES - 1);
    (void)snprintf(last, sizeof last, ", %s and 12 more", names[7]);
    assert_string_equal(late.text + strlen(late.text) - strlen(last), last);
}

static void test_last_call(void **state)
{
    struct stage *stage = *state;
    fake_init(&a, stage, "a");
    struct fake *all[] = {&a};
    fake_phase(&a, DPT__RANK_PHASE__RANK_STARTING, 0);
    fake_say(&a, stage);
    assert_int_equal(stage->view.phase, DPT_RDZV_WAITING); /* its rank cannot be asked yet */
    fake_phase(&a, DPT__RANK_PHASE__RANK_STANDBY, 0);
    fake_say(&a, stage);
    assert_int_equal(stage->view.phase, DPT_RDZV_SETTLING);
    stage_pass_speaking(stage, all, 1, 900);
    assert_int_equal(stage->view.phase, DPT_RDZV_SETTLING);
    stage_pass_speaking(stage, all, 1, 200);
    assert_int_equal(stage->view.phase, DPT_RDZV_PREPARING);
    assert_int_equal(a.generation, 1);
    assert_false(a.soft);
}

static void test_full_is_formed_at_once(void **state)
{
    struct stage *stage = *state;
    fake_init(&a, stage, "a");
    fake_init(&b, stage, "b");
    a.spec.min_nodes = a.spec.max_nodes = b.spec.min_nodes = b.spec.max_nodes = 2;
    fake_say(&a, stage);
    assert_int_equal(stage->view.phase, DPT_RDZV_WAITING);
    fake_say(&b, stage);
    assert_int_equal(stage->view.phase, DPT_RDZV_PREPARING);
}

/* A server that was just started does not know the generations of an earlier one. */
static void test_young_server_waits(void **state)
{
    struct stage *stage = *state;
    stage_restart(stage, 78);
    fake_init(&a, stage, "a");
    struct fake *all[] = {&a};
    fake_say(&a, stage);
    stage_pass_speaking(stage, all, 1, 4400);
    assert_int_equal(stage->view.phase, DPT_RDZV_SETTLING);
    stage_pass_speaking(stage, all, 1, 200);
    assert_int_equal(stage->view.phase, DPT_RDZV_PREPARING);
}

static void test_stale_changes_nothing(void **state)
{
    struct stage *stage = *state;
    fake_init(&a, stage, "a");
    struct fake *all[] = {&a};
    fake_say(&a, stage);
    stage_pass_speaking(stage, all, 1, 1100);
    fakes_settle(stage, all, 1);
    assert_int_equal(stage->view.phase, DPT_RDZV_RUNNING);
    uint64_t counter = a.counter;
    a.counter = 2; /* an old one comes again: it says the rank is dead */
    a.ranks[0].phase = DPT__RANK_PHASE__RANK_DEAD;
    fake_say(&a, stage);
    assert_int_equal(stage->n_sends, 0);
    assert_int_equal(stage->view.phase, DPT_RDZV_RUNNING);
    a.counter = counter;
    a.ranks[0].phase = DPT__RANK_PHASE__RANK_RUNNING;
    fake_say(&a, stage);
    assert_int_equal(stage->view.phase, DPT_RDZV_RUNNING);
}

static void test_newer_incarnation_replaces_node(void **state)
{
    struct stage *stage = *state;
    fake_init(&a, stage, "a");
    fake_init(&b, stage, "b");
    struct fake *all[] = {&a, &b};
    fake_say(&a, stage);
    fake_say(&b, stage);
    stage_pass_speaking(stage, all, 2, 1100);
    fakes_settle(stage, all, 2);
    assert_int_equal(stage->view.world_size, 2);
    old = b; /* its state before, sent over the old connection */
    old.plan = NULL;
    old.state.stamp = &old.stamp;
    /* The node comes back as a new incarnation: the old one's ranks are lost. */
    b.stamp.incarnation = 2;
    b.conn = 2000;
    b.counter = b.epoch = b.generation = 0;
    fake_phase(&b, DPT__RANK_PHASE__RANK_STARTING, 0);
    fake_say(&b, stage);
    assert_int_equal(stage->view.phase, DPT_RDZV_PREPARING);
    assert_string_equal(stage->view.cause_kind, "node_lost");
    stage->fakes[stage->n_fakes++] = &old;
    fake_say(&old, stage);
    assert_int_equal(old.phase, PHASE(EXPELLED));
    assert_int_equal(stage->view.nodes, 2);
}

/* An incarnation of which this very server has forgotten all but that it spoke to it. */
static void test_unknown_of_this_epoch(void **state)
{
    struct stage *stage = *state;
    fake_init(&a, stage, "a");
    a.epoch = 77;
    a.generation = 4;
    fake_say(&a, stage);
    assert_int_equal(a.phase, PHASE(EXPELLED));
    assert_int_equal(dpt_rdzv_runs(stage->core), 0);
}

static void test_finished_node_is_released(void **state)
{
    struct stage *stage = *state;
    fake_init(&a, stage, "a");
    fake_init(&b, stage, "b");
    struct fake *all[] = {&a, &b};
    fake_say(&a, stage);
    fake_say(&b, stage);
    stage_pass_speaking(stage, all, 2, 1100);
    fakes_settle(stage, all, 2);
    fake_phase(&a, DPT__RANK_PHASE__RANK_FINISHED, a.generation);
    fake_say(&a, stage);
    assert_int_equal(stage->view.phase, DPT_RDZV_DRAINING);
    assert_int_equal(a.phase, PHASE(DRAINING)); /* no node exits yet */
    fake_phase(&b, DPT__RANK_PHASE__RANK_FINISHED, b.generation);
    fake_say(&b, stage);
    assert_int_equal(a.phase, PHASE(DONE));
    assert_int_equal(b.phase, PHASE(DONE));
    fake_init(&late, stage, "late");
    fake_say(&late, stage);
    assert_int_equal(late.phase, PHASE(DONE));
    stage_step(stage, (struct dpt_rdzv_event){.kind = DPT_RDZV_EVENT_BROKEN, .conn = a.conn});
    stage_step(stage, (struct dpt_rdzv_event){.kind = DPT_RDZV_EVENT_BROKEN, .conn = b.conn});
    stage_pass(stage, 1000);
    assert_int_equal(dpt_rdzv_runs(stage->core), 0);
    assert_int_equal(stage->records[DPT_RDZV_RECORD_END], 1);
    assert_int_equal(stage->records[DPT_RDZV_RECORD_FORGET], 1);
    fake_say(&b, stage); /* had been away: hears the end all the same */
    assert_int_equal(b.phase, PHASE(DONE));
    fake_say(&late, stage); /* a stranger: the name is free, a new run begins */
    assert_int_equal(late.phase, PHASE(SETTLING));
}

/* A process with another config does not learn the end of this run: its run begins when the nodes
 * of the last one have gone. */
static void test_another_run_after_the_end(void **state)
{
    struct stage *stage = *state;
    fake_init(&a, stage, "a");
    struct fake *all[] = {&a};
    fake_say(&a, stage);
    stage_pass_speaking(stage, all, 1, 1100);
    fakes_settle(stage, all, 1);
    fake_phase(&a, DPT__RANK_PHASE__RANK_FINISHED, a.generation);
    fake_say(&a, stage);
    assert_int_equal(a.phase, PHASE(DONE));
    fake_init(&late, stage, "a");
    late.stamp.incarnation = a.stamp.incarnation + 1;
    late.spec.config_digest = "more steps";
    fake_say(&late, stage);
    assert_int_equal(late.phase, PHASE(WAITING));
    assert_int_equal(late.counter_seen, 0);
    assert_int_equal(stage->view.phase, DPT_RDZV_DONE);
    stage_step(stage, (struct dpt_rdzv_event){.kind = DPT_RDZV_EVENT_BROKEN, .conn = a.conn});
    stage_pass(stage, 1000);
    assert_int_equal(dpt_rdzv_runs(stage->core), 0);
    fake_say(&late, stage);
    assert_int_equal(late.phase, PHASE(SETTLING));
}

static void test_two_runs(void **state)
{
    struct stage *stage = *state;
    fake_init(&a, stage, "a");
    fake_init(&b, stage, "a"); /* the same node id in another run is another node */
    b.stamp.run = "second";
    b.spec.config_digest = "other";
    b.spec.user = "bob";
    struct fake *all[] = {&a, &b};
    fake_say(&a, stage);
    fake_say(&b, stage);
    assert_int_equal(dpt_rdzv_runs(stage->core), 2);
    stage_pass_speaking(stage, all, 2, 1100);
    fakes_settle(stage, all, 2);
    for (size_t i = 0; i < 2; i++) {
        struct dpt_rdzv_run_view view;
        dpt_rdzv_run_view(stage->core, i, &view);
        assert_int_equal(view.phase, DPT_RDZV_RUNNING);
        assert_int_equal(view.world_size, 1);
    }
    b.state.fatal = true;
    b.state.first_error = "rank process 0: bad data";
    fake_say(&b, stage);
    assert_int_equal(b.phase, PHASE(FAILED));
    fake_say(&a, stage);
    assert_int_equal(a.phase, PHASE(RUNNING));
}

static void test_runs_are_bounded(void **state)
{
    struct stage *stage = *state;
    fake_init(&a, stage, "a");
    for (int i = 0; i < DPT_RDZV_RUNS_MAX; i++) {
        char name[32];
        (void)snprintf(name, sizeof name, "run-%d", i);
        a.stamp.run = name;
        fake_say(&a, stage);
    }
    assert_int_equal(dpt_rdzv_runs(stage->core), DPT_RDZV_RUNS_MAX);
    a.stamp.run = "one-more";
    fake_refused(&a, stage, "as many runs");
}

int main(void)
{
#define T(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(test_unfit_node_is_refused),
        T(test_one_checkpoint_folder),
        T(test_spec_of_a_newer_version),
        T(test_whole_states_in_many_folders),
        T(test_config_question),
        T(test_only_run_is_named),
        T(test_ended_run_is_not_named),
        T(test_many_runs_are_counted),
        T(test_last_call),
        T(test_full_is_formed_at_once),
        T(test_young_server_waits),
        T(test_stale_changes_nothing),
        T(test_newer_incarnation_replaces_node),
        T(test_unknown_of_this_epoch),
        T(test_finished_node_is_released),
        T(test_another_run_after_the_end),
        T(test_two_runs),
        T(test_runs_are_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
