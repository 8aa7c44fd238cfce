/* `dpt-ckpt generate`: text from a checkpoint or a Hugging Face folder. */
#ifndef DPT_WORKER_CKPT_GENERATE_H
#define DPT_WORKER_CKPT_GENERATE_H

#include "base/err.h"

#include <stdio.h>

/* `argv` is the command line after "generate". Writes the prompt and its continuation to stdout in
 * pieces of valid UTF-8, and one line about the speed to stderr. With --logprobs also writes a JSON
 * line for each token to a file. With --help only prints the help. DPT_EINVAL, DPT_ECONFIG: the
 * command line is wrong. Other errors are faults of the checkpoint or the vocabulary. */
DPT_MUST_USE enum dpt_status dpt_ckpt_generate(int argc, char *const *argv, struct dpt_err *err);
void dpt_ckpt_generate_help(FILE *out);

#endif
