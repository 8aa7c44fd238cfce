/* Lanes and their stack (lane_sums.h). */
#include "worker/strategy/reduce/lane_sums.h"

#include "worker/strategy/reduce/lane_buffers.h"
#include "worker/strategy/reduce/powersgd.h"

#include <stdlib.h>

struct dpt_lane_sums {
    struct dpt_strategy_env env;
    struct dpt_strategy_traits traits;
    const struct dpt_model_buckets *model_buckets;
    struct dpt_device *device; /* the device that adds the slots */
    struct dpt_stream *stream; /* the main thread's, on `device` */
    const struct dpt_ops *ops; /* of `device` */
    enum dpt_dtype wire;
    struct dpt_powersgd *powersgd; /* NULL: sums are not approximated */
    float **grads;                 /* [n_units], of the lane being filled */
    struct dpt_lane_buffers buffers;
    /* Where lanes have several slots: the present slot's gradient of the unit with `in_parts`. When
     * it is complete it is added to the lane. data NULL: not needed. */
    struct dpt_buffer apart;
    int parted; /* the unit with `in_parts`; -1: none */

    /* The generation. */
    const struct dpt_partition *part;
    struct dpt_range lanes; /* of this rank's position */
    struct dpt_reducer *reducer;

    /* The step. */
    int lane;        /* being filled */
    int depth;       /* index of the buffer being filled */
    bool lane_ends;  /* the present slot is the lane's last */
    bool adds_apart; /* the slot is not the lane's first: `apart` is added to the lane */
    /* The slot is the lane's only slot, and backward adds it directly to the sum below. */
    bool direct;
};

void dpt_lane_sums_destroy(struct dpt_lane_sums **sums)
{
    struct dpt_lane_sums *d = *sums;
    if (!d)
        return;
    dpt_lane_sums_end_generation(d);
    dpt_powersgd_destroy(&d->powersgd);
    dpt_lane_buffers_free(&d->buffers);
    dpt_buffer_free(&d->apart);
    free(d->grads);
    free(d);
    *sums = NULL;
}

static enum dpt_status make_lane_sums(struct dpt_lane_sums *d, const struct dpt_memory_list *memory,
                                      struct dpt_err *err)
{
    const struct dpt_memory_entry *apart = &memory->item[DPT_ITEM_APART];
    for (int u = 0; u < dpt_model_n_units(d->env.model); u++)
        if (dpt_model_unit(d->env.model, u)->in_parts)
            d->parted = u;
    d->grads = calloc((size_t)dpt_model_n_units(d->env.model), sizeof *d->grads);
    if (!d->grads)
        return dpt_fail_nomem(err, "lanes");
    if (d->traits.powersgd)
        DPT_TRY(dpt_powersgd_create(&d->env, &d->powersgd, err));
    return apart->n == 0
               ? DPT_OK
               : dpt_buffer_make_private(d->device, apart->tag, apart->bytes, &d->apart, err);
}

enum dpt_status dpt_lane_sums_create(const struct dpt_strategy_env *env,
                                     const struct dpt_model_buckets *buckets,
                                     const struct dpt_memory_list *memory,
                                     struct dpt_lane_sums **ret, struct dpt_err *err)
{
    struct dpt_lane_sums *d = calloc(1, sizeof *d);
    if (!d)
        return dpt_fail_nomem(err, "lanes");
    d->env = *env;
    d->traits = dpt_strategy_traits(env->config);
    d->model_buckets = buckets;
    d->device = env->resident ? env->resident : env->device;
    d->stream = env->resident ? env->resident_stream : env->stream;
    d->ops = dpt_device_ops(d->device);
    d->wire = dpt_dtype_of(d->traits.wire);
    d->parted = -1;
    const enum dpt_status status = make_lane_sums(d, memory, err);
    if (status != DPT_OK)
        dpt_lane_sums_destroy(&d);
    else
        *ret = d;
    return status;
}

enum dpt_status dpt_lane_sums_begin_generation(struct dpt_lane_sums *d,
                                               const struct dpt_partition *part,
                                               const struct dpt_memory_list *memory,
                                               struct dpt_err *err)
{
    const struct dpt_world *world = part->world;
    d->part = part;
    d->lanes = dpt_position_lanes(world->lanes, world->size, part->position);
    DPT_TRY(dpt_lane_buffers_make(&d->buffers, &d->env, memory, err));
    DPT_TRY(
        dpt_lane_reducer_create(&d->env, part, d->model_buckets, &d->buffers, &d->reducer, err));
    if (!d->powersgd)
        return DPT_OK;
    return dpt_powersgd_begin_generation(d->powersgd, world, part->rank, d->buffers.data[0],
                                         &d->reducer, err);
}

void dpt_lane_sums_end_generation(struct dpt_lane_sums *d)
{
    dpt_reducer_destroy(&d->reducer);
    d->part = NULL;
}

struct dpt_reducer *dpt_lane_sums_reducer(const struct dpt_lane_sums *d)
{
    return d->reducer;
}

void dpt_lane_sums_begin_step(struct dpt_lane_sums *d)
{
    d->lane = d->lanes.first;
    d->depth = 0;
}

static int joins_after_lane(const struct dpt_lane_sums *d)
{
    return dpt_tree_joins_after(d->part->world->lanes, d->lanes, d->lane);
}

/* Joins a tensor that is complete in the lane being filled up the stack, while the tensor is still
 * in the caches. Each sum is rounded to `wire` (wire.h). The gaps between units stay zero. */
static void join_tensor(struct dpt_lane_sums *d, const struct dpt_param *param)
{
    int joins = joins_after_lane(d), top = d->depth;
    d->ops->round_to(d->stream, param->numel, d->wire, d->buffers.data[top] + param->offset);
    if (d->direct && param->unit != d->parted) { /* backward has done the first join */
        joins--;
        top--;
    }
    for (; joins > 0; joins--, top--) {
        float *sum = d->buffers.data[top - 1] + param->offset;
        d->ops->add(d->stream, param->numel, sum, d->buffers.data[top] + param->offset, sum);
        d->ops->round_to(d->stream, param->numel, d->wire, sum);
    }
}

/* Adds a tensor of the parted unit to the lane, once the tensor is complete in this slot. */
static void add_apart(struct dpt_lane_sums *d, const struct dpt_param *param)
{
    float *sum = d->buffers.data[d->depth] + param->offset;
    const float *slot = (const float *)d->apart.data +
                        (param->offset - dpt_model_unit(d->env.model, d->parted)->offset);
    d->ops->add(d->stream, param->numel, sum, slot, sum);
}

void dpt_lane_sums_add_tensor(struct dpt_lane_sums *d, int param)
{
    const struct dpt_param *p = dpt_model_param(d->env.model, param);
    if (d->adds_apart && p->unit == d->parted)
        add_apart(d, p);
    if (d->lane_ends)
        join_tensor(d, p);
}

/* Gradients that were packed for a transfer (wire.h) left bits in the gaps, which no op writes. */
static void clear_gaps(const struct dpt_lane_sums *d)
{
    for (int u = 0; u < dpt_model_n_units(d->env.model); u++)
        dpt_model_clear_gaps(d->env.model, d->ops, d->stream, u,
                             d->buffers.data[d->depth] + dpt_model_unit(d->env.model, u)->offset);
}

void dpt_lane_sums_begin_slot(struct dpt_lane_sums *d, int slot_index, struct dpt_slot *slot)
{
    const struct dpt_range of_lane =
        dpt_lane_slots(dpt_config_slots(d->env.config), d->part->world->lanes, d->lane);
    DPT_ASSERT(slot_index >= of_lane.first && slot_index < of_lane.end);
    const bool first = slot_index == of_lane.first;
    /* Backward may add a slot while it makes the slot's gradient: the bits are the same as if the
     * complete gradient were added. There are two exceptions: the unit with `in_parts`, and lanes
     * that are rounded before they are added. */
    d->direct = d->wire == DPT_F32 && of_lane.end - of_lane.first == 1 && joins_after_lane(d) > 0;
    for (int u = 0; u < dpt_model_n_units(d->env.model); u++)
        d->grads[u] = d->buffers.data[d->depth - (d->direct && u != d->parted)] +
                      dpt_model_unit(d->env.model, u)->offset;
    d->lane_ends = slot_index == of_lane.end - 1;
    slot->grads = d->grads;
    slot->accumulate = !first || d->direct;
    if (first && d->wire != DPT_F32)
        clear_gaps(d);
    d->adds_apart = !first && d->apart.data;
    slot->parts_apart = d->adds_apart || d->direct;
    if (d->adds_apart)
        d->grads[d->parted] = d->apart.data;
}

void dpt_lane_sums_end_slot(struct dpt_lane_sums *d)
{
    if (!d->lane_ends)
        return;
    d->depth += 1 - joins_after_lane(d);
    d->lane++;
}

void dpt_lane_sums_applied(struct dpt_lane_sums *d, int64_t step)
{
    if (d->powersgd)
        dpt_powersgd_applied(d->powersgd, step);
}

float *dpt_lane_sums_gradient(const struct dpt_lane_sums *d)
{
    return d->buffers.data[0];
}

void dpt_lane_sums_cost(const struct dpt_lane_sums *d, struct dpt_strategy_cost *ret)
{
    const int n = d->buffers.n_registered + d->buffers.n_on_device;
    *ret = (struct dpt_strategy_cost){.gradient_bytes = n * dpt_model_flat_numel(d->env.model) *
                                                            (int64_t)sizeof(float) +
                                                        (int64_t)d->apart.bytes,
                                      .gradient_buffers = n};
    dpt_reducer_cost(d->reducer, ret);
}
