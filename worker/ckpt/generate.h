/* `dpt-ckpt generate`: text from a checkpoint or a Hugging Face folder. */
#ifndef DPT_WORKER_CKPT_GENERATE_H
#define DPT_WORKER_CKPT_GENERATE_H

#include "base/err.h"

#include <stdbool.h>
#include <stdio.h>

/* `argv` is what follows the word generate. Writes the prompt and its continuation to stdout as it
 * comes, in pieces of valid UTF-8, and one line about it to stderr; with --logprobs a JSON line for
 * each token to a file. DPT_EINVAL, DPT_ECONFIG: the command line is
 * wrong; other errors are faults of the checkpoint or the vocabulary. *ret_help: --help was asked
 * for, nothing is done. */
DPT_MUST_USE enum dpt_status dpt_ckpt_generate(int argc, char *const *argv, bool *ret_help,
                                               struct dpt_err *err);
void dpt_ckpt_generate_help(FILE *out);

#endif
