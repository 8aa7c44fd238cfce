/* Distributed data parallel, and its teaching variants (ddp_policy.h): every rank holds weights,
 * moments and the whole reduced gradient. Sums of lanes give it to them, once a step (lane_sums.h);
 * or, for the variants under `accumulate: reduce` and the one that reduces after each micro-batch,
 * the slots one by one (slot_sums.h). ddp itself under `reduce` is in sharded.h.
 *
 * With a compute dtype of 16 bits the slots read a copy of the parameters, which each step's update
 * writes along with them. Where it pays their products read packed forms, made before the first
 * slot that needs them. Gradients are f32 in memory and on the wire, whatever the precision.
 *
 * With a resident device (strategy.h) the state is worked on there. The registered memory has a
 * copy, which is brought up to date when somebody wants to read it (fetch_state: a new generation,
 * a checkpoint, a check of the weights) and goes to the device when it was written. A step moves
 * nothing of it. */
#include "worker/optim/optim.h"
#include "worker/strategy/lane_sums.h"
#include "worker/strategy/packed_weights.h"
#include "worker/strategy/powersgd.h"
#include "worker/strategy/slot_sums.h"
#include "worker/strategy/strategy.h"

#include <stdlib.h>
#include <string.h>

struct ddp {
    struct dpt_strategy base;
    struct dpt_strategy_env env;
    struct dpt_device *device; /* that the state is worked on, */
    struct dpt_stream *stream; /* the main thread's there, */
    const struct dpt_ops *ops; /* and its ops */
    int64_t flat_numel;
    struct dpt_strategy_state state;
    float *resident[DPT_VECTOR_COUNT]; /* of the device, beside `state`; NULL: that is worked on */
    enum newest { BOTH, REGISTERED, RESIDENT } newest; /* which of them counts */
    const void **weights;                              /* [n_units] */
    void *copy; /* the parameters in the compute dtype; NULL: f32, they are used themselves */
    size_t copy_bytes;
    bool copy_is_old; /* the parameters were written by others since it was made */
    struct dpt_packed_weights *packed;
    struct dpt_lane_sums *lanes;   /* one of the two; */
    struct dpt_slot_sums *slots;   /* the other is NULL */
    struct dpt_powersgd *powersgd; /* reduces what the lanes have; NULL: they do */
    double *block_sums;            /* [dpt_optim_squares_max] of the host, */
    double *resident_sums;         /* and of the resident device */

    /* The generation. */
    const struct dpt_world *world;
    int rank;
    struct dpt_step_list list, eval_list;

    /* The step. */
    int64_t step;
    int64_t reduced_step; /* whose gradient is held whole; -1: none */
};

static struct ddp *ddp_of(struct dpt_strategy *s)
{
    return (struct ddp *)s;
}

static float *gradient(const struct ddp *d)
{
    return d->slots ? dpt_slot_sums_gradient(d->slots) : dpt_lane_sums_gradient(d->lanes);
}

static float *registered(const struct ddp *d, int vector)
{
    struct dpt_comm_mem *mem = d->state.own.vector[vector].mem;
    return mem ? dpt_comm_mem_data(mem) : NULL;
}

/* What the device works on. */
static float *state_data(const struct ddp *d, int vector)
{
    return d->env.resident ? d->resident[vector] : registered(d, vector);
}

static size_t vector_bytes(const struct ddp *d)
{
    return (size_t)d->flat_numel * sizeof(float);
}

static size_t block_sums_bytes(const struct ddp *d)
{
    return (size_t)dpt_optim_squares_max(d->env.model, d->flat_numel) * sizeof(double);
}

static enum dpt_memory_tag tag_of(const struct ddp *d, int vector)
{
    return dpt_vector_tag((enum dpt_vector)vector, dpt_model_dtype(d->env.model));
}

static void ddp_destroy(struct dpt_strategy **strategy)
{
    struct ddp *d = ddp_of(*strategy);
    if (!d)
        return;
    dpt_lane_sums_destroy(&d->lanes);
    dpt_powersgd_destroy(&d->powersgd);
    dpt_slot_sums_destroy(&d->slots);
    dpt_step_list_fini(&d->list);
    dpt_step_list_fini(&d->eval_list);
    for (int v = 0; v < DPT_VECTOR_COUNT; v++)
        dpt_comm_mem_destroy(&d->state.own.vector[v].mem);
    dpt_packed_weights_destroy(&d->packed);
    for (int v = 0; v < DPT_VECTOR_COUNT; v++)
        dpt_device_free_for(d->device, tag_of(d, v), d->resident[v], vector_bytes(d));
    dpt_device_free(d->device, d->resident_sums, block_sums_bytes(d));
    dpt_device_free_for(d->device, DPT_MEMORY_WEIGHTS, d->copy, d->copy_bytes);
    free(d->weights);
    dpt_device_free_host(d->device, d->block_sums, block_sums_bytes(d));
    free(d);
    *strategy = NULL;
}

static enum dpt_status make_copy(struct ddp *d, struct dpt_err *err)
{
    enum dpt_dtype dtype = dpt_model_dtype(d->env.model);
    d->copy_is_old = true;
    if (dtype == DPT_F32)
        return DPT_OK;
    d->copy_bytes = (size_t)d->flat_numel * dpt_dtype_bytes(dtype);
    return dpt_device_alloc_for(d->device, DPT_MEMORY_WEIGHTS, d->copy_bytes, &d->copy, err);
}

static enum dpt_status make_vectors(struct ddp *d, struct dpt_err *err)
{
    for (int v = 0; v < dpt_vectors(d->env.config); v++) {
        struct dpt_state_vector *vector = &d->state.own.vector[v];
        void *memory = NULL;
        vector->flat = true;
        DPT_TRY(dpt_comm_mem_create_for(d->env.listener, tag_of(d, v), false, vector_bytes(d),
                                        &vector->mem, err));
        if (d->env.resident)
            DPT_TRY(dpt_device_alloc_for(d->device, tag_of(d, v), vector_bytes(d), &memory, err));
        d->resident[v] = memory;
    }
    return DPT_OK;
}

static enum dpt_status make_block_sums(struct ddp *d, struct dpt_err *err)
{
    void *memory = NULL, *block_sums;
    DPT_TRY(dpt_device_alloc_host(d->device, block_sums_bytes(d), &block_sums, err));
    d->block_sums = block_sums;
    if (d->env.resident)
        DPT_TRY(dpt_device_alloc(d->device, block_sums_bytes(d), &memory, err));
    d->resident_sums = memory;
    return DPT_OK;
}

static enum dpt_status make_sums(struct ddp *d, struct dpt_err *err)
{
    const bool by_slots = dpt_ddp_policy_of(d->env.config).each_slot ||
                          dpt_config_accumulate(d->env.config) == DPT_ACCUMULATE_REDUCE;
    if (d->env.config->strategy.compression == DPT_COMPRESSION_POWERSGD)
        DPT_TRY(dpt_powersgd_create(&d->env, &d->powersgd, err));
    return by_slots ? dpt_slot_sums_create(&d->env, &d->slots, err)
                    : dpt_lane_sums_create(&d->env, false, &d->lanes, err);
}

static enum dpt_status make_packed(struct ddp *d, struct dpt_err *err)
{
    const struct dpt_packed_weights_options options = {.config = d->env.config,
                                                       .model = d->env.model,
                                                       .device = d->env.device,
                                                       .stream = d->env.stream,
                                                       .without = -1};
    return dpt_packed_weights_create(&options, &d->packed, err);
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
    d->device = env->resident ? env->resident : env->device;
    d->stream = env->resident ? env->resident_stream : env->stream;
    d->ops = dpt_device_ops(d->device);
    d->flat_numel = dpt_model_flat_numel(env->model);
    d->reduced_step = -1;
    d->newest = REGISTERED;
    int n_units = dpt_model_n_units(env->model);
    d->weights = calloc((size_t)n_units, sizeof *d->weights);
    d->state.own.shard = (struct dpt_shard){0, 1};
    enum dpt_status status = d->weights ? DPT_OK : dpt_fail(err, DPT_ENOMEM, "ddp: out of memory");
    if (status == DPT_OK)
        status = make_vectors(d, err);
    if (status == DPT_OK)
        status = make_block_sums(d, err);
    if (status == DPT_OK)
        status = make_copy(d, err);
    if (status == DPT_OK)
        status = make_packed(d, err);
    if (status == DPT_OK)
        status = make_sums(d, err);
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

static struct dpt_assignment ddp_assign(const struct dpt_strategy *s, const struct dpt_world *world,
                                        int position)
{
    const struct ddp *d = (const struct ddp *)s;
    return d->slots ? dpt_slot_sums_assign(d->slots, world, position)
                    : dpt_lane_sums_assign(d->lanes, world, position);
}

static enum dpt_status make_lists(struct ddp *d, struct dpt_assignment assignment,
                                  struct dpt_err *err)
{
    int borrows[DPT_UNITS_MAX];
    struct dpt_step_spec spec = {.n_units = dpt_model_n_units(d->env.model),
                                 .borrows = borrows,
                                 .assignment = assignment,
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
    const struct dpt_assignment assignment = ddp_assign(s, world, position);
    DPT_TRY(
        dpt_packed_weights_decide(d->packed, assignment.n, ranks_of_host(world, position), err));
    DPT_TRY(d->slots ? dpt_slot_sums_begin_generation(d->slots, world, rank, host, err)
                     : dpt_lane_sums_begin_generation(d->lanes, world, rank, host, err));
    if (d->powersgd)
        DPT_TRY(dpt_powersgd_begin_generation(d->powersgd, world, rank, host, err));
    DPT_TRY(make_lists(d, assignment, err));
    d->world = world;
    d->rank = rank;
    return DPT_OK;
}

static void ddp_end_generation(struct dpt_strategy *s)
{
    struct ddp *d = ddp_of(s);
    if (d->slots)
        dpt_slot_sums_end_generation(d->slots);
    else
        dpt_lane_sums_end_generation(d->lanes);
    if (d->powersgd)
        dpt_powersgd_end_generation(d->powersgd);
    dpt_step_list_fini(&d->list);
    dpt_step_list_fini(&d->eval_list);
    d->world = NULL;
}

/* Whether the present step's sums of lanes are reduced by PowerSGD. */
static bool is_compressed(const struct ddp *d)
{
    return d->powersgd && dpt_powersgd_is_due(d->powersgd, d->step);
}

/* What was written from outside goes to the device. */
static void bring_state(struct ddp *d)
{
    for (int v = 0; d->env.resident && d->newest == REGISTERED && v < DPT_VECTOR_COUNT; v++)
        if (d->resident[v])
            dpt_stager_to_device(d->env.stager, vector_bytes(d), registered(d, v), d->resident[v]);
    if (d->newest == REGISTERED)
        d->newest = BOTH;
}

static enum dpt_status ddp_fetch_state(struct dpt_strategy *s, struct dpt_err *err)
{
    struct ddp *d = ddp_of(s);
    if (!d->env.resident || d->newest != RESIDENT)
        return DPT_OK;
    for (int v = 0; v < DPT_VECTOR_COUNT; v++)
        if (d->resident[v])
            dpt_stager_to_host(d->env.stager, vector_bytes(d), d->resident[v], registered(d, v));
    DPT_TRY(dpt_stager_finish(d->env.stager, err));
    d->newest = BOTH;
    return DPT_OK;
}

static void ddp_begin_step(struct dpt_strategy *s, int64_t step)
{
    struct ddp *d = ddp_of(s);
    bring_state(d);
    d->step = step;
    d->reduced_step = -1;
    if (d->slots)
        dpt_slot_sums_begin_step(d->slots);
    else
        dpt_lane_sums_begin_step(d->lanes, !is_compressed(d));
}

static void use_weights(struct ddp *d, struct dpt_slot *slot)
{
    bring_state(d);
    if (d->copy && d->copy_is_old)
        d->ops->cast(d->stream, d->flat_numel, state_data(d, DPT_VECTOR_PARAM),
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
    use_weights(d, slot);
    if (d->slots)
        dpt_slot_sums_begin_slot(d->slots, slot);
    else
        dpt_lane_sums_begin_slot(d->lanes, slot_index, slot);
}

static void ddp_end_slot(struct dpt_strategy *s, int slot_index)
{
    const struct ddp *d = ddp_of(s);
    (void)slot_index;
    if (d->slots)
        dpt_slot_sums_end_slot(d->slots);
    else
        dpt_lane_sums_end_slot(d->lanes);
}

static enum dpt_status ddp_await_gradient(struct dpt_strategy *s, struct dpt_err *err)
{
    struct ddp *d = ddp_of(s);
    DPT_TRY(d->slots ? dpt_slot_sums_wait(d->slots, err) : dpt_lane_sums_wait(d->lanes, err));
    if (is_compressed(d))
        DPT_TRY(dpt_powersgd_reduce(d->powersgd, d->step, gradient(d), err));
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

/* Blocks are shared evenly over the ranks; the grid restarts at each unit because units are padded
 * to whole blocks. */
static enum dpt_status ddp_norm_share(struct dpt_strategy *s, struct dpt_accum *ret,
                                      struct dpt_err *err)
{
    struct ddp *d = ddp_of(s);
    const struct dpt_interval piece =
        dpt_layout_piece(d->flat_numel, DPT_BLOCK, d->world->size, d->rank);
    const int64_t n = dpt_optim_squares(d->env.model, d->ops, d->stream, piece.first, piece.end,
                                        gradient(d) + piece.first,
                                        d->env.resident ? d->resident_sums : d->block_sums);
    if (d->env.resident)
        d->ops->copy(d->stream, (size_t)n * sizeof(double), d->resident_sums, d->block_sums);
    DPT_TRY(dpt_stream_sync(d->stream, err));
    dpt_accum_init(ret);
    (void)dpt_optim_squares_add(d->env.model, piece.first, piece.end, d->block_sums, ret);
    dpt_accum_normalise(ret);
    return DPT_OK;
}

static enum dpt_status ddp_apply(struct dpt_strategy *s, const struct dpt_optim_step *step,
                                 struct dpt_err *err)
{
    struct ddp *d = ddp_of(s);
    DPT_ASSERT(d->reduced_step == step->step);
    bring_state(d);
    const struct dpt_optim_vectors flat = {.param = state_data(d, DPT_VECTOR_PARAM),
                                           .m = state_data(d, DPT_VECTOR_M),
                                           .v = state_data(d, DPT_VECTOR_V),
                                           .grad = gradient(d),
                                           .copy = d->copy};
    dpt_optim_update(d->env.config, d->env.model, d->ops, d->stream, step, 0, d->flat_numel, &flat);
    d->newest = d->env.resident ? RESIDENT : BOTH;
    forget_packed(d);
    if (is_compressed(d))
        dpt_powersgd_applied(d->powersgd, step->step);
    return dpt_stream_sync(d->stream, err);
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
    DPT_ASSERT(d->newest != RESIDENT); /* it was fetched before it was written to */
    d->newest = REGISTERED;
    d->copy_is_old = true;
    forget_packed(d);
}

static void ddp_cost(const struct dpt_strategy *s, struct dpt_strategy_cost *ret)
{
    const struct ddp *d = (const struct ddp *)s;
    if (d->slots)
        dpt_slot_sums_cost(d->slots, ret);
    else
        dpt_lane_sums_cost(d->lanes, ret);
    if (d->powersgd)
        dpt_powersgd_cost(d->powersgd, ret);
    ret->packed_bytes = dpt_packed_weights_bytes(d->packed);
}

const struct dpt_strategy_ops dpt_strategy_ddp = {
    .name = "ddp",
    .create = ddp_create,
    .destroy = ddp_destroy,
    .assign = ddp_assign,
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
    .fetch_state = ddp_fetch_state,
    .state_changed = ddp_state_changed,
    .cost = ddp_cost,
};
