/* The config of a planned run: a file, a well-known model, or sizes from the command line. */
#ifndef DPT_WORKER_PLANNER_SOURCE_H
#define DPT_WORKER_PLANNER_SOURCE_H

#include "worker/planner/strategies.h"
#include "worker/planner/world_memory.h"

enum { DPT_SOURCE_SETS_MAX = 32, DPT_SOURCE_BUILT_MAX = 20, DPT_SOURCE_TEXT_BYTES = 64 };

/* What the command line gives; 0 or NULL: not given. One of config, model, params and layers is. */
struct dpt_source_args {
    const char *config; /* a YAML file */
    const char *model;  /* a well-known model, or a preset of a language model */
    double params;
    int64_t layers, width;                 /* both or none */
    const char *sets[DPT_SOURCE_SETS_MAX]; /* KEY=VALUE */
    size_t n_sets;
};

struct dpt_source {
    const struct dpt_source_args *args; /* borrowed */
    char *text;                         /* of the config file; owned */
    size_t bytes;
    char built[DPT_SOURCE_BUILT_MAX][DPT_SOURCE_TEXT_BYTES]; /* KEY=VALUE, before args->sets */
    size_t n_built;
    struct dpt_config_sizes sizes; /* of model.init_from */
    struct dpt_config written;     /* as written: no key is derived from another */
    /* No file and no --set gives train.global_batch: a world has one slot and one lane a rank. */
    bool batch_by_world;
};

/* Reads the file and the sizes of model.init_from. DPT_EINVAL: the arguments do not fit together,
 * or a --set gives what an option or a row gives. DPT_ECONFIG: also strategy.offload optimizer.
 * DPT_ECONFIG, DPT_ENOENT, DPT_EIO. On failure there is nothing to close. */
DPT_MUST_USE enum dpt_status dpt_source_open(const struct dpt_source_args *args,
                                             struct dpt_source *ret, struct dpt_err *err);
void dpt_source_close(struct dpt_source *source);

/* The config with this strategy on these machines. A GPU's workspace has no formula: a config with
 * cluster.device cuda is loaded with device cpu and without packed weights. DPT_ECONFIG: the
 * config's rules refuse the combination. */
DPT_MUST_USE enum dpt_status dpt_source_load(const struct dpt_source *source,
                                             const struct dpt_plan_strategy *strategy,
                                             struct dpt_world_shape shape, struct dpt_config *ret,
                                             struct dpt_err *err);

#endif
