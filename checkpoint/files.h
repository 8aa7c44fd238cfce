/* The layout of the tensor files. It depends on the tensors and the wanted size of a file alone, so
 * all writers compute the same layout. The files of m and v have the layout of the masters' files.
 * Adapters have one file of each kind, because PEFT reads no shards. */
#ifndef DPT_CHECKPOINT_FILES_H
#define DPT_CHECKPOINT_FILES_H

#include "base/err.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/names.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dpt_file_layout {
    int first, end; /* tensors in the file */
    int64_t bytes;
    char *head; /* safetensors header */
    size_t head_bytes;
};

struct dpt_tensor_layout {
    int file;
    int64_t numel, begin; /* begin: byte of the file where its data begins */
    int64_t block;        /* its first block of the weights hash, counted over all tensors */
};

struct dpt_files {
    int n; /* files of each kind */
    bool adapters;
    struct dpt_file_layout *file;
    struct dpt_tensor_layout *tensor; /* [n_tensors] */
    int64_t n_blocks;                 /* of the weights hash */
};

/* Divides the tensors, in their order, among files of about `file_bytes` (0:
 * DPT_CHECKPOINT_FILE_BYTES). dpt_layout_divide makes the files even. `adapters`: one file.
 * DPT_EINVAL: a tensor has an impossible name or shape. Call dpt_files_fini whatever the result. */
DPT_MUST_USE enum dpt_status dpt_files_init(const struct dpt_checkpoint_tensor *tensors,
                                            int n_tensors, int64_t file_bytes, bool adapters,
                                            struct dpt_files *ret, struct dpt_err *err);
void dpt_files_fini(struct dpt_files *files);

/* The name of file `i` of a kind. */
void dpt_files_name(const struct dpt_files *files, enum dpt_kind kind, int i,
                    char ret[DPT_CHECKPOINT_NAME_BYTES]);

#endif
