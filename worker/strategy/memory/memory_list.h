/* The memory of weights, state and gradients of a strategy in a generation, as one list of {tag,
 * bytes}: allocations and formulas (memory_formula.h) read it. Pure. */
#ifndef DPT_WORKER_STRATEGY_MEMORY_MEMORY_LIST_H
#define DPT_WORKER_STRATEGY_MEMORY_MEMORY_LIST_H

#include "base/account.h"
#include "worker/model/model.h"
#include "worker/plan/partition.h"

enum dpt_memory_item {
    /* In the host's registered memory. */
    DPT_ITEM_OWN_PARAM,
    DPT_ITEM_OWN_M,
    DPT_ITEM_OWN_V,
    DPT_ITEM_SHADOW_PARAM,
    DPT_ITEM_SHADOW_M,
    DPT_ITEM_SHADOW_V,
    DPT_ITEM_LANE_FIRST, /* lanes that are reduced in this memory; the first buffer gets the sum */
    DPT_ITEM_LANES,
    DPT_ITEM_REGISTERED_COUNT,
    /* In the memory where the state is updated: the host's or a device's. */
    DPT_ITEM_WHOLE = DPT_ITEM_REGISTERED_COUNT, /* weights of all units */
    DPT_ITEM_COPY,                              /* this rank's shard in the compute dtype */
    DPT_ITEM_GATHERED_TIED,                     /* the buffer of the tied unit */
    DPT_ITEM_GATHERED,
    DPT_ITEM_DEVICE_LANE_FIRST, /* lanes that a device adds */
    DPT_ITEM_DEVICE_LANES,
    DPT_ITEM_APART,         /* a slot's gradient of the unit with `in_parts` */
    DPT_ITEM_GRADIENT_TIED, /* a slot's gradients in waves */
    DPT_ITEM_GRADIENT,
    DPT_ITEM_NARROW_TIED, /* copies of them in 16 bits for other hosts */
    DPT_ITEM_NARROW,
    DPT_ITEM_SUM_FIRST,
    DPT_ITEM_SUMS,
    DPT_ITEM_NARROW_SUM,
    DPT_ITEM_ADDED,    /* this rank's piece of the sum of all nodes */
    DPT_ITEM_APPLIED,  /* the reduced gradient of a replica's shard */
    DPT_ITEM_SHADOWED, /* the shadow's gradient */
    DPT_ITEM_STAGING,  /* gradients that arrive by SCATTER */
    DPT_ITEM_CROSSING, /* sums of nodes that arrive by CROSS */
    DPT_ITEM_COUNT
};

struct dpt_memory_list {
    struct dpt_memory_entry {
        enum dpt_memory_tag tag;
        size_t bytes; /* of each buffer; 0: there is none */
        int n;
    } item[DPT_ITEM_COUNT];
};

/* All borrowed while the list is made. */
struct dpt_memory_place {
    const struct dpt_config *config;
    const struct dpt_model *model;
    const struct dpt_grid *grid;   /* of the model's units */
    const struct dpt_grid *ranges; /* in which gradients are reduced (worker/plan/step_list.h) */
    const struct dpt_partition *part;
};

void dpt_memory_list_make(const struct dpt_memory_place *place, struct dpt_memory_list *ret);

/* Bytes of a compact shard; at least one block, so that a pointer to the memory is valid. */
size_t dpt_memory_list_shard_bytes(const struct dpt_grid *grid, struct dpt_shard shard,
                                   size_t width);

#endif
