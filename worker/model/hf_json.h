/* Parts of config.json apart from the sizes, for hf_config.c: the file itself, special tokens and
 * names of labels. */
#ifndef DPT_WORKER_MODEL_HF_JSON_H
#define DPT_WORKER_MODEL_HF_JSON_H

#include "worker/model/hf_config.h"

#include <jansson.h>

/* Reads a file of at most 16 MiB. *ret is owned by the caller. DPT_ECONFIG: no JSON; the line names
 * the place. */
DPT_MUST_USE enum dpt_status dpt_hf_json_load(const char *path, json_t **ret, struct dpt_err *err);

/* Formats a value for an error message; a long value is cut off. Returns `ret`. */
enum { DPT_HF_SHOWN_BYTES = 60 };
const char *dpt_hf_json_shown(const json_t *value, char ret[DPT_HF_SHOWN_BYTES]);

/* Sets id2label and label2id; transformers takes their size as the number of labels. `names` as in
 * dpt_hf_beside. False: no memory. */
bool dpt_hf_labels_write(const char *const *names, int labels, json_t *root);

/* Sets bos_token_id and eos_token_id of a model of this config: GPT-2's own vocabulary has an
 * end-of-text token; elsewhere null keeps generate() from stopping at another token. False: no
 * memory. */
bool dpt_hf_end_of_text_write(const struct dpt_config *config, json_t *root);

/* Sets pad_token_id of a model with labels. For transformers the last token of a text is the
 * last one that is not the padding token, so no text may end with the padding token. False: no
 * memory. */
bool dpt_hf_pad_write(const struct dpt_config *config, json_t *root);

/* Sets the members that `tokens` has, `pad_token_id` only with `pad`. False: no memory. */
bool dpt_hf_tokens_write(const struct dpt_hf_tokens *tokens, bool pad, json_t *root);

#endif
