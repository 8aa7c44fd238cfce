/* The Llama family (Touvron et al. 2023; SmolLM2), as Hugging Face's LlamaForCausalLM or, with
 * labels, LlamaForSequenceClassification: sizes, table, layout of a slot's memory. The mathematics
 * is in llama_forward.c and llama_backward.c. */
#include "worker/model/llama.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { END_UNITS = 2 /* embedding and head */ };

#define INIT_STD 0.02f
#define PI       3.14159265358979323846

static const struct dpt_param_rule one = {false, DPT_INIT_ONE, 0.0f, false};
static const struct dpt_param_rule zero = {false, DPT_INIT_ZERO, 0.0f, false};
static const struct dpt_param_rule normal = {true, DPT_INIT_NORMAL, INIT_STD, false};

static int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Of a block: its tensors' names, shapes and initial values. */
static struct entry {
    const char *name;
    struct dpt_shape shape;
    const struct dpt_param_rule *rule;
} entry_of(const struct dpt_llama *m, enum dpt_llama_tensor tensor)
{
    const int64_t c = m->c, kv = m->kv_heads * m->head, i = m->inner, q = m->q;
    switch (tensor) {
    case DPT_LLAMA_NORM_1:
        return (struct entry){"input_layernorm.weight", {{c}}, &one};
    case DPT_LLAMA_Q_W:
        return (struct entry){"self_attn.q_proj.weight", {{q, c}}, &normal};
    case DPT_LLAMA_K_W:
        return (struct entry){"self_attn.k_proj.weight", {{kv, c}}, &normal};
    case DPT_LLAMA_V_W:
        return (struct entry){"self_attn.v_proj.weight", {{kv, c}}, &normal};
    case DPT_LLAMA_Q_B:
        return (struct entry){"self_attn.q_proj.bias", {{q}}, &zero};
    case DPT_LLAMA_K_B:
        return (struct entry){"self_attn.k_proj.bias", {{kv}}, &zero};
    case DPT_LLAMA_V_B:
        return (struct entry){"self_attn.v_proj.bias", {{kv}}, &zero};
    case DPT_LLAMA_O_W:
        return (struct entry){"self_attn.o_proj.weight", {{c, q}}, &normal};
    case DPT_LLAMA_O_B:
        return (struct entry){"self_attn.o_proj.bias", {{c}}, &zero};
    case DPT_LLAMA_NORM_2:
        return (struct entry){"post_attention_layernorm.weight", {{c}}, &one};
    case DPT_LLAMA_GATE_W:
        return (struct entry){"mlp.gate_proj.weight", {{i, c}}, &normal};
    case DPT_LLAMA_UP_W:
        return (struct entry){"mlp.up_proj.weight", {{i, c}}, &normal};
    case DPT_LLAMA_GATE_B:
        return (struct entry){"mlp.gate_proj.bias", {{i}}, &zero};
    case DPT_LLAMA_UP_B:
        return (struct entry){"mlp.up_proj.bias", {{i}}, &zero};
    case DPT_LLAMA_DOWN_W:
        return (struct entry){"mlp.down_proj.weight", {{c, i}}, &normal};
    case DPT_LLAMA_DOWN_B:
    case DPT_LLAMA_TENSORS:
        break;
    }
    return (struct entry){"mlp.down_proj.bias", {{c}}, &zero};
}

static bool has(const struct dpt_config *config, enum dpt_llama_tensor tensor)
{
    switch (tensor) {
    case DPT_LLAMA_Q_B:
    case DPT_LLAMA_K_B:
    case DPT_LLAMA_V_B:
    case DPT_LLAMA_O_B:
        return config->model.attention_bias;
    case DPT_LLAMA_GATE_B:
    case DPT_LLAMA_UP_B:
    case DPT_LLAMA_DOWN_B:
        return config->model.mlp_bias;
    default:
        return true;
    }
}

static void add_block(struct dpt_llama *m, int layer)
{
    char prefix[32], unit[32];
    (void)snprintf(prefix, sizeof prefix, "model.layers.%d.", layer);
    (void)snprintf(unit, sizeof unit, "layers.%d", layer);
    dpt_table_begin_unit(&m->base, unit);
    for (int t = 0; t < DPT_LLAMA_TENSORS; t++) {
        const struct entry entry = entry_of(m, (enum dpt_llama_tensor)t);
        if (m->place[t] >= 0)
            dpt_table_add(&m->base, prefix, entry.name, entry.shape, *entry.rule);
    }
    dpt_table_end_unit(&m->base);
}

static void add_all(struct dpt_llama *m)
{
    struct dpt_model *model = &m->base;
    const struct dpt_shape table = {{model->vocab, m->c}};
    dpt_table_begin_unit(model, "embedding");
    model->units[0].in_parts = true;
    dpt_table_add(model, "model.", "embed_tokens.weight", table, normal);
    dpt_table_end_unit(model);
    for (int layer = 0; layer < m->layers; layer++)
        add_block(m, layer);
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
static void check_groups(const struct dpt_llama *m)
{
    const struct dpt_param *params = m->base.params;
    for (int name = 0; name < DPT_LLAMA_PRODUCTS; name++) {
        const struct dpt_llama_product p =
            dpt_llama_product(m, 0, (enum dpt_llama_product_name)name);
        for (int i = p.weight; i + 1 < p.weight + p.n_weights; i++)
            DPT_ASSERT(params[i].offset + params[i].numel == params[i + 1].offset);
        for (int i = p.bias; i + 1 < p.bias + p.n_biases; i++)
            DPT_ASSERT(params[i].offset + params[i].numel == params[i + 1].offset);
    }
}

/* Frequencies of the rotary embeddings: theta^(-2i/D), as f32. With Llama 3's scaling (Hugging
 * Face's rope_type "llama3") waves longer than the original context / low_freq_factor are slowed
 * down by `factor`, those shorter than it / high_freq_factor stay, and in between both are mixed.
 */
static void make_frequencies(struct dpt_llama *m)
{
    const struct dpt_llama_rope *rope = &m->rope;
    const double low = rope->low_freq_factor, high = rope->high_freq_factor;
    DPT_ASSERT(m->head / 2 <= DPT_ROPE_HALF_MAX); /* base/config_model.c refuses more */
    for (int64_t i = 0; i < m->head / 2; i++) {
        double f = pow(rope->theta, -(double)(2 * i) / (double)m->head);
        const double waves = (double)rope->original_context * f / (2.0 * PI);
        if (rope->scaling == DPT_ROPE_SCALING_LLAMA3 && waves < high) {
            const double kept = waves < low ? 0.0 : (waves - low) / (high - low);
            f = (1.0 - kept) * f / rope->factor + kept * f;
        }
        m->inv_freq[i] = (float)f;
    }
}

static void set_sizes(struct dpt_llama *m, const struct dpt_config *config)
{
    m->base.kind = &dpt_llama_kind;
    m->base.vocab = config->model.vocab;
    m->base.labels = config->model.labels;
    m->base.context = config->model.context;
    m->base.dtype = dpt_dtype_of(config->train.precision);
    m->layers = config->model.n_layer;
    m->heads = config->model.n_head;
    m->kv_heads = config->model.n_kv_head;
    m->head = config->model.head_size;
    m->c = config->model.n_embd;
    m->inner = config->model.n_inner;
    m->q = m->heads * m->head;
    m->row = (m->heads + 2 * m->kv_heads) * m->head;
    m->eps = config->model.norm_eps;
    m->dropout = config->model.dropout;
    m->tied = config->model.tied_head && m->base.labels == 0;
    m->checkpointing = config->train.activation_checkpointing;
    for (int t = 0; t < DPT_LLAMA_TENSORS; t++)
        m->place[t] = has(config, (enum dpt_llama_tensor)t) ? m->block_tensors++ : -1;
    m->rope = (struct dpt_llama_rope){config->model.rope_theta,
                                      config->model.rope_scaling,
                                      config->model.rope_factor,
                                      config->model.rope_low_freq_factor,
                                      config->model.rope_high_freq_factor,
                                      config->model.rope_original_context};
    make_frequencies(m);
}

static enum dpt_status create(const struct dpt_config *config, struct dpt_model **ret,
                              struct dpt_err *err)
{
    struct dpt_llama *m = calloc(1, sizeof *m);
    if (m == NULL)
        return dpt_fail(err, DPT_ENOMEM, "model of %zu bytes", sizeof *m);
    set_sizes(m, config);
    const int ends = m->tied ? 2 : 3; /* tensors of embedding and head */
    const enum dpt_status status =
        dpt_table_init(&m->base, m->layers + END_UNITS, ends + m->layers * m->block_tensors, err);
    if (status != DPT_OK) {
        free(m);
        return status;
    }
    add_all(m);
    check_groups(m);
    *ret = &m->base;
    return DPT_OK;
}

struct dpt_llama_saved dpt_llama_saved(const struct dpt_llama *m, const struct dpt_slot *slot,
                                       size_t *ret_bytes)
{
    const int64_t n = slot->b * slot->t;
    struct dpt_carver carver = {slot->saved, 0};
    struct dpt_llama_saved saved;
    saved.dstream = dpt_carve(&carver, m->base.dtype, n * m->c);
    saved.x0 = dpt_carve(&carver, m->base.dtype, n * m->c);
    saved.cos = dpt_carve(&carver, DPT_F32, slot->t * m->head / 2);
    saved.sin = dpt_carve(&carver, DPT_F32, slot->t * m->head / 2);
    if (ret_bytes != NULL)
        *ret_bytes = carver.at;
    return saved;
}

/* One block's own activations, beginning with its output: those that are kept, and those that are
 * not. */
static struct dpt_llama_block_saved carve_block(const struct dpt_llama *m,
                                                const struct dpt_slot *slot,
                                                struct dpt_carver *kept, struct dpt_carver *dropped)
{
    const int64_t n = slot->b * slot->t, c = m->c;
    const enum dpt_dtype dtype = m->base.dtype;
    struct dpt_carver *dear =
        m->checkpointing == DPT_ACTIVATION_CHECKPOINTING_FULL ? dropped : kept;
    struct dpt_carver *cheap =
        m->checkpointing == DPT_ACTIVATION_CHECKPOINTING_NONE ? kept : dropped;
    struct dpt_llama_block_saved saved = {0};
    saved.out = dpt_carve(kept, dtype, n * c);
    saved.norm1 = dpt_carve(cheap, dtype, n * c);
    saved.rstd1 = dpt_carve(dear, DPT_F32, n);
    saved.qkv = dpt_carve(dear, dtype, n * m->row);
    saved.lse = dpt_carve(dear, DPT_F32, n * m->heads);
    saved.att = dpt_carve(dear, dtype, n * m->q);
    saved.mid = dpt_carve(dear, dtype, n * c);
    saved.norm2 = dpt_carve(cheap, dtype, n * c);
    saved.rstd2 = dpt_carve(dear, DPT_F32, n);
    saved.gate_up = dpt_carve(dear, dtype, n * 2 * m->inner);
    saved.act = dpt_carve(cheap, dtype, n * m->inner);
    return saved;
}

struct dpt_llama_block_saved dpt_llama_block_saved(const struct dpt_llama *m,
                                                   const struct dpt_slot *slot, int layer,
                                                   struct dpt_llama_block_bytes *ret_bytes)
{
    size_t shared_bytes, scratch_bytes;
    const struct dpt_llama_saved shared = dpt_llama_saved(m, slot, &shared_bytes);
    (void)dpt_llama_scratch(m, slot, &scratch_bytes);
    struct dpt_carver own = {NULL, 0}, none = {NULL, 0};
    (void)carve_block(m, slot, &own, &none);
    struct dpt_carver kept = {slot->saved, shared_bytes + (size_t)layer * own.at};
    struct dpt_carver before = {slot->saved, kept.at - (layer > 0 ? own.at : 0)};
    struct dpt_carver dropped = {slot->scratch, scratch_bytes};
    struct dpt_llama_block_saved saved = carve_block(m, slot, &kept, &dropped);
    saved.x = layer > 0 ? carve_block(m, slot, &before, &none).out : shared.x0;
    if (ret_bytes != NULL)
        *ret_bytes = (struct dpt_llama_block_bytes){own.at, dropped.at - scratch_bytes};
    return saved;
}

struct dpt_llama_scratch dpt_llama_scratch(const struct dpt_llama *m, const struct dpt_slot *slot,
                                           size_t *ret_bytes)
{
    const int64_t n = slot->b * slot->t;
    struct dpt_carver carver = {slot->scratch, 0};
    struct dpt_llama_scratch scratch;
    scratch.wide = dpt_carve(&carver, m->base.dtype, n * most(2 * m->inner, m->row));
    scratch.inner = dpt_carve(&carver, m->base.dtype, n * m->inner);
    scratch.a = dpt_carve(&carver, m->base.dtype, n * most(m->c, m->q));
    scratch.b = dpt_carve(&carver, m->base.dtype, n * most(m->c, m->q));
    scratch.rstd = dpt_carve(&carver, DPT_F32, n);
    if (ret_bytes != NULL)
        *ret_bytes = carver.at;
    return scratch;
}

static size_t saved_bytes(const struct dpt_model *model, int64_t b, int64_t t)
{
    const struct dpt_llama *m = (const struct dpt_llama *)model;
    const struct dpt_slot slot = {.b = b, .t = t};
    size_t shared;
    struct dpt_llama_block_bytes block;
    (void)dpt_llama_saved(m, &slot, &shared);
    (void)dpt_llama_block_saved(m, &slot, 0, &block);
    return shared + (size_t)m->layers * block.saved;
}

static size_t scratch_bytes(const struct dpt_model *model, int64_t b, int64_t t)
{
    const struct dpt_llama *m = (const struct dpt_llama *)model;
    const struct dpt_slot slot = {.b = b, .t = t};
    size_t bytes;
    struct dpt_llama_block_bytes block;
    (void)dpt_llama_scratch(m, &slot, &bytes);
    (void)dpt_llama_block_saved(m, &slot, 0, &block);
    return bytes + block.scratch;
}

int dpt_llama_block_param(const struct dpt_llama *m, int layer, enum dpt_llama_tensor tensor)
{
    const int place = m->place[tensor];
    return place < 0 ? -1 : m->base.units[1 + layer].first_param + place;
}

int dpt_llama_last_norm(const struct dpt_llama *m)
{
    return m->base.units[1 + m->layers].first_param;
}

int dpt_llama_head(const struct dpt_llama *m)
{
    return m->tied ? DPT_LLAMA_EMBEDDING : dpt_llama_last_norm(m) + 1;
}

struct dpt_llama_product dpt_llama_product(const struct dpt_llama *m, int layer,
                                           enum dpt_llama_product_name name)
{
    static const struct {
        enum dpt_llama_tensor weight, bias;
        int n;
    } parts[DPT_LLAMA_PRODUCTS] = {
        [DPT_LLAMA_QKV] = {DPT_LLAMA_Q_W, DPT_LLAMA_Q_B, 3},
        [DPT_LLAMA_O] = {DPT_LLAMA_O_W, DPT_LLAMA_O_B, 1},
        [DPT_LLAMA_GATE_UP] = {DPT_LLAMA_GATE_W, DPT_LLAMA_GATE_B, 2},
        [DPT_LLAMA_DOWN] = {DPT_LLAMA_DOWN_W, DPT_LLAMA_DOWN_B, 1},
    };
    const int bias = dpt_llama_block_param(m, layer, parts[name].bias);
    struct dpt_llama_product product = {
        .weight = dpt_llama_block_param(m, layer, parts[name].weight),
        .n_weights = parts[name].n,
        .bias = bias,
        .n_biases = bias < 0 ? 0 : parts[name].n,
    };
    product.in = m->base.params[product.weight].dim[1];
    for (int i = 0; i < product.n_weights; i++)
        product.out += m->base.params[product.weight + i].dim[0];
    return product;
}

/* A group of matrices has one form, under its first parameter. */
static bool packing(const struct dpt_model *model, int param, struct dpt_pack *ret)
{
    const struct dpt_llama *m = (const struct dpt_llama *)model;
    const int layer = model->params[param].unit - 1;
    if (param == dpt_llama_head(m)) {
        *ret = (struct dpt_pack){.kind = DPT_PACK_HEAD,
                                 .rows = dpt_head_logits(model),
                                 .cols = m->c,
                                 .dtype = model->dtype};
        return true;
    }
    if (layer < 0 || layer >= m->layers)
        return false;
    for (int name = 0; name < DPT_LLAMA_PRODUCTS; name++) {
        const struct dpt_llama_product product =
            dpt_llama_product(m, layer, (enum dpt_llama_product_name)name);
        if (product.weight != param)
            continue;
        *ret = (struct dpt_pack){.kind = DPT_PACK_LINEAR,
                                 .out_in = true,
                                 .rows = product.out,
                                 .cols = product.in,
                                 .dtype = model->dtype};
        return true;
    }
    return false;
}

const struct dpt_model_kind dpt_llama_kind = {
    .name = "llama",
    .any_context = true,
    .out_in = true,
    .create = create,
    .saved_bytes = saved_bytes,
    .scratch_bytes = scratch_bytes,
    .packing = packing,
    .forward = dpt_llama_forward,
    .backward = dpt_llama_backward,
    .cache_bytes = dpt_llama_cache_bytes,
    .decode_bytes = dpt_llama_decode_bytes,
    .decode = dpt_llama_decode,
};
