/* config.json of Hugging Face's GPT2LMHeadModel and LlamaForCausalLM, and with labels of their
 * ForSequenceClassification: which of its members is which key of ours. That of a ResNet is our
 * own, for torchvision has none. One table (hf_config.c) writes the file of a checkpoint and reads
 * that of a folder with published weights. */
#ifndef DPT_WORKER_MODEL_HF_CONFIG_H
#define DPT_WORKER_MODEL_HF_CONFIG_H

#include "base/config.h"

/* What `path`, a config.json, says of the model: model.name and the sizes; nothing of dropout,
 * which is training's, and nothing of labels: which head there is, the run decides. DPT_ECONFIG: no
 * config.json of a model that this version has; the line names the file and the member. */
DPT_MUST_USE enum dpt_status dpt_hf_config_read(const char *path, struct dpt_config_said *ret,
                                                struct dpt_err *err);

/* The same keys as the run of a checkpoint had them; `source` says where they were found. */
void dpt_hf_config_said(const struct dpt_config *saved, const char *source,
                        struct dpt_config_said *ret);

/* The text of the config.json of a model of this config, whose files are in `dtype` ("float32").
 * Owned. */
DPT_MUST_USE enum dpt_status dpt_hf_config_print(const struct dpt_config *config, const char *dtype,
                                                 char **ret_json, struct dpt_err *err);

#endif
