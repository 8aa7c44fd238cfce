/* Weights from a checkpoint: its tensors, and, for a run with train.lora, the weights of the whole
 * model, W + (alpha / rank) B A (docs/lora.md). */
#ifndef DPT_WORKER_WEIGHTS_MERGED_H
#define DPT_WORKER_WEIGHTS_MERGED_H

#include "checkpoint/checkpoint.h"
#include "worker/model/model.h"

/* Reads elements [first, end) of a tensor of the checkpoint. */
DPT_MUST_USE enum dpt_status dpt_checkpoint_weights(struct dpt_checkpoint *checkpoint,
                                                    const struct dpt_param *param, int64_t first,
                                                    int64_t end, float *ret, struct dpt_err *err);

struct dpt_merged;

/* Opens the base in `folder` for a checkpoint whose config has train.lora. Borrows all arguments.
 * Errors are those of dpt_published_open. Owned by the caller, one thread at a time. */
DPT_MUST_USE enum dpt_status dpt_merged_open(const struct dpt_config *config, const char *folder,
                                             struct dpt_checkpoint *checkpoint,
                                             struct dpt_merged **ret, struct dpt_err *err);
void dpt_merged_close(struct dpt_merged **merged);

/* The model with all weights. */
const struct dpt_model *dpt_merged_model(const struct dpt_merged *merged);

/* Reads elements [first, end) of the model's tensor `param`. The base is hashed while it is read,
 * so the caller must read all elements of all tensors in order, each once. `end` is a tensor's end
 * or a multiple of DPT_WEIGHTS_HASH_BLOCK. */
DPT_MUST_USE enum dpt_status dpt_merged_read(struct dpt_merged *merged, int param, int64_t first,
                                             int64_t end, float *ret, struct dpt_err *err);

/* Compares the hash of the base with train.lora.base_hash. Call it after all elements were read and
 * before they are used. DPT_ECONFIG: the hashes differ. */
DPT_MUST_USE enum dpt_status dpt_merged_check(const struct dpt_merged *merged, struct dpt_err *err);

#endif
