/* The files and the tensors of an open checkpoint. */
#ifndef DPT_CHECKPOINT_READER_H
#define DPT_CHECKPOINT_READER_H

#include "checkpoint/checkpoint.h"
#include "checkpoint/complete_checkpoint.h"
#include "checkpoint/io.h"
#include "checkpoint/manifest.h"
#include "checkpoint/names.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/state_json.h"

struct dpt_checkpoint_file {
    const struct dpt_manifest_file *file;
    enum dpt_kind kind;
    int number; /* i of i-of-n; the files of a kind hold the model's tensors in this order */
    struct dpt_safetensors header;
};

/* The place of one tensor's values of one kind. */
struct dpt_tensor_at {
    enum dpt_kind kind;
    const struct dpt_checkpoint_file *in;
    const struct dpt_safetensors_entry *entry;
};

struct dpt_checkpoint {
    struct dpt_folder folder;
    struct dpt_manifest manifest;
    struct dpt_state_json state;
    struct dpt_checkpoint_file *files; /* by kind, then number */
    int n_files;
    struct dpt_tensor_at *tensors; /* by kind, then name */
    int n_tensors;
};

/* dpt_checkpoint_open restricted to the checkpoint or to the rescue (`name`). */
DPT_MUST_USE enum dpt_status dpt_checkpoint_open_named(const char *dir, int64_t step,
                                                       enum dpt_complete_name name,
                                                       struct dpt_checkpoint **ret,
                                                       struct dpt_err *err);

#endif
