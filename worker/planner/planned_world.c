/* The world of a run that is not started: see planned_world.h. */
#include "worker/planner/planned_world.h"

#include "worker/plan/partition.h"

void dpt_planned_world_init(struct dpt_planned_world *ret, const struct dpt_config *config,
                            struct dpt_world_shape shape)
{
    const int all = shape.machines * shape.each, most = dpt_config_world_max(config);
    const int n = all < most ? all : most;
    for (int i = 0; i < n; i++) {
        ret->ranks[i] = i;
        ret->machines[i] = i / shape.each;
    }
    ret->world = (struct dpt_world){.lanes = dpt_config_lanes_of(config, n),
                                    .size = n,
                                    .rank_of_position = ret->ranks,
                                    .host_of_position = ret->machines,
                                    .node_of_position = ret->machines};
}

int dpt_planned_world_waves(const struct dpt_config *config, const struct dpt_world *world)
{
    return dpt_partition_assign(config, world, 0).n; /* the larger shares come first */
}
