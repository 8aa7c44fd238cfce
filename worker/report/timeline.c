/* The timeline of one step (timeline.h). */
#include "worker/report/timeline.h"

#include "base/array.h"
#include "worker/report/phases.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Neighbours in a lane become one span if the gap between them and the shorter of them are below
 * this part of the step. It doubles until the spans fit. */
static const double first_grain = 1.0 / 2000;

struct piece {
    const struct report_event *event;
    enum dpt_report_span_class class;
    int64_t begin_ns, end_ns;
    int64_t events; /* that it stands for */
};

struct pieces {
    struct piece *at;
    size_t n, room;
};

static enum dpt_report_span_class class_of_phase(enum report_phase phase)
{
    switch (phase) {
    case REPORT_PHASE_OPTIMIZER:
        return REPORT_SPAN_OPTIMIZER;
    case REPORT_PHASE_GRAD_SYNC:
    case REPORT_PHASE_SYNC:
        return REPORT_SPAN_WAIT;
    case REPORT_PHASE_DATA:
        return REPORT_SPAN_DATA;
    case REPORT_PHASE_SAVE:
        return REPORT_SPAN_CHECKPOINT;
    case REPORT_PHASE_FORWARD:
    case REPORT_PHASE_BACKWARD:
    case REPORT_PHASE_EVALUATION:
    case REPORT_PHASE_FORMATION:
    case REPORT_PHASES:
        break;
    }
    return REPORT_SPAN_PHASE;
}

/* Whether the event is drawn; *ret is its class. */
static bool is_drawn(const struct report_trace *trace, const struct report_scope *scope,
                     const struct report_event *event, enum dpt_report_span_class *ret)
{
    const char *name = report_event_name(trace, event);
    if (event->stream >= 0) {
        *ret =
            event->kernel == REPORT_COMMUNICATES ? REPORT_SPAN_COMMUNICATION : REPORT_SPAN_COMPUTE;
        return event->kernel != REPORT_NEITHER;
    }
    if (event->category != REPORT_ANNOTATION || strncmp(name, "ProfilerStep#", 13) == 0)
        return false;
    *ret = class_of_phase(report_phase_of(name));
    if (event->lane == scope->main_lane)
        return true;
    if (strcmp(name, "read micro-batch") == 0)
        *ret = REPORT_SPAN_DATA;
    else if (strcmp(name, "write checkpoint") == 0 || strcmp(name, "commit checkpoint") == 0)
        *ret = REPORT_SPAN_CHECKPOINT;
    else if (strncmp(name, "receive from", 12) == 0)
        *ret = REPORT_SPAN_COMMUNICATION;
    else
        return *ret == REPORT_SPAN_WAIT;
    return true;
}

/* Lanes of the host first, then the streams; by time; a longer event before those within it. */
static int compare_pieces(const void *left, const void *right)
{
    const struct piece *a = left, *b = right;
    const int64_t keys[][2] = {{a->event->stream, b->event->stream},
                               {a->event->lane, b->event->lane},
                               {a->begin_ns, b->begin_ns},
                               {b->end_ns, a->end_ns}};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (keys[i][0] != keys[i][1])
            return keys[i][0] < keys[i][1] ? -1 : 1;
    return 0;
}

static bool share_lane(const struct piece *a, const struct piece *b)
{
    return a->event->stream == b->event->stream && a->event->lane == b->event->lane;
}

static bool collect_pieces(const struct report_trace *trace, const struct report_scope *scope,
                           const struct report_step *step, struct pieces *pieces)
{
    for (size_t i = 0; i < trace->n; i++) {
        const struct report_event *event = &trace->events[i];
        enum dpt_report_span_class class;
        if (event->end_ns <= step->begin_ns || event->begin_ns >= step->end_ns ||
            !is_drawn(trace, scope, event, &class))
            continue;
        if (!dpt_array_reserve(&pieces->at, &pieces->room, pieces->n + 1, sizeof *pieces->at))
            return false;
        pieces->at[pieces->n++] = (struct piece){event, class, event->begin_ns, event->end_ns, 1};
    }
    if (pieces->n > 0)
        qsort(pieces->at, pieces->n, sizeof *pieces->at, compare_pieces);
    return true;
}

/* Leaves out what lies within an event of its lane: units within a pass. */
static void keep_outermost(struct pieces *pieces)
{
    size_t n = 0;
    for (size_t i = 0; i < pieces->n; i++) {
        struct piece piece = pieces->at[i];
        if (n > 0 && share_lane(&pieces->at[n - 1], &piece)) {
            if (piece.end_ns <= pieces->at[n - 1].end_ns)
                continue;
            if (piece.begin_ns < pieces->at[n - 1].end_ns)
                piece.begin_ns = pieces->at[n - 1].end_ns;
        }
        pieces->at[n++] = piece;
    }
    pieces->n = n;
}

static void join_neighbours(struct pieces *pieces, int64_t grain_ns)
{
    size_t n = 0;
    for (size_t i = 0; i < pieces->n; i++) {
        const struct piece *piece = &pieces->at[i];
        struct piece *before = n > 0 ? &pieces->at[n - 1] : NULL;
        const bool joins = before && share_lane(before, piece) && before->class == piece->class &&
                           piece->begin_ns - before->end_ns < grain_ns &&
                           (piece->end_ns - piece->begin_ns < grain_ns ||
                            before->end_ns - before->begin_ns < grain_ns);
        if (joins) {
            before->end_ns = piece->end_ns;
            before->events += piece->events;
        } else {
            pieces->at[n++] = *piece;
        }
    }
    pieces->n = n;
}

static void write_span(const struct report_trace *trace, const struct report_scope *scope,
                       const struct piece *piece, int64_t zero_ns, struct dpt_report_span *ret)
{
    const struct report_event *event = piece->event;
    const char *lane = trace->lanes[event->lane].name;
    *ret = (struct dpt_report_span){.class = piece->class,
                                    .begin_ns = piece->begin_ns - zero_ns,
                                    .end_ns = piece->end_ns - zero_ns};
    if (event->stream >= 0)
        (void)snprintf(ret->lane, sizeof ret->lane, "stream %d", (int)event->stream);
    else if (event->lane == scope->main_lane)
        (void)snprintf(ret->lane, sizeof ret->lane, "main");
    else if (*lane)
        (void)snprintf(ret->lane, sizeof ret->lane, "%.*s", (int)sizeof ret->lane - 1, lane);
    else
        (void)snprintf(ret->lane, sizeof ret->lane, "thread %lld",
                       (long long)trace->lanes[event->lane].thread);
    if (piece->events > 1)
        (void)snprintf(ret->name, sizeof ret->name, "%lld ops", (long long)piece->events);
    else
        (void)snprintf(ret->name, sizeof ret->name, "%.*s", REPORT_NAME_BYTES - 1,
                       report_event_name(trace, event));
}

enum dpt_status report_timeline_find(const struct report_trace *trace,
                                     const struct report_scope *scope,
                                     const struct report_step *step, int64_t zero_ns,
                                     struct dpt_report_rank *ret_rank, struct dpt_err *err)
{
    struct pieces pieces = {0};
    const double step_ns = (double)(step->end_ns - step->begin_ns);
    double grain_ns = step_ns * first_grain + 1;
    bool fits = collect_pieces(trace, scope, step, &pieces);
    if (fits) {
        keep_outermost(&pieces);
        join_neighbours(&pieces, (int64_t)grain_ns);
    }
    while (pieces.n > REPORT_SPANS_MAX && grain_ns <= step_ns) {
        grain_ns *= 2;
        join_neighbours(&pieces, (int64_t)grain_ns);
    }
    /* More lanes and classes than spans: the rest is not drawn. */
    const size_t n = pieces.n < REPORT_SPANS_MAX ? pieces.n : REPORT_SPANS_MAX;
    ret_rank->spans = fits ? calloc(n + 1, sizeof *ret_rank->spans) : NULL;
    fits = ret_rank->spans != NULL;
    for (size_t i = 0; i < n && fits; i++)
        write_span(trace, scope, &pieces.at[i], zero_ns, &ret_rank->spans[i]);
    ret_rank->n_spans = fits ? n : 0;
    free(pieces.at);
    return fits ? DPT_OK : dpt_fail_nomem(err, "timeline of '%s'", trace->path);
}
