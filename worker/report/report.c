/* Computes a report (report.h). */
#include "worker/report/report.h"

#include "worker/report/breakdown.h"
#include "worker/report/calls.h"
#include "worker/report/means.h"
#include "worker/report/ops.h"
#include "worker/report/phases.h"
#include "worker/report/timeline.h"
#include "worker/report/verdict.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* All ranks while the report is computed. */
struct work {
    const struct report_source *sources;
    struct report_calls *calls;       /* [n] */
    struct report_phases *phases;     /* [n] */
    struct report_step_times **times; /* [n], each [scope.n] */
    size_t n;
};

static void free_work(struct work *w)
{
    for (size_t r = 0; r < w->n; r++) {
        if (w->calls)
            report_calls_free(&w->calls[r]);
        if (w->phases)
            report_phases_free(&w->phases[r]);
        if (w->times)
            free(w->times[r]);
    }
    free(w->calls);
    free(w->phases);
    free(w->times);
}

static enum dpt_status take_steps(const struct report_scope *scope, struct dpt_report_rank *rank,
                                  struct dpt_err *err)
{
    rank->step_ns = calloc(scope->n, sizeof *rank->step_ns);
    rank->step = calloc(scope->n, sizeof *rank->step);
    if (!rank->step_ns || !rank->step)
        return dpt_fail_nomem(err, "steps of '%s'", rank->path);
    rank->n_steps = scope->n;
    rank->first_step = scope->steps[0].number;
    for (size_t s = 0; s < scope->n; s++) {
        rank->step[s] = scope->steps[s].number;
        rank->step_ns[s] = scope->steps[s].end_ns - scope->steps[s].begin_ns;
    }
    return DPT_OK;
}

/* The figures of a rank that need no other rank. */
static enum dpt_status compute_rank(struct work *w, size_t r, const struct dpt_report *report,
                                    struct dpt_report_rank *rank, struct dpt_err *err)
{
    const struct report_trace *trace = &w->sources[r].trace;
    const struct report_scope *scope = &w->sources[r].scope;
    rank->rank = trace->head.rank;
    rank->dropped_events = trace->head.dropped_events;
    rank->path = strdup(trace->path);
    if (!rank->path)
        return dpt_fail_nomem(err, "report of '%s'", trace->path);
    DPT_TRY(take_steps(scope, rank, err));
    DPT_TRY(report_breakdown(trace, scope, rank, err));
    DPT_TRY(report_ops_find(trace, scope, rank, err));
    DPT_TRY(report_memory_find(trace, report->began_ns, rank, err));
    DPT_TRY(report_phases_find(trace, scope, &w->phases[r], err));
    rank->phases = report_phases_sum(&w->phases[r]);
    return report_calls_find(trace, scope, report->world_size, &w->calls[r], err);
}

/* The figures of a rank that the waits are part of. */
static enum dpt_status compute_times(struct work *w, size_t r, struct dpt_report_rank *rank,
                                     struct dpt_err *err)
{
    report_calls_sum(&w->calls[r], rank->collective);
    DPT_TRY(report_calls_waited(&w->calls[r], &rank->phases.peer_wait_ns, err));
    w->times[r] = calloc(w->sources[r].scope.n, sizeof **w->times);
    if (!w->times[r])
        return dpt_fail_nomem(err, "times of '%s'", rank->path);
    return report_times_find(&w->sources[r].trace, &w->sources[r].scope, &w->calls[r],
                             &w->phases[r], w->times[r], err);
}

/* ---- steps of all ranks ---- */

/* The place of a step in a scope; scope->n: it is not there. */
static size_t place_of_step(const struct report_scope *scope, int64_t number)
{
    size_t place = 0;
    while (place < scope->n && scope->steps[place].number != number)
        place++;
    return place;
}

static bool all_have_step(const struct work *w, int64_t number)
{
    for (size_t r = 0; r < w->n; r++)
        if (place_of_step(&w->sources[r].scope, number) == w->sources[r].scope.n)
            return false;
    return true;
}

/* Writes the numbers of the steps that all ranks have; returns how many. */
static size_t common_steps(const struct work *w, int64_t *numbers)
{
    const struct report_scope *first = &w->sources[0].scope;
    size_t n = 0;
    for (size_t s = 0; s < first->n; s++)
        if (all_have_step(w, first->steps[s].number))
            numbers[n++] = first->steps[s].number;
    return n;
}

static int64_t largest_peak(const struct dpt_report *report)
{
    int64_t peak = REPORT_UNKNOWN;
    for (size_t r = 0; r < report->n_ranks; r++)
        if (report->ranks[r].memory.peak > peak)
            peak = report->ranks[r].memory.peak;
    return peak;
}

static enum dpt_status judge_step_times(const struct work *w, const int64_t *numbers,
                                        size_t n_steps, struct dpt_report *report,
                                        struct dpt_err *err)
{
    struct report_step_times *at = calloc(w->n * n_steps, sizeof *at);
    int *ranks = calloc(w->n, sizeof *ranks);
    if (!at || !ranks) {
        free(at);
        free(ranks);
        return dpt_fail_nomem(err, "times of %zu ranks", w->n);
    }
    for (size_t r = 0; r < w->n; r++) {
        ranks[r] = report->ranks[r].rank;
        for (size_t s = 0; s < n_steps; s++)
            at[r * n_steps + s] = w->times[r][place_of_step(&w->sources[r].scope, numbers[s])];
    }
    report_verdict_find(&(struct report_run_times){.at = at,
                                                   .n_ranks = w->n,
                                                   .n_steps = n_steps,
                                                   .rank = ranks,
                                                   .strategy = report->strategy,
                                                   .world_size = report->world_size,
                                                   .memory_peak = largest_peak(report),
                                                   .setup = report->setup},
                        &report->verdict);
    free(at);
    free(ranks);
    return DPT_OK;
}

/* Draws the step in the middle of the window. */
static enum dpt_status draw_timelines(const struct work *w, int64_t number,
                                      struct dpt_report *report, struct dpt_err *err)
{
    int64_t zero_ns = INT64_MAX;
    report->timeline_step = number;
    for (size_t r = 0; r < w->n; r++) {
        const struct report_scope *scope = &w->sources[r].scope;
        const int64_t begin_ns = scope->steps[place_of_step(scope, number)].begin_ns;
        zero_ns = begin_ns < zero_ns ? begin_ns : zero_ns;
    }
    for (size_t r = 0; r < w->n; r++) {
        const struct report_scope *scope = &w->sources[r].scope;
        DPT_TRY(report_timeline_find(&w->sources[r].trace, scope,
                                     &scope->steps[place_of_step(scope, number)], zero_ns,
                                     &report->ranks[r], err));
    }
    return DPT_OK;
}

static enum dpt_status compute_run(const struct work *w, struct dpt_report *report,
                                   struct dpt_err *err)
{
    int64_t *numbers = calloc(w->sources[0].scope.n, sizeof *numbers);
    if (!numbers)
        return dpt_fail_nomem(err, "steps of '%s'", report->ranks[0].path);
    const size_t n = common_steps(w, numbers);
    enum dpt_status status =
        n > 0 ? judge_step_times(w, numbers, n, report, err)
              : dpt_fail(err, DPT_EPROTO,
                         "no step is in the traces of all ranks: trace more steps (trace.active), "
                         "or use --include-last-step");
    if (status == DPT_OK)
        status = draw_timelines(w, numbers[n / 2], report, err);
    free(numbers);
    return status;
}

/* ---- the report ---- */

static void take_heads(const struct report_source *sources, size_t n, const char *strategy,
                       struct dpt_report *report)
{
    const struct report_head *head = &sources[0].trace.head;
    (void)snprintf(report->strategy, sizeof report->strategy, "%s",
                   head->strategy[0] ? head->strategy : strategy);
    (void)snprintf(report->name, sizeof report->name, "%s", report->strategy);
    (void)snprintf(report->source, sizeof report->source, "%s", head->is_dpt ? "dpt" : "pytorch");
    report->world_size = head->world_size;
    report->generation = head->generation;
    report->window = head->window;
    report->clock_error_ns = REPORT_UNKNOWN;
    report->began_ns = INT64_MAX;
    report->setup = head->setup;
    for (size_t i = 0; i < n; i++) {
        const int64_t free_bytes = sources[i].trace.head.setup.memory_free;
        if (free_bytes < report->setup.memory_free)
            report->setup.memory_free = free_bytes;
        const int64_t error_ns = sources[i].trace.head.clock_error_ns,
                      begin_ns = sources[i].scope.steps[0].begin_ns;
        if (error_ns > report->clock_error_ns)
            report->clock_error_ns = error_ns;
        if (begin_ns < report->began_ns)
            report->began_ns = begin_ns;
    }
}

static enum dpt_status compute_ranks(struct work *w, struct dpt_report *report, struct dpt_err *err)
{
    const int64_t error_ns = report->clock_error_ns > 0 ? report->clock_error_ns : 0;
    for (size_t r = 0; r < w->n; r++)
        DPT_TRY(compute_rank(w, r, report, &report->ranks[r], err));
    DPT_TRY(report_calls_estimate_waits(w->calls, w->n, error_ns, err));
    for (size_t r = 0; r < w->n; r++)
        DPT_TRY(compute_times(w, r, &report->ranks[r], err));
    return compute_run(w, report, err);
}

enum dpt_status report_compute(const struct report_source *sources, size_t n, const char *strategy,
                               struct dpt_report *ret, struct dpt_err *err)
{
    struct work w = {.sources = sources, .n = n};
    memset(ret, 0, sizeof *ret);
    take_heads(sources, n, strategy, ret);
    w.calls = calloc(n, sizeof *w.calls);
    w.phases = calloc(n, sizeof *w.phases);
    w.times = calloc(n, sizeof *w.times);
    ret->ranks = calloc(n, sizeof *ret->ranks);
    enum dpt_status status = DPT_ENOMEM;
    if (w.calls && w.phases && w.times && ret->ranks) {
        ret->n_ranks = n;
        status = compute_ranks(&w, ret, err);
    } else {
        status = dpt_fail_nomem(err, "report of %zu ranks", n);
    }
    free_work(&w);
    if (status == DPT_OK)
        report_means_find(ret);
    return status;
}

enum dpt_status report_of_files(char *const *paths, size_t n, const struct report_options *options,
                                struct dpt_report *ret, struct report_warnings *warnings,
                                struct dpt_err *err)
{
    struct report_source *sources = calloc(n, sizeof *sources);
    memset(ret, 0, sizeof *ret);
    if (!sources)
        return dpt_fail_nomem(err, "traces of %zu ranks", n);
    enum dpt_status status = report_sources_read(paths, n, options, sources, warnings, err);
    if (status == DPT_OK)
        status = report_compute(sources, n, options->strategy, ret, err);
    report_sources_free(sources, n);
    free(sources);
    return status;
}
