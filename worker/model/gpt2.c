/* GPT-2 (Radford et al. 2019), pre-LN, as Hugging Face's GPT2LMHeadModel or, with labels,
 * GPT2ForSequenceClassification: its table, and its fields of transformer.h. */
#include "worker/model/transformer.h"

#include <math.h>
#include <stdio.h>

enum { BLOCK_TENSORS = 12, END_TENSORS = 4 /* of embedding and head; a fifth with labels */ };

#define INIT_STD 0.02f

static const struct dpt_param_rule one = {false, DPT_INIT_ONE, 0.0f, false};
static const struct dpt_param_rule zero = {false, DPT_INIT_ZERO, 0.0f, false};
static const struct dpt_param_rule normal = {true, DPT_INIT_NORMAL, INIT_STD, false};

static void gpt2_add_block(struct dpt_transformer *m, int layer)
{
    /* Weights whose product is added to the residual stream are scaled by 1/sqrt of the number of
     * these products (Radford et al. 2019, section 2.3). */
    const struct dpt_param_rule residual = {
        true, DPT_INIT_NORMAL, (float)((double)INIT_STD / sqrt(2.0 * m->layers)), false};
    char prefix[32], unit[32];
    (void)snprintf(prefix, sizeof prefix, "transformer.h.%d.", layer);
    (void)snprintf(unit, sizeof unit, "h.%d", layer);
    const int64_t c = m->c;
    struct dpt_model *model = &m->base;
    dpt_table_begin_unit(model, unit);
    dpt_table_add(model, prefix, "ln_1.weight", (struct dpt_shape){{c}}, one);
    dpt_table_add(model, prefix, "ln_1.bias", (struct dpt_shape){{c}}, zero);
    dpt_table_add(model, prefix, "attn.c_attn.weight", (struct dpt_shape){{c, 3 * c}}, normal);
    dpt_table_add(model, prefix, "attn.c_attn.bias", (struct dpt_shape){{3 * c}}, zero);
    dpt_table_add(model, prefix, "attn.c_proj.weight", (struct dpt_shape){{c, c}}, residual);
    dpt_table_add(model, prefix, "attn.c_proj.bias", (struct dpt_shape){{c}}, zero);
    dpt_table_add(model, prefix, "ln_2.weight", (struct dpt_shape){{c}}, one);
    dpt_table_add(model, prefix, "ln_2.bias", (struct dpt_shape){{c}}, zero);
    dpt_table_add(model, prefix, "mlp.c_fc.weight", (struct dpt_shape){{c, 4 * c}}, normal);
    dpt_table_add(model, prefix, "mlp.c_fc.bias", (struct dpt_shape){{4 * c}}, zero);
    dpt_table_add(model, prefix, "mlp.c_proj.weight", (struct dpt_shape){{4 * c, c}}, residual);
    dpt_table_add(model, prefix, "mlp.c_proj.bias", (struct dpt_shape){{c}}, zero);
    dpt_table_end_unit(model);
}

static void gpt2_add_units(struct dpt_transformer *m)
{
    struct dpt_model *model = &m->base;
    dpt_table_begin_unit(model, "embedding");
    model->units[0].in_parts = true;
    dpt_table_add(model, "transformer.", "wte.weight", (struct dpt_shape){{model->vocab, m->c}},
                  normal);
    dpt_table_add(model, "transformer.", "wpe.weight", (struct dpt_shape){{model->context, m->c}},
                  normal);
    dpt_table_end_unit(model);
    for (int layer = 0; layer < m->layers; layer++)
        gpt2_add_block(m, layer);
    dpt_table_begin_unit(model, "head");
    if (model->labels == 0)
        model->units[model->n_units - 1].borrows = 0; /* wte */
    dpt_table_add(model, "transformer.", "ln_f.weight", (struct dpt_shape){{m->c}}, one);
    dpt_table_add(model, "transformer.", "ln_f.bias", (struct dpt_shape){{m->c}}, zero);
    if (model->labels > 0)
        dpt_table_add(model, "", "score.weight", (struct dpt_shape){{model->labels, m->c}}, normal);
    dpt_table_end_unit(model);
    DPT_ASSERT(model->n_params == model->params_max && model->n_units == model->units_max);
}

/* The numbers of norms and products are places in the order in which gpt2_add_block adds the
 * tensors. */
static enum dpt_status gpt2_create(const struct dpt_config *config, struct dpt_model **ret,
                                   struct dpt_err *err)
{
    const bool labels = config->model.labels > 0;
    const struct dpt_transformer family = {
        .base = {.kind = &dpt_gpt2_kind},
        .kv_heads = config->model.n_head,
        .head = config->model.n_embd / config->model.n_head,
        .inner = 4 * (int64_t)config->model.n_embd,
        .eps = 1e-5f,
        .norm_bias = true,
        .positions = true,
        .tied = !labels,
        .attention_dropout = config->model.dropout,
        .dropout = config->model.dropout,
        .first_site = 1,
        .sites_per_block = 3,
        .norm = {0, 6},
        .products = {[DPT_PRODUCT_QKV] = {.weight = 2, .bias = 3, .n = 1},
                     [DPT_PRODUCT_O] = {.weight = 4, .bias = 5, .n = 1},
                     [DPT_PRODUCT_UP] = {.weight = 8, .bias = 9, .n = 1},
                     [DPT_PRODUCT_DOWN] = {.weight = 10, .bias = 11, .n = 1}},
    };
    const int ends = END_TENSORS + (labels ? 1 : 0);
    struct dpt_transformer *m;
    DPT_TRY(dpt_transformer_create(&family, config, ends + config->model.n_layer * BLOCK_TENSORS,
                                   &m, err));
    gpt2_add_units(m);
    *ret = &m->base;
    return DPT_OK;
}

const struct dpt_model_kind dpt_gpt2_kind = {
    .name = "gpt2",
    .create = gpt2_create,
    .saved_bytes = dpt_transformer_saved_bytes,
    .scratch_bytes = dpt_transformer_scratch_bytes,
    .packing = dpt_transformer_packing,
    .forward = dpt_transformer_forward,
    .backward = dpt_transformer_backward,
    .cache_bytes = dpt_transformer_cache_bytes,
    .decode_bytes = dpt_transformer_decode_bytes,
    .decode = dpt_transformer_decode,
};
