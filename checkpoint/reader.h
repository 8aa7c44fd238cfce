/* An open checkpoint from inside: its files and the tensors in them. */
#ifndef DPT_CHECKPOINT_READER_H
#define DPT_CHECKPOINT_READER_H

#include "checkpoint/checkpoint.h"
#include "checkpoint/io.h"
#include "checkpoint/manifest.h"
#include "checkpoint/names.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/state.h"

struct dpt_checkpoint_file {
    const struct dpt_manifest_file *file;
    enum dpt_kind kind;
    int number; /* i of i-of-n: files of a kind in this order hold the tensors in the model's order
                 */
    struct dpt_safetensors header;
};

/* Where one tensor's values of one kind lie. */
struct dpt_tensor_at {
    enum dpt_kind kind;
    const struct dpt_checkpoint_file *in;
    const struct dpt_safetensors_entry *entry;
};

struct dpt_checkpoint {
    struct dpt_folder folder;
    struct dpt_manifest manifest;
    struct dpt_state_copy state;
    struct dpt_checkpoint_file *files; /* by kind, then number */
    int n_files;
    struct dpt_tensor_at *tensors; /* by kind, then name */
    int n_tensors;
};

#endif
