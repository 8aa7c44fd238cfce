/* The header of a safetensors file: eight bytes of length N, N bytes of JSON, then the data
 * (https://huggingface.co/docs/safetensors, "Format"). Printing and parsing are strict: the tensors
 * are contiguous from the start of the data to the end of the file, and no name occurs twice. */
#ifndef DPT_CHECKPOINT_SAFETENSORS_H
#define DPT_CHECKPOINT_SAFETENSORS_H

#include "base/err.h"
#include "checkpoint/checkpoint.h"

#include <stddef.h>
#include <stdint.h>

enum {
    DPT_SAFETENSORS_LENGTH_BYTES = 8,
    DPT_SAFETENSORS_HEADER_BYTES_MAX = 100000000,
    DPT_SAFETENSORS_ALIGN = 64 /* the data in our files starts at a multiple of this */
};

enum dpt_safetensors_dtype {
    DPT_SAFETENSORS_F32,
    DPT_SAFETENSORS_BF16,
    DPT_SAFETENSORS_F16,
    DPT_SAFETENSORS_OTHER /* only its name is kept */
};
enum { DPT_SAFETENSORS_DTYPE_BYTES = 16 };

struct dpt_safetensors_entry {
    char *name;
    enum dpt_safetensors_dtype dtype;
    char dtype_name[DPT_SAFETENSORS_DTYPE_BYTES]; /* truncated when longer */
    int ndim;
    int64_t dim[DPT_CHECKPOINT_NDIM_MAX];
    int64_t begin, end; /* bytes of the file (not of the data) */
};

/* Zero-initialise; owns its entries, which are in the order of the data. */
struct dpt_safetensors {
    struct dpt_safetensors_entry *entries;
    int n;
};

void dpt_safetensors_fini(struct dpt_safetensors *header);

/* Bytes of a tensor's data; DPT_EINVAL: name, number of dimensions or size is out of range. */
DPT_MUST_USE enum dpt_status
dpt_safetensors_tensor_bytes(const struct dpt_checkpoint_tensor *tensor, int64_t *ret_bytes,
                             struct dpt_err *err);

/* Prints the length and the JSON of a file that holds these tensors one after another, in one
 * dtype. Blanks after the JSON align the data. Owned. */
DPT_MUST_USE enum dpt_status dpt_safetensors_print(const struct dpt_checkpoint_tensor *tensors,
                                                   int n_tensors, enum dpt_safetensors_dtype dtype,
                                                   char **ret_head, size_t *ret_bytes,
                                                   struct dpt_err *err);

/* The length from a file's first eight bytes. */
DPT_MUST_USE enum dpt_status
dpt_safetensors_parse_length(const uint8_t head[DPT_SAFETENSORS_LENGTH_BYTES], int64_t file_bytes,
                             const char *what, size_t *ret_json_bytes, struct dpt_err *err);

/* Bytes of an element; 0 for OTHER. */
int64_t dpt_safetensors_width(enum dpt_safetensors_dtype dtype);

/* Parses the JSON (any bytes) of a file of `file_bytes` bytes. `ret` (zeroed) is filled only on
 * success; DPT_ECORRUPT names the error; `what` names the file. Tensors may have any dtype. */
DPT_MUST_USE enum dpt_status dpt_safetensors_parse(const char *json, size_t json_bytes,
                                                   int64_t file_bytes, const char *what,
                                                   struct dpt_safetensors *ret,
                                                   struct dpt_err *err);

/* DPT_EUNSUPPORTED names a tensor that is not F32. Our own files have F32 only. */
DPT_MUST_USE enum dpt_status dpt_safetensors_check_f32(const struct dpt_safetensors *header,
                                                       const char *what, struct dpt_err *err);

#endif
