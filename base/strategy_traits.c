/* The table of strategies, and what follows from a row of it (strategy_traits.h). */
#include "base/strategy_traits.h"

#include "base/config_table.h"

#include <string.h>

struct row {
    const char *name;
    enum dpt_sharding sharding; /* NULL: the strategy has no sharding */
    enum dpt_state_scope state;
    enum dpt_weights_plan weights;
    enum dpt_accumulate by_default; /* the value of train.accumulate: auto */
    bool lanes;                     /* with accumulate: local, a rank adds its own slots */
    /* A variant of ddp for teaching: slots that are not added are sent bucket by bucket, not unit
     * by unit. */
    bool variant;
    bool takes_powersgd;
    struct dpt_bucket_traits bucket;
};

#define NO         DPT_SHARDING_NULL
#define REPLICATED .state = DPT_STATE_REPLICATED, .weights = DPT_WEIGHTS_HELD
#define SHARDED(w) .state = DPT_STATE_SHARDED, .weights = DPT_WEIGHTS_##w
#define PER_NODE   .state = DPT_STATE_PER_NODE, .weights = DPT_WEIGHTS_UNITS
#define FIRST      .state = DPT_STATE_FIRST, .weights = DPT_WEIGHTS_ONCE
#define LOCAL      .by_default = DPT_ACCUMULATE_LOCAL
#define REDUCE     .by_default = DPT_ACCUMULATE_REDUCE
#define LIKE_DDP   .bucket = {.small_first = true, .announced = true}

/* clang-format off */
static const struct row rows[] = {
    {"ddp", NO, REPLICATED, LOCAL, .lanes = true, .takes_powersgd = true, LIKE_DDP},
    {"simple", NO, REPLICATED, REDUCE, .variant = true,
     .bucket = {.tensors = true, .waits = true, .each_slot = true}},
    {"simple_ga", NO, REPLICATED, LOCAL, .lanes = true, .variant = true,
     .bucket = {.tensors = true, .waits = true}},
    {"hook", NO, REPLICATED, LOCAL, .lanes = true, .variant = true,
     .bucket = {.tensors = true, .announced = true, .waits = true}},
    {"async", NO, REPLICATED, LOCAL, .lanes = true, .variant = true,
     .bucket = {.tensors = true, .announced = true}},
    {"bucket_async", NO, REPLICATED, LOCAL, .lanes = true, .variant = true,
     .bucket = {.announced = true}},
    {"dp", NO, FIRST, LOCAL, LIKE_DDP},
    {"zero1", NO, SHARDED(ONCE), LOCAL, .lanes = true, LIKE_DDP},
    {"zero2", NO, SHARDED(ONCE), REDUCE, LIKE_DDP},
    {"zero3", NO, SHARDED(UNITS), REDUCE, LIKE_DDP},
    {"fsdp", DPT_SHARDING_FULL_SHARD, SHARDED(UNITS), REDUCE, LIKE_DDP},
    {"fsdp", DPT_SHARDING_SHARD_GRAD_OP, SHARDED(ONCE), REDUCE, LIKE_DDP},
    {"fsdp", DPT_SHARDING_HYBRID_SHARD, PER_NODE, LOCAL, LIKE_DDP},
    {"fsdp", DPT_SHARDING_NO_SHARD, REPLICATED, REDUCE, .lanes = true, LIKE_DDP},
};
/* clang-format on */

/* The row with the config's name and sharding; else the first row with its name; else NULL. */
static const struct row *find_row(const struct dpt_config *config)
{
    const struct row *found = NULL;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (strcmp(rows[i].name, config->strategy.name) == 0 &&
            (!found || rows[i].sharding == config->strategy.sharding))
            found = &rows[i];
    return found;
}

static enum dpt_accumulate order_of(const struct dpt_config *config, const struct row *row)
{
    if (config->train.accumulate != DPT_ACCUMULATE_AUTO)
        return config->train.accumulate;
    return config->train.reduction != DPT_REDUCTION_CANONICAL ? DPT_ACCUMULATE_LOCAL
                                                              : row->by_default;
}

static const enum dpt_precision wires[] = {[DPT_COMPRESSION_NONE] = DPT_PRECISION_FP32,
                                           [DPT_COMPRESSION_BF16] = DPT_PRECISION_BF16,
                                           [DPT_COMPRESSION_FP16] = DPT_PRECISION_FP16,
                                           [DPT_COMPRESSION_POWERSGD] = DPT_PRECISION_FP32};

struct dpt_strategy_traits dpt_strategy_traits(const struct dpt_config *config)
{
    const struct row *found = find_row(config), *row = found ? found : &rows[0];
    const enum dpt_accumulate order = order_of(config, row);
    const bool local = order == DPT_ACCUMULATE_LOCAL,
               replicated = row->state == DPT_STATE_REPLICATED;
    struct dpt_strategy_traits t = {
        .known = found != NULL,
        .name = row->name,
        .sharding = row->sharding,
        .state = row->state,
        .weights = row->weights,
        .order = order,
        .buckets = row->bucket,
        .by_node = row->state == DPT_STATE_PER_NODE && local,
        .shadow = config->strategy.redundancy == DPT_REDUNDANCY_SHADOW,
        .order_open = config->train.reduction != DPT_REDUCTION_CANONICAL,
        .by_ring = config->train.reduction == DPT_REDUCTION_RING,
        .powersgd = config->strategy.compression == DPT_COMPRESSION_POWERSGD,
        .wire = wires[config->strategy.compression],
        .on_device = config->cluster.device == DPT_DEVICE_CUDA &&
                     config->strategy.offload == DPT_OFFLOAD_NONE,
        .takes_sharding = row->sharding != NO,
        .takes_no_overlap = !row->variant || !row->bucket.announced,
        .takes_open_order = row->lanes,
        .takes_16_bits = !row->variant,
        .takes_powersgd = row->takes_powersgd};
    t.lane_per_rank = t.order_open || t.powersgd;
    t.by_nccl = t.on_device && config->cluster.backend == DPT_BACKEND_NCCL;
    /* The holder of a shadow needs each sum exactly as the owner of the shard makes it. */
    const bool sends_lanes = local && row->lanes;
    t.warns_slots = sends_lanes && !replicated && t.shadow;
    if (sends_lanes && !t.warns_slots)
        t.route = DPT_GRADIENT_LANES;
    else
        t.route = row->variant ? DPT_GRADIENT_BUCKETS : DPT_GRADIENT_UNITS;
    t.buckets.announced =
        t.buckets.announced && config->strategy.overlap && t.route != DPT_GRADIENT_UNITS;
    t.may_pack = replicated && t.route != DPT_GRADIENT_UNITS;
    t.takes_device = t.route != DPT_GRADIENT_BUCKETS && !t.powersgd;
    t.takes_host_backend = replicated && t.route == DPT_GRADIENT_LANES && !t.powersgd;
    return t;
}

bool dpt_strategy_divides_state(const char *word)
{
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (strcmp(word, rows[i].name) == 0 &&
            (rows[i].state == DPT_STATE_SHARDED || rows[i].state == DPT_STATE_PER_NODE))
            return true;
    const struct dpt_choice *choice = dpt_config_key("strategy.sharding")->choices;
    while (choice->name && (choice->name[0] == '\0' || strcmp(word, choice->name) != 0))
        choice++;
    return choice->name != NULL;
}
