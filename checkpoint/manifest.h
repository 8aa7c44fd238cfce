/* The list of a checkpoint's files with their sizes and block checksums: MANIFEST.json, and the
 * report of each writer (part-NNNNN.json). Writer 0 joins the reports to the manifest.
 *
 * Both are sealed JSON: an object whose last member "crc32c" is the CRC32C of the whole text, in
 * which the eight digits of this member count as zeros. So damage to the list is reported as damage
 * to the list, never as damage to a file. */
#ifndef DPT_CHECKPOINT_MANIFEST_H
#define DPT_CHECKPOINT_MANIFEST_H

#include "base/err.h"
#include "base/hash.h"
#include "checkpoint/io.h"

#include <stddef.h>
#include <stdint.h>

enum {
    DPT_CHECKPOINT_BLOCK_BYTES = 1 << 20,
    DPT_MANIFEST_BYTES_MAX = 256 << 20, /* enough for a checkpoint of about 30 TB */
    DPT_MANIFEST_FILES_MAX = 4096,
    DPT_MANIFEST_RUNS_MAX = 1 << 20, /* of all writers together */
    DPT_MANIFEST_HASHES_MAX = 1 << 24
};

/* Bytes [first, first + bytes) of a file. In a manifest this is the whole file. In a report it is a
 * run, which the writer wrote without a gap. */
struct dpt_manifest_file {
    char *name;
    int64_t first, bytes;
    /* One checksum for each block (DPT_CHECKPOINT_BLOCK_BYTES of the file) that the run touches,
     * over the bytes of the run in this block. Only the first and the last block may be partial. */
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
    int writer, n_writers; /* writer: -1 in the manifest itself */
    /* In a report: a tensor with a value that is not finite; "": none. */
    char not_finite[128];
    struct dpt_manifest_file *files;
    int n_files;
    size_t files_room;
    struct dpt_manifest_hashes *hashes;
    int n_hashes;
    size_t hashes_room;
};

void dpt_manifest_fini(struct dpt_manifest *manifest);

/* Adds an empty run that begins at byte `first` of the file; the pointer is valid until the next
 * call. */
DPT_MUST_USE enum dpt_status dpt_manifest_add(struct dpt_manifest *manifest, const char *name,
                                              int64_t first, struct dpt_manifest_file **ret,
                                              struct dpt_err *err);

/* Appends bytes to the run, any number of them. */
DPT_MUST_USE enum dpt_status dpt_manifest_add_bytes(struct dpt_manifest_file *run, const void *data,
                                                    size_t bytes, struct dpt_err *err);

/* Adds the hash of block `block` of the weights hash. */
DPT_MUST_USE enum dpt_status dpt_manifest_add_hash(struct dpt_manifest *manifest, int64_t block,
                                                   struct dpt_hash128 hash, struct dpt_err *err);

/* Moves runs and hashes of `part` into `manifest`, leaving `part` empty. */
DPT_MUST_USE enum dpt_status dpt_manifest_take(struct dpt_manifest *manifest,
                                               struct dpt_manifest *part, struct dpt_err *err);

/* Joins the runs to whole files, in the order of their names. Joins the checksums of a block that
 * several runs share (dpt_crc32c_join). DPT_ECORRUPT: no writer reports a byte, or several writers
 * report it. The caller checks the length of each file. */
DPT_MUST_USE enum dpt_status dpt_manifest_join(struct dpt_manifest *manifest, struct dpt_err *err);

/* NULL: no file has the name. */
const struct dpt_manifest_file *dpt_manifest_find(const struct dpt_manifest *manifest,
                                                  const char *name);

/* Prints the manifest as sealed JSON; owned text. */
DPT_MUST_USE enum dpt_status dpt_manifest_print(const struct dpt_manifest *manifest,
                                                char **ret_text, size_t *ret_bytes,
                                                struct dpt_err *err);

/* Parses any bytes; `ret` (zeroed) is filled only on success. In a manifest (writer -1) every file
 * is listed once and whole, and there are no hashes. DPT_ECORRUPT names the error; DPT_EVERSION: an
 * intact list of another version. `what` is the file's name in errors. */
DPT_MUST_USE enum dpt_status dpt_manifest_parse(const char *text, size_t bytes, const char *what,
                                                struct dpt_manifest *ret, struct dpt_err *err);

/* Reads and parses file `name` of `folder`; DPT_ENOENT: there is none. */
DPT_MUST_USE enum dpt_status dpt_manifest_read(const struct dpt_folder *folder, const char *name,
                                               struct dpt_manifest *ret, struct dpt_err *err);

#endif
