/* The weights that a run begins from, as the agent sees them (model.init_from): what they say of
 * the model's sizes, and whether they are all there. Nobody looks at the folder once there is a
 * checkpoint to go on from. */
#ifndef DPT_WORKER_AGENT_ORIGIN_H
#define DPT_WORKER_AGENT_ORIGIN_H

#include "base/config.h"

/* The sizes for a config as it is written (dpt_config_parse): those of the newest checkpoint that
 * can be read in checkpoint.dir, else of the folder's config.json; none without model.init_from.
 * DPT_ECONFIG: neither can be read. */
DPT_MUST_USE enum dpt_status dpt_origin_sizes(const struct dpt_config *written,
                                              struct dpt_config_said *ret, struct dpt_err *err);

/* Whether the folder holds every tensor of the model of a loaded config: headers alone are read.
 * One line of the log names tensors that the model has not. Does nothing without model.init_from,
 * and when checkpoint.dir holds a whole checkpoint. DPT_ECONFIG: one line with file and tensor. */
DPT_MUST_USE enum dpt_status dpt_origin_check(const struct dpt_config *config, struct dpt_err *err);

/* With train.lora: hashes the weights that the folder has, all of them, and notes the hash in the
 * config (dpt_config_note_base). Does nothing without. DPT_ECONFIG: the folder, or another hash. */
DPT_MUST_USE enum dpt_status dpt_origin_note_base(struct dpt_config *config, struct dpt_err *err);

#endif
