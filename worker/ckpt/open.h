/* The checkpoint that a path on the command line names, and the parts that the commands share which
 * read a Hugging Face folder. */
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

/* Whether the path is a Hugging Face folder, of a model or of adapters, and not the name of one
 * checkpoint, which may have the same files. */
bool dpt_ckpt_is_folder(const char *path);

/* A config whose model has these sizes, which were found in `from`; all else is the default. */
DPT_MUST_USE enum dpt_status dpt_ckpt_config_of_sizes(const char *from,
                                                      const struct dpt_config_sizes *sizes,
                                                      struct dpt_config *ret, struct dpt_err *err);

/* Prints a line to stderr that names the folder's tensors that are not in the model, if there are
 * any. */
void dpt_ckpt_tell_left_out(const char *folder, const struct dpt_published *published);

/* The status of a command that read published weights. A fault of the weights is a fault of the
 * argument that names them: DPT_ENOENT, DPT_ECORRUPT and DPT_EUNSUPPORTED become DPT_ECONFIG. */
enum dpt_status dpt_ckpt_of_folder(enum dpt_status status);

#endif
