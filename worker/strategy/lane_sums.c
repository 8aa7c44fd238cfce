/* Lanes, their stack, and buckets on their way to the reducer (lane_sums.h). */
#include "worker/strategy/lane_sums.h"

#include "worker/strategy/wire.h"

#include <stdlib.h>
#include <string.h>

enum { BUFFERS_MAX = DPT_COVER_MAX };

struct dpt_lane_sums {
    struct dpt_strategy_env env;
    struct dpt_device *device; /* that slots are added on, */
    struct dpt_stream *stream; /* the main thread's there, */
    const struct dpt_ops *ops; /* and its ops */
    struct dpt_ddp_policy policy;
    bool shards;
    int64_t flat_numel;
    float **grads; /* [n_units], of the lane being filled */

    int n_buckets;
    struct dpt_bucket *buckets;
    int *bucket_of_param;
    int *announced; /* [n_buckets] parameters of this slot */

    /* The stack is in registered buffers. Or it is on a device; then these are what of it goes to
     * the host's reducer, if that is used, and a world of one has none. */
    int n_buffers, n_on_device;
    struct dpt_comm_mem *buffer[BUFFERS_MAX];
    float *on_device[BUFFERS_MAX];
    /* Where lanes have several slots: the present slot's gradient of the unit that is in_parts,
     * which is added to the lane's when it is whole. NULL: not needed. */
    float *apart;
    int parted; /* that unit; -1: none */

    /* The generation. */
    const struct dpt_world *world;
    struct dpt_range lanes;              /* of this rank's position */
    int n_sums;                          /* subtrees that they come to */
    struct dpt_reducer *reducer;         /* one of the two; */
    struct dpt_gpu_reducer *gpu_reducer; /* the other is NULL */

    /* The step. */
    int lane;        /* being filled */
    int depth;       /* index of the buffer being filled */
    bool lane_ends;  /* the present slot is the lane's last */
    bool adds_apart; /* it is not the lane's first */
    bool direct;     /* it is the whole lane, and added to the sum below as backward makes it */
    enum dpt_status status; /* of what was waited for in an announcement or at a slot's end */
    struct dpt_err err;
};

static float *buffer_data(const struct dpt_lane_sums *d, int i)
{
    return d->env.resident ? d->on_device[i] : dpt_comm_mem_data(d->buffer[i]);
}

static enum dpt_memory_tag buffer_tag(int i)
{
    return i == 0 ? DPT_MEMORY_GRADIENT : DPT_MEMORY_SUMS;
}

/* The order of addition is open: parts of a slot's gradient are added as they come. */
static bool is_fast(const struct dpt_lane_sums *d)
{
    return d->env.config->train.reduction == DPT_REDUCTION_FAST;
}

static size_t apart_bytes(const struct dpt_lane_sums *d)
{
    return d->parted < 0 ? 0
                         : (size_t)dpt_model_unit(d->env.model, d->parted)->numel * sizeof(float);
}

void dpt_lane_sums_destroy(struct dpt_lane_sums **sums)
{
    struct dpt_lane_sums *d = *sums;
    if (!d)
        return;
    dpt_reducer_destroy(&d->reducer);
    dpt_gpu_reducer_destroy(&d->gpu_reducer);
    for (int i = 0; i < d->n_buffers; i++)
        dpt_comm_mem_destroy(&d->buffer[i]);
    for (int i = 0; i < d->n_on_device; i++)
        dpt_device_free_for(d->device, buffer_tag(i), d->on_device[i],
                            (size_t)d->flat_numel * sizeof(float));
    dpt_device_free_for(d->device, DPT_MEMORY_SLOT_GRADIENTS, d->apart, apart_bytes(d));
    free(d->grads);
    free(d->buckets);
    free(d->bucket_of_param);
    free(d->announced);
    free(d);
    *sums = NULL;
}

/* One bucket a unit, the last unit first. */
static void make_unit_buckets(struct dpt_lane_sums *d)
{
    const struct dpt_model *model = d->env.model;
    d->n_buckets = 0;
    for (int u = dpt_model_n_units(model) - 1; u >= 0; u--) {
        const struct dpt_unit *unit = dpt_model_unit(model, u);
        d->buckets[d->n_buckets++] = (struct dpt_bucket){.first_tensor = unit->first_param,
                                                         .n_tensors = unit->n_params,
                                                         .first = unit->offset,
                                                         .end = unit->offset + unit->numel};
    }
}

static enum dpt_status make_buckets(struct dpt_lane_sums *d, struct dpt_err *err)
{
    const struct dpt_model *model = d->env.model;
    const int n = dpt_model_n_params(model);
    d->buckets = calloc((size_t)n, sizeof *d->buckets);
    d->bucket_of_param = calloc((size_t)n, sizeof *d->bucket_of_param);
    d->announced = calloc((size_t)n, sizeof *d->announced);
    if (!d->buckets || !d->bucket_of_param || !d->announced)
        return dpt_fail(err, DPT_ENOMEM, "lanes: out of memory");
    if (d->shards)
        make_unit_buckets(d);
    else
        DPT_TRY(dpt_ddp_policy_buckets(&d->policy, d->env.config, model, d->buckets, &d->n_buckets,
                                       err));
    for (int b = 0; b < d->n_buckets; b++)
        for (int i = 0; i < d->buckets[b].n_tensors; i++)
            d->bucket_of_param[d->buckets[b].first_tensor + i] = b;
    return DPT_OK;
}

static enum dpt_status make_apart(struct dpt_lane_sums *d, struct dpt_err *err)
{
    const struct dpt_config *config = d->env.config;
    for (int u = 0; u < dpt_model_n_units(d->env.model); u++)
        if (dpt_model_unit(d->env.model, u)->in_parts)
            d->parted = u;
    /* PowerSGD's lanes are as many as ranks. */
    const bool single = dpt_config_slots(config) == dpt_config_lanes(config) &&
                        config->strategy.compression != DPT_COMPRESSION_POWERSGD;
    if (d->parted < 0 || single || is_fast(d))
        return DPT_OK;
    void *memory = NULL;
    DPT_TRY(
        dpt_device_alloc_for(d->device, DPT_MEMORY_SLOT_GRADIENTS, apart_bytes(d), &memory, err));
    d->apart = memory;
    return DPT_OK;
}

static enum dpt_status make(struct dpt_lane_sums *d, struct dpt_err *err)
{
    d->grads = calloc((size_t)dpt_model_n_units(d->env.model), sizeof *d->grads);
    if (!d->grads)
        return dpt_fail(err, DPT_ENOMEM, "lanes: out of memory");
    DPT_TRY(make_apart(d, err));
    return make_buckets(d, err);
}

enum dpt_status dpt_lane_sums_create(const struct dpt_strategy_env *env, bool shards,
                                     struct dpt_lane_sums **ret, struct dpt_err *err)
{
    struct dpt_lane_sums *d = calloc(1, sizeof *d);
    if (!d)
        return dpt_fail(err, DPT_ENOMEM, "lanes: out of memory");
    d->env = *env;
    d->device = env->resident ? env->resident : env->device;
    d->stream = env->resident ? env->resident_stream : env->stream;
    d->ops = dpt_device_ops(d->device);
    d->policy = dpt_ddp_policy_of(env->config);
    d->shards = shards;
    d->flat_numel = dpt_model_flat_numel(env->model);
    d->parted = -1;
    const enum dpt_status status = make(d, err);
    if (status != DPT_OK)
        dpt_lane_sums_destroy(&d);
    else
        *ret = d;
    return status;
}

struct dpt_assignment dpt_lane_sums_assign(const struct dpt_lane_sums *d,
                                           const struct dpt_world *world, int position)
{
    return dpt_assign_lanes(dpt_config_slots(d->env.config), world->lanes, world->size, position);
}

/* Buffers are kept when a larger world needs fewer: a failure, which makes worlds smaller, should
 * not wait for the kernel to clear memory that this rank has had before. */
static enum dpt_status make_buffers(struct dpt_lane_sums *d, int position, struct dpt_err *err)
{
    const struct dpt_world *world = d->world;
    const bool resident = d->env.resident != NULL;
    const int need = resident && (world->size == 1 || d->env.resident_comm_stream)
                         ? 0
                         : dpt_reducer_buffers(world, position);
    const int on_device = resident ? dpt_tree_buffers(world->lanes, d->lanes) : 0;
    DPT_ASSERT(need <= BUFFERS_MAX && on_device <= BUFFERS_MAX);
    while (d->n_buffers < need) {
        DPT_TRY(dpt_reducer_buffer_create(d->env.listener, d->n_buffers, d->flat_numel,
                                          &d->buffer[d->n_buffers], err));
        d->n_buffers++;
    }
    while (d->n_on_device < on_device) {
        void *memory = NULL;
        DPT_TRY(dpt_device_alloc_for(d->device, buffer_tag(d->n_on_device),
                                     (size_t)d->flat_numel * sizeof(float), &memory, err));
        d->on_device[d->n_on_device++] = memory;
    }
    return DPT_OK;
}

static enum dpt_status make_gpu_reducer(struct dpt_lane_sums *d, int rank, struct dpt_err *err)
{
    const struct dpt_gpu_reducer_spec spec = {
        .device = d->device,
        .stream = d->env.resident_comm_stream,
        .thread = d->env.comm_thread,
        .buckets = d->buckets,
        .n_buckets = d->n_buckets,
        .block = DPT_BLOCK,
        .buffers = d->on_device,
        .world = d->world,
        .rank = rank,
        .wire = dpt_wire_dtype(d->env.config),
        .any_order = is_fast(d) && dpt_wire_dtype(d->env.config) == DPT_F32 && !d->shards,
        .shards = d->shards};
    return dpt_gpu_reducer_create(&spec, &d->gpu_reducer, err);
}

enum dpt_status dpt_lane_sums_begin_generation(struct dpt_lane_sums *d,
                                               const struct dpt_world *world, int rank, int host,
                                               struct dpt_err *err)
{
    int position = 0;
    while (world->rank_of_position[position] != rank)
        position++;
    struct dpt_range sums[DPT_COVER_MAX];
    d->world = world;
    d->lanes = dpt_position_lanes(world->lanes, world->size, position);
    d->n_sums = dpt_tree_cover(world->lanes, d->lanes, sums);
    DPT_TRY(make_buffers(d, position, err));
    if (world->size > 1 && d->env.resident_comm_stream)
        return make_gpu_reducer(d, rank, err);
    const struct dpt_reducer_spec spec = {.ops = dpt_device_ops(d->env.device),
                                          .stream = d->env.comm_stream,
                                          .thread = d->env.comm_thread,
                                          .listener = d->env.listener,
                                          .buckets = d->buckets,
                                          .n_buckets = d->n_buckets,
                                          .block = DPT_BLOCK,
                                          .buffers = d->buffer,
                                          .n_buffers = d->n_buffers,
                                          .world = world,
                                          .rank = rank,
                                          .host = host,
                                          .wire = dpt_wire_dtype(d->env.config),
                                          .shards = d->shards};
    return dpt_reducer_create(&spec, &d->reducer, err);
}

void dpt_lane_sums_end_generation(struct dpt_lane_sums *d)
{
    dpt_reducer_destroy(&d->reducer);
    dpt_gpu_reducer_destroy(&d->gpu_reducer);
    d->world = NULL;
}

void dpt_lane_sums_begin_step(struct dpt_lane_sums *d, bool post)
{
    d->lane = d->lanes.first;
    d->depth = 0;
    d->status = DPT_OK;
    if (d->gpu_reducer)
        dpt_gpu_reducer_begin(d->gpu_reducer, post && !d->policy.waits);
    else if (post && !d->policy.waits)
        dpt_reducer_begin(d->reducer);
    else
        dpt_reducer_reset(d->reducer);
}

/* The reducer works in memory of the host. */
static void bring_bucket(struct dpt_lane_sums *d, const struct dpt_bucket *bucket)
{
    const size_t bytes = (size_t)(bucket->end - bucket->first) * sizeof(float);
    for (int i = 0; i < d->n_sums; i++)
        d->ops->copy(d->stream, bytes, d->on_device[i] + bucket->first,
                     (float *)dpt_comm_mem_data(d->buffer[i]) + bucket->first);
    d->status = dpt_stream_sync(d->stream, &d->err);
}

static void let_go_on_device(struct dpt_lane_sums *d, int bucket)
{
    if (!d->policy.waits)
        dpt_gpu_reducer_ready(d->gpu_reducer, d->stream, bucket);
    else if (d->status == DPT_OK)
        d->status = dpt_gpu_reducer_run(d->gpu_reducer, d->stream, bucket, &d->err);
}

/* A bucket's sums are those of this rank's lanes. */
static void let_go(struct dpt_lane_sums *d, int bucket)
{
    if (d->gpu_reducer) {
        let_go_on_device(d, bucket);
        return;
    }
    if (d->env.resident && d->world->size > 1 && d->status == DPT_OK)
        bring_bucket(d, &d->buckets[bucket]);
    if (d->env.resident && d->status != DPT_OK)
        return; /* the peers hear of it when this rank gives up */
    if (!d->policy.waits)
        dpt_reducer_ready(d->reducer, bucket);
    else if (d->status == DPT_OK)
        d->status = dpt_reducer_run(d->reducer, bucket, &d->err);
}

static void round_tensor(struct dpt_lane_sums *d, const struct dpt_param *param, float *sum)
{
    d->ops->round_to(d->stream, param->numel, dpt_wire_dtype(d->env.config), sum);
}

/* A tensor is complete in the lane being filled: joins it up the stack, while it is still in the
 * caches, each sum rounded if they are (wire.h). What lies between units stays zero. */
static void join(struct dpt_lane_sums *d, const struct dpt_param *param)
{
    int joins = dpt_tree_joins_after(d->world->lanes, d->lanes, d->lane), top = d->depth;
    round_tensor(d, param, buffer_data(d, top) + param->offset);
    if (d->direct && param->unit != d->parted) { /* the first is done */
        joins--;
        top--;
    }
    for (; joins > 0; joins--, top--) {
        float *sum = buffer_data(d, top - 1) + param->offset;
        d->ops->add(d->stream, param->numel, sum, buffer_data(d, top) + param->offset, sum);
        round_tensor(d, param, sum);
    }
}

/* The parted unit's tensor is whole in this slot: adds it to the lane's. */
static void add_apart(struct dpt_lane_sums *d, const struct dpt_param *param)
{
    float *sum = buffer_data(d, d->depth) + param->offset;
    const float *slot =
        d->apart + (param->offset - dpt_model_unit(d->env.model, d->parted)->offset);
    d->ops->add(d->stream, param->numel, sum, slot, sum);
}

static void announce(void *ctx, int param)
{
    struct dpt_lane_sums *d = ctx;
    const struct dpt_param *p = dpt_model_param(d->env.model, param);
    const int bucket = d->bucket_of_param[param];
    if (d->adds_apart && p->unit == d->parted)
        add_apart(d, p);
    if (d->lane_ends)
        join(d, p);
    if (++d->announced[bucket] == d->buckets[bucket].n_tensors && d->lane_ends &&
        d->lane == d->lanes.end - 1 && d->policy.announced)
        let_go(d, bucket);
}

/* Gradients that were packed for the way (wire.h) have left bits where nothing is written. */
static void clear_gaps(const struct dpt_lane_sums *d)
{
    for (int u = 0; u < dpt_model_n_units(d->env.model); u++)
        dpt_model_clear_gaps(d->env.model, d->ops, d->stream, u,
                             buffer_data(d, d->depth) + dpt_model_unit(d->env.model, u)->offset);
}

void dpt_lane_sums_begin_slot(struct dpt_lane_sums *d, int slot_index, struct dpt_slot *slot)
{
    struct dpt_range of_lane =
        dpt_lane_slots(dpt_config_slots(d->env.config), d->world->lanes, d->lane);
    DPT_ASSERT(slot_index >= of_lane.first && slot_index < of_lane.end);
    /* Adding a slot as it is made is adding it when it is whole, but for what is in_parts, and
     * where lanes are rounded first. */
    d->direct = dpt_wire_dtype(d->env.config) == DPT_F32 && of_lane.end - of_lane.first == 1 &&
                dpt_tree_joins_after(d->world->lanes, d->lanes, d->lane) > 0;
    for (int u = 0; u < dpt_model_n_units(d->env.model); u++)
        d->grads[u] = buffer_data(d, d->depth - (d->direct && u != d->parted)) +
                      dpt_model_unit(d->env.model, u)->offset;
    memset(d->announced, 0, (size_t)d->n_buckets * sizeof *d->announced);
    d->lane_ends = slot_index == of_lane.end - 1;
    slot->grads = d->grads;
    slot->accumulate = slot_index != of_lane.first || d->direct;
    if (slot_index == of_lane.first && dpt_wire_dtype(d->env.config) != DPT_F32)
        clear_gaps(d);
    d->adds_apart = slot_index != of_lane.first && d->apart && !is_fast(d);
    slot->parts_apart = d->adds_apart || d->direct;
    if (d->adds_apart)
        d->grads[d->parted] = d->apart;
    slot->announce = announce;
    slot->announce_ctx = d;
}

void dpt_lane_sums_end_slot(struct dpt_lane_sums *d)
{
    if (!d->lane_ends)
        return;
    d->depth += 1 - dpt_tree_joins_after(d->world->lanes, d->lanes, d->lane);
    d->lane++;
    if (d->lane == d->lanes.end && !d->policy.announced)
        for (int b = 0; b < d->n_buckets; b++)
            let_go(d, b);
}

enum dpt_status dpt_lane_sums_job(struct dpt_comm_thread *thread, void *ctx, struct dpt_err *err)
{
    struct dpt_lane_sums *d = ctx;
    return d->gpu_reducer ? dpt_gpu_reducer_job(thread, d->gpu_reducer, err)
                          : dpt_reducer_job(thread, d->reducer, err);
}

enum dpt_status dpt_lane_sums_wait(struct dpt_lane_sums *d, struct dpt_err *err)
{
    DPT_ASSERT(d->lane == d->lanes.end);
    if (d->status != DPT_OK) {
        *err = d->err;
        return d->status;
    }
    if (d->gpu_reducer)
        return dpt_gpu_reducer_wait(d->gpu_reducer, err);
    DPT_TRY(dpt_reducer_wait(d->reducer, err));
    if (d->env.resident && d->world->size > 1)
        d->ops->copy(d->stream, (size_t)d->flat_numel * sizeof(float),
                     dpt_comm_mem_data(d->buffer[0]), d->on_device[0]);
    return DPT_OK;
}

float *dpt_lane_sums_gradient(const struct dpt_lane_sums *d)
{
    return buffer_data(d, 0);
}

void dpt_lane_sums_cost(const struct dpt_lane_sums *d, struct dpt_strategy_cost *ret)
{
    const int n = d->n_buffers + d->n_on_device;
    *ret = (struct dpt_strategy_cost){.gradient_bytes = n * d->flat_numel * (int64_t)sizeof(float) +
                                                        (int64_t)(d->apart ? apart_bytes(d) : 0),
                                      .gradient_buffers = n,
                                      .sent_bytes = d->gpu_reducer
                                                        ? dpt_gpu_reducer_bytes_sent(d->gpu_reducer)
                                                        : dpt_reducer_bytes_sent(d->reducer)};
}
