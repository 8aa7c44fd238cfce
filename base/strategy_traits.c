/* The table of strategies, and what follows from a row of it (strategy_traits.h). */
#include "base/strategy_traits.h"

#include <string.h>

struct row {
    const char *name;
    enum dpt_sharding sharding; /* NULL: the strategy has no sharding */
    enum dpt_state_scope state;
    enum dpt_weights_plan weights;
    enum dpt_accumulate by_default; /* the value of train.accumulate: auto */
    bool lanes;                     /* with accumulate: local, a rank adds its own slots */
    bool buckets; /* slots that are not added are sent bucket by bucket; else unit by unit */
    bool takes_16_bits, takes_powersgd;
    struct dpt_bucket_traits bucket;
};

#define NO         DPT_SHARDING_NULL
#define REPLICATED .state = DPT_STATE_REPLICATED, .weights = DPT_WEIGHTS_HELD
#define SHARDED(w) .state = DPT_STATE_SHARDED, .weights = DPT_WEIGHTS_##w, .takes_16_bits = true
#define LOCAL      .by_default = DPT_ACCUMULATE_LOCAL
#define REDUCE     .by_default = DPT_ACCUMULATE_REDUCE
#define LIKE_DDP   .bucket = {.small_first = true, .announced = true}

/* clang-format off */
static const struct row rows[] = {
    {"ddp", NO, REPLICATED, LOCAL, .lanes = true, .takes_16_bits = true, .takes_powersgd = true,
     LIKE_DDP},
    {"simple", NO, REPLICATED, REDUCE, .buckets = true,
     .bucket = {.tensors = true, .waits = true, .each_slot = true}},
    {"simple_ga", NO, REPLICATED, LOCAL, .lanes = true, .buckets = true,
     .bucket = {.tensors = true, .waits = true}},
    {"hook", NO, REPLICATED, LOCAL, .lanes = true, .buckets = true,
     .bucket = {.tensors = true, .announced = true, .waits = true}},
    {"async", NO, REPLICATED, LOCAL, .lanes = true, .buckets = true,
     .bucket = {.tensors = true, .announced = true}},
    {"bucket_async", NO, REPLICATED, LOCAL, .lanes = true, .buckets = true,
     .bucket = {.announced = true}},
    {"zero1", NO, SHARDED(ONCE), LOCAL, .lanes = true, LIKE_DDP},
    {"zero2", NO, SHARDED(ONCE), REDUCE, LIKE_DDP},
    {"zero3", NO, SHARDED(UNITS), REDUCE, LIKE_DDP},
    {"fsdp", DPT_SHARDING_NO_SHARD, REPLICATED, REDUCE, .lanes = true, .takes_16_bits = true,
     LIKE_DDP},
    {"fsdp", DPT_SHARDING_SHARD_GRAD_OP, SHARDED(ONCE), REDUCE, LIKE_DDP},
    {"fsdp", DPT_SHARDING_FULL_SHARD, SHARDED(UNITS), REDUCE, LIKE_DDP},
    {"fsdp", DPT_SHARDING_HYBRID_SHARD, .state = DPT_STATE_PER_NODE, .weights = DPT_WEIGHTS_UNITS,
     .takes_16_bits = true, LOCAL, LIKE_DDP},
    {"fsdp", NO, SHARDED(ONCE), REDUCE, LIKE_DDP}, /* without sharding, which the config refuses */
};
/* clang-format on */

static const struct row *find_row(const struct dpt_config *config)
{
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (strcmp(rows[i].name, config->strategy.name) == 0 &&
            (strcmp(rows[i].name, "fsdp") != 0 || rows[i].sharding == config->strategy.sharding))
            return &rows[i];
    return NULL;
}

static enum dpt_accumulate order_of(const struct dpt_config *config, const struct row *row)
{
    if (config->train.accumulate != DPT_ACCUMULATE_AUTO)
        return config->train.accumulate;
    return config->train.reduction == DPT_REDUCTION_FAST ? DPT_ACCUMULATE_LOCAL : row->by_default;
}

struct dpt_strategy_traits dpt_strategy_traits(const struct dpt_config *config)
{
    const struct row *found = find_row(config), *row = found ? found : &rows[0];
    const enum dpt_accumulate order = order_of(config, row);
    const bool local = order == DPT_ACCUMULATE_LOCAL,
               replicated = row->state == DPT_STATE_REPLICATED;
    struct dpt_strategy_traits t = {.known = found != NULL,
                                    .state = row->state,
                                    .weights = row->weights,
                                    .order = order,
                                    .buckets = row->bucket,
                                    .by_node = row->state == DPT_STATE_PER_NODE && local,
                                    .shadow = config->strategy.redundancy == DPT_REDUNDANCY_SHADOW,
                                    .order_open = config->train.reduction == DPT_REDUCTION_FAST,
                                    .powersgd =
                                        config->strategy.compression == DPT_COMPRESSION_POWERSGD,
                                    .on_device = config->cluster.device == DPT_DEVICE_CUDA &&
                                                 config->strategy.offload == DPT_OFFLOAD_NONE,
                                    .takes_16_bits = row->takes_16_bits,
                                    .takes_powersgd = row->takes_powersgd};
    const bool rounded = config->strategy.compression == DPT_COMPRESSION_BF16 ||
                         config->strategy.compression == DPT_COMPRESSION_FP16;
    t.wire_bytes = rounded ? 2 : 4;
    t.by_nccl = t.on_device && config->cluster.backend == DPT_BACKEND_NCCL;
    t.buckets.announced = t.buckets.announced && config->strategy.overlap;
    /* The holder of a shadow needs each sum exactly as the owner of the shard makes it. */
    const bool sends_lanes = local && row->lanes;
    t.warns_slots = sends_lanes && !replicated && t.shadow;
    if (sends_lanes && !t.warns_slots)
        t.route = DPT_GRADIENT_LANES;
    else
        t.route = row->buckets ? DPT_GRADIENT_BUCKETS : DPT_GRADIENT_UNITS;
    t.may_pack = replicated && t.route != DPT_GRADIENT_UNITS;
    t.takes_open_order = row->lanes;
    t.takes_device = t.route != DPT_GRADIENT_BUCKETS && !t.powersgd;
    t.takes_host_backend = replicated && t.route == DPT_GRADIENT_LANES && !t.powersgd;
    return t;
}
