/* Places and pieces of gradients and sums (strategy_internal.h). */
#include "worker/strategy/strategy_internal.h"

static struct dpt_shard shard_of_whole(const struct dpt_strategy *s, int position)
{
    return s->waves.crossed ? (struct dpt_shard){s->waves.crossed[position], s->part.world->size}
                            : dpt_partition_added(&s->part, position);
}

static bool sum_is_flat(const struct dpt_strategy *s)
{
    return s->traits.state == DPT_STATE_REPLICATED && !s->step.flat_gradient;
}

/* The gradient of a shard. `data` is its memory in waves by units, and is not read otherwise. */
static struct strategy_gradient gradient_of(const struct dpt_strategy *s, float *data,
                                            struct dpt_shard shard)
{
    float *flat = s->step.flat_gradient;
    return flat ? (struct strategy_gradient){flat, true, shard}
                : (struct strategy_gradient){data, sum_is_flat(s), shard};
}

struct strategy_gradient strategy_whole_gradient(const struct dpt_strategy *s)
{
    return gradient_of(s, s->waves.crossed ? s->waves.added.data : s->waves.sums[0].data,
                       shard_of_whole(s, s->part.position));
}

struct strategy_gradient strategy_own_gradient(const struct dpt_strategy *s)
{
    return gradient_of(s, s->waves.applied.data ? s->waves.applied.data : s->waves.sums[0].data,
                       s->state.held.own.shard);
}

struct strategy_gradient strategy_shadow_gradient(const struct dpt_strategy *s)
{
    return (struct strategy_gradient){.data = s->waves.shadowed.data,
                                      .shard = strategy_shadow(s)->shard};
}

float *strategy_gradient_at(const struct dpt_strategy *s, const struct strategy_gradient *g,
                            int unit)
{
    return g->data + (g->flat ? dpt_shard_piece(s->env.grid, g->shard, unit).first
                              : dpt_shard_offset(s->env.grid, g->shard, unit));
}

size_t strategy_width(const struct dpt_strategy *s, int position)
{
    return dpt_partition_is_far(&s->part, position) ? dpt_dtype_bytes(s->wire) : sizeof(float);
}

bool strategy_is_narrow(const struct dpt_strategy *s, int position)
{
    return strategy_width(s, position) != sizeof(float);
}

bool strategy_computes(const struct dpt_strategy *s, const struct dpt_task *task, int position)
{
    return position - s->part.members.first < task->active;
}

struct dpt_interval strategy_held_piece(const struct dpt_strategy *s, int position, int unit)
{
    return dpt_shard_piece(s->env.grid, dpt_partition_held(&s->part, position), unit);
}

struct dpt_interval strategy_applied_piece(const struct dpt_strategy *s, int position, int range)
{
    return dpt_shard_piece(&s->buckets.ranges, dpt_partition_held(&s->part, position), range);
}

struct dpt_interval strategy_added_piece(const struct dpt_strategy *s, int position, int range)
{
    return dpt_shard_piece(&s->buckets.ranges, dpt_partition_added(&s->part, position), range);
}

struct dpt_interval strategy_whole_piece(const struct dpt_strategy *s, int position, int range)
{
    return dpt_shard_piece(&s->buckets.ranges, shard_of_whole(s, position), range);
}

float *strategy_sum(const struct dpt_strategy *s, int sum, int range)
{
    float *data = s->waves.sums[sum].data;
    return data + (sum == 0 && sum_is_flat(s)
                       ? strategy_added_piece(s, s->part.position, range).first
                       : s->waves.own_at[range]);
}

float *strategy_crossed_sum(const struct dpt_strategy *s, int unit)
{
    float *data = s->waves.added.data;
    return data + dpt_shard_offset(s->env.grid, shard_of_whole(s, s->part.position), unit);
}

size_t strategy_narrow_offset(const struct dpt_strategy *s, int range, int64_t at)
{
    return (size_t)(s->waves.own_at[range] + at) * dpt_dtype_bytes(s->wire);
}
