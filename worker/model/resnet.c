/* The ResNet family: its table of parameters (resnet.h). Names, order and initial weights are
 * torchvision's: convolutions as in He et al. 2015 ("kaiming", by the fan-out), the head as
 * nn.Linear. */
#include "worker/model/resnet.h"

#include "base/sample.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    END_UNITS = 2,  /* stem and head */
    END_TENSORS = 2 /* of the head: weight and bias */
};

static const struct dpt_param_rule one = {false, DPT_INIT_ONE, 0.0f, false};
static const struct dpt_param_rule zero = {false, DPT_INIT_ZERO, 0.0f, false};
static const struct dpt_param_rule running_mean = {false, DPT_INIT_ZERO, 0.0f, true};
static const struct dpt_param_rule running_var = {false, DPT_INIT_ONE, 0.0f, true};

/* ---- the table ---- */

/* The input of the next layer: its channels, and the pixels of an image's side. */
struct place {
    int64_t channels, side;
};

/* Appends "<prefix><conv>.weight" and "<prefix><norm>.…", and sets `at` to the layer's output. */
static struct dpt_resnet_layer add_layer(struct dpt_resnet *m, const char *prefix, const char *conv,
                                         const char *norm, struct dpt_resnet_layer layer,
                                         struct place *at)
{
    const double fan_out = (double)(layer.out * layer.kernel * layer.kernel);
    const struct dpt_param_rule kaiming = {true, DPT_INIT_NORMAL, (float)sqrt(2.0 / fan_out),
                                           false};
    const struct dpt_shape channels = {{layer.out}};
    char weight[DPT_PARAM_NAME_BYTES], of_norm[DPT_PARAM_NAME_BYTES];
    layer.first_param = m->base.n_params;
    layer.in = at->channels;
    layer.side_in = at->side;
    layer.side_out = dpt_windows_along(at->side, layer.stride);
    (void)snprintf(weight, sizeof weight, "%s%s.", prefix, conv);
    (void)snprintf(of_norm, sizeof of_norm, "%s%s.", prefix, norm);
    dpt_table_add(&m->base, weight, "weight",
                  (struct dpt_shape){{layer.out, layer.in, layer.kernel, layer.kernel}}, kaiming);
    dpt_table_add(&m->base, of_norm, "weight", channels, one);
    dpt_table_add(&m->base, of_norm, "bias", channels, zero);
    dpt_table_add(&m->base, of_norm, "running_mean", channels, running_mean);
    dpt_table_add(&m->base, of_norm, "running_var", channels, running_var);
    *at = (struct place){layer.out, layer.side_out};
    return layer;
}

static void add_stem(struct dpt_resnet *m, const struct dpt_config *config, struct place *at)
{
    const bool large = config->model.stem == DPT_STEM_IMAGENET;
    const struct dpt_resnet_layer layer = {
        .out = config->model.width, .kernel = large ? 7 : 3, .stride = large ? 2 : 1};
    dpt_table_begin_unit(&m->base, "stem");
    m->stem = add_layer(m, "", "conv1", "bn1", layer, at);
    dpt_table_end_unit(&m->base);
    m->pools = large;
    if (m->pools)
        at->side = dpt_windows_along(at->side, DPT_RESNET_POOL_STRIDE);
    m->pooled_side = at->side;
}

/* Block `index` of stage `stage`, both from 0. */
static void resnet_add_block(struct dpt_resnet *m, const struct dpt_config *config, int stage,
                             int index, struct place *at)
{
    const bool bottleneck = config->model.block == DPT_RESIDUAL_BLOCK_BOTTLENECK;
    const int64_t width = (int64_t)config->model.width << stage;
    const int64_t stride = stage > 0 && index == 0 ? 2 : 1;
    const struct dpt_resnet_layer basic[] = {{.out = width, .kernel = 3, .stride = stride},
                                             {.out = width, .kernel = 3, .stride = 1}};
    const struct dpt_resnet_layer deep[] = {
        {.out = width, .kernel = 1, .stride = 1},
        {.out = width, .kernel = 3, .stride = stride},
        {.out = width * DPT_BOTTLENECK_EXPANSION, .kernel = 1, .stride = 1}};
    struct dpt_resnet_block *block = &m->blocks[m->n_blocks++];
    struct place begin = *at;
    char unit[32], prefix[sizeof unit + 1];
    (void)snprintf(unit, sizeof unit, "layer%d.%d", stage + 1, index);
    (void)snprintf(prefix, sizeof prefix, "%s.", unit);
    dpt_table_begin_unit(&m->base, unit);
    block->n_path = bottleneck ? 3 : 2;
    for (int i = 0; i < block->n_path; i++) {
        char conv[16], norm[16];
        (void)snprintf(conv, sizeof conv, "conv%d", i + 1);
        (void)snprintf(norm, sizeof norm, "bn%d", i + 1);
        block->path[i] = add_layer(m, prefix, conv, norm, bottleneck ? deep[i] : basic[i], at);
    }
    block->projects = stride > 1 || begin.channels != at->channels;
    if (block->projects)
        block->shortcut = add_layer(
            m, prefix, "downsample.0", "downsample.1",
            (struct dpt_resnet_layer){.out = at->channels, .kernel = 1, .stride = stride}, &begin);
    dpt_table_end_unit(&m->base);
}

static void add_head(struct dpt_resnet *m, const struct place *at)
{
    const float bound = (float)(1.0 / sqrt((double)at->channels));
    const struct dpt_param_rule weight = {true, DPT_INIT_UNIFORM, bound, false};
    const struct dpt_param_rule bias = {false, DPT_INIT_UNIFORM, bound, false};
    m->features = at->channels;
    m->last_side = at->side;
    m->fc_weight = m->base.n_params;
    dpt_table_begin_unit(&m->base, "head");
    dpt_table_add(&m->base, "fc.", "weight", (struct dpt_shape){{m->base.labels, at->channels}},
                  weight);
    dpt_table_add(&m->base, "fc.", "bias", (struct dpt_shape){{m->base.labels}}, bias);
    dpt_table_end_unit(&m->base);
}

/* Assigns the dstream buffers from the head backwards: a block with a shortcut reads the gradient
 * from one buffer and writes to the other. */
static void place_gradients(struct dpt_resnet *m)
{
    int at = 0;
    for (int i = m->n_blocks - 1; i >= 0; i--) {
        m->blocks[i].dy = at;
        at = m->blocks[i].projects ? 1 - at : at;
        m->blocks[i].dx = at;
    }
}

static void resnet_add_units(struct dpt_resnet *m, const struct dpt_config *config)
{
    const struct dpt_config_steps *stages = &config->model.stages;
    struct place at = {DPT_SAMPLE_CHANNELS, m->side};
    add_stem(m, config, &at);
    for (int stage = 0; stage < stages->n; stage++)
        for (int i = 0; i < stages->step[stage]; i++)
            resnet_add_block(m, config, stage, i, &at);
    add_head(m, &at);
    place_gradients(m);
    DPT_ASSERT(m->base.n_units == m->base.units_max && m->base.n_params <= m->base.params_max);
}

/* The most layers: the stem, the layers of all paths, and a shortcut for the first block of each
 * stage. */
static int layers_max(const struct dpt_config *config)
{
    const int path = config->model.block == DPT_RESIDUAL_BLOCK_BOTTLENECK ? 3 : 2;
    return 1 + config->model.n_layer * path + (int)config->model.stages.n;
}

static enum dpt_status resnet_create(const struct dpt_config *config, struct dpt_model **ret,
                                     struct dpt_err *err)
{
    const int blocks = config->model.n_layer;
    struct dpt_resnet *m = calloc(1, sizeof *m + (size_t)blocks * sizeof *m->blocks);
    if (m == NULL)
        return dpt_fail_nomem(err, "model of %d blocks", blocks);
    m->base.kind = &dpt_resnet_kind;
    m->base.labels = config->model.labels;
    m->base.score_biases = 1;
    m->base.context = 1;
    m->base.dtype = dpt_dtype_of(config->train.precision);
    m->side = config->data.image_size;
    const enum dpt_status status = dpt_table_init(
        &m->base, blocks + END_UNITS, layers_max(config) * DPT_RESNET_TENSORS + END_TENSORS, err);
    if (status != DPT_OK) {
        free(m);
        return status;
    }
    resnet_add_units(m, config);
    *ret = &m->base;
    return DPT_OK;
}

static size_t resnet_saved_bytes(const struct dpt_model *model, int64_t b, int64_t t)
{
    const struct dpt_resnet *m = (const struct dpt_resnet *)model;
    const struct dpt_slot slot = {.b = b, .t = t};
    size_t bytes;
    (void)dpt_resnet_block_saved(m, &slot, m->n_blocks - 1, &bytes);
    return bytes;
}

static size_t resnet_scratch_bytes(const struct dpt_model *model, int64_t b, int64_t t)
{
    const struct dpt_slot slot = {.b = b, .t = t};
    size_t bytes;
    (void)dpt_resnet_scratch((const struct dpt_resnet *)model, &slot, &bytes);
    return bytes;
}

/* ---- packing ---- */

/* The layer whose convolution has weight `param`; NULL: `param` is not the weight of a
 * convolution. */
static const struct dpt_resnet_layer *layer_of(const struct dpt_resnet *m, int param)
{
    const int unit = m->base.params[param].unit;
    if (unit == 0)
        return param == m->stem.first_param ? &m->stem : NULL;
    if (unit > m->n_blocks)
        return NULL;
    const struct dpt_resnet_block *block = &m->blocks[unit - 1];
    for (int i = 0; i < block->n_path; i++)
        if (block->path[i].first_param == param)
            return &block->path[i];
    return block->projects && block->shortcut.first_param == param ? &block->shortcut : NULL;
}

static bool resnet_packing(const struct dpt_model *model, int param, struct dpt_pack *ret)
{
    const struct dpt_resnet *m = (const struct dpt_resnet *)model;
    const struct dpt_resnet_layer *layer = layer_of(m, param);
    if (param == m->fc_weight)
        *ret = (struct dpt_pack){.kind = DPT_PACK_HEAD,
                                 .rows = model->labels,
                                 .cols = m->features,
                                 .dtype = model->dtype};
    else if (layer != NULL)
        *ret = (struct dpt_pack){.kind = DPT_PACK_CONV,
                                 .rows = layer->out,
                                 .cols = layer->in * layer->kernel * layer->kernel,
                                 .dtype = model->dtype,
                                 .kernel = layer->kernel,
                                 .stride = layer->stride};
    return param == m->fc_weight || layer != NULL;
}

static bool resnet_windows(const struct dpt_model *model, int param, int64_t b,
                           struct dpt_windows *ret)
{
    const struct dpt_resnet_layer *layer = layer_of((const struct dpt_resnet *)model, param);
    if (layer != NULL)
        *ret = dpt_resnet_windows(layer, b);
    return layer != NULL;
}

const struct dpt_model_kind dpt_resnet_kind = {
    .name = "resnet",
    .create = resnet_create,
    .saved_bytes = resnet_saved_bytes,
    .scratch_bytes = resnet_scratch_bytes,
    .packing = resnet_packing,
    .windows = resnet_windows,
    .forward = dpt_resnet_forward,
    .backward = dpt_resnet_backward,
};
