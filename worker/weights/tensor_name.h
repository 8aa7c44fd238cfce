/* Kinds of published tensors, by their names. */
#ifndef DPT_WORKER_WEIGHTS_TENSOR_NAME_H
#define DPT_WORKER_WEIGHTS_TENSOR_NAME_H

#include <stdbool.h>
#include <stddef.h>

/* The name that a tensor has where the base model alone was saved: "wte.weight" of
 * "transformer.wte.weight". The name itself if it has no such prefix. */
const char *dpt_tensor_base_name(const char *name);

/* Whether the tensor is saved among the weights and holds none: constants of older releases, and
 * PyTorch's count of the batches that batch norm saw. */
bool dpt_tensor_is_buffer(const char *name);

/* Whether it belongs to a head over the vocabulary or over labels. */
bool dpt_tensor_is_head(const char *name);

/* Bytes of the first part of a base name, without its number: 6 of "layers" in
 * "layers.1.mlp.up_proj.weight", 5 of "layer" in "layer3.0.conv1.weight". */
size_t dpt_tensor_part_bytes(const char *base);

#endif
