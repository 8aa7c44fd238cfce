/* The list of a checkpoint's files with sizes and block checksums: MANIFEST.json, and the parts of
 * it that writers report (part-NNNNN.json).
 *
 * Both are "sealed" JSON: one object whose last member "crc32c" is the CRC32C of the whole text
 * with its own eight digits read as zeros, so that any damage to the list itself is found before it
 * blames a file. */
#ifndef DPT_CHECKPOINT_MANIFEST_H
#define DPT_CHECKPOINT_MANIFEST_H

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

enum {
    DPT_CHECKPOINT_BLOCK_BYTES = 1 << 20,
    DPT_MANIFEST_BYTES_MAX = 256 << 20, /* about 30 TB of checkpoint */
    DPT_MANIFEST_FILES_MAX = 4096
};

struct dpt_manifest_file {
    char *name;
    int64_t bytes;
    uint32_t *crc; /* one a block of DPT_CHECKPOINT_BLOCK_BYTES, the last one short */
    int64_t n_crc, crc_room;
};

/* Zero-initialise; owns its files. */
struct dpt_manifest {
    int64_t step;
    int writer, n_writers; /* of a part; -1 and the number of writers in the manifest itself */
    struct dpt_manifest_file *files;
    int n_files, files_room;
};

void dpt_manifest_fini(struct dpt_manifest *manifest);

/* Adds an empty file; the pointer is valid until the next one is added. */
DPT_MUST_USE enum dpt_status dpt_manifest_add(struct dpt_manifest *manifest, const char *name,
                                              struct dpt_manifest_file **ret, struct dpt_err *err);

/* The file's next block (all but the last have the full size). */
DPT_MUST_USE enum dpt_status dpt_manifest_add_block(struct dpt_manifest_file *file,
                                                    const void *data, size_t bytes,
                                                    struct dpt_err *err);

/* Moves the files of `part` into `manifest`, leaving `part` empty. A name listed twice is
 * DPT_ECORRUPT. */
DPT_MUST_USE enum dpt_status dpt_manifest_take(struct dpt_manifest *manifest,
                                               struct dpt_manifest *part, struct dpt_err *err);

/* NULL when there is none of that name. */
const struct dpt_manifest_file *dpt_manifest_find(const struct dpt_manifest *manifest,
                                                  const char *name);

/* As sealed JSON; owned text. */
DPT_MUST_USE enum dpt_status dpt_manifest_print(const struct dpt_manifest *manifest,
                                                char **ret_text, size_t *ret_bytes,
                                                struct dpt_err *err);

/* Parses any bytes; `ret` (zeroed) is filled only on success. DPT_ECORRUPT says what is wrong;
 * DPT_EVERSION for an intact list of another version. `what` names it in errors. */
DPT_MUST_USE enum dpt_status dpt_manifest_parse(const char *text, size_t bytes, const char *what,
                                                struct dpt_manifest *ret, struct dpt_err *err);

#endif
