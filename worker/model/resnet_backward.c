/* ResNet's backward (resnet.h). The gradient of what goes from unit to unit lies in saved.dstream:
 * the head writes it, each block turns that of its output into that of its input, the stem reads
 * it. A block without a shortcut does so in place. */
#include "worker/model/resnet.h"

static void conv(const struct dpt_resnet *m, const struct dpt_ops *ops, struct dpt_stream *stream,
                 const struct dpt_slot *slot, const struct dpt_resnet_layer *layer, const void *x,
                 const void *dy, void *dx, bool add_dx)
{
    const int weight = layer->first_param + DPT_RESNET_WEIGHT;
    ops->conv_backward(stream, &(struct dpt_conv_backward){
                                   .of = dpt_resnet_windows(layer, slot->b),
                                   .in = layer->in,
                                   .out = layer->out,
                                   .dtype = m->base.dtype,
                                   .x = x,
                                   .weight = dpt_slot_weight(&m->base, slot, weight),
                                   .dy = dy,
                                   .dx = dx,
                                   .add_dx = add_dx,
                                   .dw = dpt_slot_grad(&m->base, slot, weight),
                                   .accumulate = slot->accumulate,
                                   .packed = dpt_slot_packed(slot, weight),
                               });
    dpt_slot_announce(slot, weight, 1);
}

/* Of y = relu(norm(saved->conv) + residual), `y` NULL without the relu. */
static void norm(const struct dpt_resnet *m, const struct dpt_ops *ops, struct dpt_stream *stream,
                 const struct dpt_slot *slot, const struct dpt_resnet_layer *layer,
                 const struct dpt_resnet_layer_saved *saved, const void *y, const void *dy,
                 void *dx, void *dresidual)
{
    float *grad[DPT_RESNET_TENSORS];
    for (int i = 0; i < DPT_RESNET_TENSORS; i++)
        grad[i] = dpt_slot_grad(&m->base, slot, layer->first_param + i);
    ops->batchnorm_backward(
        stream, &(struct dpt_batchnorm_backward){
                    .n = slot->b * layer->side_out * layer->side_out,
                    .c = layer->out,
                    .dtype = m->base.dtype,
                    .x = saved->conv,
                    .gamma = dpt_slot_weight(&m->base, slot, layer->first_param + DPT_RESNET_GAMMA),
                    .mean = saved->mean,
                    .rstd = saved->rstd,
                    .var = saved->var,
                    .y = y,
                    .dy = dy,
                    .dx = dx,
                    .dresidual = dresidual,
                    .dgamma = grad[DPT_RESNET_GAMMA],
                    .dbeta = grad[DPT_RESNET_BETA],
                    .dmean = grad[DPT_RESNET_RUNNING_MEAN],
                    .dvar = grad[DPT_RESNET_RUNNING_VAR],
                    .share = slot->share,
                    .accumulate = slot->accumulate,
                });
}

/* The norm's parameters, once those behind them in the table have been announced. */
static void announce_norm(const struct dpt_slot *slot, const struct dpt_resnet_layer *layer)
{
    dpt_slot_announce(slot, layer->first_param + DPT_RESNET_GAMMA,
                      DPT_RESNET_TENSORS - DPT_RESNET_GAMMA);
}

static void head(const struct dpt_resnet *m, const struct dpt_ops *ops, struct dpt_stream *stream,
                 const struct dpt_slot *slot)
{
    const struct dpt_resnet_saved saved = dpt_resnet_saved(m, slot, NULL);
    const struct dpt_resnet_scratch scratch = dpt_resnet_scratch(m, slot, NULL);
    struct dpt_avgpool pool = {.b = slot->b,
                               .pixels = m->last_side * m->last_side,
                               .c = m->features,
                               .dtype = m->base.dtype,
                               .in = dpt_resnet_last(m, slot),
                               .out = scratch.a};
    ops->avgpool_forward(stream, &pool);
    ops->head_loss(stream, &(struct dpt_head_loss){
                               .n = slot->b,
                               .c = m->features,
                               .v = m->base.labels,
                               .dtype = m->base.dtype,
                               .x = scratch.a,
                               .w = dpt_slot_weight(&m->base, slot, m->fc_weight),
                               .targets = slot->batch.part[DPT_SAMPLE_TARGET],
                               .loss = slot->losses,
                               .dloss = slot->dloss,
                               .dx = scratch.b,
                               .dw = dpt_slot_grad(&m->base, slot, m->fc_weight),
                               .accumulate = slot->accumulate,
                               .packed = dpt_slot_packed(slot, m->fc_weight),
                               .bias = dpt_slot_weight(&m->base, slot, m->fc_weight + 1),
                               .dbias = dpt_slot_grad(&m->base, slot, m->fc_weight + 1),
                           });
    dpt_slot_announce(slot, m->fc_weight, 2);
    pool.in = scratch.b;
    pool.out = saved.dstream[m->blocks[m->n_blocks - 1].dy];
    ops->avgpool_backward(stream, &pool);
}

/* The last norm gives the gradient past its relu to the shortcut, in the place of dy. */
static void block(const struct dpt_resnet *m, const struct dpt_ops *ops, struct dpt_stream *stream,
                  int index, const struct dpt_slot *slot)
{
    const struct dpt_resnet_block *of = &m->blocks[index];
    const struct dpt_resnet_saved shared = dpt_resnet_saved(m, slot, NULL);
    const struct dpt_resnet_block_saved saved = dpt_resnet_block_saved(m, slot, index, NULL);
    const struct dpt_resnet_scratch scratch = dpt_resnet_scratch(m, slot, NULL);
    void *const dx = shared.dstream[of->dx], *const dy = shared.dstream[of->dy];
    const int last = of->n_path - 1;
    norm(m, ops, stream, slot, &of->path[last], &saved.path[last], saved.y, dy, scratch.a, dy);
    if (of->projects) {
        norm(m, ops, stream, slot, &of->shortcut, &saved.shortcut, NULL, dy, scratch.b, NULL);
        announce_norm(slot, &of->shortcut);
        conv(m, ops, stream, slot, &of->shortcut, saved.x, scratch.b, dx, false);
    }
    announce_norm(slot, &of->path[last]);
    for (int i = last; i > 0; i--) {
        conv(m, ops, stream, slot, &of->path[i], saved.relu[i - 1], scratch.a, scratch.b, false);
        norm(m, ops, stream, slot, &of->path[i - 1], &saved.path[i - 1], saved.relu[i - 1],
             scratch.b, scratch.a, NULL);
        announce_norm(slot, &of->path[i - 1]);
    }
    conv(m, ops, stream, slot, &of->path[0], saved.x, scratch.a, dx, true);
}

static void stem(const struct dpt_resnet *m, const struct dpt_ops *ops, struct dpt_stream *stream,
                 const struct dpt_slot *slot)
{
    const struct dpt_resnet_saved saved = dpt_resnet_saved(m, slot, NULL);
    const struct dpt_resnet_scratch scratch = dpt_resnet_scratch(m, slot, NULL);
    const void *dy = saved.dstream[m->blocks[0].dx];
    if (m->pools) {
        ops->maxpool_backward(stream, &(struct dpt_maxpool){
                                          .of = dpt_resnet_pool_windows(m, slot->b),
                                          .c = m->stem.out,
                                          .dtype = m->base.dtype,
                                          .taken = saved.pool_taken,
                                          .dy = dy,
                                          .dx = scratch.b,
                                      });
        dy = scratch.b;
    }
    norm(m, ops, stream, slot, &m->stem, &saved.stem, saved.stem_relu, dy, scratch.a, NULL);
    announce_norm(slot, &m->stem);
    conv(m, ops, stream, slot, &m->stem, dpt_resnet_images(m, slot), scratch.a, NULL, false);
}

void dpt_resnet_backward(const struct dpt_model *model, const struct dpt_ops *ops,
                         struct dpt_stream *stream, int unit, const struct dpt_slot *slot)
{
    const struct dpt_resnet *m = (const struct dpt_resnet *)model;
    if (unit == m->n_blocks + 1)
        head(m, ops, stream, slot);
    else if (unit > 0)
        block(m, ops, stream, unit - 1, slot);
    else
        stem(m, ops, stream, slot);
}
