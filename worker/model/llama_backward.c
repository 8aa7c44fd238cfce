/* Llama's backward (llama.h). The gradient of the residual stream lies in saved.dstream: the head
 * writes it, each block turns the gradient of its output into that of its input in place, the
 * embedding reads it.
 *
 * With a tied head the embedding's gradient comes in two parts: the head's first, which overwrites
 * (or adds to what other slots left), then the embedding's, which always adds. */
#include "worker/model/llama.h"

/* Of `n` rows. */
static void norm(const struct dpt_llama *m, const struct dpt_ops *ops, struct dpt_stream *stream,
                 const struct dpt_slot *slot, int64_t n, int weight, const void *x,
                 const float *rstd, const void *dy, void *dx, bool add_dx)
{
    ops->layernorm_backward(stream, &(struct dpt_layernorm_backward){
                                        .n = n,
                                        .c = m->c,
                                        .dtype = m->base.dtype,
                                        .x = x,
                                        .gamma = dpt_slot_weight(&m->base, slot, weight),
                                        .rstd = rstd,
                                        .dy = dy,
                                        .dx = dx,
                                        .add_dx = add_dx,
                                        .dgamma = dpt_slot_grad(&m->base, slot, weight),
                                        .accumulate = slot->accumulate,
                                    });
}

static void linear(const struct dpt_llama *m, const struct dpt_ops *ops, struct dpt_stream *stream,
                   const struct dpt_slot *slot, struct dpt_llama_product product, const void *x,
                   const void *dy, void *dx)
{
    const struct dpt_model *model = &m->base;
    ops->linear_backward(
        stream, &(struct dpt_linear_backward){
                    .n = slot->b * slot->t,
                    .in = product.in,
                    .out = product.out,
                    .out_in = true,
                    .dtype = model->dtype,
                    .x = x,
                    .w = dpt_slot_weight(model, slot, product.weight),
                    .dy = dy,
                    .dx = dx,
                    .dw = dpt_slot_grad(model, slot, product.weight),
                    .dbias = product.bias < 0 ? NULL : dpt_slot_grad(model, slot, product.bias),
                    .accumulate = slot->accumulate,
                    .packed = dpt_slot_packed(slot, product.weight),
                });
    dpt_adapters_backward(model, ops, stream, slot,
                          &(struct dpt_adapted){.weight = product.weight,
                                                .n_weights = product.n_weights,
                                                .out = product.out,
                                                .x = x,
                                                .dy = dy,
                                                .dx = dx});
    dpt_slot_announce(slot, product.weight, product.n_weights + product.n_biases);
}

static void head(const struct dpt_llama *m, const struct dpt_ops *ops, struct dpt_stream *stream,
                 const struct dpt_slot *slot)
{
    const struct dpt_llama_saved saved = dpt_llama_saved(m, slot, NULL);
    const struct dpt_llama_block_saved last = dpt_llama_block_saved(m, slot, m->layers - 1, NULL);
    const struct dpt_llama_scratch scratch = dpt_llama_scratch(m, slot, NULL);
    const bool labels = m->base.labels > 0;
    const int64_t n = dpt_head_rows(&m->base, slot);
    const int last_norm = dpt_llama_last_norm(m), weight = dpt_llama_head(m);
    const void *states =
        dpt_head_states(&m->base, ops, stream, slot, m->c, last.out, saved.dstream);
    ops->layernorm_forward(stream, &(struct dpt_layernorm_forward){
                                       .n = n,
                                       .c = m->c,
                                       .eps = (float)m->eps,
                                       .dtype = m->base.dtype,
                                       .x = states,
                                       .gamma = dpt_slot_weight(&m->base, slot, last_norm),
                                       .y = scratch.a,
                                       .rstd = scratch.rstd,
                                   });
    ops->head_loss(stream, &(struct dpt_head_loss){
                               .n = n,
                               .c = m->c,
                               .v = dpt_head_logits(&m->base),
                               .dtype = m->base.dtype,
                               .x = scratch.a,
                               .w = dpt_slot_weight(&m->base, slot, weight),
                               .targets = slot->batch.part[DPT_SAMPLE_TARGET],
                               .loss = slot->losses,
                               .dloss = slot->dloss,
                               .dx = scratch.b,
                               .dw = dpt_slot_grad(&m->base, slot, weight),
                               .accumulate = slot->accumulate && !(m->tied && slot->parts_apart),
                               .packed = dpt_slot_packed(slot, weight),
                           });
    if (!m->tied)
        dpt_slot_announce(slot, weight, 1);
    norm(m, ops, stream, slot, n, last_norm, states, scratch.rstd, scratch.b,
         labels ? scratch.a : saved.dstream, false);
    dpt_slot_announce(slot, last_norm, 1);
    if (labels)
        dpt_head_spread(&m->base, ops, stream, slot, m->c, scratch.a, saved.dstream);
}

static void mlp(const struct dpt_llama *m, const struct dpt_ops *ops, struct dpt_stream *stream,
                int layer, const struct dpt_slot *slot, void *dstream)
{
    const struct dpt_llama_block_saved saved = dpt_llama_block_saved(m, slot, layer, NULL);
    const struct dpt_llama_scratch scratch = dpt_llama_scratch(m, slot, NULL);
    const int norm_2 = dpt_llama_block_param(m, layer, DPT_LLAMA_NORM_2);
    linear(m, ops, stream, slot, dpt_llama_product(m, layer, DPT_LLAMA_DOWN), saved.act, dstream,
           scratch.inner);
    ops->swiglu_backward(stream, &(struct dpt_swiglu){
                                     .n = slot->b * slot->t,
                                     .c = m->inner,
                                     .dtype = m->base.dtype,
                                     .x = saved.gate_up,
                                     .dy = scratch.inner,
                                     .out = scratch.wide,
                                 });
    linear(m, ops, stream, slot, dpt_llama_product(m, layer, DPT_LLAMA_GATE_UP), saved.norm2,
           scratch.wide, scratch.b);
    norm(m, ops, stream, slot, slot->b * slot->t, norm_2, saved.mid, saved.rstd2, scratch.b,
         dstream, true);
    dpt_slot_announce(slot, norm_2, 1);
}

static void attention(const struct dpt_llama *m, const struct dpt_ops *ops,
                      struct dpt_stream *stream, int layer, const struct dpt_slot *slot,
                      void *dstream)
{
    const struct dpt_llama_saved shared = dpt_llama_saved(m, slot, NULL);
    const struct dpt_llama_block_saved saved = dpt_llama_block_saved(m, slot, layer, NULL);
    const struct dpt_llama_scratch scratch = dpt_llama_scratch(m, slot, NULL);
    const int norm_1 = dpt_llama_block_param(m, layer, DPT_LLAMA_NORM_1);
    const bool needs_dx = dpt_slot_needs_dx(slot, layer);
    linear(m, ops, stream, slot, dpt_llama_product(m, layer, DPT_LLAMA_O), saved.att, dstream,
           scratch.b);
    ops->attention_backward(stream, &(struct dpt_attention){
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
                                        .dy = scratch.b,
                                        .dqkv = scratch.wide,
                                    });
    ops->rope(stream, &(struct dpt_rope){
                          .n = slot->b * slot->t,
                          .t = slot->t,
                          .heads = m->heads + m->kv_heads,
                          .head_size = m->head,
                          .stride = m->row,
                          .inverse = true,
                          .dtype = m->base.dtype,
                          .cos = shared.cos,
                          .sin = shared.sin,
                          .x = scratch.wide,
                      });
    linear(m, ops, stream, slot, dpt_llama_product(m, layer, DPT_LLAMA_QKV), saved.norm1,
           scratch.wide, needs_dx ? scratch.a : NULL);
    if (needs_dx)
        norm(m, ops, stream, slot, slot->b * slot->t, norm_1, saved.x, saved.rstd1, scratch.a,
             dstream, true);
    dpt_slot_announce(slot, norm_1, 1);
}

static void embedding(const struct dpt_llama *m, const struct dpt_ops *ops,
                      struct dpt_stream *stream, const struct dpt_slot *slot)
{
    const struct dpt_llama_saved saved = dpt_llama_saved(m, slot, NULL);
    ops->embedding_backward(
        stream, &(struct dpt_embedding_backward){
                    .b = slot->b,
                    .t = slot->t,
                    .c = m->c,
                    .v = m->base.vocab,
                    .dtype = m->base.dtype,
                    .tokens = slot->batch.part[DPT_SAMPLE_INPUT],
                    .dy = saved.dstream,
                    .dwte = dpt_slot_grad(&m->base, slot, DPT_LLAMA_EMBEDDING),
                    .accumulate_wte = m->tied || (slot->accumulate && !slot->parts_apart),
                });
    dpt_slot_announce(slot, DPT_LLAMA_EMBEDDING, 1);
}

void dpt_llama_backward(const struct dpt_model *model, const struct dpt_ops *ops,
                        struct dpt_stream *stream, int unit, const struct dpt_slot *slot)
{
    const struct dpt_llama *m = (const struct dpt_llama *)model;
    if (unit == m->layers + 1) {
        head(m, ops, stream, slot);
    } else if (unit >= 1) {
        void *dstream = dpt_llama_saved(m, slot, NULL).dstream;
        dpt_llama_recompute(m, ops, stream, unit - 1, slot);
        mlp(m, ops, stream, unit - 1, slot, dstream);
        attention(m, ops, stream, unit - 1, slot, dstream);
    } else {
        embedding(m, ops, stream, slot);
    }
}
