/* The parts of a CUDA device and its streams: the queue, the workspace, the products, the sticky
 * error. For the C files of kernels/cuda. The header has no CUDA type. */
#ifndef DPT_KERNELS_CUDA_STREAM_H
#define DPT_KERNELS_CUDA_STREAM_H

#include "kernels/device_impl.h"
#include "kernels/ops.h"

#include <stdbool.h>

struct dpt_cuda_gemm_engine;
struct dpt_cudnn;

struct dpt_cuda_device {
    struct dpt_device base;
    int index;
    int shared_bytes; /* for one block; at least DPT_CUDA_SHARED_BYTES_MIN */
    int multiprocessors;
    void *blas; /* cublasLtHandle_t; any thread */
};

struct dpt_cuda_stream {
    struct dpt_stream base;
    void *queue; /* cudaStream_t */
    struct dpt_cuda_gemm_engine *gemm;
    struct dpt_cudnn *cudnn; /* cudnn_cache.h; NULL: not used yet */
    void *workspace;
    size_t workspace_bytes;
};

static inline struct dpt_cuda_stream *dpt_cuda_stream(struct dpt_stream *s)
{
    return (struct dpt_cuda_stream *)s;
}

static inline struct dpt_cuda_device *dpt_cuda_device_of(const struct dpt_cuda_stream *s)
{
    return (struct dpt_cuda_device *)s->base.device;
}

/* Finds device `index`, checks that it can run the compiled kernels, and returns its fingerprint
 * (discover.c). Errors as dpt_device_cuda_create's. */
DPT_MUST_USE enum dpt_status dpt_cuda_find_fingerprint(int index, char ret[DPT_FINGERPRINT_BYTES],
                                                       struct dpt_err *err);

/* Fills *err from `code`, a cudaError_t other than 0 that `what` returned on device `index`. */
enum dpt_status dpt_cuda_translate(struct dpt_err *err, int code, const char *what, int index);

/* True if `code` is 0. Any other cudaError_t becomes the stream's error, as a failure of `op`. */
bool dpt_cuda_posted(struct dpt_cuda_stream *s, int code, const char *op);

/* If a launch since the last call failed, its error becomes the stream's, as a failure of `op`. */
void dpt_cuda_launched(struct dpt_cuda_stream *s, const char *op);

/* Posts dpt_launch_NAME (launch.h) as part of `op`, unless the stream prepares or has an error. */
#define DPT_CUDA_LAUNCH(s, op, name, ...)                                                          \
    do {                                                                                           \
        if (!(s)->base.preparing && (s)->base.error.status == DPT_OK) {                            \
            dpt_launch_##name((s)->queue, __VA_ARGS__);                                            \
            dpt_cuda_launched(s, op);                                                              \
        }                                                                                          \
    } while (0)

/* Makes the stream's device the thread's current device. True when the op may run: the device has
 * `dtype`, and the stream has no error. False: the stream has an error. */
bool dpt_cuda_begin(struct dpt_cuda_stream *s, enum dpt_dtype dtype, const char *op);

/* Gives the op its workspace. Enlarges the stream's workspace if this op needs more than any op
 * before; that waits for posted ops. Returns false while the stream prepares, after the
 * enlargement: the op ends there. Also returns false, with the error set, when memory is short. */
bool dpt_cuda_workspace(struct dpt_cuda_stream *s, size_t bytes, void **ret);

/* Graphs (graph.c). The vtable in device_impl.h describes them. */
bool dpt_cuda_capture_begin(struct dpt_stream *s);
enum dpt_status dpt_cuda_capture_end(struct dpt_stream *s, void **ret_native, struct dpt_err *err);
bool dpt_cuda_graph_is_current(const void *native, const struct dpt_stream *s);
void dpt_cuda_graph_launch(void *native, struct dpt_stream *s);
void dpt_cuda_graph_destroy(struct dpt_device *dev, void *native);

/* The ops, one file per family. */
#define DPT_PACK_OP(name, class, type)
#define DPT_PACK_QUERY(name, result, parameters, names)
#define DPT_OP_VALUES(name, class, parameters, names) void dpt_cuda_##name parameters;
#define DPT_OP_QUERY(name, result, parameters, names) result dpt_cuda_##name parameters;
#include "kernels/ops.def"

#endif
