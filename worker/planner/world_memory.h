/* The memory of the ranks of a world that is not started, by the formulas of
 * worker/strategy/memory/memory_formula.h. Pure. */
#ifndef DPT_WORKER_PLANNER_WORLD_MEMORY_H
#define DPT_WORKER_PLANNER_WORLD_MEMORY_H

#include "worker/strategy/memory/memory_formula.h"

/* The world of `machines` machines with `each` ranks. Ranks beyond dpt_config_world_max are spares
 * and do not count. Positions go machine by machine; each machine is one host and one node. */
struct dpt_world_shape {
    int machines, each;
};

struct dpt_world_memory {
    int ranks;                       /* that train */
    int64_t bytes[DPT_MEMORY_COUNT]; /* of the rank that holds most */
    int64_t rank_bytes;              /* their sum */
    int64_t machine_bytes;           /* of the machine that holds most */
};

/* Weights count as packed where a rank packs them when its host has the memory. The formula of
 * every rank is evaluated: about a millisecond a rank in a world of 1,024, and tens of milliseconds
 * with hybrid_shard and a model of hundreds of billions of parameters. DPT_ENOMEM. */
DPT_MUST_USE enum dpt_status dpt_world_memory(const struct dpt_config *config,
                                              const struct dpt_model *model,
                                              struct dpt_world_shape shape,
                                              struct dpt_world_memory *ret, struct dpt_err *err);

/* Bytes of the first or the last rank, the larger of the two: a lower bound of rank_bytes that
 * takes the time of two ranks. */
DPT_MUST_USE enum dpt_status dpt_world_memory_ends(const struct dpt_config *config,
                                                   const struct dpt_model *model,
                                                   struct dpt_world_shape shape, int64_t *ret_bytes,
                                                   struct dpt_err *err);

#endif
