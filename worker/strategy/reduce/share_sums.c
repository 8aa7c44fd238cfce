/* Tasks of kind SHARE (strategy_internal.h): owners send sums to the other ranks that apply them
 * (all ranks, the replicas, the holder of the shadow). */
#include "worker/strategy/reduce/packed_values.h"
#include "worker/strategy/strategy_internal.h"

/* The elements of a range whose sum the rank at `from` has, and which the rank at `to` also
 * applies. */
static struct dpt_interval shared_piece(const struct dpt_strategy *s, int from, int to, int range)
{
    const struct dpt_partition *p = &s->part;
    const struct dpt_interval whole = strategy_whole_piece(s, from, range);
    if (s->traits.shadow) {
        const bool covers = (from == p->position && to == p->shadow_holder) ||
                            (to == p->position && from == p->shadow_source);
        return covers ? whole : (struct dpt_interval){0, 0};
    }
    return dpt_interval_intersect(whole, strategy_applied_piece(s, to, range));
}

/* The place of element `element` of a range in this rank's gradient. */
static float *share_place(const struct dpt_strategy *s, int range, int64_t element)
{
    const struct strategy_gradient g =
        s->traits.shadow ? strategy_shadow_gradient(s) : strategy_own_gradient(s);
    if (g.flat)
        return g.data + element;
    return strategy_gradient_at(s, &g, range) +
           (element - dpt_shard_piece(s->env.grid, g.shard, range).first);
}

/* This rank's sum of its piece, before it is shared. */
static float *whole_sum(const struct dpt_strategy *s, int range)
{
    return s->waves.crossed ? strategy_crossed_sum(s, range) : strategy_sum(s, 0, range);
}

/* Copies this rank's own part, if the sum was made in memory that the update does not read. */
static void share_own(const struct dpt_strategy *s, int range)
{
    const int me = s->part.position;
    const bool elsewhere = s->waves.applied.data || s->waves.crossed || s->step.flat_gradient;
    const struct dpt_interval take = shared_piece(s, me, me, range);
    const int64_t skip = take.first - strategy_whole_piece(s, me, range).first;
    if (elsewhere && !strategy_is_empty(take))
        s->ops->copy(s->comm_stream, (size_t)strategy_numel(take) * sizeof(float),
                     whole_sum(s, range) + skip, share_place(s, range, take.first));
}

static int64_t share_bytes_to(const void *ctx, const struct dpt_task *task, int position)
{
    const struct dpt_strategy *s = ctx;
    return strategy_numel(shared_piece(s, s->part.position, position, task->unit)) *
           (int64_t)strategy_width(s, position);
}

static void post_share(void *ctx, const struct dpt_task *task, struct dpt_task_transfers *x)
{
    const struct dpt_strategy *s = ctx;
    const int range = task->unit, me = s->part.position;
    const struct dpt_buffer *from = s->waves.crossed ? &s->waves.added : &s->waves.sums[0];
    const int64_t own_at = whole_sum(s, range) - (const float *)from->data,
                  own_first = strategy_whole_piece(s, me, range).first;
    share_own(s, range);
    for (int i = 1; i < s->part.world->size; i++) {
        const int position = strategy_other(s, i);
        const struct dpt_interval take = shared_piece(s, position, me, range);
        const int64_t skip = shared_piece(s, me, position, range).first - own_first;
        const bool narrow = strategy_is_narrow(s, position);
        strategy_send(s, x, position, narrow ? &s->waves.narrow_sum : from,
                      narrow ? strategy_narrow_offset(s, range, skip)
                             : (size_t)(own_at + skip) * sizeof(float),
                      (size_t)share_bytes_to(s, task, position));
        if (strategy_is_empty(take))
            continue;
        float *place = share_place(s, range, take.first);
        strategy_receive(s, x, position,
                         narrow ? dpt_wire_inbox(strategy_numel(take), place) : place,
                         (size_t)strategy_numel(take) * strategy_width(s, position));
    }
}

/* Widens sums of another host, which arrived in 16 bits in the memory of `values`. */
static void widen_shared(const struct dpt_strategy *s, int64_t n, float *values)
{
    if (!s->traits.on_device) {
        dpt_wire_unpack(s->ops, s->comm_stream, s->wire, n, values);
        return;
    }
    s->ops->copy(s->comm_stream, (size_t)n * dpt_dtype_bytes(s->wire), dpt_wire_inbox(n, values),
                 s->waves.scratch.data);
    s->ops->widen(s->comm_stream, n, s->wire, s->waves.scratch.data, values);
}

static enum dpt_status share_done(void *ctx, const struct dpt_task *task,
                                  const struct dpt_task_transfers *x, struct dpt_err *err)
{
    const struct dpt_strategy *s = ctx;
    (void)x;
    for (int i = 1; i < s->part.world->size; i++) {
        const int position = strategy_other(s, i);
        const struct dpt_interval take = shared_piece(s, position, s->part.position, task->unit);
        if (!strategy_is_empty(take) && strategy_is_narrow(s, position))
            widen_shared(s, strategy_numel(take), share_place(s, task->unit, take.first));
    }
    return dpt_stream_sync(s->comm_stream, err);
}

const struct dpt_task_handler strategy_share = {post_share, share_done, share_bytes_to};
