/* config.json of Hugging Face's GPT2LMHeadModel and LlamaForCausalLM or, with labels, of
 * GPT2ForSequenceClassification and LlamaForSequenceClassification: its members and our keys.
 * torchvision has no config.json, so the file of a ResNet has our format. One table (hf_config.c)
 * writes the file of a checkpoint and reads the file of a folder with published weights. */
#ifndef DPT_WORKER_MODEL_HF_CONFIG_H
#define DPT_WORKER_MODEL_HF_CONFIG_H

#include "base/config.h"

/* model.name and the sizes of the model in `path`, a config.json. Dropout belongs to training and
 * the run decides about labels: neither is read. DPT_ECONFIG: this version has no such model; the
 * line names the file and the member. */
DPT_MUST_USE enum dpt_status dpt_hf_config_read(const char *path, struct dpt_config_sizes *ret,
                                                struct dpt_err *err);

/* Whether the model that dpt_hf_config_read found has tokens; if not, it reads images. */
bool dpt_hf_config_has_tokens(const struct dpt_config_sizes *said);

/* The same keys with the values of a checkpoint's run; `source` says where the values come from. */
void dpt_hf_config_said(const struct dpt_config *saved, const char *source,
                        struct dpt_config_sizes *ret);

/* Special tokens of a config.json: transformers' generate() begins, ends and pads texts with them.
 * Each is JSON, an id or a list of ids; "": the file does not name the token. */
enum { DPT_HF_TOKEN_BYTES = 256 };
struct dpt_hf_tokens {
    char bos[DPT_HF_TOKEN_BYTES], eos[DPT_HF_TOKEN_BYTES], pad[DPT_HF_TOKEN_BYTES];
};

/* Reads the special tokens of `path`, a config.json. DPT_ECONFIG: a token is neither an id nor a
 * list of ids, or the list is too long; the message names the file and the member. */
DPT_MUST_USE enum dpt_status dpt_hf_config_tokens(const char *path, struct dpt_hf_tokens *ret,
                                                  struct dpt_err *err);

/* The tokens that end a text of transformers' generate(): eos_token_id of `folder`'s
 * generation_config.json, or, where there is no such file, of its config.json. n 0: the file names
 * no token, or neither file exists. Errors as of dpt_hf_config_tokens. */
enum { DPT_HF_ENDS_MAX = DPT_HF_TOKEN_BYTES / 2 };
struct dpt_hf_ends {
    int n;
    int64_t id[DPT_HF_ENDS_MAX];
};
DPT_MUST_USE enum dpt_status dpt_hf_config_ends(const char *folder, struct dpt_hf_ends *ret,
                                                struct dpt_err *err);

/* The names of `labels` labels in id2label of `path`, a config.json; *ret NULL: the file has no
 * id2label. The caller owns *ret and frees it by dpt_fs_list_free. DPT_ECONFIG: id2label lacks the
 * name of a label; the message names the file and the label. */
DPT_MUST_USE enum dpt_status dpt_hf_config_label_names(const char *path, int labels, char ***ret,
                                                       struct dpt_err *err);

/* Members of a config.json that are not keys of the config. */
struct dpt_hf_beside {
    /* Special tokens of the folder of the weights; NULL: there is no folder. They replace the
     * tokens that follow from the vocabulary's size. With labels the folder's padding token is not
     * used: no text may end with the padding token. */
    const struct dpt_hf_tokens *tokens;
    const char *const *label_names; /* [model.labels] UTF-8; NULL: "LABEL_0", … */
};

/* The text of config.json for a model of this config whose weight files are in `dtype` ("float32").
 * The caller owns *ret_json. */
DPT_MUST_USE enum dpt_status dpt_hf_config_print(const struct dpt_config *config,
                                                 const struct dpt_hf_beside *beside,
                                                 const char *dtype, char **ret_json,
                                                 struct dpt_err *err);

#endif
