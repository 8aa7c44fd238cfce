/* The steps and the time of a trace file (file_span.h). */
#include "worker/report/file_span.h"

#include "worker/report/check.h"
#include "worker/report/trace_text.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

static const char step_prefix[] = "ProfilerStep#";
/* About 126 years: later times are no times of a trace (trace.c). */
static const double time_max_us = 4e15;

struct reading {
    struct report_file_span span;
    bool any;
    bool steps_only;
};

static void add_event(struct reading *r, int64_t step, double begin_us, double dur_us)
{
    const int64_t begin_ns = (int64_t)(begin_us * 1000),
                  end_ns = (int64_t)((begin_us + dur_us) * 1000);
    struct report_file_span *span = &r->span;
    if (!r->any) {
        *span = (struct report_file_span){step, step, begin_ns, end_ns};
        r->any = true;
        return;
    }
    span->first_step = step < span->first_step ? step : span->first_step;
    span->last_step = step > span->last_step ? step : span->last_step;
    span->begin_ns = begin_ns < span->begin_ns ? begin_ns : span->begin_ns;
    span->end_ns = end_ns > span->end_ns ? end_ns : span->end_ns;
}

static bool is_time(const json_t *value)
{
    return json_is_number(value) && json_number_value(value) >= 0 &&
           json_number_value(value) <= time_max_us;
}

/* Events that are damaged have no time here. The report that reads them refuses the file. */
static void take_object(struct reading *r, const json_t *object)
{
    const char *name = json_string_value(json_object_get(object, "name"));
    const json_t *begin = json_object_get(object, "ts"), *dur = json_object_get(object, "dur");
    int64_t step = REPORT_UNKNOWN;
    if (!name || !is_time(begin) || !is_time(dur))
        return;
    if (strncmp(name, step_prefix, sizeof step_prefix - 1) == 0)
        step = (int64_t)strtoll(name + sizeof step_prefix - 1, NULL, 10);
    else if (r->steps_only)
        return;
    add_event(r, step, json_number_value(begin), json_number_value(dur));
}

static enum dpt_status take_event(void *ctx, const char *event, size_t bytes, int64_t index,
                                  struct dpt_err *err)
{
    struct reading *r = ctx;
    (void)index;
    (void)err;
    if (r->steps_only && !memmem(event, bytes, step_prefix, sizeof step_prefix - 1))
        return DPT_OK;
    json_t *object = json_loadb(event, bytes, 0, NULL);
    take_object(r, object);
    json_decref(object);
    return DPT_OK;
}

static enum dpt_status read_events(const char *path, struct reading *r, struct dpt_err *err)
{
    const struct report_text_sink sink = {.take = take_event, .ctx = r};
    char *head;
    DPT_TRY(report_text_read(path, &sink, &head, err));
    free(head);
    return DPT_OK;
}

enum dpt_status report_file_span_read(const char *path, int64_t base_ns,
                                      struct report_file_span *ret, struct dpt_err *err)
{
    struct reading r = {.steps_only = true};
    DPT_TRY(read_events(path, &r, err));
    if (!r.any) {
        r.steps_only = false;
        DPT_TRY(read_events(path, &r, err));
    }
    if (!r.any)
        return dpt_fail(err, DPT_EPROTO, "'%s' has no events with a duration", path);
    r.span.begin_ns += base_ns;
    r.span.end_ns += base_ns;
    *ret = r.span;
    return DPT_OK;
}

static bool times_meet(const struct report_file_span *a, const struct report_file_span *b,
                       int64_t apart_ns)
{
    return a->begin_ns <= b->end_ns + apart_ns && b->begin_ns <= a->end_ns + apart_ns;
}

bool report_file_spans_meet(const struct report_file_span *a, const struct report_file_span *b)
{
    if (a->first_step == REPORT_UNKNOWN || b->first_step == REPORT_UNKNOWN)
        return times_meet(a, b, 0);
    return a->first_step <= b->last_step && b->first_step <= a->last_step &&
           times_meet(a, b, REPORT_CLOCKS_DIFFER_NS);
}
