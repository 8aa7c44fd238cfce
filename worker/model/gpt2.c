/* GPT-2 (Radford et al. 2019), pre-LN, as Hugging Face's GPT2LMHeadModel or, with labels,
 * GPT2ForSequenceClassification: its table, and what transformer.h needs to know. */
#include "worker/model/transformer.h"

#include <math.h>
#include <stdio.h>

enum {
    EMBEDDING_TENSORS = 2,
    BLOCK_TENSORS = 12,
    HEAD_TENSORS = 2, /* and a third with labels */
    END_UNITS = 2,    /* embedding and head */
    /* Far above any model, and small enough that no size below overflows. */
    N_EMBD_MAX = 1 << 16,
    VOCAB_MAX = 1 << 24,
    CONTEXT_MAX = 1 << 24
};

#define INIT_STD 0.02f

static const struct dpt_param_rule one = {false, DPT_INIT_ONE, 0.0f, false};
static const struct dpt_param_rule zero = {false, DPT_INIT_ZERO, 0.0f, false};
static const struct dpt_param_rule normal = {true, DPT_INIT_NORMAL, INIT_STD, false};

static enum dpt_status check_sizes(const struct dpt_config *config, struct dpt_err *err)
{
    const int layer = config->model.n_layer, head = config->model.n_head;
    const int embd = config->model.n_embd, vocab = config->model.vocab;
    const int context = config->model.context;
    if (layer < 1 || layer > DPT_UNITS_MAX - END_UNITS)
        return dpt_fail(err, DPT_ECONFIG, "model.n_layer: %d is not in 1..%d", layer,
                        DPT_UNITS_MAX - END_UNITS);
    if (embd < 1 || embd > N_EMBD_MAX)
        return dpt_fail(err, DPT_ECONFIG, "model.n_embd: %d is not in 1..%d", embd, N_EMBD_MAX);
    if (head < 1 || embd % head != 0)
        return dpt_fail(err, DPT_ECONFIG, "model.n_head: %d does not divide model.n_embd %d", head,
                        embd);
    if (vocab < 1 || vocab > VOCAB_MAX)
        return dpt_fail(err, DPT_ECONFIG, "model.vocab: %d is not in 1..%d", vocab, VOCAB_MAX);
    if (context < 1 || context > CONTEXT_MAX)
        return dpt_fail(err, DPT_ECONFIG, "model.context: %d is not in 1..%d", context,
                        CONTEXT_MAX);
    if (!(config->model.dropout >= 0.0 && config->model.dropout < 1.0))
        return dpt_fail(err, DPT_ECONFIG, "model.dropout: %g is not in [0, 1)",
                        config->model.dropout);
    return DPT_OK;
}

static void add_block(struct dpt_transformer *m, int layer)
{
    /* What ends in the residual stream is scaled by 1/sqrt of the number of such layers (GPT-2,
     * section 2.3). */
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

static void add_all(struct dpt_transformer *m)
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
        add_block(m, layer);
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

/* The places of norms and products are those that add_block gives its tensors. */
static enum dpt_status create(const struct dpt_config *config, struct dpt_model **ret,
                              struct dpt_err *err)
{
    DPT_TRY(check_sizes(config, err));
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
    const int ends = EMBEDDING_TENSORS + HEAD_TENSORS + (labels ? 1 : 0);
    struct dpt_transformer *m;
    DPT_TRY(dpt_transformer_create(&family, config, ends + config->model.n_layer * BLOCK_TENSORS,
                                   &m, err));
    add_all(m);
    *ret = &m->base;
    return DPT_OK;
}

const struct dpt_model_kind dpt_gpt2_kind = {
    .name = "gpt2",
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
