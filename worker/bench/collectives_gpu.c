/* Collectives of GPUs by NCCL (collectives_gpu.h). */
#include "worker/bench/collectives_gpu.h"

#include "kernels/ops.h"
#include "worker/comm/nccl_comm.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { HOST_ID_BYTES = 48, PIECES_MAX = 64 };

struct collectives_gpu {
    struct collectives_gpu_spec spec;
    struct dpt_device *device;
    struct dpt_stream *stream;
    void *from, *to; /* on the device */
    float *host;
    size_t bytes; /* of each */
};

static enum dpt_status load_nccl(void *ctx, const struct dpt_nccl_calls **ret, void **ret_ctx,
                                 struct dpt_err *err)
{
    (void)ctx;
    *ret_ctx = NULL;
    return dpt_nccl_calls_load(ret, err);
}

/* NCCL refuses two ranks of one host on one GPU, so such ranks name different hosts. */
static enum dpt_status open_gpu(struct collectives_gpu *gpu, struct dpt_err *err)
{
    int count;
    char fingerprint[DPT_FINGERPRINT_BYTES], id[HOST_ID_BYTES];
    DPT_TRY(dpt_device_cuda_look(&count, fingerprint, err));
    (void)snprintf(id, sizeof id, "dpt-bench-%d", gpu->spec.rank);
    if (gpu->spec.n_ranks > count && setenv("NCCL_HOSTID", id, 1) != 0)
        return dpt_fail_nomem(err, "NCCL_HOSTID");
    DPT_TRY(dpt_device_cuda_create(gpu->spec.rank % count, &gpu->device, err));
    DPT_TRY(dpt_stream_create(gpu->device, 1, &gpu->stream, err));
    DPT_TRY(dpt_device_alloc(gpu->device, gpu->bytes, &gpu->from, err));
    DPT_TRY(dpt_device_alloc(gpu->device, gpu->bytes, &gpu->to, err));
    void *host = NULL;
    DPT_TRY(dpt_device_alloc_host(gpu->device, gpu->bytes, &host, err));
    gpu->host = host;
    dpt_comm_thread_set_device(gpu->spec.thread, load_nccl, NULL, gpu->device,
                               gpu->spec.timeout_ms);
    return DPT_OK;
}

enum dpt_status collectives_gpu_open(const struct collectives_gpu_spec *spec,
                                     struct collectives_gpu **ret, struct dpt_err *err)
{
    struct collectives_gpu *gpu = calloc(1, sizeof *gpu);
    if (!gpu)
        return dpt_fail_nomem(err, "a GPU's vectors");
    gpu->spec = *spec;
    gpu->bytes = (size_t)spec->numel * sizeof(float);
    const enum dpt_status status = open_gpu(gpu, err);
    if (status == DPT_OK)
        *ret = gpu;
    else
        collectives_gpu_close(&gpu);
    return status;
}

void collectives_gpu_close(struct collectives_gpu **gpu_p)
{
    struct collectives_gpu *gpu = *gpu_p;
    *gpu_p = NULL;
    if (!gpu)
        return;
    if (gpu->from)
        dpt_device_free(gpu->device, gpu->from, gpu->bytes);
    if (gpu->to)
        dpt_device_free(gpu->device, gpu->to, gpu->bytes);
    if (gpu->host)
        dpt_device_free_host(gpu->device, gpu->host, gpu->bytes);
    dpt_stream_destroy(&gpu->stream);
    dpt_device_destroy(&gpu->device);
    free(gpu);
}

float *collectives_gpu_host(struct collectives_gpu *gpu)
{
    return gpu->host;
}

enum dpt_status collectives_gpu_put(struct collectives_gpu *gpu, int64_t numel, bool in_place,
                                    struct dpt_err *err)
{
    const struct dpt_ops *ops = dpt_device_ops(gpu->device);
    ops->copy(gpu->stream, (size_t)numel * sizeof(float), gpu->host,
              in_place ? gpu->to : gpu->from);
    if (!in_place)
        ops->fill(gpu->stream, numel, NAN, gpu->to);
    return dpt_stream_sync(gpu->stream, err);
}

enum dpt_status collectives_gpu_take(struct collectives_gpu *gpu, int64_t numel,
                                     struct dpt_err *err)
{
    dpt_device_ops(gpu->device)
        ->copy(gpu->stream, (size_t)numel * sizeof(float), gpu->to, gpu->host);
    return dpt_stream_sync(gpu->stream, err);
}

/* Bytes sent and received by point-to-point calls, which NCCL's table of this project has in place
 * of a broadcast. */
static int list_messages(const struct collectives_gpu *gpu, const float *from, size_t bytes,
                         struct dpt_nccl_piece *ret)
{
    const int rank = gpu->spec.rank, n_ranks = gpu->spec.n_ranks;
    int n = 0;
    if (gpu->spec.collective == DPT_COLLECTIVE_SEND_RECV) {
        ret[n++] = (struct dpt_nccl_piece){
            .kind = DPT_NCCL_SEND, .peer = (rank + 1) % n_ranks, .from = from, .count = bytes};
        ret[n++] = (struct dpt_nccl_piece){.kind = DPT_NCCL_RECV,
                                           .peer = (rank + n_ranks - 1) % n_ranks,
                                           .to = gpu->to,
                                           .count = bytes};
    } else if (rank != 0) {
        ret[n++] = (struct dpt_nccl_piece){.kind = DPT_NCCL_RECV, .to = gpu->to, .count = bytes};
    } else {
        for (int peer = 1; peer < n_ranks; peer++)
            ret[n++] = (struct dpt_nccl_piece){
                .kind = DPT_NCCL_SEND, .peer = peer, .from = from, .count = bytes};
    }
    for (int i = 0; i < n; i++)
        ret[i].dtype = DPT_NCCL_BYTES;
    return n;
}

static int list_pieces(const struct collectives_gpu *gpu, int64_t numel, bool in_place,
                       struct dpt_nccl_piece *ret)
{
    float *to = gpu->to;
    const float *from = in_place ? to : gpu->from;
    const int64_t share = numel / gpu->spec.n_ranks, own = share * gpu->spec.rank;
    struct dpt_nccl_piece piece = {
        .from = from, .to = to, .count = (size_t)numel, .dtype = DPT_NCCL_F32};
    switch (gpu->spec.collective) {
    case DPT_COLLECTIVE_ALL_REDUCE:
        piece.kind = DPT_NCCL_ALL_REDUCE;
        break;
    case DPT_COLLECTIVE_ALL_GATHER:
        piece.kind = DPT_NCCL_ALL_GATHER;
        piece.from = from + own;
        piece.count = (size_t)share;
        break;
    case DPT_COLLECTIVE_REDUCE_SCATTER:
        piece.kind = DPT_NCCL_REDUCE_SCATTER;
        piece.to = to + own;
        piece.count = (size_t)share;
        break;
    case DPT_COLLECTIVE_BROADCAST:
    case DPT_COLLECTIVE_SEND_RECV:
    case DPT_COLLECTIVE_COUNT:
        return list_messages(gpu, from, (size_t)numel * sizeof(float), ret);
    }
    ret[0] = piece;
    return 1;
}

enum dpt_status collectives_gpu_once(struct collectives_gpu *gpu, struct dpt_comm_thread *thread,
                                     int64_t numel, bool in_place, struct dpt_err *err)
{
    struct dpt_nccl_comm *nccl = dpt_comm_thread_nccl(thread);
    struct dpt_nccl_piece pieces[PIECES_MAX];
    const int n = list_pieces(gpu, numel, in_place, pieces);
    uint64_t ticket;
    if (gpu->spec.collective == DPT_COLLECTIVE_BROADCAST && gpu->spec.rank == 0 && !in_place) {
        dpt_device_ops(gpu->device)
            ->copy(gpu->stream, (size_t)numel * sizeof(float), gpu->from, gpu->to);
        DPT_TRY(dpt_stream_sync(gpu->stream, err));
    }
    DPT_TRY(dpt_nccl_comm_post(nccl, 0, &(struct dpt_nccl_op){pieces, n, NULL}, &ticket, err));
    enum dpt_status status;
    do
        status = dpt_nccl_comm_poll(nccl, 0, ticket, -1, err);
    while (status == DPT_INPROGRESS);
    return status;
}
