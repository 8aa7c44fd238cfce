/* ResNet's forward (resnet.h). Training normalises with the micro-batch's statistics and keeps them
 * for backward. Evaluation normalises with the running statistics. */
#include "worker/model/resnet.h"

static void conv_forward(const struct dpt_unit_call *call, const struct dpt_resnet_layer *layer,
                         const void *x, void *y)
{
    const int weight = layer->first_param + DPT_RESNET_WEIGHT;
    call->ops->conv_forward(call->stream, &(struct dpt_conv_forward){
                                              .of = dpt_resnet_windows(layer, call->slot->b),
                                              .in = layer->in,
                                              .out = layer->out,
                                              .dtype = call->model->dtype,
                                              .x = x,
                                              .weight = dpt_slot_weight(call, weight),
                                              .y = y,
                                              .packed = dpt_slot_packed(call, weight),
                                          });
}

/* saved->relu = relu(norm(saved->conv) + residual), without the residual if that is NULL. For a
 * shortcut instead y = norm(saved->conv). */
static void norm_forward(const struct dpt_unit_call *call, const struct dpt_resnet_layer *layer,
                         const struct dpt_resnet_layer_saved *saved, const void *residual, void *y)
{
    const void *tensor[DPT_RESNET_TENSORS];
    for (int i = 0; i < DPT_RESNET_TENSORS; i++)
        tensor[i] = dpt_slot_weight(call, layer->first_param + i);
    struct dpt_batchnorm_forward a = {
        .n = call->slot->b * layer->side_out * layer->side_out,
        .c = layer->out,
        .eps = DPT_RESNET_EPS,
        .dtype = call->model->dtype,
        .x = saved->conv,
        .gamma = tensor[DPT_RESNET_GAMMA],
        .beta = tensor[DPT_RESNET_BETA],
        .residual = residual,
        .relu = saved->relu != NULL,
        .y = saved->relu != NULL ? saved->relu : y,
        .mean = saved->mean,
        .rstd = saved->rstd,
        .var = saved->var,
    };
    if (call->slot->mode == DPT_MODE_EVAL) {
        a.running_mean = tensor[DPT_RESNET_RUNNING_MEAN];
        a.running_var = tensor[DPT_RESNET_RUNNING_VAR];
    }
    call->ops->batchnorm_forward(call->stream, &a);
}

static void stem_forward(const struct dpt_unit_call *call)
{
    const struct dpt_resnet *m = dpt_resnet_of(call);
    const struct dpt_slot *slot = call->slot;
    const struct dpt_resnet_saved saved = dpt_resnet_saved(m, slot, NULL);
    if (m->base.dtype != DPT_F32)
        call->ops->cast(call->stream, slot->b * m->side * m->side * m->stem.in,
                        slot->batch.part[DPT_SAMPLE_INPUT], m->base.dtype, saved.image);
    conv_forward(call, &m->stem, dpt_resnet_images(call), saved.stem.conv);
    norm_forward(call, &m->stem, &saved.stem, NULL, NULL);
    if (m->pools)
        call->ops->maxpool_forward(call->stream, &(struct dpt_maxpool){
                                                     .of = dpt_resnet_pool_windows(m, slot->b),
                                                     .c = m->stem.out,
                                                     .dtype = m->base.dtype,
                                                     .x = saved.stem.relu,
                                                     .y = saved.pooled,
                                                     .taken = saved.pool_taken,
                                                 });
}

static void block_forward(const struct dpt_unit_call *call)
{
    const struct dpt_resnet *m = dpt_resnet_of(call);
    const struct dpt_resnet_block *of = &m->blocks[call->unit - 1];
    const struct dpt_resnet_block_saved saved =
        dpt_resnet_block_saved(m, call->slot, call->unit - 1, NULL);
    const struct dpt_resnet_scratch scratch = dpt_resnet_scratch(m, call->slot, NULL);
    const void *x = saved.x, *residual = saved.x;
    if (of->projects) {
        conv_forward(call, &of->shortcut, saved.x, saved.shortcut.conv);
        norm_forward(call, &of->shortcut, &saved.shortcut, NULL, scratch.a);
        residual = scratch.a;
    }
    for (int i = 0; i < of->n_path; i++) {
        conv_forward(call, &of->path[i], x, saved.path[i].conv);
        norm_forward(call, &of->path[i], &saved.path[i], i + 1 == of->n_path ? residual : NULL,
                     NULL);
        x = saved.path[i].relu;
    }
}

struct dpt_avgpool dpt_resnet_average(const struct dpt_unit_call *call)
{
    const struct dpt_resnet *m = dpt_resnet_of(call);
    const int last = m->n_blocks - 1, layer = m->blocks[last].n_path - 1;
    return (struct dpt_avgpool){
        .b = call->slot->b,
        .pixels = m->last_side * m->last_side,
        .c = m->features,
        .dtype = m->base.dtype,
        .in = dpt_resnet_block_saved(m, call->slot, last, NULL).path[layer].relu,
        .out = dpt_resnet_scratch(m, call->slot, NULL).a,
    };
}

struct dpt_head_loss dpt_resnet_loss(const struct dpt_unit_call *call)
{
    const struct dpt_resnet *m = dpt_resnet_of(call);
    const void *x = dpt_resnet_scratch(m, call->slot, NULL).a;
    struct dpt_head_loss loss = dpt_head_loss_of(call, m->fc_weight, x);
    loss.bias = dpt_slot_weight(call, m->fc_weight + 1);
    return loss;
}

/* EVAL: the losses. TRAIN: nothing, since backward computes losses and their gradient in one pass
 * over the logits. */
static void head_forward(const struct dpt_unit_call *call)
{
    if (call->slot->mode == DPT_MODE_TRAIN)
        return;
    const struct dpt_avgpool pool = dpt_resnet_average(call);
    struct dpt_head_loss loss = dpt_resnet_loss(call);
    loss.right = call->slot->right;
    call->ops->avgpool_forward(call->stream, &pool);
    call->ops->head_loss(call->stream, &loss);
}

void dpt_resnet_forward(const struct dpt_unit_call *call)
{
    if (call->unit == 0)
        stem_forward(call);
    else if (call->unit <= dpt_resnet_of(call)->n_blocks)
        block_forward(call);
    else
        head_forward(call);
}
