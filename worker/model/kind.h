/* The interface between model.c and the kinds of models (gpt2, …), and the functions that build a
 * kind's table. Only for this folder, and for tests that make tables. */
#ifndef DPT_WORKER_MODEL_KIND_H
#define DPT_WORKER_MODEL_KIND_H

#include "worker/model/model.h"

/* One call of dpt_model_forward or dpt_model_backward. */
struct dpt_unit_call {
    const struct dpt_model *model;
    const struct dpt_ops *ops;
    struct dpt_stream *stream;
    const struct dpt_slot *slot;
    int unit;
    int64_t n; /* rows: B * T */
};

/* The functions behind model.h. A kind embeds struct dpt_model as its first member; a model never
 * changes once created. */
struct dpt_model_kind {
    const char *name; /* the config's model.name */
    bool any_context; /* no weight depends on the context, which may differ from the training's */
    bool out_in;      /* matrices of linear layers are stored (out, in), else (in, out) */
    enum dpt_status (*create)(const struct dpt_config *config, struct dpt_model **ret,
                              struct dpt_err *err);
    void (*fini)(struct dpt_model *model); /* frees memory beside the table; NULL: there is none */
    size_t (*saved_bytes)(const struct dpt_model *model, int64_t b, int64_t t);
    size_t (*scratch_bytes)(const struct dpt_model *model, int64_t b, int64_t t);
    bool (*packing)(const struct dpt_model *model, int param,
                    struct dpt_pack *ret); /* NULL: no weight has a packed form */
    bool (*windows)(const struct dpt_model *model, int param, int64_t b,
                    struct dpt_windows *ret); /* NULL: it has no convolutions */
    void (*forward)(const struct dpt_unit_call *call);
    void (*backward)(const struct dpt_unit_call *call);
    size_t (*cache_bytes)(const struct dpt_model *model);
    size_t (*decode_bytes)(const struct dpt_model *model, int64_t n);
    void (*decode)(const struct dpt_model *model, const struct dpt_ops *ops,
                   struct dpt_stream *stream, const struct dpt_decode *decode);
    /* The last three are NULL for a model without tokens, and for adapters. */
};

extern const struct dpt_model_kind dpt_gpt2_kind, dpt_llama_kind, dpt_lora_kind, dpt_resnet_kind;

/* Makes the adapters of `base` (lora.c). Takes `base`, also on failure. */
DPT_MUST_USE enum dpt_status dpt_lora_create(const struct dpt_config *config,
                                             struct dpt_model *base, struct dpt_model **ret,
                                             struct dpt_err *err);

struct dpt_model {
    const struct dpt_model_kind *kind;
    int vocab;        /* 0: it has no tokens */
    int labels;       /* 0: the head predicts the next token */
    int score_biases; /* parameters after the labels' weight, at the end of the table */
    int64_t context;
    enum dpt_dtype dtype;     /* of weights and activations in forward and backward */
    struct dpt_param *params; /* [params_max] owned */
    struct dpt_unit *units;   /* [units_max] owned */
    int n_params, n_units, params_max, units_max;
    int64_t flat_numel, param_count;
};

/* Allocates the table. After a failure nothing is allocated. */
DPT_MUST_USE enum dpt_status dpt_table_init(struct dpt_model *model, int units_max, int params_max,
                                            struct dpt_err *err);
void dpt_table_fini(struct dpt_model *model);

/* Begins a unit, to which the next parameters belong; dpt_table_end_unit pads it to DPT_BLOCK. */
void dpt_table_begin_unit(struct dpt_model *model, const char *name);
void dpt_table_end_unit(struct dpt_model *model);

/* The initial values of a parameter, whether it decays, whether it is a running statistic
 * (dpt_param). */
struct dpt_param_rule {
    bool decay;
    enum dpt_init init;
    float std; /* NORMAL: the deviation; UNIFORM: the bound */
    bool averaged;
};

/* Extents, the outermost dimension first; zero for dimensions that the tensor does not have. */
struct dpt_shape {
    int64_t dim[DPT_PARAM_NDIM_MAX];
};

/* Appends "<prefix><name>". */
void dpt_table_add(struct dpt_model *model, const char *prefix, const char *name,
                   struct dpt_shape shape, struct dpt_param_rule rule);

/* Returns 64-byte aligned pieces of `base`, one after another. With base NULL it only counts, and
 * each piece is a valid address that is never accessed, because NULL means "not wanted" in the ops'
 * arguments. */
struct dpt_carver {
    uint8_t *base;
    size_t at; /* bytes handed out */
};
void *dpt_carve(struct dpt_carver *carver, enum dpt_dtype dtype, int64_t n);

/* A parameter's weights, their packed form (NULL: none) and gradients in a slot. In preparing mode
 * these are valid addresses that are never accessed. Frozen weights have no gradient: NULL. */
const void *dpt_slot_weight(const struct dpt_unit_call *call, int param);
const void *dpt_slot_packed(const struct dpt_unit_call *call, int param);
float *dpt_slot_grad(const struct dpt_unit_call *call, int param);

/* Announces parameters first … first + n - 1, if the slot has a function for it: the last one
 * first, because the flat vector is completed from its end. */
void dpt_slot_announce(const struct dpt_slot *slot, int first, int n);

/* Dropout of probability `p` at a site of the model; none in EVAL mode. */
struct dpt_dropout dpt_slot_dropout(const struct dpt_slot *slot, double p, int site);

/* dpt_head_rows: the number of the head's rows: all positions or, with labels, the samples.
 * dpt_head_logits: the number of a row's logits: the vocabulary or, with labels, the labels. */
int64_t dpt_head_rows(const struct dpt_model *model, const struct dpt_slot *slot);
int64_t dpt_head_logits(const struct dpt_model *model);

/* The states of the head's rows: all of `x` (B, T, C) or, with labels, the states of the last
 * tokens, which are copied to `to` (B, C). */
const void *dpt_head_states(const struct dpt_unit_call *call, int64_t c, const void *x, void *to);
/* Only with labels: computes the gradient of all states, dx (B, T, C), from the gradient of the
 * head's rows, dy (B, C). */
void dpt_head_spread(const struct dpt_unit_call *call, int64_t c, const void *dy, void *dx);
/* The arguments for the losses of the head's rows `x` with parameter `weight` (logits, in); the
 * caller adds the fields of EVAL or TRAIN. */
struct dpt_head_loss dpt_head_loss_of(const struct dpt_unit_call *call, int weight, const void *x);

/* ---- adapters (lora.c) ---- */

/* The adapters of a slot that runs units of the base. */
struct dpt_adapters {
    struct dpt_unit_call own; /* the call of the model and slot with the adapters' weights */
    const int *first;         /* [parameters of the base] the results of dpt_model_adapter */
    int64_t rank;
    float scale;  /* alpha / rank */
    void *u, *du; /* (N, rank) scratch */
};

/* A product over all rows of a slot. Its weights are parameters weight … weight + n_weights - 1.
 * The results of the weights, and in backward the gradients of these results, are adjacent columns
 * of (N, out). */
struct dpt_adapted {
    int weight, n_weights;
    int64_t out;
    const void *x;  /* (N, in) */
    void *y;        /* forward: (N, out) */
    const void *dy; /* backward: (N, out) */
    void *dx;       /* backward: (N, in) or NULL */
};

/* Whether one of the weights has adapters. */
bool dpt_slot_adapts(const struct dpt_slot *slot, int weight, int n_weights);
/* Whether the gradient of the input of block `layer` is needed. The first block does not need it if
 * the embedding is frozen. */
bool dpt_slot_needs_dx(const struct dpt_slot *slot, int layer);
/* dpt_adapters_forward adds the results of the product's adapters to y. dpt_adapters_backward adds
 * the adapters' part of the input's gradient to dx, computes the adapters' own gradients and
 * announces them. Both do nothing without adapters. */
void dpt_adapters_forward(const struct dpt_unit_call *call, const struct dpt_adapted *product);
void dpt_adapters_backward(const struct dpt_unit_call *call, const struct dpt_adapted *product);

#endif
