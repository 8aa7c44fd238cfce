/* Ops around ops (op_times.h). */
#include "kernels/op_times.h"

#include "base/clock.h"
#include "kernels/op_timer.h"
#include "kernels/ops.h"

#include <stdlib.h>

enum { MARKS_MAX = 8192 };

/* A timed op in the queue. */
struct mark {
    void *begin, *end;
    enum dpt_op_class class;
};

struct dpt_op_timer {
    bool paused;
    struct dpt_op_times total;
    /* Devices whose ops are done when they return: */
    int64_t begun_ns, ended_ns; /* of this op; of the one before, 0: there was none */
    enum dpt_op_class class;
    /* Devices with queues: marks that have not been read. */
    struct mark *marks; /* (MARKS_MAX) owned; NULL: the clock */
    int n;
    void *last_end; /* of the op before marks[0] … */
    bool follows;   /* … if there was one */
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

/* ---- making and unmaking ---- */

enum dpt_status dpt_op_timer_create(struct dpt_stream *stream, struct dpt_err *err)
{
    const struct dpt_device_vtable *vtable = stream->device->vtable;
    struct dpt_op_timer *timer = calloc(1, sizeof *timer);
    if (!timer)
        return dpt_fail(err, DPT_ENOMEM, "times of ops");
    stream->timer = timer;
    if (!vtable->mark_create)
        return DPT_OK;
    timer->marks = calloc(MARKS_MAX, sizeof *timer->marks);
    if (!timer->marks)
        return dpt_fail(err, DPT_ENOMEM, "times of ops");
    DPT_TRY(vtable->mark_create(stream->device, &timer->last_end, err));
    for (int i = 0; i < MARKS_MAX; i++) {
        DPT_TRY(vtable->mark_create(stream->device, &timer->marks[i].begin, err));
        DPT_TRY(vtable->mark_create(stream->device, &timer->marks[i].end, err));
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
            vtable->mark_destroy(stream->device, timer->marks[i].begin);
        if (timer->marks[i].end)
            vtable->mark_destroy(stream->device, timer->marks[i].end);
    }
    if (timer->last_end)
        vtable->mark_destroy(stream->device, timer->last_end);
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

static void count(struct dpt_op_times *total, enum dpt_op_class class, double ms)
{
    total->ms[class] += ms;
    total->calls[class]++;
}

void dpt_op_timer_drain(struct dpt_stream *stream)
{
    struct dpt_op_timer *timer = stream->timer;
    if (!timer || timer->n == 0)
        return;
    double (*const ms_between)(void *, void *) = stream->device->vtable->mark_ms;
    for (int i = 0; i < timer->n; i++) {
        const struct mark *mark = &timer->marks[i];
        if (i > 0 || timer->follows)
            timer->total.idle_ms +=
                ms_between(i > 0 ? timer->marks[i - 1].end : timer->last_end, mark->begin);
        count(&timer->total, mark->class, ms_between(mark->begin, mark->end));
    }
    void *const end = timer->marks[timer->n - 1].end;
    timer->marks[timer->n - 1].end = timer->last_end;
    timer->last_end = end;
    timer->follows = true;
    timer->n = 0;
}

static const struct dpt_ops *inner(const struct dpt_stream *s)
{
    return s->device->vtable->ops;
}

static void begin(struct dpt_stream *s, enum dpt_op_class class)
{
    struct dpt_op_timer *timer = s->timer;
    if (timer->paused)
        return;
    if (!timer->marks) {
        timer->class = class;
        timer->begun_ns = dpt_now_ns();
        return;
    }
    if (timer->n == MARKS_MAX)
        dpt_op_timer_drain(s); /* waits for them */
    timer->marks[timer->n].class = class;
    s->device->vtable->mark_record(timer->marks[timer->n].begin, s);
}

static void end(struct dpt_stream *s)
{
    struct dpt_op_timer *timer = s->timer;
    if (timer->paused)
        return;
    if (timer->marks) {
        s->device->vtable->mark_record(timer->marks[timer->n++].end, s);
        return;
    }
    const int64_t now_ns = dpt_now_ns();
    if (timer->ended_ns > 0)
        timer->total.idle_ms += 1e-6 * (double)(timer->begun_ns - timer->ended_ns);
    count(&timer->total, timer->class, 1e-6 * (double)(now_ns - timer->begun_ns));
    timer->ended_ns = now_ns;
}

/* An op of ops.h with its class, the parameters that follow the stream, and their names. */
#define TIMED(name, class, parameters, ...)                                                        \
    static void timed_##name parameters                                                            \
    {                                                                                              \
        begin(s, DPT_OP_##class);                                                                  \
        inner(s)->name(__VA_ARGS__);                                                               \
        end(s);                                                                                    \
    }
#define TIMED_STRUCT(name, type, class)                                                            \
    TIMED(name, class, (struct dpt_stream * s, const struct type *a), s, a)

TIMED_STRUCT(linear_forward, dpt_linear_forward, LINEAR)
TIMED_STRUCT(linear_backward, dpt_linear_backward, LINEAR)
TIMED_STRUCT(layernorm_forward, dpt_layernorm_forward, LAYERNORM)
TIMED_STRUCT(layernorm_backward, dpt_layernorm_backward, LAYERNORM)
TIMED_STRUCT(gelu_forward, dpt_gelu, GELU)
TIMED_STRUCT(gelu_backward, dpt_gelu, GELU)
TIMED_STRUCT(attention_forward, dpt_attention_forward, ATTENTION)
TIMED_STRUCT(attention_backward, dpt_attention_backward, ATTENTION)
TIMED_STRUCT(residual, dpt_residual, RESIDUAL)
TIMED_STRUCT(residual_norm, dpt_residual_norm, LAYERNORM)
TIMED_STRUCT(dropout_backward, dpt_dropout_backward, RESIDUAL)
TIMED_STRUCT(embedding_forward, dpt_embedding_forward, EMBEDDING)
TIMED_STRUCT(embedding_backward, dpt_embedding_backward, EMBEDDING)
TIMED_STRUCT(head_loss, dpt_head_loss, HEAD)
TIMED_STRUCT(linear_row, dpt_linear_row, LINEAR)
TIMED_STRUCT(attention_rows, dpt_attention_rows, ATTENTION)
TIMED_STRUCT(logits, dpt_logits, HEAD)
TIMED_STRUCT(adamw, dpt_adamw, OPTIMIZER)
TIMED_STRUCT(sgd, dpt_sgd, OPTIMIZER)
TIMED_STRUCT(pack, dpt_pack, COPY)
TIMED_STRUCT(ordered_sum, dpt_ordered_sum, SUM)
TIMED(add, SUM, (struct dpt_stream * s, int64_t n, const float *a, const float *b, float *dst), s,
      n, a, b, dst)
TIMED(copy, COPY, (struct dpt_stream * s, size_t bytes, const void *src, void *dst), s, bytes, src,
      dst)
TIMED(cast, COPY,
      (struct dpt_stream * s, int64_t n, const float *src, enum dpt_dtype dtype, void *dst), s, n,
      src, dtype, dst)
TIMED(widen, COPY,
      (struct dpt_stream * s, int64_t n, enum dpt_dtype dtype, const void *src, float *dst), s, n,
      dtype, src, dst)
TIMED(round_to, COPY, (struct dpt_stream * s, int64_t n, enum dpt_dtype dtype, float *x), s, n,
      dtype, x)
TIMED(sumsq_blocks, SUM,
      (struct dpt_stream * s, int64_t n, int64_t block, const float *x, double *ret), s, n, block,
      x, ret)
TIMED(fill_normal, OTHER,
      (struct dpt_stream * s, int64_t n, struct dpt_rng_key key, uint64_t first, float mean,
       float std, float *dst),
      s, n, key, first, mean, std, dst)
TIMED(fill, COPY, (struct dpt_stream * s, int64_t n, float value, float *dst), s, n, value, dst)
TIMED(orthonormalise, OTHER, (struct dpt_stream * s, int64_t n, int64_t r, float *x), s, n, r, x)

static size_t packed_bytes(struct dpt_stream *s, const struct dpt_pack *a)
{
    return inner(s)->packed_bytes(s, a);
}

static size_t operand_bytes(struct dpt_stream *s, enum dpt_dtype dtype)
{
    return inner(s)->operand_bytes(s, dtype);
}

const struct dpt_ops dpt_timed_ops = {
    .linear_forward = timed_linear_forward,
    .linear_backward = timed_linear_backward,
    .layernorm_forward = timed_layernorm_forward,
    .layernorm_backward = timed_layernorm_backward,
    .gelu_forward = timed_gelu_forward,
    .gelu_backward = timed_gelu_backward,
    .attention_forward = timed_attention_forward,
    .attention_backward = timed_attention_backward,
    .residual = timed_residual,
    .residual_norm = timed_residual_norm,
    .dropout_backward = timed_dropout_backward,
    .embedding_forward = timed_embedding_forward,
    .embedding_backward = timed_embedding_backward,
    .head_loss = timed_head_loss,
    .linear_row = timed_linear_row,
    .attention_rows = timed_attention_rows,
    .logits = timed_logits,
    .adamw = timed_adamw,
    .sgd = timed_sgd,
    .packed_bytes = packed_bytes,
    .pack = timed_pack,
    .operand_bytes = operand_bytes,
    .add = timed_add,
    .ordered_sum = timed_ordered_sum,
    .copy = timed_copy,
    .cast = timed_cast,
    .widen = timed_widen,
    .round_to = timed_round_to,
    .sumsq_blocks = timed_sumsq_blocks,
    .fill_normal = timed_fill_normal,
    .fill = timed_fill,
    .orthonormalise = timed_orthonormalise,
};
