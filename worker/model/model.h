/* A model: a table of parameters and a sequence of units over ops.h. No model knows of ranks, no
 * kernel knows of models.
 *
 * All parameters form one flat vector of f32 in the order of the table. A unit (embedding, block 0
 * … n-1, head) is a contiguous range of it, starting at a multiple of DPT_BLOCK and zero-padded to
 * one. Each tensor starts at a multiple of DPT_PARAM_ALIGN elements, so it is aligned to 64 bytes
 * both in f32 and in 16 bits. The gap before a tensor is zero, and no op writes it. Gradients (f32)
 * have the same layout. A tied tensor belongs to one unit; other units borrow it.
 *
 * The last unit, the head, computes logits from the final states. Without labels it computes logits
 * over the vocabulary at each position, for the token that follows. With model.labels it computes
 * logits over the labels for each sample: for an image, or for a text from its last token only
 * (Hugging Face's ForSequenceClassification).
 *
 * With train.lora (docs/lora.md) the table has the adapters and, with labels, the labels' head. The
 * frozen weights belong to another model, the base (dpt_model_base). A slot has them beside its own
 * weights, and they have no gradients. A unit is then a block of the base; the first unit also runs
 * the base's embedding, and the last unit its head.
 *
 * Forward and backward read the weights, and keep their activations, in the model's compute dtype
 * (train.precision): with a dtype of 16 bits the caller rounds the f32 weights (dpt_ops.cast) to
 * make the weights of a slot. */
#ifndef DPT_WORKER_MODEL_MODEL_H
#define DPT_WORKER_MODEL_MODEL_H

#include "base/config.h"
#include "base/sample.h"
#include "kernels/ops.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    DPT_BLOCK = 1024,
    DPT_PARAM_ALIGN = 32,
    DPT_PARAM_NAME_BYTES = 96,
    DPT_PARAM_NDIM_MAX = 4,
    DPT_UNITS_MAX = 256,
    DPT_PARAMS_MAX = 4096
};

enum dpt_init {
    DPT_INIT_ZERO,
    DPT_INIT_ONE,
    DPT_INIT_NORMAL, /* of deviation init_std */
    DPT_INIT_UNIFORM /* in [-init_std, init_std] */
};

struct dpt_param {
    /* The name in Hugging Face or torchvision: "transformer.h.0.attn.c_attn.weight". */
    char name[DPT_PARAM_NAME_BYTES];
    int unit;
    int64_t offset; /* in the flat vector */
    int64_t numel;
    int ndim;
    int64_t dim[DPT_PARAM_NDIM_MAX]; /* zero from ndim on */
    bool decay; /* weight decay applies (matrices and embeddings, not biases and norms) */
    /* A running statistic: batch norm's mean or variance. It has no derivative. Its "gradient" is
     * the micro-batch's statistic times 1/G, with G micro-batches a step, so the sum over a step is
     * the mean of the statistic. The optimizer moves the running statistic towards this mean. It
     * does not decay. */
    bool averaged;
    enum dpt_init init;
    float init_std; /* the deviation; of UNIFORM the bound */
};

/* Elements [first, end) of the flat vector or of a parameter; none where end <= first. */
struct dpt_span {
    int64_t first, end;
};

struct dpt_unit {
    char name[32];
    int first_param, n_params;
    int64_t offset, numel; /* in the flat vector; numel is padded to DPT_BLOCK */
    /* An earlier unit that has a tied tensor. This unit reads the tensor, too, and makes a part of
     * its gradient. -1: none. */
    int borrows;
    bool in_parts; /* its gradient is a sum of parts: of several tokens, or of several units */
};

enum dpt_mode { DPT_MODE_TRAIN, DPT_MODE_EVAL };

struct dpt_model;
struct dpt_adapters;

/* One micro-batch that the units process. The caller owns the struct and everything that it points
 * to.
 *
 * In the stream's preparing mode the batch, weights, base, grads, saved, scratch and losses may be
 * NULL; announce is called there too if it is set. */
struct dpt_slot {
    enum dpt_mode mode;
    uint64_t seed; /* of the run, for dropout keys (DPT_RNG_DROPOUT; step, slot, site) */
    int64_t step;
    int slot;
    int64_t b, t; /* samples and positions of each; t at most the model's context */
    /* `b` samples, which are only read. Texts: (B, T) tokens, each in [0, V), and (B, T) targets.
     * Texts with labels: (B, T) tokens, (B) targets and (B) lengths; tokens after a length change
     * neither losses nor gradients. Images: (B, S, S, 3) f32, kept until backward is done, and (B)
     * targets. */
    struct dpt_batch batch;
    /* [n_units] The start of each unit's flat range, in the compute dtype. */
    const void *const *weights;
    /* [n_params] packed forms (dpt_model_packing) of exactly these weights; an entry is NULL if its
     * weight is used unpacked. NULL: all weights are used unpacked. The caller keeps the forms up
     * to date; the model does not check. */
    const void *const *packed;
    /* With adapters: `weights` and `packed` of the base, [n_units] and [n_params] of the base. */
    const void *const *base;
    const void *const *base_packed;
    /* The caller sets NULL; a model with adapters sets it for its base. */
    const struct dpt_adapters *adapters;
    float *const *grads; /* [n_units] start of each unit's flat range, f32; TRAIN only */
    bool accumulate;     /* add to gradients, else overwrite them (padding is never written) */
    /* With accumulate: gradients of a unit with in_parts are overwritten nevertheless, because they
     * would be added part by part, not as whole slots. */
    bool parts_apart;
    /* Factor of the gradient of the summed losses, e.g. 1/(N*G); only the last unit's backward
     * reads it. */
    float dloss;
    float share; /* 1/G: factor of the slot's statistics (dpt_param.averaged) */
    void *saved; /* dpt_model_saved_bytes, 64-byte aligned; kept from forward to backward */
    /* dpt_model_scratch_bytes, 64-byte aligned; no call reads values of an earlier call */
    void *scratch;
    /* (B, T), with labels (B), in nats; the head's forward (EVAL) or backward (TRAIN) writes
     * them. */
    float *losses;
    /* (B) or NULL. EVAL with labels: 1 for a sample whose label has the greatest logit (of equal
     * logits the first), else 0. */
    float *right;

    /* TRAIN, by dpt_model_backward: called once for each parameter (its table index), as soon as
       this slot's gradient of it is complete, from the last parameter of the table to the first. */
    void (*announce)(void *ctx, int param);
    void *announce_ctx;
};

/* Builds the model that the config names. Owned by the caller; immutable, so any thread may use it.
 * DPT_ECONFIG names the key whose value is not supported. */
DPT_MUST_USE enum dpt_status dpt_model_create(const struct dpt_config *config,
                                              struct dpt_model **ret, struct dpt_err *err);
void dpt_model_destroy(struct dpt_model **model);

/* Whether the config's model has the same weights with another context. */
bool dpt_model_takes_any_context(const struct dpt_config *config);

/* The model whose weights are frozen while `model`'s adapters are trained; its table has all of
 * these weights. Borrowed. NULL: `model` trains all of its weights. */
const struct dpt_model *dpt_model_base(const struct dpt_model *model);

/* The index in the table of A (rank, in) of the adapters of the base's parameter `param`; B (out,
 * rank) follows A; -1: the parameter has no adapters. Aborts (DPT_ASSERT) if dpt_model_base is NULL
 * or the base has no such parameter. */
int dpt_model_adapter(const struct dpt_model *model, int param);
/* Merges the adapters of parameter `param` into its weight: w += (alpha / rank) B A for the
 * parameter's elements `span`; w points to the first of them. Each element is rounded once from a
 * sum in double. `a` and `b` are the whole A and B. Aborts as dpt_model_adapter. */
void dpt_model_merge(const struct dpt_model *model, int param, struct dpt_span span, const float *a,
                     const float *b, float *w);

int dpt_model_n_params(const struct dpt_model *model);
const struct dpt_param *dpt_model_param(const struct dpt_model *model, int i);
/* The parameter's elements in the flat vector. */
struct dpt_span dpt_param_span(const struct dpt_param *param);
/* The intersection of a and b. */
struct dpt_span dpt_span_overlap(struct dpt_span a, struct dpt_span b);
int dpt_model_n_units(const struct dpt_model *model);
const struct dpt_unit *dpt_model_unit(const struct dpt_model *model, int i);

/* flat_numel: the length of the flat vector, including padding. param_count: the number of
 * parameters as usually counted: tied parameters once, no padding, no running statistics. */
int64_t dpt_model_flat_numel(const struct dpt_model *model);
int64_t dpt_model_param_count(const struct dpt_model *model);

/* Number of distinct tokens; 0: the model has no tokens and reads images. */
int dpt_model_vocab(const struct dpt_model *model);

/* dpt_model_labels: the number of classes; 0: the model predicts the next token. dpt_model_score:
 * the first parameter of the labels' head, whose parameters are the last of the table; -1: none. */
int dpt_model_labels(const struct dpt_model *model);
int dpt_model_score(const struct dpt_model *model);

/* The compute dtype. */
enum dpt_dtype dpt_model_dtype(const struct dpt_model *model);
/* The dtype of values of a precision; DPT_F32 for TF32. */
enum dpt_dtype dpt_dtype_of(enum dpt_precision precision);

/* Memory of one slot of B x T tokens (T at most the context). dpt_model_saved_bytes: the
 * activations from forward to backward; train.activation_checkpointing keeps fewer.
 * dpt_model_scratch_bytes: the memory of a single call, including activations that backward
 * computes again. The gradients have the same bits whichever activations are kept. */
size_t dpt_model_saved_bytes(const struct dpt_model *model, int64_t b, int64_t t);
size_t dpt_model_scratch_bytes(const struct dpt_model *model, int64_t b, int64_t t);

/* Whether products read this parameter and can use a packed form of it. If so, fills the arguments
 * of dpt_ops.pack except w and packed. */
bool dpt_model_packing(const struct dpt_model *model, int param, struct dpt_pack *ret);

/* Whether this parameter is the weight of a convolution. If so, *ret describes the windows of its
 * input in a slot of B samples. */
bool dpt_model_windows(const struct dpt_model *model, int param, int64_t b,
                       struct dpt_windows *ret);

/* Initial weights of elements `span` of the flat vector, to `dst`: a function of the seed and the
 * table alone; padding is zero. */
void dpt_model_init_range(const struct dpt_model *model, const struct dpt_ops *ops,
                          struct dpt_stream *stream, uint64_t seed, struct dpt_span span,
                          float *dst);

/* Fills with zero the elements of a unit's gradients that no op writes: the gaps before its tensors
 * and the padding behind the last. */
void dpt_model_clear_gaps(const struct dpt_model *model, const struct dpt_ops *ops,
                          struct dpt_stream *stream, int unit, float *grads);

/* Runs one unit. Order: forward of units 0 … n-1, then backward of n-1 … 0. The model keeps no
 * state of a slot, so the calls of several slots may be interleaved in any way. Errors stick to the
 * stream. */
void dpt_model_forward(const struct dpt_model *model, const struct dpt_ops *ops,
                       struct dpt_stream *stream, int unit, const struct dpt_slot *slot);
void dpt_model_backward(const struct dpt_model *model, const struct dpt_ops *ops,
                        struct dpt_stream *stream, int unit, const struct dpt_slot *slot);

/* Decoding: computes the logits of the token that follows position first+n-1. It reads the tokens
 * of positions first … first+n-1, and the keys and values of earlier positions from the cache. Only
 * for models without labels and with compute dtype f32. */
struct dpt_decode {
    const void *const *weights; /* [n_units] start of each unit's flat range, f32 */
    int64_t first, n;           /* first + n at most the context; n at most that of the scratch */
    const int32_t *tokens;      /* (n), each in [0, V) */
    void *cache;                /* dpt_model_cache_bytes; written for these positions */
    void *scratch;              /* dpt_model_decode_bytes(n), 64-byte aligned */
    float *logits;              /* (V) */
};
size_t dpt_model_cache_bytes(const struct dpt_model *model);
size_t dpt_model_decode_bytes(const struct dpt_model *model, int64_t n);
void dpt_model_decode(const struct dpt_model *model, const struct dpt_ops *ops,
                      struct dpt_stream *stream, const struct dpt_decode *decode);

int64_t dpt_model_context(const struct dpt_model *model);

#endif
