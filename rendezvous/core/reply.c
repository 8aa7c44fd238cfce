/* Replies to nodes and to processes that are not nodes. */
#include "rendezvous/core/reply.h"

#include "rendezvous/core/kept.h"

#include "rendezvous/core/queries.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { REFUSED_LINES_MAX = 32, REFUSED_LINES_MS = 10000, OPEN_RUNS_NAMED = 8 };
_Static_assert((OPEN_RUNS_NAMED + 1) * (DPT_PROTO_NAME_BYTES + 2) <= DPT_PROTO_TEXT_BYTES,
               "the names of the runs fit into a text");

/* ---- any message ---- */

/* A message to the run, node and incarnation of the stamp `to`. `text` may be NULL. */
static Dpt__ServerState *new_state(struct dpt_rdzv *core, const Dpt__Stamp *to,
                                   Dpt__ServerPhase phase, uint64_t generation, const char *text)
{
    Dpt__ServerState *state = dpt_outbox_alloc(&core->out, sizeof *state);
    Dpt__Stamp *stamp = dpt_outbox_alloc(&core->out, sizeof *stamp);
    char *run = dpt_outbox_text(&core->out, to->run);
    char *node = dpt_outbox_text(&core->out, to->node);
    char *line = dpt_outbox_text(&core->out, text != NULL ? text : "");
    if (core->out.no_memory)
        return NULL;
    dpt__server_state__init(state);
    dpt__stamp__init(stamp);
    stamp->epoch = core->epoch;
    stamp->run = run;
    stamp->generation = generation;
    stamp->node = node;
    stamp->incarnation = to->incarnation;
    state->version = DPT_PROTO_VERSION;
    state->stamp = stamp;
    state->phase = phase;
    state->text = line;
    state->grant_step = -1;
    return state;
}

/* In a message 0 means that there is no step. */
static int64_t at_least_0(int64_t step)
{
    return step > 0 ? step : 0;
}

/* ---- processes that are not nodes ---- */

bool dpt_rdzv_may_see(const struct inquiry *from, const struct run *run)
{
    const char *only = from->only_run;
    return only == NULL || only[0] == '\0' || strcmp(only, run->name) == 0;
}

/* The runs in progress in which the sender may take part. */
struct open_runs {
    uint32_t n;
    const struct run *first;
    char names[DPT_PROTO_TEXT_BYTES]; /* of OPEN_RUNS_NAMED at most: "rq1, rq2" */
};

static void list_open_runs(const struct inquiry *from, struct open_runs *ret)
{
    const struct dpt_rdzv *core = from->core;
    size_t used = 0;
    *ret = (struct open_runs){0};
    for (size_t i = 0; i < core->n_runs; i++) {
        const struct run *run = core->runs[i];
        if (dpt_rdzv_has_ended(run) || !dpt_rdzv_may_see(from, run))
            continue;
        if (ret->n++ == 0)
            ret->first = run;
        if (ret->n <= OPEN_RUNS_NAMED)
            used += (size_t)snprintf(ret->names + used, sizeof ret->names - used, "%s%s",
                                     ret->n == 1 ? "" : ", ", run->name);
    }
    if (ret->n > OPEN_RUNS_NAMED)
        (void)snprintf(ret->names + used, sizeof ret->names - used, " and %u more",
                       (unsigned)(ret->n - OPEN_RUNS_NAMED));
}

/* The message borrows the spec and the name of a run, which stay until the next step. */
void dpt_rdzv_answer_outsider(const struct inquiry *from, const struct answer *answer)
{
    struct dpt_rdzv *core = from->core;
    const struct run *run = answer->run;
    struct open_runs open = {0};
    if (answer->with_spec && from->message->spec == NULL)
        list_open_runs(from, &open);
    Dpt__ServerState *state = new_state(core, from->message->stamp, answer->phase, 0,
                                        open.n > 1 ? open.names : answer->text);
    if (state == NULL)
        return;
    state->n_runs = open.n;
    if (run != NULL && answer->with_spec)
        state->spec = (Dpt__RunSpec *)&run->spec;
    if (run != NULL)
        state->n_nodes = (uint32_t)run->n_nodes;
    else if (open.n == 1)
        state->only_run = (char *)open.first->name;
    if (run != NULL && (answer->phase == DPT__SERVER_PHASE__SERVER_EXPELLED || answer->stopped)) {
        state->saved_step = at_least_0(run->progress.saved_step);
        state->world_step = at_least_0(answer->world_step);
    }
    if (run == NULL && answer->stopped)
        state->saved_step = at_least_0(answer->saved_step);
    state->last_holder = answer->stopped;
    state->status = answer->status;
    state->reply = answer->reply;
    dpt_outbox_send(&core->out, from->conn, state);
}

void dpt_rdzv_log_refused(const struct inquiry *from, const struct run *run, const char *why)
{
    struct dpt_rdzv *core = from->core;
    struct refused_lines *lines = &core->refused_lines;
    if (core->now_ms - lines->since_ms >= REFUSED_LINES_MS) {
        if (lines->n > REFUSED_LINES_MAX)
            dpt_rdzv_log(run, DPT_LOG_WARN, "%" PRIu64 " further refusals were not logged",
                         lines->n - REFUSED_LINES_MAX);
        *lines = (struct refused_lines){.since_ms = core->now_ms};
    }
    if (lines->n++ < REFUSED_LINES_MAX)
        dpt_rdzv_log(run, DPT_LOG_WARN, "node %s refused: %s", from->message->stamp->node, why);
}

/* ---- nodes ---- */

Dpt__ServerPhase dpt_rdzv_phase_told(const struct run *run)
{
    static const Dpt__ServerPhase phases[DPT_RDZV_PHASE_COUNT] = {
        [DPT_RDZV_WAITING] = DPT__SERVER_PHASE__SERVER_WAITING,
        [DPT_RDZV_SETTLING] = DPT__SERVER_PHASE__SERVER_SETTLING,
        [DPT_RDZV_PREPARING] = DPT__SERVER_PHASE__SERVER_PREPARE,
        [DPT_RDZV_PLANNED] = DPT__SERVER_PHASE__SERVER_PLAN,
        [DPT_RDZV_RUNNING] = DPT__SERVER_PHASE__SERVER_RUNNING,
        [DPT_RDZV_DRAINING] = DPT__SERVER_PHASE__SERVER_DRAINING,
        [DPT_RDZV_DONE] = DPT__SERVER_PHASE__SERVER_DONE,
        [DPT_RDZV_FAILED] = DPT__SERVER_PHASE__SERVER_FAILED};
    return phases[run->phase];
}

static Dpt__ServerPhase server_phase_for(const struct run *run, bool placed)
{
    const bool has_world = run->phase == DPT_RDZV_PLANNED || run->phase == DPT_RDZV_RUNNING ||
                           run->phase == DPT_RDZV_DRAINING;
    return has_world && !placed ? DPT__SERVER_PHASE__SERVER_SPARE : dpt_rdzv_phase_told(run);
}

static const char *text_for(const struct run *run)
{
    return run->phase == DPT_RDZV_FAILED      ? run->end_text
           : run->phase == DPT_RDZV_PREPARING ? run->formation.cause.text
           : run->phase == DPT_RDZV_SETTLING  ? dpt_rdzv_last_call_reason(run)
                                              : "";
}

/* A message to a node; its counter lets the node detect an older message. */
static Dpt__ServerState *new_node_state(const struct run *run, const struct node *node,
                                        Dpt__ServerPhase phase, const char *text)
{
    const Dpt__Stamp to = {
        .run = (char *)run->name, .node = (char *)node->id, .incarnation = node->incarnation};
    Dpt__ServerState *state = new_state(run->core, &to, phase, run->generation, text);
    if (state == NULL)
        return NULL;
    state->counter = ++run->core->counter;
    state->counter_seen = node->link.counter_seen;
    return state;
}

static void answer_node(struct run *run, struct node *node)
{
    const struct plan *plan = &run->plan;
    const bool placed =
        !dpt_rdzv_has_ended(run) && plan->in_force && node->placed_generation == plan->generation;
    Dpt__ServerState *state =
        new_node_state(run, node, server_phase_for(run, placed), text_for(run));
    if (state == NULL)
        return;
    state->soft = run->phase == DPT_RDZV_PREPARING && run->formation.soft;
    state->n_nodes = (uint32_t)run->n_nodes;
    state->saved_step = at_least_0(run->progress.saved_step);
    state->restarts_left = dpt_rdzv_restarts_left(run);
    state->heartbeat_ms = (uint32_t)dpt_rdzv_beat_ms(run);
    state->drain = node->order == NODE_ORDER_DRAIN;
    state->save_from = dpt_rdzv_save_wanted(run);
    state->paused = dpt_rdzv_is_held(run);
    state->dump = dpt_rdzv_dump_wanted(run);
    state->last_holder = run->phase == DPT_RDZV_DONE && run->kept.stopped;
    if (run->phase == DPT_RDZV_SETTLING) {
        const int64_t left_ms = dpt_rdzv_last_call_until_ms(run) - run->core->now_ms;
        state->last_call_ms = left_ms > 0 ? (uint32_t)left_ms : 0;
    }
    if (placed)
        state->grant_step = dpt_rdzv_granted_step(run);
    if (placed && !plan->adopted && run->phase != DPT_RDZV_PREPARING &&
        strcmp(node->plan_digest, plan->digest) != 0) {
        state->plan = dpt_rdzv_plan_for(run, node);
        if (state->plan == NULL)
            return;
    }
    dpt_outbox_send(&run->core->out, node->link.conn, state);
    node->link.answered_ms = run->core->now_ms;
}

/* While a generation forms, each node reports several times, and the next order is the answer. So a
 * server of many nodes does not answer a node that it has sent something within half of a pause. A
 * node that is alive hears something in less than two pauses. */
static bool is_answer_needed(const struct run *run, const struct node *node)
{
    const int64_t pause_ms = dpt_rdzv_beat_ms(run);
    const bool forms =
        run->phase == DPT_RDZV_PREPARING || run->phase == DPT_RDZV_PLANNED ||
        (run->phase == DPT_RDZV_RUNNING && run->plan.n_running < (int)run->plan.world_size);
    return !forms || node->leaving || pause_ms <= run->timing.heartbeat_ms ||
           node->link.answered_ms < 0 || run->core->now_ms - node->link.answered_ms >= pause_ms / 2;
}

void dpt_rdzv_answer_nodes(struct run *run)
{
    struct node *speaker = run->speaker;
    if (speaker != NULL && !run->changed && speaker->link.conn != 0 &&
        is_answer_needed(run, speaker))
        answer_node(run, speaker);
    for (size_t i = 0; run->changed && i < run->n_nodes; i++)
        if (run->nodes[i]->link.conn != 0)
            answer_node(run, run->nodes[i]);
    run->changed = false;
    run->speaker = NULL;
}

void dpt_rdzv_answer_evicted(const struct run *run, const struct node *node, int64_t world_step)
{
    Dpt__ServerState *state = node->link.conn == 0
                                  ? NULL
                                  : new_node_state(run, node, DPT__SERVER_PHASE__SERVER_EXPELLED,
                                                   "evicted by an operator");
    if (state == NULL)
        return;
    state->saved_step = at_least_0(run->progress.saved_step);
    state->world_step = at_least_0(world_step);
    dpt_outbox_send(&run->core->out, node->link.conn, state);
}

static void send_released(struct dpt_rdzv *core, uint64_t conn, Dpt__ServerState *state,
                          const struct departed *departed)
{
    if (state == NULL)
        return;
    state->last_holder = departed->last_holder;
    state->n_nodes = departed->n_nodes;
    dpt_outbox_send(&core->out, conn, state);
}

void dpt_rdzv_answer_released(const struct run *run, const struct node *node,
                              const struct departed *departed)
{
    if (node->link.conn != 0)
        send_released(run->core, node->link.conn,
                      new_node_state(run, node, DPT__SERVER_PHASE__SERVER_RELEASED, NULL),
                      departed);
}

void dpt_rdzv_answer_released_again(const struct inquiry *from, const struct departed *departed)
{
    send_released(
        from->core, from->conn,
        new_state(from->core, from->message->stamp, DPT__SERVER_PHASE__SERVER_RELEASED, 0, NULL),
        departed);
}
