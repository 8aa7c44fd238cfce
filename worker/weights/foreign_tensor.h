/* Published tensors: their kinds, by their names, and a check of their values. */
#ifndef DPT_WORKER_WEIGHTS_FOREIGN_TENSOR_H
#define DPT_WORKER_WEIGHTS_FOREIGN_TENSOR_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The name of the tensor in a folder of the base model alone: "wte.weight" of
 * "transformer.wte.weight". The name itself if it has no such prefix. */
const char *dpt_foreign_tensor_base_name(const char *name);

/* Whether the tensor has no weights: constants of older releases, and PyTorch's count of the
 * batches of batch norm. */
bool dpt_foreign_tensor_is_buffer(const char *name);

/* Whether the tensor belongs to a head over the vocabulary or over labels. */
bool dpt_foreign_tensor_is_head(const char *name);

/* Bytes of the first part of a base name, without its number: 6 of "layers" in
 * "layers.1.mlp.up_proj.weight", 5 of "layer" in "layer3.0.conv1.weight". */
size_t dpt_foreign_tensor_part_bytes(const char *base);

/* Checks elements [first, end) of tensor `name` in file `path`, which are in `values`.
 * DPT_ECORRUPT: one is NaN or infinite; the line names the file, the tensor and the element. */
DPT_MUST_USE enum dpt_status dpt_foreign_tensor_check_finite(const char *path, const char *name,
                                                             int64_t first, int64_t end,
                                                             const float *values,
                                                             struct dpt_err *err);

#endif
