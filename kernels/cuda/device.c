/* The CUDA device and its streams: memory, workspace, sticky errors. */
#include "kernels/cuda/cudnn_ops.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/load.h"
#include "kernels/cuda/stream.h"

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGN_BYTES = 64, GRANULE_BYTES = 2 << 20 };

static const struct dpt_ops cuda_ops = {
#define DPT_PACK_OP(name, class, type)
#define DPT_PACK_QUERY(name, result, parameters, names)
#define DPT_OP_VALUES(name, class, parameters, names) .name = dpt_cuda_##name,
#define DPT_OP_QUERY(name, result, parameters, names) .name = dpt_cuda_##name,
#include "kernels/ops.def"
};

static int index_of(const struct dpt_device *dev)
{
    return ((const struct dpt_cuda_device *)dev)->index;
}

static void cuda_destroy(struct dpt_device *base)
{
    struct dpt_cuda_device *dev = (struct dpt_cuda_device *)base;
    if (dev->blas)
        (void)cublasLtDestroy(dev->blas);
    free(dev);
}

static size_t cuda_reserved(size_t bytes)
{
    const size_t unit = bytes < GRANULE_BYTES ? ALIGN_BYTES : GRANULE_BYTES;
    return bytes ? (bytes + unit - 1) / unit * unit : unit;
}

static enum dpt_status cuda_alloc(struct dpt_device *dev, size_t bytes, void **ret,
                                  struct dpt_err *err)
{
    void *p = NULL;
    char what[64];
    (void)snprintf(what, sizeof what, "%zu bytes of memory", bytes);
    cudaError_t code = cudaSetDevice(index_of(dev));
    if (code == cudaSuccess)
        code = cudaMalloc(&p, cuda_reserved(bytes));
    if (code == cudaSuccess)
        code = cudaMemsetAsync(p, 0, cuda_reserved(bytes), cudaStreamPerThread);
    /* Waits for this stream alone, because work of other streams may wait for other ranks. */
    if (code == cudaSuccess)
        code = cudaStreamSynchronize(cudaStreamPerThread);
    if (code != cudaSuccess) {
        (void)cudaGetLastError(); /* cleared, so that the next launch does not report it */
        if (p)
            (void)cudaFree(p);
        return dpt_cuda_translate(err, code, what, index_of(dev));
    }
    *ret = p;
    return DPT_OK;
}

static void cuda_free(struct dpt_device *dev, void *ptr, size_t bytes)
{
    (void)bytes;
    /* An error here comes from an earlier op and sticks to that op's stream. */
    if (cudaSetDevice(index_of(dev)) == cudaSuccess)
        (void)cudaFree(ptr);
}

static enum dpt_status cuda_alloc_host(struct dpt_device *dev, size_t bytes, void **ret,
                                       struct dpt_err *err)
{
    void *p = NULL;
    char what[64];
    (void)snprintf(what, sizeof what, "%zu bytes of page-locked memory", bytes);
    cudaError_t code = cudaSetDevice(index_of(dev));
    if (code == cudaSuccess)
        code = cudaHostAlloc(&p, bytes ? bytes : 1, cudaHostAllocDefault);
    if (code != cudaSuccess) {
        (void)cudaGetLastError();
        return dpt_cuda_translate(err, code, what, index_of(dev));
    }
    memset(p, 0, bytes);
    *ret = p;
    return DPT_OK;
}

static void cuda_free_host(struct dpt_device *dev, void *ptr, size_t bytes)
{
    (void)bytes;
    if (cudaSetDevice(index_of(dev)) == cudaSuccess)
        (void)cudaFreeHost(ptr);
}

static void cuda_stream_destroy(struct dpt_stream *stream)
{
    struct dpt_cuda_stream *s = dpt_cuda_stream(stream);
    (void)cudaSetDevice(index_of(s->base.device));
    if (s->queue)
        (void)cudaStreamSynchronize(s->queue);
    dpt_cudnn_destroy(&s->cudnn); /* uses the queue */
    if (s->queue)
        (void)cudaStreamDestroy(s->queue);
    dpt_cuda_gemm_engine_destroy(&s->gemm, s->base.device);
    dpt_device_free_for(s->base.device, DPT_MEMORY_WORKSPACE, s->workspace, s->workspace_bytes);
    free(s);
}

static cudaError_t create_queue(bool urgent, cudaStream_t *ret)
{
    int least = 0, greatest = 0;
    const cudaError_t code = cudaDeviceGetStreamPriorityRange(&least, &greatest);
    if (code != cudaSuccess)
        return code;
    return cudaStreamCreateWithPriority(ret, cudaStreamNonBlocking, urgent ? greatest : least);
}

static enum dpt_status cuda_stream_create(struct dpt_device *dev, int threads, bool urgent,
                                          struct dpt_stream **ret, struct dpt_err *err)
{
    if (threads < 1 || threads > DPT_STREAM_THREADS_MAX)
        return dpt_fail(err, DPT_EINVAL, "a stream of %d threads; 1 to %d", threads,
                        DPT_STREAM_THREADS_MAX);
    struct dpt_cuda_stream *s = calloc(1, sizeof *s);
    cudaStream_t queue = NULL;
    if (!s)
        return dpt_fail_nomem(err, "CUDA stream");
    s->base.device = dev;
    enum dpt_status status = dpt_cuda_gemm_engine_create(&s->gemm, err);
    cudaError_t code = cudaSuccess;
    if (status == DPT_OK)
        code = cudaSetDevice(index_of(dev));
    if (status == DPT_OK && code == cudaSuccess)
        code = create_queue(urgent, &queue);
    if (code != cudaSuccess)
        status = dpt_cuda_translate(err, code, "a stream", index_of(dev));
    s->queue = queue;
    if (status != DPT_OK) {
        cuda_stream_destroy(&s->base);
        return status;
    }
    *ret = &s->base;
    return DPT_OK;
}

/* Only checks the number: a CUDA device has its own threads. */
static void cuda_stream_set_threads(struct dpt_stream *stream, int threads)
{
    (void)stream;
    DPT_ASSERT(threads >= 1 && threads <= DPT_STREAM_THREADS_MAX);
}

static enum dpt_status cuda_sync(struct dpt_stream *stream, struct dpt_err *err)
{
    struct dpt_cuda_stream *s = dpt_cuda_stream(stream);
    cudaError_t code = cudaSetDevice(index_of(s->base.device));
    if (code == cudaSuccess)
        code = cudaStreamSynchronize(s->queue);
    if (code != cudaSuccess)
        (void)dpt_cuda_posted(s, code, "what was posted before");
    return dpt_stream_take_error(stream, err);
}

/* Runs each prepared product and cuDNN plan once; gemm.h gives the reason. Products run in the
 * stream's workspace if it is large enough. cuDNN's ops use that workspace themselves, so their
 * operands are in separate memory. */
static enum dpt_status warm_up(struct dpt_cuda_stream *s, size_t gemm_bytes, size_t cudnn_bytes,
                               struct dpt_err *err)
{
    const size_t own = gemm_bytes > s->workspace_bytes ? gemm_bytes : 0;
    const size_t bytes = own > cudnn_bytes ? own : cudnn_bytes;
    void *memory = NULL;
    if (bytes > 0)
        DPT_TRY(dpt_device_alloc_for(s->base.device, DPT_MEMORY_WORKSPACE, bytes, &memory, err));
    dpt_cuda_gemm_warm_up(s, own > 0 ? memory : s->workspace);
    dpt_cudnn_warm_up(s, memory);
    const enum dpt_status status = cuda_sync(&s->base, err);
    dpt_device_free_for(s->base.device, DPT_MEMORY_WORKSPACE, memory, bytes);
    return status;
}

static enum dpt_status cuda_prepare_end(struct dpt_stream *stream, struct dpt_err *err)
{
    struct dpt_cuda_stream *s = dpt_cuda_stream(stream);
    DPT_TRY(cuda_sync(stream, err));
    const size_t gemm = dpt_cuda_gemm_cold_bytes(s), cudnn = dpt_cudnn_cold_bytes(s);
    return gemm > 0 || cudnn > 0 ? warm_up(s, gemm, cudnn, err) : DPT_OK;
}

static enum dpt_status cuda_enter(struct dpt_device *dev, struct dpt_err *err)
{
    const cudaError_t code = cudaSetDevice(index_of(dev));
    return code == cudaSuccess ? DPT_OK
                               : dpt_cuda_translate(err, code, "entering it", index_of(dev));
}

static enum dpt_status cuda_event_create(struct dpt_device *dev, bool timed, void **ret,
                                         struct dpt_err *err)
{
    cudaEvent_t event = NULL;
    DPT_TRY(cuda_enter(dev, err));
    const cudaError_t code =
        cudaEventCreateWithFlags(&event, timed ? cudaEventDefault : cudaEventDisableTiming);
    if (code != cudaSuccess)
        return dpt_cuda_translate(err, code, "an event", index_of(dev));
    *ret = event;
    return DPT_OK;
}

static void cuda_event_destroy(struct dpt_device *dev, void *event)
{
    if (cudaSetDevice(index_of(dev)) == cudaSuccess)
        (void)cudaEventDestroy(event);
}

static void cuda_event_record(void *event, struct dpt_stream *stream)
{
    struct dpt_cuda_stream *s = dpt_cuda_stream(stream);
    if (dpt_cuda_begin(s, DPT_F32, "an event"))
        (void)dpt_cuda_posted(s, cudaEventRecord(event, s->queue), "an event");
}

static void cuda_event_await(void *event, struct dpt_stream *stream)
{
    struct dpt_cuda_stream *s = dpt_cuda_stream(stream);
    if (dpt_cuda_begin(s, DPT_F32, "a wait for an event"))
        (void)dpt_cuda_posted(s, cudaStreamWaitEvent(s->queue, event, 0), "a wait for an event");
}

static void cuda_event_wait(void *event, struct dpt_stream *stream)
{
    (void)dpt_cuda_posted(dpt_cuda_stream(stream), cudaEventSynchronize(event),
                          "what was posted before an event");
}

/* 0 for an event that could not be recorded; the stream has the error of the recording. The error
 * of this call is cleared, so that the next launch does not report it. */
static double cuda_event_ms(void *from, void *to)
{
    float ms = 0;
    if (cudaEventSynchronize(to) == cudaSuccess &&
        cudaEventElapsedTime(&ms, from, to) == cudaSuccess)
        return ms;
    (void)cudaGetLastError();
    return 0;
}

static const struct dpt_device_vtable cuda_vtable = {
    .ops = &cuda_ops,
    .destroy = cuda_destroy,
    .alloc = cuda_alloc,
    .free = cuda_free,
    .alloc_host = cuda_alloc_host,
    .free_host = cuda_free_host,
    .reserved = cuda_reserved,
    .stream_create = cuda_stream_create,
    .stream_destroy = cuda_stream_destroy,
    .stream_set_threads = cuda_stream_set_threads,
    .prepare_end = cuda_prepare_end,
    .sync = cuda_sync,
    .has_tf32 = true,
    .enter = cuda_enter,
    .event_create = cuda_event_create,
    .event_destroy = cuda_event_destroy,
    .event_record = cuda_event_record,
    .event_await = cuda_event_await,
    .event_wait = cuda_event_wait,
    .event_ms = cuda_event_ms,
    .capture_begin = dpt_cuda_capture_begin,
    .capture_end = dpt_cuda_capture_end,
    .graph_is_current = dpt_cuda_graph_is_current,
    .graph_launch = dpt_cuda_graph_launch,
    .graph_destroy = dpt_cuda_graph_destroy,
};

static enum dpt_status load_kernels(int index, struct dpt_err *err)
{
    const char *name = NULL;
    const cudaError_t code = (cudaError_t)dpt_cuda_load_kernels(&name);
    if (code == cudaSuccess)
        return DPT_OK;
    char what[256];
    (void)snprintf(what, sizeof what, "loading kernel %s", name);
    return dpt_cuda_translate(err, code, what, index);
}

static enum dpt_status open_device(struct dpt_cuda_device *dev, struct dpt_err *err)
{
    cudaError_t code = cudaSetDevice(dev->index);
    if (code == cudaSuccess)
        code = cudaDeviceGetAttribute(&dev->shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin,
                                      dev->index);
    if (code == cudaSuccess)
        code = cudaDeviceGetAttribute(&dev->multiprocessors, cudaDevAttrMultiProcessorCount,
                                      dev->index);
    if (code != cudaSuccess)
        return dpt_cuda_translate(err, code, "opening it", dev->index);
    if (dev->shared_bytes < DPT_CUDA_SHARED_BYTES_MIN)
        return dpt_fail(err, DPT_EUNSUPPORTED,
                        "CUDA device %d has %d bytes of shared memory for a block of threads, %d "
                        "are needed: choose another with CUDA_VISIBLE_DEVICES, or set "
                        "cluster.device to cpu",
                        dev->index, dev->shared_bytes, DPT_CUDA_SHARED_BYTES_MIN);
    DPT_TRY(load_kernels(dev->index, err));
    cublasLtHandle_t blas = NULL;
    const cublasStatus_t status = cublasLtCreate(&blas);
    if (status != CUBLAS_STATUS_SUCCESS)
        return dpt_fail(err, DPT_EDEVICE, "cuBLASLt on CUDA device %d: %s", dev->index,
                        cublasLtGetStatusName(status));
    dev->blas = blas;
    return DPT_OK;
}

enum dpt_status dpt_device_cuda_create(int index, struct dpt_device **ret, struct dpt_err *err)
{
    char fingerprint[DPT_FINGERPRINT_BYTES];
    DPT_TRY(dpt_cuda_find_fingerprint(index, fingerprint, err));
    struct dpt_cuda_device *dev = calloc(1, sizeof *dev);
    if (!dev)
        return dpt_fail_nomem(err, "CUDA device");
    dev->base.vtable = &cuda_vtable;
    dev->index = index;
    memcpy(dev->base.fingerprint, fingerprint, sizeof fingerprint);
    const enum dpt_status status = open_device(dev, err);
    if (status == DPT_OK)
        *ret = &dev->base;
    else
        cuda_destroy(&dev->base);
    return status;
}
