/* The operations of which models and strategies consist, as one const vtable per device
 * (dpt_device_ops).
 *
 * Every op keeps these rules, so that a run computes the same bits however its work is divided:
 * - Bits depend on shapes and values alone: never on the thread count, on the start of a range, or
 * on earlier ops. Shapes alone decide how work is cut. Partial sums are added in chunk order.
 * - `accumulate` false: the op overwrites the output and does not read its old content, which may
 * be NaN. True: the output becomes old + contribution. The contribution has the bits that the op
 * stores when it overwrites.
 * - Outputs never overlap inputs unless the op says so.
 * - An op with a 16-bit `dtype` widens values when it reads them and rounds them once when it
 * stores them (half.h). Sums, statistics, losses and gradients of weights are f32. Products
 * multiply 16-bit operands as they are, or widened where the machine cannot (operand_bytes in
 * ops.def).
 *
 * Shapes: B batch, T sequence length, C channels, H heads, V vocabulary, N = B*T rows. Pointers are
 * f32 unless a `dtype` says otherwise. */
#ifndef DPT_KERNELS_OPS_H
#define DPT_KERNELS_OPS_H

#include "base/device_fn.h"
#include "base/rng.h"
#include "kernels/tensor.h"
#ifdef __cplusplus
/* CUDA's kernels get only the arguments, and device.h is a C header. */
struct dpt_stream;
#else
#include "kernels/device.h"
#endif

#include <stdbool.h>
#include <stdint.h>

/* Dropout whose mask backward draws again. Word i of the random stream `key` is word i%4 of Philox
 * block i/4. Element i of the tensor is kept, and multiplied by 1/(1-p), if word first + i is at
 * least p*2^32; else it becomes 0. With p == 0 nothing is drawn. `first` is 0 for a whole tensor.
 * An op on a part that begins at element e of the tensor sets first = e, so the part gets the bits
 * of the whole. */
struct dpt_dropout {
    float p;
    struct dpt_rng_key key;
    uint64_t first;
};

/* y = x w + bias. The weight and its gradient are (in, out) in memory, as in Hugging Face's Conv1D,
 * or with out_in (out, in), as in PyTorch's nn.Linear. Without bias and GELU, y and dy may be
 * columns of a wider matrix, whose rows are y_stride, or dy_stride, elements apart. A product that
 * is added to y or dx is added to the old value in f32, and then the sum is rounded. */
struct dpt_linear_forward {
    int64_t n, in, out;
    enum dpt_dtype dtype;
    const void *x;      /* (n, in) */
    const void *w;      /* (in, out); out_in: (out, in) */
    const void *bias;   /* (out) or NULL */
    void *y;            /* (n, out) */
    int64_t y_stride;   /* 0: out */
    bool add_y;         /* add to y, else overwrite it; only without bias and GELU */
    void *gelu;         /* (n, out) or NULL; gets gelu(y as stored), tanh form */
    const void *packed; /* w packed (DPT_PACK_LINEAR), or NULL */
    bool out_in;
};

struct dpt_linear_backward {
    int64_t n, in, out;
    enum dpt_dtype dtype;
    const void *x;      /* (n, in) */
    const void *w;      /* (in, out); out_in: (out, in) */
    const void *dy;     /* (n, out) */
    int64_t dy_stride;  /* 0: out */
    void *dx;           /* (n, in) or NULL */
    bool add_dx;        /* add to dx, else overwrite it; only without gelu_x */
    void *dw;           /* f32, shape of w, or NULL */
    void *dbias;        /* (out) f32 or NULL */
    bool accumulate;    /* dw, dbias */
    const void *packed; /* w packed (DPT_PACK_LINEAR), or NULL */
    /* (n, in) or NULL. If set, x is gelu(gelu_x), and dx becomes the gradient of gelu_x. */
    const void *gelu_x;
    bool out_in;
};

/* Layer norm (Ba et al. 2016), y = (x - mean) rstd gamma + beta. Without beta and mean, both NULL,
 * RMS norm (Zhang & Sennrich 2019): y = x rstd gamma, rstd = 1/sqrt(mean(x^2) + eps). */
struct dpt_layernorm_forward {
    int64_t n, c;
    float eps;
    enum dpt_dtype dtype;
    const void *x;            /* (n, c) */
    const void *gamma, *beta; /* (c), (c) or NULL */
    void *y;                  /* (n, c) */
    float *mean, *rstd;       /* (n) or NULL, (n); f32 */
};

/* Gradient of a norm. RMS norm: mean and dbeta are both NULL. A norm that is not trained: dgamma
 * and dbeta are both NULL. */
struct dpt_layernorm_backward {
    int64_t n, c;
    enum dpt_dtype dtype;
    const void *x;            /* (n, c) */
    const void *gamma;        /* (c) */
    const float *mean, *rstd; /* (n) or NULL, (n); f32 */
    const void *dy;           /* (n, c) */
    void *dx;                 /* (n, c) */
    bool add_dx;              /* add to dx (the residual path), else overwrite it */
    float *dgamma, *dbeta;    /* (c) or NULL; f32 */
    bool accumulate;          /* dgamma, dbeta */
};

struct dpt_gelu {
    int64_t n; /* elements */
    enum dpt_dtype dtype;
    const void *x;  /* before the activation */
    const void *dy; /* backward only */
    void *out;      /* forward: gelu(x), tanh form; backward: dx, may be dy itself */
};

/* Causal self-attention, softmax(QK^T/sqrt(head_size))V per head, in one pass over tiles. The T x T
 * scores are never stored. Query head h takes key and value head h / (heads / kv_heads), and
 * kv_heads divides heads (Ainslie et al. 2023, "GQA"; Hugging Face's repeat_kv). The gradient of a
 * key or value head is the sum over its query heads, in their order. A row of qkv has the queries,
 * the keys and the values: W = (heads + 2 kv_heads) * head_size elements. C = heads * head_size.
 * Dropout applies to the probabilities: query t of query head h and key s use mask element
 * ((b*H+h)*T + t)*T + s. */
struct dpt_attention {
    int64_t b, t, heads, kv_heads, head_size;
    enum dpt_dtype dtype;
    struct dpt_dropout dropout;
    const void *qkv; /* (B, T, W) */
    void *y;         /* (B, T, C); read by backward */
    float *lse;      /* (B, H, T) log-sum-exp of the scaled scores; read by backward */
    const void *dy;  /* (B, T, C), backward only */
    void *dqkv;      /* (B, T, W), backward only */
};

/* Rotary position embedding (Su et al. 2021, "RoFormer") in Hugging Face's rotate_half form. The
 * angle of position p and a frequency is (float)p * inv_freq, rounded to f32. Its cosine and its
 * sine are the nearest f32 or a neighbour of it, with the same bits on every device
 * (kernels/rope.h). Positions are below 2^24, and |inv_freq| is at most 1. */
enum { DPT_ROPE_HALF_MAX = 128 };
struct dpt_rope_table {
    int64_t t, first; /* positions first ... first + t - 1 */
    int half;         /* frequencies: half of a head; at most DPT_ROPE_HALF_MAX */
    float inv_freq[DPT_ROPE_HALF_MAX];
    float *cos, *sin; /* (t, half) f32 */
};

/* Rotates the first `heads` heads of each row, which are queries and keys. With j = i +
 * head_size/2, elements i and j of a head become (x_i cos - x_j sin, x_j cos + x_i sin). */
struct dpt_rope {
    int64_t n; /* rows */
    /* Rows of the table. Row i of x uses row i % t of the table. */
    int64_t t;
    int64_t heads, head_size; /* heads * head_size <= stride; head_size is even */
    int64_t stride;           /* elements of a row */
    bool inverse;             /* rotates back, for the gradient in backward */
    enum dpt_dtype dtype;
    const float *cos, *sin; /* (t, head_size/2) */
    void *x;                /* (n, stride), in place */
};

/* SwiGLU (Shazeer 2020): silu(gate) * up, silu(g) = g * sigmoid(g). */
struct dpt_swiglu {
    int64_t n, c; /* rows, width */
    enum dpt_dtype dtype;
    const void *x;  /* (n, 2, c): gate, up */
    const void *dy; /* (n, c), backward only */
    void *out;      /* forward: (n, c); backward: (n, 2, c), the gradient of x */
};

/* y = a + dropout(b). y may be a. */
struct dpt_residual {
    int64_t n; /* elements */
    enum dpt_dtype dtype;
    struct dpt_dropout dropout;
    const void *a, *b;
    void *y;
};

/* sum = a + dropout(b), and then y = layer norm of the rows of sum as stored; without beta and
 * mean, RMS norm. The bits are those of the two ops. sum may be a. */
struct dpt_residual_norm {
    int64_t n, c;
    float eps;
    enum dpt_dtype dtype;
    struct dpt_dropout dropout;
    const void *a, *b;        /* (n, c) */
    void *sum;                /* (n, c) */
    const void *gamma, *beta; /* (c), (c) or NULL */
    void *y;                  /* (n, c) */
    float *mean, *rstd;       /* (n) or NULL, (n); f32 */
};

/* dx = dy times forward's mask and factor. dx may be dy. With p == 0 this is a copy. */
struct dpt_dropout_backward {
    int64_t n;
    enum dpt_dtype dtype;
    struct dpt_dropout dropout;
    const void *dy;
    void *dx;
};

struct dpt_embedding_forward {
    int64_t b, t, c, v;
    enum dpt_dtype dtype;
    struct dpt_dropout dropout;
    const int32_t *tokens; /* (B, T), each in [0, V); checked by the caller */
    const void *wte;       /* (V, C) */
    const void *wpe;       /* (>= T, C); NULL: no position embedding */
    void *y;               /* (B, T, C) = dropout(wte[token] + wpe[t]) */
};

struct dpt_embedding_backward {
    int64_t b, t, c, v;
    int64_t context; /* rows of dwpe; without accumulate_wpe rows >= T become zero */
    enum dpt_dtype dtype;
    struct dpt_dropout dropout;
    const int32_t *tokens;
    const void *dy; /* (B, T, C) */
    float *dwte;    /* (V, C): rows are added in the order of positions */
    float *dwpe;    /* (context, C) or NULL */
    /* accumulate_wte: a weight tied to the head already holds the head's contribution. */
    bool accumulate_wte, accumulate_wpe;
};

/* The head fused with softmax cross-entropy, over a vocabulary or over the labels of a
 * classification. logits = x w^T + bias. The logits exist only once and only for one chunk of rows,
 * which the shape decides. */
struct dpt_head_loss {
    int64_t n, c, v;
    enum dpt_dtype dtype;
    const void *x;          /* (N, C) */
    const void *w;          /* (V, C) */
    const int32_t *targets; /* (N) */
    float *loss;            /* (N) out, nats */
    float dloss;            /* factor of the gradient, e.g. 1/(N*G) */
    void *dx;               /* (N, C), or NULL: losses only */
    float *dw;              /* (V, C), or NULL */
    bool accumulate;        /* dw, dbias */
    const void *packed;     /* w packed (DPT_PACK_HEAD), or NULL */
    /* (N) out, or NULL. 1 if the target is the row's prediction, which is the first of its greatest
     * logits; else 0. 0 if a logit of the row is NaN. */
    float *right;
    const void *bias; /* (V) or NULL */
    float *dbias;     /* (V) or NULL; needs dw and bias */
};

/* Takes the row of each sample's last token, for models with one output per sample. Rows after the
 * last token are padding. */
struct dpt_last_token {
    int64_t b, t, c;
    enum dpt_dtype dtype;
    const int32_t *lengths; /* (B) tokens of each sample, in [1, T]; checked by the caller */
    const void *x;          /* forward: (B, T, C); backward: (B, C), the gradient of its result */
    /* forward: (B, C), row lengths[b] - 1 of each sample. backward: (B, T, C), the gradient in
     * these rows, zero in all others. */
    void *y;
};

/* --- images: (B, H, W, C) in memory, channels innermost ---
 *
 * A window covers kernel x kernel pixels, `kernel` is odd, and its middle lies on every stride-th
 * pixel, beginning with the first pixel. This is PyTorch's padding = kernel / 2. An image of H x W
 * pixels has OH x OW windows: OH = ceil(H / stride), OW = ceil(W / stride). */
struct dpt_windows {
    int64_t b, h, w;        /* each at least 1 */
    int64_t kernel, stride; /* kernel is odd and at most DPT_WINDOW_MAX */
};
enum { DPT_WINDOW_MAX = 15 };

static inline bool dpt_windows_are_valid(const struct dpt_windows *of)
{
    return of->kernel % 2 == 1 && of->kernel <= DPT_WINDOW_MAX && of->stride > 0;
}

DPT_DEVICE_FN int64_t dpt_windows_along(int64_t pixels, int64_t stride)
{
    return (pixels + stride - 1) / stride;
}

/* Convolution as PyTorch's nn.Conv2d without a bias: y is the sum of x times the weight over the
 * window's pixels and channels. Pixels outside of the image are zero. The weight and its gradient
 * have the layout of nn.Conv2d, (out, in, kernel, kernel). */
struct dpt_conv_forward {
    struct dpt_windows of;
    int64_t in, out; /* channels */
    enum dpt_dtype dtype;
    const void *x;      /* (B, H, W, in) */
    const void *weight; /* (out, in, kernel, kernel) */
    void *y;            /* (B, OH, OW, out) */
    const void *packed; /* the weight packed (DPT_PACK_CONV), or NULL */
};

struct dpt_conv_backward {
    struct dpt_windows of;
    int64_t in, out;
    enum dpt_dtype dtype;
    const void *x;      /* (B, H, W, in) */
    const void *weight; /* (out, in, kernel, kernel) */
    const void *dy;     /* (B, OH, OW, out) */
    void *dx;           /* (B, H, W, in) or NULL */
    bool add_dx;        /* add to dx (a shortcut's gradient), else overwrite it */
    float *dw;          /* f32, shape of the weight */
    bool accumulate;    /* dw */
    const void *packed; /* the weight packed (DPT_PACK_CONV), or NULL */
};

/* Batch norm (Ioffe & Szegedy 2015) over the n = B*H*W values of each channel, with the ops that
 * follow it in a residual network (He et al. 2016): y = relu((x - mean) rstd gamma + beta +
 * residual), rstd = 1/sqrt(variance + eps). In training, mean and (biased) variance are computed
 * from the n values, n is at least 2, and the op stores them for backward. In evaluation,
 * running_mean and running_var are given and are used instead. */
struct dpt_batchnorm_forward {
    int64_t n, c;
    float eps;
    enum dpt_dtype dtype;
    const void *x;            /* (n, c) */
    const void *gamma, *beta; /* (c) */
    const void *residual;     /* (n, c) or NULL */
    bool relu;
    void *y;                                /* (n, c) */
    const void *running_mean, *running_var; /* (c) or NULL, both: evaluation */
    float *mean, *rstd, *var; /* (c), f32; var is unbiased: /(n-1). Evaluation: not written */
};

/* Backward of training. The gradient of a running statistic is the micro-batch's statistic times
 * `share`, so its sum over micro-batches is the mean over them. */
struct dpt_batchnorm_backward {
    int64_t n, c;
    enum dpt_dtype dtype;
    const void *x;                  /* (n, c) */
    const void *gamma;              /* (c) */
    const float *mean, *rstd, *var; /* (c), f32, of forward */
    /* (n, c) of a forward with relu: dy counts as zero where y is not above zero. NULL: no relu. */
    const void *y;
    const void *dy;        /* (n, c) */
    void *dx;              /* (n, c) */
    void *dresidual;       /* (n, c) or NULL: the gradient before the relu; may be dy */
    float *dgamma, *dbeta; /* (c), f32 */
    float *dmean, *dvar;   /* (c), f32, of running_mean and running_var; both or none */
    float share;
    bool accumulate; /* dgamma, dbeta, dmean, dvar */
};

/* The greatest value of each window, and its index among the kernel*kernel pixels of the window,
 * row by row. Of equal values the first is taken. A NaN counts as greater than all values, and the
 * last of several NaNs is taken, as in PyTorch. Pixels outside of the image do not count. Backward:
 * the gradient of a pixel is the sum of the gradients of the windows that took it, in the windows'
 * order. */
struct dpt_maxpool {
    struct dpt_windows of;
    int64_t c;
    enum dpt_dtype dtype;
    uint8_t *taken; /* (B, OH, OW, c); read by backward */
    const void *x;  /* forward: (B, H, W, c) */
    void *y;        /* forward: (B, OH, OW, c) */
    const void *dy; /* backward: (B, OH, OW, c) */
    void *dx;       /* backward: (B, H, W, c) */
};

/* The mean over each image's pixels, and its gradient. */
struct dpt_avgpool {
    int64_t b, pixels, c;
    enum dpt_dtype dtype;
    const void *in; /* forward: (b, pixels, c); backward: the gradient (b, c) */
    void *out;      /* forward: (b, c); backward: (b, pixels, c) */
};

/* Packed weights. A weight is the same for all slots of a step, but each product would convert it
 * again into the product's fastest form. `pack` converts it once, into the caller's memory, for all
 * products of the weight's kind, forward and backward. An op that gets the packed form beside w
 * reads the packed form instead of w. The result has the same bits.
 *
 * The packed form is valid on this device and in this process. It depends on the shape and not on
 * the address of w. It holds the values that w had at `pack`: after a change of w the caller packs
 * again or passes no packed form. A device without the op `pack` (CUDA) gets no packed form. */
enum dpt_pack_kind {
    DPT_PACK_LINEAR, /* w (rows = in, cols = out; out_in: rows = out, cols = in) of dpt_linear_* */
    DPT_PACK_HEAD,   /* w (rows = V, cols = C) of dpt_head_loss */
    DPT_PACK_CONV    /* w (rows = out, cols = in * kernel * kernel) of dpt_conv_* */
};

struct dpt_pack {
    enum dpt_pack_kind kind;
    int64_t rows, cols;
    enum dpt_dtype dtype;
    const void *w;
    void *packed;           /* packed_bytes, aligned to 64 */
    bool out_in;            /* of DPT_PACK_LINEAR */
    int64_t kernel, stride; /* of DPT_PACK_CONV */
};

/* One tensor of an optimizer's op: elements [begin, end). Tensors are in ascending order. The op
 * does not change elements between two tensors. */
struct dpt_updated {
    int64_t begin, end;
    bool decays; /* weight_decay applies */
};

/* AdamW (Loshchilov & Hutter 2019; PyTorch's order of operations): g = grad*grad_scale; p -=
 * lr*weight_decay*p; m = b1 m + (1-b1) g; v = b2 v + (1-b2) g^2; p -= lr * (m/bias1) /
 * (sqrt(v/bias2) + eps), bias_i = 1 - b_i^t. With `l2` it is Adam (Kingma & Ba 2015, PyTorch's
 * Adam): g = grad*grad_scale + weight_decay*p, and p has no other decay. */
struct dpt_adamw {
    int64_t n;
    float lr, beta1, beta2, eps, weight_decay;
    bool l2; /* weight_decay is added to the gradient */
    float bias1, bias2, grad_scale;
    float *param, *m, *v; /* (n) each */
    const float *grad;    /* (n) */
    void *copy;           /* (n) or NULL; gets the new param, rounded to copy_dtype */
    enum dpt_dtype copy_dtype;
    /* Host memory, borrowed for the call. NULL: all elements are one tensor, which decays. */
    const struct dpt_updated *tensors;
    int n_tensors;
};

/* Stochastic gradient descent with momentum (Sutskever et al. 2013, in PyTorch's form): g =
 * grad*grad_scale + weight_decay*p; m = momentum*m + g; p -= lr * (nesterov ? g + momentum*m : m).
 * m is zero before the first update. With momentum 0 m is neither read nor written: p -= lr*g. */
struct dpt_sgd {
    int64_t n;
    float lr, momentum, weight_decay, grad_scale;
    bool nesterov;
    float *param;      /* (n) */
    float *m;          /* (n); may be NULL with momentum 0 */
    const float *grad; /* (n) */
    void *copy;        /* as dpt_adamw's */
    enum dpt_dtype copy_dtype;
    const struct dpt_updated *tensors; /* as dpt_adamw's */
    int n_tensors;
};

/* n values of the random stream `key`, from index `first` on. Value i is mean + std * normal(key,
 * i) (dpt_rng_normal_pair). */
struct dpt_normal {
    struct dpt_rng_key key;
    uint64_t first;
    float mean, std;
};

/* n values of the random stream `key`, from index `first` on, uniform on [-bound, bound). Value i
 * is bound * (w / 2^23 - 1), where w is the upper 24 bits of word i % 4 of Philox block i / 4. */
struct dpt_uniform {
    struct dpt_rng_key key;
    uint64_t first;
    float bound;
};

/* The sum of vectors in an order that `joins` gives. The op pushes the vectors on a stack one after
 * another. After vector i it does joins[i] times: it takes the two top vectors off and pushes their
 * sum, rounded to `dtype` (DPT_F32: not rounded). At the end one vector remains, which is the
 * result. The arrays `parts` and `joins` are in device memory as well. */
enum { DPT_SUM_DEPTH_MAX = 16 }; /* of the stack */
struct dpt_ordered_sum {
    int64_t n;
    int n_parts;               /* 1 or more */
    const float *const *parts; /* (n_parts) of (n) */
    const uint8_t *joins;      /* (n_parts) */
    enum dpt_dtype dtype;
    float *dst; /* (n); may be one of the parts */
};

/* --- decoding: one row at a time, all f32. Weights are read once, unpacked. --- */

/* y = x w + bias. */
struct dpt_linear_row {
    int64_t in, out;
    const float *x;    /* (in) */
    const float *w;    /* (in, out); out_in: (out, in) */
    const float *bias; /* (out) or NULL */
    float *y;          /* (out) */
    bool out_in;
};

/* Causal self-attention of the queries of rows first … end-1, over the keys and values of rows 0 …
 * end-1. qkv keeps the rows of earlier calls. Heads and W are those of dpt_attention. */
struct dpt_attention_rows {
    int64_t first, end, heads, kv_heads, head_size;
    const float *qkv; /* (end, W) */
    float *y;         /* (end - first, heads * head_size) */
};

/* The ops. ops.def describes the ops whose arguments are not a struct. */
struct dpt_ops {
#define DPT_OP_VALUES(name, class, parameters, names) void(*name) parameters;
#define DPT_OP_QUERY(name, result, parameters, names) result(*name) parameters;
#include "kernels/ops.def"
};

#endif
