/* The CUDA device and its streams: memory, workspace, sticky errors. */
#include "kernels/cuda/attention_cudnn.h"
#include "kernels/cuda/conv_cudnn.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/load.h"
#include "kernels/cuda/stream.h"

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CC_MAJOR_MIN = 8, ALIGN_BYTES = 64, GRANULE_BYTES = 2 << 20 };

static const struct dpt_ops cuda_ops = {
#define DPT_OP_VALUES(name, class, parameters, names) .name = dpt_cuda_##name,
#define DPT_OP_QUERY(name, result, parameters, names) .name = dpt_cuda_##name,
#include "kernels/ops.def"
};

static enum dpt_status translated(struct dpt_err *err, cudaError_t code, const char *what,
                                  int index)
{
    const enum dpt_status status = code == cudaErrorMemoryAllocation ? DPT_ENOMEM : DPT_EDEVICE;
    return dpt_fail(err, status, "%s on CUDA device %d: %s (%s)", what, index,
                    cudaGetErrorString(code), cudaGetErrorName(code));
}

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
    if (code == cudaSuccess) /* that alone: what is under way elsewhere may wait for other ranks */
        code = cudaStreamSynchronize(cudaStreamPerThread);
    if (code != cudaSuccess) {
        (void)cudaGetLastError(); /* told here; the next launch shall not find it */
        if (p)
            (void)cudaFree(p);
        return translated(err, code, what, index_of(dev));
    }
    *ret = p;
    return DPT_OK;
}

static void cuda_free(struct dpt_device *dev, void *ptr, size_t bytes)
{
    (void)bytes;
    /* What fails here has failed before, in an op: its stream says so. */
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
        return translated(err, code, what, index_of(dev));
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
    dpt_cudnn_attention_destroy(&s->attention); /* it has the queue */
    dpt_cudnn_convs_destroy(&s->convs);
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
        return dpt_fail(err, DPT_ENOMEM, "CUDA stream");
    s->base.device = dev;
    enum dpt_status status = dpt_cuda_gemm_engine_create(&s->gemm, err);
    cudaError_t code = cudaSuccess;
    if (status == DPT_OK)
        code = cudaSetDevice(index_of(dev));
    if (status == DPT_OK && code == cudaSuccess)
        code = create_queue(urgent, &queue);
    if (code != cudaSuccess)
        status = translated(err, code, "a stream", index_of(dev));
    s->queue = queue;
    if (status != DPT_OK) {
        cuda_stream_destroy(&s->base);
        return status;
    }
    *ret = &s->base;
    return DPT_OK;
}

/* The device has its own. */
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
    const enum dpt_status status = s->error.status;
    if (status == DPT_OK)
        return DPT_OK;
    if (err)
        *err = s->error;
    s->error.status = DPT_OK;
    return status;
}

static void cuda_prepare_begin(struct dpt_stream *stream)
{
    dpt_cuda_stream(stream)->preparing = true;
}

/* gemm.h says why. Products run where the stream's ops work, if that is large enough; cuDNN's
 * attention works there itself. */
static enum dpt_status warm_up(struct dpt_cuda_stream *s, size_t gemm_bytes, size_t cudnn_bytes,
                               struct dpt_err *err)
{
    const size_t own = gemm_bytes > s->workspace_bytes ? gemm_bytes : 0;
    const size_t bytes = own > cudnn_bytes ? own : cudnn_bytes;
    void *memory = NULL;
    if (bytes > 0)
        DPT_TRY(dpt_device_alloc_for(s->base.device, DPT_MEMORY_WORKSPACE, bytes, &memory, err));
    dpt_cuda_gemm_warm_up(s, own > 0 ? memory : s->workspace);
    dpt_cudnn_attention_warm_up(s, memory);
    dpt_cudnn_conv_warm_up(s, memory);
    const enum dpt_status status = cuda_sync(&s->base, err);
    dpt_device_free_for(s->base.device, DPT_MEMORY_WORKSPACE, memory, bytes);
    return status;
}

static enum dpt_status cuda_prepare_end(struct dpt_stream *stream, struct dpt_err *err)
{
    struct dpt_cuda_stream *s = dpt_cuda_stream(stream);
    s->preparing = false;
    DPT_TRY(cuda_sync(stream, err));
    const size_t gemm = dpt_cuda_gemm_cold_bytes(s);
    const size_t attention = dpt_cudnn_attention_cold_bytes(s);
    const size_t convs = dpt_cudnn_conv_cold_bytes(s);
    const size_t cudnn = attention > convs ? attention : convs;
    return gemm > 0 || cudnn > 0 ? warm_up(s, gemm, cudnn, err) : DPT_OK;
}

static enum dpt_status cuda_enter(struct dpt_device *dev, struct dpt_err *err)
{
    const cudaError_t code = cudaSetDevice(index_of(dev));
    return code == cudaSuccess ? DPT_OK : translated(err, code, "entering it", index_of(dev));
}

static enum dpt_status make_event(struct dpt_device *dev, unsigned flags, void **ret,
                                  struct dpt_err *err)
{
    cudaEvent_t event = NULL;
    DPT_TRY(cuda_enter(dev, err));
    const cudaError_t code = cudaEventCreateWithFlags(&event, flags);
    if (code != cudaSuccess)
        return translated(err, code, "an event", index_of(dev));
    *ret = event;
    return DPT_OK;
}

static enum dpt_status cuda_event_create(struct dpt_device *dev, void **ret, struct dpt_err *err)
{
    return make_event(dev, cudaEventDisableTiming, ret, err);
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

static enum dpt_status cuda_mark_create(struct dpt_device *dev, void **ret, struct dpt_err *err)
{
    return make_event(dev, cudaEventDefault, ret, err);
}

/* A mark that could not be recorded has no time; the stream's error says why. That of this call is
 * taken back, lest the next kernel seems to have it. */
static double cuda_mark_ms(void *from, void *to)
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
    .prepare_begin = cuda_prepare_begin,
    .prepare_end = cuda_prepare_end,
    .sync = cuda_sync,
    .has_tf32 = true,
    .enter = cuda_enter,
    .event_create = cuda_event_create,
    .event_destroy = cuda_event_destroy,
    .event_record = cuda_event_record,
    .event_await = cuda_event_await,
    .event_wait = cuda_event_wait,
    .capture_begin = dpt_cuda_capture_begin,
    .capture_end = dpt_cuda_capture_end,
    .graph_is_current = dpt_cuda_graph_is_current,
    .graph_launch = dpt_cuda_graph_launch,
    .graph_destroy = dpt_cuda_graph_destroy,
    .mark_create = cuda_mark_create,
    .mark_destroy = cuda_event_destroy,
    .mark_record = cuda_event_record,
    .mark_ms = cuda_mark_ms,
};

/* Whether device `index` is there and can run what was compiled. */
static enum dpt_status find(int index, struct cudaDeviceProp *ret, struct dpt_err *err)
{
    int count = 0, driver = 0;
    const cudaError_t code = cudaGetDeviceCount(&count);
    if (code == cudaErrorNoDevice || (code == cudaSuccess && count == 0))
        return dpt_fail(err, DPT_ENOENT,
                        "there is no CUDA device here (nvidia-smi and CUDA_VISIBLE_DEVICES say "
                        "which there are); or set cluster.device to cpu");
    if (code == cudaErrorInsufficientDriver) {
        (void)cudaDriverGetVersion(&driver);
        return dpt_fail(err, DPT_EVERSION,
                        "the driver of NVIDIA is missing or too old (it has CUDA %d, this build "
                        "needs %d): install a newer one, or set cluster.device to cpu",
                        driver, CUDART_VERSION);
    }
    if (code != cudaSuccess)
        return translated(err, code, "looking for devices", index);
    if (index < 0 || index >= count)
        return dpt_fail(err, DPT_ENOENT,
                        "there is no CUDA device %d: this machine shows %d; a node starts one rank "
                        "a device, so set cluster.gpus_per_node to at most that",
                        index, count);
    const cudaError_t asked = cudaGetDeviceProperties(ret, index);
    if (asked != cudaSuccess)
        return translated(err, asked, "asking what it is", index);
    if (ret->major < CC_MAJOR_MIN)
        return dpt_fail(err, DPT_EUNSUPPORTED,
                        "CUDA device %d (%s) has compute capability %d.%d; %d.0 is needed", index,
                        ret->name, ret->major, ret->minor, CC_MAJOR_MIN);
    return DPT_OK;
}

static enum dpt_status find_fingerprint(int index, char ret[DPT_FINGERPRINT_BYTES],
                                        struct dpt_err *err)
{
    struct cudaDeviceProp is;
    int driver = 0, runtime = 0;
    DPT_TRY(find(index, &is, err));
    cudaError_t code = cudaDriverGetVersion(&driver);
    if (code == cudaSuccess)
        code = cudaRuntimeGetVersion(&runtime);
    if (code != cudaSuccess)
        return translated(err, code, "asking for versions", index);
    (void)snprintf(ret, DPT_FINGERPRINT_BYTES, "cuda sm%d%dx%d driver-%d rt-%d lt-%zu dnn-%zu",
                   is.major, is.minor, is.multiProcessorCount, driver, runtime,
                   cublasLtGetVersion(), dpt_cudnn_version());
    return DPT_OK;
}

enum dpt_status dpt_device_cuda_name(int index, char ret[DPT_DEVICE_NAME_BYTES],
                                     struct dpt_err *err)
{
    struct cudaDeviceProp is;
    DPT_TRY(find(index, &is, err));
    (void)snprintf(ret, DPT_DEVICE_NAME_BYTES, "%s", is.name);
    return DPT_OK;
}

enum dpt_status dpt_device_cuda_bus(int index, char ret[DPT_DEVICE_BUS_BYTES], struct dpt_err *err)
{
    struct cudaDeviceProp is;
    DPT_TRY(find(index, &is, err));
    const cudaError_t code = cudaDeviceGetPCIBusId(ret, DPT_DEVICE_BUS_BYTES, index);
    return code == cudaSuccess ? DPT_OK : translated(err, code, "asking where it is", index);
}

enum dpt_status dpt_device_cuda_look(int *ret_count, char ret_fingerprint[DPT_FINGERPRINT_BYTES],
                                     struct dpt_err *err)
{
    int count = 0;
    DPT_TRY(find_fingerprint(0, ret_fingerprint, err));
    const cudaError_t code = cudaGetDeviceCount(&count);
    if (code != cudaSuccess)
        return translated(err, code, "looking for devices", 0);
    for (int i = 1; i < count; i++) {
        char other[DPT_FINGERPRINT_BYTES];
        DPT_TRY(find_fingerprint(i, other, err));
        if (strcmp(other, ret_fingerprint) != 0)
            return dpt_fail(err, DPT_EUNSUPPORTED,
                            "CUDA devices 0 and %d are of different kinds (%s; %s) and compute "
                            "other bits: choose those of one kind with CUDA_VISIBLE_DEVICES",
                            i, ret_fingerprint, other);
    }
    *ret_count = count;
    return DPT_OK;
}

static enum dpt_status load_kernels(int index, struct dpt_err *err)
{
    const char *name = NULL;
    const cudaError_t code = (cudaError_t)dpt_cuda_load_kernels(&name);
    if (code == cudaSuccess)
        return DPT_OK;
    char what[256];
    (void)snprintf(what, sizeof what, "loading kernel %s", name);
    return translated(err, code, what, index);
}

enum dpt_status dpt_device_cuda_create(int index, struct dpt_device **ret, struct dpt_err *err)
{
    char fingerprint[DPT_FINGERPRINT_BYTES];
    cublasLtHandle_t blas = NULL;
    DPT_TRY(find_fingerprint(index, fingerprint, err));
    struct dpt_cuda_device *dev = calloc(1, sizeof *dev);
    if (!dev)
        return dpt_fail(err, DPT_ENOMEM, "CUDA device");
    dev->base.vtable = &cuda_vtable;
    dev->index = index;
    memcpy(dev->base.fingerprint, fingerprint, sizeof fingerprint);
    cudaError_t code = cudaSetDevice(index);
    if (code == cudaSuccess)
        code = cudaDeviceGetAttribute(&dev->shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin,
                                      index);
    if (code != cudaSuccess) {
        cuda_destroy(&dev->base);
        return translated(err, code, "opening it", index);
    }
    if (dev->shared_bytes < DPT_CUDA_SHARED_BYTES_MIN) {
        const int has = dev->shared_bytes;
        cuda_destroy(&dev->base);
        return dpt_fail(err, DPT_EUNSUPPORTED,
                        "CUDA device %d has %d bytes of shared memory for a block of threads, %d "
                        "are needed: choose another with CUDA_VISIBLE_DEVICES, or set "
                        "cluster.device to cpu",
                        index, has, DPT_CUDA_SHARED_BYTES_MIN);
    }
    const enum dpt_status loaded = load_kernels(index, err);
    if (loaded != DPT_OK) {
        cuda_destroy(&dev->base);
        return loaded;
    }
    const cublasStatus_t blas_status = cublasLtCreate(&blas);
    if (blas_status != CUBLAS_STATUS_SUCCESS) {
        cuda_destroy(&dev->base);
        return dpt_fail(err, DPT_EDEVICE, "cuBLASLt on CUDA device %d: %s", index,
                        cublasLtGetStatusName(blas_status));
    }
    dev->blas = blas;
    *ret = &dev->base;
    return DPT_OK;
}

void dpt_cuda_fail(struct dpt_cuda_stream *s, enum dpt_status status, const char *what)
{
    if (s->error.status == DPT_OK)
        (void)dpt_fail(&s->error, status, "%s", what);
}

bool dpt_cuda_posted(struct dpt_cuda_stream *s, int code, const char *op)
{
    if (code == cudaSuccess)
        return true;
    if (s->error.status == DPT_OK)
        (void)translated(&s->error, (cudaError_t)code, op, index_of(s->base.device));
    return false;
}

bool dpt_cuda_begin(struct dpt_cuda_stream *s, enum dpt_dtype dtype, const char *op)
{
    if (s->error.status != DPT_OK)
        return false;
    if ((unsigned)dtype >= DPT_DTYPE_COUNT) {
        (void)dpt_fail(&s->error, DPT_EUNSUPPORTED, "%s: the CUDA device has no dtype %d", op,
                       (int)dtype);
        return false;
    }
    return dpt_cuda_posted(s, cudaSetDevice(index_of(s->base.device)), op);
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
            dpt_cuda_fail(s, status, err.text);
            return false;
        }
        s->workspace_bytes = bytes;
    }
    *ret = s->workspace;
    return !s->preparing;
}
