/* What a folder that is named for its weights has in it. */
#ifndef DPT_WORKER_WEIGHTS_FOLDER_KIND_H
#define DPT_WORKER_WEIGHTS_FOLDER_KIND_H

#include "base/err.h"

#include <stdbool.h>

#define DPT_NAME_SINGLE "model.safetensors"

/* Whether folder `dir` has an entry of this name. */
bool dpt_folder_has(const char *dir, const char *name);

/* Whether `dir` has the files of a model's weights, or an index that names them. */
bool dpt_folder_has_model(const char *dir);

/* Whether `dir` has LoRA adapters, by adapter_config.json, and no model: the folder of a checkpoint
 * or of an export with train.lora, or one of PEFT's. */
bool dpt_folder_has_adapters(const char *dir);

/* Refuses, with DPT_ECONFIG and what to name in place of it, a path that is no folder, as the name
 * of a model in the hub is, a folder of adapters, and checkpoint.dir of a run. Else errors of
 * looking for its checkpoints. Opening the files finds other faults. */
DPT_MUST_USE enum dpt_status dpt_folder_check_model(const char *dir, struct dpt_err *err);

#endif
