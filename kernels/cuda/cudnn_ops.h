/* Attention and convolutions by cuDNN, if the machine has it. Two things decide whether cuDNN
 * computes an op: its shape, and the presence of cuDNN, which the device's fingerprint names. The
 * kernels and products of this folder compute all other ops. If the shape is one of cuDNN's but
 * cuDNN has no plan for it, the op fails.
 *
 * Attention: heads of up to 128 channels, a multiple of 8, in bf16 and fp16, without dropout.
 * Backward also needs room for the 16-bit scores of one sample; without it, kernels of this folder
 * compute backward from the results of cuDNN's forward. If query heads share keys, cuDNN returns dK
 * and dV by query head, rounded, and our kernels add them. Backward runs on portions of the
 * samples, so that its scratch memory is bounded. The bits of a sample do not depend on the others.
 *
 * Convolutions: y and dx, in bf16 and fp16, if the channels on both sides are multiples of 8. */
#ifndef DPT_KERNELS_CUDA_CUDNN_OPS_H
#define DPT_KERNELS_CUDA_CUDNN_OPS_H

#include "kernels/cuda/stream.h"

#include <stddef.h>

struct dpt_cudnn_entry;

/* The library's version in its own numbering. 0: the machine or this build has no cuDNN. */
size_t dpt_cudnn_version(void);

/* False: cuDNN does not compute this shape. True: the op was posted, or only prepared while the
 * stream prepares, or the stream has the error. */
bool dpt_cudnn_attention_forward(struct dpt_cuda_stream *s, const struct dpt_attention *a);
bool dpt_cudnn_attention_backward(struct dpt_cuda_stream *s, const struct dpt_attention *a);

struct dpt_conv_shape {
    struct dpt_windows of;
    int64_t in, out;
    enum dpt_dtype dtype; /* DPT_BF16, DPT_F16 */
    bool back;            /* dx from w and dy, else y from x and w */
};
bool dpt_cudnn_conv_takes(int64_t in, int64_t out, enum dpt_dtype dtype);
/* Returns the plan and the scratch memory in bytes that a run needs; makes the plan if there is
 * none. The pointer is valid until the next call. NULL with the stream's error set. */
struct dpt_cudnn_entry *dpt_cudnn_conv_plan(struct dpt_cuda_stream *s,
                                            const struct dpt_conv_shape *shape,
                                            size_t *ret_scratch);
/* Posts a run. x and y have the layout of kernels/ops.h, w is (out, kernel, kernel, in). */
void dpt_cudnn_conv_run(struct dpt_cuda_stream *s, struct dpt_cudnn_entry *plan, const void *x,
                        const void *w, const void *y, void *scratch);

/* The first runs of prepared plans. gemm.h gives the reason. */
size_t dpt_cudnn_cold_bytes(const struct dpt_cuda_stream *s);
void dpt_cudnn_warm_up(struct dpt_cuda_stream *s, void *memory);

/* Destroys a stream's plans and handle. No run may be under way. Accepts a pointer to NULL. */
void dpt_cudnn_destroy(struct dpt_cudnn **cudnn);

#endif
