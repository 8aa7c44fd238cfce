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
    core->seed = options->seed;
    core->start_ms = core->now_ms = core->heard_ms = options->now_ms;
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

/* This loop itself stood still (stopped, or starved): the others' silence meanwhile says nothing.
 */
static void shift_run(struct run *run, int64_t gap_ms)
{
    run->phase_ms += gap_ms;
    run->step_ms += gap_ms;
    if (run->adopt_until_ms >= 0)
        run->adopt_until_ms += gap_ms;
    for (size_t i = 0; i < run->n_nodes; i++) {
        run->nodes[i]->heard_ms += gap_ms;
        if (run->nodes[i]->broken_ms >= 0)
            run->nodes[i]->broken_ms += gap_ms;
    }
}

static void take_time(struct dpt_rdzv *core, int64_t now_ms)
{
    DPT_ASSERT(now_ms >= core->now_ms);
    int64_t expected_ms = core->deadline_ms > core->now_ms ? core->deadline_ms : core->now_ms;
    int64_t gap_ms = now_ms - expected_ms;
    if (gap_ms > 0)
        core->heard_ms += gap_ms;
    for (size_t i = 0; i < core->n_runs; i++) {
        if (gap_ms <= core->runs[i]->timing.gap_ms)
            continue;
        shift_run(core->runs[i], gap_ms);
        dpt_outbox_log(&core->out, DPT_LOG_WARN, core->runs[i]->name, core->runs[i]->generation,
                       "the server stood still for %lld ms: leases are extended by it",
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

static void remember_end(struct dpt_rdzv *core, const struct run *run)
{
    uint64_t hash = dpt_rdzv_id_hash(run->name);
    for (size_t i = 0; i < ENDED_MAX; i++)
        if (core->ended[i].name_hash == hash)
            core->ended[i] = (struct ended_run){0}; /* of an earlier run of this name */
    if (run->phase == DPT_RDZV_DONE || run->phase == DPT_RDZV_FAILED)
        core->ended[core->n_ended++ % ENDED_MAX] =
            (struct ended_run){.name_hash = hash, .failed = run->phase == DPT_RDZV_FAILED};
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
        remember_end(core, run);
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

static void on_tick(struct dpt_rdzv *core)
{
    for (size_t i = 0; i < core->n_runs; i++) {
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

enum dpt_status dpt_rdzv_step(struct dpt_rdzv *core, const struct dpt_rdzv_event *event,
                              struct dpt_rdzv_output *ret, struct dpt_err *err)
{
    dpt_outbox_reset(&core->out);
    take_time(core, event->now_ms);
    if (!core->stopped) {
        switch (event->kind) {
        case DPT_RDZV_EVENT_MESSAGE:
            DPT_ASSERT(event->conn != 0 && event->message != NULL);
            dpt_rdzv_on_message(core, event->conn, event->message);
            break;
        case DPT_RDZV_EVENT_BROKEN:
            on_broken(core, event->conn);
            break;
        case DPT_RDZV_EVENT_TICK:
            on_tick(core);
            break;
        case DPT_RDZV_EVENT_SHUTDOWN:
            core->stopped = true;
            break;
        default:
            DPT_ASSERT(false);
        }
    }
    if (core->out.no_memory)
        return dpt_fail(err, DPT_ENOMEM, "rendezvous server, %zu runs", core->n_runs);
    finish_step(core, ret);
    if (core->out.no_memory)
        return dpt_fail(err, DPT_ENOMEM, "rendezvous server, %zu runs", core->n_runs);
    return DPT_OK;
}

/* ---- views ---- */

size_t dpt_rdzv_runs(const struct dpt_rdzv *core)
{
    return core->n_runs;
}

const char *dpt_rdzv_redundancy_name(enum dpt_rdzv_redundancy redundancy)
{
    static const char *const names[DPT_RDZV_REDUNDANCY_COUNT] = {"none", "rebuilding", "whole"};
    return (unsigned)redundancy < DPT_RDZV_REDUNDANCY_COUNT ? names[redundancy] : "?";
}

void dpt_rdzv_run_view(const struct dpt_rdzv *core, size_t i, struct dpt_rdzv_run_view *ret)
{
    DPT_ASSERT(i < core->n_runs);
    const struct run *run = core->runs[i];
    *ret = (struct dpt_rdzv_run_view){
        .phase = run->phase,
        .generation = run->generation,
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
