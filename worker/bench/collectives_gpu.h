/* A rank of dpt-bench collectives whose vectors are on a GPU: NCCL's collectives through the
 * communication thread's second communicator (worker/comm/nccl_comm.h). */
#ifndef DPT_WORKER_BENCH_COLLECTIVES_GPU_H
#define DPT_WORKER_BENCH_COLLECTIVES_GPU_H

#include "worker/plan/pattern.h"
#include "worker/strategy/transport/comm_thread.h"

struct collectives_gpu;

struct collectives_gpu_spec {
    enum dpt_collective collective;
    int rank, n_ranks;
    int64_t numel;                  /* of the largest vector */
    struct dpt_comm_thread *thread; /* borrowed, before its first arm */
    int timeout_ms;
};

/* Rank r takes GPU r, or GPU r mod the number of GPUs. If ranks share a GPU, it sets NCCL_HOSTID,
 * without which NCCL refuses them. DPT_EUNSUPPORTED: no CUDA in the build; errors of
 * dpt_device_cuda_create. */
DPT_MUST_USE enum dpt_status collectives_gpu_open(const struct collectives_gpu_spec *spec,
                                                  struct collectives_gpu **ret,
                                                  struct dpt_err *err);
/* Called while no communicator is open. Accepts a pointer to NULL. */
void collectives_gpu_close(struct collectives_gpu **gpu);

/* The vector in the host's memory. */
float *collectives_gpu_host(struct collectives_gpu *gpu);
/* Copies it to the GPU as the rank's values; out of place the result's memory is filled with NaN.
 */
DPT_MUST_USE enum dpt_status collectives_gpu_put(struct collectives_gpu *gpu, int64_t numel,
                                                 bool in_place, struct dpt_err *err);
/* Copies the result to the host's memory. */
DPT_MUST_USE enum dpt_status collectives_gpu_take(struct collectives_gpu *gpu, int64_t numel,
                                                  struct dpt_err *err);

/* One collective; inside a job. */
DPT_MUST_USE enum dpt_status collectives_gpu_once(struct collectives_gpu *gpu,
                                                  struct dpt_comm_thread *thread, int64_t numel,
                                                  bool in_place, struct dpt_err *err);

#endif
