/* The table of strategies. */
#include "worker/strategy/strategy.h"

#include "worker/strategy/ddp_policy.h"

#include <string.h>

int64_t dpt_state_offset(const struct dpt_state_part *part, const struct dpt_grid *grid,
                         enum dpt_vector vector, int unit)
{
    return part->vector[vector].flat ? dpt_shard_piece(grid, part->shard, unit).first
                                     : dpt_shard_offset(grid, part->shard, unit);
}

float *dpt_state_at(const struct dpt_state_part *part, const struct dpt_grid *grid,
                    enum dpt_vector vector, int unit)
{
    float *data = dpt_comm_mem_data(part->vector[vector].mem);
    return data + dpt_state_offset(part, grid, vector, unit);
}

int dpt_vectors(const struct dpt_config *config)
{
    return dpt_optim_has_second_moment(config) ? DPT_VECTOR_COUNT : DPT_VECTOR_V;
}

int dpt_gathered_places(const struct dpt_config *config, const struct dpt_model *model)
{
    const int n = dpt_model_n_units(model);
    int places = n, borrowed = -1;
    for (int u = 0; u < n; u++) {
        const int from = dpt_model_unit(model, u)->borrows;
        places -= from >= 0 && from != borrowed;
        borrowed = from >= 0 ? from : borrowed;
    }
    return places < config->strategy.gathered_units_max ? places
                                                        : config->strategy.gathered_units_max;
}

enum dpt_memory_tag dpt_vector_tag(enum dpt_vector vector, enum dpt_dtype dtype)
{
    if (vector != DPT_VECTOR_PARAM)
        return DPT_MEMORY_MOMENTS;
    return dtype == DPT_F32 ? DPT_MEMORY_WEIGHTS : DPT_MEMORY_MASTERS;
}

const struct dpt_strategy_ops *dpt_strategy_find(const struct dpt_config *config)
{
    static const char *const sharded[] = {"zero1", "zero2", "zero3", "fsdp"};
    const char *name = config->strategy.name;
    const bool replicated =
        strcmp(name, "ddp") == 0 ||
        (strcmp(name, "fsdp") == 0 && config->strategy.sharding == DPT_SHARDING_NO_SHARD);
    if (replicated)
        return dpt_config_accumulate(config) == DPT_ACCUMULATE_LOCAL ? &dpt_strategy_ddp
                                                                     : &dpt_strategy_sharded;
    if (dpt_ddp_policy_find(name))
        return &dpt_strategy_ddp;
    for (size_t i = 0; i < sizeof sharded / sizeof sharded[0]; i++)
        if (strcmp(sharded[i], name) == 0)
            return &dpt_strategy_sharded;
    return NULL;
}
