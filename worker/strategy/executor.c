/* The strategy: carries out the actions of a list (strategy.h, strategy_internal.h). The table in
 * base/strategy_traits.c says how strategies differ in state, weights and the route of gradients.
 * ddp: Li et al., VLDB'20. zero1 to zero3: Rajbhandari et al., SC'20. fsdp: Zhao et al., VLDB'23.
 * dp: torch.nn.DataParallel. With shadows, a rank of another node also holds each shard. */
#include "base/log.h"
#include "worker/strategy/strategy_internal.h"

#include <stdlib.h>
#include <string.h>

/* ---- life ---- */

static size_t block_sums_bytes(const struct dpt_strategy *s)
{
    return (size_t)dpt_optim_squares_max(s->env.model, s->flat_numel) * sizeof *s->block_sums;
}

void dpt_strategy_destroy(struct dpt_strategy **strategy)
{
    struct dpt_strategy *s = *strategy;
    if (!s)
        return;
    strategy_lists_end(s);
    strategy_lanes_destroy(s);
    strategy_waves_destroy(s);
    strategy_state_destroy(s);
    dpt_packed_weights_destroy(&s->packed);
    dpt_model_buckets_fini(&s->buckets);
    free(s->step.announced);
    dpt_device_free(s->device, s->device_sums, block_sums_bytes(s));
    dpt_device_free_host(s->device, s->block_sums, block_sums_bytes(s));
    free(s);
    *strategy = NULL;
}

static enum dpt_status make_block_sums(struct dpt_strategy *s, struct dpt_err *err)
{
    void *memory = NULL, *block_sums;
    DPT_TRY(dpt_device_alloc_host(s->device, block_sums_bytes(s), &block_sums, err));
    s->block_sums = block_sums;
    if (s->traits.on_device)
        DPT_TRY(dpt_device_alloc(s->device, block_sums_bytes(s), &memory, err));
    s->device_sums = memory;
    return DPT_OK;
}

/* Makes the buckets, and a counter of announced tensors for each. */
static enum dpt_status make_buckets(struct dpt_strategy *s, struct dpt_err *err)
{
    DPT_TRY(dpt_model_buckets_init(&s->buckets, s->env.config, s->env.model, err));
    s->step.announced = calloc((size_t)s->buckets.n, sizeof *s->step.announced);
    return s->step.announced ? DPT_OK : dpt_fail_nomem(err, "strategy");
}

static void list_memory(struct dpt_strategy *s)
{
    const struct dpt_memory_place place = {.config = s->env.config,
                                           .model = s->env.model,
                                           .grid = s->env.grid,
                                           .ranges = &s->buckets.ranges,
                                           .part = &s->part};
    dpt_memory_list_make(&place, &s->memory);
}

static enum dpt_status make_strategy(struct dpt_strategy *s, struct dpt_err *err)
{
    const struct dpt_packed_weights_options packing = {.config = s->env.config,
                                                       .model = s->env.model,
                                                       .device = s->env.device,
                                                       .stream = s->env.stream,
                                                       .without = -1};
    static const int alone[] = {0};
    const struct dpt_world world = {
        .lanes = 1, .size = 1, .rank_of_position = alone, .host_of_position = alone};
    /* Only memory that is the same in every world is made from this. */
    s->part = dpt_partition_of(s->env.config, &world, 0);
    DPT_TRY(make_buckets(s, err));
    list_memory(s);
    s->part.world = NULL;
    DPT_TRY(strategy_state_create(s, err));
    DPT_TRY(make_block_sums(s, err));
    return s->traits.may_pack ? dpt_packed_weights_create(&packing, &s->packed, err) : DPT_OK;
}

enum dpt_status dpt_strategy_create(const struct dpt_strategy_env *env, struct dpt_strategy **ret,
                                    struct dpt_err *err)
{
    const struct dpt_strategy_traits traits = dpt_strategy_traits(env->config);
    if (!traits.known)
        return dpt_fail(err, DPT_ECONFIG, "strategy.name: there is no strategy '%s'",
                        env->config->strategy.name);
    struct dpt_strategy *s = calloc(1, sizeof *s);
    if (!s)
        return dpt_fail_nomem(err, "strategy");
    DPT_ASSERT(traits.on_device == (env->state_device != NULL) &&
               traits.by_nccl == (env->state_comm_stream != NULL));
    s->env = *env;
    s->traits = traits;
    s->route = traits.route == DPT_GRADIENT_LANES ? &strategy_by_lanes : &strategy_by_waves;
    s->device = traits.on_device ? env->state_device : env->device;
    s->stream = traits.on_device ? env->state_stream : env->stream;
    s->comm_stream = traits.by_nccl ? env->state_comm_stream : env->comm_stream;
    s->ops = dpt_device_ops(s->device);
    s->dtype = dpt_model_dtype(env->model);
    s->width = dpt_dtype_bytes(s->dtype);
    s->wire = dpt_dtype_of(traits.wire);
    s->n_units = dpt_model_n_units(env->model);
    s->flat_numel = dpt_model_flat_numel(env->model);
    s->step.reduced_step = -1;
    for (int u = 0; u < s->n_units; u++)
        s->borrows[u] = dpt_model_unit(env->model, u)->borrows;
    const enum dpt_status status = make_strategy(s, err);
    if (status != DPT_OK)
        dpt_strategy_destroy(&s);
    else
        *ret = s;
    return status;
}

/* ---- a generation ---- */

static void warn_of_shards_without_shadow(const struct dpt_strategy *s)
{
    const struct dpt_world *world = s->part.world;
    int unshadowed = 0;
    for (int p = 0; p < world->size; p++)
        unshadowed += dpt_shadow_holder(world, s->part.shadow_shift, p) < 0;
    if (unshadowed > 0)
        dpt_log(DPT_LOG_WARN,
                "%d of %d shards have no shadow: one node has more than half of the ranks; its "
                "loss sets the run back to the newest checkpoint",
                unshadowed, world->size);
}

/* The holder of a shadow needs each sum when it is made. A strategy that sends its sums of lanes
 * once a step therefore sends the gradient of every slot if it has shadows. */
static void warn_of_slots_sent(struct dpt_strategy *s)
{
    if (s->told_of_slots || s->part.shadow_shift == 0 || !s->traits.warns_slots)
        return;
    const struct dpt_world *world = s->part.world;
    struct dpt_range sums[DPT_COVER_MAX];
    const int n_sums =
        dpt_tree_cover(world->lanes, dpt_position_lanes(world->lanes, world->size, 0), sums);
    const double mib = 1024.0 * 1024.0, others = (world->size - 1.0) / world->size;
    const double each = (double)n_sums * (double)dpt_dtype_bytes(s->wire) + (double)s->width;
    dpt_log(DPT_LOG_WARN,
            "strategy.redundancy: shadow makes %s send the gradient of every slot in place of "
            "sums of lanes: %.1f MiB a step instead of about %.1f; zero2 with shadows sends no "
            "more and keeps fewer sums, and hybrid_shard sends sums between nodes once a step",
            s->traits.name, (double)strategy_task_bytes(s) / mib,
            others * each * (double)s->flat_numel / mib);
    s->told_of_slots = true;
}

enum dpt_status dpt_strategy_begin_generation(struct dpt_strategy *s, const struct dpt_world *world,
                                              int rank, struct dpt_err *err)
{
    s->part = dpt_partition_of(s->env.config, world, rank);
    list_memory(s);
    s->step.reduced_step = -1; /* a committed step was applied before */
    const bool first = s->part.position == 0;
    if (s->traits.shadow && first)
        warn_of_shards_without_shadow(s);
    DPT_TRY(strategy_state_begin(s, err));
    if (s->packed)
        DPT_TRY(dpt_packed_weights_decide(
            s->packed, dpt_partition_assign(s->env.config, world, s->part.position).n,
            s->part.host.end - s->part.host.first, err));
    DPT_TRY(strategy_lists_begin(s, err));
    if (s->traits.shadow && first)
        warn_of_slots_sent(s);
    return DPT_OK;
}

void dpt_strategy_end_generation(struct dpt_strategy *s)
{
    strategy_lists_end(s);
    s->part.world = NULL;
}

const struct dpt_step_list *dpt_strategy_step_list(const struct dpt_strategy *s)
{
    return &s->list;
}

const struct dpt_step_list *dpt_strategy_eval_list(const struct dpt_strategy *s)
{
    return &s->eval_list;
}

/* ---- a step ---- */

/* Whole weights that a rank keeps are gathered again only after they changed. */
static bool gathered_already(const struct dpt_strategy *s)
{
    return s->traits.weights == DPT_WEIGHTS_ONCE && !s->state.stale;
}

/* The first REDUCE of the list from action `at` on. */
static int next_reduce(const struct dpt_step_list *list, int at)
{
    while (at < list->n_actions && list->actions[at].kind != DPT_ACTION_REDUCE)
        at++;
    return at;
}

void dpt_strategy_begin_step(struct dpt_strategy *s, int64_t step)
{
    s->step.step = step;
    s->step.reduced_step = -1;
    s->step.status = DPT_OK;
    s->step.present = &s->list;
    s->step.next_reduce = next_reduce(&s->list, 0);
    strategy_state_refresh(s);
    strategy_rebuild_step(s);
    const bool job = s->route->begin_step && s->route->begin_step(s);
    dpt_task_runner_begin(s->runner, &s->list, gathered_already(s), job);
}

/* After this call transfers may read, or overwrite, the memory that the action's unit used. */
static enum dpt_status act_let_go(struct dpt_strategy *s, int action, struct dpt_err *err)
{
    const struct dpt_action *a = &s->step.present->actions[action];
    DPT_TRY(dpt_task_runner_advance(s->runner, action + 1, err));
    return dpt_task_runner_await(s->runner, a->first_task, a->n_tasks, true, err);
}

/* Reduces a range whose gradient, or sum of lanes, is complete. */
static enum dpt_status reduce_range(struct dpt_strategy *s, int action, struct dpt_err *err)
{
    s->step.next_reduce = next_reduce(&s->list, action + 1);
    DPT_TRY(s->route->reduce(s, s->list.actions[action].unit, err));
    return s->route->sends_by_job ? DPT_OK : act_let_go(s, action, err);
}

/* Backward calls this when a tensor's gradient is complete. The bucket's REDUCE action returns an
 * error that occurs here. */
static void announce_tensor(void *ctx, int param)
{
    struct dpt_strategy *s = ctx;
    const int bucket = s->buckets.of_param[param], at = s->step.next_reduce;
    if (s->route->add_tensor)
        s->route->add_tensor(s, param);
    s->step.announced[bucket]++;
    if (!s->traits.buckets.announced || s->step.status != DPT_OK || at == s->list.n_actions ||
        s->step.announced[bucket] < s->buckets.bucket[bucket].n_tensors ||
        s->list.actions[at].slot != s->step.slot)
        return;
    DPT_ASSERT(s->list.actions[at].unit == s->buckets.n - 1 - bucket);
    s->step.status = reduce_range(s, at, &s->step.err);
}

static void use_weights(struct dpt_strategy *s, struct dpt_slot *slot)
{
    slot->weights = s->state.weights;
    if (s->packed)
        dpt_packed_weights_use(s->packed, slot);
}

void dpt_strategy_begin_slot(struct dpt_strategy *s, int slot_index, struct dpt_slot *slot)
{
    s->step.slot = slot_index;
    use_weights(s, slot);
    slot->grads = s->step.grads;
    slot->announce = announce_tensor;
    slot->announce_ctx = s;
    memset(s->step.announced, 0, (size_t)s->buckets.n * sizeof *s->step.announced);
    if (s->route->begin_slot)
        s->route->begin_slot(s, slot_index, slot);
}

static enum dpt_status act_gather(struct dpt_strategy *s, const struct dpt_action *a,
                                  struct dpt_err *err)
{
    DPT_TRY(dpt_task_runner_await(s->runner, a->first_task, a->n_tasks, false, err));
    if (a->buffer >= 0)
        s->state.weights[a->unit] = s->state.gathered[a->buffer].data;
    return DPT_OK;
}

static enum dpt_status act_reserve(struct dpt_strategy *s, const struct dpt_action *a,
                                   struct dpt_err *err)
{
    DPT_TRY(dpt_task_runner_await(s->runner, a->first_task, a->n_tasks, true, err));
    if (a->unit < 0) /* the flat vector, whose gaps no op writes */
        return DPT_OK;
    s->step.grads[a->unit] = s->waves.gradient[a->buffer].data;
    dpt_model_clear_gaps(s->env.model, s->ops, s->stream, a->unit, s->step.grads[a->unit]);
    return DPT_OK;
}

static enum dpt_status act_reduce(struct dpt_strategy *s, int action, struct dpt_err *err)
{
    if (s->step.status != DPT_OK) {
        *err = s->step.err;
        return s->step.status;
    }
    return action < s->step.next_reduce ? DPT_OK /* an announcement reduced the bucket */
                                        : reduce_range(s, action, err);
}

enum dpt_status dpt_strategy_act(struct dpt_strategy *s, int action, struct dpt_err *err)
{
    const struct dpt_action *a = &s->step.present->actions[action];
    switch (a->kind) {
    case DPT_ACTION_GATHER:
        return act_gather(s, a, err);
    case DPT_ACTION_RESERVE:
        return act_reserve(s, a, err);
    case DPT_ACTION_FREE:
        return act_let_go(s, action, err);
    case DPT_ACTION_REDUCE:
        return act_reduce(s, action, err);
    default:
        return dpt_fail(err, DPT_EINVAL, "action %d of a step is not the strategy's", action);
    }
}

enum dpt_status dpt_strategy_await_gradient(struct dpt_strategy *s, struct dpt_err *err)
{
    DPT_ASSERT(s->step.next_reduce == s->list.n_actions);
    DPT_TRY(dpt_task_runner_end(s->runner, err));
    if (s->route->finish)
        DPT_TRY(s->route->finish(s, err));
    s->step.reduced_step = s->step.step;
    return DPT_OK;
}

/* ---- an evaluation ---- */

void dpt_strategy_begin_eval(struct dpt_strategy *s, struct dpt_slot *slot)
{
    s->step.present = &s->eval_list;
    strategy_state_refresh(s);
    use_weights(s, slot);
    dpt_task_runner_begin(s->runner, &s->eval_list, gathered_already(s), false);
}

enum dpt_status dpt_strategy_end_eval(struct dpt_strategy *s, struct dpt_err *err)
{
    DPT_TRY(dpt_task_runner_end(s->runner, err));
    s->state.stale = s->traits.weights == DPT_WEIGHTS_UNITS;
    return DPT_OK;
}

/* ---- the state ---- */

bool dpt_strategy_holds_gradient(const struct dpt_strategy *s, int64_t step)
{
    return s->step.reduced_step == step;
}

const struct dpt_strategy_state *dpt_strategy_held(const struct dpt_strategy *s)
{
    return &s->state.held;
}

const struct dpt_strategy_state *dpt_strategy_wanted(const struct dpt_strategy *s)
{
    const struct strategy_state *state = &s->state;
    return state->moves ? &state->wanted : &state->held;
}

bool dpt_strategy_rebuilding(const struct dpt_strategy *s)
{
    return s->rebuild.active;
}

void dpt_strategy_cost(const struct dpt_strategy *s, struct dpt_strategy_cost *ret)
{
    *ret = (struct dpt_strategy_cost){.sent_bytes = strategy_task_bytes(s)};
    s->route->cost(s, ret);
    ret->packed_bytes = s->packed ? dpt_packed_weights_bytes(s->packed) : 0;
}
