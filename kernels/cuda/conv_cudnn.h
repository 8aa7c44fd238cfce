/* Convolutions by cuDNN, where that is there, y and dx: in bf16 and fp16, of channels that are
 * multiples of 8 on both sides. Everything else is for conv.c's products. Which of the two depends
 * on the shape alone, and on whether there is a cuDNN, which the device's fingerprint says: what
 * cuDNN should do and has no plan for is an error. */
#ifndef DPT_KERNELS_CUDA_CONV_CUDNN_H
#define DPT_KERNELS_CUDA_CONV_CUDNN_H

#include "kernels/cuda/stream.h"

#include <stddef.h>

struct dpt_cudnn_conv {
    struct dpt_windows of;
    int64_t in, out;
    enum dpt_dtype dtype;
    bool back; /* dx of w and dy, else y of x and w */
};

bool dpt_cudnn_conv_takes(int64_t in, int64_t out, enum dpt_dtype dtype);

/* Makes the plan, if there is none, and says what scratch memory a run takes. False with the
 * stream's error set. */
bool dpt_cudnn_conv_plan(struct dpt_cuda_stream *s, const struct dpt_cudnn_conv *c,
                         size_t *ret_scratch);

/* Posts a run of a plan that was made: x and y as kernels/ops.h has them, w (out, kernel, kernel,
 * in). */
void dpt_cudnn_conv_run(struct dpt_cuda_stream *s, const struct dpt_cudnn_conv *c, const void *x,
                        const void *w, const void *y, void *scratch);

/* First runs, as gemm.h says of products. */
size_t dpt_cudnn_conv_cold_bytes(const struct dpt_cuda_stream *s);
void dpt_cudnn_conv_warm_up(struct dpt_cuda_stream *s, void *memory);

/* Nothing may be under way. Accepts a pointer to NULL. */
struct dpt_cudnn_convs;
void dpt_cudnn_convs_destroy(struct dpt_cudnn_convs **convs);

#endif
