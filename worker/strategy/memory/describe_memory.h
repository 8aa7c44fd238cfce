/* The tensors in an allocation of a rank, for a snapshot of its memory
 * (worker/trace/memory_snapshot.h). Main thread, in a generation. */
#ifndef DPT_WORKER_STRATEGY_MEMORY_DESCRIBE_MEMORY_H
#define DPT_WORKER_STRATEGY_MEMORY_DESCRIBE_MEMORY_H

#include "worker/model/model.h"
#include "worker/trace/memory_snapshot.h"

struct dpt_strategy;

/* Fills `content` if the allocation at `piece` is the strategy's: weights, masters, moments,
 * gradients and sums, whole or a shard, and packed forms. A part of a tensor has its elements
 * behind its name: "transformer.wte.weight [0:4096]". Else leaves `content`. */
void dpt_describe_strategy(const struct dpt_strategy *s, const struct dpt_memory_piece *piece,
                           struct dpt_snapshot_content *content);

/* Fills `content` with all tensors of the model, at their places in the flat vector; an element has
 * `width` bytes. */
void dpt_describe_flat(const struct dpt_model *model, size_t width,
                       struct dpt_snapshot_content *content);

#endif
