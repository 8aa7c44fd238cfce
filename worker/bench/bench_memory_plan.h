/* The memory of ranks by the formulas; no program is started. */
#ifndef DPT_WORKER_BENCH_BENCH_MEMORY_PLAN_H
#define DPT_WORKER_BENCH_BENCH_MEMORY_PLAN_H

#include "worker/bench/bench.h"

#include <jansson.h>

enum {
    MEMORY_PLAN_SHAPES_MAX = 8,
    MEMORY_PLAN_RANKS_MAX = 1024,
    MEMORY_PLAN_CONFIG_BYTES = 1 << 20
};

struct memory_plan {
    const char *config;                    /* a YAML file; NULL: the defaults */
    struct dpt_bench_sets sets;            /* override the file */
    int shapes[MEMORY_PLAN_SHAPES_MAX][2]; /* nodes, ranks per node */
    int n_shapes;
};

/* Prints one line for each shape: the memory of the rank that holds most and of the node that holds
 * most, under the config's strategy section `section`. Appends one object for each shape to `rows`.
 * A world larger than dpt_config_world_max is computed with that maximum of ranks, and a second
 * line says so. Weights count as packed where a rank packs them when its host has the memory. A
 * combination that the config's rules refuse is printed with the reason, and appends nothing. */
DPT_MUST_USE enum dpt_status memory_plan_add(const struct memory_plan *plan, const char *name,
                                             const char *section, json_t *rows,
                                             struct dpt_err *err);

#endif
