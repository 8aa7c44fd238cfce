/* The memory of the ranks of a world that is not started, by the formulas of
 * worker/strategy/memory/memory_formula.h. Pure. */
#ifndef DPT_WORKER_PLANNER_WORLD_MEMORY_H
#define DPT_WORKER_PLANNER_WORLD_MEMORY_H

#include "worker/planner/planned_world.h"
#include "worker/strategy/memory/memory_formula.h"

struct dpt_world_memory {
    int ranks;                       /* that train */
    int64_t bytes[DPT_MEMORY_COUNT]; /* of the rank that holds most */
    int64_t rank_bytes;              /* their sum */
    int64_t machine_bytes;           /* of the machine that holds most */
};

/* Weights count as packed where a rank packs them when its host has the memory. The formula of
 * every rank is evaluated: about a millisecond a rank in a world of 1,024, and tens of milliseconds
 * with hybrid_shard and a model of hundreds of billions of parameters. */
void dpt_world_memory(const struct dpt_config *config, const struct dpt_model *model,
                      struct dpt_world_shape shape, struct dpt_world_memory *ret);

/* Bytes of the first or the last rank, the larger of the two: a lower bound of rank_bytes that
 * takes the time of two ranks. */
int64_t dpt_world_memory_ends(const struct dpt_config *config, const struct dpt_model *model,
                              struct dpt_world_shape shape);

#endif
