/* Attention by cuDNN, where that is there: heads of up to 128 channels, a multiple of 8, in bf16
 * and fp16, without dropout; backward, where there is room for the scores of a sample, in 16 bits.
 * Where query heads share keys, cuDNN gives dK and dV by query head, rounded, and they are added
 * here.
 * Everything else is for the kernels of this folder, which may also go on from cuDNN's forward.
 * Which of the two depends on the shape alone, and on whether there is a cuDNN, which the device's
 * fingerprint says: what cuDNN should do and has no plan for is an error.
 *
 * Samples go in portions whose scratch is bounded; each one's bits are its own. */
#ifndef DPT_KERNELS_CUDA_ATTENTION_CUDNN_H
#define DPT_KERNELS_CUDA_ATTENTION_CUDNN_H

#include "kernels/cuda/stream.h"

/* The library's version as it numbers it; 0: it is not there, or this build is without. */
size_t dpt_cudnn_version(void);

/* False: the shape is not for cuDNN. True: it was posted (or, while the stream prepares, prepared),
 * or the stream has the error. */
bool dpt_cudnn_attention_forward(struct dpt_cuda_stream *s, const struct dpt_attention_forward *a);
bool dpt_cudnn_attention_backward(struct dpt_cuda_stream *s,
                                  const struct dpt_attention_backward *a);

/* The first runs of what was prepared, as dpt_cuda_gemm_warm_up has them (gemm.h). */
size_t dpt_cudnn_attention_cold_bytes(const struct dpt_cuda_stream *s);
void dpt_cudnn_attention_warm_up(struct dpt_cuda_stream *s, void *memory);

/* A stream's plans and handle. Accepts a pointer to NULL; nothing may be under way. */
void dpt_cudnn_attention_destroy(struct dpt_cudnn_attention **attention);

#endif
