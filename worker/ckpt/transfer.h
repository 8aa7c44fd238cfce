/* `dpt-ckpt export` and `dpt-ckpt import`: write the weights of a checkpoint, or of other programs,
 * as a Hugging Face folder. */
#ifndef DPT_WORKER_CKPT_TRANSFER_H
#define DPT_WORKER_CKPT_TRANSFER_H

#include "base/err.h"

/* `argv` is the command line after "export" or "import": FROM DIR [--dtype fp32|bf16|fp16]
 * [--shard-size SIZE] and, for an export of adapters, [--merge [--base FOLDER]]. FROM of an export
 * is a checkpoint. FROM of an import is a Hugging Face folder or a model file of llm.c. Prints a
 * line to stdout. DPT_EINVAL: the command line is wrong. Other errors are about FROM or DIR. */
DPT_MUST_USE enum dpt_status dpt_ckpt_export(int argc, char *const *argv, struct dpt_err *err);
DPT_MUST_USE enum dpt_status dpt_ckpt_import(int argc, char *const *argv, struct dpt_err *err);

#endif
