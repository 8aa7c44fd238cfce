/* The list of a checkpoint's files with sizes and block checksums: MANIFEST.json, and the reports
 * of what each writer wrote (part-NNNNN.json), of which the manifest is put together.
 *
 * Both are "sealed" JSON: one object whose last member "crc32c" is the CRC32C of the whole text
 * with its own eight digits read as zeros, so that any damage to the list itself is found before it
 * blames a file. */
#ifndef DPT_CHECKPOINT_MANIFEST_H
#define DPT_CHECKPOINT_MANIFEST_H

#include "base/err.h"
#include "base/hash.h"

#include <stddef.h>
#include <stdint.h>

enum {
    DPT_CHECKPOINT_BLOCK_BYTES = 1 << 20,
    DPT_MANIFEST_BYTES_MAX = 256 << 20, /* about 30 TB of checkpoint */
    DPT_MANIFEST_FILES_MAX = 4096,
    DPT_MANIFEST_RUNS_MAX = 1 << 20, /* of all writers together */
    DPT_MANIFEST_HASHES_MAX = 1 << 24
};

/* Bytes [first, first + bytes) of a file: in a manifest all of it; in a report a run, what the
 * writer wrote without a gap. */
struct dpt_manifest_file {
    char *name;
    int64_t first, bytes;
    /* One for each block of DPT_CHECKPOINT_BLOCK_BYTES of the file that the run touches: of the
     * run's bytes in it, which are all of it but perhaps in the first and the last. */
    uint32_t *crc;
    int64_t n_crc;
    size_t crc_room;
};

/* Hashes of consecutive blocks of the weights hash, in a report (files.h numbers them). */
struct dpt_manifest_hashes {
    int64_t first, n;
    size_t room;
    struct dpt_hash128 *hash;
};

/* Zero-initialise; owns its lists. */
struct dpt_manifest {
    int64_t step;
    int writer, n_writers; /* of a report; -1 and the number of writers in the manifest itself */
    char not_finite[128];  /* of a report: the tensor in which the writer found such a value; "" */
    struct dpt_manifest_file *files;
    int n_files;
    size_t files_room;
    struct dpt_manifest_hashes *hashes;
    int n_hashes;
    size_t hashes_room;
};

void dpt_manifest_fini(struct dpt_manifest *manifest);

/* Adds an empty run that begins at byte `first` of the file; the pointer is valid until the next
 * one is added. */
DPT_MUST_USE enum dpt_status dpt_manifest_add(struct dpt_manifest *manifest, const char *name,
                                              int64_t first, struct dpt_manifest_file **ret,
                                              struct dpt_err *err);

/* The next bytes of the run, any number of them. */
DPT_MUST_USE enum dpt_status dpt_manifest_add_bytes(struct dpt_manifest_file *run, const void *data,
                                                    size_t bytes, struct dpt_err *err);

/* The hash of block `block` of the weights hash. */
DPT_MUST_USE enum dpt_status dpt_manifest_add_hash(struct dpt_manifest *manifest, int64_t block,
                                                   struct dpt_hash128 hash, struct dpt_err *err);

/* Moves runs and hashes of `part` into `manifest`, leaving `part` empty. */
DPT_MUST_USE enum dpt_status dpt_manifest_take(struct dpt_manifest *manifest,
                                               struct dpt_manifest *part, struct dpt_err *err);

/* Makes whole files of the runs, in the order of their names: checksums of blocks that several runs
 * share are joined (dpt_crc32c_join). DPT_ECORRUPT for bytes that nobody or more than one reports;
 * whether a file is as long as it should be is for the caller to see. */
DPT_MUST_USE enum dpt_status dpt_manifest_join(struct dpt_manifest *manifest, struct dpt_err *err);

/* NULL when there is none of that name. */
const struct dpt_manifest_file *dpt_manifest_find(const struct dpt_manifest *manifest,
                                                  const char *name);

/* As sealed JSON; owned text. */
DPT_MUST_USE enum dpt_status dpt_manifest_print(const struct dpt_manifest *manifest,
                                                char **ret_text, size_t *ret_bytes,
                                                struct dpt_err *err);

/* Parses any bytes; `ret` (zeroed) is filled only on success. In a manifest (writer -1) every file
 * stands once and whole, and there are no hashes. DPT_ECORRUPT says what is wrong; DPT_EVERSION for
 * an intact list of another version. `what` names it in errors. */
DPT_MUST_USE enum dpt_status dpt_manifest_parse(const char *text, size_t bytes, const char *what,
                                                struct dpt_manifest *ret, struct dpt_err *err);

#endif
