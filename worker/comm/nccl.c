/* NCCL and CUDA's runtime as the table of nccl_calls.h. No other file of this folder includes their
 * headers. nccl_machine.c decides when to make a call. */
#include "worker/comm/nccl_calls.h"

#include "base/clock.h"

#include <cuda_runtime.h>
#include <nccl.h>

#include <stdio.h>
#include <string.h>
#include <time.h>

enum {
    VERSION_SHRINK = 22703, /* 2.27.3 */
    VERSION_REVOKE = 22807, /* 2.28.7 */
    EXCLUDED_MAX = 1024,
    /* A creation of many ranks connects over sockets, loads kernels and maps every peer's memory. A
     * revoke, an abort and a destroy may take a second each. */
    CREATE_MS_MIN = 120 * 1000,
    STOP_MS_MIN = 10 * 1000,
    CTAS_MAX = 16,
    PAUSE_NS = 50 * 1000
};
_Static_assert(NCCL_VERSION_CODE >= VERSION_SHRINK, "NCCL 2.27.3 or newer");
_Static_assert(NCCL_UNIQUE_ID_BYTES == DPT_NCCL_ID_BYTES, "an id is as long as NCCL's");
_Static_assert(sizeof(struct dpt_nccl_place) == sizeof(ncclComm_t), "a place takes a communicator");

static _Thread_local char last_text[512]; /* text of this thread's last failed call */

static enum dpt_nccl_result result_of(ncclResult_t result, ncclComm_t comm)
{
    if (result == ncclSuccess)
        return DPT_NCCL_OK;
    if (result == ncclInProgress)
        return DPT_NCCL_INPROGRESS;
    const char *more = ncclGetLastError(comm);
    (void)snprintf(last_text, sizeof last_text, "NCCL: %s%s%s", ncclGetErrorString(result),
                   more != NULL && more[0] != '\0' ? ": " : "", more != NULL ? more : "");
    switch (result) {
    case ncclInvalidArgument:
    case ncclInvalidUsage:
        return DPT_NCCL_EUSAGE;
    case ncclRemoteError:
        return DPT_NCCL_EREMOTE;
    case ncclSystemError:
        return DPT_NCCL_ESYSTEM;
    case ncclUnhandledCudaError:
        return DPT_NCCL_ECUDA;
    default:
        return DPT_NCCL_EINTERNAL;
    }
}

static enum dpt_nccl_result result_of_cuda(cudaError_t result)
{
    if (result == cudaSuccess)
        return DPT_NCCL_OK;
    if (result == cudaErrorNotReady)
        return DPT_NCCL_INPROGRESS;
    (void)snprintf(last_text, sizeof last_text, "CUDA: %s", cudaGetErrorString(result));
    return DPT_NCCL_ECUDA;
}

static ncclComm_t comm_of(struct dpt_nccl_handle *handle)
{
    return (ncclComm_t)(void *)handle;
}

static cudaStream_t stream_of(struct dpt_nccl_stream *stream)
{
    return (cudaStream_t)(void *)stream;
}

static ncclConfig_t communicator_config(void)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    config.commName = "dpt";
    /* Each block uses a multiprocessor while it runs, and memory while the communicator exists. */
    config.maxCTAs = CTAS_MAX;
    /* No sharing: shared resources would be freed with the first communicator that uses them. */
    config.splitShare = config.shrinkShare = 0;
    return config;
}

static int64_t call_now_ms(void *ctx)
{
    return dpt_now_ms();
}

static void call_pause(void *ctx)
{
    const struct timespec time = {.tv_nsec = PAUSE_NS};
    (void)nanosleep(&time, NULL); /* a signal may end it early */
}

/* Communicators. */

static enum dpt_nccl_result call_unique_id(void *ctx, uint8_t ret[DPT_NCCL_ID_BYTES])
{
    ncclUniqueId id;
    const enum dpt_nccl_result result = result_of(ncclGetUniqueId(&id), NULL);
    if (result != DPT_NCCL_OK)
        return result;
    /* The library has now read its configuration files into the environment. */
    const char *why, *name = dpt_nccl_refused_setting(&why);
    if (name != NULL) {
        (void)snprintf(last_text, sizeof last_text, "NCCL's configuration file sets %s: %s", name,
                       why);
        return DPT_NCCL_EUSAGE;
    }
    memcpy(ret, id.internal, sizeof id.internal);
    return DPT_NCCL_OK;
}

static enum dpt_nccl_result call_init(void *ctx, int size, const uint8_t bytes[DPT_NCCL_ID_BYTES],
                                      int rank, struct dpt_nccl_place *ret)
{
    ncclUniqueId id;
    ncclConfig_t with = communicator_config();
    memcpy(id.internal, bytes, sizeof id.internal);
    return result_of(ncclCommInitRankConfig((ncclComm_t *)(void *)ret, size, id, rank, &with),
                     NULL);
}

static enum dpt_nccl_result call_split(void *ctx, struct dpt_nccl_handle *parent, int color,
                                       int key, struct dpt_nccl_place *ret)
{
    ncclConfig_t with = communicator_config();
    return result_of(ncclCommSplit(comm_of(parent), color, key, (ncclComm_t *)(void *)ret, &with),
                     comm_of(parent));
}

/* The parent is revoked and quiet, so the shrink has nothing to abort. */
static enum dpt_nccl_result call_shrink(void *ctx, struct dpt_nccl_handle *parent,
                                        const int *excluded, int n_excluded,
                                        struct dpt_nccl_place *ret)
{
    ncclConfig_t with = communicator_config();
    int list[EXCLUDED_MAX];
    DPT_ASSERT(n_excluded <= EXCLUDED_MAX);
    memcpy(list, excluded, (size_t)n_excluded * sizeof list[0]);
    return result_of(ncclCommShrink(comm_of(parent), list, n_excluded, (ncclComm_t *)(void *)ret,
                                    &with, NCCL_SHRINK_DEFAULT),
                     comm_of(parent));
}

static enum dpt_nccl_result call_async_error(void *ctx, struct dpt_nccl_handle *handle)
{
    ncclResult_t state = ncclSuccess;
    const ncclResult_t result = ncclCommGetAsyncError(comm_of(handle), &state);
    return result_of(result == ncclSuccess ? state : result, comm_of(handle));
}

#if NCCL_VERSION_CODE >= 22807
static enum dpt_nccl_result call_revoke(void *ctx, struct dpt_nccl_handle *handle)
{
    return result_of(ncclCommRevoke(comm_of(handle), NCCL_REVOKE_DEFAULT), comm_of(handle));
}
#endif

static enum dpt_nccl_result call_finalize(void *ctx, struct dpt_nccl_handle *handle)
{
    return result_of(ncclCommFinalize(comm_of(handle)), comm_of(handle));
}

static enum dpt_nccl_result call_destroy(void *ctx, struct dpt_nccl_handle *handle)
{
    return result_of(ncclCommDestroy(comm_of(handle)), NULL);
}

static enum dpt_nccl_result call_abort(void *ctx, struct dpt_nccl_handle *handle)
{
    return result_of(ncclCommAbort(comm_of(handle)), NULL);
}

/* Operations. */

static ncclDataType_t type_of(enum dpt_nccl_dtype dtype)
{
    switch (dtype) {
    case DPT_NCCL_F32:
        return ncclFloat32;
    case DPT_NCCL_BF16:
        return ncclBfloat16;
    case DPT_NCCL_F16:
        return ncclFloat16;
    case DPT_NCCL_BYTES:
        return ncclUint8;
    }
    DPT_ASSERT(!"no such element type");
    return ncclUint8;
}

static enum dpt_nccl_result call_group_start(void *ctx)
{
    return result_of(ncclGroupStart(), NULL);
}

static enum dpt_nccl_result call_group_end(void *ctx)
{
    return result_of(ncclGroupEnd(), NULL);
}

static enum dpt_nccl_result call_post(void *ctx, struct dpt_nccl_handle *handle,
                                      const struct dpt_nccl_piece *p,
                                      struct dpt_nccl_stream *stream)
{
    ncclResult_t result = ncclInvalidArgument;
    ncclComm_t comm = comm_of(handle);
    cudaStream_t in = stream_of(stream);
    switch (p->kind) {
    case DPT_NCCL_SEND:
        result = ncclSend(p->from, p->count, ncclUint8, p->peer, comm, in);
        break;
    case DPT_NCCL_RECV:
        result = ncclRecv(p->to, p->count, ncclUint8, p->peer, comm, in);
        break;
    case DPT_NCCL_ALL_REDUCE:
        result = ncclAllReduce(p->from, p->to, p->count, type_of(p->dtype), ncclSum, comm, in);
        break;
    case DPT_NCCL_REDUCE_SCATTER:
        result = ncclReduceScatter(p->from, p->to, p->count, type_of(p->dtype), ncclSum, comm, in);
        break;
    case DPT_NCCL_ALL_GATHER:
        result = ncclAllGather(p->from, p->to, p->count, type_of(p->dtype), comm, in);
        break;
    case DPT_NCCL_KIND_COUNT:
        DPT_ASSERT(!"no such kind of operation");
    }
    return result_of(result, comm);
}

static const char *call_last_error(void *ctx, struct dpt_nccl_handle *handle)
{
    /* result_of stored the library's text when the call failed. */
    return last_text[0] != '\0' ? last_text : "no reason was given";
}

/* Streams have the highest priority, because a late transfer delays all ranks. */

static enum dpt_nccl_result call_stream_create(void *ctx, struct dpt_nccl_stream **ret)
{
    int least, greatest;
    cudaStream_t stream;
    cudaError_t result = cudaDeviceGetStreamPriorityRange(&least, &greatest);
    if (result == cudaSuccess)
        result = cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, greatest);
    if (result == cudaSuccess)
        *ret = (struct dpt_nccl_stream *)(void *)stream;
    return result_of_cuda(result);
}

static void call_stream_destroy(void *ctx, struct dpt_nccl_stream *stream)
{
    /* An error here comes from earlier work in the stream. */
    (void)cudaStreamDestroy(stream_of(stream));
}

static enum dpt_nccl_result call_stream_after(void *ctx, struct dpt_nccl_stream *stream,
                                              void *event)
{
    return result_of_cuda(cudaStreamWaitEvent(stream_of(stream), (cudaEvent_t)event, 0));
}

static enum dpt_nccl_result call_stream_query(void *ctx, struct dpt_nccl_stream *stream)
{
    return result_of_cuda(cudaStreamQuery(stream_of(stream)));
}

static const struct dpt_nccl_calls calls = {
    .create_ms_min = CREATE_MS_MIN,
    .stop_ms_min = STOP_MS_MIN,
    .now_ms = call_now_ms,
    .pause = call_pause,
    .unique_id = call_unique_id,
    .init = call_init,
    .split = call_split,
    .shrink = call_shrink,
    .async_error = call_async_error,
#if NCCL_VERSION_CODE >= 22807
    .revoke = call_revoke,
#endif
    .finalize = call_finalize,
    .destroy = call_destroy,
    .abort = call_abort,
    .group_start = call_group_start,
    .group_end = call_group_end,
    .post = call_post,
    .last_error = call_last_error,
    .stream_create = call_stream_create,
    .stream_destroy = call_stream_destroy,
    .stream_after = call_stream_after,
    .stream_query = call_stream_query,
};

enum dpt_status dpt_nccl_calls_load(const struct dpt_nccl_calls **ret, struct dpt_err *err)
{
    int devices = 0, version = 0;
    const cudaError_t cuda = cudaGetDeviceCount(&devices);
    if (cuda != cudaSuccess || devices == 0)
        return dpt_fail(err, DPT_EUNSUPPORTED, "no CUDA device: %s",
                        cuda != cudaSuccess ? cudaGetErrorString(cuda) : "there is none");
    const int least = calls.revoke != NULL ? VERSION_REVOKE : VERSION_SHRINK;
    if (ncclGetVersion(&version) != ncclSuccess || version < least)
        return dpt_fail(err, DPT_EUNSUPPORTED, "NCCL %d is loaded, %d or newer is needed", version,
                        least);
    const char *why, *name = dpt_nccl_refused_setting(&why);
    if (name != NULL)
        return dpt_fail(err, DPT_EUNSUPPORTED, "%s in the environment: %s; unset it", name, why);
    *ret = &calls;
    return DPT_OK;
}
