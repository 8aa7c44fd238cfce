/* The operator of fake_operator.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/rendezvous/core/fake_operator.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

Dpt__ControlReply reply;
char reply_text[DPT_PROTO_TEXT_BYTES], reply_run[DPT_PROTO_NAME_BYTES];
char reply_rack[DPT_PROTO_NAME_BYTES], reply_address[DPT_PROTO_ADDR_BYTES];
char reply_saved_node[DPT_PROTO_NAME_BYTES], reply_saved_host[DPT_PROTO_NAME_BYTES];
Dpt__RunInfo run_info;

/* The operator's messages come over a connection of their own. The answer goes through its encoding
 * and its checks. */
static void keep_reply(const Dpt__ServerState *message)
{
    size_t bytes = dpt_message_bytes(&message->base);
    void *data = malloc(bytes);
    Dpt__ServerState *decoded = NULL;
    struct dpt_err err;
    assert_non_null(data);
    assert_int_equal(dpt_message_encode(&message->base, data, bytes, &bytes, &err), DPT_OK);
    if (dpt_message_decode_server_state(data, bytes, &decoded, &err) != DPT_OK)
        fail_msg("%s", err.text);
    assert_non_null(decoded->reply);
    reply = *decoded->reply;
    (void)snprintf(reply_text, sizeof reply_text, "%s", decoded->reply->text);
    (void)snprintf(reply_run, sizeof reply_run, "%s", decoded->reply->run);
    if (decoded->reply->n_nodes > 0) {
        const Dpt__NodeInfo *first = decoded->reply->nodes[0];
        (void)snprintf(reply_rack, sizeof reply_rack, "%s", first->rack);
        (void)snprintf(reply_address, sizeof reply_address, "%s", first->address);
    }
    if (decoded->reply->n_runs > 0) {
        run_info = *decoded->reply->runs[0];
        (void)snprintf(reply_saved_node, sizeof reply_saved_node, "%s", run_info.saved_node);
        (void)snprintf(reply_saved_host, sizeof reply_saved_host, "%s", run_info.saved_host);
    }
    dpt_message_free_server_state(&decoded);
    free(data);
}

static struct question {
    Dpt__Control control;
    uint64_t counter;
} last, before_last;
static uint64_t conn, process = 77; /* of the operator's program; a new command has a new one */

static Dpt__ControlOutcome send_question(const struct operator_rights *rights,
                                         struct question *question)
{
    Dpt__Control *const control = &question->control;
    Dpt__Stamp stamp = DPT__STAMP__INIT;
    Dpt__AgentState state = DPT__AGENT_STATE__INIT;
    stamp.run = control->run[0] != '\0' ? control->run : "-"; /* as dpt-ctl does */
    stamp.node = "dpt-ctl";
    stamp.incarnation = process;
    state.version = DPT_PROTO_VERSION;
    state.software = "test";
    state.stamp = &stamp;
    state.counter = question->counter;
    state.control = control;
    stage.on_reply = keep_reply;
    stage.now_ms += 40; /* the server answers 32 commands a second */
    stage_step(&stage, (struct dpt_rdzv_event){.kind = DPT_RDZV_EVENT_MESSAGE,
                                               .conn = 999 + conn,
                                               .message = &state,
                                               .join_only = rights->join_only,
                                               .only_run = rights->only_run});
    return reply.outcome;
}

static Dpt__ControlOutcome send_as(const struct operator_rights *rights, Dpt__Control *control)
{
    process += control->step < 0;
    before_last = last;
    last = (struct question){.control = *control, .counter = last.counter + 1};
    return send_question(rights, &last);
}

Dpt__ControlOutcome send_control(Dpt__Control *control)
{
    return send_as(&(struct operator_rights){0}, control);
}

Dpt__ControlOutcome order_as(const struct operator_rights *rights, Dpt__ControlVerb verb,
                             const char *run)
{
    Dpt__Control control = DPT__CONTROL__INIT;
    control.verb = verb;
    control.run = (char *)run;
    control.step = -1;
    return send_as(rights, &control);
}

Dpt__ControlOutcome order(Dpt__ControlVerb verb, const char *node)
{
    Dpt__Control control = DPT__CONTROL__INIT;
    control.verb = verb;
    control.node = (char *)node;
    control.step = -1;
    return send_control(&control);
}

Dpt__ControlOutcome copy(void)
{
    conn++;
    return send_question(&(struct operator_rights){0}, &last);
}

Dpt__ControlOutcome copy_before_last(void)
{
    conn++;
    return send_question(&(struct operator_rights){0}, &before_last);
}

Dpt__ControlOutcome again(Dpt__ControlVerb verb, const char *node)
{
    Dpt__Control control = DPT__CONTROL__INIT;
    control.verb = verb;
    control.node = (char *)node;
    control.step = reply.step;
    control.number = reply.number;
    return send_control(&control);
}

void refused(Dpt__ControlOutcome outcome, const char *why)
{
    assert_true(outcome == DPT__CONTROL_OUTCOME__CONTROL_REFUSED ||
                outcome == DPT__CONTROL_OUTCOME__CONTROL_UNKNOWN);
    if (strstr(reply_text, why) == NULL)
        fail_msg("wanted '%s' in: %s", why, reply_text);
}

void done(Dpt__ControlOutcome outcome)
{
    if (outcome != DPT__CONTROL_OUTCOME__CONTROL_DONE)
        fail_msg("not done: %s", reply_text);
}

void goes_on(Dpt__ControlOutcome outcome)
{
    if (outcome != DPT__CONTROL_OUTCOME__CONTROL_GOES_ON)
        fail_msg("does not go on: %s", reply_text);
}

void start_trio_at_9(void)
{
    trio_start();
    trio_step_to(9);
}
