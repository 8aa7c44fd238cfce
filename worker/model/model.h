/* A model: a table of parameters and a sequence of units over ops.h. No model knows of ranks, no
 * kernel knows of models.
 *
 * All parameters form one flat vector of f32 in the order of the table. A unit (embedding, block 0
 * … n-1, head) is a contiguous range of it, starting at a multiple of DPT_BLOCK and zero-padded to
 * one. Each tensor starts at a multiple of DPT_PARAM_ALIGN elements, so at 64 bytes in f32 and in
 * 16 bits alike; the gap before it is zero, and no op writes it. Gradients (f32) have the same
 * layout. A tied tensor lives in its home unit; others borrow it.
 *
 * The last unit, the head, makes logits of the final states: of each position, over the vocabulary,
 * for the token that follows; or, with model.labels, of each sample, over the labels: of a text's
 * last token alone (Hugging Face's ForSequenceClassification), or of an image.
 *
 * With train.lora (docs/lora.md) the table has adapters, and the labels' head. The frozen weights
 * belong to another model, the base: dpt_model_base. Each slot is given them beside its own
 * weights, and no gradient of them is made. A unit is then a block of the base; the first runs the
 * base's embedding, too, and the last one its head.
 *
 * Forward and backward read the weights, and keep their activations, in the model's compute dtype
 * (train.precision): with one of 16 bits the caller makes the weights of a slot by rounding the f32
 * ones (dpt_ops.cast). */
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
    /* Hugging Face's or torchvision's: "transformer.h.0.attn.c_attn.weight" */
    char name[DPT_PARAM_NAME_BYTES];
    int unit;
    int64_t offset; /* in the flat vector */
    int64_t numel;
    int ndim;
    int64_t dim[DPT_PARAM_NDIM_MAX]; /* zero from ndim on */
    bool decay; /* weight decay applies (matrices and embeddings, not biases and norms) */
    /* A running statistic (batch norm's mean and variance): nothing is differentiated by it. Its
       gradient is the micro-batch's own statistic times 1/G, G micro-batches a step, so that the
       step's sum is their mean, which the optimizer moves it towards. It does not decay. */
    bool averaged;
    enum dpt_init init;
    float init_std; /* of UNIFORM the bound */
};

/* Elements [first, end) of the flat vector or of a parameter; none where end <= first. */
struct dpt_span {
    int64_t first, end;
};

struct dpt_unit {
    char name[32];
    int first_param, n_params;
    int64_t offset, numel; /* in the flat vector; numel is padded to DPT_BLOCK */
    int borrows;   /* an earlier unit with a tied tensor: read here too, and given a part of its
                      gradient; -1: none */
    bool in_parts; /* its gradient is a sum of parts: of several tokens, or of several units */
};

enum dpt_mode { DPT_MODE_TRAIN, DPT_MODE_EVAL };

struct dpt_model;
struct dpt_adapters;

/* One micro-batch on its way through the units. Plain value of the caller; everything it points to
 * is the caller's.
 *
 * In the stream's preparing mode the batch, weights, base, grads, saved, scratch and losses may be
 * NULL; announce is called there too if it is set. */
struct dpt_slot {
    enum dpt_mode mode;
    uint64_t seed; /* of the run, for dropout keys (DPT_RNG_DROPOUT; step, slot, site) */
    int64_t step;
    int slot;
    int64_t b, t;           /* samples and positions of each; t at most the model's context */
    struct dpt_batch batch; /* of b samples, only read: (B, T) tokens, each in [0, V), and (B, T)
                               targets; with labels (B) targets and (B) lengths, and what is behind
                               a length reaches neither losses nor gradients; of images (B, S, S, 3)
                               f32, kept until backward is done, and (B) targets */
    const void *const
        *weights; /* [n_units] start of each unit's flat range, in the compute dtype */
    /* [n_params] packed forms (dpt_model_packing) of exactly these weights, NULL for weights that
       are used unpacked; NULL: all are. The caller keeps them up to date; the model does not check.
     */
    const void *const *packed;
    /* With adapters: the base's, [n_units] and [n_params] of it, as weights and packed. */
    const void *const *base;
    const void *const *base_packed;
    const struct dpt_adapters *adapters; /* NULL; for slots that a model makes for its base */
    float *const *grads; /* [n_units] start of each unit's flat range, f32; TRAIN only */
    bool accumulate;     /* gradients are added to, else overwritten (padding is never written) */
    bool parts_apart; /* with accumulate: gradients of a unit that is in_parts are overwritten all
                         the same, because they would be added part by part, not as whole slots */
    float dloss;      /* factor of the gradient of the summed losses, e.g. 1/(N*G); read by the last
                         unit's backward alone */
    float share;      /* 1/G: factor of the slot's statistics where dpt_param.averaged */
    void *saved;      /* dpt_model_saved_bytes, 64-byte aligned; kept from forward to backward */
    void *scratch;    /* dpt_model_scratch_bytes, aligned so; meaningless between calls */
    float *losses;    /* (B, T), with labels (B), nats; written by the head's forward (EVAL) or
                         backward (TRAIN) */
    float *right;     /* (B) or NULL; EVAL with labels: 1 of a sample whose label has the greatest
                         logit (the first of equals), else 0 */

    /* TRAIN, by dpt_model_backward: called once for each parameter (its table index), as soon as
       this slot's gradient of it is complete, from the last parameter of the table to the first. */
    void (*announce)(void *ctx, int param);
    void *announce_ctx;
};

/* Builds the model that the config names. Owned by the caller; immutable, so that any thread may
 * use it. DPT_ECONFIG names the key that cannot be met. */
DPT_MUST_USE enum dpt_status dpt_model_create(const struct dpt_config *config,
                                              struct dpt_model **ret, struct dpt_err *err);
void dpt_model_destroy(struct dpt_model **model);

/* Whether the config's model has the same weights with another context. */
bool dpt_model_takes_any_context(const struct dpt_config *config);

/* The model whose weights are frozen while `model`'s adapters are trained, with the table of all of
 * them; borrowed. NULL: `model` trains all of its weights. */
const struct dpt_model *dpt_model_base(const struct dpt_model *model);

/* The index in the table of A (rank, in) of the adapters of the base's parameter `param`; B (out,
 * rank) follows A; -1: the parameter has no adapters. Aborts (DPT_ASSERT) if dpt_model_base is NULL
 * or the base has no such parameter. */
int dpt_model_adapter(const struct dpt_model *model, int param);
/* w += (alpha / rank) B A, rounded once from a sum in double, for elements `span` of that
 * parameter, which w begins at: the weight that the adapters come to. `a` and `b` are whole. Aborts
 * as dpt_model_adapter. */
void dpt_model_merge(const struct dpt_model *model, int param, struct dpt_span span, const float *a,
                     const float *b, float *w);

int dpt_model_n_params(const struct dpt_model *model);
const struct dpt_param *dpt_model_param(const struct dpt_model *model, int i);
/* Its elements in the flat vector. */
struct dpt_span dpt_param_span(const struct dpt_param *param);
/* What a and b have in common. */
struct dpt_span dpt_span_overlap(struct dpt_span a, struct dpt_span b);
int dpt_model_n_units(const struct dpt_model *model);
const struct dpt_unit *dpt_model_unit(const struct dpt_model *model, int i);

/* Length of the flat vector, padding included; parameters as the field counts them: tied ones once,
 * no padding, no running statistics. */
int64_t dpt_model_flat_numel(const struct dpt_model *model);
int64_t dpt_model_param_count(const struct dpt_model *model);

/* Distinct tokens; 0: the model has none, and reads images. */
int dpt_model_vocab(const struct dpt_model *model);

/* Classes of a classification; 0: the model predicts the next token. The first parameter of the
 * labels' head, which reaches to the end of the table; -1: none. */
int dpt_model_labels(const struct dpt_model *model);
int dpt_model_score(const struct dpt_model *model);

/* The compute dtype. */
enum dpt_dtype dpt_model_dtype(const struct dpt_model *model);

/* Memory of one slot of B x T tokens (T at most the context): activations, which
 * train.activation_checkpointing makes fewer, and room for a single call, those included that it
 * brings back. Its gradients have the same bits whichever are kept. */
size_t dpt_model_saved_bytes(const struct dpt_model *model, int64_t b, int64_t t);
size_t dpt_model_scratch_bytes(const struct dpt_model *model, int64_t b, int64_t t);

/* Whether products read this parameter, so that a packed form of it may serve them; if so, fills
 * what dpt_ops.pack needs but for w and packed. */
bool dpt_model_packing(const struct dpt_model *model, int param, struct dpt_pack *ret);

/* Whether this parameter is the weight of a convolution; if so, what it is convolved with in a slot
 * of B samples. */
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

/* Runs one unit. Order: forward of units 0 … n-1, then backward of n-1 … 0. The model holds no
 * state of a slot: slots may be in flight side by side, in any interleaving. Errors stick to the
 * stream. */
void dpt_model_forward(const struct dpt_model *model, const struct dpt_ops *ops,
                       struct dpt_stream *stream, int unit, const struct dpt_slot *slot);
void dpt_model_backward(const struct dpt_model *model, const struct dpt_ops *ops,
                        struct dpt_stream *stream, int unit, const struct dpt_slot *slot);

/* Decoding: the logits of the token that follows, from the tokens of positions first … first+n-1
 * and the keys and values of those before, which the cache keeps. For models without labels, of
 * compute dtype f32. */
struct dpt_decode {
    const void *const *weights; /* [n_units] start of each unit's flat range, f32 */
    int64_t first, n;           /* first + n at most the context, n at most what scratch is for */
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
