/* What the files of GPT-2 share: sizes, the order of a block's tensors, and where a slot's
 * activations lie. Inside this folder only.
 *
 * Units: 0 embedding, 1 … L blocks, L+1 head. B, T, N = B*T, C = n_embd, H = n_head, V = vocab as
 * in ops.h. */
#ifndef DPT_WORKER_MODEL_GPT2_H
#define DPT_WORKER_MODEL_GPT2_H

#include "worker/model/kind.h"

/* A block's tensors, in the order of the table. */
enum dpt_gpt2_tensor {
    DPT_GPT2_LN_1_W,     /* (C) */
    DPT_GPT2_LN_1_B,     /* (C) */
    DPT_GPT2_C_ATTN_W,   /* (C, 3*C) */
    DPT_GPT2_C_ATTN_B,   /* (3*C) */
    DPT_GPT2_C_PROJ_W,   /* (C, C) */
    DPT_GPT2_C_PROJ_B,   /* (C) */
    DPT_GPT2_LN_2_W,     /* (C) */
    DPT_GPT2_LN_2_B,     /* (C) */
    DPT_GPT2_C_FC_W,     /* (C, 4*C) */
    DPT_GPT2_C_FC_B,     /* (4*C) */
    DPT_GPT2_MLP_PROJ_W, /* (4*C, C) */
    DPT_GPT2_MLP_PROJ_B, /* (C) */
    DPT_GPT2_BLOCK_TENSORS
};

enum {
    DPT_GPT2_WTE = 0, /* parameter index; (V, C), without labels the head's weight too */
    DPT_GPT2_WPE = 1, /* (context, C) */
    DPT_GPT2_FIRST_BLOCK_PARAM = 2
};

/* Where dropout is drawn: the third part of its key. A block's sites are SITE_BLOCK +
 * SITES_PER_BLOCK * layer + one of these. */
enum {
    DPT_GPT2_SITE_EMBEDDING = 0,
    DPT_GPT2_SITE_BLOCK = 1,
    DPT_GPT2_SITE_ATTENTION = 0, /* probabilities */
    DPT_GPT2_SITE_ATTENTION_RESIDUAL = 1,
    DPT_GPT2_SITE_MLP_RESIDUAL = 2,
    DPT_GPT2_SITES_PER_BLOCK = 3
};

#define DPT_GPT2_LAYERNORM_EPS 1e-5f

struct dpt_gpt2 {
    struct dpt_model base;
    int layers;
    int64_t heads, c;
    double dropout;
    enum dpt_activation_checkpointing checkpointing;
};

/* A slot's activations, in the compute dtype but for the norms' and softmax's statistics. The
 * residual stream is kept at each block's two norms; its gradient flows through `dstream`.
 *
 * With activation checkpointing (Chen et al., arXiv:1604.06174) only part of a block's lies in
 * slot->saved. The rest lies in slot->scratch, one place for all blocks: forward writes it as ever,
 * and backward brings it back (dpt_gpt2_recompute) by the same ops from the same inputs, dropout
 * drawn by the same keys: the same bits. `selective` keeps what products and attention made, and
 * drops what elementwise passes over that give again: the norms' outputs and GELU's, 6 of 16 parts
 * (attention's probabilities are never stored). `full` keeps a block's output alone: the next
 * unit's input. */
struct dpt_gpt2_saved {
    void *dstream; /* (N, C); before that, with labels, the head's rows */
    void *x0;      /* (N, C) the embedding's output */
};

struct dpt_gpt2_block_saved {
    const void *x; /* (N, C) the block's input: the output of the unit before */
    void *out;     /* (N, C) */
    /* Kept but with `full`. */
    float *mean1, *rstd1, *mean2, *rstd2; /* (N) */
    void *qkv;                            /* (N, 3, C) */
    float *lse;                           /* (B, H, T) */
    void *att;                            /* (N, C) */
    void *mid;                            /* (N, C) the residual stream after attention */
    void *fc;                             /* (N, 4*C) before the activation */
    /* Kept with `none` alone. */
    void *ln1, *ln2; /* (N, C) */
    void *gelu;      /* (N, 4*C) */
};

struct dpt_gpt2_block_bytes {
    size_t saved, scratch;
};

/* Scratch of one call, before what is not kept of a block. */
struct dpt_gpt2_scratch {
    void *wide;         /* (N, 4*C) */
    void *a, *b;        /* (N, C) */
    float *mean, *rstd; /* (N), the head's */
};

/* Pointers into slot->saved and slot->scratch. Each returns the bytes it covers in *ret_bytes if
 * that is not NULL: a block's, those in slot->saved and in slot->scratch. */
struct dpt_gpt2_saved dpt_gpt2_saved(const struct dpt_gpt2 *m, const struct dpt_slot *slot,
                                     size_t *ret_bytes);
struct dpt_gpt2_block_saved dpt_gpt2_block_saved(const struct dpt_gpt2 *m,
                                                 const struct dpt_slot *slot, int layer,
                                                 struct dpt_gpt2_block_bytes *ret_bytes);
struct dpt_gpt2_scratch dpt_gpt2_scratch(const struct dpt_gpt2 *m, const struct dpt_slot *slot,
                                         size_t *ret_bytes);

/* Table index of a block's tensor, of the head's ln_f.weight (ln_f.bias follows), and of the weight
 * that makes logits. */
int dpt_gpt2_block_param(int layer, enum dpt_gpt2_tensor tensor);
int dpt_gpt2_ln_f(const struct dpt_gpt2 *m);
int dpt_gpt2_head(const struct dpt_gpt2 *m);

/* A block's site of dropout. */
int dpt_gpt2_block_site(int layer, int site);

void dpt_gpt2_forward(const struct dpt_model *model, const struct dpt_ops *ops,
                      struct dpt_stream *stream, int unit, const struct dpt_slot *slot);
void dpt_gpt2_backward(const struct dpt_model *model, const struct dpt_ops *ops,
                       struct dpt_stream *stream, int unit, const struct dpt_slot *slot);

/* For backward: what the block's forward made and did not keep. */
void dpt_gpt2_recompute(const struct dpt_gpt2 *m, const struct dpt_ops *ops,
                        struct dpt_stream *stream, int layer, const struct dpt_slot *slot);

size_t dpt_gpt2_cache_bytes(const struct dpt_model *model);
size_t dpt_gpt2_decode_bytes(const struct dpt_model *model, int64_t n);
void dpt_gpt2_decode(const struct dpt_model *model, const struct dpt_ops *ops,
                     struct dpt_stream *stream, const struct dpt_decode *decode);

#endif
