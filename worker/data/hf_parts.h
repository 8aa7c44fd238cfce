/* Readers of the members of a tokenizer.json, for hf_file.c. Errors are DPT_ECONFIG and name the
 * place as a path of members, such as model.merges[7]. */
#ifndef DPT_WORKER_DATA_HF_PARTS_H
#define DPT_WORKER_DATA_HF_PARTS_H

#include "worker/data/vocab_build.h"

#include <jansson.h>

/* Member `key` of `object`, true or false; absent or null is false. `where` is the object's place.
 */
DPT_MUST_USE enum dpt_status dpt_hf_bool(const json_t *object, const char *where, const char *key,
                                         bool *ret, struct dpt_err *err);

/* Member "type" of the object; "": there is none. */
const char *dpt_hf_type(const json_t *object);

/* Reads all tokens: those of model.vocab and the added ones. `bytes` is the file's length. */
DPT_MUST_USE enum dpt_status dpt_hf_read_tokens(struct dpt_vocab *vocab, const json_t *root,
                                                size_t bytes, struct dpt_err *err);

/* Reads model.merges and the settings of the model. Call it after dpt_hf_read_tokens. */
DPT_MUST_USE enum dpt_status dpt_hf_read_model(struct dpt_vocab *vocab, const json_t *model,
                                               struct dpt_err *err);

/* Reads the steps of pre_tokenizer, and finds the places where texts may be cut. Call it after
 * dpt_hf_read_tokens. */
DPT_MUST_USE enum dpt_status dpt_hf_read_steps(struct dpt_vocab *vocab, const json_t *pre_tokenizer,
                                               struct dpt_err *err);

#endif
