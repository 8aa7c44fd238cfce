/* Packed weights: see packed_weights.h. */
#include "worker/strategy/state/packed_weights.h"

#include "base/log.h"
#include "base/memory.h"

#include <stdlib.h>

struct form {
    struct dpt_pack pack;
    size_t at, bytes; /* in `memory`; bytes 0: the parameter has no form */
    bool is_current;  /* packed from the present weights */
};

struct dpt_packed_weights {
    const struct dpt_model *model;
    struct dpt_device *device;
    struct dpt_stream *stream;
    const struct dpt_ops *ops;
    enum dpt_pack_weights mode;
    int n_params;
    struct form *forms;    /* [n_params] */
    const void **pointers; /* [n_params] of slots */
    size_t bytes;
    char *memory; /* NULL: not used in this generation */
    bool used;    /* in this generation */
};

/* The first slot pays for the packing, later slots gain. */
enum { SLOTS_MIN = 2, SHARE_OF_AVAILABLE = 2 };

bool dpt_packing_pays(enum dpt_pack_weights mode, int slots, int64_t bytes, int64_t available)
{
    if (mode != DPT_PACK_WEIGHTS_AUTO)
        return mode == DPT_PACK_WEIGHTS_ON;
    return slots >= SLOTS_MIN && bytes <= available / SHARE_OF_AVAILABLE;
}

static enum dpt_status prepare_forms(struct dpt_packed_weights *p, int without, struct dpt_err *err)
{
    dpt_stream_prepare_begin(p->stream);
    for (int i = 0; i < p->n_params; i++) {
        struct form *form = &p->forms[i];
        if (i == without || !dpt_model_packing(p->model, i, &form->pack))
            continue;
        form->at = p->bytes;
        form->bytes = p->ops->packed_bytes(p->stream, &form->pack);
        p->ops->pack(p->stream, &form->pack);
        p->bytes += (form->bytes + 63) / 64 * 64;
    }
    return dpt_stream_prepare_end(p->stream, err);
}

/* A GPU packs no weights. */
static bool packs_weights(const struct dpt_config *config)
{
    return config->cluster.pack_weights != DPT_PACK_WEIGHTS_OFF &&
           config->cluster.device != DPT_DEVICE_CUDA;
}

enum dpt_status dpt_packed_weights_create(const struct dpt_packed_weights_options *options,
                                          struct dpt_packed_weights **ret, struct dpt_err *err)
{
    struct dpt_packed_weights *p = calloc(1, sizeof *p);
    if (!p)
        return dpt_fail_nomem(err, "packed weights");
    p->model = options->model;
    p->device = options->device;
    p->stream = options->stream;
    p->ops = dpt_device_ops(options->device);
    p->mode = options->config->cluster.pack_weights;
    p->n_params = dpt_model_n_params(options->model);
    p->forms = calloc((size_t)p->n_params, sizeof *p->forms);
    p->pointers = calloc((size_t)p->n_params, sizeof *p->pointers);
    enum dpt_status status = DPT_OK;
    if (!p->forms || !p->pointers)
        status = dpt_fail_nomem(err, "packed weights");
    else if (packs_weights(options->config))
        status = prepare_forms(p, options->without, err);
    if (status != DPT_OK) {
        dpt_packed_weights_destroy(&p);
        return status;
    }
    *ret = p;
    return DPT_OK;
}

static void release_forms(struct dpt_packed_weights *p)
{
    if (p->memory)
        dpt_packed_weights_forget(p);
    dpt_device_free_for(p->device, DPT_MEMORY_PACKED, p->memory, p->bytes);
    p->memory = NULL;
}

void dpt_packed_weights_destroy(struct dpt_packed_weights **packed)
{
    struct dpt_packed_weights *p = *packed;
    if (!p)
        return;
    release_forms(p);
    free(p->forms);
    free(p->pointers);
    free(p);
    *packed = NULL;
}

enum dpt_status dpt_packed_weights_decide(struct dpt_packed_weights *p, int slots,
                                          int ranks_of_host, struct dpt_err *err)
{
    /* Memory that is allocated already needs no room. */
    const int64_t wanted = p->memory ? 0 : (int64_t)p->bytes * ranks_of_host;
    p->used = p->bytes > 0 && dpt_packing_pays(p->mode, slots, wanted, dpt_memory_available(""));
    if (!p->used)
        release_forms(p);
    if (!p->used || p->memory)
        return DPT_OK;
    void *memory = NULL;
    enum dpt_status status =
        dpt_device_alloc_for(p->device, DPT_MEMORY_PACKED, p->bytes, &memory, err);
    p->memory = memory;
    p->used = status == DPT_OK;
    if (status == DPT_ENOMEM && p->mode == DPT_PACK_WEIGHTS_AUTO) {
        dpt_log(DPT_LOG_WARN, "there is no memory for packed weights (%s); slots pack their own",
                err->text);
        return DPT_OK;
    }
    if (status != DPT_OK)
        return dpt_wrap(err, status, "packed weights (cluster.pack_weights: off does without)");
    return DPT_OK;
}

int64_t dpt_packed_weights_bytes(const struct dpt_packed_weights *p)
{
    return p->used ? (int64_t)p->bytes : 0;
}

bool dpt_packed_weights_form(const struct dpt_packed_weights *p, int param, const void *memory,
                             size_t *ret_at, size_t *ret_bytes)
{
    if (!p->memory || p->memory != memory || p->forms[param].bytes == 0)
        return false;
    *ret_at = p->forms[param].at;
    *ret_bytes = p->forms[param].bytes;
    return true;
}

static void pack_form(struct dpt_packed_weights *p, int param, const void *const *weights)
{
    struct form *form = &p->forms[param];
    const struct dpt_param *of = dpt_model_param(p->model, param);
    const int64_t place = of->offset - dpt_model_unit(p->model, of->unit)->offset;
    form->pack.w =
        (const char *)weights[of->unit] + (size_t)place * dpt_dtype_bytes(form->pack.dtype);
    form->pack.packed = p->memory + form->at;
    p->ops->pack(p->stream, &form->pack);
    p->pointers[param] = form->pack.packed;
    form->is_current = true;
}

void dpt_packed_weights_use(struct dpt_packed_weights *p, struct dpt_slot *slot)
{
    if (!p->used)
        return;
    for (int i = 0; i < p->n_params; i++)
        if (p->forms[i].bytes > 0 && !p->forms[i].is_current)
            pack_form(p, i, slot->weights);
    slot->packed = p->pointers;
}

void dpt_packed_weights_forget(struct dpt_packed_weights *p)
{
    for (int i = 0; i < p->n_params; i++) {
        p->forms[i].is_current = false;
        p->pointers[i] = NULL; /* a slot that still has the pointers reads the weights */
    }
}
