/* GPT-2 in llm.c's model file (github.com/karpathy/llm.c, write_model of train_gpt2.py). The file
 * has 256 int32 (magic 20240326; version 3: fp32, 5: bf16; context, vocabulary, layers, heads,
 * width, rows of the padded vocabulary), then the tensors: each kind of tensor for all layers,
 * before the next kind. Its matrices are (out, in); ours and Hugging Face's are (in, out). */
#ifndef DPT_WORKER_WEIGHTS_LLMC_H
#define DPT_WORKER_WEIGHTS_LLMC_H

#include "worker/model/model.h"

struct dpt_llmc;

/* Opens the file and checks its length; `ret_sizes` gets the model's sizes. DPT_ECONFIG: the file
 * is not llm.c's, has another version, or is cut off. Borrows `path`; owned by the caller. */
DPT_MUST_USE enum dpt_status dpt_llmc_open(const char *path, struct dpt_llmc **ret,
                                           struct dpt_config_sizes *ret_sizes, struct dpt_err *err);
void dpt_llmc_close(struct dpt_llmc **llmc);

/* Reads elements `span` of tensor `param` of the GPT-2 of these sizes, widened exactly.
 * DPT_ECORRUPT: an element is NaN or infinite. */
DPT_MUST_USE enum dpt_status dpt_llmc_read(const struct dpt_llmc *llmc,
                                           const struct dpt_model *model, int param,
                                           struct dpt_span span, float *ret, struct dpt_err *err);

#endif
