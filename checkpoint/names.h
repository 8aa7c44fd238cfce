/* Names inside a checkpoint folder: every name is printed and parsed here. */
#ifndef DPT_CHECKPOINT_NAMES_H
#define DPT_CHECKPOINT_NAMES_H

#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

enum { DPT_CHECKPOINT_NAME_BYTES = 160, DPT_CHECKPOINT_ATTEMPT_BYTES_MAX = 64 };

#define DPT_NAME_MANIFEST  "MANIFEST.json"
#define DPT_NAME_INDEX     "model.safetensors.index.json"
#define DPT_NAME_CONFIG    "config.json"
#define DPT_NAME_STATE     "state.json"
#define DPT_NAME_OPTIMIZER "optimizer"

/* PEFT's names: the single weights file of an adapter checkpoint, and the file that takes the place
 * of config.json. */
#define DPT_NAME_ADAPTERS       "adapter_model.safetensors"
#define DPT_NAME_ADAPTER_CONFIG "adapter_config.json"

/* The contents of a tensor file. */
enum dpt_kind { DPT_KIND_PARAM, DPT_KIND_M, DPT_KIND_V, DPT_KIND_COUNT };

/* "model-00001-of-00004.safetensors", "optimizer/m-…": file `i` (from 0) of `n`. */
void dpt_name_tensors(enum dpt_kind kind, int i, int n, char ret[DPT_CHECKPOINT_NAME_BYTES]);

/* The kind of a tensor file, and its number `i`; DPT_NAME_ADAPTERS is file 0 of 1 of the weights.
 * False for other names. */
bool dpt_name_parse_tensors(const char *name, enum dpt_kind *ret_kind, int *ret_i, int *ret_n);

/* "part-00003.json": the report of writer 3. Writer -1: "part-common.json", which writer 0 writes
 * about the files beside the tensors. */
void dpt_name_part(int writer, char ret[DPT_CHECKPOINT_NAME_BYTES]);

/* "step-00001000"; a rescue, which no server granted: "rescue-step-00001000". */
void dpt_name_step(int64_t step, bool rescue, char ret[DPT_CHECKPOINT_NAME_BYTES]);
bool dpt_name_parse_step(const char *name, int64_t *ret_step);
bool dpt_name_parse_rescue(const char *name, int64_t *ret_step);

/* ".tmp-step-00001000-g7-ATTEMPT". DPT_EINVAL when the attempt is empty, too long or has characters
 * outside [0-9a-z-]. */
DPT_MUST_USE enum dpt_status dpt_name_temporary(int64_t step, uint64_t generation,
                                                const char *attempt,
                                                char ret[DPT_CHECKPOINT_NAME_BYTES],
                                                struct dpt_err *err);

/* The attempt in the name of a temporary folder, a pointer into `name`; NULL for other names. */
const char *dpt_name_parse_temporary(const char *name, int64_t *ret_step, uint64_t *ret_generation);

/* The prefix of every attempt at a rescue, and of no other attempt. */
#define DPT_NAME_RESCUE_ATTEMPT "rescue-"
bool dpt_name_is_rescue_attempt(const char *attempt);

/* True for a name that a manifest may list: [A-Za-z0-9._-], at most one folder ("optimizer/") in
 * front, no part that begins with a dot, nothing that leaves the checkpoint. */
bool dpt_name_is_listable(const char *name);

#endif
