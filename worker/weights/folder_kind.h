/* The kind of a folder of weights, by the files in it. */
#ifndef DPT_WORKER_WEIGHTS_FOLDER_KIND_H
#define DPT_WORKER_WEIGHTS_FOLDER_KIND_H

#include "base/err.h"

#include <stdbool.h>

#define DPT_NAME_SINGLE "model.safetensors"

/* Whether folder `dir` has an entry of this name. */
bool dpt_folder_has(const char *dir, const char *name);

/* Whether `dir` has model.safetensors or an index of shards. */
bool dpt_folder_has_model(const char *dir);

/* Whether `dir` has LoRA adapters (adapter_config.json) and no model: a checkpoint or an export
 * with train.lora, or a folder of PEFT's. */
bool dpt_folder_has_adapters(const char *dir);

/* DPT_ECONFIG: the path is no folder (such as the name of a model of the hub), has only adapters,
 * or is checkpoint.dir of a run; the error says what to name instead. Other errors are those of
 * dpt_checkpoint_newest. Other faults of the folder are found when its files are opened. */
DPT_MUST_USE enum dpt_status dpt_folder_check_model(const char *dir, struct dpt_err *err);

#endif
