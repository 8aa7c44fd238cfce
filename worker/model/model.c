/* Models by name, and the parts that are the same for every kind (model.h). */
#include "worker/model/model.h"

#include "worker/model/kind.h"

#include <stdlib.h>
#include <string.h>

static const struct dpt_model_kind *const kinds[] = {&dpt_gpt2_kind, &dpt_llama_kind,
                                                     &dpt_resnet_kind};
enum { KINDS = sizeof kinds / sizeof kinds[0] };

static const struct dpt_model_kind *kind_of(const struct dpt_config *config)
{
    for (int i = 0; i < KINDS; i++)
        if (strcmp(config->model.name, kinds[i]->name) == 0)
            return kinds[i];
    return NULL;
}

bool dpt_model_takes_any_context(const struct dpt_config *config)
{
    const struct dpt_model_kind *kind = kind_of(config);
    return kind != NULL && kind->any_context;
}

enum dpt_status dpt_model_create(const struct dpt_config *config, struct dpt_model **ret,
                                 struct dpt_err *err)
{
    const struct dpt_model_kind *kind = kind_of(config);
    struct dpt_model *model = NULL;
    if (kind != NULL) {
        DPT_TRY(kind->create(config, &model, err));
        if (config->train.lora.rank > 0)
            return dpt_lora_create(config, model, ret, err);
        *ret = model;
        return DPT_OK;
    }
    return dpt_fail(err, DPT_ECONFIG,
                    "model.name: no model '%s'; this version has '%s', '%s' and '%s'",
                    config->model.name, kinds[0]->name, kinds[1]->name, kinds[2]->name);
}

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

int dpt_model_n_params(const struct dpt_model *model)
{
    return model->n_params;
}

const struct dpt_param *dpt_model_param(const struct dpt_model *model, int i)
{
    DPT_ASSERT(i >= 0 && i < model->n_params);
    return &model->params[i];
}

int dpt_model_n_units(const struct dpt_model *model)
{
    return model->n_units;
}

const struct dpt_unit *dpt_model_unit(const struct dpt_model *model, int i)
{
    DPT_ASSERT(i >= 0 && i < model->n_units);
    return &model->units[i];
}

int64_t dpt_model_flat_numel(const struct dpt_model *model)
{
    return model->flat_numel;
}

int64_t dpt_model_param_count(const struct dpt_model *model)
{
    return model->param_count;
}

int dpt_model_vocab(const struct dpt_model *model)
{
    return model->vocab;
}

int dpt_model_labels(const struct dpt_model *model)
{
    return model->labels;
}

int dpt_model_score(const struct dpt_model *model)
{
    return model->labels > 0 ? model->n_params - 1 - model->score_biases : -1;
}

enum dpt_dtype dpt_model_dtype(const struct dpt_model *model)
{
    return model->dtype;
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

/* Elements [first, first + n) of a parameter. */
static void init_param(const struct dpt_param *param, int index, const struct dpt_ops *ops,
                       struct dpt_stream *stream, uint64_t seed, int64_t first, int64_t n,
                       float *dst)
{
    switch (param->init) {
    case DPT_INIT_ZERO:
        ops->fill(stream, n, 0.0f, dst);
        break;
    case DPT_INIT_ONE:
        ops->fill(stream, n, 1.0f, dst);
        break;
    case DPT_INIT_NORMAL:
        ops->fill_normal(
            stream, n,
            &(struct dpt_normal){dpt_rng_key(seed, DPT_RNG_INIT, (uint64_t)index, 0, 0),
                                 (uint64_t)first, 0.0f, param->init_std},
            dst);
        break;
    case DPT_INIT_UNIFORM:
        ops->fill_uniform(
            stream, n,
            &(struct dpt_uniform){dpt_rng_key(seed, DPT_RNG_INIT, (uint64_t)index, 0, 0),
                                  (uint64_t)first, param->init_std},
            dst);
        break;
    }
}

void dpt_model_init_range(const struct dpt_model *model, const struct dpt_ops *ops,
                          struct dpt_stream *stream, uint64_t seed, int64_t first, int64_t end,
                          float *dst)
{
    DPT_ASSERT(first >= 0 && first <= end && end <= model->flat_numel);
    int64_t done = first; /* what is no parameter's is padding */
    for (int i = 0; i < model->n_params && done < end; i++) {
        const struct dpt_param *param = &model->params[i];
        const int64_t stop = param->offset + param->numel;
        if (stop <= done)
            continue;
        const int64_t begin = param->offset > done ? param->offset : done;
        const int64_t padding = (begin < end ? begin : end) - done;
        if (padding > 0)
            ops->fill(stream, padding, 0.0f, dst + (done - first));
        done += padding;
        const int64_t n = (stop < end ? stop : end) - done;
        if (n > 0)
            init_param(param, i, ops, stream, seed, done - param->offset, n, dst + (done - first));
        done += n > 0 ? n : 0;
    }
    if (done < end)
        ops->fill(stream, end - done, 0.0f, dst + (done - first));
}

void dpt_model_init_weights(const struct dpt_model *model, const struct dpt_ops *ops,
                            struct dpt_stream *stream, uint64_t seed, float *flat)
{
    dpt_model_init_range(model, ops, stream, seed, 0, model->flat_numel, flat);
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
    return model->kind->packing(model, param, ret);
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
    model->kind->forward(model, ops, stream, unit, slot);
}

void dpt_model_backward(const struct dpt_model *model, const struct dpt_ops *ops,
                        struct dpt_stream *stream, int unit, const struct dpt_slot *slot)
{
    DPT_ASSERT(unit >= 0 && unit < model->n_units && slot->mode == DPT_MODE_TRAIN);
    DPT_ASSERT(slot->b > 0 && slot->t > 0 && slot->t <= model->context);
    model->kind->backward(model, ops, stream, unit, slot);
}

int64_t dpt_model_context(const struct dpt_model *model)
{
    return model->context;
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
