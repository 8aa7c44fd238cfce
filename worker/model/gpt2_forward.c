/* GPT-2's forward (gpt2.h): x += dropout(proj(attention(ln_1(x)))), x +=
 * dropout(proj(gelu(fc(ln_2(x))))), per block. */
#include "worker/model/gpt2.h"

static void embedding(const struct dpt_gpt2 *m, const struct dpt_ops *ops,
                      struct dpt_stream *stream, const struct dpt_slot *slot)
{
    const struct dpt_gpt2_saved saved = dpt_gpt2_saved(m, slot, NULL);
    ops->embedding_forward(
        stream, &(struct dpt_embedding_forward){
                    .b = slot->b,
                    .t = slot->t,
                    .c = m->c,
                    .v = m->base.vocab,
                    .dtype = m->base.dtype,
                    .dropout = dpt_slot_dropout(slot, m->dropout, DPT_GPT2_SITE_EMBEDDING),
                    .tokens = slot->batch.part[DPT_SAMPLE_INPUT],
                    .wte = dpt_slot_weight(&m->base, slot, DPT_GPT2_WTE),
                    .wpe = dpt_slot_weight(&m->base, slot, DPT_GPT2_WPE),
                    .y = saved.x0,
                });
}

/* A norm of `n` rows whose weight is parameter `weight` and whose bias follows it. */
static void norm_rows(const struct dpt_gpt2 *m, const struct dpt_ops *ops,
                      struct dpt_stream *stream, const struct dpt_slot *slot, int64_t n, int weight,
                      const void *x, void *y, float *mean, float *rstd)
{
    ops->layernorm_forward(stream, &(struct dpt_layernorm_forward){
                                       .n = n,
                                       .c = m->c,
                                       .eps = DPT_GPT2_LAYERNORM_EPS,
                                       .dtype = m->base.dtype,
                                       .x = x,
                                       .gamma = dpt_slot_weight(&m->base, slot, weight),
                                       .beta = dpt_slot_weight(&m->base, slot, weight + 1),
                                       .y = y,
                                       .mean = mean,
                                       .rstd = rstd,
                                   });
}

static void layernorm(const struct dpt_gpt2 *m, const struct dpt_ops *ops,
                      struct dpt_stream *stream, const struct dpt_slot *slot, int weight,
                      const void *x, void *y, float *mean, float *rstd)
{
    norm_rows(m, ops, stream, slot, slot->b * slot->t, weight, x, y, mean, rstd);
}

/* y (N, out) = x (N, in) w + bias, w being parameter `weight` and the bias following it. */
static void linear(const struct dpt_gpt2 *m, const struct dpt_ops *ops, struct dpt_stream *stream,
                   const struct dpt_slot *slot, int weight, const void *x, void *y, void *gelu)
{
    const struct dpt_param *param = &m->base.params[weight];
    const bool adapts = dpt_slot_adapts(slot, weight, 1); /* then GELU is of what they add to */
    ops->linear_forward(stream, &(struct dpt_linear_forward){
                                    .n = slot->b * slot->t,
                                    .in = param->dim[0],
                                    .out = param->dim[1],
                                    .dtype = m->base.dtype,
                                    .x = x,
                                    .w = dpt_slot_weight(&m->base, slot, weight),
                                    .bias = dpt_slot_weight(&m->base, slot, weight + 1),
                                    .y = y,
                                    .gelu = adapts ? NULL : gelu,
                                    .packed = dpt_slot_packed(slot, weight),
                                });
    dpt_adapters_forward(
        &m->base, ops, stream, slot,
        &(struct dpt_adapted){
            .weight = weight, .n_weights = 1, .out = param->dim[1], .x = x, .y = y});
    if (adapts && gelu != NULL)
        ops->gelu_forward(stream, &(struct dpt_gelu){
                                      .n = slot->b * slot->t * param->dim[1],
                                      .dtype = m->base.dtype,
                                      .x = y,
                                      .out = gelu,
                                  });
}

static void residual(const struct dpt_gpt2 *m, const struct dpt_ops *ops, struct dpt_stream *stream,
                     const struct dpt_slot *slot, int site, const void *a, const void *b, void *y)
{
    ops->residual(stream, &(struct dpt_residual){
                              .n = slot->b * slot->t * m->c,
                              .dtype = m->base.dtype,
                              .dropout = dpt_slot_dropout(slot, m->dropout, site),
                              .a = a,
                              .b = b,
                              .y = y,
                          });
}

/* The block up to its last activation, which is all that its backward needs of it. */
static void block_inside(const struct dpt_gpt2 *m, const struct dpt_ops *ops,
                         struct dpt_stream *stream, int layer, const struct dpt_slot *slot)
{
    const struct dpt_gpt2_block_saved saved = dpt_gpt2_block_saved(m, slot, layer, NULL);
    const struct dpt_gpt2_scratch scratch = dpt_gpt2_scratch(m, slot, NULL);
    const int first = dpt_gpt2_block_param(layer, DPT_GPT2_LN_1_W);

    layernorm(m, ops, stream, slot, first + DPT_GPT2_LN_1_W, saved.x, saved.ln1, saved.mean1,
              saved.rstd1);
    linear(m, ops, stream, slot, first + DPT_GPT2_C_ATTN_W, saved.ln1, saved.qkv, NULL);
    ops->attention_forward(
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
                });
    linear(m, ops, stream, slot, first + DPT_GPT2_C_PROJ_W, saved.att, scratch.a, NULL);
    ops->residual_norm(
        stream,
        &(struct dpt_residual_norm){
            .n = slot->b * slot->t,
            .c = m->c,
            .eps = DPT_GPT2_LAYERNORM_EPS,
            .dtype = m->base.dtype,
            .dropout = dpt_slot_dropout(
                slot, m->dropout, dpt_gpt2_block_site(layer, DPT_GPT2_SITE_ATTENTION_RESIDUAL)),
            .a = saved.x,
            .b = scratch.a,
            .sum = saved.mid,
            .gamma = dpt_slot_weight(&m->base, slot, first + DPT_GPT2_LN_2_W),
            .beta = dpt_slot_weight(&m->base, slot, first + DPT_GPT2_LN_2_B),
            .y = saved.ln2,
            .mean = saved.mean2,
            .rstd = saved.rstd2,
        });
    linear(m, ops, stream, slot, first + DPT_GPT2_C_FC_W, saved.ln2, saved.fc, saved.gelu);
}

static void block(const struct dpt_gpt2 *m, const struct dpt_ops *ops, struct dpt_stream *stream,
                  int layer, const struct dpt_slot *slot)
{
    const struct dpt_gpt2_block_saved saved = dpt_gpt2_block_saved(m, slot, layer, NULL);
    const struct dpt_gpt2_scratch scratch = dpt_gpt2_scratch(m, slot, NULL);
    block_inside(m, ops, stream, layer, slot);
    linear(m, ops, stream, slot, dpt_gpt2_block_param(layer, DPT_GPT2_MLP_PROJ_W), saved.gelu,
           scratch.a, NULL);
    residual(m, ops, stream, slot, dpt_gpt2_block_site(layer, DPT_GPT2_SITE_MLP_RESIDUAL),
             saved.mid, scratch.a, saved.out);
}

static void recompute_cheap(const struct dpt_gpt2 *m, const struct dpt_ops *ops,
                            struct dpt_stream *stream, int layer, const struct dpt_slot *slot)
{
    const struct dpt_gpt2_block_saved saved = dpt_gpt2_block_saved(m, slot, layer, NULL);
    const int first = dpt_gpt2_block_param(layer, DPT_GPT2_LN_1_W);
    layernorm(m, ops, stream, slot, first + DPT_GPT2_LN_1_W, saved.x, saved.ln1, saved.mean1,
              saved.rstd1);
    layernorm(m, ops, stream, slot, first + DPT_GPT2_LN_2_W, saved.mid, saved.ln2, saved.mean2,
              saved.rstd2);
    ops->gelu_forward(stream, &(struct dpt_gelu){
                                  .n = slot->b * slot->t * 4 * m->c,
                                  .dtype = m->base.dtype,
                                  .x = saved.fc,
                                  .out = saved.gelu,
                              });
}

void dpt_gpt2_recompute(const struct dpt_gpt2 *m, const struct dpt_ops *ops,
                        struct dpt_stream *stream, int layer, const struct dpt_slot *slot)
{
    switch (m->checkpointing) {
    case DPT_ACTIVATION_CHECKPOINTING_NONE:
        break;
    case DPT_ACTIVATION_CHECKPOINTING_SELECTIVE:
        recompute_cheap(m, ops, stream, layer, slot);
        break;
    case DPT_ACTIVATION_CHECKPOINTING_FULL:
        block_inside(m, ops, stream, layer, slot);
        break;
    }
}

/* EVAL: the losses. TRAIN: nothing, since backward computes losses and their gradient in one pass
 * over the logits. */
static void head(const struct dpt_gpt2 *m, const struct dpt_ops *ops, struct dpt_stream *stream,
                 const struct dpt_slot *slot)
{
    if (slot->mode == DPT_MODE_TRAIN)
        return;
    const struct dpt_gpt2_block_saved last = dpt_gpt2_block_saved(m, slot, m->layers - 1, NULL);
    const struct dpt_gpt2_scratch scratch = dpt_gpt2_scratch(m, slot, NULL);
    const int64_t n = dpt_head_rows(&m->base, slot);
    const int weight = dpt_gpt2_head(m);
    const void *states = dpt_head_states(&m->base, ops, stream, slot, m->c, last.out, scratch.b);
    norm_rows(m, ops, stream, slot, n, dpt_gpt2_ln_f(m), states, scratch.a, scratch.mean,
              scratch.rstd);
    ops->head_loss(stream, &(struct dpt_head_loss){
                               .n = n,
                               .c = m->c,
                               .v = dpt_head_logits(&m->base),
                               .dtype = m->base.dtype,
                               .x = scratch.a,
                               .w = dpt_slot_weight(&m->base, slot, weight),
                               .targets = slot->batch.part[DPT_SAMPLE_TARGET],
                               .loss = slot->losses,
                               .packed = dpt_slot_packed(slot, weight),
                               .right = slot->right,
                           });
}

void dpt_gpt2_forward(const struct dpt_model *model, const struct dpt_ops *ops,
                      struct dpt_stream *stream, int unit, const struct dpt_slot *slot)
{
    const struct dpt_gpt2 *m = (const struct dpt_gpt2 *)model;
    if (unit == 0)
        embedding(m, ops, stream, slot);
    else if (unit <= m->layers)
        block(m, ops, stream, unit - 1, slot);
    else
        head(m, ops, stream, slot);
}
