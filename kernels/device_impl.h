/* What a device gives to kernels/device.c: one small const vtable per kind. Only kernels/ includes
 * this. */
#ifndef DPT_KERNELS_DEVICE_IMPL_H
#define DPT_KERNELS_DEVICE_IMPL_H

#include "kernels/device.h"

#include <stdatomic.h>
#include <stdbool.h>

/* Semantics are those of the functions of device.h with the same name. */
struct dpt_device_vtable {
    const struct dpt_ops *ops;
    void (*destroy)(struct dpt_device *dev);
    enum dpt_status (*alloc)(struct dpt_device *dev, size_t bytes, void **ret, struct dpt_err *err);
    void (*free)(struct dpt_device *dev, void *ptr, size_t bytes);
    /* NULL, both: the device's own memory is the host's. */
    enum dpt_status (*alloc_host)(struct dpt_device *dev, size_t bytes, void **ret,
                                  struct dpt_err *err);
    void (*free_host)(struct dpt_device *dev, void *ptr, size_t bytes);
    /* What an allocation of so many bytes takes from the system. */
    size_t (*reserved)(size_t bytes);
    enum dpt_status (*stream_create)(struct dpt_device *dev, int threads, bool urgent,
                                     struct dpt_stream **ret, struct dpt_err *err);
    void (*stream_destroy)(struct dpt_stream *stream);
    void (*stream_set_threads)(struct dpt_stream *stream, int threads);
    void (*prepare_begin)(struct dpt_stream *stream);
    enum dpt_status (*prepare_end)(struct dpt_stream *stream, struct dpt_err *err);
    enum dpt_status (*sync)(struct dpt_stream *stream, struct dpt_err *err);
    bool has_tf32;
    /* NULL, all six: what is posted is done, and the device is every thread's. */
    enum dpt_status (*enter)(struct dpt_device *dev, struct dpt_err *err);
    enum dpt_status (*event_create)(struct dpt_device *dev, void **ret_native, struct dpt_err *err);
    void (*event_destroy)(struct dpt_device *dev, void *native);
    void (*event_record)(void *native, struct dpt_stream *stream);
    void (*event_await)(void *native, struct dpt_stream *stream);
    void (*event_wait)(void *native, struct dpt_stream *stream);
    /* NULL, all five: there are no graphs. */
    bool (*capture_begin)(struct dpt_stream *stream);
    enum dpt_status (*capture_end)(struct dpt_stream *stream, void **ret_native,
                                   struct dpt_err *err);
    bool (*graph_is_current)(const void *native, const struct dpt_stream *stream);
    void (*graph_launch)(void *native, struct dpt_stream *stream);
    void (*graph_destroy)(struct dpt_device *dev, void *native);
    /* NULL, all four: ops are done when they return. A mark is a moment of the queue; it may be
     * recorded again and again. Milliseconds from one to a later one: waits until that is there. */
    enum dpt_status (*mark_create)(struct dpt_device *dev, void **ret_native, struct dpt_err *err);
    void (*mark_destroy)(struct dpt_device *dev, void *native);
    void (*mark_record)(void *native, struct dpt_stream *stream);
    double (*mark_ms)(void *from, void *to);
};

struct dpt_residual;
struct dpt_layernorm_forward;
struct dpt_residual_norm;
/* dpt_ops.residual_norm for a device that has the two. */
void dpt_residual_norm_by_two(struct dpt_stream *stream,
                              void (*residual)(struct dpt_stream *, const struct dpt_residual *),
                              void (*norm)(struct dpt_stream *,
                                           const struct dpt_layernorm_forward *),
                              const struct dpt_residual_norm *a);

struct dpt_adamw;
struct dpt_sgd;
/* An optimizer's op on tensor `i` of `of` alone, for a device that updates one at a time. */
struct dpt_adamw dpt_adamw_tensor(const struct dpt_adamw *of, int i);
struct dpt_sgd dpt_sgd_tensor(const struct dpt_sgd *of, int i);

/* First member of every device. */
struct dpt_device {
    const struct dpt_device_vtable *vtable;
    char fingerprint[DPT_FINGERPRINT_BYTES];
    atomic_size_t bytes;
    struct dpt_account *account; /* NULL: none */
    bool times_ops, tf32;
};

/* First member of every stream. */
struct dpt_stream {
    struct dpt_device *device;
    struct dpt_op_timer *timer; /* owned; NULL: its ops are not timed */
};

#endif
