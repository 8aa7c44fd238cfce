/* Places in a part of the state, and units of a model (strategy.h). */
#include "worker/strategy/strategy.h"

int64_t dpt_strategy_state_offset(const struct dpt_state_part *part, const struct dpt_grid *grid,
                                  enum dpt_vector vector, int unit)
{
    return part->vector[vector].flat ? dpt_shard_piece(grid, part->shard, unit).first
                                     : dpt_shard_offset(grid, part->shard, unit);
}

float *dpt_strategy_state_at(const struct dpt_state_part *part, const struct dpt_grid *grid,
                             enum dpt_vector vector, int unit)
{
    float *data = dpt_comm_mem_data(part->vector[vector].mem);
    return data + dpt_strategy_state_offset(part, grid, vector, unit);
}

int dpt_strategy_vectors(const struct dpt_config *config)
{
    return dpt_optim_has_second_moment(config) ? DPT_VECTOR_COUNT : DPT_VECTOR_V;
}

int dpt_strategy_tied_unit(const struct dpt_model *model)
{
    int tied = -1;
    for (int u = 0; u < dpt_model_n_units(model); u++) {
        const int borrows = dpt_model_unit(model, u)->borrows;
        DPT_ASSERT(borrows < 0 || tied < 0 || tied == borrows);
        tied = borrows >= 0 ? borrows : tied;
    }
    return tied;
}

int dpt_strategy_gathered_places(const struct dpt_config *config, const struct dpt_model *model)
{
    const int places = dpt_model_n_units(model) - (dpt_strategy_tied_unit(model) >= 0),
              most = config->strategy.gathered_units_max;
    return places < most ? places : most;
}

int64_t dpt_strategy_largest_unit(const struct dpt_model *model, int except)
{
    int64_t most = 0;
    for (int u = 0; u < dpt_model_n_units(model); u++) {
        const int64_t numel = dpt_model_unit(model, u)->numel;
        if (u != except && numel > most)
            most = numel;
    }
    return most;
}

enum dpt_memory_tag dpt_strategy_vector_tag(enum dpt_vector vector, enum dpt_dtype dtype)
{
    if (vector != DPT_VECTOR_PARAM)
        return DPT_MEMORY_MOMENTS;
    return dtype == DPT_F32 ? DPT_MEMORY_WEIGHTS : DPT_MEMORY_MASTERS;
}
