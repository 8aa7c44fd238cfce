/* Commands of an operator and their replies as messages: their limits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "rendezvous/proto/message.h"

#include <stdlib.h>
#include <string.h>

static Dpt__Stamp stamp;
static Dpt__Control control;
static Dpt__AgentState agent;
static Dpt__RunInfo run, *runs[DPT_PROTO_RUNS_MAX + 1];
static Dpt__NodeInfo node, *nodes[DPT_PROTO_REPLY_NODES_MAX + 1];
static Dpt__ControlReply reply;
static Dpt__ServerState server;

static void fill(void)
{
    dpt__stamp__init(&stamp);
    stamp.epoch = 7;
    stamp.run = (char *)"-";
    stamp.node = (char *)"dpt-ctl";
    stamp.incarnation = 1;
    dpt__control__init(&control);
    control.step = -1;
    dpt__agent_state__init(&agent);
    agent.version = DPT_PROTO_VERSION;
    agent.stamp = &stamp;
    agent.control = &control;
    dpt__run_info__init(&run);
    run.run = (char *)"demo";
    run.step = run.saved_step = -1;
    for (int i = 0; i <= DPT_PROTO_RUNS_MAX; i++)
        runs[i] = &run;
    dpt__node_info__init(&node);
    node.run = (char *)"demo";
    node.node = (char *)"b";
    node.step = node.first_rank = -1;
    for (int i = 0; i <= DPT_PROTO_REPLY_NODES_MAX; i++)
        nodes[i] = &node;
    dpt__control_reply__init(&reply);
    reply.step = -1;
    reply.runs = runs;
    reply.nodes = nodes;
    reply.n_runs = reply.n_nodes = 1;
    dpt__server_state__init(&server);
    server.version = DPT_PROTO_VERSION;
    server.stamp = &stamp;
    server.grant_step = -1;
    server.reply = &reply;
}

/* Encodes and decodes both messages; the error, "" if none is refused. */
static const char *refused(struct dpt_err *err)
{
    const ProtobufCMessage *const messages[] = {&agent.base, &server.base};
    enum dpt_status result = DPT_OK;
    for (int i = 0; i < 2 && result == DPT_OK; i++) {
        size_t bytes = dpt_message_bytes(messages[i]);
        uint8_t *data = malloc(bytes);
        Dpt__AgentState *question = NULL;
        Dpt__ServerState *answer = NULL;
        assert_non_null(data);
        assert_int_equal(dpt_message_encode(messages[i], data, bytes, &bytes, err), DPT_OK);
        result = i == 0 ? dpt_message_decode_agent_state(data, bytes, &question, err)
                        : dpt_message_decode_server_state(data, bytes, &answer, err);
        dpt_message_free_agent_state(&question);
        dpt_message_free_server_state(&answer);
        free(data);
    }
    return result == DPT_OK ? "" : err->text;
}

#define SPOIL(field, member, value)                                                                \
    do {                                                                                           \
        struct dpt_err err;                                                                        \
        fill();                                                                                    \
        member = (value);                                                                          \
        if (!strstr(refused(&err), "'" field "'"))                                                 \
            fail_msg("%s = %s is not refused", #member, #value);                                   \
    } while (0)

static void whole_messages_are_taken(void **unused)
{
    (void)unused;
    struct dpt_err err;
    fill();
    assert_string_equal(refused(&err), "");
    control.run = node.node = (char *)"a.b-c_9";
    control.verb = DPT__CONTROL_VERB__CONTROL_STOP;
    reply.n_runs = DPT_PROTO_RUNS_MAX;
    reply.n_nodes = DPT_PROTO_REPLY_NODES_MAX;
    assert_string_equal(refused(&err), "");
}

static void spoilt_command_is_refused(void **unused)
{
    (void)unused;
    SPOIL("verb", control.verb, (Dpt__ControlVerb)99);
    SPOIL("run", control.run, (char *)"../etc");
    SPOIL("node", control.node, (char *)"a b");
    SPOIL("step", control.step, -2);
    SPOIL("first", control.first, DPT_PROTO_NODES_MAX + 1);
}

static void spoilt_reply_is_refused(void **unused)
{
    (void)unused;
    SPOIL("outcome", reply.outcome, (Dpt__ControlOutcome)99);
    SPOIL("text", reply.text, (char *)"a\nb");
    SPOIL("run", reply.run, (char *)".hidden");
    SPOIL("step", reply.step, -2);
    SPOIL("runs", reply.n_runs, DPT_PROTO_RUNS_MAX + 1);
    SPOIL("nodes", reply.n_nodes, DPT_PROTO_REPLY_NODES_MAX + 1);
    SPOIL("run", run.run, (char *)"");
    SPOIL("phase", run.phase, (Dpt__ServerPhase)99);
    SPOIL("generation", run.generation, UINT64_MAX);
    SPOIL("world_size", run.world_size, DPT_PROTO_WORLD_MAX + 1);
    SPOIL("n_nodes", run.n_nodes, DPT_PROTO_NODES_MAX + 1);
    SPOIL("step", run.step, -2);
    SPOIL("saved_step", run.saved_step, INT64_MAX);
    SPOIL("saved_node", run.saved_node, (char *)"a\nb");
    SPOIL("step_ms_median", run.step_ms_median, -1);
    SPOIL("phase_ms", run.phase_ms, -1);
    SPOIL("heard_ms_ago", run.heard_ms_ago, -2);
    SPOIL("cause", run.cause, (char *)"\033[31m");
    SPOIL("node", node.node, (char *)"a/b");
    SPOIL("address", node.address, (char *)"\033[31m");
    SPOIL("role", node.role, (Dpt__NodeRole)99);
    SPOIL("n_ranks", node.n_ranks, DPT_PROTO_RANKS_MAX + 1);
    SPOIL("first_rank", node.first_rank, -2);
    SPOIL("step", node.step, INT64_MAX);
    SPOIL("heard_ms_ago", node.heard_ms_ago, -1);
    SPOIL("save_from", server.save_from, -1);
    SPOIL("step", reply.step, DPT_PROTO_STEP_MAX + 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole_messages_are_taken),
        cmocka_unit_test(spoilt_command_is_refused),
        cmocka_unit_test(spoilt_reply_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
