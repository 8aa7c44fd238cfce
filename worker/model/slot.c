/* The places of a slot's tensors (kind.h). */
#include "worker/model/kind.h"

/* Stands for every tensor where there is no memory (preparing mode); never read nor written. */
static float nowhere[16];

void *dpt_carve(struct dpt_carver *carver, enum dpt_dtype dtype, int64_t n)
{
    void *piece = carver->base == NULL ? (void *)nowhere : carver->base + carver->at;
    const size_t bytes = (size_t)n * dpt_dtype_bytes(dtype);
    carver->at += (bytes + 63) / 64 * 64;
    return piece;
}

/* A parameter's offset from the start of its unit. */
static int64_t place_in_unit(const struct dpt_model *model, const struct dpt_param *param)
{
    return param->offset - model->units[param->unit].offset;
}

/* The call whose slot has the parameter's weights and gradients; *param becomes the index in that
 * call's model. With adapters the labels' head belongs to the adapters' slot. All other weights of
 * the base's slot are frozen. */
static const struct dpt_unit_call *owner_of(const struct dpt_unit_call *call, int *param)
{
    const struct dpt_adapters *adapters = call->slot->adapters;
    if (adapters == NULL || *param != dpt_model_score(call->model))
        return call;
    *param = dpt_model_score(adapters->own.model);
    return &adapters->own;
}

const void *dpt_slot_weight(const struct dpt_unit_call *call, int param)
{
    const struct dpt_unit_call *owner = owner_of(call, &param);
    const struct dpt_param *p = &owner->model->params[param];
    const char *unit = owner->slot->weights == NULL ? NULL : owner->slot->weights[p->unit];
    const size_t at = (size_t)place_in_unit(owner->model, p) * dpt_dtype_bytes(owner->model->dtype);
    return unit == NULL ? (const void *)nowhere : unit + at;
}

const void *dpt_slot_packed(const struct dpt_unit_call *call, int param)
{
    return call->slot->packed ? call->slot->packed[param] : NULL;
}

float *dpt_slot_grad(const struct dpt_unit_call *call, int param)
{
    const struct dpt_unit_call *owner = owner_of(call, &param);
    if (owner->slot->adapters != NULL)
        return NULL;
    const struct dpt_param *p = &owner->model->params[param];
    float *unit = owner->slot->grads == NULL ? NULL : owner->slot->grads[p->unit];
    return unit == NULL ? nowhere : unit + place_in_unit(owner->model, p);
}

void dpt_slot_announce(const struct dpt_slot *slot, int first, int n)
{
    for (int param = first + n - 1; slot->announce != NULL && param >= first; param--)
        slot->announce(slot->announce_ctx, param);
}

struct dpt_dropout dpt_slot_dropout(const struct dpt_slot *slot, double p, int site)
{
    struct dpt_dropout dropout = {0};
    if (slot->mode == DPT_MODE_TRAIN && p > 0.0) {
        dropout.p = (float)p;
        dropout.key = dpt_rng_key(slot->seed, DPT_RNG_DROPOUT, (uint64_t)slot->step,
                                  (uint64_t)slot->slot, (uint64_t)site);
    }
    return dropout;
}

int64_t dpt_head_rows(const struct dpt_model *model, const struct dpt_slot *slot)
{
    return model->labels > 0 ? slot->b : slot->b * slot->t;
}

int64_t dpt_head_logits(const struct dpt_model *model)
{
    return model->labels > 0 ? model->labels : model->vocab;
}

static struct dpt_last_token last_token(const struct dpt_unit_call *call, int64_t c, const void *x,
                                        void *y)
{
    return (struct dpt_last_token){.b = call->slot->b,
                                   .t = call->slot->t,
                                   .c = c,
                                   .dtype = call->model->dtype,
                                   .lengths = call->slot->batch.part[DPT_SAMPLE_LENGTH],
                                   .x = x,
                                   .y = y};
}

const void *dpt_head_states(const struct dpt_unit_call *call, int64_t c, const void *x, void *to)
{
    if (call->model->labels == 0)
        return x;
    const struct dpt_last_token rows = last_token(call, c, x, to);
    call->ops->last_token_forward(call->stream, &rows);
    return to;
}

void dpt_head_spread(const struct dpt_unit_call *call, int64_t c, const void *dy, void *dx)
{
    const struct dpt_last_token rows = last_token(call, c, dy, dx);
    call->ops->last_token_backward(call->stream, &rows);
}

struct dpt_head_loss dpt_head_loss_of(const struct dpt_unit_call *call, int weight, const void *x)
{
    return (struct dpt_head_loss){
        .n = dpt_head_rows(call->model, call->slot),
        .c = call->model->params[weight].dim[1],
        .v = dpt_head_logits(call->model),
        .dtype = call->model->dtype,
        .x = x,
        .w = dpt_slot_weight(call, weight),
        .targets = call->slot->batch.part[DPT_SAMPLE_TARGET],
        .loss = call->slot->losses,
        .packed = dpt_slot_packed(call, weight),
    };
}
