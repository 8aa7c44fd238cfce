/* All weights of the model at a path that the command line names: of a checkpoint, of a
 * checkpoint's adapters merged into their base, or of a Hugging Face folder. */
#ifndef DPT_WORKER_CKPT_WEIGHTS_H
#define DPT_WORKER_CKPT_WEIGHTS_H

#include "base/config.h"
#include "worker/model/hf_config.h"
#include "worker/model/model.h"

struct dpt_ckpt_weights;

/* Opens a Hugging Face folder (config.json and model.safetensors or shards) if `path` is one, else
 * the checkpoint of dpt_ckpt_open. `base` is the folder of the adapters' base; NULL:
 * model.init_from of the run.
 *
 * *ret_config is the config of the model with all weights, in fp32, and of its tokenizer. The
 * tokenizer of a folder is tokenizer.json, or merges.txt and vocab.json, or bytes if the model has
 * 256 tokens; if it is unknown, data.kind is tokens. DPT_ECONFIG: the model predicts labels, the
 * folder has adapters but no model, or the folder is faulty. DPT_EINVAL: a base was given, but
 * there are no adapters. The caller owns *ret and uses it in one thread. */
DPT_MUST_USE enum dpt_status dpt_ckpt_weights_open(const char *path, const char *base,
                                                   struct dpt_config *ret_config,
                                                   struct dpt_ckpt_weights **ret,
                                                   struct dpt_err *err);
void dpt_ckpt_weights_close(struct dpt_ckpt_weights **weights);

/* The step of the checkpoint; -1: the weights are from a folder. */
int64_t dpt_ckpt_weights_step(const struct dpt_ckpt_weights *weights);

/* Finds the tokens that end a text: those of the folder (dpt_hf_config_ends) or, for a checkpoint,
 * those of the folder of its run's first weights, if that folder exists and the run has its tokens.
 * n 0: there are none. Errors as for dpt_hf_config_ends. */
DPT_MUST_USE enum dpt_status dpt_ckpt_weights_ends(const struct dpt_ckpt_weights *weights,
                                                   struct dpt_hf_ends *ret, struct dpt_err *err);

/* Reads all weights to `flat`, which has dpt_model_flat_numel elements. Call this once. The model
 * is that of *ret_config; its context may be another one if dpt_model_takes_any_context. Errors
 * name the file and the tensor. */
DPT_MUST_USE enum dpt_status dpt_ckpt_weights_read(struct dpt_ckpt_weights *weights,
                                                   const struct dpt_model *model, float *flat,
                                                   struct dpt_err *err);

#endif
