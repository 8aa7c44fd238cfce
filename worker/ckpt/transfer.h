/* `dpt-ckpt export` and `dpt-ckpt import`: weights out of a checkpoint, and weights of others, as a
 * Hugging Face folder in the form of our checkpoints' files. */
#ifndef DPT_WORKER_CKPT_TRANSFER_H
#define DPT_WORKER_CKPT_TRANSFER_H

#include "base/err.h"

/* `argv` is what follows the word: FROM DIR [--dtype fp32|bf16|fp16] [--shard-size SIZE], and of an
 * export of adapters [--merge [--base FOLDER]]. FROM is a checkpoint (export), or a Hugging Face
 * folder or a model file of llm.c's (import). Prints a line to stdout. DPT_EINVAL: the command
 * line; else one line about FROM or DIR. */
DPT_MUST_USE enum dpt_status dpt_ckpt_export(int argc, char *const *argv, struct dpt_err *err);
DPT_MUST_USE enum dpt_status dpt_ckpt_import(int argc, char *const *argv, struct dpt_err *err);

#endif
