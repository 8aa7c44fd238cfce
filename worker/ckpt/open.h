/* Opens the checkpoint that a path on the command line names, and functions for commands that read
 * a Hugging Face folder. */
#ifndef DPT_WORKER_CKPT_OPEN_H
#define DPT_WORKER_CKPT_OPEN_H

#include "base/config.h"
#include "checkpoint/checkpoint.h"
#include "worker/weights/published.h"

/* Opens the checkpoint at `path`. "DIR/step-00001000" names one checkpoint. Any other path is a
 * folder, and its newest complete checkpoint is opened. DPT_ENOENT: there is none. */
DPT_MUST_USE enum dpt_status dpt_ckpt_open(const char *path, struct dpt_checkpoint **ret,
                                           struct dpt_err *err);

/* Whether the last part of the path is the name of a checkpoint or of a rescue. */
bool dpt_ckpt_names_one(const char *path);

/* Whether the path is a Hugging Face folder of a model or of adapters. False for the name of a
 * checkpoint, although its folder may have the same files. */
bool dpt_ckpt_is_folder(const char *path);

/* Makes the default config with a model of these sizes. `from` names the source of the sizes. */
DPT_MUST_USE enum dpt_status dpt_ckpt_config_of_sizes(const char *from,
                                                      const struct dpt_config_sizes *sizes,
                                                      struct dpt_config *ret, struct dpt_err *err);

/* Prints a line to stderr with the folder's tensors that are not in the model, if there are any. */
void dpt_ckpt_tell_left_out(const char *folder, const struct dpt_published *published);

/* The status of a command that reads published weights. A fault of the weights counts as a fault of
 * the argument that names them: DPT_ENOENT, DPT_ECORRUPT and DPT_EUNSUPPORTED become
 * DPT_ECONFIG. */
enum dpt_status dpt_ckpt_of_folder(enum dpt_status status);

#endif
