/* The interface between kernels/device.c and a device: one const vtable per kind. Only kernels/
 * includes this. */
#ifndef DPT_KERNELS_DEVICE_IMPL_H
#define DPT_KERNELS_DEVICE_IMPL_H

#include "kernels/op_times.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* Each member does what the function of the same name in device.h says. */
struct dpt_device_vtable {
    const struct dpt_ops *ops;
    void (*destroy)(struct dpt_device *dev);
    enum dpt_status (*alloc)(struct dpt_device *dev, size_t bytes, void **ret, struct dpt_err *err);
    void (*free)(struct dpt_device *dev, void *ptr, size_t bytes);
    /* Both NULL: the device's memory is host memory. */
    enum dpt_status (*alloc_host)(struct dpt_device *dev, size_t bytes, void **ret,
                                  struct dpt_err *err);
    void (*free_host)(struct dpt_device *dev, void *ptr, size_t bytes);
    /* The bytes that the system gives for an allocation of `bytes`. */
    size_t (*reserved)(size_t bytes);
    enum dpt_status (*stream_create)(struct dpt_device *dev, int threads, bool urgent,
                                     struct dpt_stream **ret, struct dpt_err *err);
    void (*stream_destroy)(struct dpt_stream *stream);
    void (*stream_set_threads)(struct dpt_stream *stream, int threads);
    /* NULL: the device has nothing to do. */
    void (*prepare_begin)(struct dpt_stream *stream);
    /* NULL: the device calls `sync` instead. */
    enum dpt_status (*prepare_end)(struct dpt_stream *stream, struct dpt_err *err);
    enum dpt_status (*sync)(struct dpt_stream *stream, struct dpt_err *err);
    bool has_tf32;
    /* All seven NULL: an op is done when it returns, and any thread may use the device. An event
     * marks a position in a queue and may be recorded again. */
    enum dpt_status (*enter)(struct dpt_device *dev, struct dpt_err *err);
    enum dpt_status (*event_create)(struct dpt_device *dev, bool timed, void **ret_native,
                                    struct dpt_err *err);
    void (*event_destroy)(struct dpt_device *dev, void *native);
    void (*event_record)(void *native, struct dpt_stream *stream);
    void (*event_await)(void *native, struct dpt_stream *stream);
    void (*event_wait)(void *native, struct dpt_stream *stream);
    /* Waits for timed event `to` and returns the milliseconds since timed event `from`. */
    double (*event_ms)(void *from, void *to);
    /* All five NULL: the device has no graphs. */
    bool (*capture_begin)(struct dpt_stream *stream);
    enum dpt_status (*capture_end)(struct dpt_stream *stream, void **ret_native,
                                   struct dpt_err *err);
    bool (*graph_is_current)(const void *native, const struct dpt_stream *stream);
    void (*graph_launch)(void *native, struct dpt_stream *stream);
    void (*graph_destroy)(struct dpt_device *dev, void *native);
};

struct dpt_residual;
struct dpt_layernorm_forward;
struct dpt_residual_norm;
/* dpt_ops.residual_norm as two ops, for a device without a fused kernel for this case. */
void dpt_residual_norm_by_two(struct dpt_stream *stream,
                              void (*residual)(struct dpt_stream *, const struct dpt_residual *),
                              void (*norm)(struct dpt_stream *,
                                           const struct dpt_layernorm_forward *),
                              const struct dpt_residual_norm *a);

struct dpt_adamw;
struct dpt_sgd;
/* The part of an optimizer's op for elements [begin, end), as one tensor. */
struct dpt_adamw dpt_adamw_part(const struct dpt_adamw *of, int64_t begin, int64_t end);
struct dpt_sgd dpt_sgd_part(const struct dpt_sgd *of, int64_t begin, int64_t end);
/* The part of an optimizer's op for tensor `i`, for a device that updates one tensor at a time. */
struct dpt_adamw dpt_adamw_tensor(const struct dpt_adamw *of, int i);
struct dpt_sgd dpt_sgd_tensor(const struct dpt_sgd *of, int i);

/* First member of every device. */
struct dpt_device {
    const struct dpt_device_vtable *vtable;
    char fingerprint[DPT_FINGERPRINT_BYTES];
    atomic_size_t bytes;
    struct dpt_account *account; /* NULL: none */
    bool times_ops, tf32;
    dpt_op_sink op_sink; /* NULL: none */
    dpt_op_wanted op_wanted;
};

/* First member of every stream. */
struct dpt_stream {
    struct dpt_device *device;
    struct dpt_op_timer *timer; /* owned; NULL: ops are not timed */
    bool preparing;
    /* The first error since the last sync. Only the thread that uses the stream reads it. */
    struct dpt_err error;
};

/* Makes `status` with this text the stream's error, unless the stream has one. */
void dpt_stream_fail(struct dpt_stream *s, enum dpt_status status, const char *what);

/* True when the op may run: the device has `dtype`, and the stream has no error. False: the stream
 * has an error, which is new if the dtype was the cause. */
DPT_MUST_USE bool dpt_stream_begin(struct dpt_stream *s, enum dpt_dtype dtype, const char *op);

/* Returns the stream's error, copies it to *err if err is not NULL, and clears it. */
DPT_MUST_USE enum dpt_status dpt_stream_take_error(struct dpt_stream *s, struct dpt_err *err);

/* --- the timer of a stream (op_times.c) --- */

extern const struct dpt_ops dpt_timed_ops;

/* Called once for a new stream. All memory of the timer is allocated here. */
DPT_MUST_USE enum dpt_status dpt_op_timer_create(struct dpt_stream *stream, struct dpt_err *err);
/* Called before the stream is destroyed. Accepts a stream without a timer. */
void dpt_op_timer_destroy(struct dpt_stream *stream);
/* Stops and restarts the timer, because the ops and the idle time of a preparation do not count. */
void dpt_op_timer_pause(struct dpt_stream *stream, bool paused);
/* Discards the marks of ops that failed. */
void dpt_op_timer_drop(struct dpt_stream *stream);
/* Adds the times of all marks to the totals. Waits for ops that are still under way. */
void dpt_op_timer_drain(struct dpt_stream *stream);

#endif
