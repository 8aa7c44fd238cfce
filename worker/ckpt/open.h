/* The checkpoint that a path on the command line means. */
#ifndef DPT_WORKER_CKPT_OPEN_H
#define DPT_WORKER_CKPT_OPEN_H

#include "checkpoint/checkpoint.h"

/* "DIR/step-00001000" names one; any other path the newest whole one in it. DPT_ENOENT: there is
 * none. */
DPT_MUST_USE enum dpt_status dpt_ckpt_open(const char *path, struct dpt_checkpoint **ret,
                                           struct dpt_err *err);

/* Whether the path names one checkpoint or rescue, by its last part. */
bool dpt_ckpt_names_one(const char *path);

#endif
