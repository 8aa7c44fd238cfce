/* CUPTI's records as ours (activity_records.h). Copies, sets and waits have the names that
 * PyTorch's profiler gives them. */
#include "kernels/cuda/activity_records.h"

#include <stdio.h>

const CUpti_ActivityKind dpt_cupti_kinds[DPT_CUPTI_KINDS] = {
    CUPTI_ACTIVITY_KIND_RUNTIME, CUPTI_ACTIVITY_KIND_DRIVER, CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
    CUPTI_ACTIVITY_KIND_MEMCPY,  CUPTI_ACTIVITY_KIND_MEMSET, CUPTI_ACTIVITY_KIND_SYNCHRONIZATION};

static void convert_kernel(const dpt_cupti_kernel *from, struct dpt_device_record *ret)
{
    *ret = (struct dpt_device_record){
        .kind = DPT_DEVICE_KERNEL,
        .begin_ns = (int64_t)from->start,
        .end_ns = (int64_t)from->end,
        .name = from->name,
        .correlation = from->correlationId,
        .device = from->deviceId,
        .context = from->contextId,
        .stream = from->streamId,
        .graph = from->graphId,
        .grid = {(uint32_t)from->gridX, (uint32_t)from->gridY, (uint32_t)from->gridZ},
        .block = {(uint32_t)from->blockX, (uint32_t)from->blockY, (uint32_t)from->blockZ},
        .registers = from->registersPerThread,
        .shared_bytes = (uint32_t)from->staticSharedMemory + (uint32_t)from->dynamicSharedMemory};
}

static const char *direction_of(uint8_t kind)
{
    static const char *const names[] = {[CUPTI_ACTIVITY_MEMCPY_KIND_HTOD] = "HtoD",
                                        [CUPTI_ACTIVITY_MEMCPY_KIND_DTOH] = "DtoH",
                                        [CUPTI_ACTIVITY_MEMCPY_KIND_DTOD] = "DtoD",
                                        [CUPTI_ACTIVITY_MEMCPY_KIND_HTOH] = "HtoH",
                                        [CUPTI_ACTIVITY_MEMCPY_KIND_PTOP] = "PtoP"};
    return kind < sizeof names / sizeof names[0] && names[kind] ? names[kind] : "Unknown";
}

static const char *memory_name(unsigned kind)
{
    static const char *const names[] = {
        [CUPTI_ACTIVITY_MEMORY_KIND_PAGEABLE] = "Pageable",
        [CUPTI_ACTIVITY_MEMORY_KIND_PINNED] = "Pinned",
        [CUPTI_ACTIVITY_MEMORY_KIND_DEVICE] = "Device",
        [CUPTI_ACTIVITY_MEMORY_KIND_ARRAY] = "Array",
        [CUPTI_ACTIVITY_MEMORY_KIND_MANAGED] = "Managed",
        [CUPTI_ACTIVITY_MEMORY_KIND_DEVICE_STATIC] = "Device Static",
        [CUPTI_ACTIVITY_MEMORY_KIND_MANAGED_STATIC] = "Managed Static"};
    return kind < sizeof names / sizeof names[0] && names[kind] ? names[kind] : "Unknown";
}

static void convert_copy(const dpt_cupti_copy *from, char name[DPT_WORK_NAME_BYTES],
                         struct dpt_device_record *ret)
{
    (void)snprintf(name, DPT_WORK_NAME_BYTES, "Memcpy %s (%s -> %s)", direction_of(from->copyKind),
                   memory_name(from->srcKind), memory_name(from->dstKind));
    *ret = (struct dpt_device_record){.kind = DPT_DEVICE_COPY,
                                      .begin_ns = (int64_t)from->start,
                                      .end_ns = (int64_t)from->end,
                                      .name = name,
                                      .bytes = from->bytes,
                                      .correlation = from->correlationId,
                                      .device = from->deviceId,
                                      .context = from->contextId,
                                      .stream = from->streamId,
                                      .graph = from->graphId};
}

static void convert_set(const dpt_cupti_set *from, char name[DPT_WORK_NAME_BYTES],
                        struct dpt_device_record *ret)
{
    (void)snprintf(name, DPT_WORK_NAME_BYTES, "Memset (%s)", memory_name(from->memoryKind));
    *ret = (struct dpt_device_record){.kind = DPT_DEVICE_SET,
                                      .begin_ns = (int64_t)from->start,
                                      .end_ns = (int64_t)from->end,
                                      .name = name,
                                      .bytes = from->bytes,
                                      .correlation = from->correlationId,
                                      .device = from->deviceId,
                                      .context = from->contextId,
                                      .stream = from->streamId,
                                      .graph = from->graphId};
}

static const char *sync_name(CUpti_ActivitySynchronizationType type)
{
    switch (type) {
    case CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_EVENT_SYNCHRONIZE:
        return "Event Sync";
    case CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_STREAM_WAIT_EVENT:
        return "Stream Wait Event";
    case CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_STREAM_SYNCHRONIZE:
        return "Stream Sync";
    case CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_CONTEXT_SYNCHRONIZE:
        return "Context Sync";
    default:
        return "Unknown Sync";
    }
}

static void convert_sync(const dpt_cupti_sync *from, struct dpt_device_record *ret)
{
    const bool has_stream = from->streamId != CUPTI_SYNCHRONIZATION_INVALID_VALUE;
    *ret = (struct dpt_device_record){.kind = DPT_DEVICE_SYNC,
                                      .begin_ns = (int64_t)from->start,
                                      .end_ns = (int64_t)from->end,
                                      .name = sync_name(from->type),
                                      .correlation = from->correlationId,
                                      .context = from->contextId,
                                      .stream = has_stream ? from->streamId : DPT_DEVICE_NO_STREAM};
}

static void convert_call(const CUpti_ActivityAPI *from, struct dpt_device_record *ret)
{
    *ret = (struct dpt_device_record){.kind = from->kind == CUPTI_ACTIVITY_KIND_RUNTIME
                                                  ? DPT_DEVICE_CALL
                                                  : DPT_DEVICE_DRIVER_CALL,
                                      .begin_ns = (int64_t)from->start,
                                      .end_ns = (int64_t)from->end,
                                      .correlation = from->correlationId,
                                      .thread = from->threadId,
                                      .call = from->cbid};
}

bool dpt_cupti_convert(const CUpti_Activity *from, char name[DPT_WORK_NAME_BYTES],
                       struct dpt_device_record *ret)
{
    const void *record = from;
    switch (from->kind) {
    case CUPTI_ACTIVITY_KIND_KERNEL:
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL:
        convert_kernel(record, ret);
        return true;
    case CUPTI_ACTIVITY_KIND_MEMCPY:
        convert_copy(record, name, ret);
        return true;
    case CUPTI_ACTIVITY_KIND_MEMSET:
        convert_set(record, name, ret);
        return true;
    case CUPTI_ACTIVITY_KIND_SYNCHRONIZATION:
        convert_sync(record, ret);
        return true;
    case CUPTI_ACTIVITY_KIND_RUNTIME:
    case CUPTI_ACTIVITY_KIND_DRIVER:
        convert_call(record, ret);
        return true;
    default:
        return false;
    }
}
