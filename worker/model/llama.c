/* The Llama family (Touvron et al. 2023; SmolLM2), as Hugging Face's LlamaForCausalLM or, with
 * labels, LlamaForSequenceClassification: its table, and what transformer.h needs to know. Weights
 * are (out, in), as PyTorch's nn.Linear has them. */
#include "worker/model/transformer.h"

#include <math.h>
#include <stdio.h>

#define INIT_STD 0.02f
#define PI       3.14159265358979323846

static const struct dpt_param_rule one = {false, DPT_INIT_ONE, 0.0f, false};
static const struct dpt_param_rule zero = {false, DPT_INIT_ZERO, 0.0f, false};
static const struct dpt_param_rule normal = {true, DPT_INIT_NORMAL, INIT_STD, false};

/* A block's tensors, in the order of the table; biases are there where the config says so. Those of
 * queries, keys and values follow each other without gaps, and so do those of gate and up: each
 * group is one matrix (R, C) or (2*I, C) to products. */
enum tensor {
    NORM_1, /* (C) */
    Q_W,    /* (Q, C) */
    K_W,    /* (K*D, C) */
    V_W,    /* (K*D, C) */
    Q_B,    /* (Q) */
    K_B,    /* (K*D) */
    V_B,    /* (K*D) */
    O_W,    /* (C, Q) */
    O_B,    /* (C) */
    NORM_2, /* (C) */
    GATE_W, /* (I, C) */
    UP_W,   /* (I, C) */
    GATE_B, /* (I) */
    UP_B,   /* (I) */
    DOWN_W, /* (C, I) */
    DOWN_B, /* (C) */
    TENSORS
};

/* Of a block: its tensors' names, shapes and initial values. */
static struct entry {
    const char *name;
    struct dpt_shape shape;
    const struct dpt_param_rule *rule;
} entry_of(const struct dpt_transformer *m, enum tensor tensor)
{
    const int64_t c = m->c, kv = m->kv_heads * m->head, i = m->inner, q = m->q;
    switch (tensor) {
    case NORM_1:
        return (struct entry){"input_layernorm.weight", {{c}}, &one};
    case Q_W:
        return (struct entry){"self_attn.q_proj.weight", {{q, c}}, &normal};
    case K_W:
        return (struct entry){"self_attn.k_proj.weight", {{kv, c}}, &normal};
    case V_W:
        return (struct entry){"self_attn.v_proj.weight", {{kv, c}}, &normal};
    case Q_B:
        return (struct entry){"self_attn.q_proj.bias", {{q}}, &zero};
    case K_B:
        return (struct entry){"self_attn.k_proj.bias", {{kv}}, &zero};
    case V_B:
        return (struct entry){"self_attn.v_proj.bias", {{kv}}, &zero};
    case O_W:
        return (struct entry){"self_attn.o_proj.weight", {{c, q}}, &normal};
    case O_B:
        return (struct entry){"self_attn.o_proj.bias", {{c}}, &zero};
    case NORM_2:
        return (struct entry){"post_attention_layernorm.weight", {{c}}, &one};
    case GATE_W:
        return (struct entry){"mlp.gate_proj.weight", {{i, c}}, &normal};
    case UP_W:
        return (struct entry){"mlp.up_proj.weight", {{i, c}}, &normal};
    case GATE_B:
        return (struct entry){"mlp.gate_proj.bias", {{i}}, &zero};
    case UP_B:
        return (struct entry){"mlp.up_proj.bias", {{i}}, &zero};
    case DOWN_W:
        return (struct entry){"mlp.down_proj.weight", {{c, i}}, &normal};
    case DOWN_B:
    case TENSORS:
        break;
    }
    return (struct entry){"mlp.down_proj.bias", {{c}}, &zero};
}

static bool has_tensor(const struct dpt_config *config, enum tensor tensor)
{
    switch (tensor) {
    case Q_B:
    case K_B:
    case V_B:
    case O_B:
        return config->model.attention_bias;
    case GATE_B:
    case UP_B:
    case DOWN_B:
        return config->model.mlp_bias;
    default:
        return true;
    }
}

static void add_block(struct dpt_transformer *m, const struct dpt_config *config, int layer)
{
    char prefix[32], unit[32];
    (void)snprintf(prefix, sizeof prefix, "model.layers.%d.", layer);
    (void)snprintf(unit, sizeof unit, "layers.%d", layer);
    dpt_table_begin_unit(&m->base, unit);
    for (int t = 0; t < TENSORS; t++) {
        const struct entry entry = entry_of(m, (enum tensor)t);
        if (has_tensor(config, (enum tensor)t))
            dpt_table_add(&m->base, prefix, entry.name, entry.shape, *entry.rule);
    }
    dpt_table_end_unit(&m->base);
}

static void add_all(struct dpt_transformer *m, const struct dpt_config *config)
{
    struct dpt_model *model = &m->base;
    const struct dpt_shape table = {{model->vocab, m->c}};
    dpt_table_begin_unit(model, "embedding");
    model->units[0].in_parts = true;
    dpt_table_add(model, "model.", "embed_tokens.weight", table, normal);
    dpt_table_end_unit(model);
    for (int layer = 0; layer < m->layers; layer++)
        add_block(m, config, layer);
    dpt_table_begin_unit(model, "head");
    dpt_table_add(model, "model.", "norm.weight", (struct dpt_shape){{m->c}}, one);
    if (m->tied)
        model->units[model->n_units - 1].borrows = 0; /* embed_tokens */
    else if (model->labels > 0)
        dpt_table_add(model, "", "score.weight", (struct dpt_shape){{model->labels, m->c}}, normal);
    else
        dpt_table_add(model, "", "lm_head.weight", table, normal);
    dpt_table_end_unit(model);
    DPT_ASSERT(model->n_params == model->params_max && model->n_units == model->units_max);
}

/* The parts of a product are one matrix, and one bias (base/config_model.c refuses other sizes). */
static void check_products(const struct dpt_transformer *m)
{
    const struct dpt_param *params = m->base.params;
    for (int name = 0; name < DPT_PRODUCTS; name++) {
        const struct dpt_product p = dpt_transformer_product(m, 0, (enum dpt_product_name)name);
        for (int i = p.weight; i + 1 < p.weight + p.n; i++)
            DPT_ASSERT(params[i].offset + params[i].numel == params[i + 1].offset);
        for (int i = p.bias; p.bias >= 0 && i + 1 < p.bias + p.n; i++)
            DPT_ASSERT(params[i].offset + params[i].numel == params[i + 1].offset);
    }
}

/* Frequencies of the rotary embeddings: theta^(-2i/D), as f32. With Llama 3's scaling (Hugging
 * Face's rope_type "llama3") waves longer than the original context / low_freq_factor are slowed
 * down by `factor`, those shorter than it / high_freq_factor stay, and in between both are mixed.
 */
static void set_frequencies(const struct dpt_config *config, struct dpt_transformer *m)
{
    const double low = config->model.rope_low_freq_factor;
    const double high = config->model.rope_high_freq_factor;
    DPT_ASSERT(m->head / 2 <= DPT_ROPE_HALF_MAX); /* base/config_model.c refuses more */
    for (int64_t i = 0; i < m->head / 2; i++) {
        double f = pow(config->model.rope_theta, -(double)(2 * i) / (double)m->head);
        const double waves = (double)config->model.rope_original_context * f / (2.0 * PI);
        if (config->model.rope_scaling == DPT_ROPE_SCALING_LLAMA3 && waves < high) {
            const double kept = waves < low ? 0.0 : (waves - low) / (high - low);
            f = (1.0 - kept) * f / config->model.rope_factor + kept * f;
        }
        m->inv_freq[i] = (float)f;
    }
}

/* Places of the tensors among their block's, -1 of those that it has not; returns how many it has.
 */
static int place_tensors(const struct dpt_config *config, int ret_place[TENSORS])
{
    int n = 0;
    for (int t = 0; t < TENSORS; t++)
        ret_place[t] = has_tensor(config, (enum tensor)t) ? n++ : -1;
    return n;
}

static enum dpt_status create(const struct dpt_config *config, struct dpt_model **ret,
                              struct dpt_err *err)
{
    int place[TENSORS];
    const int block_tensors = place_tensors(config, place);
    struct dpt_transformer family = {
        .base = {.kind = &dpt_llama_kind},
        .kv_heads = config->model.n_kv_head,
        .head = config->model.head_size,
        .inner = config->model.n_inner,
        .eps = (float)config->model.norm_eps,
        .gated = true,
        .rope = true,
        .tied = config->model.tied_head && config->model.labels == 0,
        .attention_dropout = config->model.dropout,
        .sites_per_block = 1,
        .norm = {place[NORM_1], place[NORM_2]},
        .products = {[DPT_PRODUCT_QKV] = {.weight = place[Q_W], .bias = place[Q_B], .n = 3},
                     [DPT_PRODUCT_O] = {.weight = place[O_W], .bias = place[O_B], .n = 1},
                     [DPT_PRODUCT_UP] = {.weight = place[GATE_W], .bias = place[GATE_B], .n = 2},
                     [DPT_PRODUCT_DOWN] = {.weight = place[DOWN_W], .bias = place[DOWN_B], .n = 1}},
    };
    set_frequencies(config, &family);
    const int ends = family.tied ? 2 : 3; /* tensors of embedding and head */
    struct dpt_transformer *m;
    DPT_TRY(dpt_transformer_create(&family, config, ends + config->model.n_layer * block_tensors,
                                   &m, err));
    add_all(m, config);
    check_products(m);
    *ret = &m->base;
    return DPT_OK;
}

const struct dpt_model_kind dpt_llama_kind = {
    .name = "llama",
    .any_context = true,
    .out_in = true,
    .create = create,
    .saved_bytes = dpt_transformer_saved_bytes,
    .scratch_bytes = dpt_transformer_scratch_bytes,
    .packing = dpt_transformer_packing,
    .forward = dpt_transformer_forward,
    .backward = dpt_transformer_backward,
    .cache_bytes = dpt_transformer_cache_bytes,
    .decode_bytes = dpt_transformer_decode_bytes,
    .decode = dpt_transformer_decode,
};
