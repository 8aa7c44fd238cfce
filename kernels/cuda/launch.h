/* What the .cu files give to the C files of this folder: functions that post kernels to a queue.
 *
 * `queue` is a cudaStream_t. Each returns a cudaError_t as an int, 0 for posted; nothing waits, and
 * nothing is allocated. Pointers are of the device. Arguments are those of the ops (kernels/ops.h)
 * of the same name where no others are given. Counts may be zero: then nothing is posted. */
#ifndef DPT_KERNELS_CUDA_LAUNCH_H
#define DPT_KERNELS_CUDA_LAUNCH_H

#include "kernels/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* --- pointwise.cu --- */
int dpt_launch_gelu(void *queue, const struct dpt_gelu *a);
int dpt_launch_gelu_grad(void *queue, const struct dpt_gelu *a);
int dpt_launch_swiglu(void *queue, const struct dpt_swiglu *a);
int dpt_launch_swiglu_grad(void *queue, const struct dpt_swiglu *a);
int dpt_launch_residual(void *queue, const struct dpt_residual *a);
int dpt_launch_dropout_backward(void *queue, const struct dpt_dropout_backward *a);
int dpt_launch_add(void *queue, int64_t n, const float *a, const float *b, float *dst);
/* Every row of y (rows, cols) becomes `row` (cols), all of `dtype`. */
int dpt_launch_repeat_row(void *queue, enum dpt_dtype dtype, int64_t rows, int64_t cols,
                          const void *row, void *y);
int dpt_launch_ordered_sum(void *queue, const struct dpt_ordered_sum *a);
int dpt_launch_cast(void *queue, int64_t n, const float *src, enum dpt_dtype dtype, void *dst);
int dpt_launch_widen(void *queue, int64_t n, enum dpt_dtype dtype, const void *src, float *dst);
int dpt_launch_round_to(void *queue, int64_t n, enum dpt_dtype dtype, float *x);
int dpt_launch_scale(void *queue, int64_t n, enum dpt_dtype dtype, float factor, void *x);
int dpt_launch_fill(void *queue, int64_t n, float value, float *dst);
int dpt_launch_fill_normal(void *queue, int64_t n, struct dpt_rng_key key, uint64_t first,
                           float mean, float std, float *dst);
int dpt_launch_fill_uniform(void *queue, int64_t n, struct dpt_rng_key key, uint64_t first,
                            float bound, float *dst);

/* --- rope.cu --- */
int dpt_launch_rope_table(void *queue, const struct dpt_rope_table *a);
int dpt_launch_rope(void *queue, const struct dpt_rope *a);

/* --- update.cu --- */
int dpt_launch_adamw(void *queue, const struct dpt_adamw *a);
int dpt_launch_sgd(void *queue, const struct dpt_sgd *a);

/* --- rows.cu --- */
int dpt_launch_sumsq_blocks(void *queue, int64_t n, int64_t block, const float *x, double *ret);
int dpt_launch_orthonormalise(void *queue, int64_t n, int64_t r, float *x);

/* ret[j] (+)= sum over rows of x (rows, cols), of `dtype`, in chunks of rows that are joined in
 * order. `work` as _floats says. */
int64_t dpt_launch_column_sums_floats(int64_t rows, int64_t cols);
int dpt_launch_column_sums(void *queue, enum dpt_dtype dtype, int64_t rows, int64_t cols,
                           const void *x, bool accumulate, float *work, float *ret);

int dpt_launch_layernorm_forward(void *queue, const struct dpt_layernorm_forward *a);
int dpt_launch_residual_norm(void *queue, const struct dpt_residual_norm *a); /* no dropout */
int64_t dpt_launch_layernorm_backward_floats(int64_t n, int64_t c);
int dpt_launch_layernorm_backward(void *queue, const struct dpt_layernorm_backward *a, float *work);

/* --- embedding.cu --- */
int dpt_launch_embedding_forward(void *queue, const struct dpt_embedding_forward *a);
/* Bytes of `work`, which is aligned to 16, for n positions of c channels: 16 n, 8 c for each 32
 * positions, and at most 8 KiB. */
int64_t dpt_launch_embedding_backward_bytes(int64_t n, int64_t c);
int dpt_launch_embedding_backward(void *queue, const struct dpt_embedding_backward *a, void *work);

/* --- head.cu --- */
/* Softmax, loss and its gradient, for a chunk of rows of logits. Rows of both begin at multiples of
 * 32 bytes and have `ld` elements at least: v, and padding. What the logits' padding holds changes
 * nothing; the padding of the gradients, elements [v, ld) of each row, becomes 0. */
struct dpt_launch_softmax {
    int64_t rows, v, ld;  /* of logits; ld at most 2^30 */
    enum dpt_dtype dtype; /* of dlogits */
    const float *logits;
    const int32_t *targets; /* (rows) */
    float *loss;            /* (rows) */
    float *right;           /* (rows) or NULL */
    float dloss;
    void *dlogits; /* NULL: none; may be where the logits are, their rows then in the same places */
    int64_t dlogits_ld; /* at least ld */
};
int dpt_launch_softmax_loss(void *queue, const struct dpt_launch_softmax *a);

int dpt_launch_last_token(void *queue, const struct dpt_last_token *a);
int dpt_launch_last_token_grad(void *queue, const struct dpt_last_token *a);

/* Bytes of shared memory that any device has for a block: those of compute capability 8.6, 8.9 and
 * 12.0 have no more. Kernels that can use more are told how much there is. */
enum { DPT_CUDA_SHARED_BYTES_MIN = 99 << 10 };

/* --- attention.cu and attention_grad.cu --- */
enum { DPT_CUDA_HEAD_CHANNELS_MAX = 256 };
int dpt_launch_attention_forward(void *queue, const struct dpt_attention_forward *a);
int64_t dpt_launch_attention_backward_floats(int64_t b, int64_t t, int64_t heads);
/* `shared_bytes`, what the device has for a block, decides between tiles, and so the bits. */
int dpt_launch_attention_backward(void *queue, const struct dpt_attention_backward *a, float *work,
                                  int shared_bytes);
/* Of each row, the sum over the heads of a group, in f32 and in their order. */
struct dpt_launch_head_sums {
    int64_t rows, kv_heads, group, head_size;
    int64_t ld; /* of `to` */
    enum dpt_dtype dtype;
    const void *from; /* (rows, kv_heads, group, head_size) */
    void *to;         /* (rows, kv_heads, head_size), rows `ld` apart */
};
int dpt_launch_head_sums(void *queue, const struct dpt_launch_head_sums *a);

/* --- images.cu --- */
struct dpt_launch_conv_weight {
    int64_t out, in, taps; /* taps: kernel * kernel */
    enum dpt_dtype dtype;
};
/* to (out, taps, in) = from (out, in, taps), the table's; and in f32 back. */
int dpt_launch_conv_arrange(void *queue, const struct dpt_launch_conv_weight *a, const void *from,
                            void *to);
int dpt_launch_conv_restore(void *queue, const struct dpt_launch_conv_weight *a, const float *from,
                            bool accumulate, float *to);
/* to (windows, kernel, kernel, c) = those of x (b, h, w, c), zero outside of the images; and dx (b,
 * h, w, c) = or += of each pixel the sum of all places in `from` that are that pixel. */
int dpt_launch_windows(void *queue, const struct dpt_windows *of, int64_t c, enum dpt_dtype dtype,
                       const void *x, void *to);
int dpt_launch_pixels(void *queue, const struct dpt_windows *of, int64_t c, enum dpt_dtype dtype,
                      const float *from, bool add, void *dx);
int64_t dpt_launch_batchnorm_floats(int64_t n, int64_t c); /* of `work`, both ways */
int dpt_launch_batchnorm_forward(void *queue, const struct dpt_batchnorm_forward *a, float *work);
int dpt_launch_batchnorm_backward(void *queue, const struct dpt_batchnorm_backward *a, float *work);
int dpt_launch_maxpool_forward(void *queue, const struct dpt_maxpool_forward *a);
int dpt_launch_maxpool_backward(void *queue, const struct dpt_maxpool_backward *a);
int dpt_launch_avgpool_forward(void *queue, const struct dpt_avgpool *a);
int dpt_launch_avgpool_backward(void *queue, const struct dpt_avgpool *a);

/* --- decode.cu --- */
int dpt_launch_linear_row(void *queue, const struct dpt_linear_row *a);
/* Positions whose scores fit into `shared_bytes` of a block. */
int64_t dpt_launch_attention_rows_max(int shared_bytes);
int dpt_launch_attention_rows(void *queue, const struct dpt_attention_rows *a);
int dpt_launch_logits(void *queue, const struct dpt_logits *a);

#ifdef __cplusplus
}
#endif

#endif
