/* The interface between kernels/device.c and a device: one const vtable per kind. Only kernels/
 * includes this. */
#ifndef DPT_KERNELS_DEVICE_IMPL_H
#define DPT_KERNELS_DEVICE_IMPL_H

#include "kernels/device.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

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
    /* The bytes that an allocation of `bytes` takes from the system. */
    size_t (*reserved)(size_t bytes);
    enum dpt_status (*stream_create)(struct dpt_device *dev, int threads, bool urgent,
                                     struct dpt_stream **ret, struct dpt_err *err);
    void (*stream_destroy)(struct dpt_stream *stream);
    void (*stream_set_threads)(struct dpt_stream *stream, int threads);
    /* NULL: nothing is to be done. */
    void (*prepare_begin)(struct dpt_stream *stream);
    /* NULL: sync. */
    enum dpt_status (*prepare_end)(struct dpt_stream *stream, struct dpt_err *err);
    enum dpt_status (*sync)(struct dpt_stream *stream, struct dpt_err *err);
    bool has_tf32;
    /* NULL, all seven: an op is done when it returns, and any thread may use the device. An event
     * marks a position in a queue; it may be recorded again. */
    enum dpt_status (*enter)(struct dpt_device *dev, struct dpt_err *err);
    enum dpt_status (*event_create)(struct dpt_device *dev, bool timed, void **ret_native,
                                    struct dpt_err *err);
    void (*event_destroy)(struct dpt_device *dev, void *native);
    void (*event_record)(void *native, struct dpt_stream *stream);
    void (*event_await)(void *native, struct dpt_stream *stream);
    void (*event_wait)(void *native, struct dpt_stream *stream);
    /* Milliseconds from one timed event to a later one: waits until that is there. */
    double (*event_ms)(void *from, void *to);
    /* NULL, all five: there are no graphs. */
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
/* dpt_ops.residual_norm for a device that has the two. */
void dpt_residual_norm_by_two(struct dpt_stream *stream,
                              void (*residual)(struct dpt_stream *, const struct dpt_residual *),
                              void (*norm)(struct dpt_stream *,
                                           const struct dpt_layernorm_forward *),
                              const struct dpt_residual_norm *a);

struct dpt_adamw;
struct dpt_sgd;
/* An optimizer's op on elements [begin, end) of `of`, as one tensor. */
struct dpt_adamw dpt_adamw_part(const struct dpt_adamw *of, int64_t begin, int64_t end);
struct dpt_sgd dpt_sgd_part(const struct dpt_sgd *of, int64_t begin, int64_t end);
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
    bool preparing;
    struct dpt_err error; /* first since the last sync; of the thread that uses the stream */
};

/* Makes `status` with this text the stream's error if it has none. */
void dpt_stream_fail(struct dpt_stream *s, enum dpt_status status, const char *what);

/* True when the op may go on: a dtype there is, and no error yet. Otherwise the error is, or stays,
 * set. */
DPT_MUST_USE bool dpt_stream_begin(struct dpt_stream *s, enum dpt_dtype dtype, const char *op);

/* Returns the stream's error, in *err as well, and forgets it. */
DPT_MUST_USE enum dpt_status dpt_stream_take_error(struct dpt_stream *s, struct dpt_err *err);

/* --- the timer of a stream (op_times.c) --- */

extern const struct dpt_ops dpt_timed_ops;

/* For a new stream; nothing is allocated later. */
DPT_MUST_USE enum dpt_status dpt_op_timer_create(struct dpt_stream *stream, struct dpt_err *err);
/* Before the stream is destroyed. Accepts a stream without one. */
void dpt_op_timer_destroy(struct dpt_stream *stream);
/* While a stream prepares, neither ops nor idle time count. */
void dpt_op_timer_pause(struct dpt_stream *stream, bool paused);
/* The posted ops failed: discards their marks. */
void dpt_op_timer_drop(struct dpt_stream *stream);
/* Reads the marks. All posted ops are done. */
void dpt_op_timer_drain(struct dpt_stream *stream);

#endif
