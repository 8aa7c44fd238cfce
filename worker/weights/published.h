/* Published weights: a Hugging Face folder of GPT-2 or Llama, or one with torchvision's
 * state dict of a ResNet,
 *   model.safetensors                                      all tensors, or
 *   model.safetensors.index.json, model-0000i-of-0000n…    shards, named by the index,
 * in F32, BF16 or F16. A name may lack the prefix of the base model's tensors
 * ("transformer.", "model."), as in a folder of the base model alone. Matrices have the same layout
 * as in our checkpoints. */
#ifndef DPT_WORKER_WEIGHTS_PUBLISHED_H
#define DPT_WORKER_WEIGHTS_PUBLISHED_H

#include "base/hash.h"
#include "checkpoint/safetensors.h"
#include "worker/model/model.h"

struct dpt_published;

/* The model's sizes in config.json of folder `dir` (dpt_hf_config_read). DPT_ECONFIG: the folder
 * does not exist, has adapters and no model, is checkpoint.dir of a run, or has no config.json of a
 * supported model. */
DPT_MUST_USE enum dpt_status dpt_published_sizes(const char *dir, struct dpt_config_sizes *ret,
                                                 struct dpt_err *err);

/* Opens the folder and finds every tensor of the model in it. Reads headers, no values. Tensors of
 * the labels (from dpt_model_score on) may be missing or have another shape. A tensor that is not
 * in the model is refused if it belongs to the model's body (layers, embeddings and norms), since
 * it contradicts config.json. Borrows the model; NULL: the folder may be of any model, or have
 * PEFT's adapters (adapter_model.safetensors). DPT_ECONFIG, DPT_ECORRUPT, DPT_ENOENT,
 * DPT_EUNSUPPORTED: one line with the file and the tensor. Owned by the caller, one thread at a
 * time. */
DPT_MUST_USE enum dpt_status dpt_published_open(const char *dir, const struct dpt_model *model,
                                                struct dpt_published **ret, struct dpt_err *err);
void dpt_published_close(struct dpt_published **published);

/* The number of labels of score.weight in folder `dir`; 0: there is no such tensor. Errors are
 * those of opening the folder's files. */
DPT_MUST_USE enum dpt_status dpt_published_labels(const char *dir, int64_t *ret,
                                                  struct dpt_err *err);

/* Returns the number of the folder's tensors that are not in the model, without buffers
 * (dpt_foreign_tensor_is_buffer). Writes the names of the first ones ("lm_head.weight, score.weight
 * [4, 64] and 3 more"). If a tensor of the labels' head is left out because of its shape, the shape
 * follows its name. */
enum { DPT_PUBLISHED_LEFT_OUT_BYTES = 512 };
int dpt_published_left_out(const struct dpt_published *published,
                           char ret_names[DPT_PUBLISHED_LEFT_OUT_BYTES]);

/* Whether the folder has the model's tensor `param` in its shape. False only for tensors of the
 * labels, which then start from the seed. */
bool dpt_published_has(const struct dpt_published *published, int param);

/* Reads elements [first, end) of the model's tensor `param`, which the folder must have, widened
 * exactly. Reads only the bytes of these elements. DPT_ECORRUPT: an element is NaN or infinite; the
 * line names the file and the tensor. */
DPT_MUST_USE enum dpt_status dpt_published_read(struct dpt_published *published, int param,
                                                int64_t first, int64_t end, float *ret,
                                                struct dpt_err *err);

/* Receives elements [first, end) of the model's tensor `param`; an error ends the reading. */
struct dpt_published_sink {
    enum dpt_status (*take)(void *ctx, int param, int64_t first, int64_t end, const float *values,
                            struct dpt_err *err);
    void *ctx;
};

/* Reads every tensor of the model that the folder has, in the model's order and in parts of at most
 * DPT_PUBLISHED_PART elements, and gives the parts to the sink (may be NULL). Returns their weights
 * hash (checkpoint/checkpoint.h). On failure `ret` is untouched, and the sink may have parts. */
enum { DPT_PUBLISHED_PART = 65536 };
DPT_MUST_USE enum dpt_status dpt_published_read_all(struct dpt_published *published,
                                                    const struct dpt_published_sink *sink,
                                                    struct dpt_hash128 *ret, struct dpt_err *err);

/* The tensors of the folder, of any model, sorted by name. dpt_published_n_tensors: their number.
 * dpt_published_tensor: tensor `i`, valid as long as `published`. dpt_published_read_tensor: its
 * elements [first, end), widened exactly, finite or not; DPT_EUNSUPPORTED: an unsupported dtype. */
int dpt_published_n_tensors(const struct dpt_published *published);
const struct dpt_safetensors_entry *dpt_published_tensor(const struct dpt_published *published,
                                                         int i);
DPT_MUST_USE enum dpt_status dpt_published_read_tensor(struct dpt_published *published, int i,
                                                       int64_t first, int64_t end, float *ret,
                                                       struct dpt_err *err);

#endif
