/* The table of strategies. */
#include "worker/strategy/strategy.h"

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

const struct dpt_strategy_ops *dpt_strategy_find(const char *name)
{
    static const struct dpt_strategy_ops *const all[] = {&dpt_strategy_ddp};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (strcmp(all[i]->name, name) == 0)
            return all[i];
    return NULL;
}
