/* The texts that are to be encoded: which files, in which order, of which kind. */
#ifndef DPT_WORKER_DATA_PREPARE_INPUTS_H
#define DPT_WORKER_DATA_PREPARE_INPUTS_H

#include "base/err.h"
#include "base/hash.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { DPT_INPUTS_MAX = 1000000, DPT_INPUT_DEPTH_MAX = 16 };

enum dpt_split { DPT_SPLIT_TRAIN, DPT_SPLIT_VAL, DPT_SPLIT_COUNT };
extern const char *const dpt_split_names[DPT_SPLIT_COUNT]; /* in files' names and in JSON */

struct dpt_input {
    char *path;
    bool jsonl; /* a JSON object a line; else one text */
    bool val;   /* named as validation text */
    int64_t bytes, changed_s, changed_ns;
};

struct dpt_inputs {
    struct dpt_input *files;
    int n;
    size_t room;
    int64_t bytes;    /* of all files */
    int64_t left_out; /* files of folders with other endings */
};

/* Adds `path`: a file, or every file below a folder whose name ends in one of `endings` (such as
 * "txt,jsonl"), sorted bytewise; names that begin with a dot are passed over. Files that end in
 * .jsonl or .ndjson hold a JSON object a line. Empty files are left out. DPT_EREFUSED: a file is
 * compressed (gzip, zstd) or Parquet, which its first bytes tell. */
DPT_MUST_USE enum dpt_status dpt_inputs_add(struct dpt_inputs *inputs, const char *path,
                                            const char *endings, bool val, struct dpt_err *err);
void dpt_inputs_fini(struct dpt_inputs *inputs);

/* Of every path, kind and size, in order; with the times of their last change, or without. */
void dpt_inputs_hash(const struct dpt_inputs *inputs, bool times, char ret_hex[DPT_HASH_HEX_BYTES]);

/* Opens a file for reading; DPT_ECORRUPT when it is not as it was when it was added. */
DPT_MUST_USE enum dpt_status dpt_input_open(const struct dpt_input *input, int *ret_fd,
                                            struct dpt_err *err);

#endif
