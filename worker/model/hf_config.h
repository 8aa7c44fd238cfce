/* config.json of Hugging Face's GPT2LMHeadModel and LlamaForCausalLM, and with labels of their
 * ForSequenceClassification: its members and our keys. torchvision has no such file, so a ResNet's
 * has our format. One table (hf_config.c) writes the file of a checkpoint and reads the file of a
 * folder with published weights. */
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

/* The same keys as the run of a checkpoint had them; `source` says where they were found. */
void dpt_hf_config_said(const struct dpt_config *saved, const char *source,
                        struct dpt_config_sizes *ret);

/* Special tokens of a config.json, with which transformers' generate() begins, ends and pads. As
 * JSON: the id, or a list of ids; "": the file names none. */
enum { DPT_HF_TOKEN_BYTES = 256 };
struct dpt_hf_tokens {
    char bos[DPT_HF_TOKEN_BYTES], eos[DPT_HF_TOKEN_BYTES], pad[DPT_HF_TOKEN_BYTES];
};

/* Those of `path`, a config.json. DPT_ECONFIG: one is neither an id nor a list of ids, or a list
 * too long to keep; the line names the file and the member. */
DPT_MUST_USE enum dpt_status dpt_hf_config_tokens(const char *path, struct dpt_hf_tokens *ret,
                                                  struct dpt_err *err);

/* The tokens that end a text of transformers' generate(): eos_token_id of `folder`'s
 * generation_config.json, or, where there is no such file, of its config.json. n 0: none is named,
 * or neither file is there. Errors as of dpt_hf_config_tokens. */
enum { DPT_HF_ENDS_MAX = DPT_HF_TOKEN_BYTES / 2 };
struct dpt_hf_ends {
    int n;
    int64_t id[DPT_HF_ENDS_MAX];
};
DPT_MUST_USE enum dpt_status dpt_hf_config_ends(const char *folder, struct dpt_hf_ends *ret,
                                                struct dpt_err *err);

/* Names of the labels that `path`, a config.json, has in id2label, `labels` of them; *ret NULL: it
 * has none. Owned by the caller: dpt_fs_list_free. DPT_ECONFIG: id2label has no name of one of the
 * labels; the line names the file and the label. */
DPT_MUST_USE enum dpt_status dpt_hf_config_label_names(const char *path, int labels, char ***ret,
                                                       struct dpt_err *err);

/* Members of a config.json that are no keys of the config. */
struct dpt_hf_beside {
    /* Special tokens of the folder of the weights; NULL: there is no folder. They take the place of
       the tokens that follow from the vocabulary's size. With labels the padding token does not: no
       text may end with it. */
    const struct dpt_hf_tokens *tokens;
    const char *const *label_names; /* [model.labels] UTF-8; NULL: "LABEL_0", … */
};

/* The text of the config.json of a model of this config, whose files are in `dtype` ("float32").
 * Owned. */
DPT_MUST_USE enum dpt_status dpt_hf_config_print(const struct dpt_config *config,
                                                 const struct dpt_hf_beside *beside,
                                                 const char *dtype, char **ret_json,
                                                 struct dpt_err *err);

#endif
