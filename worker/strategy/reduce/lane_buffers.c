/* Lane buffers and the reducer over them (lane_buffers.h). */
#include "worker/strategy/reduce/lane_buffers.h"

#include "worker/strategy/reduce/nccl_reducer.h"
#include "worker/strategy/reduce/staged_reducer.h"

static const struct dpt_memory_entry *entry_of(const struct dpt_memory_list *memory,
                                               enum dpt_memory_item first, int buffer)
{
    return &memory->item[buffer == 0 ? first : first + 1];
}

static int count_buffers(const struct dpt_memory_list *memory, enum dpt_memory_item first)
{
    return memory->item[first].n + memory->item[first + 1].n;
}

enum dpt_status dpt_lane_buffers_make(struct dpt_lane_buffers *b,
                                      const struct dpt_strategy_env *env,
                                      const struct dpt_memory_list *memory, struct dpt_err *err)
{
    const int registered = count_buffers(memory, DPT_ITEM_LANE_FIRST),
              on_device = count_buffers(memory, DPT_ITEM_DEVICE_LANE_FIRST);
    DPT_ASSERT(registered <= DPT_COVER_MAX && on_device <= DPT_COVER_MAX);
    for (int i = b->n_registered; i < registered; i++, b->n_registered++) {
        const struct dpt_memory_entry *entry = entry_of(memory, DPT_ITEM_LANE_FIRST, i);
        /* Peers of the same host write sums to the first buffer. */
        DPT_TRY(dpt_comm_mem_create_for(env->listener, entry->tag, i == 0, entry->bytes,
                                        &b->registered[i], err));
        if (!env->resident)
            b->data[i] = dpt_comm_mem_data(b->registered[i]);
    }
    for (int i = b->n_on_device; i < on_device; i++, b->n_on_device++) {
        const struct dpt_memory_entry *entry = entry_of(memory, DPT_ITEM_DEVICE_LANE_FIRST, i);
        DPT_TRY(dpt_buffer_make_private(env->resident, entry->tag, entry->bytes, &b->on_device[i],
                                        err));
        b->data[i] = b->on_device[i].data;
    }
    return DPT_OK;
}

void dpt_lane_buffers_free(struct dpt_lane_buffers *b)
{
    for (int i = 0; i < b->n_registered; i++)
        dpt_comm_mem_destroy(&b->registered[i]);
    for (int i = 0; i < b->n_on_device; i++)
        dpt_buffer_free(&b->on_device[i]);
    *b = (struct dpt_lane_buffers){.n_registered = 0};
}

enum dpt_status dpt_lane_reducer_create(const struct dpt_strategy_env *env,
                                        const struct dpt_partition *part,
                                        const struct dpt_model_buckets *buckets,
                                        const struct dpt_lane_buffers *b, struct dpt_reducer **ret,
                                        struct dpt_err *err)
{
    const struct dpt_world *world = part->world;
    const bool by_nccl = world->size > 1 && env->resident_comm_stream;
    const struct dpt_reducer_spec of = {.thread = env->comm_thread,
                                        .stream =
                                            by_nccl ? env->resident_comm_stream : env->comm_stream,
                                        .buckets = buckets->bucket,
                                        .n_buckets = buckets->n,
                                        .block = DPT_BLOCK,
                                        .world = world,
                                        .rank = part->rank,
                                        .wire = dpt_dtype_of(part->traits.wire),
                                        .shards = part->traits.state != DPT_STATE_REPLICATED};
    const struct dpt_nccl_reducer_spec nccl = {.of = of,
                                               .device = env->resident,
                                               .main_stream = env->resident_stream,
                                               .buffers = b->data,
                                               .any_order = part->traits.order_open &&
                                                            of.wire == DPT_F32 && !of.shards};
    if (by_nccl)
        return dpt_nccl_reducer_create(&nccl, ret, err);
    const struct dpt_host_reducer_spec host = {.of = of,
                                               .ops = dpt_device_ops(env->device),
                                               .listener = env->listener,
                                               .buffers = b->registered};
    if (!env->resident || world->size == 1)
        return dpt_host_reducer_create(&host, ret, err);
    struct dpt_range cover[DPT_COVER_MAX];
    const struct dpt_staged_reducer_spec staged = {
        .stream = env->resident_stream,
        .ops = dpt_device_ops(env->resident),
        .on_device = b->data,
        .n_sums = dpt_tree_cover(
            world->lanes, dpt_position_lanes(world->lanes, world->size, part->position), cover),
        .numel = dpt_model_flat_numel(env->model),
        .host = host};
    return dpt_staged_reducer_create(&staged, ret, err);
}
