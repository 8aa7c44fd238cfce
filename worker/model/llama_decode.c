/* Llama's decoding (model.h): the forward of llama_forward.c without dropout, with each block's
 * keys and values kept. The cache is, block after block, (context, R): what attention makes of a
 * position, keys rotated, of which queries are not read again. */
#include "worker/model/llama.h"

#include <string.h>

/* Rows are the tokens of one call. */
struct rows {
    const struct dpt_llama *m;
    const struct dpt_ops *ops;
    struct dpt_stream *stream;
    const struct dpt_decode *d;
    float *x, *norm;   /* (n, C) the residual stream; a norm of it */
    float *a;          /* (n, max(C, Q)) a branch */
    float *wide, *act; /* (n, 2, I), (n, I) */
    float *rstd;       /* (n) */
    float *cos, *sin;  /* (n, D/2) */
};

static void carve_rows(const struct dpt_llama *m, int64_t n, struct dpt_carver *carver,
                       struct rows *r)
{
    r->x = dpt_carve(carver, DPT_F32, n * m->c);
    r->norm = dpt_carve(carver, DPT_F32, n * m->c);
    r->a = dpt_carve(carver, DPT_F32, n * (m->c > m->q ? m->c : m->q));
    r->wide = dpt_carve(carver, DPT_F32, n * 2 * m->inner);
    r->act = dpt_carve(carver, DPT_F32, n * m->inner);
    r->rstd = dpt_carve(carver, DPT_F32, n);
    r->cos = dpt_carve(carver, DPT_F32, n * m->head / 2);
    r->sin = dpt_carve(carver, DPT_F32, n * m->head / 2);
}

/* A block's part of the cache, in floats. */
static int64_t block_floats(const struct dpt_llama *m)
{
    return (m->base.context * m->row + 15) / 16 * 16;
}

size_t dpt_llama_cache_bytes(const struct dpt_model *model)
{
    const struct dpt_llama *m = (const struct dpt_llama *)model;
    return (size_t)(m->layers * block_floats(m)) * sizeof(float);
}

size_t dpt_llama_decode_bytes(const struct dpt_model *model, int64_t n)
{
    struct rows r;
    struct dpt_carver carver = {NULL, 0};
    carve_rows((const struct dpt_llama *)model, n, &carver, &r);
    return carver.at;
}

static const float *weight(const struct rows *r, int param)
{
    return dpt_decode_weight(&r->m->base, r->d, param);
}

static void norm(const struct rows *r, int param, const float *x, int64_t n, float *y)
{
    r->ops->layernorm_forward(r->stream, &(struct dpt_layernorm_forward){
                                             .n = n,
                                             .c = r->m->c,
                                             .eps = (float)r->m->eps,
                                             .dtype = DPT_F32,
                                             .x = x,
                                             .gamma = weight(r, param),
                                             .y = y,
                                             .rstd = r->rstd,
                                         });
}

/* One row is not worth packing the weights for. */
static void linear(const struct rows *r, int layer, enum dpt_llama_product_name name,
                   const float *x, float *y)
{
    const struct dpt_llama_product p = dpt_llama_product(r->m, layer, name);
    const float *w = weight(r, p.weight), *bias = p.bias < 0 ? NULL : weight(r, p.bias);
    if (r->d->n == 1)
        r->ops->linear_row(
            r->stream,
            &(struct dpt_linear_row){
                .in = p.in, .out = p.out, .out_in = true, .x = x, .w = w, .bias = bias, .y = y});
    else
        r->ops->linear_forward(r->stream, &(struct dpt_linear_forward){.n = r->d->n,
                                                                       .in = p.in,
                                                                       .out = p.out,
                                                                       .out_in = true,
                                                                       .dtype = DPT_F32,
                                                                       .x = x,
                                                                       .w = w,
                                                                       .bias = bias,
                                                                       .y = y});
}

static void attention(const struct rows *r, float *qkv)
{
    const struct dpt_llama *m = r->m;
    r->ops->rope(r->stream, &(struct dpt_rope){.n = r->d->n,
                                               .t = r->d->n,
                                               .heads = m->heads + m->kv_heads,
                                               .head_size = m->head,
                                               .stride = m->row,
                                               .dtype = DPT_F32,
                                               .cos = r->cos,
                                               .sin = r->sin,
                                               .x = qkv + r->d->first * m->row});
    r->ops->attention_rows(r->stream, &(struct dpt_attention_rows){.first = r->d->first,
                                                                   .end = r->d->first + r->d->n,
                                                                   .heads = m->heads,
                                                                   .kv_heads = m->kv_heads,
                                                                   .head_size = m->head,
                                                                   .qkv = qkv,
                                                                   .y = r->a});
}

static void add_branch(const struct rows *r, const float *branch)
{
    r->ops->add(r->stream, r->d->n * r->m->c, r->x, branch, r->x);
}

static void block(const struct rows *r, int layer)
{
    const struct dpt_llama *m = r->m;
    float *qkv = (float *)r->d->cache + layer * block_floats(m);
    norm(r, dpt_llama_block_param(m, layer, DPT_LLAMA_NORM_1), r->x, r->d->n, r->norm);
    linear(r, layer, DPT_LLAMA_QKV, r->norm, qkv + r->d->first * m->row);
    attention(r, qkv);
    linear(r, layer, DPT_LLAMA_O, r->a, r->norm);
    add_branch(r, r->norm);
    norm(r, dpt_llama_block_param(m, layer, DPT_LLAMA_NORM_2), r->x, r->d->n, r->norm);
    linear(r, layer, DPT_LLAMA_GATE_UP, r->norm, r->wide);
    r->ops->swiglu_forward(
        r->stream, &(struct dpt_swiglu){
                       .n = r->d->n, .c = m->inner, .dtype = DPT_F32, .x = r->wide, .out = r->act});
    linear(r, layer, DPT_LLAMA_DOWN, r->act, r->a);
    add_branch(r, r->a);
}

void dpt_llama_decode(const struct dpt_model *model, const struct dpt_ops *ops,
                      struct dpt_stream *stream, const struct dpt_decode *d)
{
    const struct dpt_llama *m = (const struct dpt_llama *)model;
    struct rows r = {.m = m, .ops = ops, .stream = stream, .d = d};
    struct dpt_carver carver = {d->scratch, 0};
    carve_rows(m, d->n, &carver, &r);
    ops->embedding_forward(stream, &(struct dpt_embedding_forward){
                                       .b = 1,
                                       .t = d->n,
                                       .c = m->c,
                                       .v = model->vocab,
                                       .dtype = DPT_F32,
                                       .tokens = d->tokens,
                                       .wte = weight(&r, DPT_LLAMA_EMBEDDING),
                                       .y = r.x,
                                   });
    struct dpt_rope_table table = {
        .t = d->n, .first = d->first, .half = (int)(m->head / 2), .cos = r.cos, .sin = r.sin};
    memcpy(table.inv_freq, m->inv_freq, sizeof table.inv_freq);
    ops->rope_table(stream, &table);
    for (int layer = 0; layer < m->layers; layer++)
        block(&r, layer);
    norm(&r, dpt_llama_last_norm(m), r.x + (d->n - 1) * m->c, 1, r.norm);
    ops->linear_row(stream, &(struct dpt_linear_row){.in = m->c,
                                                     .out = model->vocab,
                                                     .x = r.norm,
                                                     .w = weight(&r, dpt_llama_head(m)),
                                                     .y = d->logits,
                                                     .out_in = true});
}
