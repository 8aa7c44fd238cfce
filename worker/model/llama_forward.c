/* Llama's forward (llama.h): x += o(attention(rope(qkv(norm(x))))), x += down(swiglu(gate_up(
 * norm(x)))), per block. */
#include "worker/model/llama.h"

#include <string.h>

static void embedding(const struct dpt_llama *m, const struct dpt_ops *ops,
                      struct dpt_stream *stream, const struct dpt_slot *slot)
{
    const struct dpt_llama_saved saved = dpt_llama_saved(m, slot, NULL);
    ops->embedding_forward(stream, &(struct dpt_embedding_forward){
                                       .b = slot->b,
                                       .t = slot->t,
                                       .c = m->c,
                                       .v = m->base.vocab,
                                       .dtype = m->base.dtype,
                                       .tokens = slot->batch.part[DPT_SAMPLE_INPUT],
                                       .wte = dpt_slot_weight(&m->base, slot, DPT_LLAMA_EMBEDDING),
                                       .y = saved.x0,
                                   });
    struct dpt_rope_table table = {
        .t = slot->t, .half = (int)(m->head / 2), .cos = saved.cos, .sin = saved.sin};
    memcpy(table.inv_freq, m->inv_freq, sizeof table.inv_freq);
    ops->rope_table(stream, &table);
}

/* A norm of `n` rows. */
static void norm_rows(const struct dpt_llama *m, const struct dpt_ops *ops,
                      struct dpt_stream *stream, const struct dpt_slot *slot, int64_t n, int weight,
                      const void *x, void *y, float *rstd)
{
    ops->layernorm_forward(stream, &(struct dpt_layernorm_forward){
                                       .n = n,
                                       .c = m->c,
                                       .eps = (float)m->eps,
                                       .dtype = m->base.dtype,
                                       .x = x,
                                       .gamma = dpt_slot_weight(&m->base, slot, weight),
                                       .y = y,
                                       .rstd = rstd,
                                   });
}

static void norm(const struct dpt_llama *m, const struct dpt_ops *ops, struct dpt_stream *stream,
                 const struct dpt_slot *slot, int weight, const void *x, void *y, float *rstd)
{
    norm_rows(m, ops, stream, slot, slot->b * slot->t, weight, x, y, rstd);
}

/* y (N, out) = x (N, in) w^T + bias. */
static void linear(const struct dpt_llama *m, const struct dpt_ops *ops, struct dpt_stream *stream,
                   const struct dpt_slot *slot, struct dpt_llama_product product, const void *x,
                   void *y)
{
    const struct dpt_model *model = &m->base;
    ops->linear_forward(
        stream, &(struct dpt_linear_forward){
                    .n = slot->b * slot->t,
                    .in = product.in,
                    .out = product.out,
                    .out_in = true,
                    .dtype = model->dtype,
                    .x = x,
                    .w = dpt_slot_weight(model, slot, product.weight),
                    .bias = product.bias < 0 ? NULL : dpt_slot_weight(model, slot, product.bias),
                    .y = y,
                    .packed = dpt_slot_packed(slot, product.weight),
                });
    dpt_adapters_forward(model, ops, stream, slot,
                         &(struct dpt_adapted){.weight = product.weight,
                                               .n_weights = product.n_weights,
                                               .out = product.out,
                                               .x = x,
                                               .y = y});
}

static void attention(const struct dpt_llama *m, const struct dpt_ops *ops,
                      struct dpt_stream *stream, int layer, const struct dpt_slot *slot)
{
    const struct dpt_llama_saved shared = dpt_llama_saved(m, slot, NULL);
    const struct dpt_llama_block_saved saved = dpt_llama_block_saved(m, slot, layer, NULL);
    ops->rope(stream, &(struct dpt_rope){
                          .n = slot->b * slot->t,
                          .t = slot->t,
                          .heads = m->heads + m->kv_heads,
                          .head_size = m->head,
                          .stride = m->row,
                          .dtype = m->base.dtype,
                          .cos = shared.cos,
                          .sin = shared.sin,
                          .x = saved.qkv,
                      });
    ops->attention_forward(stream, &(struct dpt_attention){
                                       .b = slot->b,
                                       .t = slot->t,
                                       .heads = m->heads,
                                       .kv_heads = m->kv_heads,
                                       .head_size = m->head,
                                       .dtype = m->base.dtype,
                                       .dropout = dpt_slot_dropout(slot, m->dropout, layer),
                                       .qkv = saved.qkv,
                                       .y = saved.att,
                                       .lse = saved.lse,
                                   });
}

static void swiglu(const struct dpt_llama *m, const struct dpt_ops *ops, struct dpt_stream *stream,
                   const struct dpt_slot *slot, const struct dpt_llama_block_saved *saved)
{
    ops->swiglu_forward(stream, &(struct dpt_swiglu){
                                    .n = slot->b * slot->t,
                                    .c = m->inner,
                                    .dtype = m->base.dtype,
                                    .x = saved->gate_up,
                                    .out = saved->act,
                                });
}

/* The block up to its last activation, which is all that its backward needs of it. */
static void block_inside(const struct dpt_llama *m, const struct dpt_ops *ops,
                         struct dpt_stream *stream, int layer, const struct dpt_slot *slot)
{
    const struct dpt_llama_block_saved saved = dpt_llama_block_saved(m, slot, layer, NULL);
    const struct dpt_llama_scratch scratch = dpt_llama_scratch(m, slot, NULL);
    norm(m, ops, stream, slot, dpt_llama_block_param(m, layer, DPT_LLAMA_NORM_1), saved.x,
         saved.norm1, saved.rstd1);
    linear(m, ops, stream, slot, dpt_llama_product(m, layer, DPT_LLAMA_QKV), saved.norm1,
           saved.qkv);
    attention(m, ops, stream, layer, slot);
    linear(m, ops, stream, slot, dpt_llama_product(m, layer, DPT_LLAMA_O), saved.att, scratch.a);
    ops->residual_norm(
        stream, &(struct dpt_residual_norm){
                    .n = slot->b * slot->t,
                    .c = m->c,
                    .eps = (float)m->eps,
                    .dtype = m->base.dtype,
                    .a = saved.x,
                    .b = scratch.a,
                    .sum = saved.mid,
                    .gamma = dpt_slot_weight(&m->base, slot,
                                             dpt_llama_block_param(m, layer, DPT_LLAMA_NORM_2)),
                    .y = saved.norm2,
                    .rstd = saved.rstd2,
                });
    linear(m, ops, stream, slot, dpt_llama_product(m, layer, DPT_LLAMA_GATE_UP), saved.norm2,
           saved.gate_up);
    swiglu(m, ops, stream, slot, &saved);
}

static void block(const struct dpt_llama *m, const struct dpt_ops *ops, struct dpt_stream *stream,
                  int layer, const struct dpt_slot *slot)
{
    const struct dpt_llama_block_saved saved = dpt_llama_block_saved(m, slot, layer, NULL);
    const struct dpt_llama_scratch scratch = dpt_llama_scratch(m, slot, NULL);
    block_inside(m, ops, stream, layer, slot);
    linear(m, ops, stream, slot, dpt_llama_product(m, layer, DPT_LLAMA_DOWN), saved.act, scratch.a);
    ops->residual(stream, &(struct dpt_residual){
                              .n = slot->b * slot->t * m->c,
                              .dtype = m->base.dtype,
                              .a = saved.mid,
                              .b = scratch.a,
                              .y = saved.out,
                          });
}

void dpt_llama_recompute(const struct dpt_llama *m, const struct dpt_ops *ops,
                         struct dpt_stream *stream, int layer, const struct dpt_slot *slot)
{
    const struct dpt_llama_block_saved saved = dpt_llama_block_saved(m, slot, layer, NULL);
    switch (m->checkpointing) {
    case DPT_ACTIVATION_CHECKPOINTING_NONE:
        break;
    case DPT_ACTIVATION_CHECKPOINTING_SELECTIVE:
        norm(m, ops, stream, slot, dpt_llama_block_param(m, layer, DPT_LLAMA_NORM_1), saved.x,
             saved.norm1, saved.rstd1);
        norm(m, ops, stream, slot, dpt_llama_block_param(m, layer, DPT_LLAMA_NORM_2), saved.mid,
             saved.norm2, saved.rstd2);
        swiglu(m, ops, stream, slot, &saved);
        break;
    case DPT_ACTIVATION_CHECKPOINTING_FULL:
        block_inside(m, ops, stream, layer, slot);
        break;
    }
}

/* EVAL: the losses. TRAIN: nothing, since backward computes losses and their gradient in one pass
 * over the logits. */
static void head(const struct dpt_llama *m, const struct dpt_ops *ops, struct dpt_stream *stream,
                 const struct dpt_slot *slot)
{
    if (slot->mode == DPT_MODE_TRAIN)
        return;
    const struct dpt_llama_block_saved last = dpt_llama_block_saved(m, slot, m->layers - 1, NULL);
    const struct dpt_llama_scratch scratch = dpt_llama_scratch(m, slot, NULL);
    const int64_t n = dpt_head_rows(&m->base, slot);
    const void *states = dpt_head_states(&m->base, ops, stream, slot, m->c, last.out, scratch.b);
    norm_rows(m, ops, stream, slot, n, dpt_llama_last_norm(m), states, scratch.a, scratch.rstd);
    ops->head_loss(stream, &(struct dpt_head_loss){
                               .n = n,
                               .c = m->c,
                               .v = dpt_head_logits(&m->base),
                               .dtype = m->base.dtype,
                               .x = scratch.a,
                               .w = dpt_slot_weight(&m->base, slot, dpt_llama_head(m)),
                               .targets = slot->batch.part[DPT_SAMPLE_TARGET],
                               .loss = slot->losses,
                               .packed = dpt_slot_packed(slot, dpt_llama_head(m)),
                               .right = slot->right,
                           });
}

void dpt_llama_forward(const struct dpt_model *model, const struct dpt_ops *ops,
                       struct dpt_stream *stream, int unit, const struct dpt_slot *slot)
{
    const struct dpt_llama *m = (const struct dpt_llama *)model;
    if (unit == 0)
        embedding(m, ops, stream, slot);
    else if (unit <= m->layers)
        block(m, ops, stream, unit - 1, slot);
    else
        head(m, ops, stream, slot);
}
