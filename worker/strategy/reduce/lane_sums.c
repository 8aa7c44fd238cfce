/* The gradients of a rank's own run of lanes (`accumulate: local` with whole gradient buffers).
 * During backward slots are added into lanes, and lanes are added up the tree. The reducer gets a
 * bucket while backward goes on with the tensors before it (Li et al., "PyTorch Distributed",
 * VLDB'20).
 *
 * Lane buffers are a stack, as worker/plan/lanes.h describes. When the last slot of a lane
 * announces a tensor, that tensor is joined up the stack; after the last lane the sums of a bucket
 * go to the reducer. All by the main thread. */
#include "worker/strategy/strategy_internal.h"

/* The number of joins after the lane being filled. */
static int joins_after_lane(const struct dpt_strategy *s)
{
    return dpt_tree_joins_after(s->part.world->lanes, s->lanes.own, s->lanes.lane);
}

/* Gradients that were packed for a transfer (packed_values.h) left bits in the gaps, which no op
 * writes. */
static void clear_gaps(const struct dpt_strategy *s)
{
    for (int u = 0; u < s->n_units; u++)
        dpt_model_clear_gaps(s->env.model, s->ops, s->stream, u,
                             s->lanes.data[s->lanes.depth] + s->env.grid->offset[u]);
}

static bool lanes_begin_step(struct dpt_strategy *s)
{
    return dpt_reducer_begin(s->lanes.reducer, s->step.step) && !s->traits.buckets.waits;
}

static void lanes_begin_slot(struct dpt_strategy *s, int slot_index, struct dpt_slot *slot)
{
    struct strategy_lanes *l = &s->lanes;
    const int slots = dpt_config_slots(s->env.config), lanes = s->part.world->lanes,
              lane = dpt_share_of(slots, lanes, slot_index);
    const struct dpt_range of_lane = dpt_lane_slots(slots, lanes, lane);
    const bool first = slot_index == of_lane.first;
    DPT_ASSERT(lane >= l->own.first && lane < l->own.end && (first || lane == l->lane));
    if (first)
        l->depth = lane == l->own.first ? 0 : l->depth + 1 - joins_after_lane(s);
    l->lane = lane;
    /* Backward may add a slot while it makes the slot's gradient: the bits are the same as if the
     * complete gradient were added. There are two exceptions: the unit with `in_parts`, and lanes
     * that are rounded before they are added. */
    l->direct = s->wire == DPT_F32 && of_lane.end - of_lane.first == 1 && joins_after_lane(s) > 0;
    for (int u = 0; u < s->n_units; u++)
        s->step.grads[u] =
            l->data[l->depth - (l->direct && u != l->parted)] + s->env.grid->offset[u];
    l->lane_ends = slot_index == of_lane.end - 1;
    slot->accumulate = !first || l->direct;
    if (first && s->wire != DPT_F32)
        clear_gaps(s);
    l->adds_apart = !first && l->apart.data;
    slot->parts_apart = l->adds_apart || l->direct;
    if (l->adds_apart)
        s->step.grads[l->parted] = l->apart.data;
}

/* Joins a tensor that is complete in the lane being filled up the stack, while the tensor is still
 * in the caches. Each sum is rounded to `wire` (packed_values.h). The gaps between units stay zero.
 */
static void join_tensor(const struct dpt_strategy *s, const struct dpt_param *param)
{
    const struct strategy_lanes *l = &s->lanes;
    int joins = joins_after_lane(s), top = l->depth;
    s->ops->round_to(s->stream, param->numel, s->wire, l->data[top] + param->offset);
    if (l->direct && param->unit != l->parted) { /* backward has done the first join */
        joins--;
        top--;
    }
    for (; joins > 0; joins--, top--) {
        float *sum = l->data[top - 1] + param->offset;
        s->ops->add(s->stream, param->numel, sum, l->data[top] + param->offset, sum);
        s->ops->round_to(s->stream, param->numel, s->wire, sum);
    }
}

/* Adds a tensor of the parted unit to the lane, once the tensor is complete in this slot. */
static void add_apart(const struct dpt_strategy *s, const struct dpt_param *param)
{
    const struct strategy_lanes *l = &s->lanes;
    float *sum = l->data[l->depth] + param->offset;
    const float *slot =
        (const float *)l->apart.data + (param->offset - s->env.grid->offset[l->parted]);
    s->ops->add(s->stream, param->numel, sum, slot, sum);
}

static void lanes_add_tensor(struct dpt_strategy *s, int param)
{
    const struct dpt_param *p = dpt_model_param(s->env.model, param);
    if (s->lanes.adds_apart && p->unit == s->lanes.parted)
        add_apart(s, p);
    if (s->lanes.lane_ends)
        join_tensor(s, p);
}

/* The reduction may end later, unless the strategy waits for each bucket. */
static enum dpt_status lanes_reduce(struct dpt_strategy *s, int range, struct dpt_err *err)
{
    const int bucket = s->buckets.n - 1 - range;
    return s->traits.buckets.waits ? dpt_reducer_run(s->lanes.reducer, bucket, err)
                                   : dpt_reducer_ready(s->lanes.reducer, bucket, err);
}

static enum dpt_status lanes_finish(struct dpt_strategy *s, struct dpt_err *err)
{
    return dpt_reducer_finish(s->lanes.reducer, err);
}

static void lanes_applied(struct dpt_strategy *s, int64_t step)
{
    if (s->lanes.powersgd)
        dpt_powersgd_applied(s->lanes.powersgd, step);
}

static void lanes_cost(const struct dpt_strategy *s, struct dpt_strategy_cost *cost)
{
    const struct strategy_lanes *l = &s->lanes;
    cost->gradient_buffers += l->n_registered + l->n_on_device;
    cost->gradient_bytes +=
        cost->gradient_buffers * s->flat_numel * (int64_t)sizeof(float) + (int64_t)l->apart.bytes;
    dpt_reducer_cost(l->reducer, cost);
}

const struct strategy_route strategy_by_lanes = {.sends_by_job = true,
                                                 .begin_generation = strategy_lanes_begin,
                                                 .reduce = lanes_reduce,
                                                 .cost = lanes_cost,
                                                 .begin_step = lanes_begin_step,
                                                 .begin_slot = lanes_begin_slot,
                                                 .add_tensor = lanes_add_tensor,
                                                 .finish = lanes_finish,
                                                 .applied = lanes_applied};
