/* The layout of a slot's memory of ResNets (resnet.h). */
#include "worker/model/resnet.h"

#include "base/extremes.h"
#include "base/sample.h"

static int64_t outputs_of(const struct dpt_resnet_layer *layer)
{
    return layer->side_out * layer->side_out * layer->out;
}

/* The elements of the stem's output for one image. */
static int64_t stem_outputs(const struct dpt_resnet *m)
{
    return m->pooled_side * m->pooled_side * m->stem.out;
}

static struct dpt_resnet_layer_saved carve_layer(const struct dpt_resnet *m,
                                                 const struct dpt_slot *slot,
                                                 const struct dpt_resnet_layer *layer, bool relu,
                                                 struct dpt_carver *carver)
{
    struct dpt_resnet_layer_saved saved = {0};
    saved.conv = dpt_carve(carver, m->base.dtype, slot->b * outputs_of(layer));
    saved.mean = dpt_carve(carver, DPT_F32, layer->out);
    saved.rstd = dpt_carve(carver, DPT_F32, layer->out);
    saved.var = dpt_carve(carver, DPT_F32, layer->out);
    if (relu)
        saved.relu = dpt_carve(carver, m->base.dtype, slot->b * outputs_of(layer));
    return saved;
}

struct dpt_resnet_saved dpt_resnet_saved(const struct dpt_resnet *m, const struct dpt_slot *slot,
                                         size_t *ret_bytes)
{
    const enum dpt_dtype dtype = m->base.dtype;
    const int64_t pixels = m->side * m->side * DPT_SAMPLE_CHANNELS;
    struct dpt_carver carver = {slot->saved, 0};
    struct dpt_resnet_saved saved = {0};
    int64_t largest = stem_outputs(m);
    for (int i = 0; i < m->n_blocks; i++)
        largest = dpt_max_i64(largest, outputs_of(&m->blocks[i].path[m->blocks[i].n_path - 1]));
    for (int i = 0; i < 2; i++)
        saved.dstream[i] = dpt_carve(&carver, dtype, slot->b * largest);
    if (dtype != DPT_F32)
        saved.image = dpt_carve(&carver, dtype, slot->b * pixels);
    saved.stem = carve_layer(m, slot, &m->stem, true, &carver);
    if (m->pools) {
        saved.pooled = dpt_carve(&carver, dtype, slot->b * stem_outputs(m));
        saved.pool_taken = dpt_carve(&carver, DPT_F32, (slot->b * stem_outputs(m) + 3) / 4);
    }
    if (ret_bytes != NULL)
        *ret_bytes = carver.at;
    return saved;
}

struct dpt_resnet_block_saved dpt_resnet_block_saved(const struct dpt_resnet *m,
                                                     const struct dpt_slot *slot, int block,
                                                     size_t *ret_bytes)
{
    size_t stem_bytes;
    const struct dpt_resnet_saved stem = dpt_resnet_saved(m, slot, &stem_bytes);
    struct dpt_carver carver = {slot->saved, stem_bytes};
    const void *x = m->pools ? stem.pooled : stem.stem.relu;
    struct dpt_resnet_block_saved saved = {0};
    for (int i = 0; i <= block; i++) {
        const struct dpt_resnet_block *of = &m->blocks[i];
        saved = (struct dpt_resnet_block_saved){.x = x};
        for (int k = 0; k < of->n_path; k++)
            saved.path[k] = carve_layer(m, slot, &of->path[k], true, &carver);
        if (of->projects)
            saved.shortcut = carve_layer(m, slot, &of->shortcut, false, &carver);
        x = saved.path[of->n_path - 1].relu;
    }
    if (ret_bytes != NULL)
        *ret_bytes = carver.at;
    return saved;
}

struct dpt_resnet_scratch dpt_resnet_scratch(const struct dpt_resnet *m,
                                             const struct dpt_slot *slot, size_t *ret_bytes)
{
    struct dpt_carver carver = {slot->scratch, 0};
    int64_t largest = dpt_max_i64(outputs_of(&m->stem), m->features);
    for (int i = 0; i < m->n_blocks; i++) {
        const struct dpt_resnet_block *block = &m->blocks[i];
        for (int k = 0; k < block->n_path; k++)
            largest = dpt_max_i64(largest, outputs_of(&block->path[k]));
    }
    struct dpt_resnet_scratch scratch;
    scratch.a = dpt_carve(&carver, m->base.dtype, slot->b * largest);
    scratch.b = dpt_carve(&carver, m->base.dtype, slot->b * largest);
    if (ret_bytes != NULL)
        *ret_bytes = carver.at;
    return scratch;
}

const void *dpt_resnet_images(const struct dpt_unit_call *call)
{
    return call->model->dtype == DPT_F32
               ? call->slot->batch.part[DPT_SAMPLE_INPUT]
               : dpt_resnet_saved(dpt_resnet_of(call), call->slot, NULL).image;
}

struct dpt_windows dpt_resnet_windows(const struct dpt_resnet_layer *layer, int64_t b)
{
    return (struct dpt_windows){b, layer->side_in, layer->side_in, layer->kernel, layer->stride};
}

struct dpt_windows dpt_resnet_pool_windows(const struct dpt_resnet *m, int64_t b)
{
    return (struct dpt_windows){b, m->stem.side_out, m->stem.side_out, DPT_RESNET_POOL_KERNEL,
                                DPT_RESNET_POOL_STRIDE};
}
