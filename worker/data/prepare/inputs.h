/* The texts that are to be encoded: their files, in order, with the kind of each. */
#ifndef DPT_WORKER_DATA_PREPARE_INPUTS_H
#define DPT_WORKER_DATA_PREPARE_INPUTS_H

#include "worker/data/data_file.h"

enum { DPT_INPUTS_MAX = 1000000, DPT_INPUT_DEPTH_MAX = 16 };

enum dpt_split { DPT_SPLIT_TRAIN, DPT_SPLIT_VAL, DPT_SPLIT_COUNT };
extern const char *const dpt_split_names[DPT_SPLIT_COUNT]; /* in files' names and in JSON */

struct dpt_input {
    struct dpt_data_file file; /* its path is owned */
    bool jsonl;                /* a JSON object a line; else one text */
    bool val;                  /* named as validation text */
};

struct dpt_inputs {
    struct dpt_input *files;
    int n;
    size_t room;
    int64_t bytes;    /* of all files */
    int64_t left_out; /* files of folders with other endings */
};

/* Adds `path`: a file, or every file below a folder whose name ends in one of `endings` (such as
 * "txt,jsonl"), sorted bytewise; names that begin with a dot are skipped. Files that end in .jsonl
 * or .ndjson hold a JSON object a line. Empty files are left out. DPT_EREFUSED: the first bytes are
 * those of a compressed file (gzip, zstd) or of Parquet. */
DPT_MUST_USE enum dpt_status dpt_inputs_add(struct dpt_inputs *inputs, const char *path,
                                            const char *endings, bool val, struct dpt_err *err);
void dpt_inputs_fini(struct dpt_inputs *inputs);

/* The hash of every path, kind and size, in order; with `times` also of the times of the last
 * changes. */
void dpt_inputs_hash(const struct dpt_inputs *inputs, bool times, char ret_hex[DPT_HASH_HEX_BYTES]);

#endif
