/* The Llama family (Touvron et al. 2023; SmolLM2), as Hugging Face's LlamaForCausalLM or, with
 * labels, LlamaForSequenceClassification: its table, and its fields of transformer.h. Weights are
 * (out, in), as in PyTorch's nn.Linear. */
#include "worker/model/transformer.h"

#include <math.h>
#include <stdio.h>

#define INIT_STD 0.02f
#define PI       3.14159265358979323846

static const struct dpt_param_rule one = {false, DPT_INIT_ONE, 0.0f, false};
static const struct dpt_param_rule zero = {false, DPT_INIT_ZERO, 0.0f, false};
static const struct dpt_param_rule normal = {true, DPT_INIT_NORMAL, INIT_STD, false};

/* A block's tensors, in the order of the table. The weights of queries, keys and values are
 * adjacent without gaps, and so are those of gate and up. A product reads each group as one matrix,
 * (R, C) or (2*I, C). */
enum tensor {
    NORM_1,
    Q_W,
    K_W,
    V_W,
    Q_B,
    K_B,
    V_B,
    O_W,
    O_B,
    NORM_2,
    GATE_W,
    UP_W,
    GATE_B,
    UP_B,
    DOWN_W,
    DOWN_B,
    TENSORS
};

/* Sizes of a block's tensors: C, Q, K*D and I of transformer.h. */
enum extent { NO_EXTENT, C, Q, KV, INNER, EXTENTS };

static const struct block_tensor {
    const char *name;
    enum extent rows, cols; /* cols NO_EXTENT: a vector */
    const struct dpt_param_rule *rule;
} block_tensors[TENSORS] = {
    [NORM_1] = {"input_layernorm.weight", C, NO_EXTENT, &one},
    [Q_W] = {"self_attn.q_proj.weight", Q, C, &normal},
    [K_W] = {"self_attn.k_proj.weight", KV, C, &normal},
    [V_W] = {"self_attn.v_proj.weight", KV, C, &normal},
    [Q_B] = {"self_attn.q_proj.bias", Q, NO_EXTENT, &zero},
    [K_B] = {"self_attn.k_proj.bias", KV, NO_EXTENT, &zero},
    [V_B] = {"self_attn.v_proj.bias", KV, NO_EXTENT, &zero},
    [O_W] = {"self_attn.o_proj.weight", C, Q, &normal},
    [O_B] = {"self_attn.o_proj.bias", C, NO_EXTENT, &zero},
    [NORM_2] = {"post_attention_layernorm.weight", C, NO_EXTENT, &one},
    [GATE_W] = {"mlp.gate_proj.weight", INNER, C, &normal},
    [UP_W] = {"mlp.up_proj.weight", INNER, C, &normal},
    [GATE_B] = {"mlp.gate_proj.bias", INNER, NO_EXTENT, &zero},
    [UP_B] = {"mlp.up_proj.bias", INNER, NO_EXTENT, &zero},
    [DOWN_W] = {"mlp.down_proj.weight", C, INNER, &normal},
    [DOWN_B] = {"mlp.down_proj.bias", C, NO_EXTENT, &zero},
};

/* Biases are the tensors with initial value zero; the config says whether a block has them. */
static bool has_tensor(const struct dpt_config *config, enum tensor tensor)
{
    if (block_tensors[tensor].rule != &zero)
        return true;
    return tensor < NORM_2 ? config->model.attention_bias : config->model.mlp_bias;
}

static void llama_add_block(struct dpt_transformer *m, const struct dpt_config *config, int layer)
{
    const int64_t extents[EXTENTS] = {
        [C] = m->c, [Q] = m->q, [KV] = m->kv_heads * m->head, [INNER] = m->inner};
    char prefix[32], unit[32];
    (void)snprintf(prefix, sizeof prefix, "model.layers.%d.", layer);
    (void)snprintf(unit, sizeof unit, "layers.%d", layer);
    dpt_table_begin_unit(&m->base, unit);
    for (int t = 0; t < TENSORS; t++) {
        const struct block_tensor *of = &block_tensors[t];
        if (has_tensor(config, (enum tensor)t))
            dpt_table_add(&m->base, prefix, of->name,
                          (struct dpt_shape){{extents[of->rows], extents[of->cols]}}, *of->rule);
    }
    dpt_table_end_unit(&m->base);
}

static void llama_add_units(struct dpt_transformer *m, const struct dpt_config *config)
{
    struct dpt_model *model = &m->base;
    const struct dpt_shape table = {{model->vocab, m->c}};
    dpt_table_begin_unit(model, "embedding");
    model->units[0].in_parts = true;
    dpt_table_add(model, "model.", "embed_tokens.weight", table, normal);
    dpt_table_end_unit(model);
    for (int layer = 0; layer < m->layers; layer++)
        llama_add_block(m, config, layer);
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

static bool adjoins_next(const struct dpt_param *param)
{
    return param->offset + param->numel == param[1].offset;
}

/* Asserts that the weights of each product are one matrix and its biases one vector;
 * base/config_model.c refuses other sizes. */
static void assert_products_contiguous(const struct dpt_transformer *m)
{
    const struct dpt_param *params = m->base.params;
    for (int name = 0; name < DPT_PRODUCTS; name++) {
        const struct dpt_product p = dpt_transformer_product(m, 0, (enum dpt_product_name)name);
        for (int i = 0; i + 1 < p.n; i++)
            DPT_ASSERT(adjoins_next(&params[p.weight + i]) &&
                       (p.bias < 0 || adjoins_next(&params[p.bias + i])));
    }
}

/* Frequencies of the rotary embeddings: theta^(-2i/D), as f32. Llama 3's scaling (Hugging Face's
 * rope_type "llama3") changes them; W is the original context. Frequencies of waves longer than W /
 * low_freq_factor are divided by `factor`. Frequencies of waves shorter than W / high_freq_factor
 * stay unchanged. Frequencies between the two are a mix of both. */
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

/* Sets the places of the tensors in a block, -1 for a tensor that the block does not have. Returns
 * the number of tensors. */
static int place_tensors(const struct dpt_config *config, int ret_place[TENSORS])
{
    int n = 0;
    for (int t = 0; t < TENSORS; t++)
        ret_place[t] = has_tensor(config, (enum tensor)t) ? n++ : -1;
    return n;
}

static enum dpt_status llama_create(const struct dpt_config *config, struct dpt_model **ret,
                                    struct dpt_err *err)
{
    int place[TENSORS];
    const int per_block = place_tensors(config, place);
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
    DPT_TRY(
        dpt_transformer_create(&family, config, ends + config->model.n_layer * per_block, &m, err));
    llama_add_units(m, config);
    assert_products_contiguous(m);
    *ret = &m->base;
    return DPT_OK;
}

const struct dpt_model_kind dpt_llama_kind = {
    .name = "llama",
    .any_context = true,
    .out_in = true,
    .create = llama_create,
    .saved_bytes = dpt_transformer_saved_bytes,
    .scratch_bytes = dpt_transformer_scratch_bytes,
    .packing = dpt_transformer_packing,
    .forward = dpt_transformer_forward,
    .backward = dpt_transformer_backward,
    .cache_bytes = dpt_transformer_cache_bytes,
    .decode_bytes = dpt_transformer_decode_bytes,
    .decode = dpt_transformer_decode,
};
