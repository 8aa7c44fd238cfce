/* The frozen weights of a run with adapters (frozen_base.h). */
#include "worker/train/device/frozen_base.h"

#include "worker/strategy/state/packed_weights.h"
#include "worker/weights/published.h"

#include <stdlib.h>
#include <string.h>

enum { MANY_SLOTS = 1 << 10, ROUNDED_BYTES = DPT_PUBLISHED_PART * (int)sizeof(float) };

struct dpt_frozen_base {
    struct dpt_device *device;
    void *memory; /* the base's flat vector, in the compute dtype */
    size_t bytes;
    const void **weights; /* [n_units] */
    struct dpt_packed_weights *packed;
    const void *const *forms; /* [n_params], in the memory of `packed`; NULL: not packed */
};

static char *place_of_element(const struct dpt_frozen_base *b, const struct dpt_model *model,
                              int64_t element)
{
    return (char *)b->memory + (size_t)element * dpt_dtype_bytes(dpt_model_dtype(model));
}

static enum dpt_status allocate_weights(struct dpt_frozen_base *b, const struct dpt_model *model,
                                        struct dpt_err *err)
{
    const int n_units = dpt_model_n_units(model);
    b->weights = calloc((size_t)n_units, sizeof *b->weights);
    if (!b->weights)
        return dpt_fail_nomem(err, "the base's weights");
    b->bytes = (size_t)dpt_model_flat_numel(model) * dpt_dtype_bytes(dpt_model_dtype(model));
    DPT_TRY(dpt_device_alloc_for(b->device, DPT_MEMORY_WEIGHTS, b->bytes, &b->memory, err));
    for (int u = 0; u < n_units; u++)
        b->weights[u] = place_of_element(b, model, dpt_model_unit(model, u)->offset);
    return DPT_OK;
}

/* ---- reading ---- */

struct reading {
    const struct dpt_frozen_base *b;
    const struct dpt_frozen_base_options *o;
    void *rounded; /* [DPT_PUBLISHED_PART] in the compute dtype, page-locked */
};

/* Rounds a part of a tensor and copies it to its place. */
static enum dpt_status copy_rounded_weights(void *ctx, int param, int64_t first, int64_t end,
                                            const float *values, struct dpt_err *err)
{
    const struct reading *r = ctx;
    const struct dpt_frozen_base_options *o = r->o;
    const struct dpt_model *model = dpt_model_base(o->model);
    const enum dpt_dtype dtype = dpt_model_dtype(model);
    o->host_ops->cast(o->host_stream, end - first, values, dtype, r->rounded);
    DPT_TRY(dpt_stream_sync(o->host_stream, err));
    dpt_device_ops(r->b->device)
        ->copy(o->stream, (size_t)(end - first) * dpt_dtype_bytes(dtype), r->rounded,
               place_of_element(r->b, model, dpt_model_param(model, param)->offset + first));
    return dpt_stream_sync(o->stream, err); /* waits, because the next part overwrites r->rounded */
}

/* Compares the hash with the run's. The folder may have changed since the worker hashed it and the
 * run agreed on the hash. */
static enum dpt_status check_hash(const struct dpt_config *config, struct dpt_hash128 hash,
                                  struct dpt_err *err)
{
    char hex[DPT_HASH_HEX_BYTES];
    dpt_hash128_hex(hash, hex);
    if (config->train.lora.base_hash[0] == '\0' ||
        dpt_config_check_base(config, config->model.init_from, hex, err) == DPT_OK)
        return DPT_OK;
    return dpt_wrap(err, DPT_ECORRUPT, "the folder was changed after this worker began");
}

static enum dpt_status read_weights(const struct dpt_frozen_base *b,
                                    const struct dpt_frozen_base_options *o, struct dpt_err *err)
{
    struct dpt_published *weights = NULL;
    struct dpt_hash128 hash;
    struct reading reading = {.b = b, .o = o};
    const struct dpt_published_sink sink = {copy_rounded_weights, &reading};
    DPT_TRY(dpt_device_alloc_host(b->device, ROUNDED_BYTES, &reading.rounded, err));
    enum dpt_status status =
        dpt_published_open(o->config->model.init_from, dpt_model_base(o->model), &weights, err);
    if (status == DPT_OK)
        status = dpt_published_read_all(weights, &sink, &hash, err);
    if (status == DPT_OK)
        status = check_hash(o->config, hash, err);
    dpt_published_close(&weights);
    dpt_device_free_host(b->device, reading.rounded, ROUNDED_BYTES);
    return status == DPT_OK ? DPT_OK : dpt_wrap(err, status, "model.init_from");
}

/* ---- packing ---- */

/* Packs every frozen weight, which pays off for any number of slots. The base's head of labels is
 * not packed, because the labels' head is trained. */
static enum dpt_status pack_weights(struct dpt_frozen_base *b,
                                    const struct dpt_frozen_base_options *o, struct dpt_err *err)
{
    const struct dpt_model *model = dpt_model_base(o->model);
    const struct dpt_packed_weights_options options = {.config = o->config,
                                                       .model = model,
                                                       .device = o->device,
                                                       .stream = o->stream,
                                                       .without = dpt_model_score(model)};
    struct dpt_slot slot = {.weights = b->weights};
    DPT_TRY(dpt_packed_weights_create(&options, &b->packed, err));
    DPT_TRY(dpt_packed_weights_decide(b->packed, MANY_SLOTS, o->ranks, err));
    dpt_packed_weights_use(b->packed, &slot);
    b->forms = slot.packed;
    return dpt_stream_sync(o->stream, err);
}

/* ---- the whole ---- */

enum dpt_status dpt_frozen_base_create(const struct dpt_frozen_base_options *options,
                                       struct dpt_frozen_base **ret, struct dpt_err *err)
{
    struct dpt_frozen_base *b = calloc(1, sizeof *b);
    if (!b)
        return dpt_fail_nomem(err, "the base's weights");
    b->device = options->device;
    enum dpt_status status = allocate_weights(b, dpt_model_base(options->model), err);
    if (status == DPT_OK)
        status = read_weights(b, options, err);
    if (status == DPT_OK)
        status = pack_weights(b, options, err);
    if (status != DPT_OK)
        dpt_frozen_base_destroy(&b);
    else
        *ret = b;
    return status;
}

void dpt_frozen_base_destroy(struct dpt_frozen_base **base)
{
    struct dpt_frozen_base *b = *base;
    *base = NULL;
    if (!b)
        return;
    dpt_packed_weights_destroy(&b->packed);
    dpt_device_free_for(b->device, DPT_MEMORY_WEIGHTS, b->memory, b->bytes);
    free(b->weights);
    free(b);
}

const void *const *dpt_frozen_base_weights(const struct dpt_frozen_base *base)
{
    return base ? base->weights : NULL;
}

const void *const *dpt_frozen_base_packed(const struct dpt_frozen_base *base)
{
    return base ? base->forms : NULL;
}
