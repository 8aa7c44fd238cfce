/* Who may join, who is told what, when the first generation is formed, and how a run ends. */
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

static void refused(struct stage *stage, struct fake *fake, const char *why)
{
    fake_say(fake, stage);
    assert_true(fake->told);
    assert_int_equal(fake->phase, PHASE(REFUSED));
    assert_int_equal(fake->counter_seen, 0);
    if (strstr(fake->text, why) == NULL)
        fail_msg("wanted '%s' in: %s", why, fake->text);
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
    refused(stage, &b, "checkpoint.dir of this node is not that of run");
    assert_non_null(strstr(b.text, "or take strategy.name=ddp")); /* the whole of it fits */
    b.state.checkpoint_dir_id = "";
    refused(stage, &b, "The missing checkpoint.dir of this node is not that of run");
    assert_non_null(strstr(b.text, "or take strategy.name=ddp"));
    b.state.checkpoint_dir_id = a.state.checkpoint_dir_id;
    fake_say(&b, stage);
    assert_int_equal(b.phase, PHASE(SETTLING));
}

/* Fields of a newer version are the message's own memory, which is gone when the spec is told. */
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
    refused(stage, &b, "the config differs");
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

static void test_refusals(void **state)
{
    struct stage *stage = *state;
    fake_init(&a, stage, "a");
    fake_init(&b, stage, "b");
    fake_say(&a, stage);
    assert_int_equal(a.phase, PHASE(SETTLING));
    b.state.version = DPT_PROTO_VERSION + 1;
    refused(stage, &b, "protocol");
    char why[96];
    snprintf(why, sizeof why, "speaks protocol 1, the server protocol %d: install the same version",
             DPT_PROTO_VERSION);
    b.state.version = 1;
    refused(stage, &b, why);
    b.state.version = DPT_PROTO_VERSION;
    b.spec.user = "bob";
    refused(stage, &b, "belongs to user 'alice'");
    b.spec.user = "alice";
    b.spec.config_digest = "other";
    refused(stage, &b, "config differs");
    assert_true(b.has_spec); /* so that the agent can name the keys */
    b.spec.config_digest = "digest";
    b.state.fingerprint = "gpu";
    refused(stage, &b, "has other devices or libraries (gpu) than the run (cpu)");
    b.state.fingerprint = "cpu";
    b.state.data_digest = "else";
    refused(stage, &b, "the data of this node");
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

/* Who asks for the config of a run that is not here hears of the only one that is. */
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
    late.stamp.run = "demo";
    fake_say(&late, stage);
    assert_true(late.has_spec);
    assert_string_equal(late.only_run, "");
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

/* A server that was just started does not know what an earlier one formed. */
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

static void test_incarnations(void **state)
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
    old = b; /* what it was, speaking on the old connection */
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

static uint8_t own_secret[DPT_PROTO_SECRET_BYTES] = {1}, other_secret[] = {2, [15] = 0};

static void set_secret(struct fake *fake, uint8_t secret[DPT_PROTO_SECRET_BYTES])
{
    fake->state.secret = (ProtobufCBinaryData){DPT_PROTO_SECRET_BYTES, secret};
}

/* Another process that calls itself "b", of a later incarnation. */
static void stranger_init(struct stage *stage, uint8_t secret[DPT_PROTO_SECRET_BYTES])
{
    fake_init(&old, stage, "b");
    old.stamp.incarnation = 9;
    set_secret(&old, secret);
}

static void start_pair(struct stage *stage)
{
    fake_init(&a, stage, "a");
    fake_init(&b, stage, "b");
    b.stamp.incarnation = 5;
    b.ranks[0].tcp_addr = "10.0.0.7:4000";
    set_secret(&b, own_secret);
    fakes_start(stage, (struct fake *const[]){&a, &b}, 2);
}

static void refused_and_unnoticed(struct stage *stage, const char *why)
{
    stage_tick(stage, 0);
    refused(stage, &old, why);
    assert_int_equal(stage->n_sends, 1); /* nobody else is told anything */
    assert_int_equal(stage->view.phase, DPT_RDZV_RUNNING);
    assert_int_equal(stage->view.generation, 1);
    assert_int_equal(stage->view.nodes, 2);
    assert_int_equal(stage->view.restarts_left, 100);
    fake_say(&b, stage);
    assert_int_equal(b.phase, PHASE(RUNNING));
}

/* Whoever is refused leaves the node of its id where it is, even where the id is its own. */
static void test_refused_changes_nothing(void **state)
{
    struct stage *stage = *state;
    uint8_t *secrets[] = {own_secret, other_secret};
    start_pair(stage);
    for (int i = 0; i < 2; i++) {
        stranger_init(stage, secrets[i]);
        old.spec.config_digest = "other";
        refused_and_unnoticed(stage, "config differs");
        assert_true(old.has_spec);
        old.spec.config_digest = "digest";
        old.spec.user = "bob";
        refused_and_unnoticed(stage, "belongs to user 'alice'");
        old.spec.user = "alice";
        old.state.fingerprint = "gpu";
        refused_and_unnoticed(stage, "has other devices or libraries");
        old.state.fingerprint = "cpu";
        old.state.data_digest = "else";
        refused_and_unnoticed(stage, "the data of this node");
        old.state.data_digest = "data";
        old.state.spec = NULL; /* asks for the config */
        stage_tick(stage, 0);
        fake_say(&old, stage);
        assert_int_equal(old.phase, PHASE(WAITING));
        assert_true(old.has_spec);
        assert_int_equal(stage->view.phase, DPT_RDZV_RUNNING);
        assert_int_equal(stage->view.nodes, 2);
    }
}

/* Nobody takes the place of a node but who knows its secret. */
static void test_stranger_of_a_node_id(void **state)
{
    struct stage *stage = *state;
    start_pair(stage);
    stranger_init(stage, other_secret);
    refused_and_unnoticed(stage,
                          "node 'b' of run 'demo' is alive (at 10.0.0.7, joined 1 s ago) and "
                          "another process: give this one another --node-id, or wait until "
                          "that node is lost");
    assert_false(old.has_spec);
    old.stamp.incarnation = 5; /* by chance the same; and an earlier one */
    refused_and_unnoticed(stage, "is alive");
    old.stamp.incarnation = 2;
    refused_and_unnoticed(stage, "is alive");
    old.state.secret.len = 0;
    refused_and_unnoticed(stage, "sends no secret");
    stranger_init(stage, own_secret);
    fake_say(&old, stage);
    assert_int_equal(stage->view.phase, DPT_RDZV_PREPARING);
    assert_string_equal(stage->view.cause_kind, "node_lost");
    assert_int_equal(stage->view.nodes, 2);
}

/* When the node is gone its id is free, whatever incarnation the next one has. */
static void test_id_is_free_after_a_loss(void **state)
{
    struct stage *stage = *state;
    start_pair(stage);
    stage_step(stage, (struct dpt_rdzv_event){.kind = DPT_RDZV_EVENT_BROKEN, .conn = b.conn});
    struct fake *const rest[] = {&a};
    stage_pass_speaking(stage, rest, 1, 5000);
    assert_int_equal(stage->view.nodes, 1);
    stranger_init(stage, other_secret);
    old.stamp.incarnation = 1;
    fake_say(&old, stage);
    assert_int_equal(stage->view.nodes, 2);
    assert_int_equal(old.counter_seen, 1);
    b.conn = 3000;
    fake_say(&b, stage); /* its id is another's by now */
    assert_int_equal(b.phase, PHASE(EXPELLED));
    b.stamp.incarnation++;
    b.counter = b.epoch = b.generation = 0;
    refused(stage, &b, "is alive");
}

/* A node without a secret could be replaced by anybody: it does not join. */
static void test_no_secret(void **state)
{
    struct stage *stage = *state;
    static uint8_t zeroes[DPT_PROTO_SECRET_BYTES];
    fake_init(&a, stage, "a");
    a.state.secret.len = 0;
    refused(stage, &a, "sends no secret");
    set_secret(&a, zeroes);
    refused(stage, &a, "sends no secret");
    set_secret(&a, own_secret);
    fake_say(&a, stage);
    assert_int_equal(a.counter_seen, a.counter);
}

/* A process that was started again without its secret waits while the one before it may be dead,
 * and has the id when that is lost; one that comes beside a living node is refused. */
static void test_owner_is_suspect(void **state)
{
    struct stage *stage = *state;
    start_pair(stage);
    stage_step(stage, (struct dpt_rdzv_event){.kind = DPT_RDZV_EVENT_BROKEN, .conn = b.conn});
    stranger_init(stage, other_secret);
    struct fake *const rest[] = {&a, &old};
    fake_say(&old, stage);
    assert_int_equal(old.phase, PHASE(WAITING));
    assert_non_null(strstr(old.text, "its connection is broken"));
    assert_int_equal(old.counter_seen, 0);
    stage_pass_speaking(stage, rest, 2, 4000);
    assert_int_equal(old.counter_seen, 0);
    assert_int_equal(stage->view.nodes, 2);
    stage_pass_speaking(stage, rest, 2, 600);
    assert_true(old.counter_seen > 0);
    assert_int_equal(stage->view.nodes, 2);
}

/* A server that was restarted meets a stranger first: who trains has its id again. */
static void test_who_trains_has_its_id(void **state)
{
    struct stage *stage = *state;
    start_pair(stage);
    stage_restart(stage, 78);
    stage_tick(stage, 0);
    stranger_init(stage, other_secret);
    fake_say(&old, stage);
    assert_int_equal(stage->view.nodes, 1);
    struct fake *const all[] = {&a, &b};
    for (int i = 0; i < 2; i++) {
        all[i]->ranks[0].plan_rank = (int32_t)fake_place(all[i])->rank;
        fake_say(all[i], stage);
    }
    assert_int_equal(stage->view.phase, DPT_RDZV_RUNNING);
    assert_int_equal(stage->view.generation, 1);
    fake_say(&old, stage);
    assert_int_equal(old.phase, PHASE(EXPELLED));
    old.stamp.incarnation++;
    old.counter = old.epoch = old.generation = 0;
    refused(stage, &old, "is alive");
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

static void test_done(void **state)
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
    assert_int_equal(a.phase, PHASE(DRAINING)); /* nobody exits yet */
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

/* A process with another config is not told an end that is not its own: its run begins when those
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
    refused(stage, &a, "as many runs");
}

static void test_shutdown(void **state)
{
    struct stage *stage = *state;
    fake_init(&a, stage, "a");
    fake_say(&a, stage);
    stage_step(stage, (struct dpt_rdzv_event){.kind = DPT_RDZV_EVENT_SHUTDOWN});
    assert_int_equal(stage->n_sends, 0); /* training goes on without a server */
    fake_say(&a, stage);
    assert_int_equal(stage->n_sends, 0);
}

int main(void)
{
#define T(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(test_refusals),
        T(test_one_checkpoint_folder),
        T(test_spec_of_a_newer_version),
        T(test_whole_states_in_many_folders),
        T(test_config_question),
        T(test_only_run_is_named),
        T(test_last_call),
        T(test_full_is_formed_at_once),
        T(test_young_server_waits),
        T(test_stale_changes_nothing),
        T(test_incarnations),
        T(test_refused_changes_nothing),
        T(test_stranger_of_a_node_id),
        T(test_id_is_free_after_a_loss),
        T(test_no_secret),
        T(test_owner_is_suspect),
        T(test_who_trains_has_its_id),
        T(test_unknown_of_this_epoch),
        T(test_done),
        T(test_another_run_after_the_end),
        T(test_two_runs),
        T(test_runs_are_bounded),
        T(test_shutdown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
