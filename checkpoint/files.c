/* The layout of tensor files (files.h). */
#include "checkpoint/files.h"

#include "checkpoint/layout/layout.h"
#include "checkpoint/safetensors.h"

#include <stdio.h>
#include <stdlib.h>

/* Fills `bytes` [n_tensors], and the numel and the first hash block of each tensor. */
static enum dpt_status measure_tensors(const struct dpt_checkpoint_tensor *tensors, int n_tensors,
                                       struct dpt_files *files, int64_t *bytes, int64_t *ret_total,
                                       struct dpt_err *err)
{
    int64_t total = 0;
    for (int i = 0; i < n_tensors; i++) {
        struct dpt_tensor_layout *tensor = &files->tensor[i];
        DPT_TRY(dpt_safetensors_tensor_bytes(&tensors[i], &bytes[i], err));
        tensor->numel = bytes[i] / (int64_t)sizeof(float);
        tensor->block = files->n_blocks;
        files->n_blocks +=
            tensor->numel / DPT_WEIGHTS_HASH_BLOCK + (tensor->numel % DPT_WEIGHTS_HASH_BLOCK != 0);
        if (__builtin_add_overflow(total, bytes[i], &total))
            return dpt_fail(err, DPT_EINVAL, "tensor '%s' has an impossible shape",
                            tensors[i].name);
    }
    *ret_total = total;
    return DPT_OK;
}

static enum dpt_status lay_out_file(const struct dpt_checkpoint_tensor *tensors, int number,
                                    const int64_t *bytes, struct dpt_files *files,
                                    struct dpt_err *err)
{
    struct dpt_file_layout *file = &files->file[number];
    DPT_TRY(dpt_safetensors_print(tensors + file->first, file->end - file->first,
                                  DPT_SAFETENSORS_F32, &file->head, &file->head_bytes, err));
    file->bytes = (int64_t)file->head_bytes;
    for (int i = file->first; i < file->end; i++) {
        files->tensor[i].file = number;
        files->tensor[i].begin = file->bytes;
        file->bytes += bytes[i];
    }
    return DPT_OK;
}

/* Divides the tensors among at most `n` files. */
static enum dpt_status lay_out_files(const struct dpt_checkpoint_tensor *tensors, int n_tensors,
                                     int n, const int64_t *bytes, struct dpt_files *files,
                                     struct dpt_err *err)
{
    int *first = malloc(((size_t)n + 1) * sizeof *first);
    files->file = calloc((size_t)n, sizeof *files->file);
    if (!first || !files->file) {
        free(first);
        return dpt_fail_nomem(err, "layout of tensor files");
    }
    files->n = dpt_layout_divide(bytes, n_tensors, n, first);
    for (int i = 0; i < files->n; i++) {
        files->file[i].first = first[i];
        files->file[i].end = first[i + 1];
    }
    free(first);
    for (int i = 0; i < files->n; i++)
        DPT_TRY(lay_out_file(tensors, i, bytes, files, err));
    return DPT_OK;
}

static int count_files(int64_t total, int64_t file_bytes)
{
    const int64_t wanted = total / file_bytes + (total % file_bytes != 0);
    const int n = wanted < DPT_CHECKPOINT_FILES_MAX ? (int)wanted : DPT_CHECKPOINT_FILES_MAX;
    return n > 0 ? n : 1;
}

enum dpt_status dpt_files_init(const struct dpt_checkpoint_tensor *tensors, int n_tensors,
                               int64_t file_bytes, bool adapters, struct dpt_files *ret,
                               struct dpt_err *err)
{
    *ret = (struct dpt_files){.adapters = adapters};
    int64_t total = 0;
    if (adapters)
        file_bytes = INT64_MAX;
    else if (file_bytes <= 0)
        file_bytes = DPT_CHECKPOINT_FILE_BYTES;
    int64_t *bytes = malloc((size_t)n_tensors * sizeof *bytes);
    ret->tensor = calloc((size_t)n_tensors, sizeof *ret->tensor);
    enum dpt_status status =
        bytes && ret->tensor ? DPT_OK : dpt_fail_nomem(err, "layout of tensor files");
    if (status == DPT_OK)
        status = measure_tensors(tensors, n_tensors, ret, bytes, &total, err);
    if (status == DPT_OK)
        status = lay_out_files(tensors, n_tensors, count_files(total, file_bytes), bytes, ret, err);
    free(bytes);
    return status;
}

void dpt_files_fini(struct dpt_files *files)
{
    for (int i = 0; files->file && i < files->n; i++)
        free(files->file[i].head);
    free(files->file);
    free(files->tensor);
    *files = (struct dpt_files){.n = 0};
}

void dpt_files_name(const struct dpt_files *files, enum dpt_kind kind, int i,
                    char ret[DPT_CHECKPOINT_NAME_BYTES])
{
    if (files->adapters && kind == DPT_KIND_PARAM)
        (void)snprintf(ret, DPT_CHECKPOINT_NAME_BYTES, "%s", DPT_NAME_ADAPTERS);
    else
        dpt_name_tensors(kind, i, files->n, ret);
}
