/* What the files of the Llama family share: sizes, the order of a block's tensors, and where a
 * slot's activations lie. Inside this folder only.
 *
 * Units: 0 embedding, 1 … L blocks, L+1 head. B, T, N = B*T, C = n_embd, H = n_head, K = n_kv_head,
 * D = head_size, I = n_inner, V = vocab as in ops.h; Q = H*D, R = (H + 2*K)*D a row of queries,
 * keys and values. Weights are (out, in), as PyTorch's nn.Linear has them. */
#ifndef DPT_WORKER_MODEL_LLAMA_H
#define DPT_WORKER_MODEL_LLAMA_H

#include "worker/model/kind.h"

/* A block's tensors, in the order of the table; biases are there where the config says so. Those of
 * queries, keys and values follow each other without gaps, and so do those of gate and up: each
 * group is one matrix (R, C) or (2*I, C) to products. */
enum dpt_llama_tensor {
    DPT_LLAMA_NORM_1, /* (C) */
    DPT_LLAMA_Q_W,    /* (Q, C) */
    DPT_LLAMA_K_W,    /* (K*D, C) */
    DPT_LLAMA_V_W,    /* (K*D, C) */
    DPT_LLAMA_Q_B,    /* (Q) */
    DPT_LLAMA_K_B,    /* (K*D) */
    DPT_LLAMA_V_B,    /* (K*D) */
    DPT_LLAMA_O_W,    /* (C, Q) */
    DPT_LLAMA_O_B,    /* (C) */
    DPT_LLAMA_NORM_2, /* (C) */
    DPT_LLAMA_GATE_W, /* (I, C) */
    DPT_LLAMA_UP_W,   /* (I, C) */
    DPT_LLAMA_GATE_B, /* (I) */
    DPT_LLAMA_UP_B,   /* (I) */
    DPT_LLAMA_DOWN_W, /* (C, I) */
    DPT_LLAMA_DOWN_B, /* (C) */
    DPT_LLAMA_TENSORS
};

enum { DPT_LLAMA_EMBEDDING = 0 }; /* parameter index; (V, C), a tied head's weight too */

/* The config's, as config.json has them. */
struct dpt_llama_rope {
    double theta;
    enum dpt_rope_scaling scaling;
    double factor, low_freq_factor, high_freq_factor;
    int original_context;
};

struct dpt_llama {
    struct dpt_model base;
    int layers;
    int64_t heads, kv_heads, head, c, inner;
    int64_t q, row;      /* Q, R */
    double eps, dropout; /* of the norms; of attention's probabilities */
    struct dpt_llama_rope rope;
    bool tied; /* the head to the embedding; never with labels */
    enum dpt_activation_checkpointing checkpointing;
    int place[DPT_LLAMA_TENSORS]; /* of a tensor among its block's; -1: there is none */
    int block_tensors;
    float inv_freq[DPT_ROPE_HALF_MAX]; /* (D/2) of the rotary embeddings, scaled */
};

/* A slot's activations, in the compute dtype but for statistics and the rotary table. The residual
 * stream is kept at each block's two norms; its gradient flows through `dstream`.
 *
 * Activation checkpointing as in gpt2.h: `selective` drops the norms' outputs and SwiGLU's, `full`
 * keeps a block's output alone. */
struct dpt_llama_saved {
    void *dstream;    /* (N, C); before that, with labels, the head's rows */
    void *x0;         /* (N, C) the embedding's output */
    float *cos, *sin; /* (T, D/2) of the rotary embeddings; made by the embedding's forward */
};

struct dpt_llama_block_saved {
    const void *x; /* (N, C) the block's input: the output of the unit before */
    void *out;     /* (N, C) */
    /* Kept but with `full`. */
    float *rstd1, *rstd2; /* (N) */
    void *qkv;            /* (N, R), queries and keys rotated */
    float *lse;           /* (B, H, T) */
    void *att;            /* (N, Q) */
    void *mid;            /* (N, C) the residual stream after attention */
    void *gate_up;        /* (N, 2, I) */
    /* Kept with `none` alone. */
    void *norm1, *norm2; /* (N, C) */
    void *act;           /* (N, I) */
};

struct dpt_llama_block_bytes {
    size_t saved, scratch;
};

/* Scratch of one call, before what is not kept of a block. */
struct dpt_llama_scratch {
    void *wide;  /* (N, max(2*I, R)) */
    void *inner; /* (N, I) */
    void *a, *b; /* (N, max(C, Q)) */
    float *rstd; /* (N), the head's */
};

/* Pointers into slot->saved and slot->scratch. Each returns the bytes it covers in *ret_bytes if
 * that is not NULL: a block's, those in slot->saved and in slot->scratch. */
struct dpt_llama_saved dpt_llama_saved(const struct dpt_llama *m, const struct dpt_slot *slot,
                                       size_t *ret_bytes);
struct dpt_llama_block_saved dpt_llama_block_saved(const struct dpt_llama *m,
                                                   const struct dpt_slot *slot, int layer,
                                                   struct dpt_llama_block_bytes *ret_bytes);
struct dpt_llama_scratch dpt_llama_scratch(const struct dpt_llama *m, const struct dpt_slot *slot,
                                           size_t *ret_bytes);

/* Table index of a block's tensor, -1 where it has none; of the last norm's weight; of the head's
 * weight. */
int dpt_llama_block_param(const struct dpt_llama *m, int layer, enum dpt_llama_tensor tensor);
int dpt_llama_last_norm(const struct dpt_llama *m);
int dpt_llama_head(const struct dpt_llama *m);

/* A product of a block: parameters that are one matrix (out, in), and one bias, to it. */
struct dpt_llama_product {
    int weight, n_weights;
    int bias, n_biases; /* -1, 0: none */
    int64_t in, out;
};
enum dpt_llama_product_name {
    DPT_LLAMA_QKV,
    DPT_LLAMA_O,
    DPT_LLAMA_GATE_UP,
    DPT_LLAMA_DOWN,
    DPT_LLAMA_PRODUCTS
};
struct dpt_llama_product dpt_llama_product(const struct dpt_llama *m, int layer,
                                           enum dpt_llama_product_name name);

void dpt_llama_forward(const struct dpt_model *model, const struct dpt_ops *ops,
                       struct dpt_stream *stream, int unit, const struct dpt_slot *slot);
void dpt_llama_backward(const struct dpt_model *model, const struct dpt_ops *ops,
                        struct dpt_stream *stream, int unit, const struct dpt_slot *slot);

/* For backward: what the block's forward made and did not keep. */
void dpt_llama_recompute(const struct dpt_llama *m, const struct dpt_ops *ops,
                         struct dpt_stream *stream, int layer, const struct dpt_slot *slot);

size_t dpt_llama_cache_bytes(const struct dpt_model *model);
size_t dpt_llama_decode_bytes(const struct dpt_model *model, int64_t n);
void dpt_llama_decode(const struct dpt_model *model, const struct dpt_ops *ops,
                      struct dpt_stream *stream, const struct dpt_decode *decode);

#endif
