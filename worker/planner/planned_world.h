/* The world of a run that is not started. Pure. */
#ifndef DPT_WORKER_PLANNER_PLANNED_WORLD_H
#define DPT_WORKER_PLANNER_PLANNED_WORLD_H

#include "base/config.h"
#include "worker/plan/world.h"

/* The world of `machines` machines with `each` ranks. Ranks beyond dpt_config_world_max are spares
 * and do not count. Positions go machine by machine; each machine is one host and one node. */
struct dpt_world_shape {
    int machines, each;
};

struct dpt_planned_world {
    struct dpt_world world; /* points to the numbers below, so this struct is not copied */
    int ranks[DPT_CONFIG_WORLD_MAX], machines[DPT_CONFIG_WORLD_MAX];
};

void dpt_planned_world_init(struct dpt_planned_world *ret, const struct dpt_config *config,
                            struct dpt_world_shape shape);

/* The most slots of a rank in a step: ranks compute their slots one after another. */
int dpt_planned_world_waves(const struct dpt_config *config, const struct dpt_world *world);

#endif
