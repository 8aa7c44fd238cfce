/* Reads a trace file (trace.h). */
#include "worker/report/trace.h"

#include "base/array.h"
#include "worker/report/event_args.h"
#include "worker/report/head.h"
#include "worker/report/trace_text.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { EVENTS_MAX = 1 << 28, LANES_MAX = 1 << 16 };

/* About 126 years, and 23 days. The second is also the limit of the sum over the events of a file,
 * so that sums over 4,096 ranks have room in 64 bits of nanoseconds. */
static const double begin_max_us = 4e15, dur_max_us = 2e12;

/* The event that is read now. */
struct source {
    const json_t *object, *args;
    const char *path, *name, *phase, *category;
    int64_t index;
};

static enum dpt_status find_lane(struct report_trace *t, const struct source *source, int32_t *ret,
                                 struct dpt_err *err)
{
    const int64_t process = (int64_t)json_integer_value(json_object_get(source->object, "pid")),
                  thread = (int64_t)json_integer_value(json_object_get(source->object, "tid"));
    for (size_t i = 0; i < t->n_lanes; i++)
        if (t->lanes[i].thread == thread && t->lanes[i].process == process) {
            *ret = (int32_t)i;
            return DPT_OK;
        }
    if (t->n_lanes == LANES_MAX)
        return dpt_fail(err, DPT_EOVERFLOW, "'%s': more than %d threads", t->path, LANES_MAX);
    if (!dpt_array_reserve(&t->lanes, &t->lanes_room, t->n_lanes + 1, sizeof *t->lanes))
        return dpt_fail_nomem(err, "threads of '%s'", t->path);
    t->lanes[t->n_lanes] = (struct report_lane){.process = process, .thread = thread};
    *ret = (int32_t)t->n_lanes++;
    return DPT_OK;
}

static enum dpt_status take_time(const struct source *source, const char *key, double most_us,
                                 int64_t *ret_ns, struct dpt_err *err)
{
    const json_t *value = json_object_get(source->object, key);
    const double us = json_is_number(value) ? json_number_value(value) : (double)NAN;
    if (!(us >= 0 && us <= most_us))
        return dpt_fail(err, DPT_EPROTO,
                        "'%s' is not a trace: event %lld ('%.100s') has no %s from 0 to %.0e us",
                        source->path, (long long)source->index, source->name, key, most_us);
    *ret_ns = (int64_t)llround(us * 1000);
    return DPT_OK;
}

/* An integer, also as text; -1: none. */
static int64_t id_of(const json_t *args, const char *key)
{
    const json_t *value = json_object_get(args, key);
    if (json_is_integer(value))
        return (int64_t)json_integer_value(value);
    const char *text = json_string_value(value);
    char *end = NULL;
    const long long number = text ? strtoll(text, &end, 10) : -1;
    return text && *text && *end == '\0' ? (int64_t)number : -1;
}

static enum report_category category_of(const char *category, int32_t stream)
{
    if (stream >= 0)
        return REPORT_KERNEL;
    if (strcmp(category, "cpu_op") == 0)
        return REPORT_CPU_OP;
    return strcmp(category, "user_annotation") == 0 ? REPORT_ANNOTATION : REPORT_OTHER;
}

static enum dpt_status add_detail(struct report_trace *t, const struct source *source,
                                  struct report_event *event, struct dpt_err *err)
{
    struct report_detail detail;
    if (event->kernel == REPORT_COMMUNICATES)
        detail = report_collective_detail(source->name, source->args);
    else if (event->stream >= 0 || !report_host_detail(source->args, &detail))
        return DPT_OK;
    if (!dpt_array_reserve(&t->details, &t->details_room, t->n_details + 1, sizeof *t->details))
        return dpt_fail_nomem(err, "events of '%s'", t->path);
    t->details[t->n_details] = detail;
    event->detail = (int32_t)t->n_details++;
    return DPT_OK;
}

/* An event with a duration. Annotations that the profiler copies to a stream are left out: the
 * kernels below them are events themselves. */
static enum dpt_status add_complete(struct report_trace *t, const struct source *source,
                                    struct dpt_err *err)
{
    struct report_event event = {.detail = -1, .kernel = REPORT_NEITHER};
    int64_t dur_ns;
    const int64_t stream = id_of(source->args, "stream");
    const bool is_copy = strcmp(source->category, "gpu_user_annotation") == 0;
    if (strcmp(source->category, "Trace") == 0 || (is_copy && stream >= 0))
        return DPT_OK;
    DPT_TRY(take_time(source, "ts", begin_max_us, &event.begin_ns, err));
    DPT_TRY(take_time(source, "dur", dur_max_us, &dur_ns, err));
    t->sum_ns += dur_ns;
    if ((double)t->sum_ns > dur_max_us * 1000)
        return dpt_fail(err, DPT_EPROTO,
                        "'%s' is not a trace: its events take more than %.0e us together", t->path,
                        dur_max_us);
    event.end_ns = event.begin_ns + dur_ns;
    event.stream = stream >= 0 && stream <= INT_MAX ? (int32_t)stream : -1;
    event.correlation = id_of(source->args, "correlation");
    event.category = category_of(source->category, event.stream);
    if (event.stream >= 0)
        event.kernel = report_kernel_class_of(source->name);
    DPT_TRY(report_names_add(&t->names, source->name, &event.name, err));
    DPT_TRY(find_lane(t, source, &event.lane, err));
    DPT_TRY(add_detail(t, source, &event, err));
    if (t->n == EVENTS_MAX)
        return dpt_fail(err, DPT_EOVERFLOW, "'%s': more than %d events", t->path, EVENTS_MAX);
    if (!dpt_array_reserve(&t->events, &t->events_room, t->n + 1, sizeof *t->events))
        return dpt_fail_nomem(err, "events of '%s'", t->path);
    t->events[t->n++] = event;
    return DPT_OK;
}

static enum dpt_status add_memory(struct report_trace *t, const struct source *source,
                                  struct dpt_err *err)
{
    enum { DEVICE_TYPE_CUDA = 1 };
    struct report_memory_event event = {
        .allocated_bytes =
            (int64_t)json_integer_value(json_object_get(source->args, "Total Allocated")),
        .is_device = id_of(source->args, "Device Type") == DEVICE_TYPE_CUDA};
    DPT_TRY(take_time(source, "ts", begin_max_us, &event.at_ns, err));
    if (!json_is_integer(json_object_get(source->args, "Total Allocated")))
        return DPT_OK; /* older profilers give no total */
    if (!dpt_array_reserve(&t->memory, &t->memory_room, t->n_memory + 1, sizeof *t->memory))
        return dpt_fail_nomem(err, "memory events of '%s'", t->path);
    t->memory[t->n_memory++] = event;
    return DPT_OK;
}

static enum dpt_status name_lane(struct report_trace *t, const struct source *source,
                                 struct dpt_err *err)
{
    int32_t lane;
    const char *name = json_string_value(json_object_get(source->args, "name"));
    if (!name)
        return DPT_OK;
    DPT_TRY(find_lane(t, source, &lane, err));
    (void)snprintf(t->lanes[lane].name, sizeof t->lanes[lane].name, "%s", name);
    return DPT_OK;
}

static enum dpt_status take_object(struct report_trace *t, const struct source *source,
                                   struct dpt_err *err)
{
    if (!source->name || !source->phase)
        return DPT_OK;
    if (strcmp(source->phase, "X") == 0 && source->category)
        return add_complete(t, source, err);
    if (strcmp(source->phase, "i") == 0 && strcmp(source->name, "[memory]") == 0)
        return add_memory(t, source, err);
    if (strcmp(source->phase, "M") == 0 && strcmp(source->name, "thread_name") == 0)
        return name_lane(t, source, err);
    return DPT_OK;
}

static enum dpt_status take_event(void *ctx, const char *text, size_t bytes, int64_t index,
                                  struct dpt_err *err)
{
    struct report_trace *t = ctx;
    json_error_t why;
    json_t *object = json_loadb(text, bytes, 0, &why);
    if (!object)
        return dpt_fail(err, DPT_ECORRUPT, "'%s' is damaged: event %lld is not JSON: %s", t->path,
                        (long long)index, why.text);
    const struct source source = {.object = object,
                                  .args = json_object_get(object, "args"),
                                  .path = t->path,
                                  .name = json_string_value(json_object_get(object, "name")),
                                  .phase = json_string_value(json_object_get(object, "ph")),
                                  .category = json_string_value(json_object_get(object, "cat")),
                                  .index = index};
    const enum dpt_status status = take_object(t, &source, err);
    json_decref(object);
    return status;
}

/* Times become times since 1970. */
static void add_base(struct report_trace *t)
{
    for (size_t i = 0; i < t->n; i++) {
        t->events[i].begin_ns += t->head.base_ns;
        t->events[i].end_ns += t->head.base_ns;
    }
    for (size_t i = 0; i < t->n_memory; i++)
        t->memory[i].at_ns += t->head.base_ns;
}

enum dpt_status report_trace_read(const char *path, struct report_trace *trace, struct dpt_err *err)
{
    const struct report_text_sink sink = {.take = take_event, .ctx = trace};
    char *head;
    *trace = (struct report_trace){.path = strdup(path)};
    if (!trace->path)
        return dpt_fail_nomem(err, "trace '%s'", path);
    DPT_TRY(report_text_read(path, &sink, &head, err));
    const enum dpt_status status = report_head_parse(path, head, &trace->head, err);
    free(head);
    DPT_TRY(status);
    if (trace->n == 0)
        return dpt_fail(err, DPT_EPROTO, "'%s' has no events with a duration", path);
    add_base(trace);
    return DPT_OK;
}

void report_trace_free(struct report_trace *trace)
{
    free(trace->path);
    report_names_free(&trace->names);
    free(trace->events);
    free(trace->details);
    free(trace->lanes);
    free(trace->memory);
    *trace = (struct report_trace){0};
}

const char *report_event_name(const struct report_trace *trace, const struct report_event *event)
{
    return trace->names.text[event->name];
}
