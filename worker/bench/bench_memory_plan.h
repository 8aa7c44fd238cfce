/* The memory of ranks by the formulas; no program is started. */
#ifndef DPT_WORKER_BENCH_BENCH_MEMORY_PLAN_H
#define DPT_WORKER_BENCH_BENCH_MEMORY_PLAN_H

#include "base/err.h"

#include <jansson.h>

enum {
    MEMORY_PLAN_SETS_MAX = 16,
    MEMORY_PLAN_SHAPES_MAX = 8,
    MEMORY_PLAN_RANKS_MAX = 1024,
    MEMORY_PLAN_CONFIG_BYTES = 1 << 20
};

struct memory_plan {
    const char *config;                     /* a YAML file; NULL: the defaults */
    const char *sets[MEMORY_PLAN_SETS_MAX]; /* KEY=VALUE, after the file */
    int n_sets;
    int shapes[MEMORY_PLAN_SHAPES_MAX][2]; /* nodes, ranks of each */
    int n_shapes;
};

/* Prints, for each shape, what the rank that holds most and the node that holds most have in memory
 * under the config's section `section` of strategy, and appends an object to `rows`. Of a world
 * larger than the config's largest (dpt_config_world_max) that many ranks are counted, which is
 * said. Weights are packed where a rank packs them, if its host has the memory. A combination that
 * the config's rules refuse is printed with the reason, and appends nothing. */
DPT_MUST_USE enum dpt_status memory_plan_add(const struct memory_plan *plan, const char *name,
                                             const char *section, json_t *rows,
                                             struct dpt_err *err);

#endif
