/* The watch of watch.h: events, records, nodes. */
#include "tests/rendezvous/core/watch.h"

#include "base/hash.h"
#include "rendezvous/core/timing.h"
#include "tests/rendezvous/core/watch_internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct watch *watch_create(bool decodes)
{
    struct watch *watch = calloc(1, sizeof *watch);
    DPT_ASSERT(watch != NULL);
    watch->decodes = decodes;
    return watch;
}

void watch_destroy(struct watch **watch)
{
    if (*watch == NULL)
        return;
    for (size_t i = 0; i < (*watch)->n_runs; i++) {
        free((*watch)->runs[i].members);
        free((*watch)->runs[i].seats);
    }
    free((*watch)->runs);
    free((*watch)->nodes);
    free((*watch)->names);
    free((*watch)->nonces);
    free(*watch);
    *watch = NULL;
}

void watch_broken(struct watch *watch, const char *fmt, ...)
{
    if (watch->broken[0] != '\0')
        return;
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(watch->broken, sizeof watch->broken, fmt, ap);
    va_end(ap);
}

/* ---- nodes ---- */

static struct seen_node *find_node(struct watch *watch, const char *run, const char *id)
{
    uint64_t hash = dpt_hash128(run, strlen(run)).lo ^ (dpt_hash128(id, strlen(id)).lo << 1);
    for (size_t i = 0; i < watch->n_nodes; i++)
        if (watch->nodes[i].hash == hash)
            return &watch->nodes[i];
    if (watch->n_nodes == watch->nodes_max) {
        watch->nodes_max = watch->nodes_max == 0 ? 8 : 2 * watch->nodes_max;
        watch->nodes = realloc(watch->nodes, watch->nodes_max * sizeof watch->nodes[0]);
        DPT_ASSERT(watch->nodes != NULL);
    }
    struct seen_node *node = &watch->nodes[watch->n_nodes++];
    memset(node, 0, sizeof *node);
    node->hash = hash;
    (void)snprintf(node->run, sizeof node->run, "%s", run);
    (void)snprintf(node->id, sizeof node->id, "%s", id);
    return node;
}

static void forget_nodes(struct watch *watch, const char *run)
{
    for (size_t i = 0; i < watch->n_nodes; i++) {
        struct seen_node *node = &watch->nodes[i];
        if (strcmp(node->run, run) == 0)
            node->told_incarnation = node->told_counter = node->counter_seen = 0;
    }
}

/* ---- runs ---- */

static struct seen_run *find_run(struct watch *watch, const char *name)
{
    for (size_t i = 0; i < watch->n_runs; i++)
        if (strcmp(watch->runs[i].name, name) == 0)
            return &watch->runs[i];
    return NULL;
}

static void drop_run(struct watch *watch, struct seen_run *run)
{
    forget_nodes(watch, run->name);
    free(run->members);
    free(run->seats);
    *run = watch->runs[--watch->n_runs];
}

static struct seen_name *find_name(struct watch *watch, const char *name)
{
    for (size_t i = 0; i < watch->n_names; i++)
        if (strcmp(watch->names[i].name, name) == 0)
            return &watch->names[i];
    if (watch->n_names == watch->names_max) {
        watch->names_max = watch->names_max == 0 ? 2 : 2 * watch->names_max;
        watch->names = realloc(watch->names, watch->names_max * sizeof watch->names[0]);
        DPT_ASSERT(watch->names != NULL);
    }
    struct seen_name *seen = &watch->names[watch->n_names++];
    *seen = (struct seen_name){0};
    (void)snprintf(seen->name, sizeof seen->name, "%s", name);
    return seen;
}

static void add_run(struct watch *watch, const struct dpt_rdzv_record *record)
{
    if (watch->n_runs == watch->runs_max) {
        watch->runs_max = watch->runs_max == 0 ? 2 : 2 * watch->runs_max;
        watch->runs = realloc(watch->runs, watch->runs_max * sizeof watch->runs[0]);
        DPT_ASSERT(watch->runs != NULL);
    }
    struct seen_run *run = &watch->runs[watch->n_runs++];
    *run = (struct seen_run){.grant_step = -1,
                             .gap_ms = dpt_timing_from(record->spec->timeout_ms, 0).gap_ms};
    (void)snprintf(run->name, sizeof run->name, "%s", record->run);
}

/* ---- the message that came in ---- */

static bool knows_secret(const struct watch *watch, const struct seen_node *node)
{
    return memcmp(node->told_secret, watch->secret, sizeof watch->secret) == 0;
}

/* A process without the secret of a node that has a place in the plan in force. In RUNNING a node
 * of the plan is still here, for a loss ends the generation. */
static bool is_stranger(struct watch *watch, const Dpt__AgentState *message)
{
    const struct seen_node *node = find_node(watch, message->stamp->run, message->stamp->node);
    const struct seen_run *run = find_run(watch, message->stamp->run);
    if (node->counter_seen == 0 || knows_secret(watch, node) || run == NULL ||
        run->view.phase != DPT_RDZV_RUNNING || run->view.plan_digest[0] == '\0')
        return false;
    for (uint32_t i = 0; i < run->n_members; i++)
        if (&watch->nodes[run->members[i].node] == node &&
            run->members[i].incarnation == node->told_incarnation)
            return true;
    return false;
}

/* Reported again, reported by a node that was followed (by the server's own answers), or by a
 * stranger. */
static bool is_stale(struct watch *watch, const Dpt__AgentState *message)
{
    const struct seen_node *node = find_node(watch, message->stamp->run, message->stamp->node);
    if (!knows_secret(watch, node))
        return message->version == DPT_PROTO_VERSION && is_stranger(watch, message);
    return message->version == DPT_PROTO_VERSION && node->counter_seen > 0 &&
           (message->stamp->incarnation < node->told_incarnation ||
            (message->stamp->incarnation == node->told_incarnation &&
             message->counter <= node->counter_seen));
}

static void note_finished(struct watch *watch, const struct seen_node *node,
                          const struct seen_proc *proc)
{
    struct seen_run *run = find_run(watch, node->run);
    for (uint32_t i = 0; run != NULL && i < run->n_members; i++) {
        struct member *member = &run->members[i];
        if (&watch->nodes[member->node] == node && member->incarnation == proc->incarnation &&
            member->local == proc->local && member->spawn == proc->spawn &&
            proc->finished == run->plan_generation)
            member->finished = true;
    }
}

static void note_message(struct watch *watch, const Dpt__AgentState *message)
{
    struct seen_node *node = find_node(watch, message->stamp->run, message->stamp->node);
    const uint64_t incarnation = message->stamp->incarnation;
    if (message->version != DPT_PROTO_VERSION)
        return;
    for (size_t i = 0; i < message->n_ranks; i++) {
        const Dpt__RankState *state = message->ranks[i];
        size_t at = 0;
        size_t n = node->n_procs < PROCS_MAX ? node->n_procs : PROCS_MAX;
        while (at < n && (node->procs[at].incarnation != incarnation ||
                          node->procs[at].local != state->local_rank ||
                          node->procs[at].spawn != state->spawn))
            at++;
        if (at == n) {
            at = node->n_procs++ % PROCS_MAX;
            node->procs[at] = (struct seen_proc){
                .incarnation = incarnation, .local = state->local_rank, .spawn = state->spawn};
        }
        if (state->phase != DPT__RANK_PHASE__RANK_FINISHED)
            continue;
        node->procs[at].finished = state->generation;
        note_finished(watch, node, &node->procs[at]);
    }
}

/* ---- records ---- */

static void check_end(struct watch *watch, const struct seen_run *run, const char *first_error)
{
    if (first_error[0] != '\0' || run->stopped)
        return; /* FAILED, or ended by an operator */
    for (uint32_t i = 0; i < run->n_members; i++)
        if (run->members[i].incarnation != 0 && !run->members[i].finished)
            watch_broken(watch, "run %s is done, but rank %u of generation %llu has not finished",
                         run->name, i, (unsigned long long)run->plan_generation);
    /* A run without members, unless the server adopted and ended it in one step, which it does only
     * before it forms a generation. */
    if (run->n_members == 0 && run->view.phase != DPT_RDZV_WAITING &&
        run->view.phase != DPT_RDZV_SETTLING)
        watch_broken(watch, "run %s is done without a plan", run->name);
}

/* A node id that is free may be taken by a process with another secret, which counts anew. */
static void note_joined(struct watch *watch, const struct dpt_rdzv_record *record)
{
    struct seen_node *node = find_node(watch, record->run, record->node);
    if (memcmp(node->told_secret, record->secret, sizeof node->told_secret) == 0)
        return;
    node->told_incarnation = node->told_counter = node->told_generation = node->counter_seen = 0;
    memcpy(node->told_secret, record->secret, sizeof node->told_secret);
}

static void check_record(struct watch *watch, const struct dpt_rdzv_record *record)
{
    struct seen_run *run = find_run(watch, record->run);
    unsigned long long generation = record->generation;
    if (record->kind == DPT_RDZV_RECORD_START || record->kind == DPT_RDZV_RECORD_DENIED ||
        record->kind == DPT_RDZV_RECORD_UNHEALTHY)
        return;
    if ((run == NULL) != (record->kind == DPT_RDZV_RECORD_RUN)) {
        watch_broken(watch, "record %d of run %s, which is %s", (int)record->kind, record->run,
                     run == NULL ? "unknown" : "known");
        return;
    }
    if (run != NULL && run->ended && record->kind != DPT_RDZV_RECORD_FORGET &&
        record->kind != DPT_RDZV_RECORD_REMOVED && record->kind != DPT_RDZV_RECORD_SAVED)
        watch_broken(watch, "record %d of run %s after its end", (int)record->kind, record->run);
    switch (record->kind) {
    case DPT_RDZV_RECORD_RUN:
        add_run(watch, record);
        break;
    case DPT_RDZV_RECORD_JOINED:
        note_joined(watch, record);
        break;
    case DPT_RDZV_RECORD_GENERATION:
        if (record->generation <= run->generation || record->generation <= run->plan_generation ||
            record->generation <= find_name(watch, record->run)->generation)
            watch_broken(watch, "generation %llu is used again", generation);
        run->generation = record->generation;
        find_name(watch, record->run)->generation = record->generation;
        break;
    case DPT_RDZV_RECORD_PLAN:
        if (record->generation != run->generation || record->generation <= run->planned)
            watch_broken(watch, "a plan of generation %llu while %llu is formed", generation,
                         (unsigned long long)run->generation);
        run->planned = record->generation;
        run->grant_step = -1;
        break;
    case DPT_RDZV_RECORD_ADOPTED:
        if (record->generation < run->generation)
            watch_broken(watch, "generation %llu is adopted after %llu", generation,
                         (unsigned long long)run->generation);
        if (record->generation > run->planned)
            run->grant_step = -1;
        run->generation = run->planned = record->generation;
        find_name(watch, record->run)->generation = record->generation;
        break;
    case DPT_RDZV_RECORD_GRANT:
        if (record->generation < run->planned || record->step <= run->grant_step)
            watch_broken(watch, "step %lld is granted to generation %llu after step %lld",
                         (long long)record->step, generation, (long long)run->grant_step);
        run->grant_step = record->step;
        break;
    case DPT_RDZV_RECORD_STOPPED:
        run->stopped = record->count != 0;
        break;
    case DPT_RDZV_RECORD_END:
        check_end(watch, run, record->text);
        run->ended = true;
        break;
    case DPT_RDZV_RECORD_FORGET:
        drop_run(watch, run);
        break;
    default:
        break;
    }
}

void watch_restore(struct watch *watch, const struct dpt_rdzv_record *record)
{
    struct seen_run *run = find_run(watch, record->run);
    switch (record->kind) {
    case DPT_RDZV_RECORD_FORGET:
        if (run != NULL)
            drop_run(watch, run);
        find_name(watch, record->run)->generation = record->generation;
        break;
    case DPT_RDZV_RECORD_END:
        run->ended = true; /* its members were another watch's */
        run->view.phase = record->text[0] != '\0' ? DPT_RDZV_FAILED : DPT_RDZV_DONE;
        break;
    default:
        check_record(watch, record);
    }
}

/* ---- sends ---- */

static void check_decodes(struct watch *watch, const Dpt__ServerState *message)
{
    struct dpt_err err;
    size_t bytes = dpt_message_bytes(&message->base);
    uint8_t *packed = malloc(bytes + 1);
    Dpt__ServerState *back = NULL;
    DPT_ASSERT(packed != NULL);
    if (dpt_message_encode(&message->base, packed, bytes, &bytes, &err) != DPT_OK ||
        dpt_message_decode_server_state(packed, bytes, &back, &err) != DPT_OK)
        watch_broken(watch, "no agent would take this message: %s", err.text);
    dpt_message_free_server_state(&back);
    free(packed);
}

/* The words to one incarnation that is counted in. */
static void check_told(struct watch *watch, const Dpt__ServerState *message)
{
    const Dpt__Stamp *stamp = message->stamp;
    struct seen_node *node = find_node(watch, stamp->run, stamp->node);
    if (stamp->incarnation < node->told_incarnation)
        watch_broken(watch, "incarnation %llu of node %s is counted in after a newer one",
                     (unsigned long long)stamp->incarnation, stamp->node);
    if (stamp->incarnation == node->told_incarnation &&
        (message->counter <= node->told_counter || stamp->generation < node->told_generation ||
         message->counter_seen < node->counter_seen))
        watch_broken(
            watch,
            "node %s is told counter %llu, generation %llu, counter_seen %llu after %llu, "
            "%llu, %llu",
            stamp->node, (unsigned long long)message->counter,
            (unsigned long long)stamp->generation, (unsigned long long)message->counter_seen,
            (unsigned long long)node->told_counter, (unsigned long long)node->told_generation,
            (unsigned long long)node->counter_seen);
    node->told_incarnation = stamp->incarnation;
    node->told_counter = message->counter;
    node->told_generation = stamp->generation;
    node->counter_seen = message->counter_seen;
}

static void check_send(struct watch *watch, const struct dpt_rdzv *core,
                       const Dpt__ServerState *message)
{
    if (watch->epoch == 0)
        watch->epoch = message->stamp->epoch;
    if (message->stamp->epoch != watch->epoch || message->version != DPT_PROTO_VERSION)
        watch_broken(watch, "a message of epoch %llu, version %u",
                     (unsigned long long)message->stamp->epoch, message->version);
    if (watch->decodes)
        check_decodes(watch, message);
    if (message->counter_seen > 0)
        check_told(watch, message);
    struct seen_run *run = find_run(watch, message->stamp->run);
    if (message->plan != NULL && run == NULL)
        watch_broken(watch, "a plan for a run that is not known");
    else if (message->plan != NULL)
        watch_plan(watch, run, core, message);
}

/* ---- the step ---- */

static bool same_view(const struct dpt_rdzv_run_view *a, const struct dpt_rdzv_run_view *b)
{
    return a->phase == b->phase && a->generation == b->generation && a->nodes == b->nodes &&
           a->world_size == b->world_size && a->restarts_left == b->restarts_left &&
           a->step == b->step && strcmp(a->plan_digest, b->plan_digest) == 0 &&
           strcmp(a->text, b->text) == 0;
}

static void check_run(struct watch *watch, const struct dpt_rdzv *core,
                      const struct dpt_rdzv_run_view *view)
{
    struct seen_run *run = find_run(watch, view->run);
    if (run == NULL) {
        watch_broken(watch, "run %s came without a record", view->run);
        return;
    }
    bool ended = view->phase == DPT_RDZV_DONE || view->phase == DPT_RDZV_FAILED;
    if (ended != run->ended || view->generation < run->view.generation)
        watch_broken(watch, "run %s: %s in generation %llu after %s in generation %llu", view->run,
                     dpt_rdzv_phase_name(view->phase), (unsigned long long)view->generation,
                     dpt_rdzv_phase_name(run->view.phase),
                     (unsigned long long)run->view.generation);
    if (watch->stale && !same_view(view, &run->view))
        watch_broken(watch, "run %s: a stale message made of %s in generation %llu %s in %llu",
                     view->run, dpt_rdzv_phase_name(run->view.phase),
                     (unsigned long long)run->view.generation, dpt_rdzv_phase_name(view->phase),
                     (unsigned long long)view->generation);
    /* A node that leaves goes by agreement, also while no node sends: the watch sees no record of
     * it, but a lost node ends its generation. One whose key was denied is not silent. */
    const bool failed = strcmp(view->cause_kind, "node_lost") == 0 &&
                        strstr(view->text, "its key was denied") == NULL &&
                        strcmp(view->text, run->view.text) != 0;
    if (failed && view->nodes < run->view.nodes && !ended &&
        (watch->backlog || watch->event_ms - watch->heard_ms > run->gap_ms))
        watch_broken(watch, "run %s: %s, %lld ms after anybody was heard%s", view->run, view->text,
                     (long long)(watch->event_ms - watch->heard_ms),
                     watch->backlog ? ", while messages wait" : "");
    run->view = *view;
    if (view->plan_digest[0] != '\0' && strcmp(view->plan_digest, run->digest) != 0)
        watch_members(watch, run, core, view);
}

const char *watch_step(struct watch *watch, const struct dpt_rdzv *core,
                       const struct dpt_rdzv_event *event, const struct dpt_rdzv_output *out)
{
    watch->broken[0] = '\0';
    bool quiet = watch->ticked && event->now_ms == watch->now_ms;
    if (event->kind == DPT_RDZV_EVENT_MESSAGE) {
        memset(watch->secret, 0, sizeof watch->secret);
        if (event->message->secret.len == sizeof watch->secret) /* unless of another version */
            memcpy(watch->secret, event->message->secret.data, sizeof watch->secret);
    }
    watch->stale =
        event->kind == DPT_RDZV_EVENT_MESSAGE && quiet && is_stale(watch, event->message);
    watch->event_ms = event->now_ms;
    watch->backlog = event->kind == DPT_RDZV_EVENT_TICK && event->backlog;
    const int64_t due_ms = watch->deadline_ms > watch->now_ms ? watch->deadline_ms : watch->now_ms;
    if (event->now_ms > due_ms)
        watch->heard_ms += event->now_ms - due_ms;
    if (event->kind == DPT_RDZV_EVENT_MESSAGE) {
        watch->heard_ms = event->now_ms;
        note_message(watch, event->message);
    }
    if (watch->stale && out->n_records > 0)
        watch_broken(watch, "a stale message is recorded");
    if (out->deadline_ms <= event->now_ms)
        watch_broken(watch, "the next deadline is %lld ms ago",
                     (long long)(event->now_ms - out->deadline_ms));
    for (size_t i = 0; i < out->n_records; i++)
        check_record(watch, &out->records[i]);
    size_t n_runs = dpt_rdzv_runs(core);
    if (n_runs != watch->n_runs)
        watch_broken(watch, "%zu runs, %zu by their records", n_runs, watch->n_runs);
    for (size_t i = 0; i < n_runs; i++) {
        struct dpt_rdzv_run_view view;
        dpt_rdzv_run_view(core, i, &view);
        check_run(watch, core, &view);
    }
    for (size_t i = 0; i < out->n_sends; i++)
        check_send(watch, core, out->sends[i].message);
    watch_tally(watch, core);
    watch->ticked = event->kind == DPT_RDZV_EVENT_TICK;
    watch->now_ms = event->now_ms;
    watch->deadline_ms = out->deadline_ms;
    return watch->broken[0] != '\0' ? watch->broken : NULL;
}
