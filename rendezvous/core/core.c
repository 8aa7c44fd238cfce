/* Events in, decisions out: the outermost layer of the server's machine. */
#include "rendezvous/core/core.h"

#include "rendezvous/core/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { IDLE_TICK_MS = 1000 };

enum dpt_status dpt_rdzv_create(const struct dpt_rdzv_options *options, struct dpt_rdzv **ret,
                                struct dpt_err *err)
{
    DPT_ASSERT(options->epoch != 0);
    struct dpt_rdzv *core = calloc(1, sizeof *core);
    if (core == NULL)
        return dpt_fail(err, DPT_ENOMEM, "rendezvous server");
    core->epoch = options->epoch;
    core->fresh = options->fresh;
    core->start_ms = core->now_ms = core->heard_ms = options->now_ms;
    core->strangers_since_ms = core->stranger_ms = -1;
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
    dpt_outbox_fini(&(*core)->out);
    free(*core);
    *core = NULL;
}

/* ---- time ---- */

/* A time that may be none (below 0). */
static void shift(int64_t *at_ms, int64_t gap_ms)
{
    if (*at_ms >= 0)
        *at_ms += gap_ms;
}

/* This loop itself stood still (stopped, or starved): the others' silence meanwhile says nothing,
 * and every period that the server measures lasts as much longer. But leaving_ms stays: the time
 * that a leaving node has is measured by its agent, whose loop did not stand still. */
static void shift_run(struct run *run, int64_t gap_ms)
{
    shift(&run->phase_ms, gap_ms);
    shift(&run->step_ms, gap_ms);
    shift(&run->plan_after_ms, gap_ms);
    shift(&run->adopt_until_ms, gap_ms);
    shift(&run->regather_until_ms, gap_ms);
    shift(&run->empty_ms, gap_ms);
    shift(&run->waits_since_ms, gap_ms);
    for (size_t i = 0; i < run->n_nodes; i++) {
        struct node *node = run->nodes[i];
        shift(&node->heard_ms, gap_ms);
        shift(&node->broken_ms, gap_ms);
        shift(&node->extended_until_ms, gap_ms);
        shift(&node->ready_since_ms, gap_ms);
        shift(&node->benched_until_ms, gap_ms);
    }
}

static void take_time(struct dpt_rdzv *core, int64_t now_ms)
{
    DPT_ASSERT(now_ms >= core->now_ms);
    int64_t expected_ms = core->deadline_ms > core->now_ms ? core->deadline_ms : core->now_ms;
    int64_t gap_ms = now_ms - expected_ms;
    if (gap_ms > 0) {
        core->heard_ms += gap_ms;
        shift(&core->strangers_since_ms, gap_ms);
        shift(&core->stranger_ms, gap_ms);
        core->start_ms += gap_ms; /* agents of an earlier server have as much longer to come */
    }
    for (size_t i = 0; i < core->n_runs; i++) {
        if (gap_ms <= core->runs[i]->timing.gap_ms)
            continue;
        shift_run(core->runs[i], gap_ms);
        dpt_outbox_log(&core->out, DPT_LOG_WARN, core->runs[i]->name, core->runs[i]->generation,
                       "the server stood still for %lld ms: all deadlines move by it",
                       (long long)gap_ms);
    }
    core->now_ms = now_ms;
}

/* ---- runs that are over ---- */

/* A name is free again when all have heard of the end and gone, or had their time to; and when
 * nobody has been there for some time. */
static bool is_over(const struct dpt_rdzv *core, struct run *run)
{
    bool ended = run->phase == DPT_RDZV_DONE || run->phase == DPT_RDZV_FAILED;
    if (run->n_nodes > 0)
        run->empty_ms = -1;
    else if (run->empty_ms < 0)
        run->empty_ms = core->now_ms;
    int64_t empty_for_ms = run->empty_ms < 0 ? -1 : core->now_ms - run->empty_ms;
    return empty_for_ms >= (ended ? run->timing.grace_ms : run->timing.forget_ms) ||
           (ended && core->now_ms - run->phase_ms >= run->timing.forget_ms);
}

struct forgotten_run *dpt_rdzv_find_forgotten(struct dpt_rdzv *core, const char *name)
{
    uint64_t hash = dpt_rdzv_id_hash(name);
    size_t n = core->n_forgotten < FORGOTTEN_MAX ? core->n_forgotten : FORGOTTEN_MAX;
    for (size_t i = 0; i < n; i++)
        if (core->forgotten[i].name_hash == hash)
            return &core->forgotten[i];
    return NULL;
}

/* The name's next run begins above this one's generations, whatever becomes of the entry. */
static void remember(struct dpt_rdzv *core, const struct run *run)
{
    struct forgotten_run *former = dpt_rdzv_find_forgotten(core, run->name);
    struct forgotten_run *entry = &core->forgotten[core->n_forgotten++ % FORGOTTEN_MAX];
    if (former != NULL)
        *former = (struct forgotten_run){0}; /* this run began above it */
    if (entry->generation > core->generation_floor)
        core->generation_floor = entry->generation;
    uint64_t generation = run->generation;
    if (run->generation_high > generation)
        generation = run->generation_high;
    if (run->generation_floor > generation)
        generation = run->generation_floor;
    *entry = (struct forgotten_run){
        .name_hash = dpt_rdzv_id_hash(run->name),
        .generation = generation,
        .run_generation =
            run->run_generation > run->ran_before ? run->run_generation : run->ran_before,
        .ended = run->phase == DPT_RDZV_DONE || run->phase == DPT_RDZV_FAILED,
        .failed = run->phase == DPT_RDZV_FAILED};
}

static void forget_runs(struct dpt_rdzv *core)
{
    for (size_t i = core->n_runs; i-- > 0;) {
        struct run *run = core->runs[i];
        if (!is_over(core, run))
            continue;
        dpt_outbox_record(&core->out, &(struct dpt_rdzv_record){.kind = DPT_RDZV_RECORD_FORGET,
                                                                .run = run->name,
                                                                .generation = run->generation,
                                                                .step = run->step});
        dpt_outbox_log(&core->out, DPT_LOG_INFO, run->name, run->generation,
                       "run is over, its name is free");
        remember(core, run);
        dpt_rdzv_run_destroy(&run);
        core->runs[i] = core->runs[--core->n_runs];
    }
}

/* ---- events ---- */

static void on_broken(struct dpt_rdzv *core, uint64_t conn)
{
    for (size_t i = 0; i < core->n_runs; i++)
        for (size_t k = 0; k < core->runs[i]->n_nodes; k++) {
            struct node *node = core->runs[i]->nodes[k];
            if (node->conn != conn)
                continue;
            node->conn = 0;
            node->broken_ms = core->now_ms;
        }
    dpt_rdzv_unhear(core);
}

static void on_tick(struct dpt_rdzv *core, bool backlog)
{
    for (size_t i = 0; i < core->n_runs; i++) {
        if (!backlog)
            dpt_rdzv_check_leases(core, core->runs[i]);
        dpt_rdzv_advance(core, core->runs[i]);
    }
    forget_runs(core);
}

static void finish_step(struct dpt_rdzv *core, struct dpt_rdzv_output *ret)
{
    core->deadline_ms = core->now_ms + IDLE_TICK_MS;
    for (size_t i = 0; i < core->n_runs; i++) {
        dpt_rdzv_answer_nodes(core, core->runs[i]);
        int64_t due_ms = dpt_rdzv_due_ms(core, core->runs[i]);
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

static void take_event(struct dpt_rdzv *core, const struct dpt_rdzv_event *event)
{
    switch (event->kind) {
    case DPT_RDZV_EVENT_MESSAGE:
        DPT_ASSERT(event->conn != 0 && event->message != NULL);
        dpt_rdzv_on_message(core, event->conn, event->message);
        break;
    case DPT_RDZV_EVENT_BROKEN:
        on_broken(core, event->conn);
        break;
    case DPT_RDZV_EVENT_TICK:
        on_tick(core, event->backlog);
        break;
    case DPT_RDZV_EVENT_SHUTDOWN:
        core->stopped = true;
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
    take_time(core, event->now_ms);
    if (!core->stopped)
        take_event(core, event);
    if (!core->out.no_memory)
        finish_step(core, ret);
    core->random = NULL; /* the caller's */
    if (core->out.no_memory)
        return dpt_fail(err, DPT_ENOMEM, "rendezvous server, %zu runs", core->n_runs);
    return DPT_OK;
}

/* ---- views ---- */

size_t dpt_rdzv_runs(const struct dpt_rdzv *core)
{
    return core->n_runs;
}

void dpt_rdzv_run_view(const struct dpt_rdzv *core, size_t i, struct dpt_rdzv_run_view *ret)
{
    DPT_ASSERT(i < core->n_runs);
    const struct run *run = core->runs[i];
    *ret = (struct dpt_rdzv_run_view){
        .phase = run->phase,
        .generation = run->generation,
        .run_generation = run->run_generation,
        .nodes = (uint32_t)run->n_nodes,
        .world_size = run->plan.in_force ? run->plan.world_size : 0,
        .restarts_left = run->spec.max_restarts > run->restarts_used
                             ? run->spec.max_restarts - run->restarts_used
                             : 0,
        .step = run->step,
        .redundancy = run->phase == DPT_RDZV_PREPARING || run->phase == DPT_RDZV_PLANNED
                          ? DPT_RDZV_REDUNDANCY_REBUILDING
                      : run->plan.in_force && run->redundant  ? DPT_RDZV_REDUNDANCY_WHOLE
                      : run->plan.in_force && run->rebuilding ? DPT_RDZV_REDUNDANCY_REBUILDING
                                                              : DPT_RDZV_REDUNDANCY_NONE,
    };
    bool ended = run->phase == DPT_RDZV_DONE || run->phase == DPT_RDZV_FAILED;
    (void)snprintf(ret->run, sizeof ret->run, "%s", run->name);
    (void)snprintf(ret->plan_digest, sizeof ret->plan_digest, "%s",
                   run->plan.in_force ? run->plan.digest : "");
    (void)snprintf(ret->text, sizeof ret->text, "%s", ended ? run->end_text : run->cause.text);
    (void)snprintf(ret->cause_kind, sizeof ret->cause_kind, "%s",
                   dpt_rdzv_cause_name(run->cause.kind));
}

bool dpt_rdzv_counts_in(const struct dpt_rdzv *core, const char *run_name, const char *node_id,
                        uint64_t incarnation, uint32_t local_rank, uint32_t spawn, int *ret_rank)
{
    for (size_t i = 0; i < core->n_runs; i++) {
        const struct run *run = core->runs[i];
        if (strcmp(run->name, run_name) != 0 || !run->plan.in_force)
            continue;
        for (uint32_t r = 0; r < run->plan.world_size; r++) {
            const struct place *place = &run->plan.places[r];
            if (place->node == NULL || strcmp(place->node->id, node_id) != 0 ||
                place->node->incarnation != incarnation || place->local_rank != local_rank ||
                place->spawn != spawn)
                continue;
            *ret_rank = (int)r;
            return true;
        }
    }
    return false;
}
