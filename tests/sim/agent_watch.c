/* The watch of agent_watch.h. */
#include "tests/sim/agent_watch.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BROKEN_BYTES = 512, STARTS_MAX = 10 };

struct watched_proc {
    uint32_t spawn; /* newest */
    bool lives, killed, stood_by;
    uint32_t barren;            /* processes in a row that ended, or were ended, before they did */
    uint64_t quiesced, planned; /* newest generation that it has sent or received */
    uint64_t generation;        /* newest it was spoken to about */
};

struct agent_watch {
    const char *run, *node;
    bool decodes, stepped, ended, configured;
    int64_t now_ms, deadline_ms;
    struct dpt_agent_view view; /* after the newest step */
    struct watched_proc procs[DPT_PROTO_RANKS_MAX];
    uint64_t counter, generation;          /* last sent to the server */
    uint64_t server_counter, counter_seen; /* newest taken from the server in this incarnation */
    bool fenced;
    uint64_t fence_counter;
    /* causes to end */
    bool told_end, told_failed, told_refused, told_expelled, told_denied, fatal, died;
    unsigned signals;
    char broken[BROKEN_BYTES];
};

struct agent_watch *agent_watch_create(const char *run, const char *node, bool decodes)
{
    struct agent_watch *watch = calloc(1, sizeof *watch);
    DPT_ASSERT(watch != NULL);
    watch->run = run;
    watch->node = node;
    watch->decodes = decodes;
    return watch;
}

void agent_watch_destroy(struct agent_watch **watch)
{
    free(*watch);
    *watch = NULL;
}

static void broken(struct agent_watch *watch, const char *fmt, ...) DPT_PRINTF(2, 3);
static void broken(struct agent_watch *watch, const char *fmt, ...)
{
    if (watch->broken[0] != '\0')
        return;
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(watch->broken, sizeof watch->broken, fmt, ap);
    va_end(ap);
}

/* ---- input ---- */

/* For another incarnation, or older than the accepted message. */
static bool is_stale(const struct agent_watch *watch, const Dpt__ServerState *message)
{
    if (strcmp(message->stamp->run, watch->run) != 0 ||
        strcmp(message->stamp->node, watch->node) != 0 ||
        message->stamp->incarnation != watch->view.incarnation)
        return true;
    if (message->version != DPT_PROTO_VERSION || message->counter_seen == 0 ||
        watch->view.epoch == 0)
        return false;
    return message->stamp->epoch == watch->view.epoch
               ? message->counter <= watch->server_counter
               : message->counter_seen <= watch->counter_seen;
}

static void take_server(struct agent_watch *watch, const Dpt__ServerState *message)
{
    switch (message->phase) {
    case DPT__SERVER_PHASE__SERVER_DONE:
    case DPT__SERVER_PHASE__SERVER_RELEASED:
        watch->told_end = true;
        break;
    case DPT__SERVER_PHASE__SERVER_FAILED:
        watch->told_failed = true;
        break;
    case DPT__SERVER_PHASE__SERVER_REFUSED:
        watch->told_refused = true;
        break;
    case DPT__SERVER_PHASE__SERVER_EXPELLED:
        watch->told_expelled = true;
        break;
    default:
        break;
    }
    if (message->version != DPT_PROTO_VERSION) {
        watch->told_refused = true;
        return;
    }
    if (message->counter_seen == 0)
        return;
    watch->server_counter = message->counter;
    if (message->drain && watch->signals == 0)
        watch->signals = 1; /* an operator's word is a first signal */
    if (message->counter_seen > watch->counter_seen)
        watch->counter_seen = message->counter_seen;
    if (message->counter_seen > watch->fence_counter)
        watch->fenced = false;
}

static struct watched_proc *proc_of(struct agent_watch *watch, uint32_t local, uint32_t spawn)
{
    if (local >= DPT_PROTO_RANKS_MAX || watch->procs[local].spawn != spawn ||
        !watch->procs[local].lives)
        return NULL;
    return &watch->procs[local];
}

static void take_rank(struct agent_watch *watch, const struct dpt_agent_event *event)
{
    struct watched_proc *proc = proc_of(watch, event->local_rank, event->spawn);
    const Dpt__RankToAgent *message = event->rank_message;
    if (proc == NULL || proc->killed)
        return;
    if (message->state->phase == DPT__RANK_PHASE__RANK_QUIESCED)
        proc->quiesced = message->state->generation;
    if (message->state->phase != DPT__RANK_PHASE__RANK_STARTING) {
        proc->stood_by = true;
        proc->barren = 0;
    }
    watch->fatal = watch->fatal || message->fatal;
}

static void count_end(struct watched_proc *proc)
{
    if (!proc->killed && !proc->stood_by)
        proc->barren++;
}

/* The loop stood still: leave to write is over until the server has answered since. */
static void take_time(struct agent_watch *watch, int64_t now_ms)
{
    const struct dpt_timing *timing = &watch->view.timing;
    int64_t expected_ms = watch->deadline_ms > watch->now_ms ? watch->deadline_ms : watch->now_ms;
    int64_t gap_ms = now_ms - expected_ms;
    int64_t most_ms = watch->view.server_up ? timing->gap_ms : timing->lease_ms - timing->write_ms;
    if (!watch->stepped || gap_ms <= timing->gap_ms || gap_ms <= most_ms)
        return;
    watch->fenced = true;
    watch->fence_counter = watch->counter;
}

static void take_event(struct agent_watch *watch, const struct dpt_agent_event *event)
{
    struct watched_proc *proc = proc_of(watch, event->local_rank, event->spawn);
    take_time(watch, event->now_ms);
    switch (event->kind) {
    case DPT_AGENT_EVENT_CONFIGURED:
        watch->configured = true;
        break;
    case DPT_AGENT_EVENT_SERVER_MESSAGE:
        if (!is_stale(watch, event->server_message))
            take_server(watch, event->server_message);
        break;
    case DPT_AGENT_EVENT_RANK_MESSAGE:
        take_rank(watch, event);
        break;
    case DPT_AGENT_EVENT_RANK_EXITED:
        if (proc != NULL) {
            count_end(proc);
            proc->lives = false;
            watch->died = true;
            watch->fatal = watch->fatal || event->is_final;
        }
        break;
    case DPT_AGENT_EVENT_DISOWNED:
        watch->told_expelled = true;
        break;
    case DPT_AGENT_EVENT_SERVER_DENIES:
        watch->told_denied = event->text[0] != '\0';
        break;
    case DPT_AGENT_EVENT_SIGNAL:
        watch->signals++;
        break;
    default:
        break;
    }
}

/* ---- output ---- */

static bool is_excused(const struct agent_watch *watch, int code)
{
    switch (code) {
    case DPT_EXIT_DONE:
        return watch->told_end || watch->signals > 0;
    case DPT_EXIT_EXPELLED:
        return watch->told_expelled || watch->told_refused || watch->told_end ||
               watch->signals > 0 || watch->fatal || watch->died;
    case DPT_EXIT_SERVER:
        return true; /* silence is no event */
    case DPT_EXIT_DENIED:
        return watch->told_denied;
    default:
        for (uint32_t i = 0; i < DPT_PROTO_RANKS_MAX; i++)
            if (watch->procs[i].barren >= STARTS_MAX && code == DPT_EXIT_FAILED)
                return true;
        return watch->fatal || (code == DPT_EXIT_FAILED && watch->told_failed) ||
               (code == DPT_EXIT_CONFIG && watch->told_refused);
    }
}

static void check_action(struct agent_watch *watch, const struct dpt_agent_action *action,
                         bool last, uint64_t incarnation)
{
    struct watched_proc *proc = &watch->procs[action->local_rank];
    switch (action->kind) {
    case DPT_AGENT_ACTION_SPAWN:
        if (proc->lives || action->spawn != proc->spawn + 1 || action->incarnation != incarnation)
            broken(watch, "rank process %u, spawn %u is started after spawn %u, which %s",
                   action->local_rank, action->spawn, proc->spawn, proc->lives ? "lives" : "ended");
        *proc =
            (struct watched_proc){.spawn = action->spawn, .lives = true, .barren = proc->barren};
        break;
    case DPT_AGENT_ACTION_KILL:
        if (!proc->lives || proc->killed || action->spawn != proc->spawn)
            broken(watch, "rank process %u, spawn %u is killed; spawn %u %s", action->local_rank,
                   action->spawn, proc->spawn, proc->lives ? "lives" : "ended");
        count_end(proc);
        proc->killed = watch->died = true;
        break;
    case DPT_AGENT_ACTION_CONFIGURE:
        if (watch->configured)
            broken(watch, "a config is asked for again");
        break;
    default:
        if (!last || watch->ended)
            broken(watch, "the program ends %s", watch->ended ? "twice" : "before it acts");
        if (!is_excused(watch, action->exit_code))
            broken(watch, "exit %d, for which nobody gave cause: %s", action->exit_code,
                   action->text);
        watch->ended = true;
    }
}

static void check_decodes(struct agent_watch *watch, const ProtobufCMessage *message, bool to_rank)
{
    struct dpt_err err = {.status = DPT_OK};
    Dpt__AgentToRank *rank_copy = NULL;
    Dpt__AgentState *server_copy = NULL;
    size_t bytes = dpt_message_bytes(message);
    uint8_t *packed = malloc(bytes + 1);
    DPT_ASSERT(packed != NULL);
    enum dpt_status status = dpt_message_encode(message, packed, bytes, &bytes, &err);
    if (status == DPT_OK)
        status = to_rank ? dpt_message_decode_agent_to_rank(packed, bytes, &rank_copy, &err)
                         : dpt_message_decode_agent_state(packed, bytes, &server_copy, &err);
    if (status != DPT_OK)
        broken(watch, "nobody would take this message: %s", err.text);
    dpt_message_free_agent_to_rank(&rank_copy);
    dpt_message_free_agent_state(&server_copy);
    free(packed);
}

static void check_to_rank(struct agent_watch *watch, const struct dpt_agent_send *send)
{
    const Dpt__AgentToRank *message = send->message;
    struct watched_proc *proc = proc_of(watch, send->local_rank, send->spawn);
    unsigned long long generation = message->generation;
    if (proc == NULL || proc->killed) {
        broken(watch, "rank process %u, spawn %u is spoken to and is not there", send->local_rank,
               send->spawn);
        return;
    }
    if (watch->decodes)
        check_decodes(watch, &message->base, true);
    if (message->generation < proc->generation)
        broken(watch, "rank process %u hears of generation %llu after %llu", send->local_rank,
               generation, (unsigned long long)proc->generation);
    proc->generation = message->generation;
    bool planned = message->command == DPT__RANK_COMMAND__COMMAND_PLAN;
    bool go = message->command == DPT__RANK_COMMAND__COMMAND_GO;
    if (planned && proc->quiesced != message->generation && proc->planned != message->generation)
        broken(watch, "rank process %u gets the plan of generation %llu, quiesced for %llu",
               send->local_rank, generation, (unsigned long long)proc->quiesced);
    if (planned)
        proc->planned = message->generation;
    if (go && proc->planned != message->generation)
        broken(watch, "rank process %u is sent off in generation %llu without its plan",
               send->local_rank, generation);
    if (message->command == DPT__RANK_COMMAND__COMMAND_EXIT)
        return;
    if (message->lease_until_ms > watch->now_ms + watch->view.timing.write_ms ||
        (watch->fenced && message->lease_until_ms > 0))
        broken(watch, "rank process %u may write until %lld%s", send->local_rank,
               (long long)message->lease_until_ms, watch->fenced ? ", after a stop" : "");
}

static void check_to_server(struct agent_watch *watch, const Dpt__AgentState *message)
{
    if (watch->decodes)
        check_decodes(watch, &message->base, false);
    if (message->counter != watch->counter + 1)
        broken(watch, "counter %llu after %llu", (unsigned long long)message->counter,
               (unsigned long long)watch->counter);
    watch->counter = message->counter;
    if (message->stamp->incarnation != watch->view.incarnation ||
        message->stamp->generation < watch->generation)
        broken(watch, "incarnation %llu is in generation %llu after %llu",
               (unsigned long long)message->stamp->incarnation,
               (unsigned long long)message->stamp->generation,
               (unsigned long long)watch->generation);
    watch->generation = message->stamp->generation;
    for (size_t i = 0; i < message->n_ranks; i++) {
        const struct watched_proc *proc = &watch->procs[i];
        bool dead = message->ranks[i]->phase == DPT__RANK_PHASE__RANK_DEAD;
        if (message->ranks[i]->spawn != proc->spawn || dead == (proc->lives && !proc->killed))
            broken(watch, "rank process %zu, spawn %u is said to be %s", i,
                   message->ranks[i]->spawn, dead ? "dead" : "alive");
    }
}

/* ---- the step ---- */

static bool same_view(const struct dpt_agent_view *a, const struct dpt_agent_view *b)
{
    return a->incarnation == b->incarnation && a->generation == b->generation &&
           a->epoch == b->epoch && a->phase == b->phase && a->world_size == b->world_size &&
           a->ended == b->ended && a->leaving == b->leaving &&
           strcmp(a->plan_digest, b->plan_digest) == 0;
}

static void check_incarnation(struct agent_watch *watch, const struct dpt_agent_view *view,
                              const struct dpt_agent_event *event)
{
    const bool configured = event->kind == DPT_AGENT_EVENT_CONFIGURED;
    if (view->incarnation == watch->view.incarnation)
        return;
    if (configured ? view->incarnation != event->facts->incarnation
                   : view->incarnation != watch->view.incarnation + 1 && watch->stepped)
        broken(watch, "incarnation %llu follows %llu", (unsigned long long)view->incarnation,
               (unsigned long long)watch->view.incarnation);
    for (uint32_t i = 0; i < DPT_PROTO_RANKS_MAX; i++)
        if (watch->procs[i].lives)
            broken(watch, "incarnation %llu begins while rank process %u of the last one lives",
                   (unsigned long long)view->incarnation, i);
    watch->server_counter = watch->counter_seen = watch->generation = 0;
}

const char *agent_watch_step(struct agent_watch *watch, const struct dpt_agent *agent,
                             const struct dpt_agent_event *event,
                             const struct dpt_agent_output *out)
{
    struct dpt_agent_view view;
    dpt_agent_view(agent, &view);
    watch->broken[0] = '\0';
    if (!watch->stepped)
        watch->view = view;
    bool said = out->n_actions > 0 || out->n_to_ranks > 0 || out->to_server != NULL;
    if (watch->ended && said)
        broken(watch, "the program has ended and goes on");
    bool stale = watch->stepped && event->kind == DPT_AGENT_EVENT_SERVER_MESSAGE &&
                 event->now_ms == watch->now_ms && is_stale(watch, event->server_message);
    if (stale && (said || !same_view(&view, &watch->view)))
        broken(watch, "a stale message changes something");
    take_event(watch, event);
    check_incarnation(watch, &view, event);
    watch->view = view;
    watch->now_ms = event->now_ms;
    if (out->deadline_ms <= event->now_ms)
        broken(watch, "the next deadline is %lld ms ago",
               (long long)(event->now_ms - out->deadline_ms));
    watch->deadline_ms = out->deadline_ms;
    for (size_t i = 0; i < out->n_actions; i++)
        check_action(watch, &out->actions[i], i + 1 == out->n_actions, view.incarnation);
    if (watch->ended && out->n_to_ranks > 0)
        broken(watch, "rank process %u is spoken to after the end", out->to_ranks[0].local_rank);
    for (size_t i = 0; i < out->n_to_ranks; i++)
        check_to_rank(watch, &out->to_ranks[i]);
    if (out->to_server != NULL)
        check_to_server(watch, out->to_server);
    watch->stepped = true;
    return watch->broken[0] != '\0' ? watch->broken : NULL;
}

const struct dpt_agent_view *agent_watch_view(const struct agent_watch *watch)
{
    return &watch->view;
}
