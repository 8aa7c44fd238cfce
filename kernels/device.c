/* Dispatch of device.h to the device's vtable, and the account of device memory. */
#include "kernels/device.h"

#include "base/hash.h"
#include "kernels/device_impl.h"
#include "kernels/ops.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct dpt_event {
    struct dpt_device *device;
    void *native;
};

void dpt_device_destroy(struct dpt_device **dev)
{
    if (!*dev)
        return;
    (*dev)->vtable->destroy(*dev);
    *dev = NULL;
}

/* Whether ops of the device are measured, always or sometimes. */
static bool has_timers(const struct dpt_device *dev)
{
    return dev->times_ops || dev->op_sink;
}

const struct dpt_ops *dpt_device_ops(const struct dpt_device *dev)
{
    return has_timers(dev) ? &dpt_timed_ops : dev->vtable->ops;
}

const char *dpt_device_fingerprint(const struct dpt_device *dev)
{
    return dev->fingerprint;
}

void dpt_fingerprint_join(const char *device, const char *host, char ret[DPT_FINGERPRINT_BYTES])
{
    const uint32_t hash = (uint32_t)dpt_hash128(host, strlen(host)).lo;
    const int length = snprintf(ret, DPT_FINGERPRINT_BYTES, "%s host-%08" PRIx32, device, hash);
    DPT_ASSERT(length > 0 && length < DPT_FINGERPRINT_BYTES);
}

void dpt_device_use_tf32(struct dpt_device *dev)
{
    DPT_ASSERT(dev->vtable->has_tf32);
    dev->tf32 = true;
}

void dpt_device_set_account(struct dpt_device *dev, struct dpt_account *account)
{
    DPT_ASSERT(dpt_device_bytes(dev) == 0);
    dev->account = account;
}

enum dpt_status dpt_device_alloc_for(struct dpt_device *dev, enum dpt_memory_tag tag, size_t bytes,
                                     void **ret, struct dpt_err *err)
{
    DPT_TRY(dev->vtable->alloc(dev, bytes, ret, err));
    dpt_account_add(dev->account, tag, *ret, bytes, dev->vtable->reserved(bytes));
    atomic_fetch_add(&dev->bytes, bytes);
    return DPT_OK;
}

void dpt_device_free_for(struct dpt_device *dev, enum dpt_memory_tag tag, void *ptr, size_t bytes)
{
    if (!ptr)
        return;
    dev->vtable->free(dev, ptr, bytes);
    dpt_account_sub(dev->account, tag, ptr, bytes, dev->vtable->reserved(bytes));
    atomic_fetch_sub(&dev->bytes, bytes);
}

enum dpt_status dpt_device_alloc(struct dpt_device *dev, size_t bytes, void **ret,
                                 struct dpt_err *err)
{
    return dpt_device_alloc_for(dev, DPT_MEMORY_OTHER, bytes, ret, err);
}

void dpt_device_free(struct dpt_device *dev, void *ptr, size_t bytes)
{
    dpt_device_free_for(dev, DPT_MEMORY_OTHER, ptr, bytes);
}

enum dpt_status dpt_device_alloc_host(struct dpt_device *dev, size_t bytes, void **ret,
                                      struct dpt_err *err)
{
    return (dev->vtable->alloc_host ? dev->vtable->alloc_host : dev->vtable->alloc)(dev, bytes, ret,
                                                                                    err);
}

void dpt_device_free_host(struct dpt_device *dev, void *ptr, size_t bytes)
{
    if (ptr)
        (dev->vtable->free_host ? dev->vtable->free_host : dev->vtable->free)(dev, ptr, bytes);
}

size_t dpt_device_bytes(const struct dpt_device *dev)
{
    return atomic_load(&dev->bytes);
}

static enum dpt_status create_stream(struct dpt_device *dev, int threads, bool urgent,
                                     struct dpt_stream **ret, struct dpt_err *err)
{
    DPT_TRY(dev->vtable->stream_create(dev, threads, urgent, ret, err));
    const enum dpt_status status = has_timers(dev) ? dpt_op_timer_create(*ret, err) : DPT_OK;
    if (status != DPT_OK)
        dpt_stream_destroy(ret);
    return status;
}

enum dpt_status dpt_stream_create(struct dpt_device *dev, int threads, struct dpt_stream **ret,
                                  struct dpt_err *err)
{
    return create_stream(dev, threads, false, ret, err);
}

enum dpt_status dpt_stream_create_urgent(struct dpt_device *dev, int threads,
                                         struct dpt_stream **ret, struct dpt_err *err)
{
    return create_stream(dev, threads, true, ret, err);
}

void dpt_stream_destroy(struct dpt_stream **stream)
{
    if (!*stream)
        return;
    dpt_op_timer_destroy(*stream);
    (*stream)->device->vtable->stream_destroy(*stream);
    *stream = NULL;
}

void dpt_stream_set_threads(struct dpt_stream *stream, int threads)
{
    stream->device->vtable->stream_set_threads(stream, threads);
}

void dpt_stream_prepare_begin(struct dpt_stream *stream)
{
    dpt_op_timer_drain(stream);
    dpt_op_timer_pause(stream, true);
    stream->preparing = true;
    if (stream->device->vtable->prepare_begin)
        stream->device->vtable->prepare_begin(stream);
}

enum dpt_status dpt_stream_prepare_end(struct dpt_stream *stream, struct dpt_err *err)
{
    const struct dpt_device_vtable *vtable = stream->device->vtable;
    dpt_op_timer_pause(stream, false);
    stream->preparing = false;
    return (vtable->prepare_end ? vtable->prepare_end : vtable->sync)(stream, err);
}

void dpt_stream_fail(struct dpt_stream *s, enum dpt_status status, const char *what)
{
    if (s->error.status == DPT_OK)
        (void)dpt_fail(&s->error, status, "%s", what);
}

bool dpt_stream_begin(struct dpt_stream *s, enum dpt_dtype dtype, const char *op)
{
    if (s->error.status == DPT_OK && (unsigned)dtype >= DPT_DTYPE_COUNT)
        (void)dpt_fail(&s->error, DPT_EUNSUPPORTED, "%s: this device has no dtype %d", op,
                       (int)dtype);
    return s->error.status == DPT_OK;
}

enum dpt_status dpt_stream_take_error(struct dpt_stream *s, struct dpt_err *err)
{
    const enum dpt_status status = s->error.status;
    if (status != DPT_OK && err)
        *err = s->error;
    s->error.status = DPT_OK;
    return status;
}

enum dpt_status dpt_stream_sync(struct dpt_stream *stream, struct dpt_err *err)
{
    const enum dpt_status status = stream->device->vtable->sync(stream, err);
    if (status == DPT_OK)
        dpt_op_timer_drain(stream);
    else
        dpt_op_timer_drop(stream);
    return status;
}

enum dpt_status dpt_device_enter(struct dpt_device *dev, struct dpt_err *err)
{
    return dev->vtable->enter ? dev->vtable->enter(dev, err) : DPT_OK;
}

enum dpt_status dpt_event_create(struct dpt_device *dev, struct dpt_event **ret,
                                 struct dpt_err *err)
{
    struct dpt_event *event = calloc(1, sizeof *event);
    if (!event)
        return dpt_fail_nomem(err, "an event of a device");
    event->device = dev;
    event->native = event;
    const enum dpt_status status = dev->vtable->event_create
                                       ? dev->vtable->event_create(dev, false, &event->native, err)
                                       : DPT_OK;
    if (status == DPT_OK)
        *ret = event;
    else
        free(event);
    return status;
}

void dpt_event_destroy(struct dpt_event **event)
{
    if (!*event)
        return;
    const struct dpt_device_vtable *vtable = (*event)->device->vtable;
    if (vtable->event_destroy)
        vtable->event_destroy((*event)->device, (*event)->native);
    free(*event);
    *event = NULL;
}

void dpt_event_record(struct dpt_event *event, struct dpt_stream *stream)
{
    DPT_ASSERT(stream->device == event->device);
    if (event->device->vtable->event_record)
        event->device->vtable->event_record(event->native, stream);
}

void dpt_event_await(struct dpt_event *event, struct dpt_stream *stream)
{
    DPT_ASSERT(stream->device == event->device);
    if (event->device->vtable->event_await)
        event->device->vtable->event_await(event->native, stream);
}

void dpt_event_wait(struct dpt_event *event, struct dpt_stream *stream)
{
    DPT_ASSERT(stream->device == event->device);
    if (event->device->vtable->event_wait)
        event->device->vtable->event_wait(event->native, stream);
}

void *dpt_event_native(const struct dpt_event *event)
{
    return event->native;
}

struct dpt_graph {
    struct dpt_device *device;
    void *native;
};

bool dpt_device_has_graphs(const struct dpt_device *dev)
{
    return dev->vtable->capture_begin && !dev->times_ops;
}

bool dpt_stream_capture_begin(struct dpt_stream *stream)
{
    DPT_ASSERT(dpt_device_has_graphs(stream->device));
    return stream->device->vtable->capture_begin(stream);
}

enum dpt_status dpt_stream_capture_end(struct dpt_stream *stream, struct dpt_graph **ret,
                                       struct dpt_err *err)
{
    struct dpt_device *dev = stream->device;
    void *native;
    DPT_TRY(dev->vtable->capture_end(stream, &native, err));
    struct dpt_graph *graph = calloc(1, sizeof *graph);
    if (!graph) {
        dev->vtable->graph_destroy(dev, native);
        return dpt_fail_nomem(err, "a graph of a device");
    }
    *graph = (struct dpt_graph){dev, native};
    *ret = graph;
    return DPT_OK;
}

bool dpt_graph_is_current(const struct dpt_graph *graph, const struct dpt_stream *stream)
{
    return graph->device->vtable->graph_is_current(graph->native, stream);
}

void dpt_graph_launch(struct dpt_graph *graph, struct dpt_stream *stream)
{
    DPT_ASSERT(stream->device == graph->device);
    graph->device->vtable->graph_launch(graph->native, stream);
}

void dpt_graph_destroy(struct dpt_graph **graph)
{
    struct dpt_graph *g = *graph;
    if (!g)
        return;
    g->device->vtable->graph_destroy(g->device, g->native);
    free(g);
    *graph = NULL;
}

void dpt_residual_norm_by_two(struct dpt_stream *stream,
                              void (*residual)(struct dpt_stream *, const struct dpt_residual *),
                              void (*norm)(struct dpt_stream *,
                                           const struct dpt_layernorm_forward *),
                              const struct dpt_residual_norm *a)
{
    residual(stream, &(struct dpt_residual){.n = a->n * a->c,
                                            .dtype = a->dtype,
                                            .dropout = a->dropout,
                                            .a = a->a,
                                            .b = a->b,
                                            .y = a->sum});
    norm(stream, &(struct dpt_layernorm_forward){.n = a->n,
                                                 .c = a->c,
                                                 .eps = a->eps,
                                                 .dtype = a->dtype,
                                                 .x = a->sum,
                                                 .gamma = a->gamma,
                                                 .beta = a->beta,
                                                 .y = a->y,
                                                 .mean = a->mean,
                                                 .rstd = a->rstd});
}

struct dpt_adamw dpt_adamw_part(const struct dpt_adamw *of, int64_t begin, int64_t end)
{
    struct dpt_adamw part = *of;
    part.tensors = NULL;
    part.n = end - begin;
    part.param += begin;
    part.m += begin;
    part.v += begin;
    part.grad += begin;
    part.copy = dpt_at_out(of->copy, of->copy_dtype, begin);
    return part;
}

struct dpt_adamw dpt_adamw_tensor(const struct dpt_adamw *of, int i)
{
    const struct dpt_updated *tensor = &of->tensors[i];
    struct dpt_adamw part = dpt_adamw_part(of, tensor->begin, tensor->end);
    part.weight_decay = tensor->decays ? of->weight_decay : 0.0f;
    return part;
}

struct dpt_sgd dpt_sgd_part(const struct dpt_sgd *of, int64_t begin, int64_t end)
{
    struct dpt_sgd part = *of;
    part.tensors = NULL;
    part.n = end - begin;
    part.param += begin;
    part.m = of->m ? of->m + begin : NULL;
    part.grad += begin;
    part.copy = dpt_at_out(of->copy, of->copy_dtype, begin);
    return part;
}

struct dpt_sgd dpt_sgd_tensor(const struct dpt_sgd *of, int i)
{
    const struct dpt_updated *tensor = &of->tensors[i];
    struct dpt_sgd part = dpt_sgd_part(of, tensor->begin, tensor->end);
    part.weight_decay = tensor->decays ? of->weight_decay : 0.0f;
    return part;
}
