/* Attention and convolutions by cuDNN, where that is there. Which shapes are cuDNN's depends on the
 * shape alone, and on whether there is a cuDNN, which the device's fingerprint says. All others are
 * for the kernels and products of this folder. A shape of cuDNN's that it has no plan for is an
 * error.
 *
 * Attention: heads of up to 128 channels, a multiple of 8, in bf16 and fp16, without dropout;
 * backward, where there is room for the scores of a sample, in 16 bits. Kernels of this folder may
 * also go on from cuDNN's forward. Where query heads share keys, cuDNN gives dK and dV by query
 * head, rounded, and they are added here. Samples go in portions whose scratch is bounded; the bits
 * of a sample do not depend on the others.
 *
 * Convolutions: y and dx, in bf16 and fp16, of channels that are multiples of 8 on both sides. */
#ifndef DPT_KERNELS_CUDA_CUDNN_OPS_H
#define DPT_KERNELS_CUDA_CUDNN_OPS_H

#include "kernels/cuda/stream.h"

#include <stddef.h>

struct dpt_cudnn_entry;

/* The library's version as it numbers it; 0: it is not there, or this build is without. */
size_t dpt_cudnn_version(void);

/* False: the shape is not for cuDNN. True: it was posted (or, while the stream prepares, prepared),
 * or the stream has the error. */
bool dpt_cudnn_attention_forward(struct dpt_cuda_stream *s, const struct dpt_attention *a);
bool dpt_cudnn_attention_backward(struct dpt_cuda_stream *s, const struct dpt_attention *a);

struct dpt_conv_shape {
    struct dpt_windows of;
    int64_t in, out;
    enum dpt_dtype dtype; /* DPT_BF16, DPT_F16 */
    bool back;            /* dx of w and dy, else y of x and w */
};
bool dpt_cudnn_conv_takes(int64_t in, int64_t out, enum dpt_dtype dtype);
/* The plan, made if there is none, and the scratch memory that a run takes. It is valid until the
 * next one is asked for. NULL with the stream's error set. */
struct dpt_cudnn_entry *dpt_cudnn_conv_plan(struct dpt_cuda_stream *s,
                                            const struct dpt_conv_shape *shape,
                                            size_t *ret_scratch);
/* Posts a run: x and y as kernels/ops.h has them, w (out, kernel, kernel, in). */
void dpt_cudnn_conv_run(struct dpt_cuda_stream *s, struct dpt_cudnn_entry *plan, const void *x,
                        const void *w, const void *y, void *scratch);

/* The first runs of prepared plans, as gemm.h has the first runs of products. */
size_t dpt_cudnn_cold_bytes(const struct dpt_cuda_stream *s);
void dpt_cudnn_warm_up(struct dpt_cuda_stream *s, void *memory);

/* A stream's plans and handle. Accepts a pointer to NULL; nothing may be under way. */
void dpt_cudnn_destroy(struct dpt_cudnn **cudnn);

#endif
