/* See accelerator_rig.h. */
#include "tests/worker/train/accelerator_rig.h"

enum dpt_status accelerator_open(const struct dpt_rank_start *start, struct dpt_device **ret,
                                 struct dpt_err *err)
{
    (void)start;
    return dpt_device_discrete_create(ACCELERATOR_ROOM, ret, err);
}

int accelerator_setup(void **state)
{
    (void)state;
    director_accelerate(accelerator_open);
    nccl_ranks_begin((struct fabric_devices){dpt_device_discrete_copy, dpt_device_discrete_await});
    return 0;
}

int accelerator_teardown(void **state)
{
    (void)state;
    director_accelerate(NULL);
    nccl_ranks_end();
    return 0;
}

void offload(struct dpt_config *config)
{
    config->cluster.device = DPT_DEVICE_CUDA;
    config->strategy.offload = DPT_OFFLOAD_OPTIMIZER;
}

void keep_on_device(struct dpt_config *config)
{
    config->cluster.device = DPT_DEVICE_CUDA;
    config->strategy.offload = DPT_OFFLOAD_NONE;
    config->cluster.backend = DPT_BACKEND_NCCL;
}

struct dpt_config accelerator_config(enum dpt_accumulate accumulate, enum dpt_precision precision,
                                     int steps)
{
    struct dpt_config config = rig_make_config(2 * 11, steps, "");
    config.train.accumulate = accumulate;
    config.train.precision = precision;
    config.checkpoint.every_steps = 0;
    offload(&config);
    rig_evaluate(&config, 2, ACCELERATOR_SEQUENCES);
    return config;
}
