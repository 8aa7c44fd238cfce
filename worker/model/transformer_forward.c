/* Forward of the transformers (transformer.h). */
#include "worker/model/transformer.h"

#include <string.h>

struct dpt_dropout dpt_transformer_dropout(const struct dpt_unit_call *call, double p, int site)
{
    const struct dpt_transformer *m = dpt_transformer_of(call);
    const int layer = call->unit - 1;
    return dpt_slot_dropout(call->slot, p, m->first_site + m->sites_per_block * layer + site);
}

void dpt_transformer_embed(const struct dpt_unit_call *call, const int32_t *tokens, int64_t first,
                           void *y)
{
    const struct dpt_transformer *m = dpt_transformer_of(call);
    const size_t skipped = (size_t)(first * m->c) * dpt_dtype_bytes(call->model->dtype);
    const int wpe = DPT_TRANSFORMER_EMBEDDING + 1;
    call->ops->embedding_forward(
        call->stream,
        &(struct dpt_embedding_forward){
            .b = call->slot->b,
            .t = call->slot->t,
            .c = m->c,
            .v = call->model->vocab,
            .dtype = call->model->dtype,
            .dropout = dpt_slot_dropout(call->slot, m->dropout, DPT_SITE_EMBEDDING),
            .tokens = tokens,
            .wte = dpt_slot_weight(call, DPT_TRANSFORMER_EMBEDDING),
            .wpe = m->positions ? (const char *)dpt_slot_weight(call, wpe) + skipped : NULL,
            .y = y,
        });
}

void dpt_transformer_rope_table(const struct dpt_unit_call *call, int64_t first, float *cos,
                                float *sin)
{
    const struct dpt_transformer *m = dpt_transformer_of(call);
    struct dpt_rope_table table = {
        .t = call->slot->t, .first = first, .half = (int)(m->head / 2), .cos = cos, .sin = sin};
    memcpy(table.inv_freq, m->inv_freq, sizeof table.inv_freq);
    if (m->rope)
        call->ops->rope_table(call->stream, &table);
}

void dpt_transformer_rotate(const struct dpt_unit_call *call, const float *cos, const float *sin,
                            bool inverse, void *rows)
{
    const struct dpt_transformer *m = dpt_transformer_of(call);
    if (m->rope)
        call->ops->rope(call->stream, &(struct dpt_rope){
                                          .n = call->n,
                                          .t = call->slot->t,
                                          .heads = m->heads + m->kv_heads,
                                          .head_size = m->head,
                                          .stride = m->row,
                                          .inverse = inverse,
                                          .dtype = call->model->dtype,
                                          .cos = cos,
                                          .sin = sin,
                                          .x = rows,
                                      });
}

static const void *norm_bias(const struct dpt_unit_call *call, int weight)
{
    return dpt_transformer_of(call)->norm_bias ? dpt_slot_weight(call, weight + 1) : NULL;
}

void dpt_transformer_normalise(const struct dpt_unit_call *call, int weight,
                               const struct dpt_normed *norm)
{
    const struct dpt_transformer *m = dpt_transformer_of(call);
    call->ops->layernorm_forward(call->stream, &(struct dpt_layernorm_forward){
                                                   .n = call->n,
                                                   .c = m->c,
                                                   .eps = m->eps,
                                                   .dtype = call->model->dtype,
                                                   .x = norm->x,
                                                   .gamma = dpt_slot_weight(call, weight),
                                                   .beta = norm_bias(call, weight),
                                                   .y = norm->y,
                                                   .mean = norm->mean,
                                                   .rstd = norm->rstd,
                                               });
}

void dpt_transformer_activate(const struct dpt_unit_call *call, const void *up, void *act)
{
    const struct dpt_transformer *m = dpt_transformer_of(call);
    const enum dpt_dtype dtype = call->model->dtype;
    if (m->gated)
        call->ops->swiglu_forward(
            call->stream,
            &(struct dpt_swiglu){.n = call->n, .c = m->inner, .dtype = dtype, .x = up, .out = act});
    else
        call->ops->gelu_forward(
            call->stream,
            &(struct dpt_gelu){.n = call->n * m->inner, .dtype = dtype, .x = up, .out = act});
}

/* With adapters GELU's input is the sum of product and adapters, so GELU is not part of the
 * product's op. */
void dpt_transformer_linear(const struct dpt_unit_call *call, enum dpt_product_name name,
                            const void *x, void *y, void *gelu)
{
    const struct dpt_product p =
        dpt_transformer_product(dpt_transformer_of(call), call->unit - 1, name);
    const bool adapts = dpt_slot_adapts(call->slot, p.weight, p.n);
    call->ops->linear_forward(call->stream,
                              &(struct dpt_linear_forward){
                                  .n = call->n,
                                  .in = p.in,
                                  .out = p.out,
                                  .out_in = call->model->kind->out_in,
                                  .dtype = call->model->dtype,
                                  .x = x,
                                  .w = dpt_slot_weight(call, p.weight),
                                  .bias = p.bias < 0 ? NULL : dpt_slot_weight(call, p.bias),
                                  .y = y,
                                  .gelu = adapts ? NULL : gelu,
                                  .packed = dpt_slot_packed(call, p.weight),
                              });
    dpt_adapters_forward(
        call,
        &(struct dpt_adapted){.weight = p.weight, .n_weights = p.n, .out = p.out, .x = x, .y = y});
    if (adapts && gelu != NULL)
        dpt_transformer_activate(call, y, gelu);
}

struct dpt_attention dpt_transformer_attention(const struct dpt_unit_call *call,
                                               const struct dpt_transformer_block *block)
{
    const struct dpt_transformer *m = dpt_transformer_of(call);
    return (struct dpt_attention){
        .b = call->slot->b,
        .t = call->slot->t,
        .heads = m->heads,
        .kv_heads = m->kv_heads,
        .head_size = m->head,
        .dtype = call->model->dtype,
        .dropout = dpt_transformer_dropout(call, m->attention_dropout, DPT_SITE_ATTENTION),
        .qkv = block->qkv,
        .y = block->att,
        .lse = block->lse,
    };
}

/* mid = x + dropout(branch), and norm_2 of mid. */
static void residual_norm(const struct dpt_unit_call *call,
                          const struct dpt_transformer_block *block, const void *branch)
{
    const struct dpt_transformer *m = dpt_transformer_of(call);
    const int weight = dpt_transformer_norm(call, 1);
    call->ops->residual_norm(call->stream, &(struct dpt_residual_norm){
                                               .n = call->n,
                                               .c = m->c,
                                               .eps = m->eps,
                                               .dtype = call->model->dtype,
                                               .dropout = dpt_transformer_dropout(
                                                   call, m->dropout, DPT_SITE_ATTENTION_RESIDUAL),
                                               .a = block->norm_1.x,
                                               .b = branch,
                                               .sum = block->mid,
                                               .gamma = dpt_slot_weight(call, weight),
                                               .beta = norm_bias(call, weight),
                                               .y = block->norm_2.y,
                                               .mean = block->norm_2.mean,
                                               .rstd = block->norm_2.rstd,
                                           });
}

/* Runs the block up to its last activation. The block's backward needs no later result. */
static void forward_inside(const struct dpt_unit_call *call)
{
    const struct dpt_transformer_saved shared = dpt_transformer_saved(call);
    const struct dpt_transformer_block block = dpt_transformer_block(call);
    const struct dpt_transformer_scratch scratch = dpt_transformer_scratch(call);
    const bool gated = dpt_transformer_of(call)->gated;
    dpt_transformer_normalise(call, dpt_transformer_norm(call, 0), &block.norm_1);
    dpt_transformer_linear(call, DPT_PRODUCT_QKV, block.norm_1.y, block.qkv, NULL);
    dpt_transformer_rotate(call, shared.cos, shared.sin, false, block.qkv);
    const struct dpt_attention attention = dpt_transformer_attention(call, &block);
    call->ops->attention_forward(call->stream, &attention);
    dpt_transformer_linear(call, DPT_PRODUCT_O, block.att, scratch.a, NULL);
    residual_norm(call, &block, scratch.a);
    dpt_transformer_linear(call, DPT_PRODUCT_UP, block.norm_2.y, block.up,
                           gated ? NULL : block.act);
    if (gated)
        dpt_transformer_activate(call, block.up, block.act);
}

static void forward_block(const struct dpt_unit_call *call)
{
    const struct dpt_transformer *m = dpt_transformer_of(call);
    const struct dpt_transformer_block block = dpt_transformer_block(call);
    const struct dpt_transformer_scratch scratch = dpt_transformer_scratch(call);
    forward_inside(call);
    dpt_transformer_linear(call, DPT_PRODUCT_DOWN, block.act, scratch.a, NULL);
    call->ops->residual(call->stream, &(struct dpt_residual){
                                          .n = call->n * m->c,
                                          .dtype = call->model->dtype,
                                          .dropout = dpt_transformer_dropout(call, m->dropout,
                                                                             DPT_SITE_MLP_RESIDUAL),
                                          .a = block.mid,
                                          .b = scratch.a,
                                          .y = block.out,
                                      });
}

void dpt_transformer_recompute(const struct dpt_unit_call *call)
{
    const struct dpt_transformer_block block = dpt_transformer_block(call);
    switch (dpt_transformer_of(call)->checkpointing) {
    case DPT_ACTIVATION_CHECKPOINTING_NONE:
        break;
    case DPT_ACTIVATION_CHECKPOINTING_SELECTIVE:
        dpt_transformer_normalise(call, dpt_transformer_norm(call, 0), &block.norm_1);
        dpt_transformer_normalise(call, dpt_transformer_norm(call, 1), &block.norm_2);
        dpt_transformer_activate(call, block.up, block.act);
        break;
    case DPT_ACTIVATION_CHECKPOINTING_FULL:
        forward_inside(call);
        break;
    }
}

struct dpt_normed dpt_transformer_head_norm(const struct dpt_unit_call *call, void *rows,
                                            struct dpt_unit_call *ret_head)
{
    const struct dpt_transformer *m = dpt_transformer_of(call);
    const struct dpt_transformer_scratch scratch = dpt_transformer_scratch(call);
    const struct dpt_normed norm = {
        .x = dpt_head_states(call, m->c, dpt_transformer_block(call).out, rows),
        .mean = scratch.mean,
        .rstd = scratch.rstd,
        .y = scratch.a};
    struct dpt_unit_call head = *call;
    head.n = dpt_head_rows(call->model, call->slot);
    dpt_transformer_normalise(&head, dpt_transformer_last_norm(m), &norm);
    *ret_head = head;
    return norm;
}

/* EVAL: the losses. TRAIN: nothing, since backward computes losses and their gradient in one pass
 * over the logits. */
static void forward_head(const struct dpt_unit_call *call)
{
    if (call->slot->mode == DPT_MODE_TRAIN)
        return;
    struct dpt_unit_call head;
    const struct dpt_normed norm =
        dpt_transformer_head_norm(call, dpt_transformer_scratch(call).b, &head);
    struct dpt_head_loss loss =
        dpt_head_loss_of(&head, dpt_transformer_head(dpt_transformer_of(call)), norm.y);
    loss.right = call->slot->right;
    call->ops->head_loss(call->stream, &loss);
}

void dpt_transformer_forward(const struct dpt_unit_call *call)
{
    const struct dpt_transformer_saved saved = dpt_transformer_saved(call);
    if (call->unit == 0) {
        dpt_transformer_embed(call, call->slot->batch.part[DPT_SAMPLE_INPUT], 0, saved.x0);
        dpt_transformer_rope_table(call, 0, saved.cos, saved.sin);
    } else if (call->unit <= dpt_transformer_of(call)->layers) {
        forward_block(call);
    } else {
        forward_head(call);
    }
}
