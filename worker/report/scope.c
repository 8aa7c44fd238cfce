/* The part of a trace that counts (scope.h). */
#include "worker/report/scope.h"

#include "base/array.h"

#include <stdlib.h>
#include <string.h>

enum { US = 1000 }; /* nanoseconds */

static const int64_t step_max = (int64_t)1000000000000000; /* numbers of steps can be added */

/* Events count up to a time, in whole microseconds: before `cut_us`, or at it. */
struct limit {
    int64_t cut_us;
    bool inclusive;
};

static int64_t round_up_us(int64_t ns)
{
    return (ns + US - 1) / US;
}

/* The number of "ProfilerStep#7"; -1: another name. */
static int64_t step_number(const char *name)
{
    static const char prefix[] = "ProfilerStep#";
    char *end = NULL;
    if (strncmp(name, prefix, sizeof prefix - 1) != 0)
        return -1;
    const long long number = strtoll(name + sizeof prefix - 1, &end, 10);
    return end != name + sizeof prefix - 1 && number >= 0 && number <= step_max ? (int64_t)number
                                                                                : -1;
}

static int compare_steps(const void *left, const void *right)
{
    const struct report_step *a = left, *b = right;
    return a->begin_ns < b->begin_ns ? -1 : a->begin_ns > b->begin_ns;
}

/* Finds the steps of the trace, in order of time. */
static bool find_steps(const struct report_trace *trace, struct report_scope *scope)
{
    size_t room = 0;
    scope->main_lane = -1;
    for (size_t i = 0; i < trace->n; i++) {
        const struct report_event *event = &trace->events[i];
        const int64_t number = event->category == REPORT_ANNOTATION
                                   ? step_number(report_event_name(trace, event))
                                   : -1;
        if (number < 0)
            continue;
        if (!dpt_array_reserve(&scope->steps, &room, scope->n + 1, sizeof *scope->steps))
            return false;
        scope->steps[scope->n++] = (struct report_step){number, event->begin_ns, event->end_ns};
        scope->main_lane = event->lane;
    }
    if (scope->n > 1)
        qsort(scope->steps, scope->n, sizeof *scope->steps, compare_steps);
    scope->n_traced = scope->n;
    return true;
}

/* The whole trace as one step. */
static bool take_whole_trace(const struct report_trace *trace, struct report_scope *scope)
{
    scope->steps = calloc(1, sizeof *scope->steps);
    if (!scope->steps)
        return false;
    struct report_step all = {0, INT64_MAX, INT64_MIN};
    for (size_t i = 0; i < trace->n; i++) {
        const struct report_event *event = &trace->events[i];
        all.begin_ns = event->begin_ns < all.begin_ns ? event->begin_ns : all.begin_ns;
        all.end_ns = event->end_ns > all.end_ns ? event->end_ns : all.end_ns;
    }
    *scope->steps = all;
    scope->n = 1;
    return true;
}

static struct limit limit_of(const struct report_scope *scope, bool include_last)
{
    int64_t end_ns = 0;
    for (size_t i = 0; i < scope->n; i++)
        end_ns = scope->steps[i].end_ns > end_ns ? scope->steps[i].end_ns : end_ns;
    return include_last ? (struct limit){end_ns / US, true}
                        : (struct limit){round_up_us(scope->steps[scope->n - 1].begin_ns), false};
}

static bool is_before(const struct limit *limit, int64_t begin_ns)
{
    const int64_t begin_us = round_up_us(begin_ns);
    return begin_us < limit->cut_us || (limit->inclusive && begin_us == limit->cut_us);
}

static bool is_kernel(const struct report_event *event)
{
    return event->stream >= 0 && event->correlation >= 0;
}

static int compare_numbers(const void *left, const void *right)
{
    const int64_t *a = left, *b = right;
    return *a < *b ? -1 : *a > *b;
}

/* Marks the events on the host before the limit, and the kernels that they launched. */
static bool mark_counted(const struct report_trace *trace, const struct limit *limit,
                         struct report_scope *scope)
{
    int64_t *launched = calloc(trace->n, sizeof *launched);
    size_t n = 0;
    if (!launched)
        return false;
    for (size_t i = 0; i < trace->n; i++) {
        const struct report_event *event = &trace->events[i];
        if (is_kernel(event) || !is_before(limit, event->begin_ns))
            continue;
        scope->counted[i] = true;
        if (event->correlation >= 0)
            launched[n++] = event->correlation;
    }
    qsort(launched, n, sizeof *launched, compare_numbers);
    for (size_t i = 0; i < trace->n; i++)
        if (is_kernel(&trace->events[i]))
            scope->counted[i] = bsearch(&trace->events[i].correlation, launched, n,
                                        sizeof *launched, compare_numbers) != NULL;
    free(launched);
    return true;
}

enum dpt_status report_scope_find(const struct report_trace *trace, bool include_last,
                                  struct report_scope *scope, struct dpt_err *err)
{
    *scope = (struct report_scope){.counted = malloc(trace->n * sizeof *scope->counted)};
    if (!scope->counted || !find_steps(trace, scope))
        return dpt_fail_nomem(err, "steps of '%s'", trace->path);
    if (scope->n < 2) {
        memset(scope->counted, 1, trace->n * sizeof *scope->counted);
        if (scope->n == 0 && !take_whole_trace(trace, scope))
            return dpt_fail_nomem(err, "steps of '%s'", trace->path);
        scope->until_ns = scope->steps[0].end_ns;
        return DPT_OK;
    }
    const struct limit limit = limit_of(scope, include_last);
    memset(scope->counted, 0, trace->n * sizeof *scope->counted);
    if (!mark_counted(trace, &limit, scope))
        return dpt_fail_nomem(err, "steps of '%s'", trace->path);
    if (!include_last)
        scope->n--;
    scope->until_ns =
        include_last ? scope->steps[scope->n - 1].end_ns : scope->steps[scope->n].begin_ns;
    return DPT_OK;
}

void report_scope_free(struct report_scope *scope)
{
    free(scope->steps);
    free(scope->counted);
    *scope = (struct report_scope){0};
}
