/* adapter_config.json of Hugging Face's PEFT, the LoraConfig of a run with train.lora. */
#ifndef DPT_WORKER_MODEL_PEFT_CONFIG_H
#define DPT_WORKER_MODEL_PEFT_CONFIG_H

#include "worker/model/model.h"

/* The text of adapter_config.json of `model`, a model with adapters made from this config. It names
 * the base by the absolute path of model.init_from, or by the config's value if that is not a
 * folder on this machine. The caller owns *ret_json. */
DPT_MUST_USE enum dpt_status dpt_peft_config_print(const struct dpt_config *config,
                                                   const struct dpt_model *model, char **ret_json,
                                                   struct dpt_err *err);

#endif
