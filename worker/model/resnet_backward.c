/* ResNet's backward (resnet.h). saved.dstream has the gradient of the values between units. The
 * head writes it, each block computes the gradient of its input from the gradient of its output,
 * and the stem reads it. A block without a shortcut layer works in place. */
#include "worker/model/resnet.h"

static void conv_backward(const struct dpt_unit_call *call, const struct dpt_resnet_layer *layer,
                          const void *x, const void *dy, void *dx, bool add_dx)
{
    const int weight = layer->first_param + DPT_RESNET_WEIGHT;
    call->ops->conv_backward(call->stream, &(struct dpt_conv_backward){
                                               .of = dpt_resnet_windows(layer, call->slot->b),
                                               .in = layer->in,
                                               .out = layer->out,
                                               .dtype = call->model->dtype,
                                               .x = x,
                                               .weight = dpt_slot_weight(call, weight),
                                               .dy = dy,
                                               .dx = dx,
                                               .add_dx = add_dx,
                                               .dw = dpt_slot_grad(call, weight),
                                               .accumulate = call->slot->accumulate,
                                               .packed = dpt_slot_packed(call, weight),
                                           });
    dpt_slot_announce(call->slot, weight, 1);
}

/* Backward of norm_forward (resnet_forward.c). */
static void norm_backward(const struct dpt_unit_call *call, const struct dpt_resnet_layer *layer,
                          const struct dpt_resnet_layer_saved *saved, const void *dy, void *dx,
                          void *dresidual)
{
    float *grad[DPT_RESNET_TENSORS];
    for (int i = 0; i < DPT_RESNET_TENSORS; i++)
        grad[i] = dpt_slot_grad(call, layer->first_param + i);
    call->ops->batchnorm_backward(
        call->stream, &(struct dpt_batchnorm_backward){
                          .n = call->slot->b * layer->side_out * layer->side_out,
                          .c = layer->out,
                          .dtype = call->model->dtype,
                          .x = saved->conv,
                          .gamma = dpt_slot_weight(call, layer->first_param + DPT_RESNET_GAMMA),
                          .mean = saved->mean,
                          .rstd = saved->rstd,
                          .var = saved->var,
                          .y = saved->relu,
                          .dy = dy,
                          .dx = dx,
                          .dresidual = dresidual,
                          .dgamma = grad[DPT_RESNET_GAMMA],
                          .dbeta = grad[DPT_RESNET_BETA],
                          .dmean = grad[DPT_RESNET_RUNNING_MEAN],
                          .dvar = grad[DPT_RESNET_RUNNING_VAR],
                          .share = call->slot->share,
                          .accumulate = call->slot->accumulate,
                      });
}

/* Announces the norm's parameters. Call it after all later parameters of the table have been
 * announced. */
static void announce_norm(const struct dpt_slot *slot, const struct dpt_resnet_layer *layer)
{
    dpt_slot_announce(slot, layer->first_param + DPT_RESNET_GAMMA,
                      DPT_RESNET_TENSORS - DPT_RESNET_GAMMA);
}

static void head_backward(const struct dpt_unit_call *call)
{
    const struct dpt_resnet *m = dpt_resnet_of(call);
    const struct dpt_slot *slot = call->slot;
    struct dpt_avgpool pool = dpt_resnet_average(call);
    struct dpt_head_loss loss = dpt_resnet_loss(call);
    loss.dloss = slot->dloss;
    loss.dx = dpt_resnet_scratch(m, slot, NULL).b;
    loss.dw = dpt_slot_grad(call, m->fc_weight);
    loss.dbias = dpt_slot_grad(call, m->fc_weight + 1);
    loss.accumulate = slot->accumulate;
    call->ops->avgpool_forward(call->stream, &pool);
    call->ops->head_loss(call->stream, &loss);
    dpt_slot_announce(slot, m->fc_weight, 2);
    pool.in = loss.dx;
    pool.out = dpt_resnet_saved(m, slot, NULL).dstream[m->blocks[m->n_blocks - 1].dy];
    call->ops->avgpool_backward(call->stream, &pool);
}

/* The last norm's backward overwrites dy with dy behind its relu, which is the gradient of the
 * shortcut. */
static void block_backward(const struct dpt_unit_call *call)
{
    const struct dpt_resnet *m = dpt_resnet_of(call);
    const struct dpt_slot *slot = call->slot;
    const struct dpt_resnet_block *of = &m->blocks[call->unit - 1];
    const struct dpt_resnet_saved shared = dpt_resnet_saved(m, slot, NULL);
    const struct dpt_resnet_block_saved saved =
        dpt_resnet_block_saved(m, slot, call->unit - 1, NULL);
    const struct dpt_resnet_scratch scratch = dpt_resnet_scratch(m, slot, NULL);
    void *const dx = shared.dstream[of->dx], *const dy = shared.dstream[of->dy];
    const int last = of->n_path - 1;
    norm_backward(call, &of->path[last], &saved.path[last], dy, scratch.a, dy);
    if (of->projects) {
        norm_backward(call, &of->shortcut, &saved.shortcut, dy, scratch.b, NULL);
        announce_norm(slot, &of->shortcut);
        conv_backward(call, &of->shortcut, saved.x, scratch.b, dx, false);
    }
    announce_norm(slot, &of->path[last]);
    for (int i = last; i > 0; i--) {
        conv_backward(call, &of->path[i], saved.path[i - 1].relu, scratch.a, scratch.b, false);
        norm_backward(call, &of->path[i - 1], &saved.path[i - 1], scratch.b, scratch.a, NULL);
        announce_norm(slot, &of->path[i - 1]);
    }
    conv_backward(call, &of->path[0], saved.x, scratch.a, dx, true);
}

static void stem_backward(const struct dpt_unit_call *call)
{
    const struct dpt_resnet *m = dpt_resnet_of(call);
    const struct dpt_slot *slot = call->slot;
    const struct dpt_resnet_saved saved = dpt_resnet_saved(m, slot, NULL);
    const struct dpt_resnet_scratch scratch = dpt_resnet_scratch(m, slot, NULL);
    const void *dy = saved.dstream[m->blocks[0].dx];
    if (m->pools) {
        call->ops->maxpool_backward(call->stream, &(struct dpt_maxpool){
                                                      .of = dpt_resnet_pool_windows(m, slot->b),
                                                      .c = m->stem.out,
                                                      .dtype = m->base.dtype,
                                                      .taken = saved.pool_taken,
                                                      .dy = dy,
                                                      .dx = scratch.b,
                                                  });
        dy = scratch.b;
    }
    norm_backward(call, &m->stem, &saved.stem, dy, scratch.a, NULL);
    announce_norm(slot, &m->stem);
    conv_backward(call, &m->stem, dpt_resnet_images(call), scratch.a, NULL, false);
}

void dpt_resnet_backward(const struct dpt_unit_call *call)
{
    if (call->unit == dpt_resnet_of(call)->n_blocks + 1)
        head_backward(call);
    else if (call->unit > 0)
        block_backward(call);
    else
        stem_backward(call);
}
