/* The frozen weights of a run with adapters (base.h). */
#include "worker/train/base.h"

#include "base/log.h"
#include "base/memory.h"
#include "worker/strategy/packed_weights.h"
#include "worker/weights/published.h"

#include <stdlib.h>
#include <string.h>

enum { MANY_SLOTS = 1 << 10, ROUNDED_BYTES = DPT_PUBLISHED_PART * (int)sizeof(float) };

struct dpt_base {
    struct dpt_device *device;
    void *memory; /* the base's flat vector, in the compute dtype */
    size_t bytes;
    void *forms; /* packed; NULL: they are not */
    size_t form_bytes;
    const void **weights; /* [n_units] */
    const void **packed;  /* [n_params] */
};

static char *place(const struct dpt_base *b, const struct dpt_model *of, int64_t element)
{
    return (char *)b->memory + (size_t)element * dpt_dtype_bytes(dpt_model_dtype(of));
}

static enum dpt_status allocate(struct dpt_base *b, const struct dpt_model *of, struct dpt_err *err)
{
    const int n_units = dpt_model_n_units(of);
    b->weights = calloc((size_t)n_units, sizeof *b->weights);
    b->packed = calloc((size_t)dpt_model_n_params(of), sizeof *b->packed);
    if (!b->weights || !b->packed)
        return dpt_fail(err, DPT_ENOMEM, "the base's weights: out of memory");
    b->bytes = (size_t)dpt_model_flat_numel(of) * dpt_dtype_bytes(dpt_model_dtype(of));
    DPT_TRY(dpt_device_alloc_for(b->device, DPT_MEMORY_WEIGHTS, b->bytes, &b->memory, err));
    for (int u = 0; u < n_units; u++)
        b->weights[u] = place(b, of, dpt_model_unit(of, u)->offset);
    return DPT_OK;
}

/* ---- reading ---- */

struct reading {
    const struct dpt_base *b;
    const struct dpt_base_options *o;
    void *rounded; /* [DPT_PUBLISHED_PART] in the compute dtype, page-locked */
};

/* Rounds a part of a tensor and puts it where it belongs. */
static enum dpt_status take(void *ctx, int param, int64_t first, int64_t end, const float *values,
                            struct dpt_err *err)
{
    const struct reading *r = ctx;
    const struct dpt_base_options *o = r->o;
    const struct dpt_model *of = dpt_model_base(o->model);
    const enum dpt_dtype dtype = dpt_model_dtype(of);
    o->host_ops->cast(o->host_stream, end - first, values, dtype, r->rounded);
    DPT_TRY(dpt_stream_sync(o->host_stream, err));
    dpt_device_ops(r->b->device)
        ->copy(o->stream, (size_t)(end - first) * dpt_dtype_bytes(dtype), r->rounded,
               place(r->b, of, dpt_model_param(of, param)->offset + first));
    return dpt_stream_sync(o->stream, err); /* the next part takes its place */
}

/* The hash of the weights that were read is what the run has agreed on; the folder may be another
 * by now. */
static enum dpt_status check_hash(const struct dpt_config *config, struct dpt_hash128 hash,
                                  struct dpt_err *err)
{
    const char *wanted = config->train.lora.base_hash;
    char hex[DPT_HASH_HEX_BYTES];
    dpt_hash128_hex(hash, hex);
    if (wanted[0] == '\0' || strcmp(hex, wanted) == 0)
        return DPT_OK;
    return dpt_fail(err, DPT_ECORRUPT,
                    "'%s' was changed since this worker began: its weights have the hash %s, the "
                    "run's base %s; put the former weights back and start this worker again",
                    config->model.init_from, hex, wanted);
}

static enum dpt_status read_weights(const struct dpt_base *b, const struct dpt_base_options *o,
                                    struct dpt_err *err)
{
    struct dpt_published *weights = NULL;
    struct dpt_hash128 hash;
    struct reading reading = {.b = b, .o = o};
    const struct dpt_published_sink sink = {take, &reading};
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

/* Sizes and places of the packed forms, all in one. The labels' head is trained: it has none. */
static enum dpt_status prepare_forms(struct dpt_base *b, const struct dpt_base_options *o,
                                     size_t *at, struct dpt_err *err)
{
    const struct dpt_model *of = dpt_model_base(o->model);
    const struct dpt_ops *ops = dpt_device_ops(b->device);
    dpt_stream_prepare_begin(o->stream);
    for (int i = 0; i < dpt_model_n_params(of); i++) {
        struct dpt_pack pack;
        at[i] = b->form_bytes;
        if (i == dpt_model_score(of) || !dpt_model_packing(of, i, &pack))
            continue;
        b->form_bytes += (ops->packed_bytes(o->stream, &pack) + 63) / 64 * 64;
        ops->pack(o->stream, &pack);
    }
    return dpt_stream_prepare_end(o->stream, err);
}

static void pack_all(struct dpt_base *b, const struct dpt_base_options *o, const size_t *at)
{
    const struct dpt_model *of = dpt_model_base(o->model);
    for (int i = 0; i < dpt_model_n_params(of); i++) {
        struct dpt_pack pack;
        if (i == dpt_model_score(of) || !dpt_model_packing(of, i, &pack))
            continue;
        pack.w = place(b, of, dpt_model_param(of, i)->offset);
        pack.packed = (char *)b->forms + at[i];
        dpt_device_ops(b->device)->pack(o->stream, &pack);
        b->packed[i] = pack.packed;
    }
}

/* The weights stay as they are, so that packing pays however few slots this rank has. */
static enum dpt_status pack(struct dpt_base *b, const struct dpt_base_options *o,
                            struct dpt_err *err)
{
    const enum dpt_pack_weights mode = o->config->cluster.pack_weights;
    if (mode == DPT_PACK_WEIGHTS_OFF || o->config->cluster.device == DPT_DEVICE_CUDA)
        return DPT_OK;
    size_t *at = calloc((size_t)dpt_model_n_params(dpt_model_base(o->model)), sizeof *at);
    if (!at)
        return dpt_fail(err, DPT_ENOMEM, "packed weights: out of memory");
    enum dpt_status status = prepare_forms(b, o, at, err);
    const int64_t wanted = (int64_t)b->form_bytes * o->ranks;
    if (status == DPT_OK && dpt_packing_pays(mode, MANY_SLOTS, wanted, dpt_memory_available(""))) {
        status = dpt_device_alloc_for(b->device, DPT_MEMORY_PACKED, b->form_bytes, &b->forms, err);
        if (status == DPT_ENOMEM && mode == DPT_PACK_WEIGHTS_AUTO) {
            dpt_log(DPT_LOG_WARN,
                    "there is no memory for packed weights (%s); slots pack their own", err->text);
            status = DPT_OK;
        } else if (status == DPT_OK) {
            pack_all(b, o, at);
            status = dpt_stream_sync(o->stream, err);
        }
    }
    free(at);
    return status == DPT_OK
               ? DPT_OK
               : dpt_wrap(err, status, "packed weights (cluster.pack_weights: off does without)");
}

/* ---- the whole ---- */

enum dpt_status dpt_base_create(const struct dpt_base_options *options, struct dpt_base **ret,
                                struct dpt_err *err)
{
    struct dpt_base *b = calloc(1, sizeof *b);
    if (!b)
        return dpt_fail(err, DPT_ENOMEM, "the base's weights: out of memory");
    b->device = options->device;
    enum dpt_status status = allocate(b, dpt_model_base(options->model), err);
    if (status == DPT_OK)
        status = read_weights(b, options, err);
    if (status == DPT_OK)
        status = pack(b, options, err);
    if (status != DPT_OK)
        dpt_base_destroy(&b);
    else
        *ret = b;
    return status;
}

void dpt_base_destroy(struct dpt_base **base)
{
    struct dpt_base *b = *base;
    *base = NULL;
    if (!b)
        return;
    if (b->memory)
        dpt_device_free_for(b->device, DPT_MEMORY_WEIGHTS, b->memory, b->bytes);
    if (b->forms)
        dpt_device_free_for(b->device, DPT_MEMORY_PACKED, b->forms, b->form_bytes);
    free(b->weights);
    free(b->packed);
    free(b);
}

const void *const *dpt_base_weights(const struct dpt_base *base)
{
    return base ? base->weights : NULL;
}

const void *const *dpt_base_packed(const struct dpt_base *base)
{
    return base && base->forms ? base->packed : NULL;
}
