/* ResNet's forward (resnet.h). Training normalises with the micro-batch's statistics and keeps them
 * for backward, evaluation with the running ones. */
#include "worker/model/resnet.h"

static void conv(const struct dpt_resnet *m, const struct dpt_ops *ops, struct dpt_stream *stream,
                 const struct dpt_slot *slot, const struct dpt_resnet_layer *layer, const void *x,
                 void *y)
{
    const int weight = layer->first_param + DPT_RESNET_WEIGHT;
    ops->conv_forward(stream, &(struct dpt_conv_forward){
                                  .of = dpt_resnet_windows(layer, slot->b),
                                  .in = layer->in,
                                  .out = layer->out,
                                  .dtype = m->base.dtype,
                                  .x = x,
                                  .weight = dpt_slot_weight(&m->base, slot, weight),
                                  .y = y,
                                  .packed = dpt_slot_packed(slot, weight),
                              });
}

/* y = relu(norm(saved->conv) + residual), without the relu or the residual where there is none. */
static void norm(const struct dpt_resnet *m, const struct dpt_ops *ops, struct dpt_stream *stream,
                 const struct dpt_slot *slot, const struct dpt_resnet_layer *layer,
                 const struct dpt_resnet_layer_saved *saved, const void *residual, bool relu,
                 void *y)
{
    const void *tensor[DPT_RESNET_TENSORS];
    for (int i = 0; i < DPT_RESNET_TENSORS; i++)
        tensor[i] = dpt_slot_weight(&m->base, slot, layer->first_param + i);
    struct dpt_batchnorm_forward a = {
        .n = slot->b * layer->side_out * layer->side_out,
        .c = layer->out,
        .eps = DPT_RESNET_EPS,
        .dtype = m->base.dtype,
        .x = saved->conv,
        .gamma = tensor[DPT_RESNET_GAMMA],
        .beta = tensor[DPT_RESNET_BETA],
        .residual = residual,
        .relu = relu,
        .y = y,
        .mean = saved->mean,
        .rstd = saved->rstd,
        .var = saved->var,
    };
    if (slot->mode == DPT_MODE_EVAL) {
        a.running_mean = tensor[DPT_RESNET_RUNNING_MEAN];
        a.running_var = tensor[DPT_RESNET_RUNNING_VAR];
    }
    ops->batchnorm_forward(stream, &a);
}

static void stem(const struct dpt_resnet *m, const struct dpt_ops *ops, struct dpt_stream *stream,
                 const struct dpt_slot *slot)
{
    const struct dpt_resnet_saved saved = dpt_resnet_saved(m, slot, NULL);
    if (m->base.dtype != DPT_F32)
        ops->cast(stream, slot->b * m->side * m->side * m->stem.in,
                  slot->batch.part[DPT_SAMPLE_INPUT], m->base.dtype, saved.image);
    conv(m, ops, stream, slot, &m->stem, dpt_resnet_images(m, slot), saved.stem.conv);
    norm(m, ops, stream, slot, &m->stem, &saved.stem, NULL, true, saved.stem_relu);
    if (m->pools)
        ops->maxpool_forward(stream, &(struct dpt_maxpool){
                                         .of = dpt_resnet_pool_windows(m, slot->b),
                                         .c = m->stem.out,
                                         .dtype = m->base.dtype,
                                         .x = saved.stem_relu,
                                         .y = saved.pooled,
                                         .taken = saved.pool_taken,
                                     });
}

static void block(const struct dpt_resnet *m, const struct dpt_ops *ops, struct dpt_stream *stream,
                  int index, const struct dpt_slot *slot)
{
    const struct dpt_resnet_block *of = &m->blocks[index];
    const struct dpt_resnet_block_saved saved = dpt_resnet_block_saved(m, slot, index, NULL);
    const struct dpt_resnet_scratch scratch = dpt_resnet_scratch(m, slot, NULL);
    const void *x = saved.x, *residual = saved.x;
    if (of->projects) {
        conv(m, ops, stream, slot, &of->shortcut, saved.x, saved.shortcut.conv);
        norm(m, ops, stream, slot, &of->shortcut, &saved.shortcut, NULL, false, scratch.a);
        residual = scratch.a;
    }
    for (int i = 0; i < of->n_path; i++) {
        const bool last = i + 1 == of->n_path;
        conv(m, ops, stream, slot, &of->path[i], x, saved.path[i].conv);
        norm(m, ops, stream, slot, &of->path[i], &saved.path[i], last ? residual : NULL, true,
             last ? saved.y : saved.relu[i]);
        x = saved.relu[i];
    }
}

/* EVAL: the losses. TRAIN: nothing, since backward computes losses and their gradient in one pass
 * over the logits. */
static void head(const struct dpt_resnet *m, const struct dpt_ops *ops, struct dpt_stream *stream,
                 const struct dpt_slot *slot)
{
    if (slot->mode == DPT_MODE_TRAIN)
        return;
    const struct dpt_resnet_scratch scratch = dpt_resnet_scratch(m, slot, NULL);
    ops->avgpool_forward(stream, &(struct dpt_avgpool){.b = slot->b,
                                                       .pixels = m->last_side * m->last_side,
                                                       .c = m->features,
                                                       .dtype = m->base.dtype,
                                                       .in = dpt_resnet_last(m, slot),
                                                       .out = scratch.a});
    ops->head_loss(stream, &(struct dpt_head_loss){
                               .n = slot->b,
                               .c = m->features,
                               .v = m->base.labels,
                               .dtype = m->base.dtype,
                               .x = scratch.a,
                               .w = dpt_slot_weight(&m->base, slot, m->fc_weight),
                               .targets = slot->batch.part[DPT_SAMPLE_TARGET],
                               .loss = slot->losses,
                               .packed = dpt_slot_packed(slot, m->fc_weight),
                               .right = slot->right,
                               .bias = dpt_slot_weight(&m->base, slot, m->fc_weight + 1),
                           });
}

void dpt_resnet_forward(const struct dpt_model *model, const struct dpt_ops *ops,
                        struct dpt_stream *stream, int unit, const struct dpt_slot *slot)
{
    const struct dpt_resnet *m = (const struct dpt_resnet *)model;
    if (unit == 0)
        stem(m, ops, stream, slot);
    else if (unit <= m->n_blocks)
        block(m, ops, stream, unit - 1, slot);
    else
        head(m, ops, stream, slot);
}
