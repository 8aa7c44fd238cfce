/* Verifies every byte of a checkpoint; computes the weights hash of a checkpoint on disk. */
#include "checkpoint/reader.h"

#include "checkpoint/blocks.h"

#include <stdlib.h>
#include <string.h>

static enum dpt_status hash_tensor(struct dpt_blocks *blocks,
                                   const struct dpt_safetensors_entry *entry, float *buffer,
                                   struct dpt_hash128 *h, struct dpt_err *err)
{
    const int64_t step = DPT_WEIGHTS_HASH_BLOCK * (int64_t)sizeof *buffer;
    for (int64_t at = entry->begin; at < entry->end; at += step) {
        const int64_t bytes = entry->end - at < step ? entry->end - at : step;
        DPT_TRY(dpt_blocks_read(blocks, at, bytes, buffer, err));
        *h = dpt_weights_hash_add(*h, buffer, bytes / (int64_t)sizeof *buffer);
    }
    return DPT_OK;
}

enum dpt_status dpt_checkpoint_hash(const struct dpt_checkpoint *checkpoint,
                                    struct dpt_hash128 *ret, struct dpt_err *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_hash128 h = {0, 0};
    float *buffer = malloc(DPT_WEIGHTS_HASH_BLOCK * sizeof *buffer);
    if (!buffer)
        return dpt_fail_nomem(err, "hash of '%s'", checkpoint->folder.path);
    for (int f = 0; status == DPT_OK && f < checkpoint->n_files; f++) {
        const struct dpt_checkpoint_file *file = &checkpoint->files[f];
        struct dpt_blocks blocks = {0};
        if (file->kind != DPT_KIND_PARAM)
            continue;
        status = dpt_blocks_open(&checkpoint->folder, file->file, &blocks, err);
        for (int i = 0; status == DPT_OK && i < file->header.n; i++)
            status = hash_tensor(&blocks, &file->header.entries[i], buffer, &h, err);
        dpt_blocks_close(&blocks);
    }
    free(buffer);
    if (status == DPT_OK)
        *ret = h;
    return status;
}

static enum dpt_status check_index(const struct dpt_checkpoint *checkpoint,
                                   const struct dpt_index *index, struct dpt_err *err)
{
    int n = 0;
    int64_t total = 0;
    for (int i = 0; i < checkpoint->n_tensors; i++) {
        const struct dpt_tensor_at *at = &checkpoint->tensors[i];
        if (at->kind != DPT_KIND_PARAM)
            continue;
        DPT_TRY(dpt_index_check(index, at->entry->name, at->in->file->name, err));
        n++;
        total += at->entry->end - at->entry->begin;
    }
    if (n != index->n || total != index->total_bytes)
        return dpt_fail(err, DPT_ECORRUPT,
                        "'%s/" DPT_NAME_INDEX "' lists %d tensors of %lld bytes, the files hold "
                        "%d of %lld",
                        checkpoint->folder.path, index->n, (long long)index->total_bytes, n,
                        (long long)total);
    return DPT_OK;
}

/* An adapter checkpoint, in PEFT's format, has no index. */
static enum dpt_status verify_index(const struct dpt_checkpoint *checkpoint, struct dpt_err *err)
{
    const struct dpt_manifest_file *file = dpt_manifest_find(&checkpoint->manifest, DPT_NAME_INDEX);
    if (!file && dpt_manifest_find(&checkpoint->manifest, DPT_NAME_ADAPTERS))
        return DPT_OK;
    if (!file)
        return dpt_fail(err, DPT_ECORRUPT, "'%s' holds no " DPT_NAME_INDEX,
                        checkpoint->folder.path);
    char *text;
    struct dpt_index index = {0};
    DPT_TRY(dpt_blocks_read_file(&checkpoint->folder, file, DPT_INDEX_BYTES_MAX, &text, err));
    enum dpt_status status = dpt_index_parse(text, (size_t)file->bytes, &index, err);
    if (status == DPT_OK)
        status = check_index(checkpoint, &index, err);
    dpt_index_fini(&index);
    free(text);
    return status;
}

static enum dpt_status verify_hash(const struct dpt_checkpoint *checkpoint, struct dpt_err *err)
{
    struct dpt_hash128 h = {0, 0};
    char hex[DPT_HASH_HEX_BYTES];
    DPT_TRY(dpt_checkpoint_hash(checkpoint, &h, err));
    dpt_hash128_hex(h, hex);
    if (strcmp(hex, checkpoint->state.state.weights_hash) != 0)
        return dpt_fail(err, DPT_ECORRUPT,
                        "'%s': the weights' hash is %s, " DPT_NAME_STATE " says %.40s",
                        checkpoint->folder.path, hex, checkpoint->state.state.weights_hash);
    return DPT_OK;
}

enum dpt_status dpt_checkpoint_verify(const struct dpt_checkpoint *checkpoint, struct dpt_err *err)
{
    for (int i = 0; i < checkpoint->manifest.n_files; i++)
        DPT_TRY(dpt_blocks_verify_file(&checkpoint->folder, &checkpoint->manifest.files[i], err));
    DPT_TRY(verify_index(checkpoint, err));
    return verify_hash(checkpoint, err);
}
