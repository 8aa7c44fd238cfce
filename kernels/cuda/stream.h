/* Inside of a CUDA device and its streams: the queue, the workspace, the products, the sticky
 * error. For the C files of kernels/cuda only; no type of CUDA's is seen here. */
#ifndef DPT_KERNELS_CUDA_STREAM_H
#define DPT_KERNELS_CUDA_STREAM_H

#include "kernels/device_impl.h"
#include "kernels/ops.h"

#include <stdbool.h>

struct dpt_cuda_gemm_engine;
struct dpt_cudnn_attention;
struct dpt_cudnn_convs;

struct dpt_cuda_device {
    struct dpt_device base;
    int index;
    int shared_bytes; /* that a block may have; at least DPT_CUDA_SHARED_BYTES_MIN */
    void *blas;       /* cublasLtHandle_t; any thread */
};

struct dpt_cuda_stream {
    struct dpt_stream base;
    void *queue; /* cudaStream_t */
    struct dpt_cuda_gemm_engine *gemm;
    struct dpt_cudnn_attention *attention; /* attention_cudnn.h; NULL: not used yet */
    struct dpt_cudnn_convs *convs;         /* conv_cudnn.h; likewise */
    bool preparing;
    struct dpt_err
        error; /* first since the last sync; written by the thread that uses the stream */
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

/* Element i of p, for pointers that are NULL while a stream prepares. */
static inline const void *dpt_cuda_at(const void *p, enum dpt_dtype dtype, int64_t i)
{
    return p ? (const char *)p + (size_t)i * dpt_dtype_bytes(dtype) : NULL;
}

static inline void *dpt_cuda_at_out(void *p, enum dpt_dtype dtype, int64_t i)
{
    return p ? (char *)p + (size_t)i * dpt_dtype_bytes(dtype) : NULL;
}

/* Makes `status` with this text the stream's error if it has none. */
void dpt_cuda_fail(struct dpt_cuda_stream *s, enum dpt_status status, const char *what);

/* True for 0. Any other cudaError_t becomes the stream's error, as what befell `op`. */
bool dpt_cuda_posted(struct dpt_cuda_stream *s, int code, const char *op);

/* True when the op may go on: a dtype there is, and no error yet; the device is this thread's.
 * Otherwise the error is (or stays) set. */
bool dpt_cuda_begin(struct dpt_cuda_stream *s, enum dpt_dtype dtype, const char *op);

/* Gives the op its workspace, growing the stream's if this op needs more than any before (which
 * waits for what is posted). While preparing it returns false after growing: the op ends there;
 * also when memory is short, with the error set. */
bool dpt_cuda_workspace(struct dpt_cuda_stream *s, size_t bytes, void **ret);

/* Graphs (graph.c): as the device's vtable says. */
bool dpt_cuda_capture_begin(struct dpt_stream *s);
enum dpt_status dpt_cuda_capture_end(struct dpt_stream *s, void **ret_native, struct dpt_err *err);
bool dpt_cuda_graph_is_current(const void *native, const struct dpt_stream *s);
void dpt_cuda_graph_launch(void *native, struct dpt_stream *s);
void dpt_cuda_graph_destroy(struct dpt_device *dev, void *native);

/* The ops, one file a family. */
#define DPT_OP_VALUES(name, class, parameters, names) void dpt_cuda_##name parameters;
#define DPT_OP_QUERY(name, result, parameters, names) result dpt_cuda_##name parameters;
#include "kernels/ops.def"

#endif
