/* The strategies that a plan compares: the config's keys of each, and the textbook's stage. Pure.
 */
#ifndef DPT_WORKER_PLANNER_STRATEGIES_H
#define DPT_WORKER_PLANNER_STRATEGIES_H

#include "base/config.h"
#include "worker/planner/textbook.h"

struct dpt_plan_strategy {
    const char *label;         /* "full_shard+shadow" */
    const char *name;          /* strategy.name */
    const char *sharding_word; /* strategy.sharding, as in YAML */
    enum dpt_sharding sharding;
    bool shadow; /* strategy.redundancy: shadow */
    enum dpt_textbook_stage stage;
};

enum { DPT_PLAN_STRATEGIES = 11 };
extern const struct dpt_plan_strategy dpt_plan_strategies[DPT_PLAN_STRATEGIES];

/* Whether the config, as written, has this strategy. */
bool dpt_plan_strategy_is_of(const struct dpt_plan_strategy *strategy,
                             const struct dpt_config *config);

/* Whether the config, as written, has a strategy of the table. */
bool dpt_plan_strategy_is_listed(const struct dpt_config *config);

/* Whether the state survives the loss of one of `machines` machines in the memory of others. */
bool dpt_plan_strategy_has_copies(const struct dpt_config *config, int machines);

#endif
