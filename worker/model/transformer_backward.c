/* Backward of the transformers (transformer.h). saved.dstream has the gradient of the residual
 * stream. The head writes it, each block replaces the gradient of its output by the gradient of its
 * input, and the embedding reads it.
 *
 * With a tied head the embedding's gradient has two parts. First the head writes its part, or adds
 * it to the gradient of earlier slots. Then the embedding adds its part, and announces the
 * gradient. */
#include "worker/model/transformer.h"

/* Whether the slot adds to the existing gradient of the embedding, which a tied head borrows. */
static bool adds_to_embedding(const struct dpt_slot *slot)
{
    return slot->accumulate && !slot->parts_apart;
}

/* Backward of a norm, over the call's n rows. */
static void norm_backward(const struct dpt_unit_call *call, int weight,
                          const struct dpt_normed *norm, const void *dy, void *dx, bool add_dx)
{
    const struct dpt_transformer *m = dpt_transformer_of(call);
    call->ops->layernorm_backward(
        call->stream, &(struct dpt_layernorm_backward){
                          .n = call->n,
                          .c = m->c,
                          .dtype = call->model->dtype,
                          .x = norm->x,
                          .gamma = dpt_slot_weight(call, weight),
                          .mean = norm->mean,
                          .rstd = norm->rstd,
                          .dy = dy,
                          .dx = dx,
                          .add_dx = add_dx,
                          .dgamma = dpt_slot_grad(call, weight),
                          .dbeta = m->norm_bias ? dpt_slot_grad(call, weight + 1) : NULL,
                          .accumulate = call->slot->accumulate,
                      });
    dpt_slot_announce(call->slot, weight, m->norm_bias ? 2 : 1);
}

/* gelu_x: if not NULL, x = GELU(gelu_x), and dx becomes the gradient of gelu_x. With adapters
 * the sum of both parts of dx passes through GELU's backward, so GELU is not part of the
 * product's op. */
static void linear_backward(const struct dpt_unit_call *call, enum dpt_product_name name,
                            const void *x, const void *dy, void *dx, const void *gelu_x)
{
    const struct dpt_product p =
        dpt_transformer_product(dpt_transformer_of(call), call->unit - 1, name);
    const bool adapts = dpt_slot_adapts(call->slot, p.weight, p.n);
    call->ops->linear_backward(call->stream,
                               &(struct dpt_linear_backward){
                                   .n = call->n,
                                   .in = p.in,
                                   .out = p.out,
                                   .out_in = call->model->kind->out_in,
                                   .dtype = call->model->dtype,
                                   .x = x,
                                   .w = dpt_slot_weight(call, p.weight),
                                   .dy = dy,
                                   .dx = dx,
                                   .gelu_x = adapts ? NULL : gelu_x,
                                   .dw = dpt_slot_grad(call, p.weight),
                                   .dbias = p.bias < 0 ? NULL : dpt_slot_grad(call, p.bias),
                                   .accumulate = call->slot->accumulate,
                                   .packed = dpt_slot_packed(call, p.weight),
                               });
    dpt_adapters_backward(
        call, &(struct dpt_adapted){
                  .weight = p.weight, .n_weights = p.n, .out = p.out, .x = x, .dy = dy, .dx = dx});
    if (adapts && gelu_x != NULL)
        call->ops->gelu_backward(call->stream, &(struct dpt_gelu){
                                                   .n = call->n * p.in,
                                                   .dtype = call->model->dtype,
                                                   .x = gelu_x,
                                                   .dy = dx,
                                                   .out = dx,
                                               });
    dpt_slot_announce(call->slot, p.weight, p.bias < 0 ? p.n : 2 * p.n);
}

/* The gradient at the end of a residual branch: dy after the backward of the branch's dropout, in
 * `to`; without dropout dy itself. */
static const void *branch_backward(const struct dpt_unit_call *call, int site, const void *dy,
                                   void *to)
{
    const struct dpt_transformer *m = dpt_transformer_of(call);
    const struct dpt_dropout dropout = dpt_transformer_dropout(call, m->dropout, site);
    if (!(dropout.p > 0.0f))
        return dy;
    call->ops->dropout_backward(call->stream, &(struct dpt_dropout_backward){
                                                  .n = call->n * m->c,
                                                  .dtype = call->model->dtype,
                                                  .dropout = dropout,
                                                  .dy = dy,
                                                  .dx = to,
                                              });
    return to;
}

static void head_backward(const struct dpt_unit_call *call)
{
    const struct dpt_transformer *m = dpt_transformer_of(call);
    const struct dpt_transformer_scratch scratch = dpt_transformer_scratch(call);
    const struct dpt_slot *slot = call->slot;
    const bool labels = m->base.labels > 0;
    const int weight = dpt_transformer_head(m);
    void *dstream = dpt_transformer_saved(call).dstream;
    struct dpt_unit_call head;
    const struct dpt_normed norm = dpt_transformer_head_norm(call, dstream, &head);
    struct dpt_head_loss loss = dpt_head_loss_of(&head, weight, norm.y);
    loss.dloss = slot->dloss;
    loss.dx = scratch.b;
    loss.dw = dpt_slot_grad(call, weight);
    loss.accumulate = m->tied ? adds_to_embedding(slot) : slot->accumulate;
    call->ops->head_loss(call->stream, &loss);
    if (!m->tied)
        dpt_slot_announce(slot, weight, 1);
    norm_backward(&head, dpt_transformer_last_norm(m), &norm, scratch.b,
                  labels ? scratch.a : dstream, false);
    if (labels)
        dpt_head_spread(call, m->c, scratch.a, dstream);
}

static void mlp_backward(const struct dpt_unit_call *call,
                         const struct dpt_transformer_block *block, void *dstream)
{
    const struct dpt_transformer *m = dpt_transformer_of(call);
    const struct dpt_transformer_scratch scratch = dpt_transformer_scratch(call);
    const void *dy = branch_backward(call, DPT_SITE_MLP_RESIDUAL, dstream, scratch.a);
    linear_backward(call, DPT_PRODUCT_DOWN, block->act, dy, m->gated ? scratch.inner : scratch.wide,
                    m->gated ? NULL : block->up);
    if (m->gated)
        call->ops->swiglu_backward(call->stream, &(struct dpt_swiglu){
                                                     .n = call->n,
                                                     .c = m->inner,
                                                     .dtype = call->model->dtype,
                                                     .x = block->up,
                                                     .dy = scratch.inner,
                                                     .out = scratch.wide,
                                                 });
    linear_backward(call, DPT_PRODUCT_UP, block->norm_2.y, scratch.wide, scratch.b, NULL);
    norm_backward(call, dpt_transformer_norm(call, 1), &block->norm_2, scratch.b, dstream, true);
}

static void attention_backward(const struct dpt_unit_call *call,
                               const struct dpt_transformer_block *block, void *dstream)
{
    const struct dpt_transformer_saved shared = dpt_transformer_saved(call);
    const struct dpt_transformer_scratch scratch = dpt_transformer_scratch(call);
    const bool needs_dx = dpt_slot_needs_dx(call->slot, call->unit - 1);
    const void *dy = branch_backward(call, DPT_SITE_ATTENTION_RESIDUAL, dstream, scratch.a);
    linear_backward(call, DPT_PRODUCT_O, block->att, dy, scratch.b, NULL);
    struct dpt_attention attention = dpt_transformer_attention(call, block);
    attention.dy = scratch.b;
    attention.dqkv = scratch.wide;
    call->ops->attention_backward(call->stream, &attention);
    dpt_transformer_rotate(call, shared.cos, shared.sin, true, scratch.wide);
    linear_backward(call, DPT_PRODUCT_QKV, block->norm_1.y, scratch.wide,
                    needs_dx ? scratch.a : NULL, NULL);
    if (needs_dx)
        norm_backward(call, dpt_transformer_norm(call, 0), &block->norm_1, scratch.a, dstream,
                      true);
}

static void embedding_backward(const struct dpt_unit_call *call)
{
    const struct dpt_transformer *m = dpt_transformer_of(call);
    const struct dpt_slot *slot = call->slot;
    const int wte = DPT_TRANSFORMER_EMBEDDING;
    call->ops->embedding_backward(
        call->stream, &(struct dpt_embedding_backward){
                          .b = slot->b,
                          .t = slot->t,
                          .c = m->c,
                          .v = m->base.vocab,
                          .context = m->base.context,
                          .dtype = m->base.dtype,
                          .dropout = dpt_slot_dropout(slot, m->dropout, DPT_SITE_EMBEDDING),
                          .tokens = slot->batch.part[DPT_SAMPLE_INPUT],
                          .dy = dpt_transformer_saved(call).dstream,
                          .dwte = dpt_slot_grad(call, wte),
                          .dwpe = m->positions ? dpt_slot_grad(call, wte + 1) : NULL,
                          .accumulate_wte = m->tied || adds_to_embedding(slot),
                          .accumulate_wpe = adds_to_embedding(slot),
                      });
    dpt_slot_announce(slot, wte, m->positions ? 2 : 1);
}

void dpt_transformer_backward(const struct dpt_unit_call *call)
{
    if (call->unit == dpt_transformer_of(call)->layers + 1) {
        head_backward(call);
    } else if (call->unit >= 1) {
        const struct dpt_transformer_block block = dpt_transformer_block(call);
        void *dstream = dpt_transformer_saved(call).dstream;
        dpt_transformer_recompute(call);
        mlp_backward(call, &block, dstream);
        attention_backward(call, &block, dstream);
    } else {
        embedding_backward(call);
    }
}
