/* GPT-2 (Radford et al. 2019), pre-LN, as Hugging Face's GPT2LMHeadModel or, with labels,
 * GPT2ForSequenceClassification: sizes, table, layout of a slot's memory. The mathematics is in
 * gpt2_forward.c and gpt2_backward.c. */
#include "worker/model/gpt2.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    EMBEDDING_TENSORS = 2,
    HEAD_TENSORS = 2, /* and a third with labels */
    END_UNITS = 2,    /* embedding and head */
    /* Far above any model, and small enough that no size below overflows. */
    N_EMBD_MAX = 1 << 16,
    VOCAB_MAX = 1 << 24,
    CONTEXT_MAX = 1 << 24
};

#define INIT_STD 0.02f

static enum dpt_status check(const struct dpt_config *config, struct dpt_err *err)
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

static void add_block(struct dpt_gpt2 *m, int layer)
{
    const struct dpt_param_rule one = {false, DPT_INIT_ONE, 0.0f, false};
    const struct dpt_param_rule zero = {false, DPT_INIT_ZERO, 0.0f, false};
    const struct dpt_param_rule normal = {true, DPT_INIT_NORMAL, INIT_STD, false};
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

static void add_all(struct dpt_gpt2 *m)
{
    const struct dpt_param_rule one = {false, DPT_INIT_ONE, 0.0f, false};
    const struct dpt_param_rule zero = {false, DPT_INIT_ZERO, 0.0f, false};
    const struct dpt_param_rule normal = {true, DPT_INIT_NORMAL, INIT_STD, false};
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

static enum dpt_status create(const struct dpt_config *config, struct dpt_model **ret,
                              struct dpt_err *err)
{
    DPT_TRY(check(config, err));
    struct dpt_gpt2 *m = calloc(1, sizeof *m);
    if (m == NULL)
        return dpt_fail(err, DPT_ENOMEM, "model of %zu bytes", sizeof *m);
    m->base.kind = &dpt_gpt2_kind;
    m->base.vocab = config->model.vocab;
    m->base.labels = config->model.labels;
    m->base.context = config->model.context;
    m->base.dtype = dpt_dtype_of(config->train.precision);
    m->layers = config->model.n_layer;
    m->heads = config->model.n_head;
    m->c = config->model.n_embd;
    m->dropout = config->model.dropout;
    m->checkpointing = config->train.activation_checkpointing;
    const int ends = EMBEDDING_TENSORS + HEAD_TENSORS + (m->base.labels > 0 ? 1 : 0);
    enum dpt_status status = dpt_table_init(&m->base, m->layers + END_UNITS,
                                            ends + m->layers * DPT_GPT2_BLOCK_TENSORS, err);
    if (status != DPT_OK) {
        free(m);
        return status;
    }
    add_all(m);
    *ret = &m->base;
    return DPT_OK;
}

struct dpt_gpt2_saved dpt_gpt2_saved(const struct dpt_gpt2 *m, const struct dpt_slot *slot,
                                     size_t *ret_bytes)
{
    const int64_t n = slot->b * slot->t;
    struct dpt_carver carver = {slot->saved, 0};
    struct dpt_gpt2_saved saved;
    saved.dstream = dpt_carve(&carver, m->base.dtype, n * m->c);
    saved.x0 = dpt_carve(&carver, m->base.dtype, n * m->c);
    if (ret_bytes != NULL)
        *ret_bytes = carver.at;
    return saved;
}

/* One block's own activations, beginning with its output: those that are kept, and those that are
 * not. */
static struct dpt_gpt2_block_saved carve_block(const struct dpt_gpt2 *m,
                                               const struct dpt_slot *slot, struct dpt_carver *kept,
                                               struct dpt_carver *dropped)
{
    const int64_t n = slot->b * slot->t, c = m->c;
    const enum dpt_dtype dtype = m->base.dtype;
    struct dpt_carver *dear =
        m->checkpointing == DPT_ACTIVATION_CHECKPOINTING_FULL ? dropped : kept;
    struct dpt_carver *cheap =
        m->checkpointing == DPT_ACTIVATION_CHECKPOINTING_NONE ? kept : dropped;
    struct dpt_gpt2_block_saved saved = {0};
    saved.out = dpt_carve(kept, dtype, n * c);
    saved.ln1 = dpt_carve(cheap, dtype, n * c);
    saved.mean1 = dpt_carve(dear, DPT_F32, n);
    saved.rstd1 = dpt_carve(dear, DPT_F32, n);
    saved.qkv = dpt_carve(dear, dtype, n * 3 * c);
    saved.lse = dpt_carve(dear, DPT_F32, n * m->heads);
    saved.att = dpt_carve(dear, dtype, n * c);
    saved.mid = dpt_carve(dear, dtype, n * c);
    saved.ln2 = dpt_carve(cheap, dtype, n * c);
    saved.mean2 = dpt_carve(dear, DPT_F32, n);
    saved.rstd2 = dpt_carve(dear, DPT_F32, n);
    saved.fc = dpt_carve(dear, dtype, n * 4 * c);
    saved.gelu = dpt_carve(cheap, dtype, n * 4 * c);
    return saved;
}

struct dpt_gpt2_block_saved dpt_gpt2_block_saved(const struct dpt_gpt2 *m,
                                                 const struct dpt_slot *slot, int layer,
                                                 struct dpt_gpt2_block_bytes *ret_bytes)
{
    size_t shared_bytes, scratch_bytes;
    const struct dpt_gpt2_saved shared = dpt_gpt2_saved(m, slot, &shared_bytes);
    (void)dpt_gpt2_scratch(m, slot, &scratch_bytes);
    struct dpt_carver own = {NULL, 0}, none = {NULL, 0};
    (void)carve_block(m, slot, &own, &none);
    struct dpt_carver kept = {slot->saved, shared_bytes + (size_t)layer * own.at};
    struct dpt_carver before = {slot->saved, kept.at - (layer > 0 ? own.at : 0)};
    struct dpt_carver dropped = {slot->scratch, scratch_bytes};
    struct dpt_gpt2_block_saved saved = carve_block(m, slot, &kept, &dropped);
    saved.x = layer > 0 ? carve_block(m, slot, &before, &none).out : shared.x0;
    if (ret_bytes != NULL)
        *ret_bytes = (struct dpt_gpt2_block_bytes){own.at, dropped.at - scratch_bytes};
    return saved;
}

struct dpt_gpt2_scratch dpt_gpt2_scratch(const struct dpt_gpt2 *m, const struct dpt_slot *slot,
                                         size_t *ret_bytes)
{
    const int64_t n = slot->b * slot->t;
    struct dpt_carver carver = {slot->scratch, 0};
    struct dpt_gpt2_scratch scratch;
    scratch.wide = dpt_carve(&carver, m->base.dtype, n * 4 * m->c);
    scratch.a = dpt_carve(&carver, m->base.dtype, n * m->c);
    scratch.b = dpt_carve(&carver, m->base.dtype, n * m->c);
    scratch.mean = dpt_carve(&carver, DPT_F32, n);
    scratch.rstd = dpt_carve(&carver, DPT_F32, n);
    if (ret_bytes != NULL)
        *ret_bytes = carver.at;
    return scratch;
}

static size_t saved_bytes(const struct dpt_model *model, int64_t b, int64_t t)
{
    const struct dpt_gpt2 *m = (const struct dpt_gpt2 *)model;
    const struct dpt_slot slot = {.b = b, .t = t};
    size_t shared;
    struct dpt_gpt2_block_bytes block;
    (void)dpt_gpt2_saved(m, &slot, &shared);
    (void)dpt_gpt2_block_saved(m, &slot, 0, &block);
    return shared + (size_t)m->layers * block.saved;
}

static size_t scratch_bytes(const struct dpt_model *model, int64_t b, int64_t t)
{
    const struct dpt_gpt2 *m = (const struct dpt_gpt2 *)model;
    const struct dpt_slot slot = {.b = b, .t = t};
    size_t bytes;
    struct dpt_gpt2_block_bytes block;
    (void)dpt_gpt2_scratch(m, &slot, &bytes);
    (void)dpt_gpt2_block_saved(m, &slot, 0, &block);
    return bytes + block.scratch;
}

/* The blocks' matrices are linear layers', wte or the labels' the head's. */
static bool packing(const struct dpt_model *model, int param, struct dpt_pack *ret)
{
    const struct dpt_param *p = &model->params[param];
    const bool is_head = param == dpt_gpt2_head((const struct dpt_gpt2 *)model);
    if (p->ndim != 2 || (p->unit == 0 && !is_head))
        return false;
    *ret = (struct dpt_pack){.kind = is_head ? DPT_PACK_HEAD : DPT_PACK_LINEAR,
                             .rows = p->dim[0],
                             .cols = p->dim[1],
                             .dtype = model->dtype};
    return true;
}

int dpt_gpt2_block_param(int layer, enum dpt_gpt2_tensor tensor)
{
    return DPT_GPT2_FIRST_BLOCK_PARAM + layer * DPT_GPT2_BLOCK_TENSORS + (int)tensor;
}

int dpt_gpt2_ln_f(const struct dpt_gpt2 *m)
{
    return DPT_GPT2_FIRST_BLOCK_PARAM + m->layers * DPT_GPT2_BLOCK_TENSORS;
}

int dpt_gpt2_head(const struct dpt_gpt2 *m)
{
    return m->base.labels > 0 ? dpt_model_score(&m->base) : DPT_GPT2_WTE;
}

int dpt_gpt2_block_site(int layer, int site)
{
    return DPT_GPT2_SITE_BLOCK + DPT_GPT2_SITES_PER_BLOCK * layer + site;
}

const struct dpt_model_kind dpt_gpt2_kind = {
    .name = "gpt2",
    .create = create,
    .saved_bytes = saved_bytes,
    .scratch_bytes = scratch_bytes,
    .packing = packing,
    .forward = dpt_gpt2_forward,
    .backward = dpt_gpt2_backward,
    .cache_bytes = dpt_gpt2_cache_bytes,
    .decode_bytes = dpt_gpt2_decode_bytes,
    .decode = dpt_gpt2_decode,
};
