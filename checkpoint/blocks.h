/* Reads bytes of a checkpoint's file. Compares each block with its checksum in the manifest before
 * it returns any byte of the block. */
#ifndef DPT_CHECKPOINT_BLOCKS_H
#define DPT_CHECKPOINT_BLOCKS_H

#include "base/err.h"
#include "checkpoint/io.h"
#include "checkpoint/manifest.h"

#include <stddef.h>
#include <stdint.h>

struct dpt_blocks {
    const struct dpt_manifest_file *file; /* borrowed; NULL when closed */
    int fd;
    uint8_t *block;
    int64_t in_block; /* number of the block in `block`; -1: none */
    char path[PATH_MAX];
};

/* Opens `file` of the checkpoint in `folder`; DPT_ECORRUPT: the size differs from the manifest's.
 * `ret` zeroed. */
DPT_MUST_USE enum dpt_status dpt_blocks_open(const struct dpt_folder *folder,
                                             const struct dpt_manifest_file *file,
                                             struct dpt_blocks *ret, struct dpt_err *err);
void dpt_blocks_close(struct dpt_blocks *blocks);

/* Reads bytes [first, first + bytes), and only the blocks that they touch. Calls in ascending order
 * read each block once. DPT_ECORRUPT names the file and the block, or the bytes that the file
 * lacks. */
DPT_MUST_USE enum dpt_status dpt_blocks_read(struct dpt_blocks *blocks, int64_t first,
                                             int64_t bytes, void *ret, struct dpt_err *err);

/* dpt_blocks_check_size compares the size of `file` with the manifest. dpt_blocks_verify_file also
 * compares every block. */
DPT_MUST_USE enum dpt_status dpt_blocks_check_size(const struct dpt_folder *folder,
                                                   const struct dpt_manifest_file *file,
                                                   struct dpt_err *err);
DPT_MUST_USE enum dpt_status dpt_blocks_verify_file(const struct dpt_folder *folder,
                                                    const struct dpt_manifest_file *file,
                                                    struct dpt_err *err);

/* The whole file, of at most bytes_max bytes: owned text with a NUL after the end. */
DPT_MUST_USE enum dpt_status dpt_blocks_read_file(const struct dpt_folder *folder,
                                                  const struct dpt_manifest_file *file,
                                                  size_t bytes_max, char **ret_text,
                                                  struct dpt_err *err);

#endif
