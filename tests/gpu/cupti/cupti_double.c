/* See cupti_double.h. */
#include "tests/gpu/cupti/cupti_double.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CALLS_MAX = 1024, DEVICE = 0, CONTEXT = 1, ALIGN = 8 };

static struct {
    pthread_mutex_t mutex;
    CUpti_TimestampCallbackFunc now;
    CUpti_BuffersCallbackRequestFunc requested;
    CUpti_BuffersCallbackCompleteFunc completed;
    CUptiResult refusal;
    uint32_t version, correlation;
    bool on[CUPTI_ACTIVITY_KIND_COUNT], left_out[CALLS_MAX], by_system_thread, by_thread;
    size_t dropped;
    uint8_t *buffer;
    size_t size, used;
} library = {.mutex = PTHREAD_MUTEX_INITIALIZER, .version = CUPTI_API_VERSION, .by_thread = true};

/* ---- control ---- */

void cupti_double_refuse(CUptiResult code)
{
    library.refusal = code;
}

void cupti_double_set_version(uint32_t version)
{
    library.version = version;
}

void cupti_double_drop(size_t n)
{
    (void)pthread_mutex_lock(&library.mutex);
    library.dropped += n;
    (void)pthread_mutex_unlock(&library.mutex);
}

bool cupti_double_is_on(void)
{
    bool on = false;
    (void)pthread_mutex_lock(&library.mutex);
    for (int i = 0; i < CUPTI_ACTIVITY_KIND_COUNT; i++)
        on = on || library.on[i];
    (void)pthread_mutex_unlock(&library.mutex);
    return on;
}

bool cupti_double_leaves_out(CUpti_CallbackId cbid)
{
    (void)pthread_mutex_lock(&library.mutex);
    const bool left_out = library.left_out[cbid];
    (void)pthread_mutex_unlock(&library.mutex);
    return left_out;
}

/* ---- records ---- */

static size_t bytes_of(CUpti_ActivityKind kind)
{
    size_t bytes = sizeof(CUpti_Activity);
    switch (kind) {
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL:
    case CUPTI_ACTIVITY_KIND_KERNEL:
        bytes = sizeof(CUpti_ActivityKernel10);
        break;
    case CUPTI_ACTIVITY_KIND_MEMCPY:
        bytes = sizeof(CUpti_ActivityMemcpy6);
        break;
    case CUPTI_ACTIVITY_KIND_MEMSET:
        bytes = sizeof(CUpti_ActivityMemset4);
        break;
    case CUPTI_ACTIVITY_KIND_SYNCHRONIZATION:
        bytes = sizeof(CUpti_ActivitySynchronization2);
        break;
    case CUPTI_ACTIVITY_KIND_RUNTIME:
    case CUPTI_ACTIVITY_KIND_DRIVER:
        bytes = sizeof(CUpti_ActivityAPI);
        break;
    default:
        break;
    }
    return (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

/* Gives the buffer back. Under the mutex. */
static void complete_buffer(void)
{
    if (library.buffer)
        library.completed(NULL, 0, library.buffer, library.size, library.used);
    library.buffer = NULL;
}

/* Adds a record, whose first member is its kind. Under the mutex. */
static void add(const void *record)
{
    CUpti_ActivityKind kind;
    size_t records_max;
    memcpy(&kind, record, sizeof kind);
    const size_t bytes = bytes_of(kind);
    if (!library.on[kind])
        return;
    if (library.buffer && library.size - library.used < bytes)
        complete_buffer();
    if (!library.buffer) {
        library.used = 0;
        library.requested(&library.buffer, &library.size, &records_max);
    }
    if (!library.buffer) {
        library.dropped++;
        return;
    }
    memcpy(library.buffer + library.used, record, bytes);
    library.used += bytes;
}

static uint64_t now(void)
{
    return library.now ? library.now() : 0;
}

/* A thread has its system's number only on request, as in CUPTI. */
static uint32_t thread_number(void)
{
    return library.by_system_thread ? (uint32_t)gettid() : 1;
}

static void add_call(CUpti_ActivityKind kind, CUpti_CallbackId cbid, uint32_t correlation)
{
    const uint64_t begin = now();
    const CUpti_ActivityAPI record = {.kind = kind,
                                      .cbid = cbid,
                                      .start = begin,
                                      .end = now(),
                                      .processId = (uint32_t)getpid(),
                                      .threadId = thread_number(),
                                      .correlationId = correlation};
    if (kind != CUPTI_ACTIVITY_KIND_RUNTIME || !library.left_out[cbid])
        add(&record);
}

uint32_t cupti_double_call(CUpti_CallbackDomain domain, CUpti_CallbackId cbid)
{
    (void)pthread_mutex_lock(&library.mutex);
    const uint32_t correlation = ++library.correlation;
    add_call(domain == CUPTI_CB_DOMAIN_RUNTIME_API ? CUPTI_ACTIVITY_KIND_RUNTIME
                                                   : CUPTI_ACTIVITY_KIND_DRIVER,
             cbid, correlation);
    (void)pthread_mutex_unlock(&library.mutex);
    return correlation;
}

void cupti_double_inner_call(CUpti_CallbackId cbid, uint32_t correlation)
{
    (void)pthread_mutex_lock(&library.mutex);
    add_call(CUPTI_ACTIVITY_KIND_DRIVER, cbid, correlation);
    (void)pthread_mutex_unlock(&library.mutex);
}

static void add_kernel(const struct cupti_double_kernel *kernel, bool finished)
{
    (void)pthread_mutex_lock(&library.mutex);
    const uint64_t begin = now();
    const CUpti_ActivityKernel10 record = {.kind = CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
                                           .registersPerThread = 32,
                                           .start = begin,
                                           .end = finished ? now() : 0,
                                           .deviceId = DEVICE,
                                           .contextId = CONTEXT,
                                           .streamId = kernel->stream,
                                           .gridX = (int32_t)kernel->grid,
                                           .gridY = 1,
                                           .gridZ = 1,
                                           .blockX = (int32_t)kernel->block,
                                           .blockY = 1,
                                           .blockZ = 1,
                                           .staticSharedMemory = 16,
                                           .dynamicSharedMemory = (int32_t)kernel->shared_bytes,
                                           .correlationId = kernel->correlation,
                                           .name = kernel->name,
                                           .graphId = kernel->graph};
    add(&record);
    (void)pthread_mutex_unlock(&library.mutex);
}

void cupti_double_kernel(const struct cupti_double_kernel *kernel)
{
    add_kernel(kernel, true);
}

void cupti_double_unfinished_kernel(uint32_t correlation)
{
    add_kernel(&(struct cupti_double_kernel){.name = "unfinished", .correlation = correlation},
               false);
}

void cupti_double_copy(uint32_t correlation, CUpti_ActivityMemcpyKind kind, uint64_t bytes)
{
    (void)pthread_mutex_lock(&library.mutex);
    const uint64_t begin = now();
    const CUpti_ActivityMemcpy6 record = {.kind = CUPTI_ACTIVITY_KIND_MEMCPY,
                                          .copyKind = (uint8_t)kind,
                                          .srcKind = CUPTI_ACTIVITY_MEMORY_KIND_PINNED,
                                          .dstKind = CUPTI_ACTIVITY_MEMORY_KIND_DEVICE,
                                          .bytes = bytes,
                                          .start = begin,
                                          .end = now(),
                                          .deviceId = DEVICE,
                                          .contextId = CONTEXT,
                                          .streamId = 7,
                                          .correlationId = correlation};
    add(&record);
    (void)pthread_mutex_unlock(&library.mutex);
}

void cupti_double_set(uint32_t correlation, uint64_t bytes)
{
    (void)pthread_mutex_lock(&library.mutex);
    const uint64_t begin = now();
    const CUpti_ActivityMemset4 record = {.kind = CUPTI_ACTIVITY_KIND_MEMSET,
                                          .bytes = bytes,
                                          .start = begin,
                                          .end = now(),
                                          .deviceId = DEVICE,
                                          .contextId = CONTEXT,
                                          .streamId = 7,
                                          .correlationId = correlation,
                                          .memoryKind = CUPTI_ACTIVITY_MEMORY_KIND_DEVICE};
    add(&record);
    (void)pthread_mutex_unlock(&library.mutex);
}

void cupti_double_sync(uint32_t correlation, CUpti_ActivitySynchronizationType type,
                       uint32_t stream)
{
    (void)pthread_mutex_lock(&library.mutex);
    const uint64_t begin = now();
    const CUpti_ActivitySynchronization2 record = {.kind = CUPTI_ACTIVITY_KIND_SYNCHRONIZATION,
                                                   .type = type,
                                                   .start = begin,
                                                   .end = now(),
                                                   .correlationId = correlation,
                                                   .contextId = CONTEXT,
                                                   .streamId = stream};
    add(&record);
    (void)pthread_mutex_unlock(&library.mutex);
}

void cupti_double_device(void)
{
    const CUpti_Activity record[ALIGN] = {{.kind = CUPTI_ACTIVITY_KIND_DEVICE}};
    (void)pthread_mutex_lock(&library.mutex);
    library.on[CUPTI_ACTIVITY_KIND_DEVICE] = true;
    add(record);
    library.on[CUPTI_ACTIVITY_KIND_DEVICE] = false;
    (void)pthread_mutex_unlock(&library.mutex);
}

/* ---- CUPTI's functions ---- */

CUptiResult cuptiGetVersion(uint32_t *version)
{
    *version = library.version;
    return CUPTI_SUCCESS;
}

CUptiResult cuptiGetResultString(CUptiResult result, const char **text)
{
    if (result != CUPTI_ERROR_INSUFFICIENT_PRIVILEGES)
        return CUPTI_ERROR_INVALID_PARAMETER;
    *text = "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES";
    return CUPTI_SUCCESS;
}

CUptiResult cuptiGetCallbackName(CUpti_CallbackDomain domain, uint32_t cbid, const char **name)
{
    static const char *const runtime[] = {[DOUBLE_GET_LAST_ERROR] = "cudaGetLastError_v3020",
                                          [DOUBLE_MEMCPY_ASYNC] = "cudaMemcpyAsync_v3020",
                                          [DOUBLE_MEMSET_ASYNC] = "cudaMemsetAsync_v3020",
                                          [DOUBLE_STREAM_SYNCHRONIZE] =
                                              "cudaStreamSynchronize_v3020",
                                          [DOUBLE_LAUNCH_KERNEL] = "cudaLaunchKernel_v7000",
                                          [DOUBLE_GRAPH_LAUNCH] = "cudaGraphLaunch_v10000"};
    if (domain == CUPTI_CB_DOMAIN_RUNTIME_API && cbid < sizeof runtime / sizeof runtime[0])
        *name = runtime[cbid];
    else
        *name = domain == CUPTI_CB_DOMAIN_DRIVER_API && cbid == DOUBLE_CU_LAUNCH_KERNEL
                    ? "cuLaunchKernel"
                    : NULL;
    return *name ? CUPTI_SUCCESS : CUPTI_ERROR_INVALID_PARAMETER;
}

CUptiResult cuptiSetThreadIdType(CUpti_ActivityThreadIdType type)
{
    library.by_system_thread = type == CUPTI_ACTIVITY_THREAD_ID_TYPE_SYSTEM;
    return CUPTI_SUCCESS;
}

CUptiResult cuptiActivitySetAttribute(CUpti_ActivityAttribute attribute, size_t *bytes, void *value)
{
    if (attribute != CUPTI_ACTIVITY_ATTR_PER_THREAD_ACTIVITY_BUFFER || *bytes != 1)
        return CUPTI_ERROR_INVALID_PARAMETER;
    library.by_thread = *(uint8_t *)value != 0;
    return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityRegisterTimestampCallback(CUpti_TimestampCallbackFunc clock)
{
    library.now = clock;
    return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc requested,
                                           CUpti_BuffersCallbackCompleteFunc completed)
{
    if (library.by_thread)
        return CUPTI_ERROR_INVALID_OPERATION; /* the double has one buffer for all threads */
    library.requested = requested;
    library.completed = completed;
    return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityEnable(CUpti_ActivityKind kind)
{
    if (library.refusal != CUPTI_SUCCESS)
        return library.refusal;
    (void)pthread_mutex_lock(&library.mutex);
    library.on[kind] = true;
    if (kind == CUPTI_ACTIVITY_KIND_RUNTIME) /* overrides what single functions were set to */
        memset(library.left_out, 0, sizeof library.left_out);
    (void)pthread_mutex_unlock(&library.mutex);
    return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityDisable(CUpti_ActivityKind kind)
{
    (void)pthread_mutex_lock(&library.mutex);
    library.on[kind] = false;
    (void)pthread_mutex_unlock(&library.mutex);
    return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityFlushAll(uint32_t flag)
{
    (void)flag;
    if (!library.completed)
        return CUPTI_ERROR_INVALID_OPERATION;
    (void)pthread_mutex_lock(&library.mutex);
    complete_buffer();
    (void)pthread_mutex_unlock(&library.mutex);
    return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityGetNextRecord(uint8_t *buffer, size_t valid, CUpti_Activity **record)
{
    uint8_t *next = buffer;
    if (*record)
        next = (uint8_t *)*record + bytes_of((*record)->kind);
    if (next >= buffer + valid)
        return CUPTI_ERROR_MAX_LIMIT_REACHED;
    *record = (CUpti_Activity *)(void *)next;
    return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityGetNumDroppedRecords(CUcontext context, uint32_t stream, size_t *dropped)
{
    (void)context;
    (void)stream;
    (void)pthread_mutex_lock(&library.mutex);
    *dropped = library.dropped;
    library.dropped = 0;
    (void)pthread_mutex_unlock(&library.mutex);
    return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityEnableRuntimeApi(CUpti_CallbackId cbid, uint8_t enable)
{
    if (cbid >= CALLS_MAX)
        return CUPTI_ERROR_INVALID_PARAMETER;
    (void)pthread_mutex_lock(&library.mutex);
    library.left_out[cbid] = !enable;
    (void)pthread_mutex_unlock(&library.mutex);
    return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityEnableDriverApi(CUpti_CallbackId cbid, uint8_t enable)
{
    (void)enable;
    return cbid < CALLS_MAX ? CUPTI_SUCCESS : CUPTI_ERROR_INVALID_PARAMETER;
}

CUptiResult cuptiActivityEnableAllSyncRecords(uint8_t enable)
{
    (void)enable;
    return CUPTI_SUCCESS;
}
