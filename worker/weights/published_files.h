/* The safetensors files of a Hugging Face folder: model.safetensors, the shards that
 * model.safetensors.index.json names, or adapter_model.safetensors. */
#ifndef DPT_WORKER_WEIGHTS_PUBLISHED_FILES_H
#define DPT_WORKER_WEIGHTS_PUBLISHED_FILES_H

#include "checkpoint/safetensors.h"

#include <limits.h>
#include <stdbool.h>

struct dpt_published_file {
    char path[PATH_MAX];
    int fd;
    struct dpt_safetensors header;
};

struct dpt_published_files {
    const char *dir;                  /* borrowed */
    struct dpt_published_file *files; /* (n) */
    int n;
    int n_tensors; /* in all files */
};

/* Opens the files and reads their headers. `adapters`: the folder may have adapters and no model.
 * DPT_ECONFIG, DPT_ECORRUPT, DPT_ENOENT: one line with the file. */
DPT_MUST_USE enum dpt_status dpt_published_files_open(const char *dir, bool adapters,
                                                      struct dpt_published_files *ret,
                                                      struct dpt_err *err);
void dpt_published_files_close(struct dpt_published_files *files);

#endif
