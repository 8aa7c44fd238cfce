/* Prints a trace as JSON (kineto.h). */
#include "worker/trace/kineto.h"

#include "worker/trace/kineto_device.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    LINE_BYTES_MAX = 1024, /* of a part of an event */
    BUFFER_BYTES = 1 << 16,
    STREAMS_MAX = 64, /* collectives under way at once; a further one shares the last stream */
    /* Tools round the begin up and the end down to 1 us: a shorter launch would end before it
     * begins. */
    LAUNCH_NS = 1000,
    DEVICE = 0 /* Kineto's process number of the events of device 0 */
};

static const struct {
    const char *kernel, *collective; /* names of NCCL's kernel and of PyTorch's call */
} collectives[DPT_TRACE_COLLECTIVE_COUNT] = {
    [DPT_TRACE_ALL_GATHER] = {"ncclDevKernel_AllGather_host", "_allgather_base"},
    [DPT_TRACE_REDUCE_SCATTER] = {"ncclDevKernel_ReduceScatter_Sum_host", "_reduce_scatter_base"},
    [DPT_TRACE_ALL_REDUCE] = {"ncclDevKernel_AllReduce_Sum_host", "allreduce"},
    [DPT_TRACE_SEND_RECV] = {"ncclDevKernel_SendRecv_host", "send"},
};

/* PyTorch's description of the group of all ranks, and ours of others. */
static const char *const group_descriptions[] = {[DPT_TRACE_WORLD] = "default_pg",
                                                 [DPT_TRACE_NODE] = "node_pg",
                                                 [DPT_TRACE_ACROSS] = "across_nodes_pg"};

struct printer {
    const struct dpt_kineto_trace *trace;
    const struct dpt_kineto_sink *sink;
    enum dpt_status status;
    struct dpt_err *err;
    bool follows; /* an event was printed */
    int64_t correlation;
    size_t used;
    char buffer[BUFFER_BYTES];
};

static void flush_buffer(struct printer *p)
{
    if (p->status == DPT_OK && p->used > 0)
        p->status = p->sink->write(p->sink->ctx, p->buffer, p->used, p->err);
    p->used = 0;
}

static void DPT_PRINTF(2, 3) add_text(struct printer *p, const char *fmt, ...)
{
    va_list ap;
    if (BUFFER_BYTES - p->used < LINE_BYTES_MAX)
        flush_buffer(p);
    va_start(ap, fmt);
    const int n = vsnprintf(p->buffer + p->used, BUFFER_BYTES - p->used, fmt, ap);
    va_end(ap);
    DPT_ASSERT(n >= 0 && n < LINE_BYTES_MAX);
    p->used += (size_t)n;
}

static void separate_events(struct printer *p)
{
    add_text(p, "%s\n    ", p->follows ? "," : "");
    p->follows = true;
}

/* ---- one event ---- */

/* Where and when. */
struct place {
    const char *category;
    int64_t process, thread;
    int64_t begin_ns, end_ns;
};

/* Begins an event; end_event ends it. The arguments come between. */
static void begin_event(struct printer *p, const struct place *at, const char *name)
{
    const int64_t begin_ns = at->begin_ns - p->trace->base_event_ns,
                  dur_ns = at->end_ns - at->begin_ns;
    separate_events(p);
    add_text(p,
             "{\"ph\": \"X\", \"cat\": \"%s\", \"name\": \"%s\", \"pid\": %lld, \"tid\": %lld, "
             "\"ts\": %lld.%03d, \"dur\": %lld.%03d, \"args\": {",
             at->category, name, (long long)at->process, (long long)at->thread,
             (long long)(begin_ns / 1000), (int)(begin_ns % 1000), (long long)(dur_ns / 1000),
             (int)(dur_ns % 1000));
}

static void end_event(struct printer *p)
{
    add_text(p, "}}");
}

static void print_values(struct printer *p, const struct dpt_trace_span *span, const char *before)
{
    for (int i = 0; i < DPT_TRACE_ARGS; i++)
        if (span->key[i]) {
            add_text(p, "%s\"%s\": %lld", before, span->key[i], (long long)span->value[i]);
            before = ", ";
        }
}

/* An event on the thread that recorded it. */
static void print_on_thread(struct printer *p, const struct place *at,
                            const struct dpt_trace_span *span)
{
    char step[40];
    (void)snprintf(step, sizeof step, "ProfilerStep#%lld", (long long)span->value[0]);
    begin_event(p, at, span->kind == DPT_TRACE_STEP ? step : span->name);
    print_values(p, span, "");
    end_event(p);
}

/* The launch of the kernel that follows. */
static void print_launch(struct printer *p, const struct place *op)
{
    struct place at = *op;
    at.category = "cuda_runtime";
    at.end_ns = at.begin_ns + LAUNCH_NS;
    begin_event(p, &at, "cudaLaunchKernel");
    add_text(p, "\"cbid\": 211, \"correlation\": %lld", (long long)++p->correlation);
    end_event(p);
}

static bool is_collective(const struct dpt_trace_span *span)
{
    return span->kind == DPT_TRACE_COLLECTIVE || span->kind == DPT_TRACE_DEVICE_COLLECTIVE;
}

static void print_collective_args(struct printer *p, const struct dpt_trace_span *span,
                                  const char *before)
{
    add_text(p,
             "%s\"Collective name\": \"%s\", \"dtype\": \"%s\", \"Process Group Name\": \"%d\", "
             "\"Process Group Description\": \"%s\"",
             before, collectives[span->collective].collective, span->dtype, span->group.number,
             group_descriptions[span->group.scope]);
    print_values(p, span, ", ");
}

static void print_kernel(struct printer *p, const struct place *op, int stream,
                         const struct dpt_trace_span *span)
{
    const bool moves = is_collective(span);
    const struct place at = {"kernel", DEVICE, stream, op->begin_ns, op->end_ns};
    begin_event(p, &at, moves ? collectives[span->collective].kernel : span->name);
    add_text(p, "\"device\": %d, \"context\": 1, \"stream\": %d, \"correlation\": %lld", DEVICE,
             stream, (long long)p->correlation);
    if (moves)
        print_collective_args(p, span, ", ");
    else
        print_values(p, span, ", ");
    end_event(p);
}

/* ---- memory ---- */

static void begin_mark(struct printer *p, const struct dpt_trace_event *event, const char *kind,
                       int64_t thread)
{
    const int64_t at_ns = event->begin_ns - p->trace->base_event_ns;
    separate_events(p);
    add_text(p, "{%s, \"pid\": %lld, \"tid\": %lld, \"ts\": %lld.%03d, \"args\": {", kind,
             (long long)p->trace->process, (long long)thread, (long long)(at_ns / 1000),
             (int)(at_ns % 1000));
}

/* An allocation, in the form of Kineto's profile_memory: device type 0 is the CPU, 1 is CUDA. */
static void print_allocation(struct printer *p, const struct dpt_trace_event *event, int64_t thread)
{
    const int64_t *value = event->span.value;
    const bool on_gpu = value[DPT_TRACE_MEMORY_ON_GPU] != 0;
    begin_mark(p, event,
               "\"ph\": \"i\", \"s\": \"t\", \"cat\": \"cpu_instant_event\", "
               "\"name\": \"[memory]\"",
               thread);
    add_text(p,
             "\"Total Reserved\": %lld, \"Total Allocated\": %lld, \"Bytes\": %lld, "
             "\"Addr\": %lld, \"Device Id\": %d, \"Device Type\": %d",
             (long long)value[DPT_TRACE_MEMORY_RESERVED], (long long)value[DPT_TRACE_MEMORY_ALL],
             (long long)value[DPT_TRACE_MEMORY_BYTES], (long long)value[DPT_TRACE_MEMORY_ADDRESS],
             on_gpu ? DEVICE : -1, on_gpu);
    end_event(p);
}

static void print_memory_tag(struct printer *p, const struct dpt_trace_event *event, int64_t thread)
{
    char kind[128];
    (void)snprintf(kind, sizeof kind, "\"ph\": \"C\", \"name\": \"%smemory: %s\"",
                   event->span.value[DPT_TRACE_MEMORY_ON_GPU] ? "GPU " : "", event->span.name);
    begin_mark(p, event, kind, thread);
    print_values(p, &event->span, "");
    end_event(p);
}

/* Whether the event is a mark of memory, which this prints. */
static bool print_memory(struct printer *p, const struct dpt_trace_event *event, int64_t thread)
{
    if (event->span.kind == DPT_TRACE_MEMORY)
        print_allocation(p, event, thread);
    else if (event->span.kind == DPT_TRACE_MEMORY_TAG)
        print_memory_tag(p, event, thread);
    else
        return false;
    return true;
}

/* ---- the names of processes and threads ---- */

static void DPT_PRINTF(5, 6) print_name(struct printer *p, const char *kind, int64_t process,
                                        int64_t thread, const char *fmt, ...)
{
    char name[128];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(name, sizeof name, fmt, ap);
    va_end(ap);
    separate_events(p);
    add_text(p,
             "{\"ph\": \"M\", \"name\": \"%s\", \"pid\": %lld, \"tid\": %lld, \"ts\": 0, "
             "\"args\": {\"name\": \"%s\"}}",
             kind, (long long)process, (long long)thread, name);
}

static void print_thread_names(struct printer *p)
{
    const struct dpt_kineto_trace *trace = p->trace;
    print_name(p, "process_name", trace->process, 0, "rank %d of %d", trace->rank,
               trace->world_size);
    for (int i = 0; i < DPT_TRACE_TRACKS; i++)
        if (trace->tracks[i].events.n > 0)
            print_name(p, "thread_name", trace->process, trace->tracks[i].events.thread, "%s",
                       trace->tracks[i].name);
}

/* The names of a CPU that is shown as a device. */
static void print_stream_names(struct printer *p, int comm_streams)
{
    const struct dpt_kineto_trace *trace = p->trace;
    print_name(p, "process_name", DEVICE, 0, "CPU of rank %d, as a device", trace->rank);
    print_name(p, "thread_name", DEVICE, DPT_KINETO_COMPUTE_STREAM, "stream %d: compute",
               DPT_KINETO_COMPUTE_STREAM);
    for (int i = 0; i < comm_streams; i++)
        print_name(p, "thread_name", DEVICE, DPT_KINETO_COMM_STREAM + i, "stream %d: communication",
                   DPT_KINETO_COMM_STREAM + i);
}

/* ---- a track ---- */

static int compare_begins(const void *left, const void *right)
{
    const struct dpt_trace_event *a = *(const struct dpt_trace_event *const *)left,
                                 *b = *(const struct dpt_trace_event *const *)right;
    if (a->begin_ns != b->begin_ns)
        return a->begin_ns < b->begin_ns ? -1 : 1;
    return a < b ? -1 : a > b; /* all are in one array */
}

/* The first stream that is free at the event's begin, which it takes. */
static int take_stream(int64_t busy_until_ns[STREAMS_MAX], const struct dpt_trace_event *event)
{
    int stream = 0;
    while (stream < STREAMS_MAX - 1 && busy_until_ns[stream] > event->begin_ns)
        stream++;
    busy_until_ns[stream] = event->end_ns;
    return stream;
}

/* Prints the collectives of a track; returns the number of streams that they need. */
static int print_collectives(struct printer *p, const struct dpt_trace_events *events,
                             const struct dpt_trace_event **sorted)
{
    int64_t busy_until_ns[STREAMS_MAX];
    size_t n = 0;
    int streams = 0;
    for (int i = 0; i < STREAMS_MAX; i++)
        busy_until_ns[i] = INT64_MIN;
    for (size_t i = 0; i < events->n; i++)
        if (is_collective(&events->event[i].span))
            sorted[n++] = &events->event[i];
    qsort(sorted, n, sizeof *sorted, compare_begins);
    for (size_t i = 0; i < n; i++) {
        const struct place at = {"", p->trace->process, events->thread, sorted[i]->begin_ns,
                                 sorted[i]->end_ns};
        const int stream = take_stream(busy_until_ns, sorted[i]);
        print_launch(p, &at);
        print_kernel(p, &at, DPT_KINETO_COMM_STREAM + stream, &sorted[i]->span);
        streams = stream + 1 > streams ? stream + 1 : streams;
    }
    return streams;
}

static void print_others(struct printer *p, const struct dpt_trace_events *events, bool computes)
{
    for (size_t i = 0; i < events->n; i++) {
        const struct dpt_trace_event *event = &events->event[i];
        const bool op = event->span.kind == DPT_TRACE_OP;
        const struct place at = {op ? "cpu_op" : "user_annotation", p->trace->process,
                                 events->thread, event->begin_ns, event->end_ns};
        if (is_collective(&event->span) || print_memory(p, event, events->thread))
            continue;
        print_on_thread(p, &at, &event->span);
        if (!op || !computes || p->trace->device)
            continue;
        print_launch(p, &at);
        print_kernel(p, &at, DPT_KINETO_COMPUTE_STREAM, &event->span);
    }
}

/* ---- a GPU ---- */

/* The collectives of a track, on their thread: their kernels are the GPU's. */
static void print_collectives_on_thread(struct printer *p, const struct dpt_trace_events *events)
{
    char name[64];
    for (size_t i = 0; i < events->n; i++) {
        const struct dpt_trace_event *event = &events->event[i];
        const struct place at = {"user_annotation", p->trace->process, events->thread,
                                 event->begin_ns, event->end_ns};
        if (!is_collective(&event->span))
            continue;
        (void)snprintf(name, sizeof name, "%s:%s",
                       event->span.kind == DPT_TRACE_DEVICE_COLLECTIVE ? "nccl" : "host",
                       collectives[event->span.collective].collective);
        begin_event(p, &at, name);
        print_collective_args(p, &event->span, "");
        end_event(p);
    }
}

/* An arrow from a call to the work that it posted. */
static void print_flow(struct printer *p, const struct dpt_kineto_event *event)
{
    const int64_t at_ns = event->begin_ns - p->trace->base_event_ns;
    if (event->flow == DPT_KINETO_NO_FLOW)
        return;
    separate_events(p);
    add_text(p,
             "{\"ph\": \"%s\", \"cat\": \"ac2g\", \"name\": \"ac2g\", \"id\": %u, \"pid\": %lld, "
             "\"tid\": %lld, \"ts\": %lld.%03d%s}",
             event->flow == DPT_KINETO_FLOW_BEGIN ? "s" : "f", event->correlation,
             (long long)event->process, (long long)event->thread, (long long)(at_ns / 1000),
             (int)(at_ns % 1000), event->flow == DPT_KINETO_FLOW_END ? ", \"bp\": \"e\"" : "");
}

static void print_device_records(struct printer *p, const struct dpt_kineto_device *device)
{
    struct dpt_kineto_event event;
    for (size_t i = 0; i < p->trace->device->n; i++) {
        if (!dpt_kineto_device_event(device, i, &event))
            continue;
        const struct place at = {event.category, event.process, event.thread, event.begin_ns,
                                 event.end_ns};
        begin_event(p, &at, event.name);
        add_text(p, "%s", event.args);
        if (event.collective)
            print_collective_args(p, event.collective, ", ");
        end_event(p);
        print_flow(p, &event);
    }
}

static void print_device_names(struct printer *p, const struct dpt_kineto_device *device)
{
    size_t n;
    const struct dpt_kineto_stream *streams = dpt_kineto_device_streams(device, &n);
    for (size_t i = 0; i < n; i++) {
        print_name(p, "process_name", streams[i].device, 0, "GPU %u of rank %d", streams[i].device,
                   p->trace->rank);
        print_name(p, "thread_name", streams[i].device, streams[i].stream, "stream %u",
                   streams[i].stream);
        print_name(p, "thread_name", streams[i].device, -1, "waits of the host");
    }
}

static enum dpt_status print_device(struct printer *p, struct dpt_err *err)
{
    struct dpt_kineto_device *device = NULL;
    DPT_TRY(dpt_kineto_device_create(p->trace->device, &p->trace->tracks[DPT_TRACE_COMM].events,
                                     p->trace->process, &device, err));
    for (int i = 0; i < DPT_TRACE_TRACKS; i++)
        print_collectives_on_thread(p, &p->trace->tracks[i].events);
    print_device_records(p, device);
    print_device_names(p, device);
    dpt_kineto_device_destroy(&device);
    return DPT_OK;
}

/* ---- the file ---- */

static const char *truth(bool value)
{
    return value ? "true" : "false";
}

static void print_setup(struct printer *p, const struct dpt_kineto_setup *setup)
{
    add_text(p,
             ",\n    \"hosts\": %d, \"overlap\": %s, \"compression\": \"%s\", "
             "\"may_compress\": %s, \"sends_slots\": %s, \"gathers_units\": %s, "
             "\"activation_checkpointing\": \"%s\", \"precision\": \"%s\", "
             "\"device\": \"%s\", \"data\": \"%s\", \"global_batch\": %d, "
             "\"micro_batch\": %d, \"memory_free\": %lld",
             setup->hosts, truth(setup->overlap), setup->compression, truth(setup->may_compress),
             truth(setup->sends_slots), truth(setup->gathers_units),
             setup->activation_checkpointing, setup->precision, setup->device, setup->data,
             setup->global_batch, setup->micro_batch, (long long)setup->memory_free);
}

static void print_head(struct printer *p)
{
    const struct dpt_kineto_trace *trace = p->trace;
    int64_t dropped = 0;
    for (int i = 0; i < DPT_TRACE_TRACKS; i++)
        dropped += trace->tracks[i].events.dropped;
    /* Holistic Trace Analysis finds the rank by its line, with a blank after the colon. */
    add_text(p,
             "{\n  \"schemaVersion\": 1,\n  \"distributedInfo\": {\"backend\": \"%s\", "
             "\"rank\": %d, \"world_size\": %d},\n  \"baseTimeNanoseconds\": %lld,\n"
             "  \"displayTimeUnit\": \"ms\",\n  \"dpt\": {\"strategy\": \"%s\", "
             "\"generation\": %llu, \"generation_id\": \"%016llx\", \"window\": %lld, "
             "\"dropped_events\": %lld, \"clock_offset_us\": %.3f, \"clock_error_us\": %.3f, "
             "\"clock_age_s\": %.3f",
             trace->device ? "nccl" : "host", trace->rank, trace->world_size,
             (long long)trace->base_ns, trace->strategy, (unsigned long long)trace->generation,
             (unsigned long long)trace->generation_id, (long long)trace->window, (long long)dropped,
             1e-3 * (double)trace->clock.offset_ns, 1e-3 * (double)trace->clock.error_ns,
             1e-9 * (double)trace->clock.age_ns);
    if (trace->device)
        add_text(p, ", \"device_records\": %zu, \"dropped_device_records\": %lld", trace->device->n,
                 (long long)trace->device->dropped);
    print_setup(p, &trace->setup);
    add_text(p, "},\n  \"traceEvents\": [");
}

static size_t most_events(const struct dpt_kineto_trace *trace)
{
    size_t most = 0;
    for (int i = 0; i < DPT_TRACE_TRACKS; i++)
        most = trace->tracks[i].events.n > most ? trace->tracks[i].events.n : most;
    return most;
}

static enum dpt_status print_trace(struct printer *p, const struct dpt_trace_event **sorted,
                                   struct dpt_err *err)
{
    const struct dpt_kineto_trace *trace = p->trace;
    int streams = 0;
    print_head(p);
    for (int i = 0; i < DPT_TRACE_TRACKS; i++) {
        const struct dpt_trace_events *events = &trace->tracks[i].events;
        print_others(p, events, i == DPT_TRACE_MAIN);
        const int needed = trace->device ? 0 : print_collectives(p, events, sorted);
        streams = needed > streams ? needed : streams;
    }
    if (trace->device)
        DPT_TRY(print_device(p, err));
    print_thread_names(p);
    if (!trace->device)
        print_stream_names(p, streams);
    add_text(p, "\n  ]\n}\n");
    flush_buffer(p);
    return p->status;
}

enum dpt_status dpt_kineto_print(const struct dpt_kineto_trace *trace,
                                 const struct dpt_kineto_sink *sink, struct dpt_err *err)
{
    struct printer *p = calloc(1, sizeof *p);
    const struct dpt_trace_event **sorted = calloc(most_events(trace) + 1, sizeof *sorted);
    enum dpt_status status = DPT_ENOMEM;
    if (p && sorted) {
        *p = (struct printer){.trace = trace, .sink = sink, .status = DPT_OK, .err = err};
        status = print_trace(p, sorted, err);
    } else {
        status = dpt_fail_nomem(err, "text of a trace");
    }
    free(p);
    free(sorted);
    return status;
}

int64_t dpt_kineto_set_base(struct dpt_kineto_trace *trace, int64_t event_ns)
{
    const int64_t wall_ns = event_ns + trace->clock.offset_ns + trace->clock.epoch_ns;
    const int64_t day_ns = (int64_t)24 * 3600 * 1000000000, period_ns = 90 * day_ns;
    /* A day earlier, so that no event of the window is before the base. */
    trace->base_ns = (wall_ns - day_ns) / period_ns * period_ns;
    trace->base_event_ns = event_ns - (wall_ns - trace->base_ns);
    return wall_ns;
}
