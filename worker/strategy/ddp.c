/* Distributed data parallel: every rank holds weights, moments and the whole reduced gradient.
 *
 * Gradients accumulate in lane buffers (a stack, as worker/plan/lanes.h describes). When the last
 * slot of a lane announces the last tensor of a bucket, that bucket's range is joined up the stack;
 * after the last lane it goes to the reducer, while backward goes on with the tensors before it (Li
 * et al., "PyTorch Distributed", VLDB'20).
 *
 * With a compute dtype of 16 bits the slots read a copy of the parameters, which each step's update
 * writes along with them. Where it pays their products read packed forms, made before the first
 * slot that needs them. Gradients are f32 in memory and on the wire, whatever the precision. */
#include "worker/optim/optim.h"
#include "worker/strategy/packed_weights.h"
#include "worker/strategy/reducer.h"
#include "worker/strategy/strategy.h"

#include <stdlib.h>
#include <string.h>

enum { BUFFERS_MAX = DPT_COVER_MAX };

struct ddp {
    struct dpt_strategy base;
    struct dpt_strategy_env env;
    const struct dpt_ops *ops;
    int64_t flat_numel;
    struct dpt_strategy_state state;
    const void **weights; /* [n_units] */
    void *copy; /* the parameters in the compute dtype; NULL: f32, they are used themselves */
    size_t copy_bytes;
    bool copy_is_old; /* the parameters were written by others since it was made */
    struct dpt_packed_weights *packed;
    float **grads; /* [n_units], of the lane being filled */

    int n_buckets;
    struct dpt_bucket *buckets;
    int *bucket_of_param;
    int *announced; /* [n_buckets] parameters of this slot */

    int n_buffers;
    struct dpt_comm_mem *buffer[BUFFERS_MAX];
    double *block_sums;
    /* Where lanes have several slots: the present slot's gradient of the unit that others borrow,
     * which is added to the lane's when it is whole. NULL: not needed. */
    float *apart;
    int tied; /* that unit; -1: none */

    /* The generation. */
    const struct dpt_world *world;
    int rank;
    struct dpt_range lanes; /* of this rank's position */
    struct dpt_reducer *reducer;
    struct dpt_step_list list, eval_list;

    /* The step. */
    int64_t step;
    int64_t reduced_step; /* whose gradient buffer 0 holds whole; -1: none */
    int lane;             /* being filled */
    int depth;            /* index of the buffer being filled */
    bool lane_ends;       /* the present slot is the lane's last */
    bool adds_apart;      /* it is not the lane's first */
};

static struct ddp *ddp_of(struct dpt_strategy *s)
{
    return (struct ddp *)s;
}

static float *buffer_data(const struct ddp *d, int i)
{
    return dpt_comm_mem_data(d->buffer[i]);
}

static float *state_data(const struct ddp *d, enum dpt_vector vector)
{
    return dpt_comm_mem_data(d->state.own.vector[vector].mem);
}

static size_t apart_bytes(const struct ddp *d)
{
    return d->tied < 0 ? 0 : (size_t)dpt_model_unit(d->env.model, d->tied)->numel * sizeof(float);
}

static void ddp_destroy(struct dpt_strategy **strategy)
{
    struct ddp *d = ddp_of(*strategy);
    if (!d)
        return;
    dpt_reducer_destroy(&d->reducer);
    dpt_step_list_fini(&d->list);
    dpt_step_list_fini(&d->eval_list);
    for (int i = 0; i < d->n_buffers; i++)
        dpt_comm_mem_destroy(&d->buffer[i]);
    for (int v = 0; v < DPT_VECTOR_COUNT; v++)
        dpt_comm_mem_destroy(&d->state.own.vector[v].mem);
    dpt_packed_weights_destroy(&d->packed);
    dpt_device_free(d->env.device, d->copy, d->copy_bytes);
    free(d->weights);
    free(d->grads);
    free(d->buckets);
    free(d->bucket_of_param);
    free(d->announced);
    free(d->block_sums);
    dpt_device_free(d->env.device, d->apart, apart_bytes(d));
    free(d);
    *strategy = NULL;
}

static enum dpt_status make_buckets(struct ddp *d, struct dpt_err *err)
{
    const struct dpt_model *model = d->env.model;
    int n = dpt_model_n_params(model);
    int64_t *offset = calloc((size_t)n, sizeof *offset);
    d->buckets = calloc((size_t)n, sizeof *d->buckets);
    d->bucket_of_param = calloc((size_t)n, sizeof *d->bucket_of_param);
    d->announced = calloc((size_t)n, sizeof *d->announced);
    if (!offset || !d->buckets || !d->bucket_of_param || !d->announced) {
        free(offset);
        return dpt_fail(err, DPT_ENOMEM, "ddp: out of memory");
    }
    for (int i = 0; i < n; i++)
        offset[i] = dpt_model_param(model, i)->offset;
    const double mib = 1024.0 * 1024.0;
    d->n_buckets = dpt_buckets_make(
        offset, n, d->flat_numel, (int64_t)(d->env.config->strategy.first_bucket_mib * mib),
        (int64_t)(d->env.config->strategy.bucket_mib * mib), d->buckets);
    free(offset);
    for (int b = 0; b < d->n_buckets; b++)
        for (int i = 0; i < d->buckets[b].n_tensors; i++)
            d->bucket_of_param[d->buckets[b].first_tensor + i] = b;
    return DPT_OK;
}

static enum dpt_status make_apart(struct ddp *d, struct dpt_err *err)
{
    const struct dpt_config *config = d->env.config;
    for (int u = 0; u < dpt_model_n_units(d->env.model); u++)
        if (dpt_model_unit(d->env.model, u)->borrows >= 0)
            d->tied = dpt_model_unit(d->env.model, u)->borrows;
    if (d->tied < 0 || dpt_config_slots(config) == dpt_config_lanes(config))
        return DPT_OK;
    void *memory = NULL;
    DPT_TRY(dpt_device_alloc(d->env.device, apart_bytes(d), &memory, err));
    d->apart = memory;
    return DPT_OK;
}

static enum dpt_status make_copy(struct ddp *d, struct dpt_err *err)
{
    enum dpt_dtype dtype = dpt_model_dtype(d->env.model);
    d->copy_is_old = true;
    if (dtype == DPT_F32)
        return DPT_OK;
    d->copy_bytes = (size_t)d->flat_numel * dpt_dtype_bytes(dtype);
    return dpt_device_alloc(d->env.device, d->copy_bytes, &d->copy, err);
}

static enum dpt_status ddp_create(const struct dpt_strategy_env *env, struct dpt_strategy **ret,
                                  struct dpt_err *err)
{
    struct ddp *d = calloc(1, sizeof *d);
    if (!d)
        return dpt_fail(err, DPT_ENOMEM, "ddp: out of memory");
    struct dpt_strategy *self = &d->base;
    d->base.ops = &dpt_strategy_ddp;
    d->env = *env;
    d->ops = dpt_device_ops(env->device);
    d->flat_numel = dpt_model_flat_numel(env->model);
    d->reduced_step = -1;
    d->tied = -1;
    int n_units = dpt_model_n_units(env->model);
    size_t bytes = (size_t)d->flat_numel * sizeof(float);
    d->weights = calloc((size_t)n_units, sizeof *d->weights);
    d->grads = calloc((size_t)n_units, sizeof *d->grads);
    d->block_sums = calloc((size_t)(d->flat_numel / DPT_BLOCK), sizeof *d->block_sums);
    enum dpt_status status = DPT_OK;
    if (!d->weights || !d->grads || !d->block_sums)
        status = dpt_fail(err, DPT_ENOMEM, "ddp: out of memory");
    d->state.own.shard = (struct dpt_shard){0, 1};
    for (int v = 0; status == DPT_OK && v < DPT_VECTOR_COUNT; v++) {
        d->state.own.vector[v].flat = true;
        status = dpt_comm_mem_create(env->listener, bytes, &d->state.own.vector[v].mem, err);
    }
    if (status == DPT_OK)
        status = make_copy(d, err);
    if (status == DPT_OK)
        status = make_apart(d, err);
    if (status == DPT_OK)
        status = dpt_packed_weights_create(&d->env, &d->packed, err);
    if (status == DPT_OK)
        status = make_buckets(d, err);
    if (status != DPT_OK) {
        ddp_destroy(&self);
        return status;
    }
    const char *weights = d->copy ? d->copy : state_data(d, DPT_VECTOR_PARAM);
    for (int u = 0; u < n_units; u++)
        d->weights[u] = weights + (size_t)dpt_model_unit(env->model, u)->offset *
                                      dpt_dtype_bytes(dpt_model_dtype(env->model));
    *ret = self;
    return DPT_OK;
}

static int ranks_of_host(const struct dpt_world *world, int position)
{
    int n = 0;
    for (int i = 0; i < world->size; i++)
        n += world->host_of_position[i] == world->host_of_position[position];
    return n;
}

static struct dpt_deal ddp_deal(const struct dpt_strategy *s, const struct dpt_world *world,
                                int position)
{
    const struct ddp *d = (const struct ddp *)s;
    return dpt_deal_lanes(dpt_config_slots(d->env.config), world->lanes, world->size, position);
}

static enum dpt_status make_lists(struct ddp *d, struct dpt_deal deal, struct dpt_err *err)
{
    int borrows[DPT_UNITS_MAX];
    struct dpt_step_spec spec = {.n_units = dpt_model_n_units(d->env.model),
                                 .borrows = borrows,
                                 .deal = deal,
                                 .weights = DPT_WEIGHTS_HELD};
    for (int u = 0; u < spec.n_units; u++)
        borrows[u] = dpt_model_unit(d->env.model, u)->borrows;
    DPT_TRY(dpt_step_list_init(&d->list, &spec, err));
    spec.forward_only = true;
    return dpt_step_list_init(&d->eval_list, &spec, err);
}

static enum dpt_status ddp_begin_generation(struct dpt_strategy *s, const struct dpt_world *world,
                                            int rank, int host, struct dpt_err *err)
{
    struct ddp *d = ddp_of(s);
    int position = 0;
    while (world->rank_of_position[position] != rank)
        position++;
    int need = dpt_reducer_buffers(world, position);
    DPT_ASSERT(need <= BUFFERS_MAX);
    /* Buffers are kept when a larger world needs fewer: a failure, which makes worlds smaller,
     * should not wait for the kernel to clear memory that this rank has had before. */
    while (d->n_buffers < need) {
        DPT_TRY(dpt_reducer_buffer_create(d->env.listener, d->n_buffers, d->flat_numel,
                                          &d->buffer[d->n_buffers], err));
        d->n_buffers++;
    }
    const struct dpt_deal deal = ddp_deal(s, world, position);
    DPT_TRY(dpt_packed_weights_decide(d->packed, deal.n, ranks_of_host(world, position), err));
    const struct dpt_reducer_spec spec = {.ops = d->ops,
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
                                          .host = host};
    DPT_TRY(dpt_reducer_create(&spec, &d->reducer, err));
    DPT_TRY(make_lists(d, deal, err));
    d->world = world;
    d->rank = rank;
    d->lanes = dpt_position_lanes(world->lanes, world->size, position);
    return DPT_OK;
}

static void ddp_end_generation(struct dpt_strategy *s)
{
    struct ddp *d = ddp_of(s);
    dpt_reducer_destroy(&d->reducer);
    dpt_step_list_fini(&d->list);
    dpt_step_list_fini(&d->eval_list);
    d->world = NULL;
}

static void ddp_begin_step(struct dpt_strategy *s, int64_t step)
{
    struct ddp *d = ddp_of(s);
    d->step = step;
    d->reduced_step = -1;
    d->lane = d->lanes.first;
    d->depth = 0;
    dpt_reducer_begin(d->reducer);
}

/* A bucket's range is complete in the lane being filled: join it up the stack and, after the last
 * lane, let it go. */
static void bucket_complete(struct ddp *d, int bucket)
{
    const struct dpt_bucket *b = &d->buckets[bucket];
    int joins = dpt_tree_joins_after(d->world->lanes, d->lanes, d->lane);
    for (int top = d->depth; joins > 0; joins--, top--)
        d->ops->add(d->env.stream, b->end - b->first, buffer_data(d, top - 1) + b->first,
                    buffer_data(d, top) + b->first, buffer_data(d, top - 1) + b->first);
    if (d->lane == d->lanes.end - 1 && d->env.config->strategy.overlap)
        dpt_reducer_ready(d->reducer, bucket);
}

/* The tied unit's tensor is whole in this slot: adds it to the lane's. */
static void add_apart(struct ddp *d, const struct dpt_param *param)
{
    float *sum = buffer_data(d, d->depth) + param->offset;
    const float *slot = d->apart + (param->offset - dpt_model_unit(d->env.model, d->tied)->offset);
    d->ops->add(d->env.stream, param->numel, sum, slot, sum);
}

static void announce(void *ctx, int param)
{
    struct ddp *d = ctx;
    if (d->adds_apart && dpt_model_param(d->env.model, param)->unit == d->tied)
        add_apart(d, dpt_model_param(d->env.model, param));
    int bucket = d->bucket_of_param[param];
    d->announced[bucket]++;
    if (d->lane_ends && d->announced[bucket] == d->buckets[bucket].n_tensors)
        bucket_complete(d, bucket);
}

static void use_weights(struct ddp *d, struct dpt_slot *slot)
{
    if (d->copy && d->copy_is_old)
        d->ops->cast(d->env.stream, d->flat_numel, state_data(d, DPT_VECTOR_PARAM),
                     dpt_model_dtype(d->env.model), d->copy);
    d->copy_is_old = false;
    slot->weights = d->weights;
    for (int u = 0; u < dpt_model_n_units(d->env.model); u++)
        dpt_packed_weights_use(d->packed, u, slot);
}

static void forget_packed(struct ddp *d)
{
    for (int u = 0; u < dpt_model_n_units(d->env.model); u++)
        dpt_packed_weights_forget(d->packed, u);
}

static void ddp_begin_slot(struct dpt_strategy *s, int slot_index, struct dpt_slot *slot)
{
    struct ddp *d = ddp_of(s);
    struct dpt_range of_lane =
        dpt_lane_slots(dpt_config_slots(d->env.config), d->world->lanes, d->lane);
    DPT_ASSERT(slot_index >= of_lane.first && slot_index < of_lane.end);
    for (int u = 0; u < dpt_model_n_units(d->env.model); u++)
        d->grads[u] = buffer_data(d, d->depth) + dpt_model_unit(d->env.model, u)->offset;
    memset(d->announced, 0, (size_t)d->n_buckets * sizeof *d->announced);
    d->lane_ends = slot_index == of_lane.end - 1;
    use_weights(d, slot);
    slot->grads = d->grads;
    slot->accumulate = slot_index != of_lane.first;
    slot->tied_apart = d->adds_apart = slot->accumulate && d->apart;
    if (d->adds_apart)
        d->grads[d->tied] = d->apart;
    slot->announce = announce;
    slot->announce_ctx = d;
}

static void ddp_end_slot(struct dpt_strategy *s, int slot_index)
{
    struct ddp *d = ddp_of(s);
    (void)slot_index;
    if (!d->lane_ends)
        return;
    d->depth += 1 - dpt_tree_joins_after(d->world->lanes, d->lanes, d->lane);
    d->lane++;
    if (d->lane == d->lanes.end && !d->env.config->strategy.overlap)
        for (int b = 0; b < d->n_buckets; b++)
            dpt_reducer_ready(d->reducer, b);
}

static enum dpt_status ddp_await_gradient(struct dpt_strategy *s, struct dpt_err *err)
{
    struct ddp *d = ddp_of(s);
    DPT_ASSERT(d->lane == d->lanes.end);
    DPT_TRY(dpt_reducer_wait(d->reducer, err));
    d->reduced_step = d->step;
    return DPT_OK;
}

static const struct dpt_step_list *ddp_step_list(const struct dpt_strategy *s)
{
    return &((const struct ddp *)s)->list;
}

static const struct dpt_step_list *ddp_eval_list(const struct dpt_strategy *s)
{
    return &((const struct ddp *)s)->eval_list;
}

/* Its lists have nothing but the model's actions. */
static enum dpt_status ddp_act(struct dpt_strategy *s, int action, struct dpt_slot *slot,
                               struct dpt_err *err)
{
    (void)s;
    (void)action;
    (void)slot;
    return dpt_fail(err, DPT_EINVAL, "ddp: a step with an action that it does not know");
}

static void ddp_begin_eval(struct dpt_strategy *s, struct dpt_slot *slot)
{
    use_weights(ddp_of(s), slot);
}

static enum dpt_status ddp_end_eval(struct dpt_strategy *s, struct dpt_err *err)
{
    (void)s;
    (void)err;
    return DPT_OK;
}

/* Blocks are dealt evenly over the ranks; the grid restarts at each unit because units are padded
 * to whole blocks. */
static enum dpt_status ddp_norm_share(struct dpt_strategy *s, struct dpt_accum *ret,
                                      struct dpt_err *err)
{
    struct ddp *d = ddp_of(s);
    int64_t first, end;
    dpt_piece_range(d->flat_numel, DPT_BLOCK, d->world->size, d->rank, &first, &end);
    d->ops->sumsq_blocks(d->env.stream, end - first, DPT_BLOCK, buffer_data(d, 0) + first,
                         d->block_sums);
    DPT_TRY(dpt_stream_sync(d->env.stream, err));
    dpt_accum_init(ret);
    for (int64_t b = 0; b < (end - first) / DPT_BLOCK; b++)
        dpt_accum_add(ret, d->block_sums[b]);
    dpt_accum_normalise(ret);
    return DPT_OK;
}

static enum dpt_status ddp_apply(struct dpt_strategy *s, const struct dpt_optim_step *step,
                                 struct dpt_err *err)
{
    struct ddp *d = ddp_of(s);
    DPT_ASSERT(d->reduced_step == step->step);
    const struct dpt_optim_vectors flat = {.param = state_data(d, DPT_VECTOR_PARAM),
                                           .m = state_data(d, DPT_VECTOR_M),
                                           .v = state_data(d, DPT_VECTOR_V),
                                           .grad = buffer_data(d, 0),
                                           .copy = d->copy};
    dpt_optim_update(d->env.config, d->env.model, d->ops, d->env.stream, step, 0, d->flat_numel,
                     &flat);
    forget_packed(d);
    return dpt_stream_sync(d->env.stream, err);
}

static bool ddp_holds_gradient(const struct dpt_strategy *s, int64_t step)
{
    const struct ddp *d = (const struct ddp *)s;
    return d->reduced_step == step;
}

/* Every world holds the same. */
static const struct dpt_strategy_state *ddp_state(const struct dpt_strategy *s)
{
    return &((const struct ddp *)s)->state;
}

static void ddp_state_changed(struct dpt_strategy *s)
{
    struct ddp *d = ddp_of(s);
    d->copy_is_old = true;
    forget_packed(d);
}

static void ddp_cost(const struct dpt_strategy *s, struct dpt_strategy_cost *ret)
{
    const struct ddp *d = (const struct ddp *)s;
    *ret = (struct dpt_strategy_cost){.gradient_bytes = (int64_t)d->n_buffers * d->flat_numel *
                                                        (int64_t)sizeof(float),
                                      .gradient_buffers = d->n_buffers,
                                      .sent_bytes = dpt_reducer_bytes_sent(d->reducer),
                                      .packed_bytes = dpt_packed_weights_bytes(d->packed)};
}

const struct dpt_strategy_ops dpt_strategy_ddp = {
    .name = "ddp",
    .create = ddp_create,
    .destroy = ddp_destroy,
    .deal = ddp_deal,
    .begin_generation = ddp_begin_generation,
    .end_generation = ddp_end_generation,
    .step_list = ddp_step_list,
    .begin_step = ddp_begin_step,
    .begin_slot = ddp_begin_slot,
    .act = ddp_act,
    .end_slot = ddp_end_slot,
    .eval_list = ddp_eval_list,
    .begin_eval = ddp_begin_eval,
    .end_eval = ddp_end_eval,
    .await_gradient = ddp_await_gradient,
    .norm_share = ddp_norm_share,
    .apply = ddp_apply,
    .holds_gradient = ddp_holds_gradient,
    .held = ddp_state,
    .wanted = ddp_state,
    .state_changed = ddp_state_changed,
    .cost = ddp_cost,
};
