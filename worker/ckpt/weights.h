/* All weights of the model that a path on the command line names: the weights of a checkpoint, of a
 * checkpoint's adapters merged into their base, or of a Hugging Face folder. */
#ifndef DPT_WORKER_CKPT_WEIGHTS_H
#define DPT_WORKER_CKPT_WEIGHTS_H

#include "base/config.h"
#include "worker/model/hf_config.h"
#include "worker/model/model.h"

struct dpt_ckpt_weights;

/* Opens a Hugging Face folder (config.json and model.safetensors or shards) if `path` is one, else
 * the checkpoint of dpt_ckpt_open. `base` is the folder of the base of adapters; NULL: that of the
 * run's config.
 *
 * *ret_config is that of the model with all of its weights, in fp32, and its tokenizer's: of a
 * folder tokenizer.json, or merges.txt and vocab.json, or bytes for 256 tokens; where the tokenizer
 * of a folder is not known, data.kind is tokens. DPT_ECONFIG: a model that makes no text, a folder
 * of adapters without a model, or what is wrong with a folder; DPT_EINVAL: a base without adapters.
 * Owned by the caller, one thread. */
DPT_MUST_USE enum dpt_status dpt_ckpt_weights_open(const char *path, const char *base,
                                                   struct dpt_config *ret_config,
                                                   struct dpt_ckpt_weights **ret,
                                                   struct dpt_err *err);
void dpt_ckpt_weights_close(struct dpt_ckpt_weights **weights);

/* The step of the checkpoint; -1: the weights are a folder's. */
int64_t dpt_ckpt_weights_step(const struct dpt_ckpt_weights *weights);

/* The tokens that end a text: those of the folder (dpt_hf_config_ends); of a checkpoint those of
 * the folder that its run began from, if that is there and the run's tokens are the folder's. n 0:
 * none is named. Errors as of dpt_hf_config_ends. */
DPT_MUST_USE enum dpt_status dpt_ckpt_weights_ends(const struct dpt_ckpt_weights *weights,
                                                   struct dpt_hf_ends *ret, struct dpt_err *err);

/* Reads all weights, once, to `flat`, of dpt_model_flat_numel elements. The model is that of
 * *ret_config; its context may differ if dpt_model_takes_any_context. Errors name the file and the
 * tensor.
 */
DPT_MUST_USE enum dpt_status dpt_ckpt_weights_read(struct dpt_ckpt_weights *weights,
                                                   const struct dpt_model *model, float *flat,
                                                   struct dpt_err *err);

#endif
