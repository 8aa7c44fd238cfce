/* The weights that a run begins from (model.init_from), as the agent reads them: the model's sizes,
 * whether every tensor is there, and their hash. The folder is not read once a checkpoint exists
 * that the run goes on from, except for the base of adapters. */
#ifndef DPT_WORKER_AGENT_ORIGIN_H
#define DPT_WORKER_AGENT_ORIGIN_H

#include "base/config.h"

/* The sizes for a config as it is written (dpt_config_parse): those of the newest checkpoint that
 * can be read in checkpoint.dir, else of the folder's config.json; none without model.init_from.
 * DPT_ECONFIG: neither can be read. */
DPT_MUST_USE enum dpt_status dpt_origin_sizes(const struct dpt_config *written,
                                              struct dpt_config_said *ret, struct dpt_err *err);

/* Whether the folder holds every tensor of the model of a loaded config: headers alone are read.
 * One line of the log names tensors that are not in the model. Does nothing without
 * model.init_from, and when checkpoint.dir holds a whole checkpoint. DPT_ECONFIG: one line with
 * file and tensor. */
DPT_MUST_USE enum dpt_status dpt_origin_check(const struct dpt_config *config, struct dpt_err *err);

/* One warning in the log if the run's tokens are not those of the folder's tokenizer
 * (dpt_tokenizer_is_of_folder), which may be meant. Does nothing where dpt_origin_check does
 * nothing, and for images. DPT_ECONFIG: a tokenizer's file cannot be read. */
DPT_MUST_USE enum dpt_status dpt_origin_compare_tokenizer(const struct dpt_config *config,
                                                          struct dpt_err *err);

/* With train.lora: hashes all weights in the folder and notes the hash in the config
 * (dpt_config_note_base). Without train.lora it does nothing. DPT_ECONFIG: the folder cannot be
 * read, or the config has another hash. */
DPT_MUST_USE enum dpt_status dpt_origin_note_base(struct dpt_config *config, struct dpt_err *err);

#endif
