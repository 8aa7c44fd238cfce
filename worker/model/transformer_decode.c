/* Decoding with a transformer (model.h): the forward of transformer_forward.c on the rows of one
 * text, without dropout, with each block's keys and values kept. The cache has (context, R) for
 * each block: queries, keys and values of each position, with rotated keys. Cached queries are not
 * read again. */
#include "worker/model/transformer.h"

/* Rows are the tokens of one call. */
struct rows {
    float *x, *norm;    /* (n, C) the residual stream; its norm, or a branch */
    float *a;           /* (n, max(C, Q)) attention's result, or a branch */
    float *up, *act;    /* (n, U), (n, I) */
    float *mean, *rstd; /* (n) */
    float *cos, *sin;   /* (n, D/2) */
};

static struct rows carve_rows(const struct dpt_transformer *m, int64_t n, struct dpt_carver *carver)
{
    struct rows r = {0};
    r.x = dpt_carve(carver, DPT_F32, n * m->c);
    r.norm = dpt_carve(carver, DPT_F32, n * m->c);
    r.a = dpt_carve(carver, DPT_F32, n * (m->c > m->q ? m->c : m->q));
    r.up = dpt_carve(carver, DPT_F32, n * m->up);
    r.act = dpt_carve(carver, DPT_F32, n * m->inner);
    if (m->norm_bias)
        r.mean = dpt_carve(carver, DPT_F32, n);
    r.rstd = dpt_carve(carver, DPT_F32, n);
    if (m->rope) {
        r.cos = dpt_carve(carver, DPT_F32, n * m->head / 2);
        r.sin = dpt_carve(carver, DPT_F32, n * m->head / 2);
    }
    return r;
}

/* A block's part of the cache, in floats. */
static int64_t block_floats(const struct dpt_transformer *m)
{
    return (m->base.context * m->row + 15) / 16 * 16;
}

size_t dpt_transformer_cache_bytes(const struct dpt_model *model)
{
    const struct dpt_transformer *m = (const struct dpt_transformer *)model;
    return (size_t)(m->layers * block_floats(m)) * sizeof(float);
}

size_t dpt_transformer_decode_bytes(const struct dpt_model *model, int64_t n)
{
    struct dpt_carver carver = {NULL, 0};
    (void)carve_rows((const struct dpt_transformer *)model, n, &carver);
    return carver.at;
}

static void decode_norm(const struct dpt_unit_call *call, int weight, const struct rows *r,
                        const float *x)
{
    dpt_transformer_normalise(
        call, weight, &(struct dpt_normed){.x = x, .mean = r->mean, .rstd = r->rstd, .y = r->norm});
}

/* For one row it does not pay to pack the weights. */
static void decode_linear(const struct dpt_unit_call *call, enum dpt_product_name name,
                          const float *x, float *y)
{
    const struct dpt_product p =
        dpt_transformer_product(dpt_transformer_of(call), call->unit - 1, name);
    if (call->n > 1) {
        dpt_transformer_linear(call, name, x, y, NULL);
        return;
    }
    call->ops->linear_row(call->stream,
                          &(struct dpt_linear_row){
                              .in = p.in,
                              .out = p.out,
                              .x = x,
                              .w = dpt_slot_weight(call, p.weight),
                              .bias = p.bias < 0 ? NULL : dpt_slot_weight(call, p.bias),
                              .y = y,
                              .out_in = call->model->kind->out_in,
                          });
}

static void decode_block(const struct dpt_unit_call *call, const struct dpt_decode *d,
                         const struct rows *r)
{
    const struct dpt_transformer *m = dpt_transformer_of(call);
    float *qkv = (float *)d->cache + (call->unit - 1) * block_floats(m);
    float *own = qkv + d->first * m->row;
    decode_norm(call, dpt_transformer_norm(call, 0), r, r->x);
    decode_linear(call, DPT_PRODUCT_QKV, r->norm, own);
    dpt_transformer_rotate(call, r->cos, r->sin, false, own);
    call->ops->attention_rows(call->stream, &(struct dpt_attention_rows){
                                                .first = d->first,
                                                .end = d->first + d->n,
                                                .heads = m->heads,
                                                .kv_heads = m->kv_heads,
                                                .head_size = m->head,
                                                .qkv = qkv,
                                                .y = r->a,
                                            });
    decode_linear(call, DPT_PRODUCT_O, r->a, r->norm);
    call->ops->add(call->stream, d->n * m->c, r->x, r->norm, r->x);
    decode_norm(call, dpt_transformer_norm(call, 1), r, r->x);
    decode_linear(call, DPT_PRODUCT_UP, r->norm, r->up);
    dpt_transformer_activate(call, r->up, r->act);
    decode_linear(call, DPT_PRODUCT_DOWN, r->act, r->a);
    call->ops->add(call->stream, d->n * m->c, r->x, r->a, r->x);
}

void dpt_transformer_decode(const struct dpt_model *model, const struct dpt_ops *ops,
                            struct dpt_stream *stream, const struct dpt_decode *d)
{
    const struct dpt_transformer *m = (const struct dpt_transformer *)model;
    const struct dpt_slot slot = {.mode = DPT_MODE_EVAL, .b = 1, .t = d->n, .weights = d->weights};
    struct dpt_unit_call call = {model, ops, stream, &slot, 0, d->n};
    struct dpt_carver carver = {d->scratch, 0};
    const struct rows r = carve_rows(m, d->n, &carver);
    dpt_transformer_embed(&call, d->tokens, d->first, r.x);
    dpt_transformer_rope_table(&call, d->first, r.cos, r.sin);
    for (call.unit = 1; call.unit <= m->layers; call.unit++)
        decode_block(&call, d, &r);
    call.n = 1;
    decode_norm(&call, dpt_transformer_last_norm(m), &r, r.x + (d->n - 1) * m->c);
    ops->linear_row(stream, &(struct dpt_linear_row){
                                .in = m->c,
                                .out = model->vocab,
                                .x = r.norm,
                                .w = dpt_slot_weight(&call, dpt_transformer_head(m)),
                                .y = d->logits,
                                .out_in = true,
                            });
}
