/* The functions that all kinds of models share: initial weights, checks, and calls of the kind
 * (model.h). */
#include "worker/model/model.h"

#include "worker/model/kind.h"

#include <stdlib.h>

void dpt_model_destroy(struct dpt_model **model)
{
    if (*model == NULL)
        return;
    if ((*model)->kind->fini != NULL)
        (*model)->kind->fini(*model);
    dpt_table_fini(*model);
    free(*model);
    *model = NULL;
}

size_t dpt_model_saved_bytes(const struct dpt_model *model, int64_t b, int64_t t)
{
    DPT_ASSERT(b > 0 && t > 0 && t <= model->context);
    return model->kind->saved_bytes(model, b, t);
}

size_t dpt_model_scratch_bytes(const struct dpt_model *model, int64_t b, int64_t t)
{
    DPT_ASSERT(b > 0 && t > 0 && t <= model->context);
    return model->kind->scratch_bytes(model, b, t);
}

/* Posts the initial values of elements `span` of the flat vector, which are of one parameter. */
static void init_param(const struct dpt_ops *ops, struct dpt_stream *stream,
                       const struct dpt_param *param, struct dpt_rng_key key, struct dpt_span span,
                       float *dst)
{
    const int64_t n = span.end - span.first;
    const uint64_t first = (uint64_t)(span.first - param->offset);
    const float std = param->init_std;
    switch (param->init) {
    case DPT_INIT_ZERO:
        break; /* dpt_model_init_range has written zeroes */
    case DPT_INIT_ONE:
        ops->fill(stream, n, 1.0f, dst);
        break;
    case DPT_INIT_NORMAL:
        ops->fill_normal(stream, n, &(struct dpt_normal){key, first, 0.0f, std}, dst);
        break;
    case DPT_INIT_UNIFORM:
        ops->fill_uniform(stream, n, &(struct dpt_uniform){key, first, std}, dst);
        break;
    }
}

void dpt_model_init_range(const struct dpt_model *model, const struct dpt_ops *ops,
                          struct dpt_stream *stream, uint64_t seed, struct dpt_span span,
                          float *dst)
{
    DPT_ASSERT(span.first >= 0 && span.first <= span.end && span.end <= model->flat_numel);
    if (span.first == span.end)
        return;
    ops->fill(stream, span.end - span.first, 0.0f, dst);
    for (int i = 0; i < model->n_params; i++) {
        const struct dpt_param *param = &model->params[i];
        const struct dpt_rng_key key = dpt_rng_key(seed, DPT_RNG_INIT, (uint64_t)i, 0, 0);
        const struct dpt_span part = dpt_span_overlap(span, dpt_param_span(param));
        if (part.first < part.end)
            init_param(ops, stream, param, key, part, dst + (part.first - span.first));
    }
}

void dpt_model_clear_gaps(const struct dpt_model *model, const struct dpt_ops *ops,
                          struct dpt_stream *stream, int unit, float *grads)
{
    const struct dpt_unit *u = dpt_model_unit(model, unit);
    int64_t done = u->offset;
    for (int i = u->first_param; i < u->first_param + u->n_params; i++) {
        const struct dpt_param *param = &model->params[i];
        if (param->offset > done)
            ops->fill(stream, param->offset - done, 0.0f, grads + (done - u->offset));
        done = param->offset + param->numel;
    }
    const int64_t end = u->offset + u->numel;
    if (end > done)
        ops->fill(stream, end - done, 0.0f, grads + (done - u->offset));
}

bool dpt_model_packing(const struct dpt_model *model, int param, struct dpt_pack *ret)
{
    DPT_ASSERT(param >= 0 && param < model->n_params);
    return model->kind->packing && model->kind->packing(model, param, ret);
}

bool dpt_model_windows(const struct dpt_model *model, int param, int64_t b, struct dpt_windows *ret)
{
    DPT_ASSERT(param >= 0 && param < model->n_params && b > 0);
    return model->kind->windows && model->kind->windows(model, param, b, ret);
}

void dpt_model_forward(const struct dpt_model *model, const struct dpt_ops *ops,
                       struct dpt_stream *stream, int unit, const struct dpt_slot *slot)
{
    DPT_ASSERT(unit >= 0 && unit < model->n_units);
    DPT_ASSERT(slot->b > 0 && slot->t > 0 && slot->t <= model->context);
    model->kind->forward(
        &(struct dpt_unit_call){model, ops, stream, slot, unit, slot->b * slot->t});
}

void dpt_model_backward(const struct dpt_model *model, const struct dpt_ops *ops,
                        struct dpt_stream *stream, int unit, const struct dpt_slot *slot)
{
    DPT_ASSERT(unit >= 0 && unit < model->n_units && slot->mode == DPT_MODE_TRAIN);
    DPT_ASSERT(slot->b > 0 && slot->t > 0 && slot->t <= model->context);
    model->kind->backward(
        &(struct dpt_unit_call){model, ops, stream, slot, unit, slot->b * slot->t});
}

size_t dpt_model_cache_bytes(const struct dpt_model *model)
{
    DPT_ASSERT(model->vocab > 0);
    return model->kind->cache_bytes(model);
}

size_t dpt_model_decode_bytes(const struct dpt_model *model, int64_t n)
{
    DPT_ASSERT(model->vocab > 0 && n > 0 && n <= model->context);
    return model->kind->decode_bytes(model, n);
}

void dpt_model_decode(const struct dpt_model *model, const struct dpt_ops *ops,
                      struct dpt_stream *stream, const struct dpt_decode *d)
{
    DPT_ASSERT(model->dtype == DPT_F32 && model->labels == 0);
    DPT_ASSERT(d->first >= 0 && d->n > 0 && d->first + d->n <= model->context);
    model->kind->decode(model, ops, stream, d);
}
