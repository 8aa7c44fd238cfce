/* See nccl_ranks.h. */
#include "tests/worker/train/nccl_ranks.h"

struct fabric nccl_fabric;
struct fabric_rank nccl_views[DIRECTOR_RANKS_MAX];

static enum dpt_status load_fabric(const struct dpt_rank_start *start,
                                   const struct dpt_nccl_calls **ret, void **ret_ctx,
                                   struct dpt_err *err)
{
    (void)err;
    *ret = &fabric_calls;
    *ret_ctx = &nccl_views[start->local_rank];
    return DPT_OK;
}

void nccl_ranks_begin(struct fabric_devices devices)
{
    fabric_init(&nccl_fabric);
    nccl_fabric.devices = devices;
    for (int i = 0; i < DIRECTOR_RANKS_MAX; i++)
        nccl_views[i] = (struct fabric_rank){.fabric = &nccl_fabric};
    director_use_nccl(load_fabric);
}

void nccl_ranks_end(void)
{
    director_use_nccl(NULL);
    fabric_fini(&nccl_fabric);
}
