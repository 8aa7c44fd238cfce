/* The time that a device spends in the ops of ops.h, by class, and between them.
 *
 * A device that times its ops measures around every op of a stream. On the CPU it reads the clock.
 * On a device with queues it posts timed events, which the host reads when it waits for the stream.
 * The time between two ops is `idle`: the stream had nothing to do or waited for another stream.
 * Events cost the host a few microseconds for each op, so ops are timed only on request. Timing
 * changes no bits of a result. */
#ifndef DPT_KERNELS_OP_TIMES_H
#define DPT_KERNELS_OP_TIMES_H

#include "kernels/device.h"

#include <stdbool.h>
#include <stdint.h>

#define DPT_OP_CLASS_TABLE(X)                                                                      \
    X(LINEAR, "linear")       /* products with weights, bias and its gradient */                   \
    X(ATTENTION, "attention") /* and rotary embeddings */                                          \
    X(LAYERNORM, "layernorm")                                                                      \
    X(GELU, "gelu")         /* if it is not fused into a product */                                \
    X(SWIGLU, "swiglu")     /* the activation, without its products */                             \
    X(RESIDUAL, "residual") /* and dropout */                                                      \
    X(EMBEDDING, "embedding")                                                                      \
    X(HEAD, "head") /* logits, softmax, loss, their gradients; rows of last tokens */              \
    X(CONV, "conv")                                                                                \
    X(BATCHNORM, "batchnorm") /* with the residual and ReLU behind it */                           \
    X(POOL, "pool")           /* max pooling, average pooling */                                   \
    X(OPTIMIZER, "optimizer")                                                                      \
    X(SUM, "sum")   /* sums of gradients: lanes, contributions, the norm */                        \
    X(COPY, "copy") /* and conversions, filling, packing */                                        \
    X(OTHER, "other")

enum dpt_op_class {
#define X(name, text) DPT_OP_##name,
    DPT_OP_CLASS_TABLE(X)
#undef X
        DPT_OP_CLASSES
};

/* "linear"; static storage. */
const char *dpt_op_class_name(enum dpt_op_class class);

struct dpt_op_times {
    double ms[DPT_OP_CLASSES];
    int64_t calls[DPT_OP_CLASSES];
    double idle_ms;
};

/* From this call on dpt_device_ops returns timed ops, and new streams measure times. Called before
 * the first dpt_device_ops and before the first stream. */
void dpt_device_time_ops(struct dpt_device *dev);

/* Sizes of an op's arguments by their names in ops.h, such as n, in and out of a product. */
enum { DPT_OP_SIZES = 5 };
struct dpt_op_shape {
    const char *name[DPT_OP_SIZES]; /* static; NULL: none */
    int64_t size[DPT_OP_SIZES];
};

/* Receives each timed op of a device whose ops are done when they return, on the thread that called
 * the op. `op`: the name in ops.def; static. Times are dpt_now_ns'. */
typedef void (*dpt_op_sink)(const char *op, const struct dpt_op_shape *shape, int64_t begin_ns,
                            int64_t end_ns);
/* Whether the sink takes an op that the calling thread begins now. */
typedef bool (*dpt_op_wanted)(void);
/* From this call on passes each op to `sink` that is `wanted`. An op that is not wanted costs that
 * question only. Called as dpt_device_time_ops, with which it may be combined; alone it sums no
 * times. A device with queues passes no ops. */
void dpt_device_trace_ops(struct dpt_device *dev, dpt_op_sink sink, dpt_op_wanted wanted);

/* The times of the stream's ops from its creation to its last dpt_stream_sync. Preparations do not
 * count. All zeros without dpt_device_time_ops. Called by the thread that uses the stream. */
void dpt_stream_op_times(struct dpt_stream *stream, struct dpt_op_times *ret);

/* ret = a - b. */
void dpt_op_times_since(const struct dpt_op_times *a, const struct dpt_op_times *b,
                        struct dpt_op_times *ret);

#endif
