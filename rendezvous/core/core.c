/* Events in, decisions out: the highest layer of the server's machine. */
#include "rendezvous/core/core.h"

#include "rendezvous/core/advance.h"
#include "rendezvous/core/apply.h"
#include "rendezvous/core/control.h"
#include "rendezvous/core/join.h"
#include "rendezvous/core/queries.h"
#include "rendezvous/core/reply.h"
#include "rendezvous/core/restart.h"
#include "rendezvous/core/rules.h"
#include "rendezvous/core/run_state.h"
#include "rendezvous/core/tally.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    IDLE_TICK_MS = 1000,
    PACE_MS = 1000,  /* between two changes of the pace: agents need as long to follow */
    OVERLOAD_MAX = 8 /* the period has a limit of its own (dpt_timing_beat_ms) */
};

enum dpt_status dpt_rdzv_create(const struct dpt_rdzv_options *options, struct dpt_rdzv **ret,
                                struct dpt_err *err)
{
    DPT_ASSERT(options->epoch != 0);
    struct dpt_rdzv *core = calloc(1, sizeof *core);
    if (core == NULL)
        return dpt_fail_nomem(err, "rendezvous server");
    core->epoch = options->epoch;
    core->fresh = options->fresh;
    core->nodes_max = options->nodes_max != 0 ? options->nodes_max : DPT_PROTO_NODES_MAX;
    core->world_max = options->world_max != 0 ? options->world_max : DPT_PROTO_WORLD_MAX;
    core->start_ms = core->now_ms = options->now_ms;
    core->hearing =
        (struct hearing){.heard_ms = options->now_ms, .outsiders_since_ms = -1, .outsider_ms = -1};
    core->deadline_ms = options->now_ms + IDLE_TICK_MS;
    *ret = core;
    return DPT_OK;
}

void dpt_rdzv_destroy(struct dpt_rdzv **core)
{
    if (*core == NULL)
        return;
    for (size_t i = 0; i < (*core)->n_runs; i++)
        dpt_rdzv_run_destroy(&(*core)->runs[i]);
    dpt_rdzv_index_fini(&(*core)->conns);
    dpt_outbox_fini(&(*core)->out);
    free(*core);
    *core = NULL;
}

/* ---- time ---- */

/* Moves a time. A time below 0 means that there is none. */
static void shift_time(int64_t *at_ms, int64_t gap_ms)
{
    if (*at_ms >= 0)
        *at_ms += gap_ms;
}

/* This process was suspended or starved for gap_ms. The silence of nodes during that time proves
 * nothing, so every deadline of the server moves by gap_ms. leaving_ms does not move, because the
 * agent measures the time of a leaving node. */
static void shift_run_deadlines(struct run *run, int64_t gap_ms)
{
    struct formation *formation = &run->formation;
    int64_t *const times[] = {&run->phase_ms,
                              &run->membership.empty_ms,
                              &formation->plan_after_ms,
                              &formation->adopt_until_ms,
                              &formation->regather_until_ms,
                              &formation->waits_since_ms};
    for (size_t i = 0; i < sizeof times / sizeof times[0]; i++)
        shift_time(times[i], gap_ms);
    for (size_t i = 0; i < run->n_nodes; i++) {
        struct node *node = run->nodes[i];
        shift_time(&node->link.heard_ms, gap_ms);
        shift_time(&node->link.broken_ms, gap_ms);
        shift_time(&node->ready_since_ms, gap_ms);
        shift_time(&node->exclusion.until_ms, gap_ms);
    }
    dpt_rdzv_forget_late_nodes(run);
}

static void advance_clock(struct dpt_rdzv *core, int64_t now_ms)
{
    DPT_ASSERT(now_ms >= core->now_ms);
    const int64_t expected_ms = core->deadline_ms > core->now_ms ? core->deadline_ms : core->now_ms;
    const int64_t gap_ms = now_ms - expected_ms;
    if (gap_ms > 0) {
        core->hearing.heard_ms += gap_ms;
        shift_time(&core->hearing.outsiders_since_ms, gap_ms);
        shift_time(&core->hearing.outsider_ms, gap_ms);
        core->start_ms += gap_ms; /* gives nodes of an earlier server more time to come back */
    }
    for (size_t i = 0; i < core->n_runs; i++) {
        struct run *run = core->runs[i];
        if (gap_ms <= run->timing.gap_ms)
            continue;
        shift_run_deadlines(run, gap_ms);
        dpt_rdzv_log(run, DPT_LOG_WARN,
                     "the server was suspended or starved for %lld ms: all deadlines move by that "
                     "time",
                     (long long)gap_ms);
    }
    core->now_ms = now_ms;
}

/* ---- runs that are over ---- */

/* True: an operator has stopped the run, and it waits for a node with steps that are not saved. */
static bool is_kept_for_steps(const struct run *run)
{
    return run->kept.stopped && !run->requests.leave_unsaved &&
           dpt_rdzv_step_without_checkpoint(run) > 0;
}

/* True: the server forgets the run. It forgets an ended run that has had no node for grace_ms, or
 * that ended forget_ms ago. It keeps a stopped run whose newest steps are not saved. It forgets any
 * other run that has had no node for forget_ms, or after a restart, when the nodes have to connect
 * again, for join_ms. */
static bool is_run_over(struct run *run)
{
    const struct dpt_timing *timing = &run->timing;
    const bool ended = dpt_rdzv_has_ended(run);
    const int64_t alone_ms = ended                         ? timing->grace_ms
                             : dpt_rdzv_knows_members(run) ? timing->join_ms
                                                           : timing->forget_ms;
    const bool is_kept = ended ? run->kept.n_nodes > 0 /* members are told of the end */
                               : is_kept_for_steps(run);
    int64_t *empty_ms = &run->membership.empty_ms;
    if (run->n_nodes > 0 || is_kept)
        *empty_ms = -1;
    else if (*empty_ms < 0)
        *empty_ms = run->core->now_ms;
    return (*empty_ms >= 0 && run->core->now_ms - *empty_ms >= alone_ms) ||
           (ended && run->core->now_ms - run->phase_ms >= timing->forget_ms);
}

static void forget_runs(struct dpt_rdzv *core)
{
    for (size_t i = core->n_runs; i-- > 0;) {
        struct run *run = core->runs[i];
        if (!is_run_over(run))
            continue;
        dpt_rdzv_log(run, DPT_LOG_INFO, "run is over, its name is free");
        dpt_rdzv_forget_run(core, i);
    }
}

/* ---- events ---- */

static void refuse_version(const struct inquiry *from)
{
    char text[DPT_PROTO_TEXT_BYTES];
    (void)snprintf(text, sizeof text,
                   "this program (%s) speaks protocol %u, the server protocol %d: install the same "
                   "version on both",
                   from->message->software, from->message->version, DPT_PROTO_VERSION);
    const struct answer answer = {.phase = DPT__SERVER_PHASE__SERVER_REFUSED, .text = text};
    dpt_rdzv_answer_outsider(from, &answer);
}

/* Takes a message, which is the whole state of its sender. The message is ignored unless it is
 * newer than the last one of the same (node, incarnation). */
static void take_node_message(struct run *run, struct node *node, const struct inquiry *from,
                              bool joins)
{
    dpt_rdzv_heard_node(run, node);
    node->link.counter_seen = from->message->counter;
    dpt_rdzv_set_conn(node, from->conn);
    run->speaker = node;
    const Dpt__Stamp *stamp = from->message->stamp;
    node = dpt_rdzv_take_report(run, node, from);
    if (node == NULL || !joins)
        return;
    if (node->expected)
        dpt_rdzv_ask_node(run, node);
    else if (dpt_rdzv_is_own_epoch(run->core, stamp->epoch) && stamp->generation > 0)
        dpt_rdzv_node_returned(run, node);
}

/* Answers a node that tells a generation so high that later ones would not fit into a message. The
 * limit leaves a run that has come near it by the word of a node room to go on. */
static bool answer_false_generation(const struct inquiry *from, const struct run *run)
{
    const uint64_t told = from->message->stamp->generation;
    char text[DPT_PROTO_TEXT_BYTES];
    if (told <= DPT_PROTO_TOLD_GENERATION || (run != NULL && told <= dpt_rdzv_highest_number(run)))
        return false;
    (void)snprintf(text, sizeof text,
                   "this node says that generation %" PRIu64 " has been formed, but no run has "
                   "formed so many: start dpt-worker again",
                   told);
    const struct answer answer = {.phase = DPT__SERVER_PHASE__SERVER_REFUSED, .text = text};
    dpt_rdzv_answer_outsider(from, &answer);
    return true;
}

static void handle_message(const struct inquiry *from)
{
    struct dpt_rdzv *core = from->core;
    const Dpt__Stamp *stamp = from->message->stamp;
    const bool is_own_version = from->message->version == DPT_PROTO_VERSION;
    if (is_own_version && from->message->control != NULL && !from->message->asks_status) {
        dpt_rdzv_take_control(from);
        return;
    }
    if (dpt_rdzv_answer_other_run(from))
        return;
    if (is_own_version && from->message->asks_status) {
        dpt_rdzv_answer_status(from);
        return;
    }
    dpt_rdzv_heard_outsider(core); /* holds until the message proves to be from a node */
    if (!is_own_version) {
        refuse_version(from);
        return;
    }
    struct run *run = dpt_rdzv_find_run(core, stamp->run);
    struct node *node = run == NULL ? NULL : dpt_rdzv_find_node(run, stamp->node);
    if (run != NULL && dpt_rdzv_answer_other_key(from, run, node))
        return;
    if (answer_false_generation(from, run))
        return;
    const bool own = node != NULL && dpt_rdzv_is_own(node, from->message);
    if (own && stamp->incarnation < node->incarnation) {
        const struct answer answer = {.phase = DPT__SERVER_PHASE__SERVER_EXPELLED,
                                      .run = run,
                                      .text = "a newer incarnation of this node is here"};
        dpt_rdzv_answer_outsider(from, &answer);
        return;
    }
    const bool joins = !own || stamp->incarnation > node->incarnation;
    if (joins)
        node = dpt_rdzv_admit(from, &run, node);
    if (node != NULL && from->message->counter <= node->link.counter_seen)
        return; /* a repeated message, or one that a later one overtook */
    if (node != NULL)
        take_node_message(run, node, from, joins);
    if (run != NULL)
        dpt_rdzv_advance(run);
}

/* Messages are still unread at a TICK: agents shall send half as often. After PACE_MS without
 * such a TICK they may send twice as often. */
static void set_pace(struct dpt_rdzv *core, bool backlog)
{
    struct pace *pace = &core->pace;
    const bool due = core->now_ms - pace->since_ms >= PACE_MS;
    if (backlog && (due || pace->overload == 0) && pace->overload < OVERLOAD_MAX)
        *pace = (struct pace){.overload = pace->overload + 1, .since_ms = core->now_ms};
    else if (!backlog && due && pace->overload > 0)
        *pace = (struct pace){.overload = pace->overload - 1, .since_ms = core->now_ms};
}

static void handle_tick(struct dpt_rdzv *core, bool backlog)
{
    set_pace(core, backlog);
    for (size_t i = 0; i < core->n_runs; i++) {
        dpt_rdzv_note_late_nodes(core->runs[i]);
        if (!backlog) {
            dpt_rdzv_give_up_members(core->runs[i]);
            dpt_rdzv_judge_losses(core->runs[i]);
            dpt_rdzv_tell_unheard(core->runs[i]);
        }
        dpt_rdzv_advance(core->runs[i]);
    }
    forget_runs(core);
}

static void finish_step(struct dpt_rdzv *core, struct dpt_rdzv_output *ret)
{
    core->deadline_ms = core->now_ms + IDLE_TICK_MS;
    for (size_t i = 0; i < core->n_runs; i++) {
        dpt_rdzv_answer_nodes(core->runs[i]);
        int64_t due_ms = dpt_rdzv_due_ms(core->runs[i]);
        if (due_ms < core->deadline_ms)
            core->deadline_ms = due_ms;
    }
    *ret = (struct dpt_rdzv_output){
        .records = core->out.records,
        .n_records = core->out.n_records,
        .sends = core->out.sends,
        .n_sends = core->out.n_sends,
        .logs = core->out.logs,
        .n_logs = core->out.n_logs,
        .deadline_ms = core->deadline_ms,
    };
}

static void handle_event(struct dpt_rdzv *core, const struct dpt_rdzv_event *event)
{
    switch (event->kind) {
    case DPT_RDZV_EVENT_MESSAGE:
        DPT_ASSERT(event->conn != 0 && event->message != NULL);
        handle_message(&(struct inquiry){.core = core,
                                         .conn = event->conn,
                                         .message = event->message,
                                         .key = event->key,
                                         .join_only = event->join_only,
                                         .only_run = event->only_run});
        break;
    case DPT_RDZV_EVENT_BROKEN:
        dpt_rdzv_connection_broke(core, event->conn);
        break;
    case DPT_RDZV_EVENT_DENIED:
        dpt_rdzv_note_denied(core, event->conn);
        break;
    case DPT_RDZV_EVENT_TICK:
        handle_tick(core, event->backlog);
        break;
    default:
        DPT_ASSERT(false);
    }
}

enum dpt_status dpt_rdzv_step(struct dpt_rdzv *core, const struct dpt_rdzv_event *event,
                              struct dpt_rdzv_output *ret, struct dpt_err *err)
{
    dpt_outbox_reset(&core->out);
    core->random = event->random;
    advance_clock(core, event->now_ms);
    if (!core->started)
        dpt_rdzv_begin(core);
    handle_event(core, event);
    if (!core->out.no_memory)
        finish_step(core, ret);
    core->random = NULL; /* it belongs to the caller */
    if (core->out.no_memory)
        return dpt_fail_nomem(err, "rendezvous server, %zu runs", core->n_runs);
    return DPT_OK;
}

bool dpt_rdzv_is_member_conn(const struct dpt_rdzv *core, uint64_t conn)
{
    const struct node *node = dpt_rdzv_index_find(&core->conns, conn);
    return node != NULL && dpt_rdzv_node_is_member(node);
}
