/* Computes the model on a device that has memory of its own (device_model.h). */
#include "worker/train/device/device_model.h"

#include "worker/train/device/unit_graphs.h"

#include <stdlib.h>
#include <string.h>

struct buffer {
    void *at;
    size_t bytes;
    enum dpt_memory_tag tag;
};

enum { WEIGHTS, GRADS, SAVED, SCRATCH, BATCH, LOSSES, RIGHT, N_BUFFERS };

struct dpt_device_model {
    struct dpt_device_model_options o;
    struct dpt_stream *stream;
    const struct dpt_ops *ops;
    int n_units;
    struct dpt_unit_graphs *graphs;  /* NULL: ops are posted one by one, without graphs */
    struct buffer buffer[N_BUFFERS]; /* of the device */
    struct dpt_stager *stager;
    size_t stager_bytes;
    /* Page-locked memory of the host, for gradients and for the slot's micro-batch. */
    float *staging;
    size_t staging_bytes;
    void *batch;
    const void *weights[DPT_UNITS_MAX]; /* of the device */
    float *grads[DPT_UNITS_MAX];
    bool fresh[DPT_UNITS_MAX]; /* weights[u] equals the host's weights */
    /* Parameters that a unit's backward has announced. The device model announces them when their
     * gradients are on the host. */
    struct dpt_unit_graphs_announced announced;
};

/* Makes a slot with pointers to the device's memory. Unless the device has the state, the gradients
 * there belong to this slot alone, because the sums are on the host. */
static struct dpt_slot slot_on_device(struct dpt_device_model *a, const struct dpt_slot *slot)
{
    struct dpt_slot mine = *slot;
    mine.batch = dpt_batch_at(a->o.form, a->o.b, a->buffer[BATCH].at);
    mine.t = a->o.form->positions;
    mine.packed = NULL;
    mine.saved = a->buffer[SAVED].at;
    mine.scratch = a->buffer[SCRATCH].at;
    mine.losses = a->buffer[LOSSES].at;
    mine.right = slot->right ? a->buffer[RIGHT].at : NULL;
    if (a->o.state_on_device)
        return mine;
    mine.weights = a->weights;
    mine.grads = a->grads;
    mine.accumulate = mine.parts_apart = false;
    mine.announce = dpt_unit_graphs_note_announced;
    mine.announce_ctx = &a->announced;
    return mine;
}

/* ---- creation and destruction ---- */

static size_t losses_of_batch_bytes(const struct dpt_device_model *a)
{
    return (size_t)(a->o.b * a->o.form->losses) * sizeof(float);
}

static size_t right_of_batch_bytes(const struct dpt_device_model *a)
{
    return dpt_model_labels(a->o.model) > 0 ? (size_t)a->o.b * sizeof(float) : 0;
}

/* Allocates page-locked memory of the host for transfers. */
static enum dpt_status allocate_host_memory(struct dpt_device_model *a, struct dpt_err *err)
{
    const size_t bytes = (size_t)dpt_model_flat_numel(a->o.model) * sizeof(float);
    const struct dpt_stager_options stager = {.device = a->o.device,
                                              .stream = a->stream,
                                              .host_stream = a->o.host_stream,
                                              .bytes_max = bytes};
    DPT_TRY(dpt_device_alloc_host(a->o.device, a->buffer[BATCH].bytes, &a->batch, err));
    dpt_account_add(a->o.host, DPT_MEMORY_DATA, a->batch, a->buffer[BATCH].bytes,
                    a->buffer[BATCH].bytes);
    DPT_TRY(dpt_stager_create(&stager, &a->stager, err));
    a->stager_bytes = dpt_stager_bytes(bytes);
    dpt_account_add(a->o.host, DPT_MEMORY_DATA, NULL, a->stager_bytes, a->stager_bytes);
    return DPT_OK;
}

static enum dpt_status allocate_buffers(struct dpt_device_model *a, struct dpt_err *err)
{
    const struct dpt_device_model_options *o = &a->o;
    const size_t numel = (size_t)dpt_model_flat_numel(o->model);
    const size_t weight_bytes = dpt_dtype_bytes(dpt_model_dtype(o->model));
    const size_t copied = o->state_on_device ? 0 : numel;
    const struct buffer wanted[N_BUFFERS] = {
        [WEIGHTS] = {NULL, copied * weight_bytes, DPT_MEMORY_WEIGHTS},
        [GRADS] = {NULL, copied * sizeof(float), DPT_MEMORY_SLOT_GRADIENTS},
        [SAVED] = {NULL, dpt_model_saved_bytes(o->model, o->b, o->form->positions),
                   DPT_MEMORY_ACTIVATIONS},
        [SCRATCH] = {NULL, dpt_model_scratch_bytes(o->model, o->b, o->form->positions),
                     DPT_MEMORY_SCRATCH},
        [BATCH] = {NULL, dpt_batch_bytes(o->form, o->b), DPT_MEMORY_DATA},
        [LOSSES] = {NULL, losses_of_batch_bytes(a), DPT_MEMORY_DATA},
        [RIGHT] = {NULL, right_of_batch_bytes(a), DPT_MEMORY_DATA},
    };
    memcpy(a->buffer, wanted, sizeof wanted);
    for (int i = 0; i < N_BUFFERS; i++)
        if (wanted[i].bytes > 0)
            DPT_TRY(dpt_device_alloc_for(a->o.device, wanted[i].tag, wanted[i].bytes,
                                         &a->buffer[i].at, err));
    DPT_TRY(allocate_host_memory(a, err));
    if (o->state_on_device)
        return DPT_OK;
    int64_t largest = 0;
    for (int u = 0; u < a->n_units; u++) {
        const struct dpt_unit *unit = dpt_model_unit(o->model, u);
        a->weights[u] = (const char *)a->buffer[WEIGHTS].at + (size_t)unit->offset * weight_bytes;
        a->grads[u] = (float *)a->buffer[GRADS].at + unit->offset;
        largest = unit->numel > largest ? unit->numel : largest;
    }
    a->staging_bytes = (size_t)largest * sizeof *a->staging;
    void *staging;
    DPT_TRY(dpt_device_alloc_host(a->o.device, a->staging_bytes, &staging, err));
    a->staging = staging;
    dpt_account_add(a->o.host, DPT_MEMORY_SLOT_GRADIENTS, staging, a->staging_bytes,
                    a->staging_bytes);
    return DPT_OK;
}

static enum dpt_status prepare_units(struct dpt_device_model *a, struct dpt_err *err)
{
    const struct dpt_slot any = {.mode = DPT_MODE_TRAIN, .b = a->o.b, .t = a->o.form->positions};
    struct dpt_slot slot = slot_on_device(a, &any);
    slot.weights = a->weights;
    slot.grads = a->grads;
    slot.announce = dpt_unit_graphs_note_announced;
    slot.announce_ctx = &a->announced;
    dpt_stream_prepare_begin(a->stream);
    for (int u = 0; u < a->n_units; u++)
        dpt_model_forward(a->o.model, a->ops, a->stream, u, &slot);
    for (int added = 0; added <= (a->o.state_on_device ? 1 : 0); added++) {
        slot.accumulate = slot.parts_apart = added != 0;
        for (int u = a->n_units - 1; u >= 0; u--)
            dpt_model_backward(a->o.model, a->ops, a->stream, u, &slot);
    }
    slot.mode = DPT_MODE_EVAL; /* without dropout; the head computes losses */
    for (int u = 0; u < a->n_units && a->o.evaluates; u++)
        dpt_model_forward(a->o.model, a->ops, a->stream, u, &slot);
    return dpt_stream_prepare_end(a->stream, err);
}

enum dpt_status dpt_device_model_create(const struct dpt_device_model_options *options,
                                        struct dpt_device_model **ret, struct dpt_err *err)
{
    struct dpt_device_model *a = calloc(1, sizeof *a);
    if (!a) {
        struct dpt_device *device = options->device;
        dpt_device_destroy(&device);
        return dpt_fail_nomem(err, "device model");
    }
    a->o = *options;
    a->ops = dpt_device_ops(a->o.device);
    a->n_units = dpt_model_n_units(options->model);
    enum dpt_status status = dpt_stream_create(a->o.device, 1, &a->stream, err);
    if (status == DPT_OK)
        status = allocate_buffers(a, err);
    if (status == DPT_OK)
        status = prepare_units(a, err);
    if (status == DPT_OK && options->graphs)
        status = dpt_unit_graphs_create(a->o.model, a->o.device, a->stream, &a->graphs, err);
    if (status != DPT_OK) {
        dpt_device_model_destroy(&a);
        return status;
    }
    *ret = a;
    return DPT_OK;
}

void dpt_device_model_destroy(struct dpt_device_model **a)
{
    struct dpt_device_model *it = *a;
    if (!it)
        return;
    dpt_unit_graphs_destroy(&it->graphs);
    dpt_stager_destroy(&it->stager);
    dpt_account_sub(it->o.host, DPT_MEMORY_DATA, NULL, it->stager_bytes, it->stager_bytes);
    dpt_stream_destroy(&it->stream);
    for (int i = 0; i < N_BUFFERS; i++)
        dpt_device_free_for(it->o.device, it->buffer[i].tag, it->buffer[i].at, it->buffer[i].bytes);
    if (it->staging) {
        dpt_device_free_host(it->o.device, it->staging, it->staging_bytes);
        dpt_account_sub(it->o.host, DPT_MEMORY_SLOT_GRADIENTS, it->staging, it->staging_bytes,
                        it->staging_bytes);
    }
    if (it->batch) {
        dpt_device_free_host(it->o.device, it->batch, it->buffer[BATCH].bytes);
        dpt_account_sub(it->o.host, DPT_MEMORY_DATA, it->batch, it->buffer[BATCH].bytes,
                        it->buffer[BATCH].bytes);
    }
    dpt_device_destroy(&it->o.device);
    free(it);
    *a = NULL;
}

struct dpt_device *dpt_device_model_device(const struct dpt_device_model *a)
{
    return a->o.device;
}

struct dpt_stream *dpt_device_model_stream(const struct dpt_device_model *a)
{
    return a->stream;
}

struct dpt_stager *dpt_device_model_stager(const struct dpt_device_model *a)
{
    return a->stager;
}

/* ---- a micro-batch ---- */

enum dpt_status dpt_device_model_begin_generation(struct dpt_device_model *a, struct dpt_err *err)
{
    DPT_TRY(dpt_stream_sync(a->stream, err)); /* a step may have been interrupted */
    dpt_device_model_drop_graphs(a);
    return DPT_OK;
}

void dpt_device_model_drop_graphs(struct dpt_device_model *a)
{
    if (a->graphs)
        dpt_unit_graphs_forget(a->graphs);
}

void dpt_device_model_forget_weights(struct dpt_device_model *a)
{
    memset(a->fresh, 0, sizeof a->fresh);
}

/* Copies the unit's weights to the device. Weights that it borrows belong to an earlier unit and
 * were copied with that unit. */
static void bring_weights(struct dpt_device_model *a, int unit, const struct dpt_slot *slot)
{
    if (a->o.state_on_device || a->fresh[unit])
        return;
    const size_t bytes = (size_t)dpt_model_unit(a->o.model, unit)->numel *
                         dpt_dtype_bytes(dpt_model_dtype(a->o.model));
    dpt_stager_to_device(a->stager, bytes, slot->weights[unit], (void *)a->weights[unit]);
    a->fresh[unit] = true;
}

/* Copies ragged samples into rows of form->positions, the prepared shape. */
static void pad_batch(struct dpt_device_model *a, const struct dpt_batch *batch)
{
    const struct dpt_batch padded = dpt_batch_at(a->o.form, a->o.b, a->batch);
    const size_t n = (size_t)a->o.b, row = (size_t)batch->positions * sizeof(int32_t),
                 whole = a->o.form->part_bytes[DPT_SAMPLE_INPUT];
    for (size_t i = 0; i < n; i++) {
        char *to = (char *)padded.part[DPT_SAMPLE_INPUT] + i * whole;
        memcpy(to, (const char *)batch->part[DPT_SAMPLE_INPUT] + i * row, row);
        memset(to + row, 0, whole - row);
    }
    for (int part = DPT_SAMPLE_INPUT + 1; part < DPT_SAMPLE_PARTS; part++)
        memcpy(padded.part[part], batch->part[part], n * a->o.form->part_bytes[part]);
}

/* The staging memory is free: end_slot or begin_generation has synced since the last slot. */
void dpt_device_model_begin_slot(struct dpt_device_model *a, const struct dpt_slot *slot)
{
    DPT_ASSERT(slot->b == a->o.b && slot->t == slot->batch.positions);
    if (a->o.form->ragged)
        pad_batch(a, &slot->batch);
    else
        memcpy(a->batch, slot->batch.part[0], a->buffer[BATCH].bytes);
    a->ops->copy(a->stream, a->buffer[BATCH].bytes, a->batch, a->buffer[BATCH].at);
}

void dpt_device_model_forward(struct dpt_device_model *a, int unit, const struct dpt_slot *slot)
{
    const struct dpt_slot mine = slot_on_device(a, slot);
    bring_weights(a, unit, slot);
    if (a->graphs)
        dpt_unit_graphs_forward(a->graphs, unit, &mine);
    else
        dpt_model_forward(a->o.model, a->ops, a->stream, unit, &mine);
}

static void announce_noted(const struct dpt_device_model *a, const struct dpt_slot *slot)
{
    for (int i = a->announced.last; i >= a->announced.first; i--)
        slot->announce(slot->announce_ctx, i);
}

enum dpt_status dpt_device_model_backward(struct dpt_device_model *a, const struct dpt_ops *ops,
                                          struct dpt_stream *stream, int unit,
                                          const struct dpt_slot *slot, struct dpt_err *err)
{
    const struct dpt_slot mine = slot_on_device(a, slot);
    a->announced = (struct dpt_unit_graphs_announced){.first = 1, .last = 0};
    if (a->graphs)
        dpt_unit_graphs_backward(a->graphs, unit, &mine, &a->announced);
    else
        dpt_model_backward(a->o.model, a->ops, a->stream, unit, &mine);
    if (a->o.state_on_device) {
        if (a->graphs)
            announce_noted(a, slot);
        return DPT_OK;
    }
    DPT_ASSERT(a->announced.first <= a->announced.last); /* every unit has parameters */
    const struct dpt_param *low = dpt_model_param(a->o.model, a->announced.first);
    const struct dpt_param *high = dpt_model_param(a->o.model, a->announced.last);
    DPT_ASSERT(low->unit == unit && high->unit == unit);
    const int64_t first = low->offset - dpt_model_unit(a->o.model, unit)->offset;
    const int64_t n = high->offset + high->numel - low->offset;
    a->ops->copy(a->stream, (size_t)n * sizeof *a->staging, a->grads[unit] + first, a->staging);
    DPT_TRY(dpt_stream_sync(a->stream, err));
    float *to = slot->grads[unit] + first;
    if (slot->accumulate && !(slot->parts_apart && dpt_model_unit(a->o.model, unit)->in_parts))
        ops->add(stream, n, to, a->staging, to);
    else
        ops->copy(stream, (size_t)n * sizeof *to, a->staging, to);
    announce_noted(a, slot);
    return DPT_OK;
}

enum dpt_status dpt_device_model_end_slot(struct dpt_device_model *a, const struct dpt_slot *slot,
                                          struct dpt_err *err)
{
    a->ops->copy(a->stream, losses_of_batch_bytes(a), a->buffer[LOSSES].at, slot->losses);
    if (slot->right)
        a->ops->copy(a->stream, right_of_batch_bytes(a), a->buffer[RIGHT].at, slot->right);
    return dpt_stream_sync(a->stream, err);
}
