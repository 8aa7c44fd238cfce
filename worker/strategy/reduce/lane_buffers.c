/* The lane buffers of a rank, and the reducer of a generation over them (strategy_internal.h). The
 * place of the buffers decides which reducer a generation uses. */
#include "worker/strategy/reduce/nccl_reducer.h"
#include "worker/strategy/reduce/ring_reducer.h"
#include "worker/strategy/reduce/staged_reducer.h"
#include "worker/strategy/strategy_internal.h"

/* ---- memory ---- */

static const struct dpt_memory_entry *entry_of(const struct dpt_strategy *s,
                                               enum dpt_memory_item first, int buffer)
{
    return &s->memory.item[buffer == 0 ? first : first + 1];
}

static int count_buffers(const struct dpt_strategy *s, enum dpt_memory_item first)
{
    const int n = s->memory.item[first].n + s->memory.item[first + 1].n;
    DPT_ASSERT(n <= DPT_COVER_MAX);
    return n;
}

/* A rank keeps its buffers when a larger world needs fewer. After a failure the world is smaller
 * and needs them again; recovery then does not wait until the kernel clears new memory. */
static enum dpt_status make_lane_buffers(struct dpt_strategy *s, struct dpt_err *err)
{
    struct strategy_lanes *l = &s->lanes;
    const int registered = count_buffers(s, DPT_ITEM_LANE_FIRST),
              on_device = count_buffers(s, DPT_ITEM_DEVICE_LANE_FIRST);
    for (int i = l->n_registered; i < registered; i++, l->n_registered++) {
        const struct dpt_memory_entry *entry = entry_of(s, DPT_ITEM_LANE_FIRST, i);
        /* Peers of the same host write sums to the first buffer. */
        DPT_TRY(dpt_comm_mem_create_for(s->env.listener, entry->tag, i == 0, entry->bytes,
                                        &l->registered[i], err));
        if (!s->traits.on_device)
            l->data[i] = dpt_comm_mem_data(l->registered[i]);
    }
    for (int i = l->n_on_device; i < on_device; i++, l->n_on_device++) {
        const struct dpt_memory_entry *entry = entry_of(s, DPT_ITEM_DEVICE_LANE_FIRST, i);
        DPT_TRY(dpt_buffer_make(NULL, s->device, entry->tag, entry->bytes, &l->on_device[i], err));
        l->data[i] = l->on_device[i].data;
    }
    l->parted = -1;
    for (int u = 0; u < s->n_units; u++)
        if (dpt_model_unit(s->env.model, u)->in_parts)
            l->parted = u;
    s->step.flat_gradient = l->data[0];
    return strategy_buffer_make(s, DPT_ITEM_APART, false, &l->apart, err);
}

void strategy_lanes_destroy(struct dpt_strategy *s)
{
    struct strategy_lanes *l = &s->lanes;
    dpt_powersgd_destroy(&l->powersgd);
    for (int i = 0; i < l->n_registered; i++)
        dpt_comm_mem_destroy(&l->registered[i]);
    for (int i = 0; i < l->n_on_device; i++)
        dpt_buffer_free(&l->on_device[i]);
    dpt_buffer_free(&l->apart);
}

/* ---- the reducer ---- */

static enum dpt_status make_reducer(struct dpt_strategy *s, struct dpt_err *err)
{
    struct strategy_lanes *l = &s->lanes;
    const struct dpt_world *world = s->part.world;
    const struct dpt_reducer_spec of = {.thread = s->env.comm_thread,
                                        .stream = s->comm_stream,
                                        .buckets = s->buckets.bucket,
                                        .n_buckets = s->buckets.n,
                                        .block = DPT_BLOCK,
                                        .world = world,
                                        .rank = s->part.rank,
                                        .wire = s->wire,
                                        .shards = s->traits.state != DPT_STATE_REPLICATED};
    const struct dpt_nccl_reducer_spec nccl = {.of = of,
                                               .device = s->device,
                                               .main_stream = s->stream,
                                               .buffers = l->data,
                                               .any_order = s->traits.order_open &&
                                                            of.wire == DPT_F32 && !of.shards};
    if (s->traits.by_nccl && world->size > 1)
        return dpt_nccl_reducer_create(&nccl, &l->reducer, err);
    const struct dpt_host_reducer_spec host = {.of = of,
                                               .ops = dpt_device_ops(s->env.device),
                                               .listener = s->env.listener,
                                               .buffers = l->registered};
    if (s->traits.by_ring && world->size > 1)
        return dpt_ring_reducer_create(
            &(struct dpt_ring_reducer_spec){
                .of = of, .ops = host.ops, .listener = host.listener, .buffer = l->registered[0]},
            &l->reducer, err);
    if (!s->traits.on_device || world->size == 1)
        return dpt_host_reducer_create(&host, &l->reducer, err);
    struct dpt_range cover[DPT_COVER_MAX];
    const struct dpt_staged_reducer_spec staged = {.stream = s->stream,
                                                   .ops = s->ops,
                                                   .on_device = l->data,
                                                   .n_sums =
                                                       dpt_tree_cover(world->lanes, l->own, cover),
                                                   .numel = s->flat_numel,
                                                   .host = host};
    return dpt_staged_reducer_create(&staged, &l->reducer, err);
}

enum dpt_status strategy_lanes_begin(struct dpt_strategy *s, struct dpt_step_spec *spec,
                                     struct dpt_err *err)
{
    struct strategy_lanes *l = &s->lanes;
    const struct dpt_world *world = s->part.world;
    (void)spec;
    l->own = dpt_position_lanes(world->lanes, world->size, s->part.position);
    DPT_TRY(make_lane_buffers(s, err));
    DPT_TRY(make_reducer(s, err));
    if (!s->traits.powersgd)
        return DPT_OK;
    if (!l->powersgd)
        DPT_TRY(dpt_powersgd_create(&s->env, &l->powersgd, err));
    return dpt_powersgd_begin_generation(l->powersgd, world, s->part.rank, l->data[0], &l->reducer,
                                         err);
}

void strategy_lanes_end(struct dpt_strategy *s)
{
    dpt_reducer_destroy(&s->lanes.reducer);
}
