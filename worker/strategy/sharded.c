/* Sharded strategies and sums in slot order (sharded.h): zero1, zero2, zero3, fsdp, and ddp under
 * `accumulate: reduce`.
 *
 *                    state        weights
 *   ddp, no_shard    everything   held                            (Li et al., VLDB'20)
 *   zero1 (local: by lanes),
 *   zero2, shard_grad_op
 *                    own shard    gathered once a step, kept      (Rajbhandari et al., SC'20)
 *   zero3,
 *   full_shard       own shard    gathered unit by unit           (Zhao et al., VLDB'23)
 *   hybrid_shard     own shard of the node's replica, gathered unit by unit inside the node
 *
 * With a shadow, a rank of another node holds each shard too.
 */
#include "worker/strategy/sharded.h"

#include "base/log.h"
#include "base/strategy_traits.h"
#include "worker/strategy/wire.h"

#include <stdlib.h>

static struct sharded *sharded_of(struct dpt_strategy *s)
{
    return (struct sharded *)s;
}

static struct sharded_policy policy_of(const struct dpt_config *config)
{
    const struct dpt_strategy_traits traits = dpt_strategy_traits(config);
    const struct sharded_policy p = {.whole_state = traits.state == DPT_STATE_REPLICATED,
                                     .group = traits.state == DPT_STATE_PER_NODE,
                                     .shadow = traits.shadow,
                                     .weights = traits.weights,
                                     .lanes = traits.route == DPT_GRADIENT_LANES,
                                     .by_node = traits.by_node};
    return p;
}

static void sharded_destroy(struct dpt_strategy **strategy)
{
    struct sharded *s = sharded_of(*strategy);
    if (!s)
        return;
    sharded_tasks_destroy(s);
    sharded_state_destroy(s);
    free(s);
    *strategy = NULL;
}

static enum dpt_status sharded_create(const struct dpt_strategy_env *env, struct dpt_strategy **ret,
                                      struct dpt_err *err)
{
    struct sharded *s = calloc(1, sizeof *s);
    if (!s)
        return dpt_fail(err, DPT_ENOMEM, "sharded strategy: out of memory");
    s->base.ops = &dpt_strategy_sharded;
    s->env = *env;
    s->policy = policy_of(env->config);
    s->device = env->resident ? env->resident : env->device;
    s->stream = env->resident ? env->resident_stream : env->stream;
    s->comm_stream = env->resident ? env->resident_comm_stream : env->comm_stream;
    s->ops = dpt_device_ops(s->device);
    s->dtype = dpt_model_dtype(env->model);
    s->width = dpt_dtype_bytes(s->dtype);
    s->wire = dpt_wire_dtype(env->config);
    s->n_units = dpt_model_n_units(env->model);
    s->flat_numel = dpt_model_flat_numel(env->model);
    s->stale = true;
    s->reduced_step = s->tied = -1;
    for (int u = 0; u < s->n_units; u++) {
        s->borrows[u] = dpt_model_unit(env->model, u)->borrows;
        if (s->borrows[u] >= 0) {
            DPT_ASSERT(s->tied < 0 || s->tied == s->borrows[u]);
            s->tied = s->borrows[u];
        }
    }
    struct dpt_strategy *self = &s->base;
    enum dpt_status status = sharded_state_create(s, err);
    if (status == DPT_OK && s->policy.lanes)
        status = dpt_lane_sums_create(&s->env, true, &s->lanes, err);
    if (status != DPT_OK)
        sharded_destroy(&self);
    else
        *ret = self;
    return status;
}

/* The waves of those who sum together with the rank at a position. */
static struct dpt_waves waves_of(const struct sharded *s, const struct dpt_world *world,
                                 int position, int *ret_member)
{
    const bool reduce = dpt_config_accumulate(s->env.config) == DPT_ACCUMULATE_REDUCE;
    const int lanes = reduce ? 1 : world->lanes;
    const struct dpt_range members =
        s->policy.by_node ? dpt_world_node(world, position) : (struct dpt_range){0, world->size};
    *ret_member = position - members.first;
    return (struct dpt_waves){.slots = dpt_config_slots(s->env.config),
                              .lanes = lanes,
                              .run = s->policy.by_node ? dpt_world_lanes(world, members)
                                                       : (struct dpt_range){0, lanes},
                              .members = members.end - members.first};
}

static struct dpt_assignment sharded_assign(const struct dpt_strategy *strategy,
                                            const struct dpt_world *world, int position)
{
    const struct sharded *s = (const struct sharded *)strategy;
    int member;
    const struct dpt_waves waves = waves_of(s, world, position, &member);
    if (s->lanes)
        return dpt_lane_sums_assign(s->lanes, world, position);
    return dpt_waves_assign(&waves, member);
}

static void warn_of_bare_shards(const struct sharded *s)
{
    int bare = 0;
    for (int p = 0; p < s->world->size; p++)
        bare += dpt_shadow_holder(s->world, s->shadow_shift, p) < 0;
    if (bare > 0)
        dpt_log(DPT_LOG_WARN,
                "%d of %d shards have no shadow: one node has more than half of the ranks; its "
                "loss costs back to the newest checkpoint",
                bare, s->world->size);
}

/* A holder needs the sums as they are summed: where zero1 would send its sums of lanes once a step,
 * with shadows it sends what zero2 does. */
static void warn_of_slots_sent(struct sharded *s)
{
    if (s->told_of_slots || s->shadow_shift == 0 || s->position != 0 ||
        !dpt_strategy_traits(s->env.config).warns_slots)
        return;
    const struct dpt_world *world = s->world;
    struct dpt_range sums[DPT_COVER_MAX];
    const int n_sums =
        dpt_tree_cover(world->lanes, dpt_position_lanes(world->lanes, world->size, 0), sums);
    const double mib = 1024.0 * 1024.0, others = (world->size - 1.0) / world->size;
    const double each = (double)n_sums * (double)dpt_dtype_bytes(s->wire) + (double)s->width;
    dpt_log(DPT_LOG_WARN,
            "strategy.redundancy: shadow makes zero1 send the gradient of every slot, as zero2 "
            "does, in place of sums of lanes: %.1f MiB a step instead of about %.1f; zero2 with "
            "shadows sends no more and keeps fewer sums, and hybrid_shard sends sums between "
            "nodes once a step",
            (double)sharded_bytes_sent(s) / mib, others * each * (double)s->flat_numel / mib);
    s->told_of_slots = true;
}

static enum dpt_status sharded_begin_generation(struct dpt_strategy *strategy,
                                                const struct dpt_world *world, int rank, int host,
                                                struct dpt_err *err)
{
    struct sharded *s = sharded_of(strategy);
    s->world = world;
    s->rank = rank;
    s->host = host;
    s->position = 0;
    while (world->rank_of_position[s->position] != rank)
        s->position++;
    int member;
    s->waves = waves_of(s, world, s->position, &member);
    s->reduced_step = -1; /* what was to be applied has been */
    sharded_find_group(s);
    if (s->policy.shadow && s->position == 0)
        warn_of_bare_shards(s);
    DPT_TRY(sharded_state_begin(s, err));
    DPT_TRY(sharded_tasks_begin(s, err));
    if (s->policy.shadow)
        warn_of_slots_sent(s);
    return DPT_OK;
}

static void sharded_end_generation(struct dpt_strategy *strategy)
{
    struct sharded *s = sharded_of(strategy);
    sharded_tasks_end(s);
    s->world = NULL;
}

static const struct dpt_step_list *sharded_step_list(const struct dpt_strategy *s)
{
    return &((const struct sharded *)s)->list;
}

static const struct dpt_step_list *sharded_eval_list(const struct dpt_strategy *s)
{
    return &((const struct sharded *)s)->eval_list;
}

/* Weights that stay are gathered again only when they have changed. */
static bool gathered_already(const struct sharded *s)
{
    return s->policy.weights == DPT_WEIGHTS_ONCE && !s->stale;
}

static void sharded_begin_step(struct dpt_strategy *strategy, int64_t step)
{
    struct sharded *s = sharded_of(strategy);
    s->step = step;
    s->reduced_step = -1;
    s->present = &s->list;
    sharded_state_refresh(s);
    sharded_rebuild_step(s);
    if (s->lanes)
        dpt_lane_sums_begin_step(s->lanes, false);
    dpt_task_runner_begin(s->runner, &s->list, gathered_already(s), s->lanes != NULL);
}

static void ignore_announcement(void *ctx, int param)
{
    (void)ctx;
    (void)param;
}

static void sharded_begin_slot(struct dpt_strategy *strategy, int slot_index, struct dpt_slot *slot)
{
    struct sharded *s = sharded_of(strategy);
    slot->weights = s->weights;
    if (s->lanes) {
        dpt_lane_sums_begin_slot(s->lanes, slot_index, slot);
        return;
    }
    slot->grads = s->grads;
    slot->announce = ignore_announcement; /* units are let go whole */
}

static void sharded_end_slot(struct dpt_strategy *strategy, int slot_index)
{
    struct sharded *s = sharded_of(strategy);
    (void)slot_index;
    if (s->lanes)
        dpt_lane_sums_end_slot(s->lanes);
}

static enum dpt_status sharded_act(struct dpt_strategy *strategy, int action, struct dpt_slot *slot,
                                   struct dpt_err *err)
{
    struct sharded *s = sharded_of(strategy);
    const struct dpt_action *a = &s->present->actions[action];
    (void)slot; /* it points to the tables that are filled in here */
    switch (a->kind) {
    case DPT_ACTION_GATHER:
        DPT_TRY(dpt_task_runner_await(s->runner, a->first_task, a->n_tasks, false, err));
        if (a->buffer >= 0)
            s->weights[a->unit] = s->gathered[a->buffer];
        return DPT_OK;
    case DPT_ACTION_RESERVE:
        DPT_TRY(dpt_task_runner_await(s->runner, a->first_task, a->n_tasks, true, err));
        s->grads[a->unit] = s->gradient[a->buffer].data;
        dpt_model_clear_gaps(s->env.model, s->ops, s->stream, a->unit, s->grads[a->unit]);
        return DPT_OK;
    case DPT_ACTION_FREE:
    case DPT_ACTION_REDUCE:
        if (a->kind == DPT_ACTION_REDUCE)
            sharded_round_gradient(s, a->unit);
        if (!s->env.resident) /* others read, or overwrite, from here on; a device's wait for it */
            DPT_TRY(dpt_stream_sync(s->stream, err));
        DPT_TRY(dpt_task_runner_advance(s->runner, action + 1, err));
        return dpt_task_runner_await(s->runner, a->first_task, a->n_tasks, true, err);
    default:
        break;
    }
    return dpt_fail(err, DPT_EINVAL, "sharded strategy: an action that it does not know");
}

static void sharded_begin_eval(struct dpt_strategy *strategy, struct dpt_slot *slot)
{
    struct sharded *s = sharded_of(strategy);
    s->present = &s->eval_list;
    sharded_state_refresh(s);
    slot->weights = s->weights;
    dpt_task_runner_begin(s->runner, &s->eval_list, gathered_already(s), false);
}

static enum dpt_status sharded_end_eval(struct dpt_strategy *strategy, struct dpt_err *err)
{
    struct sharded *s = sharded_of(strategy);
    DPT_TRY(dpt_task_runner_end(s->runner, err));
    s->stale = s->policy.weights == DPT_WEIGHTS_UNITS;
    return DPT_OK;
}

static enum dpt_status sharded_await_gradient(struct dpt_strategy *strategy, struct dpt_err *err)
{
    struct sharded *s = sharded_of(strategy);
    DPT_TRY(dpt_task_runner_end(s->runner, err));
    s->reduced_step = s->step;
    return DPT_OK;
}

static enum dpt_status sharded_norm_share(struct dpt_strategy *strategy, struct dpt_accum *ret,
                                          struct dpt_err *err)
{
    return sharded_norm(sharded_of(strategy), ret, err);
}

static enum dpt_status sharded_apply_step(struct dpt_strategy *strategy,
                                          const struct dpt_optim_step *step, struct dpt_err *err)
{
    struct sharded *s = sharded_of(strategy);
    DPT_ASSERT(s->reduced_step == step->step);
    return sharded_apply(s, step, err);
}

static bool sharded_holds_gradient(const struct dpt_strategy *strategy, int64_t step)
{
    return ((const struct sharded *)strategy)->reduced_step == step;
}

static const struct dpt_strategy_state *sharded_held(const struct dpt_strategy *strategy)
{
    return &((const struct sharded *)strategy)->held;
}

static const struct dpt_strategy_state *sharded_wanted(const struct dpt_strategy *strategy)
{
    const struct sharded *s = (const struct sharded *)strategy;
    return s->moves ? &s->wanted : &s->held;
}

static enum dpt_status sharded_fetch(struct dpt_strategy *strategy, struct dpt_err *err)
{
    return sharded_state_fetch(sharded_of(strategy), err);
}

static void sharded_changed(struct dpt_strategy *strategy)
{
    sharded_state_changed(sharded_of(strategy));
}

static struct dpt_shard sharded_defer(struct dpt_strategy *strategy)
{
    return sharded_defer_shadow(sharded_of(strategy));
}

static void sharded_rebuild(struct dpt_strategy *strategy, const bool *late)
{
    sharded_rebuild_begin(sharded_of(strategy), late);
}

static bool sharded_rebuilding(const struct dpt_strategy *strategy)
{
    return ((const struct sharded *)strategy)->rebuilds;
}

static void sharded_cost(const struct dpt_strategy *strategy, struct dpt_strategy_cost *ret)
{
    const struct sharded *s = (const struct sharded *)strategy;
    if (s->lanes) {
        dpt_lane_sums_cost(s->lanes, ret);
        ret->sent_bytes = sharded_bytes_sent(s);
        return;
    }
    *ret = (struct dpt_strategy_cost){.gradient_buffers = s->n_gradients + s->n_sums,
                                      .sent_bytes = sharded_bytes_sent(s)};
    for (int i = 0; i < s->n_gradients; i++)
        ret->gradient_bytes += (int64_t)(s->gradient[i].bytes + s->narrow_gradient[i].bytes);
    for (int i = 0; i < s->n_sums; i++)
        ret->gradient_bytes += (int64_t)s->sums[i].bytes;
    ret->gradient_bytes +=
        (int64_t)(s->added.bytes + s->applied.bytes + s->shadowed.bytes + s->narrow_sum.bytes);
}

const struct dpt_strategy_ops dpt_strategy_sharded = {
    .name = "sharded",
    .create = sharded_create,
    .destroy = sharded_destroy,
    .assign = sharded_assign,
    .begin_generation = sharded_begin_generation,
    .end_generation = sharded_end_generation,
    .step_list = sharded_step_list,
    .begin_step = sharded_begin_step,
    .begin_slot = sharded_begin_slot,
    .act = sharded_act,
    .end_slot = sharded_end_slot,
    .eval_list = sharded_eval_list,
    .begin_eval = sharded_begin_eval,
    .end_eval = sharded_end_eval,
    .await_gradient = sharded_await_gradient,
    .norm_share = sharded_norm_share,
    .apply = sharded_apply_step,
    .holds_gradient = sharded_holds_gradient,
    .held = sharded_held,
    .wanted = sharded_wanted,
    .fetch_state = sharded_fetch,
    .state_changed = sharded_changed,
    .defer_shadow = sharded_defer,
    .rebuild = sharded_rebuild,
    .rebuilding = sharded_rebuilding,
    .cost = sharded_cost,
};
