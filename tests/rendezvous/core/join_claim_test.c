/* Node ids: a process without the secret of a node does not get its place. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/rendezvous/core/fake_agent.h"

#include <string.h>

#define PHASE(name) DPT__SERVER_PHASE__SERVER_##name

static struct fake a, b, old;

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
    fake_refused(&old, stage, why);
    assert_int_equal(stage->n_sends, 1); /* no other node gets a message */
    assert_int_equal(stage->view.phase, DPT_RDZV_RUNNING);
    assert_int_equal(stage->view.generation, 1);
    assert_int_equal(stage->view.nodes, 2);
    assert_int_equal(stage->view.restarts_left, 100);
    fake_say(&b, stage);
    assert_int_equal(b.phase, PHASE(RUNNING));
}

/* A refused process does not change the node that has its id, even if the process knows the secret.
 */
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

/* Only a process that knows the secret of a node takes its place. */
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

/* When the node is gone its id is free, for any next incarnation. */
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
    fake_refused(&b, stage, "is alive");
}

/* A node without a secret could be replaced by any process: it does not join. */
static void test_no_secret(void **state)
{
    struct stage *stage = *state;
    static uint8_t zeroes[DPT_PROTO_SECRET_BYTES];
    fake_init(&a, stage, "a");
    a.state.secret.len = 0;
    fake_refused(&a, stage, "sends no secret");
    set_secret(&a, zeroes);
    fake_refused(&a, stage, "sends no secret");
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

/* A restarted server hears a stranger first: the process that trains gets its id again. */
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
    fake_refused(&old, stage, "is alive");
    assert_int_equal(stage->view.nodes, 2);
}

int main(void)
{
#define T(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(test_refused_changes_nothing), T(test_stranger_of_a_node_id),
        T(test_id_is_free_after_a_loss), T(test_no_secret),
        T(test_owner_is_suspect),        T(test_who_trains_has_its_id),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
