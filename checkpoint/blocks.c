/* Verified reading (blocks.h). */
#include "checkpoint/blocks.h"

#include "base/fs.h"
#include "base/hash.h"
#include "checkpoint/layout/layout.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static enum dpt_status check_size(const struct dpt_manifest_file *file, const char *path,
                                  int64_t bytes, struct dpt_err *err)
{
    if (bytes != file->bytes)
        return dpt_fail(err, DPT_ECORRUPT, "'%s' has %lld bytes, its writer reported %lld", path,
                        (long long)bytes, (long long)file->bytes);
    return DPT_OK;
}

enum dpt_status dpt_blocks_check_size(const struct dpt_folder *folder,
                                      const struct dpt_manifest_file *file, struct dpt_err *err)
{
    char path[PATH_MAX];
    int fd;
    int64_t bytes;
    DPT_TRY(dpt_io_open(folder, file->name, &fd, &bytes, path, err));
    (void)close(fd); /* opened for reading */
    return check_size(file, path, bytes, err);
}

enum dpt_status dpt_blocks_open(const struct dpt_folder *folder,
                                const struct dpt_manifest_file *file, struct dpt_blocks *ret,
                                struct dpt_err *err)
{
    int fd;
    int64_t bytes;
    DPT_TRY(dpt_io_open(folder, file->name, &fd, &bytes, ret->path, err));
    enum dpt_status status = check_size(file, ret->path, bytes, err);
    if (status == DPT_OK && !(ret->block = malloc(DPT_CHECKPOINT_BLOCK_BYTES)))
        status = dpt_fail_nomem(err, "read '%s'", ret->path);
    if (status != DPT_OK) {
        (void)close(fd); /* opened for reading */
        return status;
    }
    /* Asks the kernel to read ahead: bytes that were written past the page cache come from the
     * disk. */
    (void)posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL);
    ret->file = file;
    ret->fd = fd;
    ret->in_block = -1;
    return DPT_OK;
}

void dpt_blocks_close(struct dpt_blocks *blocks)
{
    if (!blocks->file)
        return;
    (void)close(blocks->fd);
    free(blocks->block);
    blocks->block = NULL;
    blocks->file = NULL;
}

static struct dpt_interval block_range(const struct dpt_manifest_file *file, int64_t i)
{
    const int64_t first = i * DPT_CHECKPOINT_BLOCK_BYTES;
    const int64_t end = first + DPT_CHECKPOINT_BLOCK_BYTES;
    return (struct dpt_interval){first, end < file->bytes ? end : file->bytes};
}

static enum dpt_status check_block(const struct dpt_manifest_file *file, const char *path,
                                   int64_t i, const void *data, struct dpt_err *err)
{
    const struct dpt_interval range = block_range(file, i);
    const uint32_t crc = dpt_crc32c(0, data, (size_t)(range.end - range.first));
    if (crc != file->crc[i])
        return dpt_fail(err, DPT_ECORRUPT,
                        "'%s' is damaged in block %lld (bytes %lld to %lld): its CRC32C is %08x, "
                        "the manifest says %08x",
                        path, (long long)i, (long long)range.first, (long long)range.end, crc,
                        file->crc[i]);
    return DPT_OK;
}

static enum dpt_status read_block(struct dpt_blocks *blocks, int64_t i, void *to,
                                  struct dpt_err *err)
{
    const struct dpt_interval range = block_range(blocks->file, i);
    DPT_TRY(dpt_fs_pread_all(blocks->fd, to, (size_t)(range.end - range.first), range.first,
                             blocks->path, err));
    return check_block(blocks->file, blocks->path, i, to, err);
}

enum dpt_status dpt_blocks_read(struct dpt_blocks *blocks, int64_t first, int64_t bytes, void *ret,
                                struct dpt_err *err)
{
    if (first < 0 || bytes < 0 || bytes > blocks->file->bytes - first)
        return dpt_fail(err, DPT_ECORRUPT, "'%s' has no %lld bytes at %lld", blocks->path,
                        (long long)bytes, (long long)first);
    const struct dpt_interval want = {first, first + bytes};
    uint8_t *to = ret;
    for (int64_t at = want.first; at < want.end;) {
        const int64_t i = at / DPT_CHECKPOINT_BLOCK_BYTES;
        struct dpt_interval block = block_range(blocks->file, i);
        struct dpt_interval part = dpt_interval_intersect(want, block);
        const size_t part_bytes = (size_t)(part.end - part.first);
        if (part.first == block.first && part.end == block.end && i != blocks->in_block) {
            DPT_TRY(read_block(blocks, i, to, err)); /* a whole block: in place */
        } else {
            if (i != blocks->in_block) {
                blocks->in_block = -1;
                DPT_TRY(read_block(blocks, i, blocks->block, err));
                blocks->in_block = i;
            }
            memcpy(to, blocks->block + (part.first - block.first), part_bytes);
        }
        to += part_bytes;
        at = part.end;
    }
    return DPT_OK;
}

enum dpt_status dpt_blocks_verify_file(const struct dpt_folder *folder,
                                       const struct dpt_manifest_file *file, struct dpt_err *err)
{
    struct dpt_blocks blocks = {0};
    DPT_TRY(dpt_blocks_open(folder, file, &blocks, err));
    enum dpt_status status = DPT_OK;
    for (int64_t i = 0; status == DPT_OK && i < file->n_crc; i++)
        status = read_block(&blocks, i, blocks.block, err);
    dpt_blocks_close(&blocks);
    return status;
}

enum dpt_status dpt_blocks_read_file(const struct dpt_folder *folder,
                                     const struct dpt_manifest_file *file, size_t bytes_max,
                                     char **ret_text, struct dpt_err *err)
{
    char path[PATH_MAX], *text = NULL;
    size_t bytes;
    DPT_TRY(dpt_fs_join(folder->path, file->name, path, sizeof path, err));
    DPT_TRY(dpt_io_read_small(folder, file->name, bytes_max, &text, &bytes, err));
    enum dpt_status status = check_size(file, path, (int64_t)bytes, err);
    for (int64_t i = 0; status == DPT_OK && i < file->n_crc; i++)
        status = check_block(file, path, i, text + i * DPT_CHECKPOINT_BLOCK_BYTES, err);
    if (status != DPT_OK)
        free(text);
    else
        *ret_text = text;
    return status;
}
