/* The description of a strategy, computed from the config in one place. Every reader (the config's
 * checks, plans, strategies, memory formulas, the agent) uses it. Pure. */
#ifndef DPT_BASE_STRATEGY_TRAITS_H
#define DPT_BASE_STRATEGY_TRAITS_H

#include "base/config.h"

/* The division of the training state (masters, moments) among ranks. */
enum dpt_state_scope {
    DPT_STATE_REPLICATED, /* every rank has the whole state */
    DPT_STATE_SHARDED,    /* every rank has a shard; all ranks together have one whole state */
    DPT_STATE_PER_NODE,   /* every rank has a shard; the ranks of each node have one whole state */
    DPT_STATE_FIRST       /* the rank at position 0 has the whole state; the others have none */
};

/* The weights that a rank holds. */
enum dpt_weights_plan {
    DPT_WEIGHTS_HELD, /* all weights, always */
    DPT_WEIGHTS_ONCE, /* gathered before their first use in a step, kept to its end */
    DPT_WEIGHTS_UNITS /* gathered for each use, freed after it */
};

/* The reduction of the slots' gradients to the gradient of the step. */
enum dpt_gradient_route {
    DPT_GRADIENT_LANES,  /* a rank adds its slots to lanes; sums of lanes are sent once per step */
    DPT_GRADIENT_UNITS,  /* each slot's gradient is sent to the owners of its parts, unit by unit */
    DPT_GRADIENT_BUCKETS /* like UNITS, but bucket by bucket, from one flat vector */
};

/* The buckets of a gradient in one flat vector (LANES, BUCKETS): their size, and when they are sent
 * and waited for. */
struct dpt_bucket_traits {
    bool tensors;     /* a bucket is one tensor; else it has strategy.bucket_mib */
    bool small_first; /* the first bucket has strategy.first_bucket_mib */
    /* A bucket is sent when backward announces its last tensor; else after the backward pass. */
    bool announced;
    /* The main thread waits for each bucket when it is sent; else for all before it applies the
     * step. */
    bool waits;
    bool each_slot; /* the sum is returned after every micro-batch; else once per step */
};

struct dpt_strategy_traits {
    bool known; /* a strategy of this name exists */
    /* strategy.name and strategy.sharding: without a sharding fsdp has FULL_SHARD, its default. */
    const char *name;
    enum dpt_sharding sharding;
    enum dpt_state_scope state;
    enum dpt_weights_plan weights;
    enum dpt_accumulate order; /* LOCAL: lanes and their tree; REDUCE: slot after slot */
    enum dpt_gradient_route route;
    struct dpt_bucket_traits buckets;
    bool by_node;       /* each node adds its lanes; nodes exchange their sums once per step */
    bool shadow;        /* a rank of another node keeps a copy of each shard and applies the step */
    bool order_open;    /* train.reduction: fast, ring */
    bool by_ring;       /* train.reduction: ring */
    bool powersgd;      /* gradients are approximated by matrices of low rank */
    bool lane_per_rank; /* a world has one lane per rank; else the config's lanes */
    /* The precision that gradients are rounded to, and sent in between hosts: FP32 (no rounding),
     * BF16 or FP16. */
    enum dpt_precision wire;
    bool on_device;   /* a GPU keeps the state and applies the steps */
    bool by_nccl;     /* GPUs exchange gradients by NCCL */
    bool may_pack;    /* weights may also be kept in the layout of matrix products */
    bool warns_slots; /* a shadow makes ranks send every slot, not sums of lanes; they warn of it */

    /* Settings that the strategy supports, for the config's checks. */
    bool takes_sharding;   /* strategy.sharding */
    bool takes_no_overlap; /* strategy.overlap: false */
    bool takes_open_order; /* train.reduction: fast, ring */
    bool takes_16_bits;    /* strategy.compression bf16 and fp16 */
    bool takes_powersgd;
    bool takes_device;       /* state on a GPU */
    bool takes_host_backend; /* with takes_device: gradients may be reduced in the host's memory */
};

/* The traits of any config, checked or not. */
struct dpt_strategy_traits dpt_strategy_traits(const struct dpt_config *config);

/* Whether the word is the name of a strategy that divides the state, or a word of
 * strategy.sharding.
 */
bool dpt_strategy_divides_state(const char *word);

#endif
