/* The checkpoint that a path on the command line means, and what commands share that read a Hugging
 * Face folder. */
#ifndef DPT_WORKER_CKPT_OPEN_H
#define DPT_WORKER_CKPT_OPEN_H

#include "base/config.h"
#include "checkpoint/checkpoint.h"
#include "worker/weights/published.h"

/* "DIR/step-00001000" names one; any other path the newest whole one in it. DPT_ENOENT: there is
 * none. */
DPT_MUST_USE enum dpt_status dpt_ckpt_open(const char *path, struct dpt_checkpoint **ret,
                                           struct dpt_err *err);

/* Whether the path names one checkpoint or rescue, by its last part. */
bool dpt_ckpt_names_one(const char *path);

/* A config whose model has these sizes, which were found in `from`; all else is the default. */
DPT_MUST_USE enum dpt_status dpt_ckpt_config_of_sizes(const char *from,
                                                      const struct dpt_config_said *sizes,
                                                      struct dpt_config *ret, struct dpt_err *err);

/* A line to stderr about the folder's tensors that the model has not, if there are any. */
void dpt_ckpt_tell_left_out(const char *folder, const struct dpt_published *published);

/* The status of reading a folder or a file of others' weights: what is wrong with these was a wrong
 * argument, DPT_ECONFIG. */
enum dpt_status dpt_ckpt_of_folder(enum dpt_status status);

#endif
