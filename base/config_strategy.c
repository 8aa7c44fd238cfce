/* The strategy: its defaults, and impossible combinations of its keys. */
#include "base/config_table.h"

#include "base/strategy_traits.h"

/* Only one unit is gathered at a time, so the next unit has no room while this one is computed. */
static bool has_one_place(const struct dpt_config *c)
{
    return dpt_strategy_traits(c).weights == DPT_WEIGHTS_UNITS &&
           c->strategy.gathered_units_max == 1;
}

const char *dpt_config_strategy_word(const struct dpt_config *config)
{
    return config->strategy.sharding == DPT_SHARDING_NULL
               ? config->strategy.name
               : dpt_config_key_choice(dpt_config_key("strategy.sharding"), config)->name;
}

void dpt_config_resolve_strategy(struct dpt_config_load *load)
{
    struct dpt_config *c = &load->config;
    if (!dpt_config_given(load, "strategy.first_bucket_mib") &&
        c->strategy.first_bucket_mib > c->strategy.bucket_mib)
        c->strategy.first_bucket_mib = c->strategy.bucket_mib;
    if (dpt_strategy_traits(c).takes_sharding && !dpt_config_given(load, "strategy.sharding"))
        c->strategy.sharding = DPT_SHARDING_FULL_SHARD;
    if (!dpt_config_given(load, "strategy.prefetch") && (has_one_place(c) || !c->strategy.overlap))
        c->strategy.prefetch = false;
}

static enum dpt_status check_redundancy(const struct dpt_config_load *load, struct dpt_err *err)
{
    const struct dpt_config *c = &load->config;
    const struct dpt_strategy_traits traits = dpt_strategy_traits(c);
    const bool hybrid = traits.state == DPT_STATE_PER_NODE, shadow = traits.shadow;
    if (shadow && traits.state == DPT_STATE_FIRST)
        return dpt_refuse_both(load, "strategy.redundancy", "strategy.name", err,
                               "strategy.redundancy shadow keeps a second copy of shards, but with "
                               "dp one rank holds the whole state; write none, or strategy.name "
                               "ddp");
    if (traits.state == DPT_STATE_FIRST && c->cluster.nnodes_max > 1)
        return dpt_refuse_both(load, "strategy.name", "cluster.nnodes", err,
                               "strategy.name dp is data parallelism within one machine, as "
                               "torch.nn.DataParallel, but cluster.nnodes is up to %d; write "
                               "nnodes 1 with gpus_per_node, or strategy.name ddp",
                               c->cluster.nnodes_max);
    if (shadow && traits.state != DPT_STATE_SHARDED)
        return dpt_refuse_both(load, "strategy.redundancy", "strategy.name", err,
                               "strategy.redundancy shadow keeps a second copy of shards, but with "
                               "%s every %s holds the whole state already; write none",
                               hybrid ? "hybrid_shard" : c->strategy.name,
                               hybrid ? "node" : "rank");
    if (shadow && c->cluster.nnodes_max < 2)
        return dpt_refuse_both(load, "strategy.redundancy", "cluster.nnodes", err,
                               "strategy.redundancy shadow keeps each shard on another node too, "
                               "but cluster.nnodes is 1; write none, or nnodes 2");
    if (hybrid && c->cluster.nnodes_max < 2)
        return dpt_refuse_both(load, "strategy.sharding", "cluster.nnodes", err,
                               "strategy.sharding hybrid_shard replicates across nodes, but "
                               "cluster.nnodes is 1; write full_shard, or nnodes 2");
    return DPT_OK;
}

/* The variants of ddp for teaching differ only in when they reduce gradients. */
static enum dpt_status check_overlap(const struct dpt_config_load *load, struct dpt_err *err)
{
    const struct dpt_config *c = &load->config;
    const struct dpt_strategy_traits traits = dpt_strategy_traits(c);
    if (!c->strategy.overlap && !traits.takes_no_overlap)
        return dpt_refuse_both(load, "strategy.overlap", "strategy.name", err,
                               "strategy.overlap false reduces after the backward pass, but %s is "
                               "the strategy that reduces in it; write true, or strategy.name %s",
                               c->strategy.name,
                               traits.buckets.tensors ? "simple_ga" : "ddp or simple_ga");
    return DPT_OK;
}

static enum dpt_status check_prefetch(const struct dpt_config_load *load, struct dpt_err *err)
{
    const struct dpt_config *c = &load->config;
    if (c->strategy.prefetch && has_one_place(c))
        return dpt_refuse_both(load, "strategy.prefetch", "strategy.gathered_units_max", err,
                               "strategy.prefetch gathers a unit while the one before it is "
                               "computed, but strategy.gathered_units_max is 1, room for one unit; "
                               "set it to 2, or prefetch to false");
    if (c->strategy.prefetch && !c->strategy.overlap &&
        dpt_strategy_traits(c).state != DPT_STATE_REPLICATED)
        return dpt_refuse_both(
            load, "strategy.prefetch", "strategy.overlap", err,
            "strategy.prefetch gathers weights while others are computed, but strategy.overlap "
            "false waits for all that is sent; write true there, or prefetch: false");
    return DPT_OK;
}

/* The word of train.reduction that leaves the order of addition open. */
static const char *open_reduction(const struct dpt_config *c)
{
    return c->train.reduction == DPT_REDUCTION_RING ? "ring" : "fast";
}

/* A ring gives every rank the whole sum, through the hosts' memory. */
static enum dpt_status check_ring(const struct dpt_config_load *load, struct dpt_err *err)
{
    const struct dpt_config *c = &load->config;
    const struct dpt_strategy_traits traits = dpt_strategy_traits(c);
    if (traits.by_ring && traits.state != DPT_STATE_REPLICATED)
        return dpt_refuse_both(
            load, "train.reduction", "strategy.name", err,
            "train.reduction ring gives the whole gradient to every rank, and strategy.name %s "
            "keeps shards of it; write ddp there, or fast here",
            c->strategy.name);
    if (traits.by_ring && c->cluster.device == DPT_DEVICE_CUDA)
        return dpt_refuse_both(
            load, "train.reduction", "cluster.device", err,
            "train.reduction ring goes through the hosts' memory, and with cluster.device cuda "
            "NCCL chooses rings or trees itself; write fast here, or cpu there");
    return DPT_OK;
}

/* train.reduction fast and ring have no fixed order of addition. Only a strategy whose ranks add
 * their own slots supports them. */
static enum dpt_status check_reduction(const struct dpt_config_load *load, struct dpt_err *err)
{
    const struct dpt_config *c = &load->config;
    const struct dpt_strategy_traits traits = dpt_strategy_traits(c);
    if (!traits.order_open)
        return DPT_OK;
    if (!traits.takes_open_order || traits.shadow)
        return dpt_refuse_both(
            load, "train.reduction", "strategy.name", err,
            "train.reduction %s is not supported with strategy.name %s%s: every slot's gradient "
            "is sent to its owners at once; write canonical",
            open_reduction(c), c->strategy.name, traits.takes_open_order ? " and shadows" : "");
    if (c->train.accumulate == DPT_ACCUMULATE_REDUCE)
        return dpt_refuse_both(
            load, "train.accumulate", "train.reduction", err,
            "train.accumulate reduce is an order of addition, and train.reduction %s leaves it "
            "open; write auto, or reduction canonical",
            open_reduction(c));
    if (c->train.lanes != DPT_AUTO)
        return dpt_refuse_both(
            load, "train.lanes", "train.reduction", err,
            "train.lanes (%d) are sums of the canonical order, and train.reduction %s has one a "
            "rank; write auto, or reduction canonical",
            c->train.lanes, open_reduction(c));
    return check_ring(load, err);
}

/* With compression the gradient of each slot (`reduce`) or of each lane (`local`) is rounded, in
 * every world. */
static enum dpt_status check_compression(const struct dpt_config_load *load, struct dpt_err *err)
{
    const struct dpt_config *c = &load->config;
    if (c->strategy.compression == DPT_COMPRESSION_NONE)
        return DPT_OK;
    const struct dpt_strategy_traits traits = dpt_strategy_traits(c);
    const bool powersgd = traits.powersgd, local = traits.order == DPT_ACCUMULATE_LOCAL;
    if (powersgd && !traits.takes_powersgd)
        return dpt_refuse_both(
            load, "strategy.compression", "strategy.name", err,
            "strategy.compression powersgd needs the whole gradient on every rank, which %s does "
            "not give; write strategy.name ddp, or compression none, bf16 or fp16",
            c->strategy.name);
    if (powersgd && !local)
        return dpt_refuse_both(
            load, "strategy.compression", "train.accumulate", err,
            "strategy.compression powersgd compresses the sum of a rank's slots once a step, and "
            "train.accumulate reduce sends each; write local there, or none, bf16 or fp16 here");
    if (powersgd && c->train.precision == DPT_PRECISION_FP16)
        return dpt_refuse_both(load, "strategy.compression", "train.precision", err,
                               "strategy.compression powersgd adds the unsent part of a gradient "
                               "to the next step, whose loss may have another scale with "
                               "train.precision fp16; write bf16 or fp32 there");
    if (!traits.takes_16_bits)
        return dpt_refuse_both(load, "strategy.compression", "strategy.name", err,
                               "strategy.compression is for ddp, zero1 to zero3 and fsdp, not for "
                               "%s; write ddp there, or none here",
                               c->strategy.name);
    if (traits.order_open)
        return dpt_refuse_both(
            load, "strategy.compression", "train.reduction", err,
            "strategy.compression rounds in a fixed order, which train.reduction %s gives up; "
            "write canonical there, or none here",
            open_reduction(c));
    const int slots = dpt_config_slots(c), lanes = dpt_config_lanes(c);
    if (traits.by_node)
        return dpt_refuse_both(
            load, "strategy.compression", "train.accumulate", err,
            "strategy.compression is not of hybrid_shard under train.accumulate local, whose nodes "
            "send fp32 sums once a step; write accumulate: reduce, or compression: none");
    if (local && traits.route != DPT_GRADIENT_LANES && lanes != slots)
        return dpt_refuse_both(load, "strategy.compression", "train.accumulate", err,
                               "strategy.compression rounds whole lanes under train.accumulate "
                               "local, but this strategy sends slots, %d of them for %d lanes; "
                               "write train.lanes: %d, accumulate: reduce, or compression: none",
                               slots, lanes, slots);
    return DPT_OK;
}

static enum dpt_status check_offload(const struct dpt_config_load *load, struct dpt_err *err)
{
    const struct dpt_config *c = &load->config;
    if (c->strategy.offload == DPT_OFFLOAD_OPTIMIZER && c->cluster.device != DPT_DEVICE_CUDA)
        return dpt_refuse_both(
            load, "strategy.offload", "cluster.device", err,
            "strategy.offload optimizer keeps on the host what a GPU need not hold, and without "
            "cluster.device cuda all is on the host; write none");
    const struct dpt_strategy_traits traits = dpt_strategy_traits(c);
    if (!traits.on_device)
        return DPT_OK;
    if (!traits.takes_device)
        return dpt_refuse_both(
            load, "strategy.offload", "strategy.name", err,
            "strategy.offload none keeps the training state on the GPU, which simple, ddp's other "
            "teaching variants under train.accumulate reduce, and powersgd do not support; write "
            "optimizer there, or cluster.device cpu");
    if (!traits.by_nccl && !traits.takes_host_backend)
        return dpt_refuse_both(
            load, "cluster.backend", "strategy.name", err,
            "cluster.backend host supports only ddp and its variants under train.accumulate local; "
            "write nccl, or strategy.offload: optimizer");
    return DPT_OK;
}

static enum dpt_status check_arithmetic(const struct dpt_config_load *load, struct dpt_err *err)
{
    const struct dpt_config *c = &load->config;
    if (c->train.precision == DPT_PRECISION_TF32 && c->cluster.device != DPT_DEVICE_CUDA)
        return dpt_refuse_both(load, "train.precision", "cluster.device", err,
                               "train.precision tf32 needs a GPU, and cluster.device is not cuda; "
                               "write cuda there, or fp32 here");
    if (c->train.on_divergence == DPT_DIVERGENCE_SKIP && dpt_strategy_traits(c).powersgd)
        return dpt_refuse_both(
            load, "train.on_divergence", "strategy.compression", err,
            "train.on_divergence skip leaves a gradient out, but strategy.compression powersgd "
            "would add it to the next step; write stop here, or bf16 there");
    return DPT_OK;
}

enum dpt_status dpt_config_check_strategy(const struct dpt_config_load *load, struct dpt_err *err)
{
    const struct dpt_config *c = &load->config;
    const bool takes_sharding = dpt_strategy_traits(c).takes_sharding;
    if (c->strategy.sharding != DPT_SHARDING_NULL && !takes_sharding)
        return dpt_refuse_both(load, "strategy.sharding", "strategy.name", err,
                               "strategy.sharding says what fsdp shards, but strategy.name is %s; "
                               "write fsdp there, or null here",
                               c->strategy.name);
    if (c->strategy.sharding == DPT_SHARDING_NULL && takes_sharding)
        return dpt_refuse_both(load, "strategy.sharding", "strategy.name", err,
                               "strategy.sharding is null with strategy.name fsdp; name what it "
                               "shards, or leave the key out for full_shard");
    DPT_TRY(check_arithmetic(load, err));
    DPT_TRY(check_overlap(load, err));
    DPT_TRY(check_prefetch(load, err));
    DPT_TRY(check_reduction(load, err));
    DPT_TRY(check_compression(load, err));
    DPT_TRY(check_offload(load, err));
    return check_redundancy(load, err);
}
