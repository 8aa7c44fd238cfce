/* The weights that a run begins from (model.init_from), as the agent reads them: sizes of the
 * model, presence of each tensor, hash. Once the run has a checkpoint the folder is not read any
 * more, except for the base of adapters. */
#ifndef DPT_WORKER_AGENT_ORIGIN_H
#define DPT_WORKER_AGENT_ORIGIN_H

#include "base/config.h"

/* The sizes for a config as written (dpt_config_parse): of the newest readable checkpoint in
 * checkpoint.dir, else of the folder's config.json; none without model.init_from. DPT_ECONFIG:
 * neither can be read. */
DPT_MUST_USE enum dpt_status dpt_origin_sizes(const struct dpt_config *written,
                                              struct dpt_config_sizes *ret, struct dpt_err *err);

/* If the run begins from the folder and with `checks`: reads the headers, requires every tensor of
 * the model, and logs tensors that the model lacks. With train.lora: hashes all weights in the
 * folder and notes the hash in the config (dpt_config_note_base). DPT_ECONFIG: one line with file
 * and tensor, or the config has another hash. */
DPT_MUST_USE enum dpt_status dpt_origin_read(struct dpt_config *config, bool checks,
                                             struct dpt_err *err);

/* If the run begins from the folder and is not of images: one warning in the log if the run's
 * tokens are not those of the folder's tokenizer (dpt_tokenizer_is_of_folder). DPT_ECONFIG: a
 * tokenizer's file cannot be read. */
DPT_MUST_USE enum dpt_status dpt_origin_compare_tokenizer(const struct dpt_config *config,
                                                          struct dpt_err *err);

#endif
