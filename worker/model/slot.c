/* Where a slot's tensors lie (kind.h). */
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

/* Place of a parameter from its unit's start. */
static int64_t place_in_unit(const struct dpt_model *model, const struct dpt_param *param)
{
    return param->offset - model->units[param->unit].offset;
}

const void *dpt_slot_weight(const struct dpt_model *model, const struct dpt_slot *slot, int param)
{
    const struct dpt_adapters *adapters = slot->adapters;
    if (adapters != NULL && param == dpt_model_score(model))
        return dpt_slot_weight(adapters->model, adapters->slot, dpt_model_score(adapters->model));
    const struct dpt_param *p = &model->params[param];
    const char *unit = slot->weights == NULL ? NULL : slot->weights[p->unit];
    const size_t at = (size_t)place_in_unit(model, p) * dpt_dtype_bytes(model->dtype);
    return unit == NULL ? (const void *)nowhere : unit + at;
}

const void *dpt_slot_packed(const struct dpt_slot *slot, int param)
{
    return slot->packed ? slot->packed[param] : NULL;
}

float *dpt_slot_grad(const struct dpt_model *model, const struct dpt_slot *slot, int param)
{
    const struct dpt_adapters *adapters = slot->adapters;
    if (adapters != NULL && param != dpt_model_score(model))
        return NULL;
    if (adapters != NULL)
        return dpt_slot_grad(adapters->model, adapters->slot, dpt_model_score(adapters->model));
    const struct dpt_param *p = &model->params[param];
    float *unit = slot->grads == NULL ? NULL : slot->grads[p->unit];
    return unit == NULL ? nowhere : unit + place_in_unit(model, p);
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

static struct dpt_last_token last_token(const struct dpt_model *model, const struct dpt_slot *slot,
                                        int64_t c, const void *x, void *y)
{
    return (struct dpt_last_token){.b = slot->b,
                                   .t = slot->t,
                                   .c = c,
                                   .dtype = model->dtype,
                                   .lengths = slot->batch.part[DPT_SAMPLE_LENGTH],
                                   .x = x,
                                   .y = y};
}

const void *dpt_head_states(const struct dpt_model *model, const struct dpt_ops *ops,
                            struct dpt_stream *stream, const struct dpt_slot *slot, int64_t c,
                            const void *x, void *to)
{
    if (model->labels == 0)
        return x;
    const struct dpt_last_token rows = last_token(model, slot, c, x, to);
    ops->last_token_forward(stream, &rows);
    return to;
}

void dpt_head_spread(const struct dpt_model *model, const struct dpt_ops *ops,
                     struct dpt_stream *stream, const struct dpt_slot *slot, int64_t c,
                     const void *dy, void *dx)
{
    const struct dpt_last_token rows = last_token(model, slot, c, dy, dx);
    ops->last_token_backward(stream, &rows);
}

const float *dpt_decode_weight(const struct dpt_model *model, const struct dpt_decode *decode,
                               int param)
{
    const struct dpt_param *p = &model->params[param];
    return decode->weights[p->unit] + place_in_unit(model, p);
}
