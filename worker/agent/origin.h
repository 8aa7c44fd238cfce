/* Reads the folder of a run's first weights (model.init_from) for the agent: sizes of the model,
 * presence of each tensor, hash. Once the run has a checkpoint, the folder is no longer read,
 * except as the base of adapters. */
#ifndef DPT_WORKER_AGENT_ORIGIN_H
#define DPT_WORKER_AGENT_ORIGIN_H

#include "base/config.h"

/* Finds the model's sizes for a config as written (dpt_config_parse): those of the newest readable
 * checkpoint in checkpoint.dir, else those of the folder's config.json. Without model.init_from
 * there are none. DPT_ECONFIG: neither can be read. */
DPT_MUST_USE enum dpt_status dpt_origin_sizes(const struct dpt_config *written,
                                              struct dpt_config_sizes *ret, struct dpt_err *err);

/* If the run begins from the folder and `checks` is true: reads the headers, requires every tensor
 * of the model, and logs tensors that the model lacks. With train.lora: hashes all weights in the
 * folder and notes the hash in the config (dpt_config_note_base). DPT_ECONFIG: the text has one
 * line with file and tensor, or the config has another hash. */
DPT_MUST_USE enum dpt_status dpt_origin_read(struct dpt_config *config, bool checks,
                                             struct dpt_err *err);

/* If the run begins from the folder and does not read images: logs one warning if the run's tokens
 * are not those of the folder's tokenizer (dpt_tokenizer_is_of_folder). DPT_ECONFIG: a file of a
 * tokenizer cannot be read. */
DPT_MUST_USE enum dpt_status dpt_origin_compare_tokenizer(const struct dpt_config *config,
                                                          struct dpt_err *err);

#endif
