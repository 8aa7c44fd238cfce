/* What the name of a published tensor says of it. */
#ifndef DPT_WORKER_WEIGHTS_TENSOR_NAME_H
#define DPT_WORKER_WEIGHTS_TENSOR_NAME_H

#include <stdbool.h>
#include <stddef.h>

/* The name that a tensor has where the base model alone was saved: "wte.weight" of
 * "transformer.wte.weight". The name itself if it has no such front. */
const char *dpt_tensor_base_name(const char *name);

/* What is saved among the weights and holds none: constants of older releases, and PyTorch's count
 * of the batches that batch norm saw. */
bool dpt_tensor_is_buffer(const char *name);

/* Of a head over the vocabulary or over labels. */
bool dpt_tensor_is_head(const char *name);

/* Bytes of what a base name begins with, its number left out: 6 of "layers" in
 * "layers.1.mlp.up_proj.weight", 5 of "layer" in "layer3.0.conv1.weight". */
size_t dpt_tensor_part_bytes(const char *base);

#endif
