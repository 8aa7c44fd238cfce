/* Convolutions' packed form: the weight as (out, kernel, kernel, in). For kernels/cuda only. */
#ifndef DPT_KERNELS_CUDA_CONV_H
#define DPT_KERNELS_CUDA_CONV_H

#include "kernels/cuda/stream.h"

/* DPT_PACK_CONV. */
void dpt_cuda_conv_pack(struct dpt_cuda_stream *s, const struct dpt_pack *a);

#endif
