/* Forward and backward of the model's units, on the host or on the device. */
#include "base/strategy_traits.h"
#include "worker/train/device/rank_device.h"
#include "worker/train/device/unit_graphs.h"

struct dpt_slot rank_slot(const struct dpt_rank *r, enum dpt_mode mode)
{
    const struct rank_device *d = r->device;
    return (struct dpt_slot){.mode = mode,
                             .b = r->config->train.micro_batch,
                             .t = r->form.positions,
                             .base = dpt_frozen_base_weights(d->base),
                             .base_packed = dpt_frozen_base_packed(d->base),
                             .saved = d->saved,
                             .scratch = d->scratch,
                             .losses = d->losses};
}

void rank_begin_slot(struct dpt_rank *r, const struct dpt_slot *slot)
{
    if (r->device->device_model)
        dpt_device_model_begin_slot(r->device->device_model, slot);
}

void rank_forward(struct dpt_rank *r, int unit, const struct dpt_slot *slot)
{
    if (r->device->device_model)
        dpt_device_model_forward(r->device->device_model, unit, slot);
    else
        dpt_model_forward(r->model, r->device->ops, r->device->stream, unit, slot);
}

enum dpt_status rank_backward(struct dpt_rank *r, int unit, const struct dpt_slot *slot,
                              struct dpt_err *err)
{
    if (r->device->device_model)
        return dpt_device_model_backward(r->device->device_model, r->device->ops, r->device->stream,
                                         unit, slot, err);
    dpt_model_backward(r->model, r->device->ops, r->device->stream, unit, slot);
    return DPT_OK;
}

enum dpt_status rank_end_slot(struct dpt_rank *r, const struct dpt_slot *slot, struct dpt_err *err)
{
    if (r->device->device_model)
        DPT_TRY(dpt_device_model_end_slot(r->device->device_model, slot, err));
    return dpt_stream_sync(r->device->stream, err);
}

void rank_forget_weights(struct dpt_rank *r)
{
    if (r->device->device_model)
        dpt_device_model_forget_weights(r->device->device_model);
}

/* ---- preparation of the ops on the host ---- */

/* Calls all ops of a slot, with the packed weights of slot->packed. */
static void prepare_slot(const struct dpt_rank *r, struct dpt_slot *slot)
{
    const int n_units = dpt_model_n_units(r->model);
    for (int u = 0; u < n_units; u++)
        dpt_model_forward(r->model, r->device->ops, r->device->stream, u, slot);
    /* The head computes losses in forward only when the run evaluates. */
    if (dpt_config_evaluates(r->config)) {
        slot->mode = DPT_MODE_EVAL;
        dpt_model_forward(r->model, r->device->ops, r->device->stream, n_units - 1, slot);
        slot->mode = DPT_MODE_TRAIN;
    }
    const bool order_open = dpt_strategy_traits(r->config).order_open;
    for (int accumulate = 0; accumulate < 2; accumulate++) {
        slot->accumulate = accumulate != 0;
        /* Strategies add gradients in this way (lane_sums.c). */
        slot->parts_apart = accumulate && !order_open;
        for (int u = n_units - 1; u >= 0; u--)
            dpt_model_backward(r->model, r->device->ops, r->device->stream, u, slot);
    }
}

enum dpt_status rank_prepare_ops(struct dpt_rank *r, struct dpt_err *err)
{
    /* Ops that are being prepared read no memory, so the addresses may be NULL. */
    const void *weights[DPT_UNITS_MAX] = {NULL}, *packed[DPT_PARAMS_MAX] = {NULL};
    float *grads[DPT_UNITS_MAX] = {NULL};
    struct dpt_unit_graphs_announced ignored = {.first = 1};
    struct dpt_slot slot = rank_slot(r, DPT_MODE_TRAIN);
    slot.weights = weights;
    slot.grads = grads;
    slot.announce = dpt_unit_graphs_note_announced;
    slot.announce_ctx = &ignored;
    dpt_stream_prepare_begin(r->device->stream);
    prepare_slot(r, &slot);
    for (int i = 0; i < dpt_model_n_params(r->model); i++) {
        struct dpt_pack pack;
        /* Any address that is not NULL. */
        packed[i] = dpt_model_packing(r->model, i, &pack) ? r : NULL;
    }
    slot.packed = packed;
    prepare_slot(r, &slot);
    return dpt_stream_prepare_end(r->device->stream, err);
}
