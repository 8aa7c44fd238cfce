/* What a strategy is: all that follows from the config, decided in one place. Every reader (the
 * config's checks, plans, strategies, memory formulas, the agent) asks here. Pure. */
#ifndef DPT_BASE_STRATEGY_TRAITS_H
#define DPT_BASE_STRATEGY_TRAITS_H

#include "base/config.h"

/* How the training state (masters, moments) is held. */
enum dpt_state_scope {
    DPT_STATE_REPLICATED, /* every rank has all of it */
    DPT_STATE_SHARDED,    /* every rank has a part; all ranks together have one whole */
    DPT_STATE_PER_NODE    /* every rank has a part; the ranks of each node have one whole */
};

/* When a rank has which weights. */
enum dpt_weights_plan {
    DPT_WEIGHTS_HELD, /* every rank has all of them */
    DPT_WEIGHTS_ONCE, /* gathered before their first use in a step, kept to its end */
    DPT_WEIGHTS_UNITS /* gathered for each use, freed after it */
};

/* How the gradients of slots come to be the gradient of the step. */
enum dpt_gradient_route {
    DPT_GRADIENT_LANES,  /* a rank adds its own slots to lanes; sums of lanes travel once a step */
    DPT_GRADIENT_UNITS,  /* each slot's gradient goes to the owners of its pieces, unit by unit */
    DPT_GRADIENT_BUCKETS /* the same, bucket by bucket, out of one flat vector */
};

/* What is reduced together where all of a gradient is in one flat vector (LANES, BUCKETS), when it
 * is let go, and whether the main thread waits for it. */
struct dpt_bucket_traits {
    bool tensors;     /* each tensor is reduced by itself; else buckets of strategy.bucket_mib */
    bool small_first; /* the first bucket is one of strategy.first_bucket_mib */
    bool announced;   /* let go when backward announces the last tensor of it; else when the whole
                         backward pass is over */
    bool waits;       /* the main thread waits for each where it is let go; else for all of them
                         before the step is applied */
    bool each_slot;   /* the sum comes back after every micro-batch; else once a step */
};

struct dpt_strategy_traits {
    bool known; /* there is a strategy of this name */
    enum dpt_state_scope state;
    enum dpt_weights_plan weights;
    enum dpt_accumulate order; /* LOCAL: lanes and their tree; REDUCE: slot after slot */
    enum dpt_gradient_route route;
    struct dpt_bucket_traits buckets;
    bool by_node;     /* each node adds its own lanes; sums go between nodes once a step */
    bool shadow;      /* a rank of another node keeps each shard too, and applies the same step */
    bool order_open;  /* train.reduction: fast */
    bool powersgd;    /* gradients are approximated by matrices of low rank */
    int wire_bytes;   /* of an element of a gradient between hosts: 4, or 2 if it is rounded */
    bool on_device;   /* a GPU keeps the state and applies the steps */
    bool by_nccl;     /* gradients go between GPUs by NCCL */
    bool may_pack;    /* weights may be kept in the form that products read, too */
    bool warns_slots; /* a shadow makes it send every slot, where it would send sums of lanes */

    /* What the strategy can do, for the config's checks. */
    bool takes_open_order; /* train.reduction: fast has something to gain */
    bool takes_16_bits;    /* strategy.compression bf16 and fp16 */
    bool takes_powersgd;
    bool takes_device;       /* its state may be on a GPU; */
    bool takes_host_backend; /* and its gradients then be reduced in the host's memory */
};

/* Of any config, checked or not. */
struct dpt_strategy_traits dpt_strategy_traits(const struct dpt_config *config);

#endif
