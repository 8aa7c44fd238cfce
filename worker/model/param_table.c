/* The table of parameters and units (kind.h): names, shapes and places in the flat vector. */
#include "worker/model/kind.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum dpt_dtype dpt_dtype_of(enum dpt_precision precision)
{
    static const enum dpt_dtype dtypes[] = {[DPT_PRECISION_FP32] = DPT_F32,
                                            [DPT_PRECISION_BF16] = DPT_BF16,
                                            [DPT_PRECISION_FP16] = DPT_F16,
                                            [DPT_PRECISION_TF32] = DPT_F32};
    return dtypes[precision];
}

enum dpt_status dpt_table_init(struct dpt_model *model, int units_max, int params_max,
                               struct dpt_err *err)
{
    if (units_max > DPT_UNITS_MAX || params_max > DPT_PARAMS_MAX)
        return dpt_fail(err, DPT_ECONFIG,
                        "model of %d units and %d tensors: at most %d and %d; choose fewer layers",
                        units_max, params_max, DPT_UNITS_MAX, DPT_PARAMS_MAX);
    model->units = calloc((size_t)units_max, sizeof *model->units);
    model->params = calloc((size_t)params_max, sizeof *model->params);
    if (model->units == NULL || model->params == NULL) {
        dpt_table_fini(model);
        return dpt_fail_nomem(err, "table of %d tensors", params_max);
    }
    model->units_max = units_max;
    model->params_max = params_max;
    return DPT_OK;
}

void dpt_table_fini(struct dpt_model *model)
{
    free(model->units);
    free(model->params);
    model->units = NULL;
    model->params = NULL;
}

static int64_t table_round_up(int64_t n, int64_t to)
{
    return (n + to - 1) / to * to;
}

void dpt_table_begin_unit(struct dpt_model *model, const char *name)
{
    DPT_ASSERT(model->n_units < model->units_max);
    struct dpt_unit *unit = &model->units[model->n_units++];
    const int written = snprintf(unit->name, sizeof unit->name, "%s", name);
    DPT_ASSERT(written > 0 && (size_t)written < sizeof unit->name);
    unit->first_param = model->n_params;
    unit->n_params = 0;
    unit->borrows = -1;
    unit->offset = model->flat_numel;
}

void dpt_table_end_unit(struct dpt_model *model)
{
    struct dpt_unit *unit = &model->units[model->n_units - 1];
    unit->numel = table_round_up(model->flat_numel - unit->offset, DPT_BLOCK);
    model->flat_numel = unit->offset + unit->numel;
}

void dpt_table_add(struct dpt_model *model, const char *prefix, const char *name,
                   struct dpt_shape shape, struct dpt_param_rule rule)
{
    DPT_ASSERT(model->n_params < model->params_max && model->n_units > 0 && shape.dim[0] > 0);
    struct dpt_param *param = &model->params[model->n_params++];
    const int written = snprintf(param->name, sizeof param->name, "%s%s", prefix, name);
    DPT_ASSERT(written > 0 && (size_t)written < sizeof param->name);
    param->unit = model->n_units - 1;
    param->offset = table_round_up(model->flat_numel, DPT_PARAM_ALIGN);
    param->numel = 1;
    while (param->ndim < DPT_PARAM_NDIM_MAX && shape.dim[param->ndim] > 0) {
        param->dim[param->ndim] = shape.dim[param->ndim];
        param->numel *= param->dim[param->ndim++];
    }
    DPT_ASSERT(!(rule.decay && rule.averaged));
    param->decay = rule.decay;
    param->averaged = rule.averaged;
    param->init = rule.init;
    param->init_std = rule.std;
    model->units[param->unit].n_params++;
    model->flat_numel = param->offset + param->numel;
    if (!rule.averaged)
        model->param_count += param->numel;
}

/* ---- queries (model.h) ---- */

int dpt_model_n_params(const struct dpt_model *model)
{
    return model->n_params;
}

const struct dpt_param *dpt_model_param(const struct dpt_model *model, int i)
{
    DPT_ASSERT(i >= 0 && i < model->n_params);
    return &model->params[i];
}

struct dpt_span dpt_param_span(const struct dpt_param *param)
{
    return (struct dpt_span){param->offset, param->offset + param->numel};
}

struct dpt_span dpt_span_overlap(struct dpt_span a, struct dpt_span b)
{
    return (struct dpt_span){a.first > b.first ? a.first : b.first, a.end < b.end ? a.end : b.end};
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

int64_t dpt_model_context(const struct dpt_model *model)
{
    return model->context;
}
