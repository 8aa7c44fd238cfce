/* GPT-2 and the Llama family as one network: units, the places of a slot's activations, and the
 * helpers that forward, backward and decoding share. gpt2.c and llama.c have the differences: the
 * table of parameters, and the fields of struct dpt_transformer. Only for this folder.
 *
 * Units: 0 embedding, 1 … L blocks, L+1 head. A block is x += dropout(O(attention(QKV(norm_1(x)))))
 * and x += dropout(DOWN(activation(UP(norm_2(x))))). B, T, N = B*T, V = vocab as in ops.h; C =
 * n_embd, H = n_head, K = n_kv_head, D = head_size, I = n_inner; Q = H*D, R = (H + 2*K)*D a row of
 * queries, keys and values; U = I, with gates 2*I. */
#ifndef DPT_WORKER_MODEL_TRANSFORMER_H
#define DPT_WORKER_MODEL_TRANSFORMER_H

#include "worker/model/kind.h"

/* A block's products. */
enum dpt_product_name {
    DPT_PRODUCT_QKV,  /* C to R */
    DPT_PRODUCT_O,    /* Q to C */
    DPT_PRODUCT_UP,   /* C to U */
    DPT_PRODUCT_DOWN, /* I to C */
    DPT_PRODUCTS
};

/* The parameters of a product: n weights, which it reads as one matrix, and after them n biases,
 * which it reads as one vector. In struct dpt_transformer `weight` and `bias` are places among the
 * block's parameters; elsewhere they are indices in the table. */
struct dpt_product {
    int weight, bias; /* of the first one; bias -1: no biases */
    int n;
    int64_t in, out;
};

/* The sites of dropout; a site is the third part of the key of its random numbers. In a block the
 * site is first_site + sites_per_block * layer + one of the last three values. */
enum {
    DPT_SITE_EMBEDDING = 0,
    DPT_SITE_ATTENTION = 0, /* probabilities */
    DPT_SITE_ATTENTION_RESIDUAL = 1,
    DPT_SITE_MLP_RESIDUAL = 2
};

/* Parameter index; (V, C), also the weight of a tied head. */
enum { DPT_TRANSFORMER_EMBEDDING = 0 };

struct dpt_transformer {
    struct dpt_model base;
    int layers;
    int64_t heads, kv_heads, head, c, inner;
    int64_t q, row, up; /* Q, R, U */
    float eps;          /* of the norms */
    bool norm_bias;     /* layer norms, each with a bias after its weight; else RMS norms */
    bool positions;     /* the parameter after the embedding, (context, C), is added to it */
    bool gated;         /* the activation is SwiGLU, else GELU */
    bool rope;          /* queries and keys are rotated */
    bool tied;          /* the head's weight is the embedding; never with labels */
    /* attention_dropout: of attention's probabilities. dropout: of the embedding and of residual
     * branches. */
    double attention_dropout, dropout;
    int first_site, sites_per_block;
    enum dpt_activation_checkpointing checkpointing;
    int norm[2]; /* places of the norms' weights in a block */
    struct dpt_product products[DPT_PRODUCTS];
    float inv_freq[DPT_ROPE_HALF_MAX]; /* (D/2) of the rotary embeddings, scaled */
};

/* A norm's input and output (N, C), and its statistics (N); `mean` NULL: an RMS norm. */
struct dpt_normed {
    const void *x;
    float *mean, *rstd;
    void *y;
};

/* A slot's activations, in the compute dtype but for statistics and the rotary table. The residual
 * stream is kept at each block's two norms; its gradient flows through `dstream`.
 *
 * With activation checkpointing (Chen et al., arXiv:1604.06174) only some of a block's activations
 * are in slot->saved. The others are in slot->scratch, in one place that all blocks share. Forward
 * writes them, and backward computes them again (dpt_transformer_recompute). The same ops, inputs
 * and dropout keys give the same bits. `selective` keeps the results of products and of attention,
 * and drops those of cheap elementwise passes: the outputs of the norms and of the activation
 * (attention's probabilities are never stored). `full` keeps only a block's output, which is the
 * next unit's input. */
struct dpt_transformer_saved {
    void *dstream;    /* (N, C); with labels it first has the head's rows */
    void *x0;         /* (N, C) the embedding's output */
    float *cos, *sin; /* (T, D/2) of the rotary embeddings; written by the embedding's forward */
};

struct dpt_transformer_block {
    void *out; /* (N, C) */
    /* Kept except with `full`. */
    void *qkv;  /* (N, R), queries and keys rotated */
    float *lse; /* (B, H, T) */
    void *att;  /* (N, Q) */
    void *mid;  /* (N, C) the residual stream after attention */
    void *up;   /* (N, U) before the activation */
    /* The outputs y of both norms, and act, are kept only with `none`. norm_1.x is the output of
     * the unit before. */
    struct dpt_normed norm_1, norm_2;
    void *act; /* (N, I) */
};

/* Scratch of one call. In slot->scratch the parts of a block that are not kept follow it. */
struct dpt_transformer_scratch {
    void *wide;         /* (N, max(U, R)) */
    void *inner;        /* (N, I), where gated */
    void *a, *b;        /* (N, max(C, Q)) */
    float *mean, *rstd; /* (N), the head's */
};

static inline const struct dpt_transformer *dpt_transformer_of(const struct dpt_unit_call *call)
{
    return (const struct dpt_transformer *)call->model;
}

/* ---- transformer_memory.c ---- */

/* Makes a model with the fields of `family`, with the fields that both families take from the
 * config, and with an empty table. Owned by the caller. */
DPT_MUST_USE enum dpt_status dpt_transformer_create(const struct dpt_transformer *family,
                                                    const struct dpt_config *config, int params_max,
                                                    struct dpt_transformer **ret,
                                                    struct dpt_err *err);

/* Pointers into slot->saved and slot->scratch. dpt_transformer_block: of the block that is the
 * call's unit; if the unit is the head, of the last block. */
struct dpt_transformer_saved dpt_transformer_saved(const struct dpt_unit_call *call);
struct dpt_transformer_block dpt_transformer_block(const struct dpt_unit_call *call);
struct dpt_transformer_scratch dpt_transformer_scratch(const struct dpt_unit_call *call);

/* Table index of the weights of a block's norm (0 or 1), of the last norm, and of the head. */
int dpt_transformer_norm(const struct dpt_unit_call *call, int i);
int dpt_transformer_last_norm(const struct dpt_transformer *m);
int dpt_transformer_head(const struct dpt_transformer *m);
struct dpt_product dpt_transformer_product(const struct dpt_transformer *m, int layer,
                                           enum dpt_product_name name);

size_t dpt_transformer_saved_bytes(const struct dpt_model *model, int64_t b, int64_t t);
size_t dpt_transformer_scratch_bytes(const struct dpt_model *model, int64_t b, int64_t t);
bool dpt_transformer_packing(const struct dpt_model *model, int param, struct dpt_pack *ret);

/* ---- transformer_forward.c ---- */

void dpt_transformer_forward(const struct dpt_unit_call *call);

/* For backward: computes the activations of the block that forward did not keep. */
void dpt_transformer_recompute(const struct dpt_unit_call *call);

/* Writes the embedding y (N, C) of tokens at positions from `first` on. */
void dpt_transformer_embed(const struct dpt_unit_call *call, const int32_t *tokens, int64_t first,
                           void *y);
/* Fills the rotary table (T, D/2) of positions from `first` on, if the model has rotary
 * embeddings. */
void dpt_transformer_rope_table(const struct dpt_unit_call *call, int64_t first, float *cos,
                                float *sin);
/* Rotates the queries and keys of rows (N, R); with `inverse` rotates their gradients back. */
void dpt_transformer_rotate(const struct dpt_unit_call *call, const float *cos, const float *sin,
                            bool inverse, void *rows);
/* The norm whose weight is parameter `weight`, of the call's n rows. */
void dpt_transformer_normalise(const struct dpt_unit_call *call, int weight,
                               const struct dpt_normed *norm);
/* y (N, out) = x (N, in) W + bias, and GELU of y into `gelu` if that is not NULL. */
void dpt_transformer_linear(const struct dpt_unit_call *call, enum dpt_product_name name,
                            const void *x, void *y, void *gelu);
void dpt_transformer_activate(const struct dpt_unit_call *call, const void *up, void *act);
/* Computes the last norm on the rows that the head reads; with labels these rows are first copied
 * to `rows`. The norm's output and statistics are in scratch. *ret_head is the call with the number
 * of these rows. */
struct dpt_normed dpt_transformer_head_norm(const struct dpt_unit_call *call, void *rows,
                                            struct dpt_unit_call *ret_head);
/* The arguments of attention that forward and backward share. */
struct dpt_attention dpt_transformer_attention(const struct dpt_unit_call *call,
                                               const struct dpt_transformer_block *block);
/* Dropout at a site of the block. */
struct dpt_dropout dpt_transformer_dropout(const struct dpt_unit_call *call, double p, int site);

/* ---- transformer_backward.c, transformer_decode.c ---- */

void dpt_transformer_backward(const struct dpt_unit_call *call);

size_t dpt_transformer_cache_bytes(const struct dpt_model *model);
size_t dpt_transformer_decode_bytes(const struct dpt_model *model, int64_t n);
void dpt_transformer_decode(const struct dpt_model *model, const struct dpt_ops *ops,
                            struct dpt_stream *stream, const struct dpt_decode *decode);

#endif
