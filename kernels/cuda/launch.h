/* The interface of the .cu files for the C files of this folder: functions that post kernels to a
 * queue.
 *
 * `queue` is a cudaStream_t. After a launch the caller reads the error by cudaGetLastError
 * (stream.h: dpt_cuda_launched). A launch neither waits nor allocates. Pointers are device memory.
 * Arguments without a comment are those of the op of the same name (kernels/ops.h). Counts may be
 * zero. */
#ifndef DPT_KERNELS_CUDA_LAUNCH_H
#define DPT_KERNELS_CUDA_LAUNCH_H

#include "kernels/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Ops that are one launch and need only the queue of the stream: name, struct of arguments, dtype
 * of the elements, the op's name in errors, and the op's precondition. ops.c generates the ops from
 * this list. */
#define DPT_CUDA_LAUNCHED_OPS(X)                                                                   \
    /* pointwise.cu */                                                                             \
    X(gelu_forward, dpt_gelu, a->dtype, "gelu", true)                                              \
    X(gelu_backward, dpt_gelu, a->dtype, "gelu backward", true)                                    \
    X(swiglu_forward, dpt_swiglu, a->dtype, "swiglu", true)                                        \
    X(swiglu_backward, dpt_swiglu, a->dtype, "swiglu backward", true)                              \
    X(residual, dpt_residual, a->dtype, "residual", true)                                          \
    X(ordered_sum, dpt_ordered_sum, a->dtype, "ordered_sum", true)                                 \
    /* norm.cu */                                                                                  \
    X(layernorm_forward, dpt_layernorm_forward, a->dtype, "layernorm", !a->beta == !a->mean)       \
    /* rope.cu */                                                                                  \
    X(rope_table, dpt_rope_table, DPT_F32, "rope table",                                           \
      a->half > 0 && a->half <= DPT_ROPE_HALF_MAX)                                                 \
    X(rope, dpt_rope, a->dtype, "rope",                                                            \
      a->t > 0 && a->heads > 0 && a->head_size % 2 == 0 && a->heads * a->head_size <= a->stride)   \
    /* embedding.cu */                                                                             \
    X(embedding_forward, dpt_embedding_forward, a->dtype, "embedding", true)                       \
    /* last_token.cu */                                                                            \
    X(last_token_forward, dpt_last_token, a->dtype, "last token", true)                            \
    X(last_token_backward, dpt_last_token, a->dtype, "last token backward", true)                  \
    /* images.cu */                                                                                \
    X(maxpool_forward, dpt_maxpool, a->dtype, "max pool", dpt_windows_are_valid(&a->of))           \
    X(maxpool_backward, dpt_maxpool, a->dtype, "max pool backward", dpt_windows_are_valid(&a->of)) \
    X(avgpool_forward, dpt_avgpool, a->dtype, "average pool", true)                                \
    X(avgpool_backward, dpt_avgpool, a->dtype, "average pool backward", true)                      \
    /* decode.cu */                                                                                \
    X(linear_row, dpt_linear_row, DPT_F32, "linear row", true)                                     \
    /* update.cu */                                                                                \
    X(adamw, dpt_adamw, a->copy_dtype, "adamw", true)                                              \
    X(sgd, dpt_sgd, a->copy_dtype, "sgd", true)
/* Ops that also need `bytes` of workspace, aligned to 16. */
#define DPT_CUDA_WORKING_OPS(X)                                                                    \
    /* norm.cu */                                                                                  \
    X(layernorm_backward, dpt_layernorm_backward, "layernorm backward",                            \
      dpt_launch_layernorm_backward_bytes(a->n, a->c),                                             \
      a->dgamma ? !a->dbeta == !a->mean : !a->dbeta)                                               \
    /* embedding.cu */                                                                             \
    X(embedding_backward, dpt_embedding_backward, "embedding backward",                            \
      dpt_launch_embedding_backward_bytes(a->b * a->t, a->c),                                      \
      a->b * a->t <= INT32_MAX && (!a->dwpe || a->t <= a->context))                                \
    /* images.cu */                                                                                \
    X(batchnorm_forward, dpt_batchnorm_forward, "batch norm",                                      \
      dpt_launch_batchnorm_bytes(a->n, a->c),                                                      \
      !a->running_mean == !a->running_var && (a->running_mean || a->n >= 2))                       \
    X(batchnorm_backward, dpt_batchnorm_backward, "batch norm backward",                           \
      dpt_launch_batchnorm_bytes(a->n, a->c), !a->dmean == !a->dvar && !a->dgamma == !a->dbeta)

#define DPT_CUDA_LAUNCHER(name, type, dtype, text, holds)                                          \
    void dpt_launch_##name(void *queue, const struct type *a);
DPT_CUDA_LAUNCHED_OPS(DPT_CUDA_LAUNCHER)
#undef DPT_CUDA_LAUNCHER
#define DPT_CUDA_LAUNCHER(name, type, text, bytes, holds)                                          \
    void dpt_launch_##name(void *queue, const struct type *a, void *work);
DPT_CUDA_WORKING_OPS(DPT_CUDA_LAUNCHER)
#undef DPT_CUDA_LAUNCHER
int64_t dpt_launch_layernorm_backward_bytes(int64_t n, int64_t c);
/* For n positions of c channels: 16 n bytes, 8 c bytes per 32 positions, and at most 8 KiB more. */
int64_t dpt_launch_embedding_backward_bytes(int64_t n, int64_t c);
int64_t dpt_launch_batchnorm_bytes(int64_t n, int64_t c); /* forward and backward */

/* --- pointwise.cu --- */
void dpt_launch_dropout_backward(void *queue, const struct dpt_dropout_backward *a);
void dpt_launch_add(void *queue, int64_t n, const float *a, const float *b, float *dst);
/* Copies `row` (cols) to every row of y (rows, cols). All elements are of `dtype`. */
void dpt_launch_repeat_row(void *queue, enum dpt_dtype dtype, int64_t rows, int64_t cols,
                           const void *row, void *y);
void dpt_launch_cast(void *queue, int64_t n, const float *src, enum dpt_dtype dtype, void *dst);
void dpt_launch_widen(void *queue, int64_t n, enum dpt_dtype dtype, const void *src, float *dst);
void dpt_launch_round_to(void *queue, int64_t n, enum dpt_dtype dtype, float *x);
void dpt_launch_scale(void *queue, int64_t n, enum dpt_dtype dtype, float factor, void *x);
void dpt_launch_fill(void *queue, int64_t n, float value, float *dst);
void dpt_launch_fill_normal(void *queue, int64_t n, const struct dpt_normal *of, float *dst);
void dpt_launch_fill_uniform(void *queue, int64_t n, const struct dpt_uniform *of, float *dst);

/* --- rows.cu --- */
void dpt_launch_sumsq_blocks(void *queue, int64_t n, int64_t block, const float *x, double *ret);
void dpt_launch_orthonormalise(void *queue, int64_t n, int64_t r, float *x);

/* ret[j] = or += the sum over the rows of x. Rows are summed in chunks, and the chunks are added in
 * order. */
struct dpt_launch_column_sums {
    int64_t rows, cols;
    enum dpt_dtype dtype;
    const void *x; /* (rows, cols) */
    bool accumulate;
    float *work; /* dpt_launch_column_sums_floats floats */
    float *ret;  /* (cols) */
};
int64_t dpt_launch_column_sums_floats(int64_t rows, int64_t cols);
void dpt_launch_column_sums(void *queue, const struct dpt_launch_column_sums *a);

/* --- norm.cu --- */
void dpt_launch_residual_norm(void *queue, const struct dpt_residual_norm *a); /* without dropout */

/* --- head.cu --- */
/* Softmax, loss and its gradient, for a chunk of rows of logits. Rows of logits and of dlogits
 * begin at multiples of 32 bytes. They have at least `ld` elements: v, and padding. The padding of
 * the logits may have any content. The padding of the gradients, elements [v, ld) of each row,
 * becomes 0. */
struct dpt_launch_softmax {
    int multiprocessors, shared_bytes; /* of the device; bytes for one block */
    int64_t rows, v, ld;               /* of logits; ld at most 2^30 */
    enum dpt_dtype dtype;              /* of dlogits */
    const float *logits;
    const int32_t *targets; /* (rows) */
    float *loss;            /* (rows) */
    float *right;           /* (rows) or NULL */
    float dloss;
    /* NULL: no gradients. May be the memory of the logits if the rows begin at the same
     * addresses. */
    void *dlogits;
    int64_t dlogits_ld; /* at least ld */
};
/* Returns a cudaError_t: 0 if posted, cudaErrorInvalidValue if rows are not aligned as above. */
int dpt_launch_softmax_loss(void *queue, const struct dpt_launch_softmax *a);

/* The bytes of shared memory that every supported device has for a block; devices of compute
 * capability 8.6, 8.9 and 12.0 have no more. Kernels that can use more get the device's number as
 * an argument. */
enum { DPT_CUDA_SHARED_BYTES_MIN = 99 << 10 };

/* --- attention.cu and attention_grad.cu --- */
enum { DPT_CUDA_HEAD_CHANNELS_MAX = 256 };
void dpt_launch_attention_forward(void *queue, const struct dpt_attention *a);
int64_t dpt_launch_attention_backward_floats(int64_t b, int64_t t, int64_t heads);
/* `shared_bytes` is the device's shared memory for a block. It decides the size of tiles, and so
 * the bits. */
void dpt_launch_attention_backward(void *queue, const struct dpt_attention *a, float *work,
                                   int shared_bytes);
/* For each row, the sum over the heads of a group, in f32 and in the heads' order. */
struct dpt_launch_head_sums {
    int64_t rows, kv_heads, group, head_size;
    int64_t ld; /* of `to` */
    enum dpt_dtype dtype;
    const void *from; /* (rows, kv_heads, group, head_size) */
    void *to;         /* (rows, kv_heads, head_size), rows `ld` apart */
};
void dpt_launch_head_sums(void *queue, const struct dpt_launch_head_sums *a);

/* --- images.cu --- */
struct dpt_launch_conv_weight {
    int64_t out, in, taps; /* taps: kernel * kernel */
    enum dpt_dtype dtype;
};
/* dpt_launch_conv_arrange: to (out, taps, in) = from (out, in, taps), the weight's layout.
 * dpt_launch_conv_restore does the reverse in f32. */
void dpt_launch_conv_arrange(void *queue, const struct dpt_launch_conv_weight *a, const void *from,
                             void *to);
void dpt_launch_conv_restore(void *queue, const struct dpt_launch_conv_weight *a, const float *from,
                             bool accumulate, float *to);
/* dpt_launch_windows: to (windows, kernel, kernel, c) = the windows of x (b, h, w, c), zero outside
 * of the images. dpt_launch_pixels: dx (b, h, w, c) = or += for each pixel, the sum of all elements
 * of `from` that are copies of that pixel. */
void dpt_launch_windows(void *queue, const struct dpt_windows *of, int64_t c, enum dpt_dtype dtype,
                        const void *x, void *to);
struct dpt_launch_pixels {
    struct dpt_windows of;
    int64_t c;
    enum dpt_dtype dtype;
    const float *from;
    bool add;
    void *dx;
};
void dpt_launch_pixels(void *queue, const struct dpt_launch_pixels *a);

/* --- decode.cu --- */
/* The number of positions whose scores fit into `shared_bytes` of a block. */
int64_t dpt_launch_attention_rows_max(int shared_bytes);
void dpt_launch_attention_rows(void *queue, const struct dpt_attention_rows *a);

#ifdef __cplusplus
}
#endif

#endif
