/* Writes a Hugging Face folder: config.json, model.safetensors or shards with their index, and
 * copied files. For adapters it writes PEFT's files: adapter_config.json and
 * adapter_model.safetensors, which has no shards. */
#ifndef DPT_WORKER_WEIGHTS_HF_FOLDER_H
#define DPT_WORKER_WEIGHTS_HF_FOLDER_H

#include "checkpoint/safetensors.h"
#include "worker/model/hf_config.h"
#include "worker/weights/weights_source.h"

enum { DPT_WEIGHTS_CHUNK = 1 << 20 }; /* elements that are read at once */

struct dpt_hf_folder_copy {
    char from[DPT_CONFIG_PATH_BYTES]; /* path of the file to copy */
    const char *name;                 /* its name in the folder */
};
enum { DPT_FOLDER_COPIES_MAX = 12 };

struct dpt_hf_folder_spec {
    const struct dpt_config *config;
    struct dpt_hf_beside beside;      /* of config.json; borrowed */
    enum dpt_safetensors_dtype dtype; /* values are rounded to it, ties to even */
    /* Most bytes of tensors in a file; 0: one file, as for adapters. */
    int64_t shard_bytes;
    struct dpt_hf_folder_copy copy[DPT_FOLDER_COPIES_MAX];
    int n_copies;
};

/* Writes folder `dir`, which must not exist. Afterwards it is complete or absent, and durable.
 * Reads the source in order, each element once, through a buffer of a few MiB, and checks the
 * source at the end. DPT_EEXIST: `dir` exists; DPT_EINVAL: fp16 cannot hold a value. */
DPT_MUST_USE enum dpt_status dpt_hf_folder_write(const char *dir,
                                                 const struct dpt_hf_folder_spec *spec,
                                                 const struct dpt_weights_source *source,
                                                 struct dpt_err *err);

#endif
