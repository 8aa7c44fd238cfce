/* The part of CUPTI's Activity API that kernels/cuda uses, for cupti_double.c. The names are
 * CUPTI's; layouts and the values of most enumerators are ours. */
#ifndef DPT_TESTS_GPU_CUPTI_INCLUDE_CUPTI_H
#define DPT_TESTS_GPU_CUPTI_INCLUDE_CUPTI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CUPTI_API_VERSION                   130001
#define CUPTI_SYNCHRONIZATION_INVALID_VALUE ((uint32_t)0xffffffff)

typedef enum {
    CUPTI_SUCCESS = 0,
    CUPTI_ERROR_INVALID_PARAMETER = 1,
    CUPTI_ERROR_INVALID_OPERATION = 7,
    CUPTI_ERROR_MAX_LIMIT_REACHED = 12,
    CUPTI_ERROR_NOT_INITIALIZED = 15,
    CUPTI_ERROR_INSUFFICIENT_PRIVILEGES = 35,
    CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED = 39,
    CUPTI_ERROR_VIRTUALIZED_DEVICE_INSUFFICIENT_PRIVILEGES = 40,
    CUPTI_ERROR_UNKNOWN = 999
} CUptiResult;

typedef enum {
    CUPTI_CB_DOMAIN_DRIVER_API = 1,
    CUPTI_CB_DOMAIN_RUNTIME_API = 2
} CUpti_CallbackDomain;
typedef uint32_t CUpti_CallbackId;
typedef void *CUcontext;

typedef enum {
    CUPTI_ACTIVITY_KIND_MEMCPY = 1,
    CUPTI_ACTIVITY_KIND_MEMSET = 2,
    CUPTI_ACTIVITY_KIND_KERNEL = 3,
    CUPTI_ACTIVITY_KIND_DRIVER = 4,
    CUPTI_ACTIVITY_KIND_RUNTIME = 5,
    CUPTI_ACTIVITY_KIND_DEVICE = 8, /* kernels/cuda does not know it */
    CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL = 10,
    CUPTI_ACTIVITY_KIND_SYNCHRONIZATION = 38,
    CUPTI_ACTIVITY_KIND_COUNT
} CUpti_ActivityKind;

typedef enum { CUPTI_ACTIVITY_FLAG_FLUSH_FORCED = 1 } CUpti_ActivityFlag;
typedef enum { CUPTI_ACTIVITY_ATTR_PER_THREAD_ACTIVITY_BUFFER = 9 } CUpti_ActivityAttribute;
typedef enum { CUPTI_ACTIVITY_THREAD_ID_TYPE_SYSTEM = 1 } CUpti_ActivityThreadIdType;

typedef enum {
    CUPTI_ACTIVITY_MEMCPY_KIND_HTOD = 1,
    CUPTI_ACTIVITY_MEMCPY_KIND_DTOH = 2,
    CUPTI_ACTIVITY_MEMCPY_KIND_DTOD = 8,
    CUPTI_ACTIVITY_MEMCPY_KIND_HTOH = 9,
    CUPTI_ACTIVITY_MEMCPY_KIND_PTOP = 10
} CUpti_ActivityMemcpyKind;

typedef enum {
    CUPTI_ACTIVITY_MEMORY_KIND_UNKNOWN,
    CUPTI_ACTIVITY_MEMORY_KIND_PAGEABLE,
    CUPTI_ACTIVITY_MEMORY_KIND_PINNED,
    CUPTI_ACTIVITY_MEMORY_KIND_DEVICE,
    CUPTI_ACTIVITY_MEMORY_KIND_ARRAY,
    CUPTI_ACTIVITY_MEMORY_KIND_MANAGED,
    CUPTI_ACTIVITY_MEMORY_KIND_DEVICE_STATIC,
    CUPTI_ACTIVITY_MEMORY_KIND_MANAGED_STATIC
} CUpti_ActivityMemoryKind;

typedef enum {
    CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_UNKNOWN,
    CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_EVENT_SYNCHRONIZE,
    CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_STREAM_WAIT_EVENT,
    CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_STREAM_SYNCHRONIZE,
    CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_CONTEXT_SYNCHRONIZE
} CUpti_ActivitySynchronizationType;

typedef struct {
    CUpti_ActivityKind kind;
} CUpti_Activity;

typedef struct {
    CUpti_ActivityKind kind;
    uint16_t registersPerThread;
    uint64_t start, end;
    uint32_t deviceId, contextId, streamId;
    int32_t gridX, gridY, gridZ, blockX, blockY, blockZ;
    int32_t staticSharedMemory, dynamicSharedMemory;
    uint32_t correlationId;
    const char *name;
    uint32_t graphId;
} CUpti_ActivityKernel10;

typedef struct {
    CUpti_ActivityKind kind;
    uint8_t copyKind, srcKind, dstKind;
    uint64_t bytes, start, end;
    uint32_t deviceId, contextId, streamId, correlationId, graphId;
} CUpti_ActivityMemcpy6;

typedef struct {
    CUpti_ActivityKind kind;
    uint64_t bytes, start, end;
    uint32_t deviceId, contextId, streamId, correlationId, graphId;
    uint16_t memoryKind;
} CUpti_ActivityMemset4;

typedef struct {
    CUpti_ActivityKind kind;
    CUpti_ActivitySynchronizationType type;
    uint64_t start, end;
    uint32_t correlationId, contextId, streamId;
} CUpti_ActivitySynchronization2;

typedef struct {
    CUpti_ActivityKind kind;
    CUpti_CallbackId cbid;
    uint64_t start, end;
    uint32_t processId, threadId, correlationId, returnValue;
} CUpti_ActivityAPI;

typedef uint64_t (*CUpti_TimestampCallbackFunc)(void);
typedef void (*CUpti_BuffersCallbackRequestFunc)(uint8_t **buffer, size_t *size,
                                                 size_t *records_max);
typedef void (*CUpti_BuffersCallbackCompleteFunc)(CUcontext context, uint32_t stream,
                                                  uint8_t *buffer, size_t size, size_t valid);

CUptiResult cuptiGetVersion(uint32_t *version);
CUptiResult cuptiGetResultString(CUptiResult result, const char **text);
CUptiResult cuptiGetCallbackName(CUpti_CallbackDomain domain, uint32_t cbid, const char **name);
CUptiResult cuptiSetThreadIdType(CUpti_ActivityThreadIdType type);
CUptiResult cuptiActivitySetAttribute(CUpti_ActivityAttribute attribute, size_t *bytes,
                                      void *value);
CUptiResult cuptiActivityRegisterTimestampCallback(CUpti_TimestampCallbackFunc now);
CUptiResult cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc requested,
                                           CUpti_BuffersCallbackCompleteFunc completed);
CUptiResult cuptiActivityEnable(CUpti_ActivityKind kind);
CUptiResult cuptiActivityDisable(CUpti_ActivityKind kind);
CUptiResult cuptiActivityFlushAll(uint32_t flag);
CUptiResult cuptiActivityGetNextRecord(uint8_t *buffer, size_t valid, CUpti_Activity **record);
CUptiResult cuptiActivityGetNumDroppedRecords(CUcontext context, uint32_t stream, size_t *dropped);
CUptiResult cuptiActivityEnableRuntimeApi(CUpti_CallbackId cbid, uint8_t enable);
CUptiResult cuptiActivityEnableDriverApi(CUpti_CallbackId cbid, uint8_t enable);
CUptiResult cuptiActivityEnableAllSyncRecords(uint8_t enable);

#endif
