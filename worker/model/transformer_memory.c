/* Sizes, parameters, and the layout of a slot's memory (transformer.h). */
#include "worker/model/transformer.h"

#include "base/extremes.h"

#include <stdlib.h>

enum { END_UNITS = 2 /* embedding and head */ };

enum dpt_status dpt_transformer_create(const struct dpt_transformer *family,
                                       const struct dpt_config *config, int params_max,
                                       struct dpt_transformer **ret, struct dpt_err *err)
{
    struct dpt_transformer *m = calloc(1, sizeof *m);
    if (m == NULL)
        return dpt_fail_nomem(err, "model of %zu bytes", sizeof *m);
    *m = *family;
    m->base.vocab = config->model.vocab;
    m->base.labels = config->model.labels;
    m->base.context = config->model.context;
    m->base.dtype = dpt_dtype_of(config->train.precision);
    m->layers = config->model.n_layer;
    m->heads = config->model.n_head;
    m->c = config->model.n_embd;
    m->q = m->heads * m->head;
    m->row = (m->heads + 2 * m->kv_heads) * m->head;
    m->up = m->gated ? 2 * m->inner : m->inner;
    m->checkpointing = config->train.activation_checkpointing;
    const enum dpt_status status = dpt_table_init(&m->base, m->layers + END_UNITS, params_max, err);
    if (status != DPT_OK) {
        free(m);
        return status;
    }
    *ret = m;
    return DPT_OK;
}

/* ---- parameters ---- */

int dpt_transformer_norm(const struct dpt_unit_call *call, int i)
{
    return call->model->units[call->unit].first_param + dpt_transformer_of(call)->norm[i];
}

int dpt_transformer_last_norm(const struct dpt_transformer *m)
{
    return m->base.units[1 + m->layers].first_param;
}

int dpt_transformer_head(const struct dpt_transformer *m)
{
    return m->tied ? DPT_TRANSFORMER_EMBEDDING : m->base.n_params - 1;
}

struct dpt_product dpt_transformer_product(const struct dpt_transformer *m, int layer,
                                           enum dpt_product_name name)
{
    const int first = m->base.units[1 + layer].first_param;
    const int out = m->base.kind->out_in ? 0 : 1; /* dimension */
    struct dpt_product product = m->products[name];
    product.weight += first;
    product.bias = product.bias < 0 ? -1 : first + product.bias;
    product.in = m->base.params[product.weight].dim[1 - out];
    for (int i = 0; i < product.n; i++)
        product.out += m->base.params[product.weight + i].dim[out];
    return product;
}

/* The head's weight has one packed form. Each product's matrix also has one, under the product's
 * first parameter. */
bool dpt_transformer_packing(const struct dpt_model *model, int param, struct dpt_pack *ret)
{
    const struct dpt_transformer *m = (const struct dpt_transformer *)model;
    const int layer = model->params[param].unit - 1;
    const bool out_in = model->kind->out_in;
    if (param == dpt_transformer_head(m)) {
        *ret = (struct dpt_pack){.kind = DPT_PACK_HEAD,
                                 .rows = dpt_head_logits(model),
                                 .cols = m->c,
                                 .dtype = model->dtype};
        return true;
    }
    for (int name = 0; layer >= 0 && layer < m->layers && name < DPT_PRODUCTS; name++) {
        const struct dpt_product product =
            dpt_transformer_product(m, layer, (enum dpt_product_name)name);
        if (product.weight != param)
            continue;
        *ret = (struct dpt_pack){.kind = DPT_PACK_LINEAR,
                                 .out_in = out_in,
                                 .rows = out_in ? product.out : product.in,
                                 .cols = out_in ? product.in : product.out,
                                 .dtype = model->dtype};
        return true;
    }
    return false;
}

/* ---- a slot's memory ---- */

static struct dpt_transformer_saved
carve_saved(const struct dpt_transformer *m, const struct dpt_slot *slot, struct dpt_carver *carver)
{
    const int64_t n = slot->b * slot->t;
    struct dpt_transformer_saved saved = {0};
    saved.dstream = dpt_carve(carver, m->base.dtype, n * m->c);
    saved.x0 = dpt_carve(carver, m->base.dtype, n * m->c);
    if (m->rope) {
        saved.cos = dpt_carve(carver, DPT_F32, slot->t * m->head / 2);
        saved.sin = dpt_carve(carver, DPT_F32, slot->t * m->head / 2);
    }
    return saved;
}

static struct dpt_normed carve_norm(const struct dpt_transformer *m, int64_t n,
                                    struct dpt_carver *statistics, struct dpt_carver *output)
{
    struct dpt_normed norm = {0};
    norm.y = dpt_carve(output, m->base.dtype, n * m->c);
    if (m->norm_bias)
        norm.mean = dpt_carve(statistics, DPT_F32, n);
    norm.rstd = dpt_carve(statistics, DPT_F32, n);
    return norm;
}

/* Places one block's own activations, its output first: those that are saved come from `kept`, the
 * others from `dropped`. */
static struct dpt_transformer_block carve_block(const struct dpt_transformer *m,
                                                const struct dpt_slot *slot,
                                                struct dpt_carver *kept, struct dpt_carver *dropped)
{
    const int64_t n = slot->b * slot->t;
    const enum dpt_dtype dtype = m->base.dtype;
    struct dpt_carver *dear =
        m->checkpointing == DPT_ACTIVATION_CHECKPOINTING_FULL ? dropped : kept;
    struct dpt_carver *cheap =
        m->checkpointing == DPT_ACTIVATION_CHECKPOINTING_NONE ? kept : dropped;
    struct dpt_transformer_block block = {0};
    block.out = dpt_carve(kept, dtype, n * m->c);
    block.norm_1 = carve_norm(m, n, dear, cheap);
    block.qkv = dpt_carve(dear, dtype, n * m->row);
    block.lse = dpt_carve(dear, DPT_F32, n * m->heads);
    block.att = dpt_carve(dear, dtype, n * m->q);
    block.mid = dpt_carve(dear, dtype, n * m->c);
    block.norm_2 = carve_norm(m, n, dear, cheap);
    block.norm_2.x = block.mid;
    block.up = dpt_carve(dear, dtype, n * m->up);
    block.act = dpt_carve(cheap, dtype, n * m->inner);
    return block;
}

static struct dpt_transformer_scratch carve_scratch(const struct dpt_transformer *m,
                                                    const struct dpt_slot *slot,
                                                    struct dpt_carver *carver)
{
    const int64_t n = slot->b * slot->t;
    const enum dpt_dtype dtype = m->base.dtype;
    struct dpt_transformer_scratch scratch = {0};
    scratch.wide = dpt_carve(carver, dtype, n * dpt_max_i64(m->up, m->row));
    if (m->gated)
        scratch.inner = dpt_carve(carver, dtype, n * m->inner);
    scratch.a = dpt_carve(carver, dtype, n * dpt_max_i64(m->c, m->q));
    scratch.b = dpt_carve(carver, dtype, n * dpt_max_i64(m->c, m->q));
    if (m->norm_bias)
        scratch.mean = dpt_carve(carver, DPT_F32, n);
    scratch.rstd = dpt_carve(carver, DPT_F32, n);
    return scratch;
}

struct dpt_transformer_saved dpt_transformer_saved(const struct dpt_unit_call *call)
{
    struct dpt_carver carver = {call->slot->saved, 0};
    return carve_saved(dpt_transformer_of(call), call->slot, &carver);
}

struct dpt_transformer_block dpt_transformer_block(const struct dpt_unit_call *call)
{
    const struct dpt_transformer *m = dpt_transformer_of(call);
    const struct dpt_slot *slot = call->slot;
    const int layer = (call->unit <= m->layers ? call->unit : m->layers) - 1;
    struct dpt_carver own = {NULL, 0}, none = {NULL, 0};
    (void)carve_block(m, slot, &own, &none);
    struct dpt_carver kept = {slot->saved, 0}, dropped = {slot->scratch, 0};
    const struct dpt_transformer_saved shared = carve_saved(m, slot, &kept);
    (void)carve_scratch(m, slot, &dropped);
    kept.at += (size_t)layer * own.at;
    struct dpt_carver before = {slot->saved, kept.at - (layer > 0 ? own.at : 0)};
    struct dpt_transformer_block block = carve_block(m, slot, &kept, &dropped);
    block.norm_1.x = layer > 0 ? carve_block(m, slot, &before, &none).out : shared.x0;
    return block;
}

struct dpt_transformer_scratch dpt_transformer_scratch(const struct dpt_unit_call *call)
{
    struct dpt_carver carver = {call->slot->scratch, 0};
    return carve_scratch(dpt_transformer_of(call), call->slot, &carver);
}

size_t dpt_transformer_saved_bytes(const struct dpt_model *model, int64_t b, int64_t t)
{
    const struct dpt_transformer *m = (const struct dpt_transformer *)model;
    const struct dpt_slot slot = {.b = b, .t = t};
    struct dpt_carver shared = {NULL, 0}, block = {NULL, 0}, dropped = {NULL, 0};
    (void)carve_saved(m, &slot, &shared);
    (void)carve_block(m, &slot, &block, &dropped);
    return shared.at + (size_t)m->layers * block.at;
}

size_t dpt_transformer_scratch_bytes(const struct dpt_model *model, int64_t b, int64_t t)
{
    const struct dpt_transformer *m = (const struct dpt_transformer *)model;
    const struct dpt_slot slot = {.b = b, .t = t};
    struct dpt_carver kept = {NULL, 0}, scratch = {NULL, 0};
    (void)carve_scratch(m, &slot, &scratch);
    (void)carve_block(m, &slot, &kept, &scratch);
    return scratch.at;
}
