/* GPT-2's backward (gpt2.h). The gradient of the residual stream lies in saved.dstream: the head
 * writes it, each block turns the gradient of its output into that of its input in place, the
 * embedding reads it.
 *
 * wte's gradient comes in two parts: the head's first, which overwrites (or adds to what other
 * slots left), then the embedding's, which always adds; only then is wte announced. With labels the
 * head has a weight of its own. */
#include "worker/model/gpt2.h"

/* Whether the gradients of the embedding, whose wte the head borrows, are added to. */
static bool adds_to_embedding(const struct dpt_slot *slot)
{
    return slot->accumulate && !slot->parts_apart;
}

/* Of `n` rows. */
static void layernorm(const struct dpt_gpt2 *m, const struct dpt_ops *ops,
                      struct dpt_stream *stream, const struct dpt_slot *slot, int64_t n, int weight,
                      const void *x, const float *mean, const float *rstd, const void *dy, void *dx,
                      bool add_dx)
{
    ops->layernorm_backward(stream, &(struct dpt_layernorm_backward){
                                        .n = n,
                                        .c = m->c,
                                        .dtype = m->base.dtype,
                                        .x = x,
                                        .gamma = dpt_slot_weight(&m->base, slot, weight),
                                        .mean = mean,
                                        .rstd = rstd,
                                        .dy = dy,
                                        .dx = dx,
                                        .add_dx = add_dx,
                                        .dgamma = dpt_slot_grad(&m->base, slot, weight),
                                        .dbeta = dpt_slot_grad(&m->base, slot, weight + 1),
                                        .accumulate = slot->accumulate,
                                    });
    dpt_slot_announce(slot, weight, 2);
}

/* gelu_x: what x is GELU of, whose gradient dx is then; or NULL. */
static void linear(const struct dpt_gpt2 *m, const struct dpt_ops *ops, struct dpt_stream *stream,
                   const struct dpt_slot *slot, int weight, const void *x, const void *dy, void *dx,
                   const void *gelu_x)
{
    const struct dpt_param *param = &m->base.params[weight];
    const bool adapts = dpt_slot_adapts(slot, weight, 1); /* then all of dx goes through GELU */
    ops->linear_backward(stream, &(struct dpt_linear_backward){
                                     .n = slot->b * slot->t,
                                     .in = param->dim[0],
                                     .out = param->dim[1],
                                     .dtype = m->base.dtype,
                                     .x = x,
                                     .w = dpt_slot_weight(&m->base, slot, weight),
                                     .dy = dy,
                                     .dx = dx,
                                     .gelu_x = adapts ? NULL : gelu_x,
                                     .dw = dpt_slot_grad(&m->base, slot, weight),
                                     .dbias = dpt_slot_grad(&m->base, slot, weight + 1),
                                     .accumulate = slot->accumulate,
                                     .packed = dpt_slot_packed(slot, weight),
                                 });
    dpt_adapters_backward(
        &m->base, ops, stream, slot,
        &(struct dpt_adapted){
            .weight = weight, .n_weights = 1, .out = param->dim[1], .x = x, .dy = dy, .dx = dx});
    if (adapts && gelu_x != NULL)
        ops->gelu_backward(stream, &(struct dpt_gelu){
                                       .n = slot->b * slot->t * param->dim[0],
                                       .dtype = m->base.dtype,
                                       .x = gelu_x,
                                       .dy = dx,
                                       .out = dx,
                                   });
    dpt_slot_announce(slot, weight, 2);
}

/* The gradient of a residual branch's end: dy through the branch's dropout, into `to`; dy itself
 * where there is none. */
static const void *branch(const struct dpt_gpt2 *m, const struct dpt_ops *ops,
                          struct dpt_stream *stream, const struct dpt_slot *slot, int site,
                          const void *dy, void *to)
{
    const struct dpt_dropout dropout = dpt_slot_dropout(slot, m->dropout, site);
    if (!(dropout.p > 0.0f))
        return dy;
    ops->dropout_backward(stream, &(struct dpt_dropout_backward){
                                      .n = slot->b * slot->t * m->c,
                                      .dtype = m->base.dtype,
                                      .dropout = dropout,
                                      .dy = dy,
                                      .dx = to,
                                  });
    return to;
}

static void head(const struct dpt_gpt2 *m, const struct dpt_ops *ops, struct dpt_stream *stream,
                 const struct dpt_slot *slot)
{
    const struct dpt_gpt2_saved saved = dpt_gpt2_saved(m, slot, NULL);
    const struct dpt_gpt2_block_saved last = dpt_gpt2_block_saved(m, slot, m->layers - 1, NULL);
    const struct dpt_gpt2_scratch scratch = dpt_gpt2_scratch(m, slot, NULL);
    const bool labels = m->base.labels > 0;
    const int64_t n = dpt_head_rows(&m->base, slot);
    const int ln_f = dpt_gpt2_ln_f(m), weight = dpt_gpt2_head(m);
    const void *states =
        dpt_head_states(&m->base, ops, stream, slot, m->c, last.out, saved.dstream);
    ops->layernorm_forward(stream, &(struct dpt_layernorm_forward){
                                       .n = n,
                                       .c = m->c,
                                       .eps = DPT_GPT2_LAYERNORM_EPS,
                                       .dtype = m->base.dtype,
                                       .x = states,
                                       .gamma = dpt_slot_weight(&m->base, slot, ln_f),
                                       .beta = dpt_slot_weight(&m->base, slot, ln_f + 1),
                                       .y = scratch.a,
                                       .mean = scratch.mean,
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
                               .accumulate = labels ? slot->accumulate : adds_to_embedding(slot),
                               .packed = dpt_slot_packed(slot, weight),
                           });
    if (labels)
        dpt_slot_announce(slot, weight, 1);
    layernorm(m, ops, stream, slot, n, ln_f, states, scratch.mean, scratch.rstd, scratch.b,
              labels ? scratch.a : saved.dstream, false);
    if (labels)
        dpt_head_spread(&m->base, ops, stream, slot, m->c, scratch.a, saved.dstream);
}

static void mlp(const struct dpt_gpt2 *m, const struct dpt_ops *ops, struct dpt_stream *stream,
                int layer, const struct dpt_slot *slot, void *dstream)
{
    const struct dpt_gpt2_block_saved saved = dpt_gpt2_block_saved(m, slot, layer, NULL);
    const struct dpt_gpt2_scratch scratch = dpt_gpt2_scratch(m, slot, NULL);
    const int first = dpt_gpt2_block_param(layer, DPT_GPT2_LN_1_W);
    const void *dy =
        branch(m, ops, stream, slot, dpt_gpt2_block_site(layer, DPT_GPT2_SITE_MLP_RESIDUAL),
               dstream, scratch.a);
    linear(m, ops, stream, slot, first + DPT_GPT2_MLP_PROJ_W, saved.gelu, dy, scratch.wide,
           saved.fc);
    linear(m, ops, stream, slot, first + DPT_GPT2_C_FC_W, saved.ln2, scratch.wide, scratch.b, NULL);
    layernorm(m, ops, stream, slot, slot->b * slot->t, first + DPT_GPT2_LN_2_W, saved.mid,
              saved.mean2, saved.rstd2, scratch.b, dstream, true);
}

static void attention(const struct dpt_gpt2 *m, const struct dpt_ops *ops,
                      struct dpt_stream *stream, int layer, const struct dpt_slot *slot,
                      void *dstream)
{
    const struct dpt_gpt2_block_saved saved = dpt_gpt2_block_saved(m, slot, layer, NULL);
    const struct dpt_gpt2_scratch scratch = dpt_gpt2_scratch(m, slot, NULL);
    const int first = dpt_gpt2_block_param(layer, DPT_GPT2_LN_1_W);
    const bool needs_dx = dpt_slot_needs_dx(slot, layer);
    const void *dy =
        branch(m, ops, stream, slot, dpt_gpt2_block_site(layer, DPT_GPT2_SITE_ATTENTION_RESIDUAL),
               dstream, scratch.a);
    linear(m, ops, stream, slot, first + DPT_GPT2_C_PROJ_W, saved.att, dy, scratch.b, NULL);
    ops->attention_backward(
        stream, &(struct dpt_attention){
                    .b = slot->b,
                    .t = slot->t,
                    .heads = m->heads,
                    .kv_heads = m->heads,
                    .head_size = m->c / m->heads,
                    .dtype = m->base.dtype,
                    .dropout = dpt_slot_dropout(
                        slot, m->dropout, dpt_gpt2_block_site(layer, DPT_GPT2_SITE_ATTENTION)),
                    .qkv = saved.qkv,
                    .y = saved.att,
                    .lse = saved.lse,
                    .dy = scratch.b,
                    .dqkv = scratch.wide, /* (B, T, 3, C) of (N, 4*C) */
                });
    linear(m, ops, stream, slot, first + DPT_GPT2_C_ATTN_W, saved.ln1, scratch.wide,
           needs_dx ? scratch.a : NULL, NULL);
    if (needs_dx)
        layernorm(m, ops, stream, slot, slot->b * slot->t, first + DPT_GPT2_LN_1_W, saved.x,
                  saved.mean1, saved.rstd1, scratch.a, dstream, true);
}

static void embedding(const struct dpt_gpt2 *m, const struct dpt_ops *ops,
                      struct dpt_stream *stream, const struct dpt_slot *slot)
{
    const struct dpt_gpt2_saved saved = dpt_gpt2_saved(m, slot, NULL);
    ops->embedding_backward(
        stream, &(struct dpt_embedding_backward){
                    .b = slot->b,
                    .t = slot->t,
                    .c = m->c,
                    .v = m->base.vocab,
                    .context = m->base.context,
                    .dtype = m->base.dtype,
                    .dropout = dpt_slot_dropout(slot, m->dropout, DPT_GPT2_SITE_EMBEDDING),
                    .tokens = slot->batch.part[DPT_SAMPLE_INPUT],
                    .dy = saved.dstream,
                    .dwte = dpt_slot_grad(&m->base, slot, DPT_GPT2_WTE),
                    .dwpe = dpt_slot_grad(&m->base, slot, DPT_GPT2_WPE),
                    .accumulate_wte = m->base.labels == 0 || adds_to_embedding(slot),
                    .accumulate_wpe = adds_to_embedding(slot),
                });
    dpt_slot_announce(slot, DPT_GPT2_WTE, 2);
}

void dpt_gpt2_backward(const struct dpt_model *model, const struct dpt_ops *ops,
                       struct dpt_stream *stream, int unit, const struct dpt_slot *slot)
{
    const struct dpt_gpt2 *m = (const struct dpt_gpt2 *)model;
    if (unit == m->layers + 1) {
        head(m, ops, stream, slot);
    } else if (unit >= 1) {
        void *dstream = dpt_gpt2_saved(m, slot, NULL).dstream;
        dpt_gpt2_recompute(m, ops, stream, unit - 1, slot);
        mlp(m, ops, stream, unit - 1, slot, dstream);
        attention(m, ops, stream, unit - 1, slot, dstream);
    } else {
        embedding(m, ops, stream, slot);
    }
}
