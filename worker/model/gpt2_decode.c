/* GPT-2's decoding (model.h): the forward of gpt2_forward.c without dropout, with each block's keys
 * and values kept. The cache is, block after block, (context, 3, C): what attention makes of a
 * position, of which queries are not read again. */
#include "worker/model/gpt2.h"

/* Rows are the tokens of one call. */
struct rows {
    const struct dpt_gpt2 *m;
    const struct dpt_ops *ops;
    struct dpt_stream *stream;
    const struct dpt_decode *d;
    float *x, *norm, *a; /* (n, C) the residual stream; a norm of it; a branch */
    float *wide, *gelu;  /* (n, 4*C) */
    float *mean, *rstd;  /* (n) */
};

static int64_t round16(int64_t floats)
{
    return (floats + 15) / 16 * 16;
}

/* Places the pieces one after another from `base`; returns the floats they take. */
static int64_t lay_out(const struct dpt_gpt2 *m, int64_t n, float *base, struct rows *r)
{
    const int64_t c = m->c;
    struct part {
        float **at;
        int64_t floats;
    } parts[] = {{&r->x, n * c},        {&r->norm, n * c}, {&r->a, n * c}, {&r->wide, n * 4 * c},
                 {&r->gelu, n * 4 * c}, {&r->mean, n},     {&r->rstd, n}};
    int64_t used = 0;
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        *parts[i].at = base == NULL ? NULL : base + used;
        used += round16(parts[i].floats);
    }
    return used;
}

static int64_t cache_floats(const struct dpt_gpt2 *m)
{
    return round16(m->base.context * 3 * m->c);
}

size_t dpt_gpt2_cache_bytes(const struct dpt_model *model)
{
    const struct dpt_gpt2 *m = (const struct dpt_gpt2 *)model;
    return (size_t)(m->layers * cache_floats(m)) * sizeof(float);
}

size_t dpt_gpt2_decode_bytes(const struct dpt_model *model, int64_t n)
{
    struct rows r;
    return (size_t)lay_out((const struct dpt_gpt2 *)model, n, NULL, &r) * sizeof(float);
}

static const float *weight(const struct rows *r, int param)
{
    return dpt_decode_weight(&r->m->base, r->d, param);
}

static void layernorm(const struct rows *r, int param, const float *x, int64_t n, float *y)
{
    r->ops->layernorm_forward(r->stream, &(struct dpt_layernorm_forward){
                                             .n = n,
                                             .c = r->m->c,
                                             .eps = DPT_GPT2_LAYERNORM_EPS,
                                             .dtype = DPT_F32,
                                             .x = x,
                                             .gamma = weight(r, param),
                                             .beta = weight(r, param + 1),
                                             .y = y,
                                             .mean = r->mean,
                                             .rstd = r->rstd,
                                         });
}

/* One row is not worth packing the weights for. */
static void linear(const struct rows *r, int param, const float *x, float *y)
{
    const struct dpt_param *p = &r->m->base.params[param];
    if (r->d->n == 1)
        r->ops->linear_row(r->stream, &(struct dpt_linear_row){.in = p->dim[0],
                                                               .out = p->dim[1],
                                                               .x = x,
                                                               .w = weight(r, param),
                                                               .bias = weight(r, param + 1),
                                                               .y = y});
    else
        r->ops->linear_forward(r->stream, &(struct dpt_linear_forward){.n = r->d->n,
                                                                       .in = p->dim[0],
                                                                       .out = p->dim[1],
                                                                       .dtype = DPT_F32,
                                                                       .x = x,
                                                                       .w = weight(r, param),
                                                                       .bias = weight(r, param + 1),
                                                                       .y = y});
}

static void residual(const struct rows *r)
{
    r->ops->add(r->stream, r->d->n * r->m->c, r->x, r->a, r->x);
}

static void block(const struct rows *r, int layer)
{
    const int first = dpt_gpt2_block_param(layer, DPT_GPT2_LN_1_W);
    const int64_t n = r->d->n, c = r->m->c;
    float *qkv = (float *)r->d->cache + layer * cache_floats(r->m);
    layernorm(r, first + DPT_GPT2_LN_1_W, r->x, n, r->norm);
    linear(r, first + DPT_GPT2_C_ATTN_W, r->norm, qkv + r->d->first * 3 * c);
    r->ops->attention_rows(r->stream, &(struct dpt_attention_rows){.first = r->d->first,
                                                                   .end = r->d->first + n,
                                                                   .heads = r->m->heads,
                                                                   .kv_heads = r->m->heads,
                                                                   .head_size = c / r->m->heads,
                                                                   .qkv = qkv,
                                                                   .y = r->norm});
    linear(r, first + DPT_GPT2_C_PROJ_W, r->norm, r->a);
    residual(r);
    layernorm(r, first + DPT_GPT2_LN_2_W, r->x, n, r->norm);
    linear(r, first + DPT_GPT2_C_FC_W, r->norm, r->wide);
    r->ops->gelu_forward(
        r->stream,
        &(struct dpt_gelu){.n = n * 4 * c, .dtype = DPT_F32, .x = r->wide, .out = r->gelu});
    linear(r, first + DPT_GPT2_MLP_PROJ_W, r->gelu, r->a);
    residual(r);
}

void dpt_gpt2_decode(const struct dpt_model *model, const struct dpt_ops *ops,
                     struct dpt_stream *stream, const struct dpt_decode *d)
{
    const struct dpt_gpt2 *m = (const struct dpt_gpt2 *)model;
    struct rows r = {.m = m, .ops = ops, .stream = stream, .d = d};
    (void)lay_out(m, d->n, d->scratch, &r);
    ops->embedding_forward(stream, &(struct dpt_embedding_forward){
                                       .b = 1,
                                       .t = d->n,
                                       .c = m->c,
                                       .v = model->vocab,
                                       .dtype = DPT_F32,
                                       .tokens = d->tokens,
                                       .wte = weight(&r, DPT_GPT2_WTE),
                                       .wpe = weight(&r, DPT_GPT2_WPE) + d->first * m->c,
                                       .y = r.x,
                                   });
    for (int layer = 0; layer < m->layers; layer++)
        block(&r, layer);
    layernorm(&r, dpt_gpt2_ln_f(m), r.x + (d->n - 1) * m->c, 1, r.norm);
    ops->linear_row(stream, &(struct dpt_linear_row){.in = m->c,
                                                     .out = model->vocab,
                                                     .x = r.norm,
                                                     .w = weight(&r, DPT_GPT2_WTE),
                                                     .y = d->logits,
                                                     .out_in = true});
}
