/* The device of discrete.h: a CPU device, an arena that is open only while an op runs
 * (discrete_arena.c), and a queue of ops with their arguments. */
#include "tests/kernels/discrete.h"

#include "base/clock.h"
#include "kernels/device_impl.h"
#include "tests/kernels/discrete_arena.h"
#include "tests/kernels/discrete_ops.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ARGS_BYTES = 640 };

struct discrete {
    struct dpt_device base;
    struct dpt_device *cpu;
    struct arena arena;
    pthread_mutex_t queues;    /* those of its streams, what runs of them, and */
    int64_t ops_until_failure; /* < 0: never */
};

static atomic_bool no_graphs;
static _Atomic int64_t launches, captures;
static atomic_int graphs_alive;

struct posted {
    void (*run)(const struct dpt_ops *ops, struct dpt_stream *cpu, const void *args);
    _Alignas(16) unsigned char args[ARGS_BYTES];
    void *owned; /* of a copy from the host: its bytes */
};

struct discrete_stream {
    struct dpt_stream base;
    struct dpt_stream *cpu;
    struct posted *queue;
    size_t n, max;
    uint64_t done; /* ops that were in the queue before */
    bool preparing;
    struct graph *capture; /* takes the posted ops; NULL: the queue takes them */
    struct dpt_err error;
};

/* Ops as they were posted, to be posted again. */
struct graph {
    struct posted *ops;
    size_t n, max;
};

/* What a stream had been given when it was set; of a mark, when it had come to it. */
struct discrete_event {
    struct discrete_stream *stream;
    uint64_t ops;
    int64_t at_ns;
    bool timed;
};

static struct discrete *device_of(const struct dpt_stream *stream)
{
    return (struct discrete *)stream->device;
}

/* ---- the queue ---- */

/* The queues are locked: another thread that waits for an event runs this stream's ops, too. */
static void stick(struct discrete_stream *s, enum dpt_status status, const char *what)
{
    if (s->error.status == DPT_OK)
        (void)dpt_fail(&s->error, status, "%s", what);
}

/* They are not. */
static void complain(struct discrete_stream *s, enum dpt_status status, const char *what)
{
    discrete_lock(&device_of(&s->base)->queues);
    stick(s, status, what);
    discrete_unlock(&device_of(&s->base)->queues);
}

/* The error that has stuck; it is forgotten. */
static struct dpt_err take_error(struct discrete_stream *s)
{
    discrete_lock(&device_of(&s->base)->queues);
    const struct dpt_err error = s->error;
    s->error.status = DPT_OK;
    discrete_unlock(&device_of(&s->base)->queues);
    return error;
}

static void append_posted(struct posted **ops, size_t *n, size_t *max, const struct posted *posted)
{
    if (*n == *max) {
        *max = *max ? 2 * *max : 64;
        *ops = realloc(*ops, *max * sizeof **ops);
        if (!*ops)
            abort();
    }
    (*ops)[(*n)++] = *posted;
}

void discrete_post(struct dpt_stream *stream, discrete_run *run, const void *args, size_t bytes,
                   void *owned)
{
    struct discrete_stream *s = (struct discrete_stream *)stream;
    if (s->preparing) {
        run(dpt_device_ops(device_of(stream)->cpu), s->cpu, args);
        return;
    }
    if (bytes > ARGS_BYTES) {
        fprintf(stderr, "discrete device: no room for an op of %zu bytes\n", bytes);
        abort();
    }
    struct posted posted = {.run = run, .owned = owned};
    memcpy(posted.args, args, bytes);
    discrete_lock(&device_of(stream)->queues);
    if (!s->capture)
        append_posted(&s->queue, &s->n, &s->max, &posted);
    else if (owned)
        stick(s, DPT_EINVAL, "a copy from the host in a graph");
    else
        append_posted(&s->capture->ops, &s->capture->n, &s->capture->max, &posted);
    discrete_unlock(&device_of(stream)->queues);
}

/* Returns how many ops the stream has done. */
static uint64_t drain(struct discrete_stream *s)
{
    struct discrete *dev = device_of(&s->base);
    discrete_lock(&dev->queues);
    arena_open(&dev->arena);
    for (size_t i = 0; i < s->n; i++) {
        struct posted *posted = &s->queue[i];
        if (dev->ops_until_failure == 0)
            stick(s, DPT_EDEVICE, "the discrete device was told to break");
        if (dev->ops_until_failure >= 0)
            dev->ops_until_failure--;
        if (s->error.status == DPT_OK)
            posted->run(dpt_device_ops(dev->cpu), s->cpu, posted->args);
        free(posted->owned);
    }
    const uint64_t done = s->done += s->n;
    s->n = 0;
    arena_close(&dev->arena);
    discrete_unlock(&dev->queues);
    return done;
}

void discrete_check(struct dpt_stream *stream, const char *op,
                    const void *const pointers[DISCRETE_POINTERS_MAX])
{
    struct discrete_stream *s = (struct discrete_stream *)stream;
    for (int i = 0; !s->preparing && i < DISCRETE_POINTERS_MAX; i++)
        if (pointers[i] && !arena_has(&device_of(stream)->arena, pointers[i])) {
            char text[128];
            (void)snprintf(text, sizeof text, "%s: pointer %d is not of the device", op, i);
            complain(s, DPT_EINVAL, text);
        }
}

bool discrete_is_pageable(struct dpt_stream *stream, const void *p)
{
    return !((struct discrete_stream *)stream)->preparing &&
           !arena_has(&device_of(stream)->arena, p) && !discrete_is_locked(p);
}

/* ---- the device ---- */

static enum dpt_status discrete_alloc(struct dpt_device *base, size_t bytes, void **ret,
                                      struct dpt_err *err)
{
    return arena_alloc(&((struct discrete *)base)->arena, bytes, ret, err);
}

/* The device frees all of it. */
static void discrete_free(struct dpt_device *dev, void *ptr, size_t bytes)
{
    (void)dev;
    (void)ptr;
    (void)bytes;
}

static enum dpt_status stream_create(struct dpt_device *base, int threads, bool urgent,
                                     struct dpt_stream **ret, struct dpt_err *err)
{
    (void)urgent;
    struct discrete_stream *s = calloc(1, sizeof *s);
    if (!s)
        return dpt_fail(err, DPT_ENOMEM, "stream");
    s->base.device = base;
    const enum dpt_status status =
        dpt_stream_create(((struct discrete *)base)->cpu, threads, &s->cpu, err);
    if (status != DPT_OK) {
        free(s);
        return status;
    }
    *ret = &s->base;
    return DPT_OK;
}

static void stream_destroy(struct dpt_stream *stream)
{
    struct discrete_stream *s = (struct discrete_stream *)stream;
    (void)drain(s);
    dpt_stream_destroy(&s->cpu);
    free(s->queue);
    free(s);
}

static void set_threads(struct dpt_stream *stream, int threads)
{
    dpt_stream_set_threads(((struct discrete_stream *)stream)->cpu, threads);
}

static void prepare_begin(struct dpt_stream *stream)
{
    struct discrete_stream *s = (struct discrete_stream *)stream;
    s->preparing = true;
    dpt_stream_prepare_begin(s->cpu);
}

static enum dpt_status prepare_end(struct dpt_stream *stream, struct dpt_err *err)
{
    struct discrete_stream *s = (struct discrete_stream *)stream;
    s->preparing = false;
    return dpt_stream_prepare_end(s->cpu, err);
}

static enum dpt_status sync_stream(struct dpt_stream *stream, struct dpt_err *err)
{
    struct discrete_stream *s = (struct discrete_stream *)stream;
    (void)drain(s);
    const struct dpt_err error = take_error(s);
    if (error.status == DPT_OK)
        return dpt_stream_sync(s->cpu, err);
    if (err)
        *err = error;
    return error.status;
}

static enum dpt_status event_create(struct dpt_device *dev, bool timed, void **ret,
                                    struct dpt_err *err)
{
    (void)dev;
    struct discrete_event *event = calloc(1, sizeof *event);
    if (!event)
        return dpt_fail(err, DPT_ENOMEM, "event");
    event->timed = timed;
    *ret = event;
    return DPT_OK;
}

static void event_destroy(struct dpt_device *dev, void *event)
{
    (void)dev;
    free(event);
}

static void run_event(const struct dpt_ops *ops, struct dpt_stream *cpu, const void *args)
{
    (void)ops;
    (void)cpu;
    (*(struct discrete_event *const *)args)->at_ns = dpt_now_ns();
}

static void event_record(void *native, struct dpt_stream *stream)
{
    struct discrete_stream *s = (struct discrete_stream *)stream;
    struct discrete_event *event = native;
    if (event->timed) {
        *event = (struct discrete_event){.timed = true, .stream = s};
        discrete_post(stream, run_event, &event, sizeof event, NULL);
        return;
    }
    if (s->capture)
        complain(s, DPT_EINVAL, "an event in a graph");
    discrete_lock(&device_of(stream)->queues);
    *event = (struct discrete_event){.stream = s, .ops = s->done + s->n};
    discrete_unlock(&device_of(stream)->queues);
}

/* An operation runs only after the events for which it waits. */
static void event_await(void *native, struct dpt_stream *stream)
{
    (void)stream;
    dpt_device_discrete_await(native);
}

static void event_wait(void *native, struct dpt_stream *stream)
{
    (void)stream;
    dpt_device_discrete_await(native);
}

static bool capture_begin(struct dpt_stream *stream)
{
    struct discrete_stream *s = (struct discrete_stream *)stream;
    discrete_lock(&device_of(stream)->queues);
    const bool failed = s->error.status != DPT_OK;
    discrete_unlock(&device_of(stream)->queues);
    if (failed)
        return false;
    s->capture = calloc(1, sizeof *s->capture);
    if (!s->capture)
        abort();
    return true;
}

static void graph_destroy(struct dpt_device *dev, void *native)
{
    struct graph *graph = native;
    (void)dev;
    atomic_fetch_sub(&graphs_alive, 1);
    free(graph->ops);
    free(graph);
}

static enum dpt_status capture_end(struct dpt_stream *stream, void **ret, struct dpt_err *err)
{
    struct discrete_stream *s = (struct discrete_stream *)stream;
    struct graph *graph = s->capture;
    s->capture = NULL;
    atomic_fetch_add(&graphs_alive, 1);
    if (atomic_load(&no_graphs))
        complain(s, DPT_EUNSUPPORTED, "this device has no graphs today");
    const struct dpt_err error = take_error(s);
    *ret = graph;
    if (error.status == DPT_OK) {
        atomic_fetch_add(&captures, 1);
        return DPT_OK;
    }
    graph_destroy(stream->device, graph);
    *err = error;
    return error.status;
}

static bool graph_is_current(const void *native, const struct dpt_stream *stream)
{
    (void)native;
    (void)stream;
    return true;
}

static void graph_launch(void *native, struct dpt_stream *stream)
{
    struct discrete_stream *s = (struct discrete_stream *)stream;
    const struct graph *graph = native;
    atomic_fetch_add(&launches, 1);
    discrete_lock(&device_of(stream)->queues);
    for (size_t i = 0; i < graph->n; i++)
        append_posted(&s->queue, &s->n, &s->max, &graph->ops[i]);
    discrete_unlock(&device_of(stream)->queues);
}

void dpt_device_discrete_graphs(bool fail, int64_t *ret_launches, int *ret_alive)
{
    atomic_store(&no_graphs, fail);
    *ret_launches = atomic_exchange(&launches, 0);
    *ret_alive = atomic_load(&graphs_alive);
}

int64_t dpt_device_discrete_captures(void)
{
    return atomic_exchange(&captures, 0);
}

static double event_ms(void *from, void *to)
{
    const struct discrete_event *a = from, *b = to;
    (void)drain(b->stream);
    return 1e-6 * (double)(b->at_ns - a->at_ns);
}

void dpt_device_discrete_await(void *native)
{
    const struct discrete_event *event = native;
    if (event->stream && drain(event->stream) < event->ops)
        abort();
}

size_t dpt_device_discrete_bytes(const struct dpt_device *dev)
{
    const bool alive = arena_lock_list(&((const struct discrete *)dev)->arena);
    const size_t bytes = alive ? dpt_device_bytes(dev) : 0;
    arena_unlock_list();
    return bytes;
}

static void discrete_destroy(struct dpt_device *base)
{
    struct discrete *dev = (struct discrete *)base;
    dpt_device_destroy(&dev->cpu);
    arena_fini(&dev->arena);
    (void)pthread_mutex_destroy(&dev->queues);
    free(dev);
}

static const struct dpt_device_vtable vtable = {
    .ops = &discrete_ops,
    .destroy = discrete_destroy,
    .alloc = discrete_alloc,
    .free = discrete_free,
    .alloc_host = discrete_alloc_host,
    .free_host = discrete_free_host,
    .reserved = arena_reserved,
    .stream_create = stream_create,
    .stream_destroy = stream_destroy,
    .stream_set_threads = set_threads,
    .prepare_begin = prepare_begin,
    .prepare_end = prepare_end,
    .sync = sync_stream,
    .event_create = event_create,
    .event_destroy = event_destroy,
    .event_record = event_record,
    .event_await = event_await,
    .event_wait = event_wait,
    .event_ms = event_ms,
    .capture_begin = capture_begin,
    .capture_end = capture_end,
    .graph_is_current = graph_is_current,
    .graph_launch = graph_launch,
    .graph_destroy = graph_destroy,
};

enum dpt_status dpt_device_discrete_create(size_t bytes, struct dpt_device **ret,
                                           struct dpt_err *err)
{
    struct discrete *dev = calloc(1, sizeof *dev);
    if (!dev)
        return dpt_fail(err, DPT_ENOMEM, "discrete device");
    dev->base.vtable = &vtable;
    dev->ops_until_failure = -1;
    enum dpt_status status = arena_init(&dev->arena, bytes, err);
    if (status != DPT_OK) {
        free(dev);
        return status;
    }
    if (pthread_mutex_init(&dev->queues, NULL) != 0)
        abort();
    status = dpt_device_cpu_create(&dev->cpu, err);
    if (status != DPT_OK) {
        discrete_destroy(&dev->base);
        return status;
    }
    (void)snprintf(dev->base.fingerprint, sizeof dev->base.fingerprint, "discrete %.40s",
                   dpt_device_fingerprint(dev->cpu));
    *ret = &dev->base;
    return DPT_OK;
}

void dpt_device_discrete_fail(struct dpt_device *dev, int64_t n)
{
    ((struct discrete *)dev)->ops_until_failure = n;
}
