/* The options of a rank. */
#ifndef DPT_WORKER_TRAIN_STATE_RANK_OPTIONS_H
#define DPT_WORKER_TRAIN_STATE_RANK_OPTIONS_H

#include "base/config.h"
#include "kernels/device.h"
#include "worker/agent/rank_protocol.h"
#include "worker/comm/nccl_calls.h"

struct dpt_rank_options {
    const struct dpt_rank_start *start;
    const struct dpt_config *config;
    int link_fd; /* owned by the rank from here on */
    /* Opens the device that cluster.device cuda asks for; NULL: a CUDA device. */
    enum dpt_status (*open_accelerator)(const struct dpt_rank_start *start, struct dpt_device **ret,
                                        struct dpt_err *err);
    /* Gives the calls of NCCL, and their context, on the communication thread; NULL: the library's.
     */
    enum dpt_status (*load_nccl)(const struct dpt_rank_start *start,
                                 const struct dpt_nccl_calls **ret, void **ret_ctx,
                                 struct dpt_err *err);
    int step_fd; /* where the rank keeps its newest step (rank_protocol.h); -1: nowhere */
    /* On the link's thread, when the agent is gone: a process ends itself here at once; NULL: the
     * rank only stops. */
    void (*on_agent_gone)(void);
};

#endif
