/* The errors and the workspace of a CUDA stream. */
#include "kernels/cuda/stream.h"

#include <cuda_runtime_api.h>

enum dpt_status dpt_cuda_translate(struct dpt_err *err, int code, const char *what, int index)
{
    const enum dpt_status status = code == cudaErrorMemoryAllocation ? DPT_ENOMEM : DPT_EDEVICE;
    return dpt_fail(err, status, "%s on CUDA device %d: %s (%s)", what, index,
                    cudaGetErrorString((cudaError_t)code), cudaGetErrorName((cudaError_t)code));
}

bool dpt_cuda_posted(struct dpt_cuda_stream *s, int code, const char *op)
{
    if (code == cudaSuccess)
        return true;
    if (s->base.error.status == DPT_OK)
        (void)dpt_cuda_translate(&s->base.error, code, op, dpt_cuda_device_of(s)->index);
    return false;
}

void dpt_cuda_launched(struct dpt_cuda_stream *s, const char *op)
{
    (void)dpt_cuda_posted(s, cudaGetLastError(), op);
}

bool dpt_cuda_begin(struct dpt_cuda_stream *s, enum dpt_dtype dtype, const char *op)
{
    return dpt_stream_begin(&s->base, dtype, op) &&
           dpt_cuda_posted(s, cudaSetDevice(dpt_cuda_device_of(s)->index), op);
}

bool dpt_cuda_workspace(struct dpt_cuda_stream *s, size_t bytes, void **ret)
{
    if (bytes > s->workspace_bytes) {
        struct dpt_err err;
        if (!dpt_cuda_posted(s, cudaStreamSynchronize(s->queue), "growing the workspace"))
            return false;
        dpt_device_free_for(s->base.device, DPT_MEMORY_WORKSPACE, s->workspace, s->workspace_bytes);
        s->workspace = NULL;
        s->workspace_bytes = 0;
        const enum dpt_status status =
            dpt_device_alloc_for(s->base.device, DPT_MEMORY_WORKSPACE, bytes, &s->workspace, &err);
        if (status != DPT_OK) {
            dpt_stream_fail(&s->base, status, err.text);
            return false;
        }
        s->workspace_bytes = bytes;
    }
    *ret = s->workspace;
    return !s->base.preparing;
}
