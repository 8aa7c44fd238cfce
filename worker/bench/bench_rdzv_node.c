/* A node of dpt-bench rdzv (bench_rdzv_node.h). */
#include "worker/bench/bench_rdzv_node.h"

#include "base/clock.h"
#include "base/log.h"
#include "rendezvous/core/timing.h"
#include "worker/agent/core.h"
#include "worker/bench/bench_rdzv_rank.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    RETRY_MS = 5,        /* a connection that has just been made takes no message for a moment */
    REPORTS_OF_LEASE = 4 /* reports of an idle rank in a lease; the agent kills a silent rank */
};

static const char run_name[] = "bench";

struct rdzv_node {
    const struct rdzv_host *host;
    struct dpt_agent *agent;
    struct dpt_client *connection;
    int index;
    bool up, was_up, ready;
    int64_t due_ms, report_ms; /* report_ms: pause between reports of an idle rank */
    uint8_t *unsent;           /* newest message that the connection did not take; owned */
    size_t unsent_bytes;
    int64_t retry_ms;       /* when it is sent again */
    uint64_t asked_counter; /* the answer to this message is timed; 0: none */
    int64_t asked_ns;
    struct rdzv_rank ranks[DPT_PROTO_RANKS_MAX];
};

static struct rdzv_record *record_of(const struct rdzv_node *node)
{
    return &node->host->shared->nodes[node->index];
}

static int n_ranks(const struct rdzv_node *node)
{
    return node->host->shared->setup.ranks;
}

/* Notes the generation when all ranks of the node run in it. */
static void note_running(const struct rdzv_node *node)
{
    const struct rdzv_rank *first = &node->ranks[0];
    struct rdzv_record *record = record_of(node);
    for (int i = 0; i < n_ranks(node); i++)
        if (node->ranks[i].phase != DPT__RANK_PHASE__RANK_RUNNING ||
            node->ranks[i].generation != first->generation)
            return;
    record->world = first->world;
    record->first_rank = first->plan_rank;
    record->running_ns = dpt_now_ns();
    __atomic_store_n(&record->generation, first->generation, __ATOMIC_RELEASE);
}

static void command_rank(struct rdzv_node *node, const struct dpt_agent_send *send, int64_t now_ms)
{
    struct rdzv_rank *rank = &node->ranks[send->local_rank];
    if (rank->spawn != send->spawn || rank->killed)
        return;
    const Dpt__RankPhase before = rank->phase;
    rdzv_rank_command(rank, send->local_rank, send->message, now_ms);
    rank->due = rank->due || now_ms - rank->reported_ms >= node->report_ms;
    if (rank->phase == DPT__RANK_PHASE__RANK_RUNNING && rank->phase != before)
        note_running(node);
}

/* ---- the agent ---- */

static enum dpt_status send_bytes(struct rdzv_node *node, const void *message, size_t bytes,
                                  struct dpt_err *err)
{
    struct rdzv_counts *counts = &node->host->client->counts;
    const enum dpt_status status = dpt_client_send(node->connection, message, bytes, err);
    if (status != DPT_OK)
        return status;
    __atomic_fetch_add(&counts->sent, 1, __ATOMIC_RELAXED);
    __atomic_fetch_add(&counts->sent_bytes, bytes, __ATOMIC_RELAXED);
    return DPT_OK;
}

/* A later message replaces one that the connection has not taken. */
static enum dpt_status send_state(struct rdzv_node *node, const Dpt__AgentState *state,
                                  struct dpt_err *err)
{
    size_t bytes = 0;
    DPT_TRY(
        dpt_message_encode(&state->base, node->host->buffer, DPT_MESSAGE_BYTES_MAX, &bytes, err));
    free(node->unsent);
    node->unsent = NULL;
    if (node->asked_counter == 0) {
        node->asked_counter = state->counter;
        node->asked_ns = dpt_now_ns();
    }
    const enum dpt_status status = send_bytes(node, node->host->buffer, bytes, err);
    if (status != DPT_INPROGRESS)
        return status;
    node->asked_counter = 0;
    if (!node->up)
        return DPT_OK;
    node->unsent = malloc(bytes);
    if (node->unsent == NULL)
        return dpt_fail_nomem(err, "message of %zu bytes", bytes);
    memcpy(node->unsent, node->host->buffer, bytes);
    node->unsent_bytes = bytes;
    node->retry_ms = dpt_now_ms() + RETRY_MS;
    return DPT_OK;
}

static enum dpt_status carry_out(struct rdzv_node *node, const struct dpt_agent_action *action,
                                 struct dpt_err *err)
{
    switch (action->kind) {
    case DPT_AGENT_ACTION_SPAWN:
        rdzv_rank_start(&node->ranks[action->local_rank], action->spawn, node->ready);
        return DPT_OK;
    case DPT_AGENT_ACTION_KILL:
        node->ranks[action->local_rank].killed = true;
        return DPT_OK;
    case DPT_AGENT_ACTION_EXIT:
        return dpt_fail(err, DPT_EPEER, "its agent ended with code %d%s%s", action->exit_code,
                        action->text[0] != '\0' ? ": " : "", action->text);
    default:
        return dpt_fail(err, DPT_EPROTO, "the agent asks for action %d, which it never needs here",
                        (int)action->kind);
    }
}

static enum dpt_status step_agent(struct rdzv_node *node, struct dpt_agent_event event,
                                  struct dpt_err *err)
{
    struct dpt_agent_output out;
    event.now_ms = dpt_now_ms();
    DPT_TRY(dpt_agent_step(node->agent, &event, &out, err));
    node->due_ms = out.deadline_ms;
    for (size_t i = 0; i < out.n_logs; i++)
        dpt_log(DPT_LOG_DEBUG, "n%d: %s", node->index, out.logs[i].text);
    for (size_t i = 0; i < out.n_actions; i++)
        DPT_TRY(carry_out(node, &out.actions[i], err));
    for (size_t i = 0; i < out.n_to_ranks; i++)
        command_rank(node, &out.to_ranks[i], event.now_ms);
    if (out.to_server == NULL)
        return DPT_OK;
    if (event.kind == DPT_AGENT_EVENT_TICK && node->up)
        __atomic_fetch_add(&node->host->client->counts.beats, 1, __ATOMIC_RELAXED);
    return send_state(node, out.to_server, err);
}

static enum dpt_status report_rank(struct rdzv_node *node, uint32_t local, struct dpt_err *err)
{
    struct rdzv_rank *rank = &node->ranks[local];
    struct rdzv_rank_report report;
    rank->reported_ms = dpt_now_ms();
    rdzv_rank_print(rank, node->index, local, rank->reported_ms, &report);
    return step_agent(node,
                      (struct dpt_agent_event){.kind = DPT_AGENT_EVENT_RANK_MESSAGE,
                                               .local_rank = local,
                                               .spawn = rank->spawn,
                                               .rank_message = &report.message},
                      err);
}

/* Takes an event, then what the ranks say to it, until they have nothing more to say: a rank
 * changes its phase at most four times in a generation. */
static enum dpt_status feed(struct rdzv_node *node, struct dpt_agent_event event,
                            struct dpt_err *err)
{
    DPT_TRY(step_agent(node, event, err));
    for (bool again = true; again;) {
        again = false;
        for (uint32_t i = 0; i < (uint32_t)n_ranks(node); i++) {
            struct rdzv_rank *rank = &node->ranks[i];
            const bool killed = rank->killed, due = rank->due;
            again = again || killed || due;
            rank->killed = rank->due = false;
            if (killed)
                DPT_TRY(step_agent(node,
                                   (struct dpt_agent_event){.kind = DPT_AGENT_EVENT_RANK_EXITED,
                                                            .local_rank = i,
                                                            .spawn = rank->spawn,
                                                            .exit_code = -9},
                                   err));
            else if (due)
                DPT_TRY(report_rank(node, i, err));
        }
    }
    return DPT_OK;
}

/* ---- messages of the server ---- */

/* Times of answers are of single messages: the next is timed after the answer to the last. */
static void note_answer(struct rdzv_node *node, uint64_t counter_seen)
{
    struct rdzv_client *client = node->host->client;
    if (node->asked_counter == 0 || counter_seen < node->asked_counter)
        return;
    const uint64_t n = __atomic_fetch_add(&client->n_samples, 1, __ATOMIC_RELAXED);
    client->answer_us[n % RDZV_SAMPLES_MAX] = (float)(dpt_now_ns() - node->asked_ns) * 1e-3F;
    node->asked_counter = 0;
}

/* No node of the bench leaves, and none has a config of its own. */
static enum dpt_status check_phase(const Dpt__ServerState *message, struct dpt_err *err)
{
    const ProtobufCEnumValue *phase =
        protobuf_c_enum_descriptor_get_value(&dpt__server_phase__descriptor, message->phase);
    switch (message->phase) {
    case DPT__SERVER_PHASE__SERVER_DONE:
    case DPT__SERVER_PHASE__SERVER_FAILED:
    case DPT__SERVER_PHASE__SERVER_EXPELLED:
    case DPT__SERVER_PHASE__SERVER_REFUSED:
    case DPT__SERVER_PHASE__SERVER_RELEASED:
        return dpt_fail(err, DPT_EPEER, "the server says %s%s%s", phase->name,
                        message->text[0] != '\0' ? ": " : "", message->text);
    default:
        return DPT_OK;
    }
}

static enum dpt_status take_message(struct rdzv_node *node, const struct dpt_client_event *event,
                                    struct dpt_err *err)
{
    struct rdzv_counts *counts = &node->host->client->counts;
    Dpt__ServerState *message = NULL;
    __atomic_fetch_add(&counts->received, 1, __ATOMIC_RELAXED);
    __atomic_fetch_add(&counts->received_bytes, event->bytes, __ATOMIC_RELAXED);
    DPT_TRY(dpt_message_decode_server_state(event->message, event->bytes, &message, err));
    struct rdzv_record *record = record_of(node);
    if (message->counter_seen > 0 && record->joined_ns == 0)
        __atomic_store_n(&record->joined_ns, dpt_now_ns(), __ATOMIC_RELEASE);
    note_answer(node, message->counter_seen);
    enum dpt_status status = check_phase(message, err);
    if (status == DPT_OK)
        status = feed(node,
                      (struct dpt_agent_event){.kind = DPT_AGENT_EVENT_SERVER_MESSAGE,
                                               .server_message = message},
                      err);
    dpt_message_free_server_state(&message);
    return status;
}

/* Says which node an error is about. */
static enum dpt_status named(const struct rdzv_node *node, enum dpt_status status,
                             struct dpt_err *err)
{
    return dpt_wrap(err, status, "node n%d", node->index);
}

static enum dpt_status take_events(struct rdzv_node *node, struct dpt_err *err)
{
    for (;;) { /* ends: the client keeps a bounded number of messages */
        struct dpt_client_event event;
        const enum dpt_status status = dpt_client_next(node->connection, &event, err);
        if (status != DPT_OK)
            return status == DPT_INPROGRESS ? DPT_OK : status;
        if (event.kind == DPT_CLIENT_MESSAGE) {
            DPT_TRY(take_message(node, &event, err));
            continue;
        }
        node->up = event.kind == DPT_CLIENT_UP;
        node->was_up = node->was_up || node->up;
        node->asked_counter = 0;
        DPT_TRY(feed(node,
                     (struct dpt_agent_event){.kind = node->up ? DPT_AGENT_EVENT_SERVER_UP
                                                               : DPT_AGENT_EVENT_SERVER_DOWN},
                     err));
    }
}

enum dpt_status rdzv_node_read(struct rdzv_node *node, struct dpt_err *err)
{
    return named(node, take_events(node, err), err);
}

static enum dpt_status send_again(struct rdzv_node *node, struct dpt_err *err)
{
    const enum dpt_status status = send_bytes(node, node->unsent, node->unsent_bytes, err);
    node->retry_ms = dpt_now_ms() + RETRY_MS;
    if (status == DPT_INPROGRESS)
        return DPT_OK;
    free(node->unsent);
    node->unsent = NULL;
    return status;
}

enum dpt_status rdzv_node_tick(struct rdzv_node *node, struct dpt_err *err)
{
    if (node->was_up)
        dpt_client_tick(node->connection, dpt_now_ms());
    enum dpt_status status =
        feed(node, (struct dpt_agent_event){.kind = DPT_AGENT_EVENT_TICK}, err);
    if (status == DPT_OK && node->unsent != NULL)
        status = send_again(node, err);
    /* Sending may take the signal that a message has come: descriptors are edge-triggered. */
    if (status == DPT_OK)
        status = take_events(node, err);
    return named(node, status, err);
}

enum dpt_status rdzv_node_make_ready(struct rdzv_node *node, struct dpt_err *err)
{
    node->ready = true;
    for (int i = 0; i < n_ranks(node); i++)
        rdzv_rank_make_ready(&node->ranks[i]);
    return rdzv_node_tick(node, err);
}

enum dpt_status rdzv_node_break(struct rdzv_node *node, const struct rdzv_lost *lost,
                                struct dpt_err *err)
{
    for (int i = 0; i < n_ranks(node); i++) {
        const int32_t place = node->ranks[i].plan_rank;
        const int32_t neighbour = place < 0 ? -1 : rdzv_lost_neighbour(lost, (uint32_t)place);
        rdzv_rank_break(&node->ranks[i], neighbour < 0 ? lost->first : neighbour);
    }
    return rdzv_node_tick(node, err);
}

/* ---- start and end ---- */

/* The run: all of its nodes are needed but a rack, so that the loss of a rack leaves enough. The
 * first step has no deadline. */
static Dpt__RunSpec spec_of(const struct rdzv_setup *setup)
{
    Dpt__RunSpec spec = DPT__RUN_SPEC__INIT;
    spec.min_nodes = (uint32_t)(setup->nodes - setup->rack);
    spec.max_nodes = (uint32_t)setup->nodes;
    spec.timeout_ms = (uint32_t)setup->timeout_ms;
    spec.drain_ms = (uint32_t)setup->drain_ms;
    spec.max_restarts = UINT16_MAX;
    spec.max_world = (uint32_t)(setup->nodes * setup->ranks);
    spec.config_digest = (char *)(uintptr_t) "bench";
    spec.config_yaml = (char *)(uintptr_t) "run: bench\n";
    spec.user = (char *)(uintptr_t) "bench";
    return spec;
}

static enum dpt_status configure(struct rdzv_node *node, uint64_t incarnation, struct dpt_err *err)
{
    const struct rdzv_setup *setup = &node->host->shared->setup;
    const Dpt__RunSpec spec = spec_of(setup);
    struct dpt_agent_facts facts = {.spec = &spec,
                                    .n_ranks = (uint32_t)setup->ranks,
                                    .fingerprint = "bench",
                                    .checkpoint_dir_id = "checkpoints",
                                    .data_digest = "bench",
                                    .incarnation = incarnation,
                                    .secret = {1, (uint8_t)node->index, (uint8_t)(node->index >> 8),
                                               (uint8_t)(node->index >> 16)}};
    (void)snprintf(facts.host, sizeof facts.host, "host-%d", node->index);
    (void)snprintf(facts.host_name, sizeof facts.host_name, "host-%d", node->index);
    (void)snprintf(facts.log_dir_id, sizeof facts.log_dir_id, "logs-%d", node->index);
    return feed(node, (struct dpt_agent_event){.kind = DPT_AGENT_EVENT_CONFIGURED, .facts = &facts},
                err);
}

static enum dpt_status start_node(struct rdzv_node *node, uint64_t incarnation, struct dpt_err *err)
{
    const struct rdzv_setup *setup = &node->host->shared->setup;
    const struct dpt_timing timing = dpt_timing_from(setup->timeout_ms, setup->drain_ms);
    char id[16];
    (void)snprintf(id, sizeof id, "n%d", node->index);
    const struct dpt_agent_options options = {.run = run_name,
                                              .node = id,
                                              .software = "dpt-bench",
                                              .incarnation = incarnation,
                                              .timeout_ms = setup->timeout_ms,
                                              .now_ms = dpt_now_ms()};
    node->report_ms = timing.lease_ms / REPORTS_OF_LEASE;
    DPT_TRY(dpt_agent_create(&options, &node->agent, err));
    /* As dpt-worker: half of the timeout. */
    DPT_TRY(dpt_client_create_in(node->host->group, setup->endpoint, (int)(setup->timeout_ms / 2),
                                 &node->host->keys, &node->connection, err));
    return configure(node, incarnation, err);
}

enum dpt_status rdzv_node_create(const struct rdzv_host *host, int index, uint64_t incarnation,
                                 bool ready, struct rdzv_node **ret, struct dpt_err *err)
{
    struct rdzv_node *node = calloc(1, sizeof *node);
    if (node == NULL)
        return dpt_fail_nomem(err, "node n%d", index);
    node->host = host;
    node->index = index;
    node->ready = ready;
    const enum dpt_status status = named(node, start_node(node, incarnation, err), err);
    if (status != DPT_OK)
        rdzv_node_destroy(&node);
    else
        *ret = node;
    return status;
}

void rdzv_node_destroy(struct rdzv_node **node_p)
{
    struct rdzv_node *node = *node_p;
    *node_p = NULL;
    if (node == NULL)
        return;
    dpt_client_destroy(&node->connection);
    dpt_agent_destroy(&node->agent);
    free(node->unsent);
    free(node);
}

const struct dpt_client *rdzv_node_connection(const struct rdzv_node *node)
{
    return node->connection;
}

int64_t rdzv_node_due_ms(const struct rdzv_node *node)
{
    return node->unsent != NULL && node->retry_ms < node->due_ms ? node->retry_ms : node->due_ms;
}
