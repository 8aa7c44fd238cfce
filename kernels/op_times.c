/* Timed ops. Each one measures around the untimed op (op_times.h). */
#include "kernels/device_impl.h"

#include "base/clock.h"
#include "kernels/op_shapes.h"

#include <stdlib.h>

enum { MARKS_MAX = 8192 };

/* A timed op in the queue. */
struct mark {
    void *begin, *end;
    enum dpt_op_class class;
};

struct dpt_op_timer {
    bool paused;
    bool runs;   /* the present op is timed */
    bool passes; /* and goes to the sink */
    struct dpt_op_times total;
    /* For devices whose ops are done when they return. ended_ns is of the op before; 0: there was
     * none. */
    int64_t begun_ns, ended_ns;
    enum dpt_op_class class;
    /* For devices with queues: marks whose times are not yet in `total`. */
    struct mark *marks; /* (MARKS_MAX) owned; NULL: the device has no queue */
    int n;
    void *last_end; /* the end of the op before marks[0] */
    bool follows;   /* last_end is set */
};

static const char *const class_names[] = {
#define X(name, text) text,
    DPT_OP_CLASS_TABLE(X)
#undef X
};

const char *dpt_op_class_name(enum dpt_op_class class)
{
    return class_names[class];
}

void dpt_device_time_ops(struct dpt_device *dev)
{
    dev->times_ops = true;
}

void dpt_device_trace_ops(struct dpt_device *dev, dpt_op_sink sink, dpt_op_wanted wanted)
{
    dev->op_sink = sink;
    dev->op_wanted = wanted;
}

void dpt_op_times_since(const struct dpt_op_times *a, const struct dpt_op_times *b,
                        struct dpt_op_times *ret)
{
    for (int i = 0; i < DPT_OP_CLASSES; i++) {
        ret->ms[i] = a->ms[i] - b->ms[i];
        ret->calls[i] = a->calls[i] - b->calls[i];
    }
    ret->idle_ms = a->idle_ms - b->idle_ms;
}

void dpt_stream_op_times(struct dpt_stream *stream, struct dpt_op_times *ret)
{
    *ret = stream->timer ? stream->timer->total : (struct dpt_op_times){.idle_ms = 0};
}

/* ---- create and destroy ---- */

enum dpt_status dpt_op_timer_create(struct dpt_stream *stream, struct dpt_err *err)
{
    const struct dpt_device_vtable *vtable = stream->device->vtable;
    struct dpt_op_timer *timer = calloc(1, sizeof *timer);
    if (!timer)
        return dpt_fail_nomem(err, "times of ops");
    stream->timer = timer;
    if (!vtable->event_create)
        return DPT_OK;
    timer->marks = calloc(MARKS_MAX, sizeof *timer->marks);
    if (!timer->marks)
        return dpt_fail_nomem(err, "times of ops");
    DPT_TRY(vtable->event_create(stream->device, true, &timer->last_end, err));
    for (int i = 0; i < MARKS_MAX; i++) {
        DPT_TRY(vtable->event_create(stream->device, true, &timer->marks[i].begin, err));
        DPT_TRY(vtable->event_create(stream->device, true, &timer->marks[i].end, err));
    }
    return DPT_OK;
}

void dpt_op_timer_destroy(struct dpt_stream *stream)
{
    struct dpt_op_timer *timer = stream->timer;
    const struct dpt_device_vtable *vtable = stream->device->vtable;
    if (!timer)
        return;
    for (int i = 0; timer->marks && i < MARKS_MAX; i++) {
        if (timer->marks[i].begin)
            vtable->event_destroy(stream->device, timer->marks[i].begin);
        if (timer->marks[i].end)
            vtable->event_destroy(stream->device, timer->marks[i].end);
    }
    if (timer->last_end)
        vtable->event_destroy(stream->device, timer->last_end);
    free(timer->marks);
    free(timer);
    stream->timer = NULL;
}

void dpt_op_timer_pause(struct dpt_stream *stream, bool paused)
{
    if (!stream->timer)
        return;
    stream->timer->paused = paused;
    stream->timer->follows = false;
    stream->timer->ended_ns = 0;
}

void dpt_op_timer_drop(struct dpt_stream *stream)
{
    if (!stream->timer)
        return;
    stream->timer->n = 0;
    stream->timer->follows = false;
}

/* ---- around an op ---- */

static void count_op(struct dpt_op_times *total, enum dpt_op_class class, double ms)
{
    total->ms[class] += ms;
    total->calls[class]++;
}

void dpt_op_timer_drain(struct dpt_stream *stream)
{
    struct dpt_op_timer *timer = stream->timer;
    if (!timer || timer->n == 0)
        return;
    double (*const ms_between)(void *, void *) = stream->device->vtable->event_ms;
    for (int i = 0; i < timer->n; i++) {
        const struct mark *mark = &timer->marks[i];
        if (i > 0 || timer->follows)
            timer->total.idle_ms +=
                ms_between(i > 0 ? timer->marks[i - 1].end : timer->last_end, mark->begin);
        count_op(&timer->total, mark->class, ms_between(mark->begin, mark->end));
    }
    void *const end = timer->marks[timer->n - 1].end;
    timer->marks[timer->n - 1].end = timer->last_end;
    timer->last_end = end;
    timer->follows = true;
    timer->n = 0;
}

static const struct dpt_ops *untimed_ops(const struct dpt_stream *s)
{
    return s->device->vtable->ops;
}

static void begin_op(struct dpt_stream *s, enum dpt_op_class class)
{
    struct dpt_op_timer *timer = s->timer;
    timer->passes = s->device->op_sink && !timer->marks && !timer->paused && s->device->op_wanted();
    timer->runs = !timer->paused && (s->device->times_ops || timer->passes);
    if (!timer->runs)
        return;
    if (!timer->marks) {
        timer->class = class;
        timer->begun_ns = dpt_now_ns();
        return;
    }
    if (timer->n == MARKS_MAX)
        dpt_op_timer_drain(s); /* waits for the posted ops */
    timer->marks[timer->n].class = class;
    s->device->vtable->event_record(timer->marks[timer->n].begin, s);
}

static void end_op(struct dpt_stream *s)
{
    struct dpt_op_timer *timer = s->timer;
    if (!timer->runs)
        return;
    if (timer->marks) {
        s->device->vtable->event_record(timer->marks[timer->n++].end, s);
        return;
    }
    const int64_t now_ns = dpt_now_ns();
    if (s->device->times_ops && timer->ended_ns > 0)
        timer->total.idle_ms += 1e-6 * (double)(timer->begun_ns - timer->ended_ns);
    if (s->device->times_ops)
        count_op(&timer->total, timer->class, 1e-6 * (double)(now_ns - timer->begun_ns));
    timer->ended_ns = now_ns;
}

static bool passes_ops(const struct dpt_stream *s)
{
    return s->timer->passes;
}

/* Passes the op that has just ended to the sink. */
static void pass_op(const struct dpt_stream *s, const char *op, const struct dpt_op_shape *shape)
{
    s->device->op_sink(op, shape, s->timer->begun_ns, s->timer->ended_ns);
}

/* The size of an op without a struct of arguments is the first argument after the stream. */
#define SIZE_NAME(s, size, ...) #size
#define SIZE(s, size, ...)      (int64_t)(size)

#define DPT_OP(name, class, type)                                                                  \
    static void timed_##name(struct dpt_stream *s, const struct type *a)                           \
    {                                                                                              \
        begin_op(s, DPT_OP_##class);                                                               \
        untimed_ops(s)->name(s, a);                                                                \
        end_op(s);                                                                                 \
        if (passes_ops(s)) {                                                                       \
            const struct dpt_op_shape shape = type##_shape(a);                                     \
            pass_op(s, #name, &shape);                                                             \
        }                                                                                          \
    }
#define DPT_OP_VALUES(name, class, parameters, names)                                              \
    static void timed_##name parameters                                                            \
    {                                                                                              \
        begin_op(s, DPT_OP_##class);                                                               \
        untimed_ops(s)->name names;                                                                \
        end_op(s);                                                                                 \
        if (passes_ops(s))                                                                         \
            pass_op(s, #name, &(struct dpt_op_shape){{SIZE_NAME names}, {SIZE names}});            \
    }
#define DPT_OP_QUERY(name, result, parameters, names)                                              \
    static result timed_##name parameters                                                          \
    {                                                                                              \
        return untimed_ops(s)->name names;                                                         \
    }
#include "kernels/ops.def"

const struct dpt_ops dpt_timed_ops = {
#define DPT_OP_VALUES(name, class, parameters, names) .name = timed_##name,
#define DPT_OP_QUERY(name, result, parameters, names) .name = timed_##name,
#include "kernels/ops.def"
};
