/* The table of strategies: see strategies.h. */
#include "worker/planner/strategies.h"

#include "base/strategy_traits.h"

#include <string.h>

/* clang-format off */
const struct dpt_plan_strategy dpt_plan_strategies[DPT_PLAN_STRATEGIES] = {
    {"ddp", "ddp", "null", DPT_SHARDING_NULL, false, DPT_TEXTBOOK_DDP},
    {"zero1", "zero1", "null", DPT_SHARDING_NULL, false, DPT_TEXTBOOK_ZERO1},
    {"zero2", "zero2", "null", DPT_SHARDING_NULL, false, DPT_TEXTBOOK_ZERO2},
    {"zero3", "zero3", "null", DPT_SHARDING_NULL, false, DPT_TEXTBOOK_ZERO3},
    {"no_shard", "fsdp", "no_shard", DPT_SHARDING_NO_SHARD, false, DPT_TEXTBOOK_DDP},
    {"shard_grad_op", "fsdp", "shard_grad_op", DPT_SHARDING_SHARD_GRAD_OP, false,
     DPT_TEXTBOOK_ZERO2},
    {"full_shard", "fsdp", "full_shard", DPT_SHARDING_FULL_SHARD, false, DPT_TEXTBOOK_ZERO3},
    {"hybrid_shard", "fsdp", "hybrid_shard", DPT_SHARDING_HYBRID_SHARD, false, DPT_TEXTBOOK_ZERO3},
    {"zero2+shadow", "zero2", "null", DPT_SHARDING_NULL, true, DPT_TEXTBOOK_ZERO2},
    {"full_shard+shadow", "fsdp", "full_shard", DPT_SHARDING_FULL_SHARD, true, DPT_TEXTBOOK_ZERO3},
    {"dp", "dp", "null", DPT_SHARDING_NULL, false, DPT_TEXTBOOK_DDP},
};
/* clang-format on */

bool dpt_plan_strategy_is_of(const struct dpt_plan_strategy *strategy,
                             const struct dpt_config *config)
{
    const struct dpt_strategy_traits traits = dpt_strategy_traits(config);
    return traits.known && strcmp(strategy->name, traits.name) == 0 &&
           strategy->sharding == traits.sharding && strategy->shadow == traits.shadow;
}

bool dpt_plan_strategy_is_listed(const struct dpt_config *config)
{
    for (int i = 0; i < DPT_PLAN_STRATEGIES; i++)
        if (dpt_plan_strategy_is_of(&dpt_plan_strategies[i], config))
            return true;
    return false;
}

bool dpt_plan_strategy_has_copies(const struct dpt_config *config, int machines)
{
    const struct dpt_strategy_traits traits = dpt_strategy_traits(config);
    const bool single = traits.state == DPT_STATE_SHARDED || traits.state == DPT_STATE_FIRST;
    return machines > 1 && (!single || traits.shadow);
}
