/* The kind of a folder of weights, told by the files in it. */
#ifndef DPT_WORKER_WEIGHTS_HF_FOLDER_KIND_H
#define DPT_WORKER_WEIGHTS_HF_FOLDER_KIND_H

#include "base/err.h"

#include <stdbool.h>

#define DPT_NAME_SINGLE "model.safetensors"

/* Whether folder `dir` has an entry of this name. */
bool dpt_hf_folder_has(const char *dir, const char *name);

/* Whether `dir` has model.safetensors or an index of shards. */
bool dpt_hf_folder_has_model(const char *dir);

/* Whether `dir` has LoRA adapters (adapter_config.json) and no model: a checkpoint or an export
 * with train.lora, or a folder of PEFT's. */
bool dpt_hf_folder_has_adapters(const char *dir);

/* DPT_ECONFIG: the path is no folder (for example the name of a model of the hub), the folder has
 * only adapters, or it is checkpoint.dir of a run; the error says what to name instead. Other
 * errors are those of dpt_checkpoint_newest. This function does not find other faults of the
 * folder; opening its files finds them. */
DPT_MUST_USE enum dpt_status dpt_hf_folder_check_model(const char *dir, struct dpt_err *err);

#endif
