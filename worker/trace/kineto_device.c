/* The records of a GPU as events (kineto_device.h).
 *
 * Work and the call that posted it have one correlation. An NCCL kernel belongs to the collective
 * under way when it was launched: a group of NCCL has one operation at a time, and its span lasts
 * from before the launch until the host knows the end. NCCL launches from threads of its own, so
 * the thread of the launch says nothing. Of groups that work side by side, the collective that
 * began last is the one. */
#include "worker/trace/kineto_device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STREAMS_MAX = 256, UNDER_WAY_MAX = 64 /* collectives of a rank at once */ };

struct dpt_kineto_device {
    const struct dpt_device_records *records;
    int64_t process;
    const struct dpt_device_record **call; /* [n_calls] by correlation, then by kind */
    bool *posts;                           /* [n_calls]: has posted work */
    size_t n_calls;
    const struct dpt_trace_event **collective; /* [n_collectives] by begin */
    size_t n_collectives;
    struct dpt_kineto_stream stream[STREAMS_MAX];
    size_t n_streams;
};

static bool is_call(const struct dpt_device_record *record)
{
    return record->kind == DPT_DEVICE_CALL || record->kind == DPT_DEVICE_DRIVER_CALL;
}

/* The stream of an event. A wait is on none: the host waits, and tools count what is on a stream as
 * the GPU's work. */
static int64_t stream_of(const struct dpt_device_record *r)
{
    return r->kind == DPT_DEVICE_SYNC || r->stream == DPT_DEVICE_NO_STREAM ? -1
                                                                           : (int64_t)r->stream;
}

/* ---- indices ---- */

static int compare_calls(const void *left, const void *right)
{
    const struct dpt_device_record *a = *(const struct dpt_device_record *const *)left,
                                   *b = *(const struct dpt_device_record *const *)right;
    if (a->correlation != b->correlation)
        return a->correlation < b->correlation ? -1 : 1;
    if (a->kind != b->kind)
        return a->kind < b->kind ? -1 : 1; /* the runtime's before the driver's */
    return a < b ? -1 : a > b;             /* all are in one array */
}

static int compare_collectives(const void *left, const void *right)
{
    const struct dpt_trace_event *a = *(const struct dpt_trace_event *const *)left,
                                 *b = *(const struct dpt_trace_event *const *)right;
    if (a->begin_ns != b->begin_ns)
        return a->begin_ns < b->begin_ns ? -1 : 1;
    return a < b ? -1 : a > b;
}

/* Index of the first call of this correlation; n_calls: none is recorded. */
static size_t find_call(const struct dpt_kineto_device *d, uint32_t correlation)
{
    size_t low = 0, high = correlation > 0 ? d->n_calls : 0;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (d->call[middle]->correlation < correlation)
            low = middle + 1;
        else
            high = middle;
    }
    return low < d->n_calls && correlation > 0 && d->call[low]->correlation == correlation
               ? low
               : d->n_calls;
}

static void note_stream(struct dpt_kineto_device *d, const struct dpt_device_record *record)
{
    size_t i = 0;
    while (i < d->n_streams &&
           (d->stream[i].device != record->device || d->stream[i].stream != record->stream))
        i++;
    if (i == d->n_streams && i < STREAMS_MAX)
        d->stream[d->n_streams++] = (struct dpt_kineto_stream){record->device, record->stream};
}

static void index_records(struct dpt_kineto_device *d)
{
    for (size_t i = 0; i < d->records->n; i++)
        if (is_call(&d->records->record[i]))
            d->call[d->n_calls++] = &d->records->record[i];
    qsort(d->call, d->n_calls, sizeof *d->call, compare_calls);
    for (size_t i = 0; i < d->records->n; i++) {
        const struct dpt_device_record *record = &d->records->record[i];
        if (is_call(record))
            continue;
        const size_t call = find_call(d, record->correlation);
        if (call < d->n_calls && record->kind != DPT_DEVICE_SYNC)
            d->posts[call] = true;
        if (stream_of(record) >= 0)
            note_stream(d, record);
    }
}

static void index_collectives(struct dpt_kineto_device *d, const struct dpt_trace_events *events)
{
    for (size_t i = 0; i < events->n; i++)
        if (events->event[i].span.kind == DPT_TRACE_DEVICE_COLLECTIVE)
            d->collective[d->n_collectives++] = &events->event[i];
    qsort(d->collective, d->n_collectives, sizeof *d->collective, compare_collectives);
}

enum dpt_status dpt_kineto_device_create(const struct dpt_device_records *records,
                                         const struct dpt_trace_events *collectives,
                                         int64_t process, struct dpt_kineto_device **ret,
                                         struct dpt_err *err)
{
    struct dpt_kineto_device *d = calloc(1, sizeof *d);
    if (!d)
        return dpt_fail_nomem(err, "events of the GPU");
    *d = (struct dpt_kineto_device){.records = records, .process = process};
    d->call = calloc(records->n + 1, sizeof *d->call);
    d->posts = calloc(records->n + 1, sizeof *d->posts);
    d->collective = calloc(collectives->n + 1, sizeof *d->collective);
    if (!d->call || !d->posts || !d->collective) {
        dpt_kineto_device_destroy(&d);
        return dpt_fail_nomem(err, "events of the GPU");
    }
    index_records(d);
    index_collectives(d, collectives);
    *ret = d;
    return DPT_OK;
}

void dpt_kineto_device_destroy(struct dpt_kineto_device **device)
{
    struct dpt_kineto_device *d = *device;
    if (!d)
        return;
    free(d->call);
    free(d->posts);
    free(d->collective);
    free(d);
    *device = NULL;
}

const struct dpt_kineto_stream *dpt_kineto_device_streams(const struct dpt_kineto_device *device,
                                                          size_t *ret_n)
{
    *ret_n = device->n_streams;
    return device->stream;
}

/* ---- events ---- */

/* The collective under way at this time that began last. */
static const struct dpt_trace_span *find_collective(const struct dpt_kineto_device *d,
                                                    int64_t time_ns)
{
    size_t low = 0, high = d->n_collectives;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (d->collective[middle]->begin_ns <= time_ns)
            low = middle + 1;
        else
            high = middle;
    }
    for (size_t back = 0; back < UNDER_WAY_MAX && low > 0; back++)
        if (d->collective[--low]->end_ns >= time_ns)
            return &d->collective[low]->span;
    return NULL;
}

static const struct dpt_trace_span *collective_of(const struct dpt_kineto_device *d,
                                                  const struct dpt_device_record *kernel,
                                                  size_t call)
{
    if (strncmp(kernel->name, "nccl", strlen("nccl")) != 0)
        return NULL;
    return find_collective(d, call < d->n_calls ? d->call[call]->begin_ns : kernel->begin_ns);
}

static void print_call_args(const struct dpt_device_record *r, char ret[DPT_KINETO_ARGS_BYTES])
{
    (void)snprintf(ret, DPT_KINETO_ARGS_BYTES, "\"cbid\": %u, \"correlation\": %u", r->call,
                   r->correlation);
}

static void print_work_args(const struct dpt_device_record *r, char ret[DPT_KINETO_ARGS_BYTES])
{
    int n = snprintf(ret, DPT_KINETO_ARGS_BYTES,
                     "\"device\": %u, \"context\": %u, \"stream\": %lld, \"correlation\": %u",
                     r->device, r->context, (long long)stream_of(r), r->correlation);
    char *const rest = ret + n;
    const size_t room = (size_t)(DPT_KINETO_ARGS_BYTES - n);
    const double seconds = 1e-9 * (double)(r->end_ns - r->begin_ns);
    if (r->kind == DPT_DEVICE_KERNEL)
        n = snprintf(rest, room,
                     ", \"registers per thread\": %u, \"shared memory\": %u, "
                     "\"grid\": [%u, %u, %u], \"block\": [%u, %u, %u]",
                     r->registers, r->shared_bytes, r->grid[0], r->grid[1], r->grid[2], r->block[0],
                     r->block[1], r->block[2]);
    else if (r->kind == DPT_DEVICE_SYNC)
        n = snprintf(rest, room, ", \"cuda_sync_kind\": \"%s\", \"awaited stream\": %lld", r->name,
                     r->stream == DPT_DEVICE_NO_STREAM ? -1 : (long long)r->stream);
    else
        n = snprintf(rest, room, ", \"bytes\": %llu, \"memory bandwidth (GB/s)\": %.3f",
                     (unsigned long long)r->bytes,
                     seconds > 0 ? 1e-9 * (double)r->bytes / seconds : 0.0);
    if (r->graph != 0)
        (void)snprintf(rest + n, room - (size_t)n, ", \"graph id\": %u", r->graph);
}

bool dpt_kineto_device_event(const struct dpt_kineto_device *d, size_t i,
                             struct dpt_kineto_event *ret)
{
    static const char *const categories[] = {
        [DPT_DEVICE_KERNEL] = "kernel",     [DPT_DEVICE_COPY] = "gpu_memcpy",
        [DPT_DEVICE_SET] = "gpu_memset",    [DPT_DEVICE_SYNC] = "cuda_sync",
        [DPT_DEVICE_CALL] = "cuda_runtime", [DPT_DEVICE_DRIVER_CALL] = "cuda_driver"};
    const struct dpt_device_record *record = &d->records->record[i];
    const size_t call = find_call(d, record->correlation);
    const bool has_call = call < d->n_calls;
    if (record->kind == DPT_DEVICE_DRIVER_CALL && has_call && d->call[call] != record)
        return false;
    *ret = (struct dpt_kineto_event){.category = categories[record->kind],
                                     .name = record->name,
                                     .begin_ns = record->begin_ns,
                                     .end_ns = record->end_ns,
                                     .correlation = record->correlation};
    if (is_call(record)) {
        ret->process = d->process;
        ret->thread = record->thread;
        if (has_call && d->call[call] == record && d->posts[call])
            ret->flow = DPT_KINETO_FLOW_BEGIN;
        print_call_args(record, ret->args);
        return true;
    }
    ret->process = record->device;
    ret->thread = stream_of(record);
    if (has_call && record->kind != DPT_DEVICE_SYNC)
        ret->flow = DPT_KINETO_FLOW_END;
    if (record->kind == DPT_DEVICE_KERNEL)
        ret->collective = collective_of(d, record, call);
    print_work_args(record, ret->args);
    return true;
}
