/* The parts of a CUDA device and its streams: the queue, the workspace, the products, the sticky
 * error. For the C files of kernels/cuda only; no type of CUDA's is seen here. */
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
    int shared_bytes; /* that a block may have; at least DPT_CUDA_SHARED_BYTES_MIN */
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

/* discover.c: whether device `index` is there and can run what was compiled, and its fingerprint.
 * Errors as dpt_device_cuda_create's. */
DPT_MUST_USE enum dpt_status dpt_cuda_find_fingerprint(int index, char ret[DPT_FINGERPRINT_BYTES],
                                                       struct dpt_err *err);

/* Makes *err of a cudaError_t other than 0, which `what` returned on device `index`. */
enum dpt_status dpt_cuda_translate(struct dpt_err *err, int code, const char *what, int index);

/* True for 0. Any other cudaError_t becomes the stream's error, as a failure of `op`. */
bool dpt_cuda_posted(struct dpt_cuda_stream *s, int code, const char *op);

/* Makes the error of the launches since the last call, if there is one, the stream's, as a failure
 * of `op`. */
void dpt_cuda_launched(struct dpt_cuda_stream *s, const char *op);

/* Posts dpt_launch_NAME (launch.h) as part of `op`, unless the stream prepares or has an error. */
#define DPT_CUDA_LAUNCH(s, op, name, ...)                                                          \
    do {                                                                                           \
        if (!(s)->base.preparing && (s)->base.error.status == DPT_OK) {                            \
            dpt_launch_##name((s)->queue, __VA_ARGS__);                                            \
            dpt_cuda_launched(s, op);                                                              \
        }                                                                                          \
    } while (0)

/* True when the op may go on: a dtype there is, and no error yet; the device is this thread's.
 * Otherwise the error is (or stays) set. */
bool dpt_cuda_begin(struct dpt_cuda_stream *s, enum dpt_dtype dtype, const char *op);

/* Gives the op its workspace, growing the stream's if this op needs more than any before (which
 * waits for posted ops). While preparing it returns false after growing: the op ends there;
 * also when memory is short, with the error set. */
bool dpt_cuda_workspace(struct dpt_cuda_stream *s, size_t bytes, void **ret);

/* Graphs (graph.c): as the device's vtable says. */
bool dpt_cuda_capture_begin(struct dpt_stream *s);
enum dpt_status dpt_cuda_capture_end(struct dpt_stream *s, void **ret_native, struct dpt_err *err);
bool dpt_cuda_graph_is_current(const void *native, const struct dpt_stream *s);
void dpt_cuda_graph_launch(void *native, struct dpt_stream *s);
void dpt_cuda_graph_destroy(struct dpt_device *dev, void *native);

/* The ops, one file a family. */
#define DPT_PACK_OP(name, class, type)
#define DPT_PACK_QUERY(name, result, parameters, names)
#define DPT_OP_VALUES(name, class, parameters, names) void dpt_cuda_##name parameters;
#define DPT_OP_QUERY(name, result, parameters, names) result dpt_cuda_##name parameters;
#include "kernels/ops.def"

#endif
