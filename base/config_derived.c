/* Values that follow from several keys of a config, each defined once. */
#include "base/config.h"

#include "base/strategy_traits.h"

enum { AUTO_LANES_MAX = 16 };

int dpt_config_slots(const struct dpt_config *config)
{
    return config->train.global_batch / config->train.micro_batch;
}

int dpt_config_lanes(const struct dpt_config *config)
{
    const int slots = dpt_config_slots(config);
    const int most = dpt_strategy_traits(config).order_open ? DPT_CONFIG_WORLD_MAX : AUTO_LANES_MAX;
    if (config->train.lanes != DPT_AUTO)
        return config->train.lanes;
    return slots < most ? slots : most;
}

int dpt_config_lanes_of(const struct dpt_config *config, int world_size)
{
    return dpt_strategy_traits(config).lane_per_rank ? world_size : dpt_config_lanes(config);
}

int dpt_config_world_max(const struct dpt_config *config)
{
    const int most = dpt_strategy_traits(config).order == DPT_ACCUMULATE_REDUCE
                         ? dpt_config_slots(config)
                         : dpt_config_lanes(config);
    return most < DPT_CONFIG_WORLD_MAX ? most : DPT_CONFIG_WORLD_MAX;
}

/* What is rounded is a lane, or a slot that is a lane (check_compression). */
bool dpt_config_may_round(const struct dpt_config *config)
{
    const struct dpt_strategy_traits t = dpt_strategy_traits(config);
    const bool whole_lanes = t.order != DPT_ACCUMULATE_LOCAL || t.route == DPT_GRADIENT_LANES ||
                             dpt_config_lanes(config) == dpt_config_slots(config);
    return t.takes_16_bits && !t.order_open && !t.by_node && whole_lanes;
}

bool dpt_config_evaluates(const struct dpt_config *config)
{
    return config->train.eval_every > 0 || config->train.eval_only ||
           (config->train.epochs > 0 && config->data.val[0]);
}

bool dpt_config_scales_loss(const struct dpt_config *config)
{
    return config->train.precision == DPT_PRECISION_FP16 ||
           dpt_strategy_traits(config).wire == DPT_PRECISION_FP16;
}

enum dpt_status dpt_config_check_gpus(const struct dpt_config *config, int ranks, int gpus,
                                      struct dpt_err *err)
{
    if (gpus == 0 || ranks <= gpus || !dpt_strategy_traits(config).by_nccl)
        return DPT_OK;
    return dpt_fail(err, DPT_ECONFIG,
                    "cluster.gpus_per_node is %d and there %s %d, and NCCL takes one rank a GPU: "
                    "set cluster.gpus_per_node to %d, or %s on all nodes",
                    ranks, gpus == 1 ? "is" : "are", gpus, gpus,
                    dpt_strategy_traits(config).takes_host_backend
                        ? "cluster.backend to host"
                        : "strategy.offload to optimizer");
}

bool dpt_config_reads_text(const struct dpt_config *config)
{
    return config->data.kind == DPT_DATA_TEXT || config->data.kind == DPT_DATA_CLASSIFICATION;
}

bool dpt_config_reads_images(const struct dpt_config *config)
{
    return config->data.kind == DPT_DATA_CIFAR10 || config->data.kind == DPT_DATA_IMAGES;
}

bool dpt_config_reads_labels(const struct dpt_config *config)
{
    return config->data.kind == DPT_DATA_CLASSIFICATION || dpt_config_reads_images(config);
}
